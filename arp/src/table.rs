//! The table of neighbours: entries, their timers, who may give way when it is full, and the packets that wait.

use crate::config::NeighbourConfig;
use crate::output::Resolved;
use crate::show::{Failure, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Instant;
use wire::ipoib::LinkAddress;

/// Who gives way first when the table is full. Entries in use have no rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Only known because it asked us something.
    Learned,
    Failed,
    Stale,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) state: State,
    pub(crate) since: Instant,
    /// When the state ends by itself.
    pub(crate) timer: Option<Instant>,
    /// Requests sent in this state.
    pub(crate) probes: u8,
    pub(crate) address: Option<LinkAddress>,
    pub(crate) router: bool,
    /// We have, or had, something to send there.
    pub(crate) wanted: bool,
    /// What the forwarding table has.
    pub(crate) installed: Option<Resolved>,
    /// Failures in a row, and in state Failed, when the next attempt may start.
    pub(crate) failures: u32,
    pub(crate) retry_at: Instant,
    pub(crate) last_failure: Option<(Instant, Failure)>,
    queue: VecDeque<Vec<u8>>,
    queue_bytes: usize,
    pub(crate) queue_deadline: Option<Instant>,
    indexed_deadline: Option<Instant>,
    indexed_rank: Option<(Rank, Instant)>,
}

impl Entry {
    pub(crate) fn new(now: Instant, state: State) -> Self {
        Entry {
            state,
            since: now,
            timer: None,
            probes: 0,
            address: None,
            router: false,
            wanted: false,
            installed: None,
            failures: 0,
            retry_at: now,
            last_failure: None,
            queue: VecDeque::new(),
            queue_bytes: 0,
            queue_deadline: None,
            indexed_deadline: None,
            indexed_rank: None,
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    fn deadline(&self) -> Option<Instant> {
        self.timer.into_iter().chain(self.queue_deadline).min()
    }

    fn rank(&self) -> Option<Rank> {
        match self.state {
            _ if !self.queue.is_empty() => None,
            _ if !self.wanted => Some(Rank::Learned),
            State::Failed => Some(Rank::Failed),
            State::Stale => Some(Rank::Stale),
            State::Incomplete | State::Reachable | State::Delay | State::Probe => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: BTreeMap<IpAddr, Entry>,
    deadlines: BTreeSet<(Instant, IpAddr)>,
    evictable: BTreeSet<(Rank, Instant, IpAddr)>,
    learned: usize,
    queue_bytes: usize,
}

impl Table {
    pub(crate) fn get(&self, ip: IpAddr) -> Option<&Entry> {
        self.entries.get(&ip)
    }

    /// After a change, [`Self::reindex`].
    pub(crate) fn get_mut(&mut self, ip: IpAddr) -> Option<&mut Entry> {
        self.entries.get_mut(&ip)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpAddr, &Entry)> {
        self.entries.iter().map(|(&ip, e)| (ip, e))
    }

    /// All entries' addresses, to change entries on the way.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.entries.keys().copied().collect()
    }

    /// Needs [`Self::reindex`] too.
    pub(crate) fn insert(&mut self, ip: IpAddr, entry: Entry) {
        self.entries.insert(ip, entry);
    }

    /// Its packets must have been taken.
    pub(crate) fn remove(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.remove(&ip) {
            self.index(
                ip,
                (entry.indexed_deadline, entry.indexed_rank),
                (None, None),
            );
        }
    }

    /// Brings the indexes up to date after a change of `ip`'s entry.
    pub(crate) fn reindex(&mut self, ip: IpAddr) {
        let Some(entry) = self.entries.get_mut(&ip) else {
            return;
        };
        let old = (entry.indexed_deadline, entry.indexed_rank);
        entry.indexed_deadline = entry.deadline();
        entry.indexed_rank = entry.rank().map(|rank| (rank, entry.since));
        let new = (entry.indexed_deadline, entry.indexed_rank);
        self.index(ip, old, new);
    }

    fn index(&mut self, ip: IpAddr, old: Indexed, new: Indexed) {
        if old.0 != new.0 {
            old.0.map(|at| self.deadlines.remove(&(at, ip)));
            new.0.map(|at| self.deadlines.insert((at, ip)));
        }
        if old.1 != new.1 {
            let learned =
                |key: Option<(Rank, Instant)>| usize::from(matches!(key, Some((Rank::Learned, _))));
            self.learned = self.learned + learned(new.1) - learned(old.1);
            old.1
                .map(|(rank, since)| self.evictable.remove(&(rank, since, ip)));
            new.1
                .map(|(rank, since)| self.evictable.insert((rank, since, ip)));
        }
    }

    /// Who must go before another entry may come: `Some(None)` nobody, `None` there is no room for it.
    pub(crate) fn make_room(
        &self,
        learned: bool,
        config: &NeighbourConfig,
    ) -> Option<Option<IpAddr>> {
        let quota_full = learned && self.learned >= config.max_learned.max(1);
        if !quota_full && self.entries.len() < config.max_entries.max(1) {
            return Some(None);
        }
        let &(rank, _, ip) = self.evictable.first()?;
        (!learned || rank == Rank::Learned).then_some(Some(ip))
    }

    /// The next deadline and whose it is.
    pub(crate) fn next_deadline(&self) -> Option<(Instant, IpAddr)> {
        self.deadlines.first().copied()
    }

    /// Lets a packet wait. The number of packets dropped for it, itself perhaps.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        ip: IpAddr,
        packet: Vec<u8>,
        config: &NeighbourConfig,
    ) -> u64 {
        let Some(entry) = self.entries.get_mut(&ip) else {
            return 1;
        };
        let mut dropped = 0;
        loop {
            let fits = entry.queue.len() < config.queue_packets
                && entry.queue_bytes + packet.len() <= config.queue_bytes
                && self.queue_bytes + packet.len() <= config.total_queue_bytes;
            if fits {
                break;
            }
            dropped += 1;
            let Some(oldest) = entry.queue.pop_front() else {
                return dropped;
            };
            entry.queue_bytes -= oldest.len();
            self.queue_bytes -= oldest.len();
        }
        entry.queue_bytes += packet.len();
        self.queue_bytes += packet.len();
        entry.queue.push_back(packet);
        entry.queue_deadline.get_or_insert(now + config.queue_age);
        dropped
    }

    /// All packets that wait for `ip`.
    pub(crate) fn take_queue(&mut self, ip: IpAddr) -> Vec<Vec<u8>> {
        let Some(entry) = self.entries.get_mut(&ip) else {
            return Vec::new();
        };
        self.queue_bytes -= std::mem::take(&mut entry.queue_bytes);
        entry.queue_deadline = None;
        std::mem::take(&mut entry.queue).into()
    }
}

type Indexed = (Option<Instant>, Option<(Rank, Instant)>);
