//! Outstanding requests by transaction ID (IBA 13.4.6.4): matching of responses, time-outs with retries, back-off of busy responders.
//!
//! [`Transactions`] owns a bounded table of what was asked and not yet answered; the user keeps what he needs for sending again in the token.
//! It is fed requests, answers and the time, and says which request to send again and which to give up. Used by the SA client and by the
//! subnet manager. A TID is never used twice, so a response that comes after its request was answered or given up finds nothing.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long to wait for an answer and how often to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Wait after the first send.
    pub first_timeout: Duration,
    /// Each wait is one and a half times the one before, up to this.
    pub max_timeout: Duration,
    /// How often a request is sent before it is given up; at least once.
    pub tries: u32,
    /// Share of each wait, in percent, that is random: a wait of 100 ms with 20 is 90 to 110 ms.
    pub jitter_percent: u32,
}

impl Default for RetryPolicy {
    /// 300 ms growing to 1.2 s, 8 tries: given up after 7.3 s on average. Linux waits 10 times 300 ms for joins.
    fn default() -> Self {
        RetryPolicy {
            first_timeout: Duration::from_millis(300),
            max_timeout: Duration::from_millis(1200),
            tries: 8,
            jitter_percent: 20,
        }
    }
}

impl RetryPolicy {
    fn wait(&self, sent: u32, rng: &mut Rng) -> Duration {
        let mut wait = self.first_timeout.min(self.max_timeout);
        for _ in 1..sent.min(64) {
            wait = (wait + wait / 2).min(self.max_timeout);
        }
        let span = wait / 100 * self.jitter_percent.min(100);
        wait - span / 2 + Duration::from_micros(rng.u64(0..=span.as_micros() as u64))
    }
}

#[derive(Debug)]
struct Entry<T> {
    token: T,
    policy: RetryPolicy,
    sent: u32,
    deadline: Instant,
}

/// What a time-out means for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Expired<T> {
    /// Send the request with this TID again; [`Transactions::get`] has its token.
    Resend(u64),
    /// The last try was not answered. The entry is gone.
    GaveUp {
        /// TID it had.
        tid: u64,
        /// How often it was sent.
        tries: u32,
        /// The user's part.
        token: T,
    },
}

/// The table of outstanding requests. `T` is what the user keeps with each.
#[derive(Debug)]
pub struct Transactions<T> {
    entries: BTreeMap<u64, Entry<T>>,
    deadlines: BTreeSet<(Instant, u64)>,
    tid_high: u32,
    next: u32,
    capacity: usize,
    rng: Rng,
}

impl<T> Transactions<T> {
    /// An empty table for at most `capacity` requests. `tid_high` is the agent's number; the lower half of TIDs starts at a random value drawn
    /// from `seed`, so that a restarted program does not take answers to its predecessor for its own.
    pub fn new(capacity: usize, tid_high: u32, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let next = rng.u32(..);
        Transactions {
            entries: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            tid_high,
            next,
            capacity,
            rng,
        }
    }

    /// Notes a request that is about to be sent and gives its TID; `Err` returns the token if the table is full.
    pub fn begin(&mut self, now: Instant, policy: RetryPolicy, token: T) -> Result<u64, T> {
        if self.entries.len() >= self.capacity {
            return Err(token);
        }
        // Not zero, which some agents take for "no transaction"; and not one still in the table after 2^32 others.
        let mut tid;
        loop {
            self.next = self.next.wrapping_add(1);
            tid = u64::from(self.tid_high) << 32 | u64::from(self.next);
            if self.next != 0 && !self.entries.contains_key(&tid) {
                break;
            }
        }
        let deadline = now + policy.wait(1, &mut self.rng);
        self.entries.insert(
            tid,
            Entry {
                token,
                policy,
                sent: 1,
                deadline,
            },
        );
        self.deadlines.insert((deadline, tid));
        Ok(tid)
    }

    /// An answer came, or the request is of no interest any more: takes it out. `None`: a duplicate, or not ours.
    pub fn finish(&mut self, tid: u64) -> Option<T> {
        let entry = self.entries.remove(&tid)?;
        self.deadlines.remove(&(entry.deadline, tid));
        Some(entry.token)
    }

    /// The responder said BUSY (bit 0 of the status): the next try comes after the longest wait. False if there is no such request.
    pub fn busy(&mut self, now: Instant, tid: u64) -> bool {
        self.postpone(now, tid)
    }

    /// The responder is at work on this request (an RMPP segment came): waits the longest wait from now, and counts tries from the start.
    pub fn progress(&mut self, now: Instant, tid: u64) -> bool {
        if let Some(entry) = self.entries.get_mut(&tid) {
            entry.sent = 1;
        }
        self.postpone(now, tid)
    }

    fn postpone(&mut self, now: Instant, tid: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&tid) else {
            return false;
        };
        let wait = entry.policy.wait(u32::MAX, &mut self.rng);
        self.deadlines.remove(&(entry.deadline, tid));
        entry.deadline = now + wait;
        self.deadlines.insert((entry.deadline, tid));
        true
    }

    /// The token of an outstanding request.
    pub fn get(&self, tid: u64) -> Option<&T> {
        self.entries.get(&tid).map(|entry| &entry.token)
    }

    /// The token of an outstanding request.
    pub fn get_mut(&mut self, tid: u64) -> Option<&mut T> {
        self.entries.get_mut(&tid).map(|entry| &mut entry.token)
    }

    /// All outstanding requests, TIDs and tokens.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().map(|(tid, entry)| (*tid, &entry.token))
    }

    /// Takes all requests out.
    pub fn drain(&mut self) -> Vec<T> {
        self.deadlines.clear();
        std::mem::take(&mut self.entries)
            .into_values()
            .map(|entry| entry.token)
            .collect()
    }

    /// Number of outstanding requests.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing outstanding?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// No place for another one?
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// When [`Self::expire`] has something to say.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The next request whose wait is over, if any; call until `None`.
    pub fn expire(&mut self, now: Instant) -> Option<Expired<T>> {
        let &(deadline, tid) = self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.deadlines.pop_first();
        let entry = self.entries.get_mut(&tid)?;
        if entry.sent >= entry.policy.tries {
            let entry = self.entries.remove(&tid)?;
            return Some(Expired::GaveUp {
                tid,
                tries: entry.sent,
                token: entry.token,
            });
        }
        entry.sent += 1;
        entry.deadline = now + entry.policy.wait(entry.sent, &mut self.rng);
        self.deadlines.insert((entry.deadline, tid));
        Some(Expired::Resend(tid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> RetryPolicy {
        RetryPolicy {
            first_timeout: Duration::from_millis(100),
            max_timeout: Duration::from_millis(400),
            tries: 5,
            jitter_percent: 0,
        }
    }

    #[test]
    fn waits_grow_to_the_limit_and_end() {
        let start = Instant::now();
        let mut table = Transactions::new(4, 7, 1);
        let tid = table.begin(start, policy(), "token").unwrap();
        assert_eq!(tid >> 32, 7);
        let mut at = Vec::new();
        loop {
            let now = table.poll_timeout().unwrap();
            at.push((now - start).as_millis());
            match table.expire(now).unwrap() {
                Expired::Resend(again) => assert_eq!(again, tid),
                Expired::GaveUp {
                    tid: gone,
                    tries,
                    token,
                } => {
                    assert_eq!((gone, tries, token), (tid, 5, "token"));
                    break;
                }
            }
            assert_eq!(table.expire(now), None);
        }
        assert_eq!(at, [100, 250, 475, 812, 1212]);
        assert!(table.is_empty() && table.poll_timeout().is_none());
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let start = Instant::now();
        let mut table = Transactions::new(1000, 0, 9);
        let mut waits = Vec::new();
        for _ in 0..1000 {
            let tid = table
                .begin(
                    start,
                    RetryPolicy {
                        jitter_percent: 20,
                        ..policy()
                    },
                    (),
                )
                .unwrap();
            waits.push((table.poll_timeout().unwrap() - start).as_micros());
            table.finish(tid);
        }
        assert!(
            waits.iter().all(|w| (90_000..=110_000).contains(w)),
            "{waits:?}"
        );
        assert!(waits.iter().max().unwrap() - waits.iter().min().unwrap() > 15_000);
    }

    #[test]
    fn an_answer_ends_it_once() {
        let now = Instant::now();
        let mut table = Transactions::new(2, 0, 3);
        let a = table.begin(now, policy(), 'a').unwrap();
        let b = table.begin(now, policy(), 'b').unwrap();
        assert_eq!(table.begin(now, policy(), 'c'), Err('c'));
        assert_eq!(table.finish(a), Some('a'));
        assert_eq!(table.finish(a), None);
        assert!(!table.busy(now, a));
        assert_ne!(table.begin(now, policy(), 'c').unwrap(), a);
        assert_eq!(table.finish(b), Some('b'));
    }

    #[test]
    fn busy_waits_longest() {
        let now = Instant::now();
        let mut table = Transactions::new(2, 0, 3);
        let tid = table.begin(now, policy(), ()).unwrap();
        assert!(table.busy(now, tid));
        assert_eq!(table.poll_timeout(), Some(now + Duration::from_millis(400)));
    }

    #[test]
    fn tids_wrap_past_zero() {
        let now = Instant::now();
        let mut table = Transactions::new(4, 5, 3);
        table.next = u32::MAX;
        assert_eq!(table.begin(now, policy(), ()).unwrap(), 5 << 32 | 1);
    }
}
