//! How the program fares that runs the gateway: whether a new configuration was taken, and whether its files can be written.
//! It tells so here, for the metrics and for those who ask whether the gateway is ready.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Gauge, IntCounter, IntCounterVec, Opts, Registry};

use crate::server::Gateway;

/// The gauges of the certificate that clients are shown.
pub(crate) const VALID_FROM: &str = "paceline_certificate_valid_from_seconds";
pub(crate) const VALID_UNTIL: &str = "paceline_certificate_valid_until_seconds";

/// What a program tells of itself. A clone tells of the same.
#[derive(Clone, Debug, Default)]
pub struct Conditions(Arc<ProgramState>);

#[derive(Debug, Default)]
struct ProgramState {
    /// Readings of the configuration that were taken, and refused.
    reloads: [AtomicU64; 2],
    is_refused: AtomicBool,
    /// Files that could not be written the last time.
    unwritten: Mutex<BTreeSet<PathBuf>>,
    /// Lines of its log that were lost.
    lost_lines: Option<&'static AtomicU64>,
}

impl Conditions {
    /// Those of a program that counts there the lines of its log that were lost.
    #[must_use]
    pub fn of_program(lost_lines: &'static AtomicU64) -> Self {
        Self(Arc::new(ProgramState { lost_lines: Some(lost_lines), ..ProgramState::default() }))
    }

    /// The configuration, the keys of clients and the certificate were read again, and all were right, or one was refused.
    pub fn read_again(&self, is_right: bool) {
        self.0.reloads[usize::from(!is_right)].fetch_add(1, Ordering::Relaxed);
        self.0.is_refused.store(!is_right, Ordering::Relaxed);
    }

    /// The file was written, or could not be.
    pub fn wrote(&self, file: &Path, is_written: bool) {
        let mut unwritten = self.unwritten();
        match is_written {
            true => drop(unwritten.remove(file)),
            false => drop(unwritten.insert(file.to_owned())),
        }
    }

    /// What is amiss, a line each.
    pub(crate) fn amiss(&self) -> String {
        let refused =
            "the last change of the configuration, a key or a certificate was refused, and the former ones stay\n";
        let unwritten = "the state of limits and holds cannot be written, and a restart may forget some of it\n";
        let is_unwritten = !self.unwritten().is_empty();
        [(self.0.is_refused.load(Ordering::Relaxed), refused), (is_unwritten, unwritten)]
            .into_iter()
            .filter_map(|(is_so, words)| is_so.then_some(words))
            .collect()
    }

    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let help = "How often the configuration was read again, by what became of it: taken or refused";
        let reloads = IntCounterVec::new(Opts::new("paceline_reloads_total", help), &["outcome"])?;
        for (outcome, count) in ["taken", "refused"].into_iter().zip(&self.0.reloads) {
            reloads.with_label_values(&[outcome]).inc_by(count.load(Ordering::Relaxed));
        }
        registry.register(Box::new(reloads))?;
        if let Some(lost) = self.0.lost_lines {
            let help = "Lines of the log that were lost, because standard error did not take them";
            let lines = IntCounter::new("paceline_lost_log_lines_total", help)?;
            lines.inc_by(lost.load(Ordering::Relaxed));
            registry.register(Box::new(lines))?;
        }
        let refused =
            "1 while the last reading of the configuration was refused, so that a former one is in force, else 0";
        let unwritten = "Files of the state of limits and holds that could not be written the last time: a restart may forget some of it";
        for (name, help, value) in [
            ("paceline_reload_refused", refused, f64::from(u8::from(self.0.is_refused.load(Ordering::Relaxed)))),
            ("paceline_unwritten_files", unwritten, self.unwritten().len() as f64),
        ] {
            let gauge = Gauge::new(name, help)?;
            gauge.set(value);
            registry.register(Box::new(gauge))?;
        }
        Ok(())
    }

    fn unwritten(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.0.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Tells also how its program fares, which began before it.
    pub fn tell_conditions(&self, conditions: &Conditions) {
        self.conditions.get_or_init(|| conditions.clone());
    }

    /// How its program fares.
    pub(crate) fn conditions(&self) -> &Conditions {
        self.conditions.get_or_init(Conditions::default)
    }
}
