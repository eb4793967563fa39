//! Storage for the requests in a pacer.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;

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

impl Stage {
    /// Of a request about which nothing is decided.
    const NEW: Self = Self::Waiting { place: (Reverse(0), 0, 0), deadline: None, since: Instant::ZERO };

    /// The request leaves. Returns where what is known of its call is kept, which may be what was known of an earlier one.
    #[inline(always)]
    pub(crate) fn leaves(&mut self, by: Option<Instant>) -> &mut Flight {
        if let Self::Waiting { .. } = self {
            *self = Self::InFlight { flight: Flight::default(), deadline: None };
        }
        let Self::InFlight { flight, deadline } = self else { unreachable!("it is in flight now") };
        *deadline = by;
        flight
    }
}

/// A request in the pacer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) request: &'a Request,
    pub(crate) stage: &'a Stage,
}

/// Where an entry is kept. It is large, so it is not moved once it is there, and its place is used again.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// None in a free slot.
    pub(crate) request: Option<Request>,
    /// In a free slot that of an earlier request.
    pub(crate) stage: Stage,
}

/// A slab: slots are used again, and a generation tells old tickets from new ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<(u32, Option<Box<Kept>>)>,
    free: Vec<Slot>,
}

impl Slots {
    /// Puts a request into a slot that stays free until the request is [kept](Self::keep) or [discarded](Self::discard): it is
    /// moved once, and decided about where it is.
    #[inline(always)]
    pub(crate) fn put(&mut self, request: Request) -> Slot {
        let slot = match self.free.last() {
            Some(slot) => *slot,
            None => self.grow(),
        };
        match &mut self.slots[slot as usize].1 {
            Some(kept) => kept.request = Some(request),
            none => *none = Some(Box::new(Kept { request: Some(request), stage: Stage::NEW })),
        }
        slot
    }

    #[cold]
    fn grow(&mut self) -> Slot {
        let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 requests at once");
        self.slots.push((0, None));
        self.free.push(slot);
        slot
    }

    /// The request that was [put](Self::put) there last is in the pacer from now on.
    #[inline(always)]
    pub(crate) fn keep(&mut self, slot: Slot) -> (Ticket, &mut Request) {
        self.free.pop();
        (self.ticket(slot), self.at_mut(slot).0)
    }

    /// It is not.
    pub(crate) fn discard(&mut self, slot: Slot) {
        self.slots[slot as usize].1 = None;
    }

    /// The request is no longer in the pacer.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Box<Kept>> {
        let (generation, kept) = self.slots.get_mut(ticket.slot as usize)?;
        if *generation != ticket.generation || kept.as_ref()?.request.is_none() {
            return None;
        }
        *generation = generation.wrapping_add(1);
        self.free.push(ticket.slot);
        kept.take()
    }

    /// Takes back the place of a removed request.
    pub(crate) fn reuse(&mut self, slot: Slot, mut kept: Box<Kept>) {
        kept.request = None;
        self.slots[slot as usize].1.get_or_insert(kept);
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<Entry<'_>> {
        let (generation, kept) = self.slots.get(ticket.slot as usize)?;
        let Kept { request, stage } = kept.as_deref().filter(|_| *generation == ticket.generation)?;
        Some(Entry { request: request.as_ref()?, stage })
    }

    /// Requests in the pacer, waiting or in flight.
    pub(crate) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_in_flight(&self, ticket: Ticket) -> bool {
        self.get(ticket).is_some_and(|entry| matches!(entry.stage, Stage::InFlight { .. }))
    }

    /// The present ticket of an occupied slot.
    pub(crate) fn ticket(&self, slot: Slot) -> Ticket {
        Ticket { slot, generation: self.slots[slot as usize].0 }
    }

    /// A slot that a queue names.
    #[inline(always)]
    pub(crate) fn at(&self, slot: Slot) -> Entry<'_> {
        let kept = self.slots[slot as usize].1.as_deref();
        let kept = kept.and_then(|Kept { request, stage }| Some(Entry { request: request.as_ref()?, stage }));
        kept.expect("queues name occupied slots")
    }

    #[inline(always)]
    pub(crate) fn at_mut(&mut self, slot: Slot) -> (&mut Request, &mut Stage) {
        let kept = self.slots[slot as usize].1.as_deref_mut();
        let kept = kept.and_then(|Kept { request, stage }| Some((request.as_mut()?, stage)));
        kept.expect("queues name occupied slots")
    }
}
