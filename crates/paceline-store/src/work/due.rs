//! How a stored due time is read, whatever a program or a person wrote there.

use paceline_core::Timestamp;

/// The end of the year 9999 in UTC. What is due later has no place in any run.
pub(crate) const HORIZON: Timestamp = Timestamp::from_millis(253_402_300_799_999);

/// A due time as a store or a file may hold it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored<'a> {
    /// Nothing: due now.
    Null,
    /// Whole milliseconds since 1970.
    Millis(i64),
    /// Milliseconds since 1970 as a fraction, or no number at all.
    Real(f64),
    /// Text or bytes, in short.
    Text(&'a str),
}

/// What a due time means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At once; the stored time is cleared.
    Now,
    /// At that time.
    At(Timestamp),
    /// At once, because what is stored is no time: worth a line in the log.
    Invalid,
    /// Not within any run: the item is listed as deferred.
    Beyond,
}

/// Reads a due time. Null and times that have passed are due now; infinity, what is no number, negative numbers and text
/// are nonsense, and due too: an item is rather tried once too early than never. After the year 9999 is never.
pub fn read_due(stored: Stored<'_>, now: Timestamp) -> Due {
    match stored {
        Stored::Null => Due::Now,
        Stored::Millis(..0) | Stored::Text(_) => Due::Invalid,
        Stored::Millis(millis) => at(Timestamp::from_millis(millis), now),
        Stored::Real(millis) if !millis.is_finite() || millis < 0.0 => Due::Invalid,
        // The conversion saturates, and a part of a millisecond never makes early.
        Stored::Real(millis) => at(Timestamp::from_millis(millis.ceil() as i64), now),
    }
}

fn at(time: Timestamp, now: Timestamp) -> Due {
    match time {
        time if time <= now => Due::Now,
        time if time > HORIZON => Due::Beyond,
        time => Due::At(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_due_time() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let later = Timestamp::from_millis(1_700_000_000_001);
        for (stored, due) in [
            (Stored::Null, Due::Now),
            (Stored::Millis(0), Due::Now),
            (Stored::Millis(1_700_000_000_000), Due::Now),
            (Stored::Millis(1_700_000_000_001), Due::At(later)),
            (Stored::Real(1_700_000_000_000.25), Due::At(later)),
            (Stored::Millis(HORIZON.as_millis()), Due::At(HORIZON)),
            (Stored::Millis(HORIZON.as_millis() + 1), Due::Beyond),
            (Stored::Millis(i64::MAX), Due::Beyond),
            (Stored::Real(1e300), Due::Beyond),
            (Stored::Millis(-1), Due::Invalid),
            (Stored::Millis(i64::MIN), Due::Invalid),
            (Stored::Real(-0.5), Due::Invalid),
            (Stored::Real(f64::NAN), Due::Invalid),
            (Stored::Real(f64::INFINITY), Due::Invalid),
            (Stored::Real(f64::NEG_INFINITY), Due::Invalid),
            (Stored::Text("tomorrow"), Due::Invalid),
            (Stored::Text("1700000000001"), Due::Invalid),
            (Stored::Text(""), Due::Invalid),
        ] {
            assert_eq!(read_due(stored, now), due, "{stored:?}");
        }
    }
}
