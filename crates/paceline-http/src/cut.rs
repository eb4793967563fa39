//! What an answer told before it was cut off: the server bills it, and a gateway has told of its calls.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::Response;
use paceline_providers::{Answer, Dialect, Reading, Usage, path_of};

use crate::coding::codings;
use crate::exchange::Call;
use crate::gateway::Passed;

/// What had come of an answer whose connection broke.
#[derive(Default)]
pub(crate) struct Cut {
    /// Of a success.
    part: Mutex<Option<Response<Bytes>>>,
    /// What a gateway had told in its head.
    passed: Mutex<Option<Passed>>,
}

impl Cut {
    /// Keeps what a gateway told.
    pub(crate) fn came(&self, passed: Passed) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(passed);
    }

    /// What a gateway told, where the head of its answer came.
    pub(crate) fn passed(&self) -> Option<Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the part that came. Of what is packed a part says nothing.
    pub(crate) fn keep(&self, head: &reqwest::Response, body: BytesMut) {
        if !head.status().is_success() || !codings(head.headers()).is_empty() {
            return;
        }
        let mut part = Response::new(body.freeze());
        *part.headers_mut() = head.headers().clone();
        *self.part.lock().unwrap_or_else(PoisonError::into_inner) = Some(part);
    }

    /// What a stream told, of which that part came, or which ended as a whole before its own end.
    pub(crate) fn told(
        self,
        dialect: &Dialect,
        call: &Call,
        whole: Option<(&Response<Bytes>, &Reading)>,
    ) -> Option<Usage> {
        let part = self.part.into_inner().unwrap_or_else(PoisonError::into_inner);
        let part = match whole {
            Some((answer, reading)) => Some(answer).filter(|answer| reading.is_cut_short(answer.status().as_u16())),
            None => part.as_ref(),
        };
        let told = dialect.told_so_far(&as_read(part?, path_of(&call.url)))?;
        Some(dialect.with_writes_as_asked(told, &call.body))
    }
}

/// The answer of a call of that path, in the form that `paceline-providers` reads.
pub(crate) fn as_read<'a>(answer: &'a Response<Bytes>, path: &'a str) -> Answer<'a> {
    Answer { status: answer.status().as_u16(), headers: answer.headers(), body: answer.body(), path }
}
