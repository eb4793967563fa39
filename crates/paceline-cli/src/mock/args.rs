//! The flags of `paceline mock`.

use std::net::SocketAddr;

use clap::ValueEnum;
use paceline_core::{Dimension, Quota, QuotaShape};
use paceline_model::{Chance, Hints, Latency, Overload, ProviderConfig};

use super::dialect::Dialect;
use super::{MINUTE, MockConfig, bucket};
use crate::args::{count, duration};
use crate::exit::Failure;

/// `paceline mock`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = WHAT_IT_DOES)]
pub(crate) struct Args {
    /// Address to listen on; port 0 takes a free port, which the first line printed names
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Requests per minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    rpm: Option<u64>,
    /// Tokens per minute, of prompt and answer together [default: no limit]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    tpm: Option<u64>,
    /// How the limits refill: a bucket that refills continuously, fixed windows from their first call on, or exact sliding
    /// windows
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "bucket")]
    window: Window,
    /// Requests that pass at once after a pause; --window bucket only [default: --rpm / 60, rounded up]
    #[arg(long, value_name = "N", requires = "rpm", value_parser = count::<u64>)]
    burst: Option<u64>,
    /// Calls that it works on at once; any more are answered 429 [default: no limit]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    concurrency: Option<u32>,
    /// Calls that the service has capacity for: more of them take longer, and beyond twice as many are refused as overloaded
    /// (503, or 529 in Anthropic's dialect) [default: no bound]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    overload: Option<u32>,
    /// Time to an answer: LOW..HIGH, or one duration; p50=DURATION,p99=DURATION is lognormal
    #[arg(long, value_name = "RANGE", default_value = "50ms..500ms", value_parser = latency)]
    latency: Latency,
    /// Share of the admitted calls that end in a 500, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share, allow_negative_numbers = true)]
    fault: f64,
    /// Share of calls to refuse at random: STATUS:SHARE, such as 503:0.02, or 429:0.01:3s with a wait to announce; 429, 503 or
    /// 529. May be repeated
    #[arg(long, value_name = "STATUS:SHARE", value_parser = chance)]
    chance: Vec<Chance>,
    /// Refuse the first calls: STATUS:COUNT, such as 503:1
    #[arg(long, value_name = "STATUS:COUNT", value_parser = first)]
    refuse_first: Vec<Chance>,
    /// How correct the announced limits and waits are
    #[arg(long, value_enum, value_name = "HINTS", default_value = "honest")]
    hints: HintsArg,
    /// Whose headers and errors it speaks: openai, anthropic, gemini, dynamodb, github, ...
    #[arg(long, value_name = "NAME", default_value = "openai", value_parser = Dialect::from_name)]
    dialect: Dialect,
    /// Seed of latencies, faults and wrong hints
    #[arg(long, value_name = "K", default_value_t = 0)]
    seed: u64,
}

const WHAT_IT_DOES: &str = "\
It answers POST to chat/completions, completions, embeddings, responses and messages, with or without /v1, \
streams included, and any other path with a generic object. It needs no key. GET /stats returns what it counted.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Window {
    Bucket,
    Fixed,
    Sliding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HintsArg {
    /// Exact waits and true headers
    Honest,
    /// The same in whole seconds, rounded up
    Coarse,
    /// Neither headers nor waits
    None,
    /// Headers that promise too much, waits of 1 or 60 seconds
    Wrong,
}

impl From<HintsArg> for Hints {
    fn from(hints: HintsArg) -> Self {
        match hints {
            HintsArg::Honest => Self::Honest,
            HintsArg::Coarse => Self::Coarse,
            HintsArg::None => Self::None,
            HintsArg::Wrong => Self::Wrong,
        }
    }
}

impl Args {
    /// What these flags ask for.
    ///
    /// # Errors
    /// When `--burst` is given for windows, which have none.
    pub(crate) fn into_config(self) -> Result<MockConfig, Failure> {
        if let (Some(burst), Window::Fixed | Window::Sliding) = (self.burst, self.window) {
            let why = "only a bucket has a burst; leave --burst out or use --window bucket";
            return Err(Failure::refused(format!("--burst {burst}: {why}")));
        }
        let limit = |dimension, limit, burst| match self.window {
            Window::Bucket => bucket(dimension, limit, burst),
            Window::Fixed => Quota { dimension, limit, window: MINUTE, shape: QuotaShape::Fixed },
            Window::Sliding => Quota { dimension, limit, window: MINUTE, shape: QuotaShape::Sliding },
        };
        let requests = self.rpm.map(|rpm| {
            let burst = self.burst.unwrap_or(rpm.div_ceil(60));
            limit(Dimension::Requests, rpm, burst).into()
        });
        // A bucket of tokens stores a whole minute: a second's share would be too small for one long prompt.
        let tokens = self.tpm.map(|tpm| limit(Dimension::Tokens, tpm, tpm).into());
        let provider = ProviderConfig {
            limits: requests.into_iter().chain(tokens).collect(),
            concurrency: self.concurrency,
            overload: self.overload.map(Overload::of),
            latency: self.latency,
            fault: self.fault,
            chances: self.refuse_first.into_iter().chain(self.chance).collect(),
            ..ProviderConfig::default()
        };
        let (listen, hints, dialect, seed) = (self.listen, self.hints.into(), self.dialect, self.seed);
        Ok(MockConfig { listen, provider, hints, dialect, seed })
    }
}

fn share(text: &str) -> Result<f64, String> {
    let expected = || "expected a number from 0 to 1".to_owned();
    let share: f64 = text.parse().map_err(|_| expected())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(expected()) }
}

fn chance(text: &str) -> Result<Chance, String> {
    let mut parts = text.splitn(3, ':');
    let status = refusing(parts.next().unwrap_or_default())?;
    let share = share(parts.next().unwrap_or_default())?;
    let wait = parts.next().map(duration).transpose()?;
    if share == 1.0 {
        return Err("a share of 1 refuses every call; expected less".to_owned());
    }
    Ok(Chance { wait, ..Chance::new(status, share) })
}

fn first(text: &str) -> Result<Chance, String> {
    let (status, count) = text.split_once(':').unwrap_or((text, ""));
    let first = count.parse().map_err(|_| "expected STATUS:COUNT, such as 503:1".to_owned())?;
    Ok(Chance { first, ..Chance::new(refusing(status)?, 0.0) })
}

fn refusing(status: &str) -> Result<u16, String> {
    let known = status.parse().ok().filter(|status| matches!(status, 429 | 503 | 529));
    known.ok_or_else(|| format!("{status:?} is not 429, 503 or 529"))
}

fn latency(text: &str) -> Result<Latency, String> {
    if let Some((low, high)) = text.split_once("..") {
        let (low, high) = (duration(low)?, duration(high)?);
        return if low <= high {
            Ok(Latency::Uniform { low, high })
        } else {
            Err("the second duration must not be below the first".to_owned())
        };
    }
    if let Some((p50, p99)) = text.strip_prefix("p50=").and_then(|rest| rest.split_once(",p99=")) {
        let (p50, p99) = (duration(p50)?, duration(p99)?);
        return if !p50.is_zero() && p50 <= p99 {
            Ok(Latency::Lognormal { p50, p99, cap: p99.saturating_mul(LONGEST) })
        } else {
            Err("p50 must be more than 0 and at most p99".to_owned())
        };
    }
    let constant = duration(text)?;
    Ok(Latency::Uniform { low: constant, high: constant })
}

/// Lognormal latencies are cut at so many times their 99th percentile, which one call in a million exceeds.
const LONGEST: u32 = 8;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn config(line: &str) -> Result<MockConfig, String> {
        let line = Line::try_parse_from(["mock"].into_iter().chain(line.split_whitespace()));
        line.map_err(|error| error.to_string())?.args.into_config().map_err(|error| error.to_string())
    }

    fn shapes(line: &str) -> Vec<(u64, QuotaShape)> {
        let limits = config(line).expect(line).provider.limits;
        limits.into_iter().map(|limit| (limit.quota.limit, limit.quota.shape)).collect()
    }

    #[test]
    fn limits_have_the_shape_and_burst_they_are_told() {
        assert_eq!(shapes(""), []);
        let expected = [(90, QuotaShape::Bucket { burst: 2 }), (600, QuotaShape::Bucket { burst: 600 })];
        assert_eq!(shapes("--rpm 90 --tpm 600"), expected);
        assert_eq!(shapes("--rpm 90 --burst 7"), [(90, QuotaShape::Bucket { burst: 7 })]);
        assert_eq!(shapes("--rpm 90 --window fixed"), [(90, QuotaShape::Fixed)]);
        assert_eq!(shapes("--tpm 90 --window sliding"), [(90, QuotaShape::Sliding)]);
    }

    #[test]
    fn latencies_are_ranges_constants_or_quantiles() {
        let ms = Duration::from_millis;
        let latency = |line| config(line).expect(line).provider.latency;
        assert_eq!(latency(""), Latency::Uniform { low: ms(50), high: ms(500) });
        assert_eq!(latency("--latency 200ms..2s"), Latency::Uniform { low: ms(200), high: ms(2_000) });
        assert_eq!(latency("--latency 0"), Latency::Uniform { low: ms(0), high: ms(0) });
        let lognormal = Latency::Lognormal { p50: ms(800), p99: ms(8_000), cap: ms(64_000) };
        assert_eq!(latency("--latency p50=800ms,p99=8s"), lognormal);
    }

    #[test]
    fn nonsense_names_its_flag() {
        for line in [
            "--burst 5",
            "--rpm 60 --window sliding --burst 5",
            "--rpm 0",
            "--concurrency 0",
            "--overload 0",
            "--latency 2s..1s",
            "--latency soon",
            "--latency p50=0,p99=1s",
            "--fault 1.5",
            "--fault -0.5",
            "--fault NaN",
            "--hints maybe",
        ] {
            let flag = line.split_whitespace().rfind(|word| word.starts_with("--")).expect("a flag");
            assert!(config(line).expect_err(line).contains(flag), "{line}: {}", config(line).expect_err(line));
        }
    }
}
