//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use jiff::civil::Time;
use paceline::{Dimension, Quota};
use paceline_config::Limit;

/// Renews the certificates of a folder over ACME, with HTTP-01 challenges.
///
/// Exit codes: 0 SUCCESS, 1 PARTIAL or FAILED, 2 wrong usage or set-up (nothing was sent), 3 DEFERRED: the same command
/// goes on. Opening an account agrees to the CA's terms of service.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// The folder: DOMAIN.pem holds a chain and its key; an empty file asks for a first certificate
    #[arg(long, value_name = "DIR")]
    pub(crate) certs: PathBuf,
    /// The address of the CA's directory; Let's Encrypt's is acme-v02.api.letsencrypt.org/directory, over HTTPS
    #[arg(long, value_name = "URL", value_parser = address, required_unless_present = "dry_run")]
    pub(crate) directory: Option<String>,
    /// What is remembered between runs; FILE.d beside it holds the account and the orders in progress
    #[arg(long, value_name = "FILE", default_value = "acme-renewal.db")]
    pub(crate) store: PathBuf,
    /// Whom the CA may write to: an e-mail address; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) contact: Vec<String>,
    /// Renew what ends within so many days
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) days: u32,
    /// Where challenges are answered; the CA asks on port 80 of each domain
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:80")]
    pub(crate) listen: SocketAddr,
    /// A root to trust beside the system's: the CA's own HTTPS, for test CAs
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Say what is due, and call no server
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run once, which is the default
    #[arg(long, conflicts_with = "every")]
    pub(crate) once: bool,
    /// Run again and again, so far apart
    #[arg(long, value_name = "DURATION", value_parser = some_time, conflicts_with = "dry_run")]
    pub(crate) every: Option<Duration>,
    /// The time of day of the first run, by the local clock; else it begins at once
    #[arg(long, value_name = "HH:MM", value_parser = time_of_day, requires = "every")]
    pub(crate) at: Option<Time>,
    /// Begin each run up to so much later, by chance, so that not all machines call at once
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s", requires = "every")]
    pub(crate) spread: Duration,
    /// How often a domain is tried again in a run after errors that pass, and how often after rate limits
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) max_retries: u32,
    /// The wait before the first of these; it doubles, up to 5m or this
    #[arg(long, value_name = "DURATION", value_parser = some_time, default_value = "60s")]
    pub(crate) first_delay: Duration,
    /// End the run, and leave the rest to the next one, when the CA has done nothing but fail for so long
    #[arg(long, value_name = "DURATION", value_parser = some_time, default_value = "10m")]
    pub(crate) max_outage: Duration,
    /// Never more calls to the CA than that
    #[arg(long, value_name = "LIMIT", value_parser = rate, default_value = "10 per 1s")]
    pub(crate) rate: Quota,
    /// A language model decides about failures in place of the rules: an OpenAI-compatible API
    #[arg(long, value_name = "URL", requires = "judge_model")]
    pub(crate) judge_url: Option<String>,
    /// Its name there; without a key of its own in the file below none is sent
    #[arg(long, value_name = "MODEL", requires = "judge_url")]
    pub(crate) judge_model: Option<String>,
    /// The file that holds its key
    #[arg(long, value_name = "FILE", requires = "judge_url")]
    pub(crate) judge_key_file: Option<PathBuf>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report as Markdown
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

impl Args {
    /// Refuses a name or a password in an address, because addresses are shown, logged and kept. Not done while they are
    /// parsed: that error would show them.
    ///
    /// # Errors
    /// Words for the user, without the address.
    pub(crate) fn refuse_passwords(&self) -> Result<(), &'static str> {
        let holds_one = |address: &Option<String>| {
            let url = address.as_deref().and_then(|address| address.parse::<reqwest::Url>().ok());
            url.is_some_and(|url| !url.username().is_empty() || url.password().is_some())
        };
        if holds_one(&self.directory) {
            return Err("--directory holds a name or a password before its @; leave them out, ACME asks for neither");
        }
        if holds_one(&self.judge_url) {
            return Err("--judge-url holds a name or a password before its @; give a key with --judge-key-file");
        }
        Ok(())
    }

    /// Refuses to write a report over a certificate and its key, or over anything else that the program reads.
    ///
    /// # Errors
    /// Words for the user.
    pub(crate) fn refuse_reports_in_the_way(&self) -> Result<(), String> {
        let (certs, store) = (standing(&self.certs), standing(&self.store));
        let files = [Some(&self.store), self.ca_file.as_ref(), self.judge_key_file.as_ref()];
        let files: Vec<PathBuf> = files.into_iter().flatten().map(|path| standing(path)).collect();
        let in_the_way = |path: &&PathBuf| {
            let (report, name) = (standing(path), path.file_name().unwrap_or_default().to_string_lossy());
            files.contains(&report)
                || report.starts_with(beside(&store))
                || (report.parent() == Some(&certs) && name.contains(".pem"))
        };
        match self.json.iter().chain(&self.markdown).find(in_the_way) {
            Some(path) => {
                Err(format!("{} is needed for something else than a report: name another file", path.display()))
            }
            None => Ok(()),
        }
    }
}

/// The folder beside the store.
pub(crate) fn beside(store: &Path) -> PathBuf {
    // However the store is named: who works with it is known by one lock.
    let mut name = standing(store).into_os_string();
    name.push(".d");
    name.into()
}

/// The one name of a file, also of one that is to be made.
fn standing(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = |name| folder.canonicalize().map(|folder| folder.join(name));
    path.canonicalize().ok().or_else(|| made(path.file_name()?).ok()).unwrap_or_else(|| path.to_owned())
}

fn address(text: &str) -> Result<String, String> {
    let url: reqwest::Url = text.parse().map_err(|_| "expected an address such as https://ca/directory".to_owned())?;
    match url.scheme() {
        "https" | "http" if url.has_host() => Ok(text.to_owned()),
        _ => Err("expected an address that begins with https://".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    paceline_config::parse_duration(text).map_err(|error| error.to_string())
}

fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected a duration above 0".to_owned()),
        time => Ok(time),
    }
}

fn time_of_day(text: &str) -> Result<Time, String> {
    Time::strptime("%H:%M", text).map_err(|_| "expected a time of day such as 03:00".to_owned())
}

fn rate(text: &str) -> Result<Quota, String> {
    match text.parse::<Limit>().map_err(|error| error.to_string())? {
        Limit::Rate { dimension: Dimension::Requests, units, window } if units >= 1.0 => {
            Ok(Quota::sliding(Dimension::Requests, units as u64, window))
        }
        _ => Err("expected a number of requests over some time, such as 10 per 1s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(flags: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(["acme-renewal"].into_iter().chain(flags.split_whitespace()))
    }

    #[test]
    fn flags_that_make_no_sense_are_refused() {
        Args::command().debug_assert();
        for flags in [
            "--certs c",
            "--directory https://ca",
            "--certs c --directory garbage",
            "--certs c --directory ftp://ca/",
            "--certs c --directory https://ca --once --every 1h",
            "--certs c --directory https://ca --at 03:00",
            "--certs c --directory https://ca --every 24h --at 25:00",
            "--certs c --directory https://ca --every 0s",
            "--certs c --directory https://ca --rate 5tpm",
            "--certs c --directory https://ca --first-delay soon",
            "--certs c --dry-run --every 1h",
            "--certs c --directory https://ca --judge-url http://localhost:1/v1",
            "--certs c --directory https://ca --judge-model m",
        ] {
            assert_eq!(parse(flags).map(|_| ()).unwrap_err().exit_code(), 2, "{flags}");
        }
    }

    #[test]
    fn passwords_in_addresses_are_refused_and_not_shown() {
        for (flags, flag) in [
            ("--directory https://me:pass@ca/dir", "--directory"),
            ("--directory https://:pass@ca/dir", "--directory"),
            ("--directory https://pass@ca/dir", "--directory"),
            ("--directory https://ca/dir --judge-model m --judge-url http://me:pass@localhost/v1", "--judge-url"),
        ] {
            let refused = parse(&format!("--certs c {flags}")).unwrap().refuse_passwords().unwrap_err();
            assert!(refused.contains(flag) && !refused.contains("pass@"), "{refused}");
        }
        assert_eq!(parse("--certs c --directory https://ca/dir/@me:you").unwrap().refuse_passwords(), Ok(()));
    }

    #[test]
    fn a_report_is_written_over_nothing_that_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let certs = folder.path().display();
        std::fs::create_dir(folder.path().join("s.db.d")).unwrap();
        let report = |flags: &str| {
            let given = format!("--certs {certs} --directory https://ca --store {certs}/s.db --ca-file {certs}/ca");
            parse(&format!("{given} {flags}")).unwrap().refuse_reports_in_the_way()
        };
        for flag in ["--json", "--markdown"] {
            for needed in ["./a.org.pem", "a.org.pem.previous", "s.db", "s.db.d/account-x.json", "ca"] {
                let refused = report(&format!("{flag} {certs}/{needed}"));
                assert!(refused.is_err_and(|message| message.contains("name another file")), "{needed}");
            }
            assert_eq!(report(&format!("{flag} {certs}/report.json")), Ok(()));
            assert_eq!(report(&format!("{flag} /nowhere/a.org.pem")), Ok(()));
        }
    }

    #[test]
    fn flags_are_read_as_everywhere() {
        let args = parse("--certs c --directory https://ca --every 24h --at 03:00 --spread 30m --rate 20/1s").unwrap();
        assert_eq!(args.at, Some(Time::constant(3, 0, 0, 0)));
        assert_eq!((args.every, args.spread), (Some(Duration::from_secs(86_400)), Duration::from_secs(1_800)));
        assert_eq!(args.rate, Quota::sliding(Dimension::Requests, 20, Duration::from_secs(1)));
        assert!(parse("--certs c --dry-run").is_ok());
    }
}
