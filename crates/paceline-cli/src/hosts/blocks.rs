//! The lines of an input as the blocks that hosts claim.

use std::io::{self, BufRead};

use blake3::Hasher;
use paceline_store::blocks::NewBlock;

use crate::lines::input::Lines;

/// The bytes of a block, but for one that has a single line.
const BYTES: usize = 128 << 10;

/// The lines of a block at most: a host that is lost leaves some of so many undone.
const MOST_LINES: u64 = 200;

/// A job has about so many blocks, where its lines allow that: each of a few hosts finds work until the end.
const BLOCKS: u64 = 200;

/// By what the lines of an input are known on every host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) lines: u64,
    /// Of their bytes.
    pub(super) hash: String,
}

impl Known {
    /// Reads all lines for it.
    pub(super) fn of(mut lines: Lines<impl BufRead>) -> io::Result<Self> {
        let (mut hasher, mut count) = (Hasher::new(), 0);
        while let Some((number, span, bytes)) = lines.next_line()? {
            hasher.update(&number.to_le_bytes()).update(&span.len.to_le_bytes()).update(bytes);
            count += 1;
        }
        Ok(Self { lines: count, hash: hasher.finalize().to_hex()[..16].to_owned() })
    }

    /// The most lines of a block.
    pub(super) const fn block_lines(&self) -> u64 {
        match self.lines.div_ceil(BLOCKS) {
            0 => 1,
            lines if lines > MOST_LINES => MOST_LINES,
            lines => lines,
        }
    }
}

/// Cuts lines into blocks; the same at each time and on each host, for the same lines.
pub(super) struct Cut<R> {
    lines: Lines<R>,
    most: u64,
    /// The line that did not fit, with its number.
    next: Option<(u64, Vec<u8>)>,
}

impl<R: BufRead> Cut<R> {
    /// Begins behind the lines that are in blocks already.
    pub(super) fn behind(mut lines: Lines<R>, already: u64, most: u64) -> io::Result<Self> {
        for _ in 0..already {
            lines.next_line()?;
        }
        Ok(Self { lines, most, next: None })
    }

    /// The next block; none at the end. Its body is the number of the first line in the input, and the lines, each with its end.
    /// Blank lines between them are kept: they count in the numbers, and nowhere else.
    pub(super) fn next_block(&mut self) -> io::Result<Option<NewBlock>> {
        let (mut block, mut last): (Option<NewBlock>, u64) = (None, 0);
        loop {
            let (number, line) = match self.next.take() {
                Some(line) => line,
                None => match self.lines.next_line()? {
                    Some((number, _, bytes)) => (number, bytes.to_vec()),
                    None => return Ok(block),
                },
            };
            let begun = block.get_or_insert_with(|| {
                last = number - 1;
                NewBlock { lines: 0, body: format!("{number}\n").into_bytes() }
            });
            let blank = (number - last - 1) as usize;
            if begun.lines > 0 && (begun.lines == self.most || begun.body.len() + blank + line.len() >= BYTES) {
                self.next = Some((number, line));
                return Ok(block);
            }
            begun.body.extend(std::iter::repeat_n(b'\n', blank));
            begun.body.extend(line);
            begun.body.push(b'\n');
            (begun.lines, last) = (begun.lines + 1, number);
        }
    }
}

/// The lines of a block as it was cut, each with its number in the input; none where it is no such block.
pub(super) fn lines_of(body: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut parts = body.split(|byte| *byte == b'\n');
    let first: u64 = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    Some((first..).zip(parts).filter(|(_, line)| !line.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, already: u64, most: u64) -> Vec<NewBlock> {
        let mut cut = Cut::behind(Lines::new(text.as_bytes()), already, most).unwrap();
        std::iter::from_fn(|| cut.next_block().unwrap()).collect()
    }

    #[test]
    fn blocks_have_every_line_with_its_number_and_are_cut_alike_from_any_of_them_on() {
        let text = "a\n\n\nb\nc\n\nd\ne";
        let blocks = cut(text, 0, 2);
        assert_eq!(blocks.iter().map(|block| block.lines).collect::<Vec<_>>(), [2, 2, 1]);
        let lines: Vec<(u64, &[u8])> = blocks.iter().flat_map(|block| lines_of(&block.body).unwrap()).collect();
        assert_eq!(lines, [(1, b"a"), (4, b"b"), (5, b"c"), (7, b"d"), (8, b"e")].map(|(n, l)| (n, &l[..])));
        assert_eq!(cut(text, 2, 2), blocks[1..]);
        assert_eq!(cut(text, 5, 2), []);
        assert_eq!(lines_of(b"what\nelse"), None);
    }

    #[test]
    fn a_long_line_has_a_block_of_its_own() {
        let text = format!("a\n{}\nb\n", "x".repeat(2 * BYTES));
        assert_eq!(cut(&text, 0, 200).iter().map(|block| block.lines).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn a_small_job_has_small_blocks() {
        let of = |lines| Known { lines, hash: String::new() }.block_lines();
        assert_eq!([0, 1, 100, 1_000, 40_000, 10_000_000].map(of), [1, 1, 1, 5, 200, 200]);
    }

    #[test]
    fn an_input_is_known_by_its_lines() {
        let of = |text: &str| Known::of(Lines::new(text.as_bytes())).unwrap();
        assert_eq!(of("a\nb\n"), of("a\r\nb"));
        assert_ne!(of("a\nb\n").hash, of("a\nc\n").hash);
        assert_ne!(of("a\nb\n").hash, of("a\n\nb\n").hash, "its lines have other numbers");
    }
}
