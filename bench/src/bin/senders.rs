//! Draws what `learnt_speed.py --calls` noted of several senders at one server: items answered and calls refused, over time.
//!
//! `senders CALLS.csv PICTURE.svg TITLE`: a line of the file has the sender, the seconds since its first call, and the status.

use std::error::Error;

use paceline_chart::{Axis, Figure, Ink, Panel, Series};

/// Who is drawn, and what the legend says.
const SENDERS: [(&str, &str); 3] = [
    ("paceline", "paceline run"),
    ("openai-sdk", "OpenAI's SDK, 10 retries"),
    ("tenacity", "tenacity, as in cookbooks"),
];

/// How a call of a sender ended, and when.
struct Call {
    sender: String,
    seconds: f64,
    status: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, picture, title] = arguments.as_slice() else {
        return Err("usage: senders CALLS PICTURE TITLE".into());
    };
    let calls = std::fs::read_to_string(source)?.lines().map(call).collect::<Result<Vec<_>, _>>()?;
    std::fs::write(picture, figure(title, &calls).svg()?)?;
    Ok(())
}

fn call(line: &str) -> Result<Call, Box<dyn Error>> {
    let mut cells = line.split(',');
    let mut cell = || cells.next().ok_or_else(|| format!("three cells are expected in {line:?}"));
    Ok(Call { sender: cell()?.to_owned(), seconds: cell()?.parse()?, status: cell()?.to_owned() })
}

fn figure(title: &str, calls: &[Call]) -> Figure {
    Figure::new(title)
        .note("None of them was told the limit; each had 64 calls in flight at most, and a key of its own. A line that ends early has given items up.")
        .row(340, vec![over_time("Items answered", calls, "200"), over_time("Calls refused", calls, "429")])
}

fn over_time(title: &str, calls: &[Call], status: &str) -> Panel {
    let lines = SENDERS.map(|(sender, _)| counted(calls, sender, status));
    let end = calls.iter().map(|call| call.seconds).fold(1.0, f64::max);
    let most = lines.iter().flatten().map(|(_, count)| *count).fold(1.0, f64::max);
    let panel = Panel::new(title, Axis::linear("time in s", 0.0, end), Axis::linear("", 0.0, most).whole());
    let [ours, sdk, loops] = lines;
    panel
        .with(Series::line(SENDERS[0].1, Ink::Blue, ours))
        .with(Series::dashed(SENDERS[1].1, Ink::Vermillion, sdk))
        .with(Series::dotted(SENDERS[2].1, Ink::Green, loops))
}

/// How many calls of a sender had ended so, after each of them, to the end of its last call.
fn counted(calls: &[Call], sender: &str, status: &str) -> Vec<(f64, f64)> {
    let mut seconds: Vec<(f64, bool)> =
        calls.iter().filter(|call| call.sender == sender).map(|call| (call.seconds, call.status == status)).collect();
    seconds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut count = 0.0;
    let mut points = vec![(0.0, 0.0)];
    for (at, counts) in seconds {
        count += f64::from(u8::from(counts));
        points.push((at, count));
    }
    points
}
