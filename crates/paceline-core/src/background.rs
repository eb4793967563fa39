//! What requests of a priority below 0 leave to the others, and what the others leave to them.

use crate::config::Background;
use crate::cost::Cost;
use crate::request::Request;

/// What a request asks the limits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) cost: &'a Cost,
    pub(crate) caller: Option<u64>,
    /// Whether its item was told to wait before.
    pub(crate) was_told: bool,
    /// The share of the places that calls like it leave to the others.
    places: f64,
    /// The share of each window that it leaves to the others.
    windows: f64,
}

impl<'a> Ask<'a> {
    /// A request that leaves nothing to others.
    pub(crate) const fn of(cost: &'a Cost) -> Self {
        Self { cost, caller: None, was_told: false, places: 0.0, windows: 0.0 }
    }

    /// A request that waits with that priority, which is its own unless it has come forward.
    #[inline(always)]
    pub(crate) fn at(request: &'a Request, priority: i32, background: &Background) -> Self {
        let if_below = |priority: i32| if priority < 0 { background.reserve } else { 0.0 };
        let (places, windows) = (if_below(request.priority), if_below(priority));
        Self { cost: &request.cost, caller: request.caller, was_told: request.deferrals > 0, places, windows }
    }

    /// How many of so many places calls like it may have at once.
    pub(crate) fn most_places(&self, limit: u32) -> u32 {
        let kept = self.places * f64::from(limit);
        let whole = kept as u32;
        limit.saturating_sub(whole + u32::from(f64::from(whole) < kept)).max(1)
    }

    /// Whether calls like it may not have every place.
    pub(crate) fn leaves_places(&self) -> bool {
        self.places > 0.0
    }

    /// Whether calls like it may not have every unit of a window.
    pub(crate) const fn leaves_units(&self) -> bool {
        self.windows.to_bits() != 0
    }

    /// The units that must have room in a window of so many: its own, and those that it leaves free.
    #[inline(always)]
    pub(crate) fn needs(&self, units: u64, limit: u64) -> u64 {
        if self.windows == 0.0 || units == 0 {
            return units;
        }
        units.saturating_add((self.windows * limit as f64) as u64).min(limit.max(units))
    }
}
