//! The options of a limiter, read by the schema of the configuration file: an option takes what the file takes.

use std::path::Path;

use paceline_config::{Config, Environment, Overrides, SettingError, Upstream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use toml::{Table, Value};

/// The entry that options describe. No call goes to its address.
const ENTRY: &str = "limiter";

/// The options that act in a limiter, which sends nothing itself; the file has more.
const NAMES: [&str; 31] = [
    "limits",
    "provider",
    "pace",
    "start",
    "burst",
    "shape",
    "concurrency",
    "retry",
    "max_deferrals",
    "deadline",
    "responsive",
    "breaker",
    "tier",
    "rule",
    "header",
    "wait_headers",
    "longest_pause",
    "scope",
    "charge",
    "idempotency_header",
    "unknown_outcome",
    "rps",
    "rpm",
    "rph",
    "rpd",
    "tps",
    "tpm",
    "tph",
    "tpd",
    "itpm",
    "otpm",
];

/// The limiter that options describe.
pub(crate) fn of_options(options: &Bound<'_, PyDict>) -> PyResult<Upstream> {
    let mut section = Table::from_iter([("base_url".to_owned(), Value::from("http://127.0.0.1"))]);
    for (name, value) in options {
        let name: String = name.extract()?;
        if !NAMES.contains(&name.as_str()) {
            let names = NAMES.join(", ");
            return Err(PyTypeError::new_err(format!("unknown option {name}: expected one of {names}")));
        }
        section.insert(name, value_of(&value)?);
    }
    let entry = Table::from_iter([(ENTRY.to_owned(), Value::Table(section))]);
    let text = Table::from_iter([("upstream".to_owned(), Value::Table(entry))]).to_string();
    let overrides = Overrides { upstream: Some(ENTRY.to_owned()), ..Overrides::default() };
    let config = Config::parse(Path::new("the options"), &text, Environment::default(), overrides);
    let upstream = config.and_then(|config| config.upstream()).map_err(refusal)?;
    match upstream.idle.first() {
        None => Ok(upstream),
        Some(idle) => {
            Err(PyValueError::new_err(format!("{}={:?} does not act here: {}", idle.key, idle.value, upstream.acting)))
        }
    }
}

/// The entry of that name in a configuration file, or the only one.
pub(crate) fn of_file(path: &str, upstream: Option<String>) -> PyResult<Upstream> {
    let overrides = Overrides { config: Some(path.into()), upstream, ..Overrides::default() };
    let config = Config::load(std::env::vars_os().collect(), overrides);
    config.and_then(|config| config.direct().upstream()).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The words of the configuration, for one who wrote options.
fn refusal(error: SettingError) -> PyErr {
    match error {
        SettingError::Value { key, value, expected, .. } => {
            let key = key.strip_prefix("upstream.limiter.").unwrap_or(&key);
            PyValueError::new_err(format!("{key}={value:?}: expected {expected}"))
        }
        SettingError::File { message, .. } => PyTypeError::new_err(without_toml(&message)),
        error => PyValueError::new_err(error.to_string()),
    }
}

/// What a parser of TOML says, without its picture of a file that the program has not written: `retry = 3: invalid type: ...`.
fn without_toml(message: &str) -> String {
    let line =
        message.lines().find_map(|line| line.split_once(" | ").filter(|(number, _)| number.parse::<u32>().is_ok()));
    match (line, message.trim_end().lines().last()) {
        (Some((_, line)), Some(why)) if message.starts_with("TOML") => format!("{}: {why}", line.trim()),
        _ => message.to_owned(),
    }
}

fn value_of(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if value.is_instance_of::<PyBool>() {
        Ok(Value::Boolean(value.extract()?))
    } else if value.is_instance_of::<PyInt>() {
        Ok(Value::Integer(value.extract()?))
    } else if value.is_instance_of::<PyFloat>() {
        Ok(Value::Float(value.extract()?))
    } else if value.is_instance_of::<PyString>() {
        Ok(Value::String(value.extract()?))
    } else if let Ok(table) = value.cast::<PyDict>() {
        let entry = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((name.extract()?, value_of(&value)?));
        table.iter().map(entry).collect::<PyResult<Table>>().map(Value::Table)
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        value.try_iter()?.map(|each| value_of(&each?)).collect::<PyResult<_>>().map(Value::Array)
    } else {
        let expected = "expected a text, a number, a list or a dictionary";
        Err(PyTypeError::new_err(format!("{}: {expected}", value.repr()?)))
    }
}
