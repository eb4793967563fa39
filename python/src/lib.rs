//! `paceline._engine`: the pacer and the tables of the providers, for a driver that is written in Python.
//!
//! Nothing here waits and nothing here starts a thread. Each input returns at once; what it means for other callers is told to
//! the driver, which wakes them in their event loop or in their thread.

mod call;
mod clock;
mod engine;
mod fleet;
mod given;
mod http;
mod options;

use pyo3::prelude::*;

pyo3::import_exception!(paceline._errors, DeadlineExceeded);
pyo3::import_exception!(paceline._errors, FleetError);
pyo3::import_exception!(paceline._errors, Stopped);
pyo3::import_exception!(paceline._errors, TooLarge);
pyo3::import_exception!(paceline._errors, WouldWait);

/// The engine of the package `paceline`.
#[pymodule(gil_used = false)]
mod _engine {
    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::clock::Clock;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::fleet::{Member, account_of, fleet_of};
    #[pymodule_export]
    use crate::given::without_keys;
    #[pymodule_export]
    use crate::http::{answer, no_answer, observe, target};
}
