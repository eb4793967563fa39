//! One domain: from the order to the certificate on the disk.
//!
//! Everything here may be interrupted at any instant. The order's address and the key are on the disk before they are
//! used, so that a process which starts again goes on with the same order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use instant_acme::{
    Account, AuthorizationHandle, AuthorizationStatus, Authorizations, ChallengeStatus, ChallengeType, Error,
    Identifier, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use paceline::Class;
use paceline_store::work::Failure;
use tokio::sync::OnceCell;

use crate::account::AccountFile;
use crate::challenge::{Challenges, Shown};
use crate::client::Ca;
use crate::csr;
use crate::errors::{again, failure, failure_of_new_order, of_problem};
use crate::planner::Due;
use crate::storage::{self, Begun, Orders};

/// Renews certificates at one CA. Clones share everything.
#[derive(Clone)]
pub(crate) struct Renewer(Arc<Inner>);

struct Inner {
    ca: Ca,
    file: AccountFile,
    account: OnceCell<Account>,
    challenges: Challenges,
    orders: Orders,
    /// What is answered for each domain. It stays when a try fails that may pass, because the CA may look later.
    shown: Mutex<BTreeMap<String, Vec<Shown>>>,
}

impl Renewer {
    /// A renewer that has not called its CA yet.
    pub(crate) fn new(ca: Ca, file: AccountFile, challenges: Challenges, orders: Orders) -> Self {
        let shown = Mutex::default();
        Self(Arc::new(Inner { ca, file, account: OnceCell::new(), challenges, orders, shown }))
    }

    /// Renews one certificate, on behalf of that work item.
    pub(crate) async fn renew(&self, item: &str, due: &Due) -> Result<(), Failure> {
        let renewed = self.try_to_renew(item, due).await;
        if renewed.as_ref().map_or_else(|failure| failure.class == Class::Invalid, |()| true) {
            // The order has ended: the next try begins anew.
            self.0.orders.forget(&due.domain).map_err(disk)?;
            self.show_for(&due.domain, Vec::new());
        }
        renewed
    }

    async fn try_to_renew(&self, item: &str, due: &Due) -> Result<(), Failure> {
        let inner = &*self.0;
        // Only one opens the account; when he cannot, the next one tries.
        let account = inner.account.get_or_try_init(|| inner.file.open(&inner.ca)).await?;
        let (begun, mut order) = match self.resumed(account, item, due).await? {
            Some(resumed) => resumed,
            None => self.begin(account, item, due).await?,
        };
        if order.state().status == OrderStatus::Pending {
            self.prove(&due.domain, &mut order).await?;
        }
        if order.state().status == OrderStatus::Invalid {
            return Err(why_invalid(&mut order).await);
        }
        if order.state().status == OrderStatus::Ready {
            let csr = csr::request(&due.names, &begun.key).map_err(wrong_key)?;
            again!(order.finalize_csr(&csr)).map_err(failure)?;
        }
        let chain = match again!(order.poll_certificate(&POLL)) {
            Ok(chain) => chain,
            Err(_) if order.state().status == OrderStatus::Invalid => return Err(why_invalid(&mut order).await),
            Err(error) => return Err(failure(error)),
        };
        csr::check(&chain, &due.names, &begun.key).map_err(|why| Failure::new(Class::Invalid, why))?;
        storage::replace_certificate(&due.path, &chain, &begun.key).map_err(disk)
    }

    /// The order that an earlier try began, unless it has failed or run out meanwhile: no server answered the CA's
    /// challenge while the process was dead.
    async fn resumed(&self, account: &Account, item: &str, due: &Due) -> Result<Option<(Begun, Order)>, Failure> {
        let Some(begun) = self.0.orders.begun(&due.domain, item, account.id()).map_err(disk)? else { return Ok(None) };
        if begun.url.is_empty() {
            return Ok(None);
        }
        let why = match again!(account.order(begun.url.clone())).map_err(failure) {
            Ok(mut order) => match order.state().status {
                OrderStatus::Invalid => "it has failed".to_owned(),
                _ => return Ok(Some((begun, order))),
            },
            Err(failure) if failure.class == Class::Invalid => failure.message,
            Err(failure) => return Err(failure),
        };
        tracing::info!("{}: the order cannot be gone on with ({why}); a new one is made", due.domain);
        Ok(None)
    }

    async fn begin(&self, account: &Account, item: &str, due: &Due) -> Result<(Begun, Order), Failure> {
        let key = csr::new_key().map_err(wrong_key)?;
        let (item, owner) = (item.to_owned(), account.id().to_owned());
        let mut begun = Begun { item, account: owner, url: String::new(), key };
        // The key is on the disk before the order is made: a disk that takes nothing costs no order.
        self.0.orders.keep(&due.domain, &begun).map_err(disk)?;
        let names: Vec<Identifier> = due.names.iter().cloned().map(Identifier::Dns).collect();
        let order = again!(account.new_order(&NewOrder::new(&names)));
        let order = order.map_err(failure_of_new_order)?;
        order.url().clone_into(&mut begun.url);
        self.0.orders.keep(&due.domain, &begun).map_err(disk)?;
        Ok((begun, order))
    }

    /// Answers the challenges of all names, and waits until the CA has looked.
    async fn prove(&self, domain: &str, order: &mut Order) -> Result<(), Failure> {
        let count = order.state().authorizations.len();
        let mut shown = Vec::new();
        for index in 0..count {
            shown.extend(again!(self.show(order, index)).map_err(failure)?);
        }
        self.show_for(domain, shown);
        match again!(order.poll_ready(&POLL)) {
            Ok(_) => Ok(()),
            Err(_) if order.state().status == OrderStatus::Invalid => Ok(()),
            Err(error) => Err(failure(error)),
        }
    }

    /// Shows the answer for one name and asks the CA to validate it; nothing unless its authorization is pending.
    async fn show(&self, order: &mut Order, index: usize) -> Result<Option<Shown>, Error> {
        let mut all = order.authorizations();
        let Some(mut authorization) = nth(&mut all, index).await? else { return Ok(None) };
        if authorization.status != AuthorizationStatus::Pending {
            return Ok(None);
        }
        let offered = authorization.challenge(ChallengeType::Http01);
        let mut challenge = offered.ok_or(Error::Unsupported("HTTP-01 for this name"))?;
        let shown = self.0.challenges.show(&challenge.token, challenge.key_authorization().as_str());
        if challenge.status == ChallengeStatus::Pending {
            challenge.set_ready().await?;
        }
        Ok(Some(shown))
    }

    /// Goes on showing this for a domain, and nothing else.
    fn show_for(&self, domain: &str, shown: Vec<Shown>) {
        let mut all = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(domain.to_owned(), shown);
    }
}

/// An authorization of an order. Those that were fetched are not fetched again.
async fn nth<'a>(all: &'a mut Authorizations<'_>, index: usize) -> Result<Option<AuthorizationHandle<'a>>, Error> {
    for _ in 0..index {
        all.next().await.transpose()?;
    }
    all.next().await.transpose()
}

/// What the CA says about the challenge that failed; else about the order.
async fn why_invalid(order: &mut Order) -> Failure {
    let count = order.state().authorizations.len();
    for index in 0..count {
        match again!(refused(order, index)) {
            Ok(Some(problem)) => return of_problem(&problem),
            Ok(None) => {}
            Err(error) => return failure(error),
        }
    }
    match &order.state().error {
        Some(problem) => of_problem(problem),
        None => Failure::new(Class::Invalid, "the CA says no more than that the order is invalid"),
    }
}

/// What the CA found wrong with one name, if anything.
async fn refused(order: &mut Order, index: usize) -> Result<Option<Problem>, Error> {
    let mut all = order.authorizations();
    let Some(mut authorization) = nth(&mut all, index).await? else { return Ok(None) };
    let state = authorization.refresh().await?;
    Ok(state.challenges.iter().find_map(|challenge| challenge.error.clone()))
}

/// Nothing is lost when the disk is full: the next try goes on.
fn disk(error: std::io::Error) -> Failure {
    Failure::new(Class::Transient, format!("cannot keep the order or the certificate: {error}"))
}

fn wrong_key(error: rcgen::Error) -> Failure {
    Failure::new(Class::Invalid, format!("cannot make the request for the certificate: {error}"))
}

/// An order in progress is looked at after 250 ms, then half as often each time, or as late as the CA asks. After half a
/// minute it waits in the store.
const POLL: RetryPolicy = RetryPolicy::new();
