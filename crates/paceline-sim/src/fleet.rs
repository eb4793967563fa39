//! A fleet in virtual time: processes with a pacer and a member each, a ledger, and what may happen between them.
//!
//! - [`fleet_story`]: faults at random, and by how much the fullest window of all processes exceeded the limit, or their calls
//!   in flight;
//! - [`fleet_gates`]: whether all processes obey what one of them was told, and how many calls test when it is over;
//! - [`fleet_use`]: what the fleet makes of its limit in fair weather, and how alike its processes share it.

mod gates;
mod network;
mod process;
mod store;
mod story;
mod traffic;
mod usage;

use std::time::Duration;

use paceline_core::fleet::{LEASE, MemberConfig, MemberId, MemberInput, MemberRequest, OnLoss};
use paceline_core::{Instant, Pacer, Rng, ScopeId};

pub use gates::{GateFigures, fleet_gates};
pub use store::Fencing;
pub use story::{fleet_story, fleet_story_of_places};
pub use usage::{Demand, FleetJob, FleetUse, fleet_use};

use network::{Message, Network, Weather};
use process::Clock;
pub(crate) use process::Process;
use store::Store;

use crate::setup::FleetSetup;

/// The processes, the store that has their ledger, and the network between them.
pub(crate) struct Fleet {
    pub(crate) processes: Vec<Process>,
    store: Store,
    network: Network,
}

impl Fleet {
    pub(crate) const fn new(store: Store, network: Network) -> Self {
        Self { processes: Vec::new(), store, network }
    }

    /// One that shares only what its processes learn.
    pub(crate) fn of(setup: &FleetSetup, seed: u64) -> Self {
        let weather = Weather { loss: setup.loss, delay: setup.delay, ..Weather::FAIR };
        // Other numbers than all else that is drawn from the seed.
        let seed = Rng::new(!seed).next_u64();
        Self::new(Store::new(&[], LEASE, Fencing::ByLease), Network::new(weather, seed))
    }

    /// A process of such a fleet begins; its place.
    pub(crate) fn joins(&mut self, pacer: Pacer, scope: ScopeId, seed: u64) -> usize {
        let (id, limits, alone_share) = (MemberId(seed), Vec::new(), Vec::new());
        let config = MemberConfig { id, weight: 1, limits, on_loss: OnLoss::Keep, alone_share };
        let clock = Clock { offset: Duration::ZERO, rate: 1.0 };
        self.join(Process::new(Instant::ZERO, pacer, scope, config, clock));
        self.processes.len() - 1
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let processes = self.processes.iter().filter_map(Process::due);
        let links = self.processes.iter().filter(|process| process.misses(self.store.run()));
        let links = links.map(|process| process.away_until().max(self.store.back()));
        processes.chain(links).chain(self.network.next()).min()
    }

    /// Lets all happen that is due by now.
    pub(crate) fn advance(&mut self, now: Instant) {
        for place in 0..self.processes.len() {
            let process = &self.processes[place];
            if process.misses(self.store.run()) && !process.is_away(now) && self.store.back() <= now {
                self.link(now, place);
            }
        }
        while let Some((place, message)) = self.network.arrives(now, self.store.run()) {
            self.deliver(now, place, message);
        }
        for place in 0..self.processes.len() {
            if self.processes[place].due().is_some_and(|due| due <= now) {
                self.hear(now, place, MemberInput::Time);
            }
        }
    }

    /// A process begins. It reaches the store as soon as that is up.
    pub(crate) fn join(&mut self, process: Process) {
        self.processes.push(process);
    }

    /// Tells the member of a process what happened, and sends what it has to say.
    pub(crate) fn hear(&mut self, now: Instant, place: usize, input: MemberInput) {
        let process = &mut self.processes[place];
        if process.is_away(now) {
            return;
        }
        for request in process.hear(now, input) {
            if !process.is_cut(now) {
                self.network.send(now, self.store.run(), place, &Message::Request(request));
            }
        }
    }

    fn link(&mut self, now: Instant, place: usize) {
        if self.processes[place].links_to(self.store.run()) {
            self.hear(now, place, MemberInput::Unlinked);
        }
        let input = self.store.linked(now);
        self.hear(now, place, input);
    }

    /// The store loses what it had, or all that came after `kept`; its run is another one, and connections are gone, which a
    /// suspended host notices later.
    pub(crate) fn restart(&mut self, now: Instant, kept: Option<Store>, up: Instant) {
        self.store.restarts(now, kept, up);
        for place in 0..self.processes.len() {
            if !self.processes[place].is_away(now) && self.processes[place].unlinks() {
                self.hear(now, place, MemberInput::Unlinked);
            }
        }
    }

    fn deliver(&mut self, now: Instant, place: usize, message: Message) {
        let process = &self.processes[place];
        if process.is_cut(now) || self.store.back() > now {
            return;
        }
        let input = match message {
            Message::Request(request) => return self.ask(now, place, &request),
            _ if process.is_dead() => return,
            // What comes for a host that is suspended is read when that goes on.
            message if process.is_away(now) => return self.network.keep(process.away_until(), place, message),
            Message::Reply(_, Some(reply)) => MemberInput::Reply(reply),
            Message::Reply(seq, None) => MemberInput::ByeDone(seq),
            Message::Answered(reply) => MemberInput::Answered(reply),
            Message::Note(note) => MemberInput::Told(note),
            Message::Hint => MemberInput::Notice,
        };
        self.hear(now, place, input);
    }

    fn ask(&mut self, now: Instant, place: usize, request: &MemberRequest) {
        let (reply, woken, told) = self.store.takes(now, request);
        if let Some(reply) = reply {
            self.network.send(now, self.store.run(), place, &reply);
        }
        let woken = woken.into_iter().filter_map(|id| Some((self.place_of(id)?, Message::Hint)));
        let all =
            told.iter().flat_map(|note| (0..self.processes.len()).map(|place| (place, Message::Note(note.clone()))));
        for (place, message) in woken.chain(all).collect::<Vec<_>>() {
            if !self.processes[place].is_cut(now) {
                self.network.send(now, self.store.run(), place, &message);
            }
        }
    }

    fn place_of(&self, id: MemberId) -> Option<usize> {
        self.processes.iter().position(|process| process.id() == id)
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
