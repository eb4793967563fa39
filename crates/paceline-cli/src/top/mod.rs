//! `paceline top`: the state of a gateway in a terminal, as its page shows it.

mod feed;
mod history;
mod panes;
mod screen;
mod state;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use paceline_providers::secrets::hidden;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use terminal_size::{Width, terminal_size};
use tokio::sync::{mpsc, watch};

use self::feed::{Feed, FeedEvent};
use self::screen::Screen;
use crate::exit::{Failure, Status};
use crate::output::print;

/// `paceline top`.
#[derive(Debug, Args)]
#[command(after_help = KEYS)]
pub(crate) struct TopArgs {
    /// Address of the gateway
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:4747")]
    url: String,
    /// Print the state once and end; so does a standard output that is no terminal
    #[arg(long)]
    once: bool,
    /// Environment variable that holds a key of the gateway, where its clients have keys
    #[arg(long, value_name = "VARIABLE")]
    api_key_env: Option<String>,
    /// Certificates of authorities to trust beside the system's, in PEM, where the gateway speaks TLS
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

const KEYS: &str = "\
Keys:
  up, down, Page Up, Page Down, Home, End   choose a scope
  s                                         sort by trouble, waiting, rate, refusals or name
  /                                         search; Enter keeps what is found, Esc shows all
  Tab                                       what stands first below: decisions, clients, jobs, the scope
  q, Ctrl-C                                 end";

/// The longest time between two drawings: waits count down.
const TICK: Duration = Duration::from_millis(500);

/// The lines of a picture at most.
const TALLEST: u16 = 2_000;

/// Shows the state of the gateway until the user ends it.
///
/// # Errors
/// There is no gateway at the address, or it wants a key.
pub(crate) async fn command(args: TopArgs) -> Result<Status, Failure> {
    let key = args.api_key_env.as_deref().map(read_key).transpose()?;
    let feed = Feed::new(&args.url, key, args.ca_file.as_deref())?;
    let address = feed.address().to_owned();
    let mut told = feed.clone().follow();
    // The first word says whether there is a gateway; later it is waited for.
    let mut screen = match told.recv().await {
        Some(FeedEvent::Changes(changes)) => {
            let mut screen = Screen::new(address);
            screen.state.take(*changes);
            screen
        }
        Some(FeedEvent::Lost(why) | FeedEvent::Refused(why)) => return Err(Failure::refused(why)),
        Some(FeedEvent::History(..)) | None => {
            return Err(Failure::interrupted("the task that follows the gateway has ended"));
        }
    };
    if args.once || !std::io::stdout().is_terminal() {
        let width = terminal_size().map_or(120, |(Width(width), _)| width);
        if let Some(place) = screen.subject() {
            let history = feed.history(&place).await;
            screen.state.take_history(place, history);
        }
        let text = picture(&mut screen, width)?;
        print(|out| out.write_all(text.as_bytes()))?;
        return Ok(Status::Success);
    }
    let mut terminal = ratatui::try_init().map_err(Failure::interrupted)?;
    let ended = follow(&mut terminal, &mut screen, feed, told).await;
    ratatui::restore();
    ended.map(|()| Status::Success).map_err(Failure::interrupted)
}

fn read_key(variable: &str) -> Result<String, Failure> {
    let key = std::env::var(variable).unwrap_or_default();
    if key.trim().is_empty() {
        return Err(Failure::refused(format!("--api-key-env {}: the variable is not set", hidden(variable))));
    }
    Ok(key.trim().to_owned())
}

async fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    feed: Feed,
    mut told: mpsc::Receiver<FeedEvent>,
) -> std::io::Result<()> {
    let mut keys = keys();
    let (looks_at, looked_at) = watch::channel(None);
    let mut histories = feed.tell_history(looked_at);
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let subject = screen.subject();
        looks_at.send_if_modified(|place| {
            let is_other = *place != subject;
            *place = subject;
            is_other
        });
        tokio::select! {
            Some(told) = histories.recv() => take(screen, told),
            told = told.recv() => match told {
                Some(told) => take(screen, told),
                None => return Ok(()),
            },
            event = keys.recv() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if is_end(key, screen) {
                        return Ok(());
                    }
                    screen.key(key.code);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            () = tokio::time::sleep(TICK) => {}
        }
    }
}

fn take(screen: &mut Screen, told: FeedEvent) {
    match told {
        FeedEvent::Changes(changes) => screen.state.take(*changes),
        FeedEvent::Lost(why) | FeedEvent::Refused(why) => screen.state.lost(why),
        FeedEvent::History(place, history) => screen.state.take_history(place, history.map(|history| *history)),
    }
}

fn is_end(key: KeyEvent, screen: &Screen) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('c')) && control || key.code == KeyCode::Char('q') && !screen.is_searching()
}

/// The terminal's events. They are read by a thread, which ends with the process.
fn keys() -> mpsc::Receiver<std::io::Result<Event>> {
    let (sender, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    keys
}

/// The screen as text, as tall as it needs to be.
fn picture(screen: &mut Screen, width: u16) -> Result<String, Failure> {
    screen.is_picture = true;
    let height = screen.wanted_height(width).min(TALLEST);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(Failure::interrupted)?;
    terminal.draw(|frame| screen.draw(frame)).map_err(Failure::interrupted)?;
    Ok(lines(terminal.backend().buffer()))
}

fn lines(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned() + "\n"
    };
    buffer.content.chunks(width).map(line).collect()
}

#[cfg(test)]
mod tests;
