//! What happened in a run.

use paceline_core::Instant;

/// Seconds that are looked at together.
pub(crate) const SPAN: usize = 5;

/// What happened in a run.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) clients: u32,
    pub(crate) admitted: Vec<Instant>,
    /// Refused calls by whole seconds.
    pub(crate) refused: Vec<u32>,
    pub(crate) refusals: u64,
    pub(crate) sends: u64,
    /// The tokens of the admitted calls up to each.
    pub(crate) tokens: Vec<u64>,
    pub(crate) first_sent: Vec<Option<Instant>>,
    /// First attempt to success, in nanoseconds.
    pub(crate) times: Vec<u64>,
    pub(crate) lost: u32,
    /// Items that have not ended, by client.
    pub(crate) open: Vec<u32>,
    pub(crate) successes: Vec<u64>,
    pub(crate) last_success: Instant,
    /// When the first client had no work left, and what every client had achieved then.
    pub(crate) first_done: Option<(Instant, Vec<u64>)>,
}

impl Record {
    pub(crate) fn new(clients: u32, items: u32) -> Self {
        Self {
            clients,
            admitted: Vec::with_capacity(items as usize),
            refused: Vec::new(),
            refusals: 0,
            sends: 0,
            tokens: Vec::with_capacity(items as usize),
            first_sent: vec![None; items as usize],
            times: Vec::with_capacity(items as usize),
            lost: 0,
            open: (0..clients).map(|client| (items - client).div_ceil(clients)).collect(),
            successes: vec![0; clients as usize],
            last_success: Instant::ZERO,
            first_done: None,
        }
    }

    pub(crate) fn sent(&mut self, item: u32, now: Instant) {
        self.sends += 1;
        self.first_sent[item as usize].get_or_insert(now);
    }

    pub(crate) fn admitted(&mut self, now: Instant, tokens: u64) {
        self.tokens.push(self.tokens.last().map_or(tokens, |before| before + tokens));
        self.admitted.push(now);
    }

    pub(crate) fn refused(&mut self, now: Instant) {
        let second = second(now);
        if second >= self.refused.len() {
            self.refused.resize(second + 1, 0);
        }
        self.refused[second] += 1;
        self.refusals += 1;
    }

    pub(crate) fn succeeded(&mut self, item: u32, now: Instant) {
        let sent = self.first_sent[item as usize].expect("an item that succeeds was sent");
        self.times.push(now.as_nanos() - sent.as_nanos());
        self.successes[(item % self.clients) as usize] += 1;
        self.last_success = now;
        self.ended(item, now);
    }

    pub(crate) fn lost(&mut self, item: u32, now: Instant) {
        self.lost += 1;
        self.ended(item, now);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.open.iter().all(|open| *open == 0)
    }

    /// Whether a client has items that have not ended.
    pub(crate) fn is_open(&self, client: usize) -> bool {
        self.open[client] > 0
    }

    /// Items that were sent at least once.
    pub(crate) fn begun(&self) -> u32 {
        u32::try_from(self.first_sent.iter().flatten().count()).expect("items are numbered in 32 bits")
    }

    fn ended(&mut self, item: u32, now: Instant) {
        let open = &mut self.open[(item % self.clients) as usize];
        *open -= 1;
        if *open == 0 && self.first_done.is_none() {
            self.first_done = Some((now, self.successes.clone()));
        }
    }
}

pub(crate) fn second(at: Instant) -> usize {
    usize::try_from(at.as_nanos() / 1_000_000_000).unwrap_or(usize::MAX)
}
