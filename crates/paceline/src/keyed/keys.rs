//! Keys and their counts, in shards with a lock each.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use paceline_core::{Admit, BucketLevel, BucketRule, ConfigError, Instant, LimitCounts, Limits, ScopeId};

use crate::driver::Driver;
use crate::sync::{Mutex, MutexGuard};

/// A shard is not swept below so many keys.
const FEWEST: usize = 64;

/// So many shards for each processor: two threads rarely want the same one.
const SHARDS: usize = 4;

/// What a key's counts are.
pub(super) trait Form {
    type Count: Clone;

    /// The counts of a pacer, for a key that leaves it; unused ones for a new key.
    fn reduced(&self, counts: LimitCounts) -> Self::Count;

    /// The counts for a pacer, with all else as in `fresh`.
    fn whole(&self, count: Self::Count, fresh: &LimitCounts) -> LimitCounts;

    fn try_take(&self, count: &mut Self::Count, now: Instant) -> Admit;

    fn is_unused(&self, count: &Self::Count, now: Instant) -> bool;
}

/// One token bucket.
impl Form for BucketRule {
    type Count = BucketLevel;

    fn reduced(&self, counts: LimitCounts) -> BucketLevel {
        counts.level()
    }

    fn whole(&self, level: BucketLevel, fresh: &LimitCounts) -> LimitCounts {
        fresh.clone().with_level(level)
    }

    fn try_take(&self, level: &mut BucketLevel, now: Instant) -> Admit {
        BucketRule::try_take(*self, level, now)
    }

    fn is_unused(&self, level: &BucketLevel, now: Instant) -> bool {
        self.is_full(*level, now)
    }
}

/// One token bucket with short levels, which take half the bytes.
pub(super) struct ShortBucket(pub(super) BucketRule);

impl Form for ShortBucket {
    type Count = u64;

    fn reduced(&self, counts: LimitCounts) -> u64 {
        counts.level().short()
    }

    fn whole(&self, level: u64, fresh: &LimitCounts) -> LimitCounts {
        self.0.whole(BucketLevel::from_short(level), fresh)
    }

    fn try_take(&self, short: &mut u64, now: Instant) -> Admit {
        let mut level = BucketLevel::from_short(*short);
        let admit = self.0.try_take(&mut level, now);
        *short = level.short();
        admit
    }

    fn is_unused(&self, level: &u64, now: Instant) -> bool {
        self.0.is_full(BucketLevel::from_short(*level), now)
    }
}

/// Limits of every other shape.
pub(super) struct Windows;

impl Form for Windows {
    type Count = Box<LimitCounts>;

    fn reduced(&self, counts: LimitCounts) -> Box<LimitCounts> {
        Box::new(counts)
    }

    fn whole(&self, counts: Box<LimitCounts>, _: &LimitCounts) -> LimitCounts {
        *counts
    }

    fn try_take(&self, counts: &mut Box<LimitCounts>, now: Instant) -> Admit {
        counts.try_take(now)
    }

    fn is_unused(&self, counts: &Box<LimitCounts>, now: Instant) -> bool {
        counts.is_unused(now)
    }
}

/// The answer of a key's limits.
pub(super) enum Counted {
    Taken,
    /// It does not fit yet.
    Full {
        now: Instant,
        admit: Admit,
    },
    /// The key has a scope, which decides.
    Scope(ScopeId),
}

/// All keys, of which each is in one shard and there either a count or a scope.
pub(super) struct Keys<K, F: Form> {
    form: F,
    fresh: LimitCounts,
    hasher: RandomState,
    shards: Shards<K, F::Count>,
    /// The number of the next scope.
    scopes: AtomicU64,
    /// What a key is called beside that number: by default nothing, for a key may be a secret, and names are logged.
    names: OnceLock<Names<K>>,
}

pub(super) type Names<K> = Box<dyn Fn(&K) -> String + Send + Sync>;

type Shards<K, Count> = Box<[Mutex<Shard<K, Count>>]>;

struct Shard<K, Count> {
    counts: HashTable<(K, Count)>,
    /// The next key beyond so many is a reason to forget unused ones.
    sweep_at: usize,
    scopes: HashMap<K, ScopeId>,
    release_at: usize,
}

impl<K: Hash + Eq + Clone, F: Form> Keys<K, F> {
    pub(super) fn new(form: F, limits: &Limits) -> Result<Self, ConfigError> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shard = || Shard { counts: HashTable::new(), sweep_at: FEWEST, scopes: HashMap::new(), release_at: FEWEST };
        let shards = (0..(SHARDS * processors).next_power_of_two()).map(|_| Mutex::new(shard())).collect();
        let (hasher, scopes) = (RandomState::new(), AtomicU64::new(1));
        let names = OnceLock::new();
        Ok(Self { form, fresh: LimitCounts::new(limits)?, hasher, shards, scopes, names })
    }

    /// The first names stay.
    pub(super) fn set_names(&self, names: Names<K>) {
        drop(self.names.set(names));
    }

    pub(super) fn len(&self) -> usize {
        let shards = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.counts.len() + shard.scopes.len()).sum()
    }

    /// Takes one request of the key, if it fits and the key has no scope.
    pub(super) fn count<Q>(&self, driver: &Arc<Driver>, key: &Q) -> Counted
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        if !shard.scopes.is_empty()
            && let Some(scope) = shard.scopes.get(key)
        {
            let Some(counts) = driver.act(|pacer, now| pacer.release_scope(now, scope)) else {
                return Counted::Scope(scope.clone());
            };
            shard.scopes.remove(key);
            let count = self.form.reduced(counts);
            self.entry(&mut shard, hash, key).insert((key.to_owned(), count));
        }
        let mut now = driver.clock_now();
        self.sweep(&mut shard, now);
        let mut entry = self.entry(&mut shard, hash, key).or_insert_with(|| {
            let count = self.form.reduced(self.fresh.clone());
            (key.to_owned(), count)
        });
        let count = &mut entry.get_mut().1;
        let mut admit = self.form.try_take(count, now);
        if !admit.is_now() {
            // Perhaps the machine has slept meanwhile.
            now = driver.now();
            admit = self.form.try_take(count, now);
        }
        if admit.is_now() { Counted::Taken } else { Counted::Full { now, admit } }
    }

    /// What its limits would answer a call of the key; or its scope. Nothing changes.
    pub(super) fn peek<Q>(&self, driver: &Arc<Driver>, key: &Q) -> Counted
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, now) = (self.hasher.hash_one(key), driver.now());
        let shard = self.shard(hash);
        if let Some(scope) = shard.scopes.get(key) {
            return Counted::Scope(scope.clone());
        }
        let known = shard.counts.find(hash, |(known, _)| known.borrow() == key);
        let Some(mut count) = known.map(|(_, count)| count.clone()) else { return Counted::Taken };
        match self.form.try_take(&mut count, now) {
            Admit::Now => Counted::Taken,
            admit => Counted::Full { now, admit },
        }
    }

    /// The scope of the key. A handle that is held keeps the scope.
    pub(super) fn scope<Q>(&self, driver: &Arc<Driver>, key: &Q) -> ScopeId
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        // By the program, so without a lock.
        let name = self.names.get().map(|names| names(&key.to_owned()));
        let mut shard = self.shard(hash);
        if let Some(scope) = shard.scopes.get(key) {
            return scope.clone();
        }
        if shard.scopes.len() >= shard.release_at {
            self.release(driver, &mut shard);
        }
        let counts = match self.entry(&mut shard, hash, key) {
            Entry::Occupied(entry) => self.form.whole(entry.remove().0.1, &self.fresh),
            Entry::Vacant(_) => self.fresh.clone(),
        };
        let number = self.scopes.fetch_add(1, Ordering::Relaxed);
        let name = name.map_or_else(|| format!("unnamed key no. {number}"), |name| format!("{name} (no. {number})"));
        let scope = driver.act(|pacer, _| pacer.scope_from(name.into(), counts));
        shard.scopes.insert(key.to_owned(), scope.clone());
        scope
    }

    /// Forgets keys whose limits are unused, where there are many. At least as many new ones come before the next time, so each
    /// costs a few steps.
    fn sweep(&self, shard: &mut Shard<K, F::Count>, now: Instant) {
        if shard.counts.len() < shard.sweep_at {
            return;
        }
        shard.counts.retain(|(_, count)| !self.form.is_unused(count, now));
        shard.sweep_at = (2 * shard.counts.len()).max(FEWEST);
        if shard.counts.capacity() > 2 * shard.sweep_at {
            shard.counts.shrink_to(shard.sweep_at, |(key, _)| self.hasher.hash_one(key));
        }
    }

    /// Turns scopes that neither wait nor have learnt anything into counts.
    fn release(&self, driver: &Arc<Driver>, shard: &mut Shard<K, F::Count>) {
        let mut released = Vec::new();
        shard.scopes.retain(|key, scope| {
            let counts = driver.act(|pacer, now| pacer.release_scope(now, scope));
            let stays = counts.is_none();
            released.extend(counts.map(|counts| (key.clone(), self.form.reduced(counts))));
            stays
        });
        for (key, count) in released {
            self.entry(shard, self.hasher.hash_one(&key), &key).insert((key, count));
        }
        shard.release_at = (2 * shard.scopes.len()).max(FEWEST);
        self.sweep(shard, driver.clock_now());
    }

    fn entry<'a, Q>(&self, shard: &'a mut Shard<K, F::Count>, hash: u64, key: &Q) -> Entry<'a, (K, F::Count)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        shard.counts.entry(hash, |(known, _)| known.borrow() == key, |(key, _)| self.hasher.hash_one(key))
    }

    /// The table uses the lowest bits of a hash and the highest ones.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, F::Count>> {
        let index = (hash >> 40) as usize & (self.shards.len() - 1);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
