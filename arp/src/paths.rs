//! The path cache: by GID, with the queries that fill it and the replies that wait for it.
//!
//! An entry lives while a neighbour has its GID, a reply waits for it, or its query is outstanding. A path does not expire, as in the
//! kernel; it is asked for again when the subnet says that it may have changed.

use crate::config::NeighbourConfig;
use crate::output::{Path, PathError};
use crate::show::PathInfo;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::Gid;
use wire::ipoib::LinkAddress;

/// How badly a path is wanted. Ordered: urgent queries go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Packets wait.
    Urgent,
    /// Replies and refreshes: strangers can cause any number of these, so they get half of the queries at most.
    Background,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Query {
    Idle,
    Waiting(Urgency, u64),
    Outstanding(Urgency),
}

/// A packet that waits for the path to its destination.
pub(crate) type Reply = (LinkAddress, Vec<u8>);

#[derive(Debug)]
struct Entry {
    path: Option<Path>,
    query: Query,
    /// Ask again once the outstanding query is answered: something changed since it was sent.
    again: bool,
    refresh_at: Option<Instant>,
    /// Failed queries in a row, and those of them that the SA answered.
    failures: u32,
    refusals: u32,
    /// No path, and no query before this.
    retry_at: Option<Instant>,
    last_error: Option<PathError>,
    users: BTreeSet<IpAddr>,
    replies: Vec<Reply>,
    since: Instant,
}

/// What [`PathCache::demand`] found.
#[derive(Debug)]
pub(crate) enum Demand {
    Ready(Path),
    Pending,
    Refused(PathError),
}

/// What a query's answer means to the neighbours of the GID.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There is a path, new or changed.
    Changed,
    /// Nothing new: the same path, or the known path outlives a failed refresh.
    Kept,
    /// No path.
    Lost(PathError),
}

#[derive(Debug, Default)]
pub(crate) struct PathCache {
    entries: BTreeMap<Gid, Entry>,
    waiting: BTreeSet<(Urgency, u64, Gid)>,
    refreshes: BTreeSet<(Instant, Gid)>,
    sequence: u64,
    outstanding: usize,
    outstanding_background: usize,
    /// All entries' replies.
    replies: usize,
}

/// 1, 2, 4 ... times the shortest back-off, up to the longest.
pub(crate) fn backoff(config: &NeighbourConfig, failures: u32) -> Duration {
    let factor = 1 << failures.saturating_sub(1).min(16);
    config
        .backoff_min
        .saturating_mul(factor)
        .min(config.backoff_max)
}

impl PathCache {
    fn entry(&mut self, now: Instant, gid: Gid) -> &mut Entry {
        self.entries.entry(gid).or_insert_with(|| Entry {
            path: None,
            query: Query::Idle,
            again: false,
            refresh_at: None,
            failures: 0,
            refusals: 0,
            retry_at: None,
            last_error: None,
            users: BTreeSet::new(),
            replies: Vec::new(),
            since: now,
        })
    }

    /// The known path.
    pub(crate) fn get(&self, gid: Gid) -> Option<Path> {
        self.entries.get(&gid)?.path
    }

    /// Is there an entry?
    pub(crate) fn contains(&self, gid: Gid) -> bool {
        self.entries.contains_key(&gid)
    }

    /// The neighbours with this GID.
    pub(crate) fn users(&self, gid: Gid) -> Vec<IpAddr> {
        self.entries
            .get(&gid)
            .map(|e| e.users.iter().copied().collect())
            .unwrap_or_default()
    }

    /// A neighbour has this GID.
    pub(crate) fn attach(&mut self, now: Instant, gid: Gid, ip: IpAddr) {
        self.entry(now, gid).users.insert(ip);
    }

    /// It has it no more.
    pub(crate) fn detach(&mut self, gid: Gid, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&gid) {
            entry.users.remove(&ip);
        }
        self.forget_unused(gid);
    }

    fn forget_unused(&mut self, gid: Gid) {
        let Some(e) = self.entries.get(&gid) else {
            return;
        };
        if !e.users.is_empty() || !e.replies.is_empty() || matches!(e.query, Query::Outstanding(_))
        {
            return;
        }
        if let Query::Waiting(urgency, sequence) = e.query {
            self.waiting.remove(&(urgency, sequence, gid));
        }
        if let Some(at) = e.refresh_at {
            self.refreshes.remove(&(at, gid));
        }
        self.entries.remove(&gid);
    }

    /// The path now, or a query for it, or the reason why neither. The GID needs a user or a reply, else the query is forgotten with the
    /// next change.
    pub(crate) fn demand(&mut self, now: Instant, gid: Gid, urgency: Urgency) -> Demand {
        let entry = self.entry(now, gid);
        if let Some(path) = entry.path {
            return Demand::Ready(path);
        }
        match (entry.retry_at, entry.last_error) {
            (Some(at), Some(error)) if now < at => Demand::Refused(error),
            _ => {
                self.ask(gid, urgency);
                Demand::Pending
            }
        }
    }

    /// Puts a query in line, or further to the front.
    fn ask(&mut self, gid: Gid, urgency: Urgency) {
        let Some(entry) = self.entries.get_mut(&gid) else {
            return;
        };
        match entry.query {
            Query::Outstanding(_) => return,
            Query::Waiting(already, _) if already <= urgency => return,
            Query::Waiting(already, sequence) => {
                self.waiting.remove(&(already, sequence, gid));
            }
            Query::Idle => {}
        }
        self.sequence += 1;
        entry.query = Query::Waiting(urgency, self.sequence);
        self.waiting.insert((urgency, self.sequence, gid));
    }

    /// The next query to send, if another may be outstanding.
    pub(crate) fn next_query(&mut self, config: &NeighbourConfig) -> Option<Gid> {
        let &(urgency, sequence, gid) = self.waiting.first()?;
        let background = usize::from(urgency == Urgency::Background);
        let max_background = (config.max_path_queries / 2).max(1);
        if self.outstanding >= config.max_path_queries.max(1)
            || background == 1 && self.outstanding_background >= max_background
        {
            return None;
        }
        self.waiting.remove(&(urgency, sequence, gid));
        self.outstanding += 1;
        self.outstanding_background += background;
        if let Some(entry) = self.entries.get_mut(&gid) {
            entry.query = Query::Outstanding(urgency);
        }
        Some(gid)
    }

    /// The answer to a query; `None` if none was outstanding.
    pub(crate) fn result(
        &mut self,
        now: Instant,
        gid: Gid,
        result: Result<Path, PathError>,
        config: &NeighbourConfig,
    ) -> Option<(Outcome, Vec<Reply>)> {
        let entry = self.entries.get_mut(&gid)?;
        let Query::Outstanding(urgency) = entry.query else {
            return None;
        };
        self.outstanding -= 1;
        self.outstanding_background -= usize::from(urgency == Urgency::Background);
        entry.query = Query::Idle;
        let again = std::mem::take(&mut entry.again);
        let outcome = match result {
            Ok(path) => {
                let changed = entry.path.replace(path) != Some(path);
                (entry.failures, entry.refusals) = (0, 0);
                (entry.retry_at, entry.last_error) = (None, None);
                entry.since = now;
                if changed {
                    Outcome::Changed
                } else {
                    Outcome::Kept
                }
            }
            Err(error) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.refusals = entry
                    .refusals
                    .saturating_add(u32::from(error != PathError::TimedOut));
                entry.last_error = Some(error);
                let retry_at = now + backoff(config, entry.failures);
                if entry.path.is_some() && entry.refusals < config.refresh_attempts {
                    self.schedule(gid, Some(retry_at));
                    Outcome::Kept
                } else {
                    entry.path = None;
                    entry.retry_at = Some(retry_at);
                    Outcome::Lost(error)
                }
            }
        };
        let replies = match outcome {
            // Replies wait only where there is no path.
            Outcome::Kept => Vec::new(),
            _ => self.take_replies(gid),
        };
        if again {
            self.ask(gid, Urgency::Background);
        }
        self.forget_unused(gid);
        Some((outcome, replies))
    }

    fn schedule(&mut self, gid: Gid, at: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(&gid) else {
            return;
        };
        if let Some(old) = entry.refresh_at {
            self.refreshes.remove(&(old, gid));
        }
        entry.refresh_at = at;
        if let Some(at) = at {
            self.refreshes.insert((at, gid));
        }
    }

    /// Lets `reply` wait for the path that [`Self::demand`] asked for; false if too many wait already.
    pub(crate) fn wait(
        &mut self,
        now: Instant,
        gid: Gid,
        reply: Reply,
        config: &NeighbourConfig,
    ) -> bool {
        let room = self.replies < config.max_waiting_replies;
        if room {
            self.replies += 1;
            self.entry(now, gid).replies.push(reply);
        }
        self.forget_unused(gid);
        room
    }

    fn take_replies(&mut self, gid: Gid) -> Vec<Reply> {
        let replies = self
            .entries
            .get_mut(&gid)
            .map(|e| std::mem::take(&mut e.replies))
            .unwrap_or_default();
        self.replies -= replies.len();
        replies
    }

    /// Nothing waits any more; how many replies did.
    pub(crate) fn drop_replies(&mut self) -> usize {
        let gids: Vec<Gid> = self.entries.keys().copied().collect();
        let mut dropped = 0;
        for gid in gids {
            dropped += self.take_replies(gid).len();
            self.forget_unused(gid);
        }
        dropped
    }

    /// The path may have changed: asks again, and keeps what is known until the answer.
    pub(crate) fn refresh(&mut self, gid: Gid) {
        let Some(entry) = self.entries.get_mut(&gid) else {
            return;
        };
        entry.again |= matches!(entry.query, Query::Outstanding(_));
        self.schedule(gid, None);
        self.ask(gid, Urgency::Background);
    }

    /// All paths may have changed: each is asked for again at a random time within the spread, which is shorter where there are few: they lead
    /// nowhere until then.
    pub(crate) fn refresh_all(
        &mut self,
        now: Instant,
        rng: &mut fastrand::Rng,
        config: &NeighbourConfig,
    ) {
        let gids: Vec<Gid> = self.entries.keys().copied().collect();
        let all = u32::try_from(gids.len()).unwrap_or(u32::MAX);
        let spread = config
            .refresh_spread
            .min(config.refresh_pace.saturating_mul(all));
        for gid in gids {
            self.reset_backoff(gid);
            let at = now + spread.mul_f64(rng.f64());
            self.schedule(gid, Some(at));
        }
    }

    /// A failed query may be repeated at once.
    pub(crate) fn reset_backoff(&mut self, gid: Gid) {
        if let Some(entry) = self.entries.get_mut(&gid) {
            (entry.failures, entry.refusals, entry.retry_at) = (0, 0, None);
        }
    }

    /// The GID left the subnet: its path is forgotten. The number of replies that waited for it.
    pub(crate) fn out_of_service(&mut self, gid: Gid) -> usize {
        self.schedule(gid, None);
        if let Some(entry) = self.entries.get_mut(&gid) {
            entry.path = None;
            entry.again |= matches!(entry.query, Query::Outstanding(_));
        }
        let dropped = self.take_replies(gid).len();
        self.forget_unused(gid);
        dropped
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.refreshes.first().map(|&(at, _)| at)
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, gid)) = self.refreshes.first()
            && at <= now
        {
            self.refresh(gid);
        }
    }

    pub(crate) fn iter(&self, now: Instant) -> impl Iterator<Item = PathInfo> {
        self.entries.iter().map(move |(&gid, e)| PathInfo {
            gid,
            path: e.path,
            querying: e.query != Query::Idle,
            neighbours: e.users.len(),
            age: now.saturating_duration_since(e.since),
            last_error: e.last_error,
        })
    }
}
