//! Storage for the requests in a pacer.

use alloc::vec::Vec;

use crate::flight::Flight;
use crate::queue::{Place, Slot};
use crate::request::{Request, Ticket};
use crate::time::Instant;

/// The state of a request in the pacer.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    Waiting { place: Place, deadline: Option<Instant>, since: Instant },
    InFlight { flight: Flight, deadline: Option<Instant> },
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) stage: Stage,
}

/// A slab: slots are used again, and a generation tells old tickets from new ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    entries: Vec<(u32, Option<Entry>)>,
    free: Vec<Slot>,
}

impl Slots {
    pub(crate) fn insert(&mut self, request: Request, stage: impl FnOnce(Slot) -> Stage) -> Ticket {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 requests at once")
        });
        let (generation, entry) = &mut self.entries[slot as usize];
        *entry = Some(Entry { request, stage: stage(slot) });
        Ticket { slot, generation: *generation }
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Entry> {
        let (generation, entry) = self.entries.get_mut(ticket.slot as usize)?;
        if *generation != ticket.generation || entry.is_none() {
            return None;
        }
        *generation = generation.wrapping_add(1);
        self.free.push(ticket.slot);
        entry.take()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Entry> {
        let (generation, entry) = self.entries.get(ticket.slot as usize)?;
        entry.as_ref().filter(|_| *generation == ticket.generation)
    }

    /// Requests in the pacer, waiting or in flight.
    pub(crate) const fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_in_flight(&self, ticket: Ticket) -> bool {
        self.get(ticket).is_some_and(|entry| matches!(entry.stage, Stage::InFlight { .. }))
    }

    /// The present ticket of an occupied slot.
    pub(crate) fn ticket(&self, slot: Slot) -> Ticket {
        Ticket { slot, generation: self.entries[slot as usize].0 }
    }

    /// A slot that a queue names.
    pub(crate) fn at(&self, slot: Slot) -> &Entry {
        self.entries[slot as usize].1.as_ref().expect("queues name occupied slots")
    }

    pub(crate) fn at_mut(&mut self, slot: Slot) -> &mut Entry {
        self.entries[slot as usize].1.as_mut().expect("queues name occupied slots")
    }
}
