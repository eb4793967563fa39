//! The task of a member: it carries messages between the limiter, the member and the store, and decides nothing.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline::Limiter;
use paceline_core::fleet::{Member, MemberChange, MemberConfig, MemberId, MemberInput, MemberRequest, MemberState};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use crate::answer::Notice;
use crate::config::FleetConfig;
use crate::error::FleetError;
use crate::reconnect::Reconnect;
use crate::store::{Link, Linked, Store};

/// Callers that wait for more are looked at so often at most: a member speaks less often anyway.
const LOOKS: Duration = Duration::from_millis(10);

/// So many reasons of one absence of the store are told.
const REASONS: usize = 10;

/// How long a bye may take.
pub(crate) const LEAVES_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Task {
    limiter: Limiter,
    member: Member,
    id: MemberId,
    store: Store,
    asks_again: bool,
    connection: Connection,
    /// How many connections there were: an answer on an earlier one is none.
    connections: u64,
    reconnect: Reconnect,
    answers: UnboundedSender<Asked>,
    problem: Arc<Mutex<Option<String>>>,
    /// What the log has said of it since the store answered.
    told: Vec<String>,
    /// The log has said that the store does not know what was sent.
    has_told_loss: bool,
    /// Told once that the store was asked, or that it refuses.
    joined: Option<oneshot::Sender<Result<(), FleetError>>>,
    has_left: bool,
}

/// The answer to a request, on which connection.
pub(crate) struct Asked {
    connection: u64,
    answer: Result<MemberInput, FleetError>,
}

/// The connection to the store.
enum Connection {
    Tries(Pin<Box<dyn Future<Output = Result<Linked, FleetError>> + Send>>),
    Stands(Arc<Link>, UnboundedReceiver<Notice>),
}

enum Happened {
    Linked(Result<Linked, FleetError>),
    Notice(Notice),
    Asked(Asked),
    Due,
    Leave(oneshot::Sender<()>),
    Abandoned,
}

impl Task {
    /// `joined` is told once how the first request went. `alone_share`: as the member takes it.
    pub(crate) fn new(
        limiter: Limiter,
        (config, alone_share): (&FleetConfig, Vec<u64>),
        store: Store,
        joined: oneshot::Sender<Result<(), FleetError>>,
    ) -> (Self, UnboundedReceiver<Asked>) {
        let id = MemberId(random());
        let settings = MemberConfig {
            id,
            weight: config.weight,
            limits: store.limits().to_vec(),
            on_loss: config.on_loss,
            alone_share,
        };
        let member = Member::new(settings, random(), limiter.now());
        let (answers, asked) = mpsc::unbounded_channel();
        let task = Self {
            limiter,
            member,
            id,
            connection: Connection::tries(&store, Duration::ZERO),
            connections: 0,
            reconnect: Reconnect::new(),
            asks_again: config.asks_again,
            store,
            answers,
            problem: Arc::default(),
            told: Vec::new(),
            has_told_loss: false,
            joined: Some(joined),
            has_left: false,
        };
        (task, asked)
    }

    pub(crate) fn problem(&self) -> Arc<Mutex<Option<String>>> {
        Arc::clone(&self.problem)
    }

    /// Sets why the store cannot be asked; returns what it was before.
    fn set_problem(&self, problem: Option<String>) -> Option<String> {
        std::mem::replace(&mut *self.problem.lock().unwrap_or_else(PoisonError::into_inner), problem)
    }

    /// Until the member has left, or the store refuses the first request.
    pub(crate) async fn run(
        mut self,
        mut asked: UnboundedReceiver<Asked>,
        mut leave: UnboundedReceiver<oneshot::Sender<()>>,
    ) {
        let (mut leaves, mut looks) = (Vec::new(), self.limiter.now());
        self.hear(MemberInput::Time);
        while !self.has_left {
            let wake = self.member.poll_timeout().map(|at| at - self.limiter.now());
            let due = async {
                let timer =
                    async { if let Some(wait) = wake { tokio::time::sleep(wait).await } else { pending().await } };
                let short = async {
                    tokio::time::sleep(looks - self.limiter.now()).await;
                    self.limiter.wants_more().await;
                };
                tokio::select! { () = timer => {} () = short => {} () = self.limiter.has_news() => {} }
            };
            let happened = tokio::select! {
                happened = self.connection.next() => happened,
                Some(asked) = asked.recv() => Happened::Asked(asked),
                () = due => Happened::Due,
                done = leave.recv(), if leaves.is_empty() => done.map_or(Happened::Abandoned, Happened::Leave),
            };
            looks = self.limiter.now() + LOOKS;
            match happened {
                Happened::Linked(Ok(Linked { link, run, quiet, notices })) => {
                    self.connections += 1;
                    self.connection = Connection::Stands(link, notices);
                    self.hear(MemberInput::Linked { run, quiet });
                }
                Happened::Linked(Err(error)) => self.fail(error),
                Happened::Notice(Notice::Closed) => {
                    let (server, why) = (self.store.server().to_owned(), "the connection was closed".to_owned());
                    self.fail(FleetError::Away { server, why });
                }
                Happened::Notice(notice) => notice.input(self.id).into_iter().for_each(|input| self.hear(input)),
                Happened::Asked(asked) if asked.connection == self.connections => self.take(asked),
                Happened::Asked(_) => {}
                Happened::Due => self.hear(MemberInput::Time),
                Happened::Leave(done) => {
                    leaves.push(done);
                    self.hear(MemberInput::Leave);
                }
                // The limiter goes on, and with it its place.
                Happened::Abandoned => leaves.push(oneshot::channel().0),
            }
        }
        for done in leaves {
            // The caller may have waited long enough.
            let _ = done.send(());
        }
    }

    /// Tells the member, and does what it asks for: first what its calls may use, then what it says.
    fn hear(&mut self, input: MemberInput) {
        let mut is_unanswered = false;
        for change in self.limiter.hear(&mut self.member, input) {
            match change {
                MemberChange::Joined => {
                    tracing::debug!("this process has a share of the limits on {}", self.store.server())
                }
                MemberChange::Alone => self.tell_alone(),
                MemberChange::Unanswered => is_unanswered = true,
                MemberChange::Left => self.has_left = true,
                // The limiter has taken it.
                MemberChange::Allow { .. }
                | MemberChange::Told(_)
                | MemberChange::Taken { .. }
                | MemberChange::Drawn { .. } => {}
            }
        }
        if is_unanswered {
            let why = "it has answered no request within half a second for two seconds".to_owned();
            self.fail(FleetError::Away { server: self.store.server().to_owned(), why });
        }
        while let Some(request) = self.member.poll_request() {
            self.send(request);
        }
    }

    fn send(&self, request: MemberRequest) {
        let Connection::Stands(link, _) = &self.connection else { return };
        let (link, answers, connection) = (Arc::clone(link), self.answers.clone(), self.connections);
        tokio::spawn(async move {
            let answer = link.ask(&request).await.map(|answer| answer.input(&request));
            // The member may have left meanwhile.
            let _ = answers.send(Asked { connection, answer });
        });
    }

    fn take(&mut self, asked: Asked) {
        let answer = match asked.answer {
            Ok(answer) => answer,
            Err(error) => return self.fail(error),
        };
        self.reconnect.answered();
        if self.set_problem(None).is_some() {
            let what = if self.member.view().other_limits {
                "divides the limits of this process now"
            } else {
                "answers again"
            };
            tracing::info!("the store of the fleet on {} {what}", self.store.server());
        }
        self.told.clear();
        self.tell_joined(Ok(()));
        self.hear(answer);
        self.tell_loss();
    }

    /// The connection is of no use: another one is made, after a pause.
    fn fail(&mut self, error: FleetError) {
        if !error.may_pass() && !self.asks_again && self.joined.is_some() {
            self.tell_joined(Err(error));
            self.has_left = true;
            return;
        }
        let problem = error.to_string();
        self.set_problem(Some(problem.clone()));
        if !self.told.contains(&problem) && self.told.len() < REASONS {
            self.told.push(problem.clone());
            match self.member.state() {
                MemberState::Out if self.stops_without_store() => {
                    tracing::error!("{error}; asking again, and nothing leaves before it answers");
                }
                _ => tracing::warn!("{error}; asking again"),
            }
        }
        self.hear(MemberInput::Away(problem.into()));
        self.tell_joined(Ok(()));
        self.connections += 1;
        self.connection = Connection::tries(&self.store, self.reconnect.failed());
        self.hear(MemberInput::Unlinked);
        if matches!(error, FleetError::OtherLimits { .. }) {
            self.hear(MemberInput::OtherLimits);
        }
    }

    /// Whether nothing leaves without a lease.
    fn stops_without_store(&self) -> bool {
        self.limiter.fleet().is_some_and(|fleet| fleet.without_share().is_some())
    }

    fn tell_alone(&self) {
        let server = self.store.server();
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let why = problem.map(|problem| format!(" (the last time: {problem})")).unwrap_or_default();
        if self.stops_without_store() {
            tracing::error!(
                "the store of the fleet on {server} has not answered for a lease: nothing leaves before it answers{why}"
            );
        } else {
            tracing::warn!(
                "the store of the fleet on {server} has not answered for a lease: this process goes on with what it may use \
                 without it{why}"
            );
        }
    }

    /// Tells once that this process waits because the store does not know what was sent, and until when at most.
    fn tell_loss(&mut self) {
        let why = self.limiter.fleet().and_then(|fleet| fleet.without_share());
        let until = why.as_ref().and_then(|why| why.until);
        if let (Some(why), Some(until), false) = (&why, until, self.has_told_loss) {
            let now = self.limiter.now();
            let until = paceline::clock::wall() + until.saturating_since(now);
            tracing::warn!(until = %until, "{} (the store on {})", why.sentence(now), self.store.server());
        } else if self.has_told_loss && until.is_none() {
            tracing::info!("the store of the fleet on {} gives this process a share now", self.store.server());
        }
        self.has_told_loss = until.is_some();
    }

    fn tell_joined(&mut self, how: Result<(), FleetError>) {
        if let Some(joined) = self.joined.take() {
            // The caller may have given up.
            let _ = joined.send(how);
        }
    }
}

impl Connection {
    fn tries(store: &Store, pause: Duration) -> Self {
        let store = store.clone();
        Self::Tries(Box::pin(async move {
            tokio::time::sleep(pause).await;
            store.connect().await
        }))
    }

    async fn next(&mut self) -> Happened {
        match self {
            Self::Tries(connecting) => Happened::Linked(connecting.await),
            Self::Stands(_, notices) => Happened::Notice(notices.recv().await.unwrap_or(Notice::Closed)),
        }
    }
}

fn random() -> u64 {
    getrandom::u64().expect("the system gives random numbers")
}
