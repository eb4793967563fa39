//! The account at the CA: opened once, its key on the disk before the CA hears of it.

use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instant_acme::{Account, Key};
use paceline::Class;
use paceline_store::work::Failure;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde::{Deserialize, Serialize};

use crate::client::Ca;
use crate::errors::{again, failure};
use crate::storage;

/// Where an account's file is, and what the CA may write to.
#[derive(Clone, Debug)]
pub(crate) struct AccountFile {
    path: PathBuf,
    contacts: Vec<String>,
}

/// What the file holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored {
    directory: String,
    /// PKCS #8, base64.
    key: String,
    /// The CA's name for the account; none until the CA has sent it.
    id: Option<String>,
}

impl AccountFile {
    /// The account of a CA, in that folder: each CA has a file of its own. Contacts are addresses or URIs.
    pub(crate) fn new(folder: &std::path::Path, directory: &str, contacts: &[String]) -> Self {
        let name = directory.split_once("://").map_or(directory, |(_, rest)| rest);
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
        let about: String = "account-".chars().chain(name.chars().map(plain)).collect();
        let path = folder.join(storage::file_name(&about, ".json"));
        let uri = |contact: &String| match contact.contains(':') {
            true => contact.clone(),
            false => format!("mailto:{contact}"),
        };
        Self { path, contacts: contacts.iter().map(uri).collect() }
    }

    /// Opens the account: the known one, or a new one, which agrees to the CA's terms of service. A process that died in
    /// between finds its key again, and the CA then returns the same account.
    pub(crate) async fn open(&self, ca: &Ca) -> Result<Account, Failure> {
        let stored = match storage::read_json::<Stored>(&self.path).map_err(unusable)? {
            Some(stored) if stored.directory == ca.directory() => stored,
            _ => self.keep(Stored { directory: ca.directory().to_owned(), key: new_key()?, id: None })?,
        };
        let builder = || Account::builder_with_http(Box::new(ca.clone()));
        if let Some(id) = &stored.id {
            let (id, directory) = (id.clone(), stored.directory.clone());
            return builder().from_parts(id, key(&stored)?, directory).await.map_err(refused);
        }
        let key = key(&stored)?;
        let open = || async {
            let pair = (Key::from_pkcs8_der(key.clone_key())?, key.clone_key().into());
            builder().create_from_key(pair, stored.directory.clone()).await
        };
        let (account, _) = again!(open()).map_err(refused)?;
        let contacts: Vec<&str> = self.contacts.iter().map(String::as_str).collect();
        if !contacts.is_empty() {
            again!(account.update_contacts(&contacts)).map_err(refused)?;
        }
        self.keep(Stored { id: Some(account.id().to_owned()), ..stored })?;
        tracing::info!("opened the account {}", account.id());
        Ok(account)
    }

    fn keep(&self, stored: Stored) -> Result<Stored, Failure> {
        storage::write_json(&self.path, &stored).map_err(unusable)?;
        Ok(stored)
    }
}

fn new_key() -> Result<String, Failure> {
    let (_, key) = Key::generate_pkcs8().map_err(failure)?;
    Ok(BASE64_STANDARD.encode(key.secret_pkcs8_der()))
}

fn key(stored: &Stored) -> Result<PrivatePkcs8KeyDer<'static>, Failure> {
    let damaged = |error| unusable(std::io::Error::new(std::io::ErrorKind::InvalidData, format!("its key: {error}")));
    BASE64_STANDARD.decode(&stored.key).map(PrivatePkcs8KeyDer::from).map_err(damaged)
}

/// What is wrong with the account is wrong for every domain.
fn refused(error: instant_acme::Error) -> Failure {
    let failure = failure(error);
    match failure.class {
        Class::Invalid => Failure {
            class: Class::Account,
            message: format!("the account cannot be used: {}", failure.message),
            ..failure
        },
        _ => failure,
    }
}

/// Without an account nothing can be ordered from this CA, and a new one is nothing to open behind the user's back.
fn unusable(error: std::io::Error) -> Failure {
    Failure::new(Class::Account, format!("the account's file cannot be used: {error}"))
}
