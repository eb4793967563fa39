//! A log whose entries are a line each.

use std::io::{self, Write};

use paceline_providers::escape::printable;

/// A log whose entries are a line each, whatever text of a server is in them. An entry is written at once.
#[derive(Debug)]
pub(crate) struct Lines<W>(pub(crate) W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(entry);
        let line = format!("{}\n", printable(text.trim_end_matches('\n')));
        self.0.write_all(line.as_bytes())?;
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_of_the_log_is_one_line(entry: String) {
            let mut log = Vec::new();
            Lines(&mut log).write_all((entry + "\n").as_bytes()).unwrap();
            let log = String::from_utf8(log).unwrap();
            prop_assert!(log.ends_with('\n') && log.chars().filter(|c| c.is_control()).count() == 1, "{log:?}");
        }
    }
}
