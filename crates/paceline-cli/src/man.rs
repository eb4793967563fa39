//! `paceline man`: the manual for `man(1)`, one page for each command, as packages install it.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use jiff::civil::Date;

use crate::exit::{Failure, Status};

/// `paceline man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder for the pages; it is made where it is missing
    folder: PathBuf,
    /// The date of the pages, such as 2026-11-25
    #[arg(long)]
    date: Date,
}

/// Writes `paceline.1`, `paceline-run.1` and the others; from the same program and date the same bytes.
///
/// # Errors
/// The folder or a page cannot be written.
pub(crate) fn command(mut program: Command, args: &ManArgs) -> Result<Status, Failure> {
    program.build();
    fs::create_dir_all(&args.folder)
        .and_then(|()| write(&program, args))
        .map_err(|error| Failure::interrupted(format!("cannot write to {}: {error}", args.folder.display())))?;
    Ok(Status::Success)
}

fn write(command: &Command, args: &ManArgs) -> std::io::Result<()> {
    let page = Man::new(with_usage(command))
        .date(args.date.to_string())
        .source(concat!("paceline ", env!("CARGO_PKG_VERSION")))
        .manual("Paceline");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if visible(command).next().is_some() {
        page.render_subcommands_section(&mut text)?;
    }
    let mut last = Roff::new();
    notes(&mut last, &command.get_after_help().map(ToString::to_string).unwrap_or_default());
    see_also(&mut last, command);
    last.to_writer(&mut text)?;
    // What clap_mangen puts before the values of a flag is an empty line in three ways, and readers of pages complain of two.
    let text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", ".sp\n");
    fs::write(args.folder.join(page.get_filename()), text)?;
    visible(command).try_for_each(|each| write(each, args))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|each| !each.is_hide_set())
}

/// The command with the usage that `--help` prints. Else the page would begin with every flag in one paragraph.
fn with_usage(command: &Command) -> Command {
    let usage = command.clone().render_usage().to_string();
    command.clone().override_usage(usage.trim_start_matches("Usage:").trim_start().to_owned())
}

/// What stands below the flags in `--help`, paragraph by paragraph. Indented lines stay as they are.
fn notes(page: &mut Roff, text: &str) {
    for (index, paragraph) in text.split("\n\n").filter(|each| !each.is_empty()).enumerate() {
        let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        let lines: Vec<&str> = match heading(first) {
            Some(title) => {
                page.control("SH", [title.as_str()]);
                rest.lines().collect()
            }
            None => {
                page.control(if index == 0 { "SH" } else { "PP" }, (index == 0).then_some("NOTES"));
                paragraph.lines().collect()
            }
        };
        for alike in lines.chunk_by(|one, next| one.starts_with(' ') == next.starts_with(' ')) {
            let as_is = alike[0].starts_with(' ');
            if as_is {
                page.control("RS", ["2"]).control("nf", []);
            }
            for line in alike {
                page.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            if as_is {
                page.control("fi", []).control("RE", []);
            }
        }
    }
}

/// The title of a section: a line of one or two words before a colon, such as `Exit codes:`.
fn heading(line: &str) -> Option<String> {
    let title = line.strip_suffix(':').filter(|title| !title.starts_with(' ') && title.split(' ').count() <= 2);
    title.map(str::to_uppercase)
}

/// The page above, `paceline-tasks` for `paceline-tasks-add`; the first page names those below itself.
fn see_also(page: &mut Roff, command: &Command) {
    let name = command.get_display_name().unwrap_or_default();
    if let Some(above) = name.strip_suffix(command.get_name()).and_then(|above| above.strip_suffix('-')) {
        page.control("SH", ["SEE ALSO"]);
        page.control("BR", [above, "(1)"]);
    }
}
