//! Traps of a node: sent to the master subnet manager and repeated until it represses them (IBA 13.4.9, 14.2.5.1).

use std::time::{Duration, Instant};
use wire::Lid;
use wire::mad::attr::Notice;
use wire::mad::{AttrId, Method, Smp};

/// Between two sends of the same news that happened again meanwhile.
const SHORTEST_REPEAT: Duration = Duration::from_millis(50);
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
    sent: Option<Instant>,
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
    /// Sends `notice` now, and again later. The same notice already pending starts anew, with a new TID: a repress that is on its way is for what
    /// happened before. False if another trap had to be given up for it.
    pub(crate) fn raise(&mut self, now: Instant, notice: Notice) -> bool {
        self.next_tid = self.next_tid.wrapping_add(1);
        let tid = u64::from(self.next_tid);
        if let Some(pending) = self.pending.iter_mut().find(|p| p.notice == notice) {
            let due = pending.sent.map_or(now, |t| now.max(t + SHORTEST_REPEAT));
            (pending.tid, pending.sends, pending.due) = (tid, 0, due);
            return true;
        }
        let full = self.pending.len() >= MAX_PENDING;
        if full {
            self.pending.remove(0);
        }
        self.pending.push(Pending {
            tid,
            notice,
            sends: 0,
            sent: None,
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

    /// The manager has seen the trap with this TID. Is it one of these?
    pub(crate) fn repress(&mut self, tid: u64) -> bool {
        let before = self.pending.len();
        self.pending.retain(|p| p.tid != tid);
        self.pending.len() < before
    }

    /// Next send or end of patience.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.pending.iter().map(|p| p.due).min()
    }

    /// One trap that is due: `Ok` to send, `Err` to count as given up. `interval`: the time of PortInfo's SubnetTimeOut, which is the pause before
    /// the first repetition and doubles with each.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        issuer: Lid,
        interval: Duration,
    ) -> Option<Result<Smp, ()>> {
        let index = self.pending.iter().position(|p| p.due <= now)?;
        if self.pending[index].sends >= MAX_SENDS {
            self.pending.remove(index);
            return Some(Err(()));
        }
        let pending = &mut self.pending[index];
        let pause = interval * (1 << pending.sends);
        pending.due = now + pause.clamp(SHORTEST_REPEAT, LONGEST_REPEAT);
        pending.sends += 1;
        pending.sent = Some(now);
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
