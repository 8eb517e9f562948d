//! Traps of a node: sent to the master subnet manager and repeated until it represses them (IBA 13.4.9, 14.2.5.1).

use std::time::{Duration, Instant};
use wire::Lid;
use wire::mad::attr::Notice;
use wire::mad::{AttrId, Method, Smp};

/// Before the first repetition; doubles with each.
const FIRST_REPEAT: Duration = Duration::from_secs(1);
/// Longest pause between repetitions.
const LONGEST_REPEAT: Duration = Duration::from_secs(16);
/// After so many sends a trap is given up: the manager's sweep finds what it told of.
const MAX_SENDS: u32 = 8;
/// Traps waiting to be repressed; the oldest is given up for a new one beyond that.
const MAX_PENDING: usize = 16;
/// Key violations are trapped at most once in this time: a packet must not cost a MAD.
const VIOLATION_PAUSE: Duration = Duration::from_secs(1);

struct Pending {
    tid: u64,
    notice: Notice,
    sends: u32,
    due: Instant,
}

/// Traps not yet repressed.
#[derive(Default)]
pub(crate) struct Traps {
    pending: Vec<Pending>,
    next_tid: u32,
    last_violation: Option<Instant>,
}

impl Traps {
    /// Sends `notice` now, and again later. The same notice already pending starts anew.
    pub(crate) fn raise(&mut self, now: Instant, notice: Notice) -> bool {
        if let Some(pending) = self.pending.iter_mut().find(|p| p.notice == notice) {
            (pending.sends, pending.due) = (0, now);
            return true;
        }
        let full = self.pending.len() >= MAX_PENDING;
        if full {
            self.pending.remove(0);
        }
        self.next_tid = self.next_tid.wrapping_add(1);
        self.pending.push(Pending {
            tid: u64::from(self.next_tid),
            notice,
            sends: 0,
            due: now,
        });
        !full
    }

    /// As [`Traps::raise`], for traps that a peer can cause at will.
    pub(crate) fn raise_violation(&mut self, now: Instant, notice: Notice) -> bool {
        if self
            .last_violation
            .is_some_and(|t| now < t + VIOLATION_PAUSE)
        {
            return true;
        }
        self.last_violation = Some(now);
        self.raise(now, notice)
    }

    /// The manager has seen the trap with this TID.
    pub(crate) fn repress(&mut self, tid: u64) {
        self.pending.retain(|p| p.tid != tid);
    }

    /// Next send or end of patience.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.pending.iter().map(|p| p.due).min()
    }

    /// One trap that is due: `Ok` to send, `Err` to count as given up.
    pub(crate) fn poll(&mut self, now: Instant, issuer: Lid) -> Option<Result<Smp, ()>> {
        let index = self.pending.iter().position(|p| p.due <= now)?;
        if self.pending[index].sends >= MAX_SENDS {
            self.pending.remove(index);
            return Some(Err(()));
        }
        let pending = &mut self.pending[index];
        pending.due = now + (FIRST_REPEAT * (1 << pending.sends)).min(LONGEST_REPEAT);
        pending.sends += 1;
        let notice = Notice {
            issuer_lid: issuer,
            ..pending.notice
        };
        // A trap of an SMA has room for the notice without the issuer GID, which is the SA's (IBA 14.2.5.1).
        Some(Ok(Smp::lid_routed(
            Method::TRAP,
            AttrId::NOTICE,
            0,
            pending.tid,
        )
        .with_data(&notice.emit())))
    }
}
