//! Finds the certificates of a folder: `DOMAIN.pem` holds the chain of a domain and its key.
//!
//! Whatever else lies there is listed with its reason. Nothing that is found here stops the rest.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::X509Certificate;

/// A name in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The file's name without `.pem`, which is the domain.
    pub(crate) domain: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What it is.
    pub(crate) found: Found,
}

/// What stands under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A certificate.
    Certificate(Certificate),
    /// An empty file: a domain that has no certificate yet.
    Empty,
    /// Something that should be a certificate and cannot be used, and why.
    Unusable(String),
    /// Nothing of ours, and why.
    Other(&'static str),
}

/// What is to be known of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// The domains it is for.
    pub(crate) names: Vec<String>,
    /// Not valid before.
    pub(crate) not_before: Timestamp,
    /// Not valid after.
    pub(crate) not_after: Timestamp,
}

/// Everything in the folder, by name; hidden files and old versions are passed over.
///
/// # Errors
/// When the folder itself cannot be read.
pub(crate) fn scan(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || name.ends_with(".pem.previous") {
            continue;
        }
        let domain = name.strip_suffix(".pem").unwrap_or(&name).to_owned();
        let found = match path.extension() == Some(OsStr::new("pem")) {
            // Two such names may look alike, and one of them would be taken for the other.
            true if path.file_name().and_then(OsStr::to_str).is_none() => {
                Found::Unusable("its name is no text (UTF-8); rename it".to_owned())
            }
            true => look(&path, &domain),
            false => Found::Other("its name does not end in .pem"),
        };
        entries.push(Entry { domain, path, found });
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

fn look(path: &Path, domain: &str) -> Found {
    let content = match read(path) {
        Ok(content) => content,
        Err(why) => return Found::Unusable(why),
    };
    if content.trim_ascii().is_empty() {
        return match refusal(domain) {
            Some(why) => Found::Unusable(why),
            None => Found::Empty,
        };
    }
    certificate(&content).map_or_else(Found::Unusable, Found::Certificate)
}

/// The content of a plain file: a pipe would be waited for, and a huge file would be read whole.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: io::Error| format!("cannot be read: {error}");
    let found = path.metadata().map_err(cannot)?;
    if found.is_dir() {
        return Err("is a folder".to_owned());
    }
    if !found.is_file() {
        return Err("is no plain file".to_owned());
    }
    let mut content = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut content)).map_err(cannot)?;
    if content.len() as u64 > LARGEST {
        return Err(format!("is larger than {} KiB", LARGEST >> 10));
    }
    Ok(content)
}

/// The first certificate of a PEM file: that of the domain, before those of its issuers.
pub(crate) fn certificate(content: &[u8]) -> Result<Certificate, String> {
    let der = first_certificate(content)?;
    let parsed = parse(&der)?;
    let time = |time: x509_parser::time::ASN1Time| {
        Timestamp::from_second(time.timestamp()).map_err(|_| "is dated outside the calendar".to_owned())
    };
    Ok(Certificate {
        names: names(&parsed)?,
        not_before: time(parsed.validity().not_before)?,
        not_after: time(parsed.validity().not_after)?,
    })
}

/// The public key of the first certificate of a PEM file, as DER.
pub(crate) fn public_key(content: &[u8]) -> Result<Vec<u8>, String> {
    let der = first_certificate(content)?;
    Ok(parse(&der)?.public_key().raw.to_vec())
}

fn first_certificate(content: &[u8]) -> Result<Vec<u8>, String> {
    for pem in Pem::iter_from_buffer(content) {
        let pem = pem.map_err(|error| format!("is no PEM: {error}"))?;
        if pem.label == "CERTIFICATE" {
            return Ok(pem.contents);
        }
    }
    Err("holds no certificate".to_owned())
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    let parsed = x509_parser::parse_x509_certificate(der);
    parsed.map(|(_, certificate)| certificate).map_err(|error| format!("holds a damaged certificate: {error}"))
}

/// All names, which a CA must be able to check over HTTP.
fn names(certificate: &X509Certificate<'_>) -> Result<Vec<String>, String> {
    let extension = certificate.subject_alternative_name();
    let extension = extension.map_err(|error| format!("holds a damaged certificate: {error}"))?;
    let mut names = Vec::new();
    for name in extension.iter().flat_map(|extension| &extension.value.general_names) {
        let GeneralName::DNSName(name) = name else { return Err("is for something else than domains".to_owned()) };
        if let Some(why) = refusal(name) {
            return Err(why);
        }
        names.push(name.to_ascii_lowercase());
    }
    if names.is_empty() {
        return Err("names no domain".to_owned());
    }
    Ok(names)
}

/// Why a name is none for which a certificate can be had over HTTP.
fn refusal(name: &str) -> Option<String> {
    if name.starts_with("*.") {
        return Some(format!("{name} is a wildcard, which needs DNS-01"));
    }
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        (1..=63).contains(&label.len()) && label.chars().all(inner)
    };
    let is_domain = name.len() <= 253 && name.contains('.') && name.split('.').all(is_label);
    (!is_domain).then(|| format!("{name:?} is no domain"))
}

/// More than any chain with its key.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn pem(names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2026, 9, 1);
        params.not_after = date_time_ymd(2026, 11, 30);
        let key = KeyPair::generate().unwrap();
        format!("{}{}", params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn every_kind_of_file_is_listed_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &OsStr, content: &[u8]| fs::write(folder.path().join(name), content).unwrap();
        let put = |name: &str, content: &[u8]| write(name.as_ref(), content);
        let good = pem(&["good.org", "www.Good.org"]);
        put("good.org.pem", good.as_bytes());
        put("good.org.pem.previous", b"an old version");
        put(".acme-renewal-1", b"half");
        put("cut.org.pem", &good.as_bytes()[..good.len() / 3]);
        put("damaged.org.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        put("garbage.org.pem", &[0, 159, 146, 150, 255]);
        put("key.org.pem", KeyPair::generate().unwrap().serialize_pem().as_bytes());
        put("new.org.pem", b"\n");
        put("nodomain.pem", b"");
        put("..pem", b"");
        let longest = ["a", "b", "c"].map(|letter| letter.repeat(63)).join(".") + "." + &"d".repeat(61);
        put("long.org.pem", pem(&[&longest]).as_bytes());
        put("large.org.pem", &vec![b'x'; 2 << 20]);
        put("notes.txt", b"hello");
        put("wild.org.pem", pem(&["*.wild.org"]).as_bytes());
        fs::create_dir(folder.path().join("folder.org.pem")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("/nowhere/at/all", folder.path().join("unreadable.org.pem")).unwrap();
        #[cfg(target_os = "linux")]
        for name in [b"\xfe.org.pem", b"\xff.org.pem"] {
            write(std::os::unix::ffi::OsStrExt::from_bytes(&name[..]), good.as_bytes());
        }
        let mut lines = Vec::new();
        for Entry { domain, found, .. } in scan(folder.path()).unwrap() {
            let message = match found {
                Found::Certificate(certificate) => {
                    format!("{} until {}", certificate.names.join("+"), certificate.not_after)
                }
                Found::Empty => "empty".to_owned(),
                Found::Unusable(why) => why,
                Found::Other(why) => format!("other: {why}"),
            };
            lines.push(format!("{domain}: {message}"));
        }
        let expected = [
            "cut.org: is no PEM",
            "damaged.org: holds a damaged certificate",
            "folder.org: is a folder",
            "garbage.org: holds no certificate",
            "good.org: good.org+www.good.org until 2026-11-30T00:00:00Z",
            "key.org: holds no certificate",
            "large.org: is larger than 1024 KiB",
            &format!("long.org: {longest} until"),
            "new.org: empty",
            "nodomain: \"nodomain\" is no domain",
            "notes.txt: other: its name does not end in .pem",
            "unreadable.org: cannot be read: No such file",
            "wild.org: *.wild.org is a wildcard",
            #[cfg(target_os = "linux")]
            "\u{fffd}.org: its name is no text",
            #[cfg(target_os = "linux")]
            "\u{fffd}.org: its name is no text",
        ];
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line} instead of {expected}");
        }
    }

    #[test]
    fn a_certificate_for_addresses_is_not_taken_for_one_of_domains() {
        let mut params = CertificateParams::new(vec!["a.org".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
        let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        assert_eq!(certificate(pem.as_bytes()).unwrap_err(), "is for something else than domains");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, cut in 0_usize..2_000) {
            let _ = certificate(&bytes);
            let mut pem = pem(&["a.org"]).into_bytes();
            let at = cut % pem.len();
            pem.splice(at.., bytes);
            let _ = certificate(&pem);
        }
    }
}
