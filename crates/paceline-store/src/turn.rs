//! One turn of the writer: outcomes folded, lines written and synced, one transaction, then the answers.

use std::sync::Arc;

use crate::book::Book;
use crate::command::{Command, Question, Reply};
use crate::error::Error;
use crate::item::{Kept, Totals};
use crate::spent::Spent;

/// Carries out a group of commands and answers each. Lines are synced before the transaction commits, and the
/// transaction commits before any caller hears of it. After an error the book must not be used again.
pub(crate) fn turn(book: &mut Book, commands: Vec<Command>) -> Result<(), Arc<Error>> {
    let mut turn = Turn { book: &mut *book, adds: Totals::default(), failure: None, settles: Vec::new() };
    let mut questions = Vec::new();
    turn.attempt(Book::begin);
    for command in commands {
        turn.carry_out(command, &mut questions);
    }
    let adds = turn.adds;
    turn.attempt(|book| book.commit(adds));
    let Turn { failure, settles, .. } = turn;
    for settle in settles {
        settle(failure.as_ref());
    }
    for question in questions {
        // It may change anything.
        book.forget_heads();
        match &failure {
            None => question(Ok(&mut *book)),
            Some(cause) => question(Err(Error::Stopped { cause: cause.clone() })),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Answers one command, with the failure of the turn if there was one.
type Settle = Box<dyn FnOnce(Option<&Arc<Error>>)>;

struct Turn<'a> {
    book: &'a mut Book,
    adds: Totals,
    failure: Option<Arc<Error>>,
    settles: Vec<Settle>,
}

impl Turn<'_> {
    fn carry_out(&mut self, command: Command, questions: &mut Vec<Question>) {
        match command {
            Command::Finish(finished, reply) => {
                self.outcome(finished.adds, &finished.spent, reply, |book| book.finish(&finished));
            }
            Command::Reschedule(next, reply) => {
                self.outcome(next.adds, &next.spent, reply, |book| book.reschedule(&next));
            }
            Command::Release { ordinal, sent: None, reply } => self.step(reply, |book| book.release(ordinal, None)),
            Command::Release { ordinal, sent: Some(sent), reply } => {
                self.outcome(sent.adds, &sent.spent, reply, |book| book.release(ordinal, Some(&sent.tally)));
            }
            Command::Claim { now, limit, except, reply } => {
                self.step(reply, |book| book.claim(now, limit, &except));
            }
            Command::ClaimItems { ordinals, reply } => {
                self.step(reply, |book| book.claim_items(&ordinals));
            }
            Command::Scope { row, reply } => self.step(reply, |book| book.set_scope(row)),
            Command::Snapshot { update, reply } => self.step(reply, |book| book.write_snapshot(&update)),
            Command::History { minutes, reply } => {
                self.step(reply, |book| book.add_history(&minutes));
            }
            Command::Query(question) => questions.push(question),
        }
    }

    /// A step that ends a send. The totals count it even when the item had ended before: the send took place.
    fn outcome(
        &mut self,
        adds: Totals,
        spent: &Spent,
        reply: Reply<Kept>,
        work: impl FnOnce(&mut Book) -> Result<Kept, Error>,
    ) {
        self.step(reply, work);
        self.attempt(|book| book.spend(spent));
        self.adds.calls += adds.calls;
        self.adds.resends += adds.resends;
        self.adds.retries += adds.retries;
        self.adds.throttled += adds.throttled;
        self.adds.abandoned += adds.abandoned;
    }

    fn step<T: 'static>(&mut self, reply: Reply<T>, work: impl FnOnce(&mut Book) -> Result<T, Error>) {
        let done = self.attempt(work);
        self.settles.push(Box::new(move |failure| {
            reply(match (done, failure) {
                (Some(value), None) => Ok(value),
                (_, Some(cause)) => Err(Error::Stopped { cause: cause.clone() }),
                (None, None) => Err(Error::Closed),
            });
        }));
    }

    /// Does it unless the turn has failed already.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut Book) -> Result<T, Error>) -> Option<T> {
        if self.failure.is_some() {
            return None;
        }
        match work(self.book) {
            Ok(value) => Some(value),
            Err(error) => {
                self.failure = Some(Arc::new(error));
                None
            }
        }
    }
}
