#![doc = include_str!("../README.md")]

mod compare;
mod engine;
mod fleet;
mod ideal;
mod measures;
mod phases;
mod plan;
pub mod policy;
mod record;
mod responsive;
mod scenario;
mod setup;
mod too_good;
mod trace;

pub use compare::{Failed, Figures, Median, compare, compare_each, medians};
pub use engine::{simulate, simulate_traced, simulate_until};
pub use fleet::{
    Demand, Fencing, FleetJob, FleetUse, GateFigures, fleet_gates, fleet_story, fleet_story_of_places, fleet_use,
};
pub use measures::Measures;
pub use phases::Phase;
pub use plan::{Plan, plan};
pub use policy::Wait;
pub use responsive::{Course, Paced, Requirement};
pub use scenario::{CostOf, Duty, Item, Scenario, ScenarioError, Workers};
pub use setup::{FleetSetup, FleetTrouble, Setup, SimError};
pub use too_good::TooGood;
pub use trace::{PaceNow, Span, Trace};
