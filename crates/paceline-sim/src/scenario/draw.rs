//! Figures drawn from a seed.

use paceline_core::Rng;

pub(super) struct Draw(pub(super) Rng);

impl Draw {
    /// Evenly on a logarithmic scale.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low * libm::exp(self.0.unit() * libm::log(high / low))
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.0.unit() * choices.len() as f64) as usize]
    }
}
