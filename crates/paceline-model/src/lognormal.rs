//! Normal and lognormal numbers. `libm` gives the same bits on every platform, the standard library does not.

/// The standard normal quantile of 0.99.
const Z99: f64 = 2.326_347_874;

/// The sigma of the lognormal numbers with that median and that 99th percentile, both above 0 and in the same unit.
pub fn sigma(p50: f64, p99: f64) -> f64 {
    libm::log(p99 / p50) / Z99
}

/// A standard normal number of two uniform ones from 0 to below 1 (Box and Muller).
pub fn normal(first: f64, second: f64) -> f64 {
    libm::sqrt(-2.0 * libm::log(1.0 - first)) * libm::cos(core::f64::consts::TAU * second)
}
