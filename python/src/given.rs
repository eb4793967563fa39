//! Values that a program gives, or why they cannot be: with their name, what was given and what was expected.

use std::sync::Arc;
use std::time::Duration;

use paceline_providers::secrets::hidden;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A value of that kind.
pub(crate) fn given<'py, T: FromPyObjectOwned<'py>>(
    name: &str,
    value: &Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<T> {
    value.extract().map_err(|_| wrong(name, value, expected))
}

/// A whole number of at least 0.
pub(crate) fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    given(name, value, "a whole number of at least 0")
}

pub(crate) fn text<'a>(name: &str, value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    value.extract().map_err(|_| wrong(name, value, "a text"))
}

/// A duration of at most 366 days, in seconds.
pub(crate) fn span(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    const LONGEST: f64 = 366.0 * 86_400.0;
    const EXPECTED: &str = "seconds, from 0 to 31622400";
    let seconds: f64 = given(name, value, EXPECTED)?;
    if (0.0..=LONGEST).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(wrong(name, value, EXPECTED))
}

/// What a server or a program says of a failure, without the keys in it: from here on it is shown.
pub(crate) fn said(reason: &str) -> Arc<str> {
    hidden(reason).as_ref().into()
}

/// The same for the driver.
#[pyfunction]
pub(crate) fn without_keys(reason: &str) -> String {
    hidden(reason).into_owned()
}

fn wrong(name: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    match value.repr() {
        Ok(value) => PyValueError::new_err(format!("{name}={value}: expected {expected}")),
        Err(error) => error,
    }
}
