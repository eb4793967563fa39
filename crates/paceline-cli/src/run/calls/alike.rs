//! Whether the first items to end all fail alike: then not the items are wrong, but the job.

/// What makes failures alike: status and code.
pub(crate) type Kind = (Option<u16>, Option<String>);

/// A watch over the first items of a run, until one of them ends otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Alike {
    limit: usize,
    watching: bool,
    stopped: bool,
    kind: Option<Kind>,
    items: usize,
}

/// What a failure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    /// Not everything fails alike, or nothing is watched.
    Nothing,
    /// It is like all so far, which are too few to tell.
    TooFew,
    /// As many as are looked at failed alike: the run has to stop.
    Stop,
    /// The run stops already.
    Stopped,
}

impl Alike {
    /// `more`: there are more items than the number looked at. A `limit` of 0 switches it off.
    pub(crate) const fn new(limit: usize, more: bool) -> Self {
        Self { limit, watching: limit > 0 && more, stopped: false, kind: None, items: 0 }
    }

    /// Whether nothing has ended otherwise yet.
    pub(crate) const fn is_watching(&self) -> bool {
        self.watching
    }

    /// How many more must fail alike; none when not all do.
    pub(crate) fn undecided(&self) -> Option<usize> {
        self.watching.then(|| self.limit.saturating_sub(self.items))
    }

    /// An item failed for good, or its first answer that does not match the schema came: each item is counted once.
    pub(crate) fn failed(&mut self, kind: Kind) -> Shows {
        if !self.watching || self.stopped {
            return if self.stopped { Shows::Stopped } else { Shows::Nothing };
        }
        if *self.kind.get_or_insert_with(|| kind.clone()) != kind {
            self.disarm();
            return Shows::Nothing;
        }
        self.items += 1;
        self.stopped = self.items >= self.limit;
        if self.stopped { Shows::Stop } else { Shows::TooFew }
    }

    /// An item ended otherwise.
    pub(crate) fn disarm(&mut self) {
        self.watching = self.stopped;
    }
}
