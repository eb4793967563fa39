//! Calls alike of which only answers tell what they cost, such as prompts with pictures.

/// What is known of them. No more of them are under way than were answered, and each may cost as much as the dearest of them.
///
/// ```
/// use paceline_core::Alike;
/// let mut pictures = Alike::default();
/// assert!(pictures.may_leave(), "the first leaves alone");
/// pictures.sent();
/// assert!(!pictures.may_leave());
/// pictures.ended();
/// pictures.answered(1, 25_500, 20);
/// assert_eq!((pictures.longest_input(), pictures.longest_output()), (25_500, 20));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alike {
    known: u64,
    open: u64,
    longest_input: u64,
    longest_output: u64,
}

impl Alike {
    /// Whether one more of them may leave: one alone, then as many together as were answered.
    pub const fn may_leave(&self) -> bool {
        self.open == 0 || self.open < self.known
    }

    /// One left.
    pub const fn sent(&mut self) {
        self.open = self.open.saturating_add(1);
    }

    /// One is no longer under way.
    pub const fn ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// So many were answered, none of which had more tokens than these; 0 where the answer does not tell.
    pub fn answered(&mut self, calls: u64, input_tokens: u64, output_tokens: u64) {
        self.known = self.known.saturating_add(calls);
        self.longest_input = self.longest_input.max(input_tokens);
        self.longest_output = self.longest_output.max(output_tokens);
    }

    /// The most tokens that the prompt of one of them had.
    pub const fn longest_input(&self) -> u64 {
        self.longest_input
    }

    /// The most tokens that the answer to one of them had.
    pub const fn longest_output(&self) -> u64 {
        self.longest_output
    }
}
