//! Which of several Redis servers is the master, as Redis Sentinel says: asked anew for each connection.

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo as _, ProtocolVersion, RedisError};

use crate::error::FleetError;

/// The port of a Sentinel where the address names none.
const PORT: u16 = 26_379;

/// A Sentinel that does not answer for so long is passed over.
const SILENT: Duration = Duration::from_secs(1);

/// The Sentinels of a set of servers, and what its name is there.
#[derive(Clone)]
pub(crate) struct Sentinels {
    sentinels: Vec<String>,
    service: String,
    /// Of the servers: `redis` or `rediss`, the user with its password up to the `@`, and the database.
    scheme: String,
    login: String,
    database: String,
}

impl Sentinels {
    /// Reads `redis+sentinel://user:password@host:port,host:port/service/database`; none where it is no such address.
    pub(crate) fn read(url: &str) -> Option<Self> {
        let (scheme, rest) =
            url.split_once("+sentinel://").filter(|(scheme, _)| ["redis", "rediss"].contains(scheme))?;
        let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
        let login = if login.is_empty() { String::new() } else { format!("{login}@") };
        let (hosts, path) = rest.split_once('/')?;
        let (service, database) = path.split_once('/').unwrap_or((path, ""));
        let is_number = database.is_empty() || database.parse::<u32>().is_ok();
        if service.is_empty() || !is_number || hosts.split(',').any(str::is_empty) {
            return None;
        }
        let has_port = |host: &str| host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let sentinel = |host: &str| match has_port(host) {
            true => format!("{scheme}://{host}"),
            false => format!("{scheme}://{host}:{PORT}"),
        };
        let sentinels = hosts.split(',').map(sentinel).collect();
        let (scheme, service, database) = (scheme.to_owned(), service.to_owned(), database.to_owned());
        Some(Self { sentinels, service, scheme, login, database })
    }

    /// Them for people, without a password.
    pub(crate) fn shown(&self) -> String {
        let hosts = self.sentinels.iter().filter_map(|url| url.split_once("://")).map(|(_, host)| host);
        format!("{} of the Sentinels {}", self.service, hosts.collect::<Vec<_>>().join(","))
    }

    /// The server that the first of them which answers names as the master. Whether it is one shows with the first request.
    pub(crate) async fn master(&self) -> Result<Client, FleetError> {
        let mut why = "they name none".to_owned();
        for sentinel in &self.sentinels {
            match self.ask(sentinel).await {
                Ok(Some((host, port))) => {
                    let host = if host.contains(':') { format!("[{host}]") } else { host };
                    let Self { scheme, login, database, .. } = self;
                    return open(&format!("{scheme}://{login}{host}:{port}/{database}"))
                        .map_err(|error| self.away(&error));
                }
                Ok(None) => {}
                Err(error) => why = error.to_string(),
            }
        }
        Err(self.away(&why))
    }

    fn away(&self, why: &dyn ToString) -> FleetError {
        FleetError::Away { server: self.shown(), why: format!("no master is known: {}", why.to_string()) }
    }

    async fn ask(&self, sentinel: &str) -> Result<Option<(String, u16)>, RedisError> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(SILENT)).set_response_timeout(Some(SILENT));
        let mut connection = Client::open(sentinel)?.get_multiplexed_async_connection_with_config(&config).await?;
        let asks = ["GET-MASTER-ADDR-BY-NAME", &self.service];
        redis::cmd("SENTINEL").arg(&asks).query_async(&mut connection).await
    }
}

/// A client for a server at an address.
pub(crate) fn open(url: &str) -> Result<Client, RedisError> {
    let info = url.into_connection_info()?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Client::open(info.set_redis_settings(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_sentinels_and_what_they_watch() {
        let read =
            |url| Sentinels::read(url).map(|it| (it.sentinels, it.service, it.scheme + "://" + &it.login, it.database));
        let (one, two) = ("redis://a:1".to_owned(), "redis://b:26379".to_owned());
        let all = (vec![one, two], "mymaster".to_owned(), "redis://me:sesame@".to_owned(), "3".to_owned());
        assert_eq!(read("redis+sentinel://me:sesame@a:1,b/mymaster/3"), Some(all));
        let tls = (vec!["rediss://h:26379".to_owned()], "m".to_owned(), "rediss://".to_owned(), String::new());
        assert_eq!(read("rediss+sentinel://h/m"), Some(tls));
        for wrong in [
            "redis://h/m",
            "redis+sentinel://h",
            "redis+sentinel://h/",
            "redis+sentinel://a,/m",
            "redis+sentinel://h/m/x",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let shown = Sentinels::read("redis+sentinel://me:sesame@a:1,b/m").map(|it| it.shown());
        assert_eq!(shown.as_deref(), Some("m of the Sentinels a:1,b:26379"));
    }
}
