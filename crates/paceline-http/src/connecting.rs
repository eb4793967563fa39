//! When a call to a host opens a connection of its own: a call that finds no idle one asks for a connection and takes whichever
//! is there first, its own or one that another call is done with. Without a turn each call of a burst would open one, and most of
//! them would be for nothing.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use paceline::{Clock, Instant};
use tokio::time::sleep;
use tower_layer::Layer;
use tower_service::Service;

/// So many connections to a host are opened at once, as browsers do.
const AT_ONCE: u32 = 8;

/// For so long a further call waits for one that another call is done with.
const PATIENCE: Duration = Duration::from_millis(50);

/// Then one is opened at a time: a hundred in a second.
const SPACING: Duration = Duration::from_millis(10);

tokio::task_local! {
    /// The host of the call that is sent, and whether the call has asked for a connection of its own.
    static HOST: (Arc<Host>, Arc<AtomicBool>);
}

/// The hosts to which calls are under way.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    clock: Arc<Clock>,
    hosts: Mutex<HashMap<String, Weak<Host>>>,
}

#[derive(Debug)]
struct Host {
    clock: Arc<Clock>,
    opened: Mutex<u32>,
    /// When the next one may be opened.
    next: tokio::sync::Mutex<Instant>,
}

impl Hosts {
    /// Sends a call to that origin, whose connector is a [`Turned`] one. `is_kept` becomes true where it asked for no connection,
    /// because one was there that was kept.
    pub(crate) async fn send<T>(&self, origin: String, is_kept: &AtomicBool, sending: impl Future<Output = T>) -> T {
        let has_asked = Arc::<AtomicBool>::default();
        let sent = HOST.scope((self.host(origin), Arc::clone(&has_asked)), sending).await;
        is_kept.store(!has_asked.load(Ordering::Relaxed), Ordering::Relaxed);
        sent
    }

    fn host(&self, origin: String) -> Arc<Host> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(&origin).and_then(Weak::upgrade) {
            return host;
        }
        if hosts.len() == hosts.capacity() {
            hosts.retain(|_, host| host.strong_count() > 0);
        }
        let (clock, opened, next) = (Arc::clone(&self.clock), Mutex::default(), Instant::default().into());
        let host = Arc::new(Host { clock, opened, next });
        hosts.insert(origin, Arc::downgrade(&host));
        host
    }
}

impl Host {
    /// Waits until the call may open a connection. False where it has got another one meanwhile: its connector is polled outside
    /// of it then, for what it has begun is ended beside it.
    async fn turn(&self) -> bool {
        let is_served = poll_fn(|_| match HOST.try_with(|_| ()) {
            Ok(()) => Poll::Pending,
            Err(_) => Poll::Ready(()),
        });
        tokio::select! {
            biased;
            () = is_served => false,
            () = self.next() => true,
        }
    }

    async fn next(&self) {
        if self.is_at_once() {
            return;
        }
        sleep(PATIENCE).await;
        let mut next = self.next.lock().await;
        sleep(next.saturating_since(self.clock.now())).await;
        *next = self.clock.now() + SPACING;
    }

    fn is_at_once(&self) -> bool {
        let mut opened: MutexGuard<'_, u32> = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        *opened = opened.saturating_add(1);
        *opened <= AT_ONCE
    }
}

/// Makes connectors [`Turned`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct InTurn;

impl<S> Layer<S> for InTurn {
    type Service = Turned<S>;

    fn layer(&self, connector: S) -> Turned<S> {
        Turned(connector)
    }
}

/// A connector that waits for the turn of its call.
#[derive(Clone, Debug)]
pub(crate) struct Turned<S>(S);

impl<S, Target> Service<Target> for Turned<S>
where
    S: Service<Target, Error = Box<dyn std::error::Error + Send + Sync>> + Clone + Send + 'static,
    S::Future: Send,
    Target: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, target: Target) -> Self::Future {
        let fresh = self.0.clone();
        // The one that is ready.
        let mut connector = std::mem::replace(&mut self.0, fresh);
        let asking = |(host, has_asked): &(Arc<Host>, Arc<AtomicBool>)| {
            has_asked.store(true, Ordering::Relaxed);
            Arc::clone(host)
        };
        let host = HOST.try_with(asking).ok();
        Box::pin(async move {
            if let Some(host) = host
                && !host.turn().await
            {
                return Err("the call has another connection".into());
            }
            connector.call(target).await
        })
    }
}
