//! How input is changed.

use paceline_core::Rng;

/// An input of this size is a long one.
pub(crate) const LONG: usize = 1 << 20;

/// What is put where it does not belong.
const SCRAPS: [&str; 40] = [
    "retry after ",
    "try again in ",
    "limit 1",
    "requested 9",
    "limit: 0",
    "1e999",
    "-1",
    "18446744073709551616",
    "NaN",
    "inf",
    "null",
    "true",
    "{\"error\":",
    "{\"usage\":{}},",
    "[[[[[[[[",
    "\"code\":",
    "\"message\":\"",
    "\"retry_after\":",
    "data: ",
    "data: [DONE]\n\n",
    "event: error\n",
    "\n\n",
    "\r\n",
    ": keep-alive\n",
    "\u{0}",
    "\u{feff}",
    "\u{1b}[31m",
    "2026-11-20 12:00:00 UTC",
    "Fri, 20 Nov 2026 12:02:00 GMT",
    "9999999999999999999s",
    "1795176000",
    "1795176000000",
    "h1m",
    "6m0s",
    "\\u0000",
    "\\ud800",
    "\"details\":[",
    "}",
    ";w=1,\"",
    "32/40",
];

/// A number below `most`; 0 when that is 0.
pub(crate) fn below(rng: &mut Rng, most: usize) -> usize {
    (rng.next_u64() % most.max(1) as u64) as usize
}

/// Up to `most` changes; long ones are repeated to a megabyte.
pub(crate) fn changed(bytes: &[u8], rng: &mut Rng, most: usize, long: bool) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..below(rng, most + 1) {
        once(rng, &mut bytes);
    }
    if long && !bytes.is_empty() {
        let from = below(rng, bytes.len());
        let part = bytes[from..(from + 1 + below(rng, bytes.len() - from)).min(bytes.len())].to_vec();
        let at = below(rng, bytes.len() + 1);
        let repeated = part.repeat(LONG / part.len());
        bytes.splice(at..at, repeated);
    }
    bytes
}

fn once(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = below(rng, bytes.len() + 1);
    match below(rng, 7) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, rng.next_u64() as u8),
        2 | 3 => {
            bytes.splice(at..at, SCRAPS[below(rng, SCRAPS.len())].bytes());
        }
        4 if at < bytes.len() => bytes[at] ^= 1 << below(rng, 8),
        5 if at < bytes.len() => {
            bytes.remove(at);
        }
        _ => {
            let part = bytes[at..bytes.len().min(at + 40)].to_vec();
            bytes.splice(at..at, part);
        }
    }
}
