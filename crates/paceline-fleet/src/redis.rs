//! A connection to the ledger on Redis or Valkey; what is said there is `script.rs`.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::fleet::{FleetLimit, MemberRequest, Quiet};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc::unbounded_channel;

use crate::answer::{LedgerAnswer, Notice};
use crate::error::FleetError;
use crate::ledger_name::LedgerName;
use crate::script::{RedisAnswer, RedisCommand, RedisScript};
use crate::sentinel::{self, Sentinels};
use crate::store::{Link, Linked};

/// How long one try to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that does not answer for so long is made anew. A member gives a request up before.
const SILENT: Duration = Duration::from_secs(2);

/// A server, and the ledger on it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has a password")]
pub struct RedisLedger {
    place: Place,
    server: String,
    script: RedisScript,
}

/// The server, or who knows which one it is.
#[derive(Clone)]
enum Place {
    Server(Client),
    Master(Sentinels),
}

/// A connection to it.
#[expect(missing_debug_implementations, reason = "for tests alone")]
pub struct RedisLink {
    connection: MultiplexedConnection,
    store: RedisLedger,
}

impl RedisLedger {
    /// Reads `redis://user:password@host:port/database`, `rediss://` for one with TLS, or `redis+sentinel://` with the hosts of
    /// its Sentinels and the name that it has there.
    ///
    /// # Errors
    /// [`FleetError::Address`].
    pub fn open(url: &str, name: LedgerName) -> Result<Self, FleetError> {
        let unread = || FleetError::Address("that is no address of a Redis server".to_owned());
        let (place, server) = if url.contains("+sentinel://") {
            let sentinels = Sentinels::read(url).ok_or_else(unread)?;
            let server = sentinels.shown();
            (Place::Master(sentinels), server)
        } else {
            let client = sentinel::open(url).map_err(|_| unread())?;
            let server = client.get_connection_info().addr().to_string();
            (Place::Server(client), server)
        };
        Ok(Self { place, server, script: RedisScript::new(name) })
    }

    /// The same ledger by the clock of a test, in the fields `s` and `us` of the hash `clock`.
    #[must_use]
    pub fn with_clock_of_test(mut self) -> Self {
        self.script = self.script.with_clock_of_test();
        self
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn limits(&self) -> &[FleetLimit] {
        self.script.limits()
    }

    /// A connection, for a test.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn link(&self) -> Result<Arc<Link>, FleetError> {
        Ok(self.connect().await?.link)
    }

    pub(crate) async fn connect(&self) -> Result<Linked, FleetError> {
        let (sender, notices) = unbounded_channel();
        let push = move |info: PushInfo| {
            let heard = match info.kind {
                PushKind::Disconnection => vec![Notice::Closed],
                PushKind::Message => hints(&info.data),
                _ => Vec::new(),
            };
            heard.into_iter().try_for_each(|notice| sender.send(notice))
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(SILENT))
            .set_push_sender(push);
        let fail = |error| self.error(&error);
        let client = match &self.place {
            Place::Server(client) => client.clone(),
            Place::Master(sentinels) => sentinels.master().await?,
        };
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(fail)?;
        let (run, quiet) = self.greet(&mut connection).await?;
        for said in self.script.preparation() {
            command(&said).query_async::<()>(&mut connection).await.map_err(fail)?;
        }
        connection.subscribe(self.script.channel()).await.map_err(fail)?;
        let link = Arc::new(Link::Redis(Box::new(RedisLink { connection, store: self.clone() })));
        Ok(Linked { link, run, quiet, notices })
    }

    async fn greet(&self, connection: &mut MultiplexedConnection) -> Result<(u64, Option<Quiet>), FleetError> {
        let fail = |error| self.error(&error);
        // The client takes the connection for broken where a user may not begin a transaction that it makes by itself.
        redis::cmd("MULTI").query_async::<()>(connection).await.map_err(fail)?;
        let mut greeting = redis::pipe();
        for said in self.script.greeting() {
            greeting.add_command(command(&said));
        }
        greeting.cmd("EXEC").ignore_errors();
        let mut answers = greeting.query_async::<Vec<redis::RedisResult<Value>>>(connection).await.map_err(fail)?;
        let done = answers.pop().unwrap_or(Ok(Value::Nil));
        answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(fail)?;
        let answers = answer(done.and_then(Value::extract_error).map_err(fail)?);
        self.script.greeted(&answers).map_err(|why| FleetError::Refused { server: self.server.clone(), why })
    }

    fn error(&self, error: &RedisError) -> FleetError {
        let is_away =
            error.kind() == ErrorKind::Io || error.is_timeout() || error.is_connection_dropped() || error.is_io_error();
        match (error.code(), error.detail()) {
            _ if is_away => FleetError::Away { server: self.server.clone(), why: error.to_string() },
            (Some(code), Some(words)) => self.script.error(&self.server, Some(code), words),
            (code, _) => self.script.error(&self.server, code, &error.to_string()),
        }
    }
}

impl RedisLink {
    pub(crate) async fn ask(&self, request: &MemberRequest) -> Result<LedgerAnswer, FleetError> {
        let (mut connection, script) = (self.connection.clone(), &self.store.script);
        let said = command(&script.request(request));
        let fail = |error| self.store.error(&error);
        let mut answered = said.query_async::<Value>(&mut connection).await;
        if answered.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
            command(&script.load()).query_async::<()>(&mut connection).await.map_err(fail)?;
            answered = said.query_async::<Value>(&mut connection).await;
        }
        let answered = answer(answered.map_err(fail)?);
        let refuse = |why| FleetError::Refused { server: self.store.server.clone(), why };
        script.answer(&answered, request).map_err(refuse)
    }
}

fn command(words: &RedisCommand) -> Cmd {
    let mut command = Cmd::new();
    words.iter().for_each(|word| {
        command.arg(word);
    });
    command
}

fn answer(value: Value) -> RedisAnswer {
    match value {
        Value::Int(number) => RedisAnswer::Number(number),
        Value::Array(values) => RedisAnswer::List(values.into_iter().map(answer).collect()),
        Value::Nil => RedisAnswer::Nothing,
        value => String::from_redis_value(value).map_or(RedisAnswer::Nothing, RedisAnswer::Text),
    }
}

/// What a message says.
fn hints(message: &[Value]) -> Vec<Notice> {
    let words = message.get(1).and_then(|value| String::from_redis_value_ref(value).ok()).unwrap_or_default();
    Notice::all(&words)
}
