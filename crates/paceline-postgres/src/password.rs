//! The password of a connection where its address has none, from where Postgres's own programs take it: `PGPASSWORD`, or a line
//! of the file that `PGPASSFILE` names, else of `.pgpass` in the user's folder.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::address::{AddressError, PORT};

/// What the environment says.
#[derive(Clone, Default)]
pub(crate) struct Source {
    word: Option<String>,
    file: Option<PathBuf>,
}

impl Source {
    /// Of this process.
    ///
    /// # Errors
    /// A file that the environment names and that others may read.
    pub(crate) fn of_process() -> Result<Self, AddressError> {
        let word = std::env::var("PGPASSWORD").ok().filter(|word| !word.is_empty());
        let named = std::env::var_os("PGPASSFILE").filter(|file| !file.is_empty()).map(PathBuf::from);
        if let Some(mode) = named.as_ref().filter(|_| word.is_none()).and_then(|file| exposed(&File::open(file).ok()?))
        {
            return Err(AddressError(format!(
                "the file that PGPASSFILE names can be read by others (mode {mode:o}): its mode has to be 600"
            )));
        }
        let own = std::env::home_dir().map(|folder| folder.join(".pgpass"));
        Ok(Self { word, file: named.or(own) })
    }

    /// With the password that belongs there, which is read anew for each connection; none where the address has one.
    pub(crate) fn put_into(&self, config: &mut Config) {
        if config.get_password().is_some() {
            return;
        }
        let of_file = || {
            let mut file = File::open(self.file.as_ref()?).ok().filter(|file| exposed(file).is_none())?;
            let mut text = String::new();
            file.read_to_string(&mut text).ok()?;
            in_file(&text, config)
        };
        if let Some(word) = self.word.clone().or_else(of_file) {
            config.password(word);
        }
    }
}

/// The mode of a file that others than its user may read or change.
#[cfg(unix)]
fn exposed(file: &File) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = file.metadata().ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

#[cfg(not(unix))]
fn exposed(_: &File) -> Option<u32> {
    None
}

/// The password of the first line `host:port:database:user:password` that fits; `*` fits everything, and `\` stands before a `:`
/// or a `\` of a name.
fn in_file(text: &str, config: &Config) -> Option<String> {
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    let ports = config.get_ports();
    let places: Vec<(String, String)> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(n, host)| {
            let port = ports.get(n).or(ports.last()).copied().unwrap_or(PORT);
            (name_of(host), port.to_string())
        })
        .collect();
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line.trim_end_matches('\r'))?;
        let [host, port, of_database, of_user, password] = &fields;
        let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        let is_there = places.iter().any(|(name, number)| fits(host, name) && fits(port, number));
        (is_there && fits(of_database, database) && fits(of_user, user)).then(|| password.clone())
    })
}

/// A socket of this machine is `localhost` there.
fn name_of(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(_) => "localhost".to_owned(),
    }
}

fn fields(line: &str) -> Option<[String; 5]> {
    let mut fields: [String; 5] = Default::default();
    let (mut n, mut characters) = (0, line.chars());
    while let Some(character) = characters.next() {
        match character {
            '\\' => fields[n].push(characters.next().unwrap_or('\\')),
            ':' if n < 4 => n += 1,
            other => fields[n].push(other),
        }
    }
    (n == 4 && !fields[4].is_empty()).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        url.parse().expect("an address")
    }

    #[test]
    fn a_line_of_the_file_fits_the_server_the_database_and_the_user() {
        let text = "# db:5432:*:*:no\ndb:6432:jobs:me:one\r\ndb:*:jobs:me:two\\:\\\\\nlocalhost:*:*:*:three\n*:5432:*:other:four:five\nbroken\n";
        for (url, expected) in [
            ("postgres://me@db:6432/jobs", Some("one")),
            ("postgres://me@db/jobs", Some("two:\\")),
            ("postgres://me@/jobs?host=/run/postgresql", Some("three")),
            ("postgres://other@far/x", Some("four:five")),
            ("postgres://me@a:1,db:6432/jobs", Some("one")),
            ("postgres://me@far/jobs", None),
        ] {
            assert_eq!(in_file(text, &config(url)).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn the_address_comes_before_the_environment_and_a_word_before_the_file() {
        let folder = std::env::temp_dir().join(format!("paceline-password-{}", std::process::id()));
        std::fs::write(&folder, "*:*:*:*:of the file").expect("writable");
        let password = |url: &str, word: Option<&str>| {
            let source = Source { word: word.map(str::to_owned), file: Some(folder.clone()) };
            let mut config = config(url);
            source.put_into(&mut config);
            config.get_password().map(|word| String::from_utf8_lossy(word).into_owned())
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).expect("ours");
            mode(0o644);
            assert_eq!(password("postgres://me@db/jobs", None), None, "others may read it");
            mode(0o600);
        }
        assert_eq!(password("postgres://me:own@db/jobs", Some("word")).as_deref(), Some("own"));
        assert_eq!(password("postgres://me@db/jobs", Some("word")).as_deref(), Some("word"));
        assert_eq!(password("postgres://me@db/jobs", None).as_deref(), Some("of the file"));
        std::fs::remove_file(&folder).expect("there");
    }
}
