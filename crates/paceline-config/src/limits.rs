//! Merges the limits of several layers into the quotas that hold.

use std::time::Duration;

use paceline_core::{Dimension, Limits, Quota, QuotaShape};

use super::effective::Ledger;
use super::error::SettingError;
use super::schema::{TierSection, UpstreamSection};
use super::setting::Setting;
use super::units::{self, Limit};

/// The limits that a section names, before it is decided which of them hold.
pub(crate) struct Named<'a> {
    rates: Vec<Rate<'a>>,
    /// `50 concurrent`, if a list has it.
    pub(crate) concurrent: Option<&'a Setting>,
    burst: Option<&'a Setting>,
    shape: Option<&'a Setting>,
}

/// A rate and who named it. Two are the same limit when they count the same over the same window.
struct Rate<'a> {
    dimension: Dimension,
    units: f64,
    window: Duration,
    setting: &'a Setting,
    key: &'static str,
}

/// The longest window whose limit a burst can refine.
const LONGEST_BURST_WINDOW: Duration = Duration::from_secs(60);

impl<'a> Named<'a> {
    pub(crate) fn of_upstream(section: &'a UpstreamSection, ledger: &Ledger) -> Result<Self, SettingError> {
        let listed = section.limits.as_ref().map_or(&[][..], |limits| &limits.0);
        let named = Self::collect(section.rates(), listed, ledger)?;
        Ok(Self { burst: section.burst.as_ref(), shape: section.shape.as_ref(), ..named })
    }

    pub(crate) fn of_tier(section: &'a TierSection, ledger: &Ledger) -> Result<Self, SettingError> {
        let listed = section.limits.as_ref().map_or(&[][..], |limits| &limits.0);
        let named = Self::collect(section.rates(), listed, ledger)?;
        Ok(Self { burst: section.burst.as_ref(), shape: section.shape.as_ref(), ..named })
    }

    /// The most calls in flight that a list names.
    pub(crate) fn places(&self) -> Option<u32> {
        match self.concurrent?.text.parse() {
            Ok(Limit::Concurrent(most)) => Some(most),
            _ => None,
        }
    }

    /// The calls in flight that a fleet shares: a flag that lets more be in flight here overrules them.
    pub(crate) fn places_of_all(&self, most: u32) -> Option<u32> {
        self.places().filter(|places| most <= *places)
    }

    fn collect(
        keyed: impl Iterator<Item = (&'static str, &'a Setting)>,
        listed: &'a [Setting],
        ledger: &Ledger,
    ) -> Result<Self, SettingError> {
        let mut named = Self { rates: Vec::new(), concurrent: None, burst: None, shape: None };
        for (key, setting) in keyed {
            let units = setting.number(&ledger.name(key), |n| n > 0.0, units::EXPECTED_RATE)?;
            let limit = Limit::keyed(key, units).expect("every rate key is a rate word");
            named.add(limit, setting, key, ledger)?;
        }
        for setting in listed {
            let limit =
                setting.text.parse().map_err(|_| setting.refuse(&ledger.name("limits"), units::EXPECTED_LIMIT))?;
            named.add(limit, setting, "limits", ledger)?;
        }
        Ok(named)
    }

    /// Of two for the same limit the one of the higher layer holds; twice in one layer is a mistake.
    fn add(
        &mut self,
        limit: Limit,
        setting: &'a Setting,
        key: &'static str,
        ledger: &Ledger,
    ) -> Result<(), SettingError> {
        let Limit::Rate { dimension, units, window } = limit else {
            return match self.concurrent {
                Some(other) if outranks(setting, other, "concurrent", ledger)?.is_lt() => Ok(()),
                _ => {
                    self.concurrent = Some(setting);
                    Ok(())
                }
            };
        };
        if dimension == Dimension::Money {
            let expected = "no limit in money, which counts for the keys of a gateway's clients (`paceline serve keys add --limit`) and \
                            for jobs (--budget-cost)";
            return Err(setting.refuse(&ledger.name(key), expected));
        }
        let rate = Rate { dimension, units, window, setting, key };
        let same = |known: &&mut Rate<'_>| known.dimension == rate.dimension && known.window == rate.window;
        match self.rates.iter_mut().find(same) {
            Some(known) => {
                if outranks(setting, known.setting, key, ledger)?.is_gt() {
                    *known = rate;
                }
            }
            None => self.rates.push(rate),
        }
        Ok(())
    }

    /// Whether anything was named at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.rates.is_empty() && self.concurrent.is_none()
    }

    /// The quotas and the burst, each noted in the ledger. Under the pace `none`, given as `off`, none of them holds:
    /// that switches off the limits of lower layers, and beside it in one layer they are a contradiction.
    pub(crate) fn settle(&self, off: Option<&Setting>, ledger: &mut Ledger) -> Result<Limits, SettingError> {
        if let Some(off) = off {
            let named =
                self.rates.iter().map(|rate| (rate.key, rate.setting)).chain(self.burst.map(|burst| ("burst", burst)));
            for (key, setting) in named {
                if setting.source().rank() >= off.source().rank() {
                    return Err(setting.refuse(
                        &ledger.name(key),
                        format!(
                            "no limit, since the pace none (from {}) keeps to none: remove one of the two",
                            off.source()
                        ),
                    ));
                }
            }
            ledger.note("limits", "none", off.source().clone());
            return Ok(Limits::default());
        }
        let mut quotas = Vec::with_capacity(self.rates.len());
        for rate in &self.rates {
            let quota = units::quota(rate.dimension.clone(), rate.units, rate.window)
                .ok_or_else(|| rate.setting.refuse(&ledger.name(rate.key), "at least one in 366 days"))?;
            let (key, value) = rate.shown(&quota);
            ledger.note(key, value, rate.setting.source().clone());
            quotas.push(quota);
        }
        if quotas.is_empty() {
            ledger.note("limits", "none", super::Source::Default);
        }
        let burst = self.settle_burst(&quotas, ledger)?;
        let bucket = self.settle_shape(&mut quotas, burst, ledger)?;
        Ok(Limits { quotas, burst: burst.filter(|_| !bucket) })
    }

    fn settle_burst(&self, quotas: &[Quota], ledger: &mut Ledger) -> Result<Option<u64>, SettingError> {
        let refined = refined(quotas).map(|index| (&quotas[index], self.rates[index].setting));
        match (self.burst, refined) {
            (None, None) => Ok(None),
            (None, Some((quota, _))) => {
                ledger.note("burst", usual_burst(quota).to_string(), super::Source::Default);
                Ok(None)
            }
            (Some(setting), None) => {
                setting.whole(&ledger.name("burst"), 1, u64::MAX)?;
                let expected = "a request limit beside it, over at most 60 s (rps or rpm): a burst refines one";
                Err(setting.refuse(&ledger.name("burst"), expected))
            }
            (Some(setting), Some((quota, limit))) => self.fitting_burst(setting, quota, limit, ledger).map(Some),
        }
    }

    /// No window holds a burst above its limit, so that is a mistake, unless a higher layer lowered the limit: then all of the
    /// limit may leave at once, and the ledger says so. A bucket stores more.
    fn fitting_burst(
        &self,
        setting: &Setting,
        quota: &Quota,
        limit: &Setting,
        ledger: &mut Ledger,
    ) -> Result<u64, SettingError> {
        let key = ledger.name("burst");
        let burst = setting.whole(&key, 1, u64::MAX)?;
        let fits = burst <= quota.limit || self.shape.is_some_and(|shape| shape.text == "bucket");
        if !fits && setting.source().rank() >= limit.source().rank() {
            let window = units::show_duration(quota.window);
            let most =
                format!("at most {}, the requests per {window} that it refines, or shape = \"bucket\"", quota.limit);
            return Err(setting.refuse(&key, most));
        }
        let kept = if fits { burst } else { quota.limit };
        let shown = if fits { kept.to_string() } else { format!("{burst} (kept as {kept})") };
        ledger.note("burst", shown, setting.source().clone());
        Ok(kept)
    }

    /// Makes the limit that the burst refines a token bucket, where that is wanted; returns whether it did.
    fn settle_shape(
        &self,
        quotas: &mut [Quota],
        burst: Option<u64>,
        ledger: &mut Ledger,
    ) -> Result<bool, SettingError> {
        let Some(setting) = self.shape else { return Ok(false) };
        let key = ledger.name("shape");
        let bucket = match setting.text.as_str() {
            "sliding" => false,
            "bucket" => true,
            _ => return Err(setting.refuse(&key, "sliding or bucket")),
        };
        let Some(index) = refined(quotas) else {
            return Err(setting.refuse(&key, "a request limit beside it, over at most 60 s (rps or rpm)"));
        };
        ledger.note("shape", &setting.text, setting.source().clone());
        if bucket {
            let burst = burst.unwrap_or_else(|| usual_burst(&quotas[index]));
            quotas[index].shape = QuotaShape::Bucket { burst };
        }
        Ok(bucket)
    }
}

/// The limit that a burst refines.
fn refined(quotas: &[Quota]) -> Option<usize> {
    let short = |quota: &Quota| quota.dimension == Dimension::Requests && quota.window <= LONGEST_BURST_WINDOW;
    (0..quotas.len()).filter(|index| short(&quotas[*index])).min_by_key(|index| quotas[*index].window)
}

/// The requests of a second, rounded up.
fn usual_burst(quota: &Quota) -> u64 {
    (quota.limit as f64 / quota.window.as_secs_f64()).ceil() as u64
}

impl Rate<'_> {
    /// The row of this limit: under its rate word where there is one.
    fn shown(&self, quota: &Quota) -> (String, String) {
        let kept = if quota.window != self.window {
            format!(" (kept as {} per {})", quota.limit, units::show_duration(quota.window))
        } else if quota.limit as f64 != self.units {
            format!(" (kept as {})", quota.limit)
        } else {
            String::new()
        };
        let word = units::RATES.iter().find(|(_, what, window)| *what == self.dimension && *window == self.window);
        match word {
            Some((word, ..)) => ((*word).to_owned(), format!("{}{kept}", self.units)),
            None => {
                let window = units::show_duration(self.window);
                (format!("limits ({} per {window})", self.dimension), format!("{}{kept}", self.units))
            }
        }
    }
}

/// Which of two settings for one limit counts.
fn outranks(one: &Setting, other: &Setting, key: &str, ledger: &Ledger) -> Result<std::cmp::Ordering, SettingError> {
    let order = one.source().rank().cmp(&other.source().rank());
    if order.is_eq() {
        let expected =
            format!("this limit to be set once, and it is {:?} already (from {})", other.text, other.source());
        return Err(one.refuse(&ledger.name(key), expected));
    }
    Ok(order)
}
