//! A batch as clients see it, and as its record keeps it.

use std::collections::BTreeMap;

use paceline::clock;
use paceline_core::Timestamp;
use paceline_gateway::Clients;
use paceline_store::JobCounts;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::job::load::OpenError;
use crate::lines::address::{ADDRESS_IS_SET, ENDPOINT_OF_BODIES, OTHER_HOSTS, RUN_OF_ITS_OWN};
use crate::lines::format::{BY_FORMAT, FORM_IS_NAMED};
use crate::lines::headers::SET_FOR_ALL;
use crate::lines::line::{FLAGS_FOR_OTHERS, LineError};

/// A batch: OpenAI's object, and what it has of ours under `paceline`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) id: String,
    pub(super) object: String,
    pub(super) endpoint: String,
    pub(super) errors: Option<Errors>,
    pub(super) input_file_id: String,
    pub(super) completion_window: String,
    pub(super) status: Status,
    pub(super) output_file_id: Option<String>,
    pub(super) error_file_id: Option<String>,
    /// All times are seconds since 1970.
    pub(super) created_at: i64,
    pub(super) in_progress_at: Option<i64>,
    pub(super) expires_at: i64,
    pub(super) finalizing_at: Option<i64>,
    pub(super) completed_at: Option<i64>,
    pub(super) failed_at: Option<i64>,
    pub(super) expired_at: Option<i64>,
    pub(super) cancelling_at: Option<i64>,
    pub(super) cancelled_at: Option<i64>,
    pub(super) request_counts: RequestCounts,
    pub(super) usage: Option<Usage>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) paceline: Ours,
}

/// What is not OpenAI's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ours {
    /// Whom its requests are sent to.
    pub(super) upstream: String,
    /// The name of the key with which it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<String>,
    /// The id of that key: another one of the same name is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_key: Option<String>,
    /// Why the gateway cancelled it; none where a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cancelled_because: Option<String>,
    /// What keeps it from going on; none while it does.
    pub(super) waits_for: Option<String>,
    /// What its client called the request for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) idempotency_key: Option<String>,
    /// The state that it has once its results are files: its items have all ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ends_as: Option<Status>,
}

impl Ours {
    /// Why its client may not make the batch any more, if so.
    pub(super) fn why_not(&self, clients: &Clients) -> Option<String> {
        clients.let_go_on(self.client.as_deref()?, self.client_key.as_deref()).err()
    }
}

/// The states of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    /// Whether nothing changes any more.
    pub(super) const fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }

    /// The name in JSON.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How many of its requests have ended. Their sum is the total once the batch has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestCounts {
    pub(super) total: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
}

impl RequestCounts {
    /// How many have ended.
    pub(super) const fn ended(&self) -> u64 {
        self.completed + self.failed
    }
}

impl From<&JobCounts> for RequestCounts {
    fn from(counts: &JobCounts) -> Self {
        Self {
            total: counts.input(),
            completed: counts.succeeded + counts.fallback,
            failed: counts.failed + counts.skipped + counts.cancelled,
        }
    }
}

/// The tokens of its calls, as answers reported them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

/// Clients require it; it is not counted.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct InputDetails {
    cached_tokens: u64,
}

/// Likewise.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<&JobCounts> for Usage {
    fn from(counts: &JobCounts) -> Self {
        let JobCounts { tokens_in, tokens_out, .. } = *counts;
        Self {
            input_tokens: tokens_in,
            input_tokens_details: InputDetails::default(),
            output_tokens: tokens_out,
            output_tokens_details: OutputDetails::default(),
            total_tokens: tokens_in + tokens_out,
        }
    }
}

/// Why a batch failed: lines of its input cannot be sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Errors {
    object: String,
    data: Vec<InputFault>,
}

/// What is wrong with the input, or with one of its lines.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct InputFault {
    code: String,
    line: Option<u64>,
    message: String,
    param: Option<String>,
}

impl Errors {
    /// What is wrong with the input of a job that cannot be opened; none where the reason is another.
    pub(super) fn of_input(error: &OpenError) -> Option<Self> {
        let data = match error {
            OpenError::Lines { wrong, .. } => wrong.errors().into_iter().map(InputFault::from).collect(),
            OpenError::Empty { expected, .. } => {
                return Some(Self::of_file("empty_file", format!("the file holds no requests: expected {expected}")));
            }
            OpenError::TooMany { most, .. } => {
                return Some(Self::of_file("too_many_tasks", format!("the file holds more than {most} requests")));
            }
            OpenError::Other(_) => return None,
        };
        Some(Self { object: "list".into(), data })
    }

    /// What is wrong with the file as a whole.
    pub(super) fn of_file(code: &str, message: String) -> Self {
        let fault = InputFault { code: code.into(), line: None, message, param: None };
        Self { object: "list".into(), data: vec![fault] }
    }
}

/// What only those can do about a line who begin the program, with flags and a configuration.
const FOR_OTHERS: [&str; 7] =
    [FLAGS_FOR_OTHERS, OTHER_HOSTS, ENDPOINT_OF_BODIES, ADDRESS_IS_SET, RUN_OF_ITS_OWN, FORM_IS_NAMED, BY_FORMAT];

impl From<LineError> for InputFault {
    fn from(error: LineError) -> Self {
        let LineError { line, code, param, message } = error;
        // A client of the gateway has no flags.
        let message = FOR_OTHERS.iter().fold(message, |message, flags| message.replace(flags, ""));
        let message = message.replace(SET_FOR_ALL, ": the gateway has the key");
        Self { code: code.into(), line: Some(line), message, param: param.map(Into::into) }
    }
}

impl Batch {
    /// How far it is, for the page of the gateway.
    pub(super) fn overview(&self) -> Value {
        let RequestCounts { total, failed, .. } = self.request_counts;
        json!({
            "id": self.id,
            "upstream": self.paceline.upstream,
            "endpoint": self.endpoint,
            "status": self.status.as_str(),
            "total": total,
            "done": self.request_counts.ended(),
            "failed": failed,
            "waits_for": self.paceline.waits_for,
        })
    }

    /// When its time is over.
    pub(super) const fn deadline(&self) -> Timestamp {
        Timestamp::from_millis(self.expires_at.saturating_mul(1_000))
    }

    /// It enters a state, at this moment.
    pub(super) fn enter(&mut self, status: Status) {
        let now = Some(now());
        match status {
            Status::Validating => {}
            Status::Failed => self.failed_at = now,
            Status::InProgress => self.in_progress_at = now,
            Status::Finalizing => self.finalizing_at = now,
            Status::Completed => self.completed_at = now,
            Status::Expired => self.expired_at = now,
            Status::Cancelling => self.cancelling_at = now,
            Status::Cancelled => self.cancelled_at = now,
        }
        self.status = status;
        if status.is_final() {
            self.paceline.waits_for = None;
            self.paceline.ends_as = None;
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    clock::wall().as_millis() / 1_000
}
