//! Connections that nobody uses, and room for new ones.

use super::lane::PeerKey;
use super::{Connection, Connections, Local, Phase, Way};
use mad::ConnectionId;
use std::time::{Duration, Instant};
use verbs::QpState;
use wire::{Gid, Lid};

/// Between two looks at all connections, at most.
const LOOK: Duration = Duration::from_secs(10);

/// A connection that moves nothing for so long is given up, if its retries do not say later: they do not count where the peer says that it is
/// not ready.
const STUCK: Duration = Duration::from_secs(30);

impl Connections {
    pub(super) fn look_every(&self) -> Duration {
        (self.config.idle / 4).min(LOOK)
    }

    /// Closes what was idle for too long, and what broke although nobody told.
    pub(super) fn look(&mut self, now: Instant) {
        self.notice_use(now);
        let mut idle = Vec::new();
        let mut broken = Vec::new();
        let tries = u32::from(self.config.retry_count) + 1;
        let patience = STUCK.max(self.config.ack_timeout.duration().unwrap_or_default() * tries);
        for (id, c) in &mut self.connections {
            if c.phase == Phase::Closing {
                continue;
            }
            let limit = match c.is_own {
                true => self.config.idle,
                // Whoever asked for it closes it first.
                false => self.config.idle * 2,
            };
            let qp = c.qp.query();
            let done = qp.counters.tx_messages;
            let waiting = c.waiting.filter(|(then, _)| *then == done);
            c.waiting = (qp.sends > 0).then(|| waiting.unwrap_or((done, now)));
            let stuck = |since| now.saturating_duration_since(since) >= patience;
            if qp.state == QpState::Error {
                broken.push((*id, "the connection failed"));
            } else if c.waiting.is_some_and(|(_, since)| stuck(since)) {
                broken.push((*id, "the peer takes nothing"));
            } else if c.phase == Phase::Open && now.saturating_duration_since(c.used) >= limit {
                idle.push(*id);
            }
        }
        for (id, why) in broken {
            self.broken(now, id, why.into());
        }
        for id in idle {
            self.counters.closed_idle += 1;
            self.finish(now, id);
        }
        let any = !self.connections.is_empty();
        self.look_at = any.then(|| now + self.look_every());
    }

    /// Brings up to date when each connection was last used.
    pub(super) fn notice_use(&mut self, now: Instant) {
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in all {
            self.notice_use_of(now, id);
        }
    }

    /// The same for one.
    pub(super) fn notice_use_of(&mut self, now: Instant, id: ConnectionId) {
        let found = self.connections.get_mut(&id);
        let Some(c) = found.filter(|c| c.phase == Phase::Open) else {
            return;
        };
        let counters = c.qp.query().counters;
        let messages = counters.tx_messages + counters.rx_messages;
        if std::mem::replace(&mut c.messages, messages) == messages {
            return;
        }
        c.used = now;
        // It works: the next failure is a first one.
        if let Some(peer) = self.peers.get_mut(&c.peer)
            && counters.tx_messages > 0
            && matches!(peer.lane.way().as_ref(), Way::Connected { .. })
        {
            peer.failures = 0;
        }
    }

    /// Are there connections to this port?
    pub(in crate::interface) fn any_to(&self, gid: Gid) -> bool {
        let mut all = self.connections.values();
        all.any(|c| c.peer.0 == gid && c.phase != Phase::Closing)
    }

    /// A port is gone, and with it whoever asked for connections there: they are not kept until they are old.
    pub(in crate::interface) fn gid_out_of_service(&mut self, now: Instant, gid: Gid) {
        let all = self.connections.iter();
        let there = all.filter(|(_, c)| c.peer.0 == gid && c.phase != Phase::Closing);
        let ids: Vec<ConnectionId> = there.map(|(id, _)| *id).collect();
        for id in ids {
            self.end(now, id);
        }
        self.pump(now);
    }

    fn active(&self) -> usize {
        let all = self.connections.values();
        all.filter(|c| !c.is_ending()).count()
    }

    /// Sees to it that there may be one more connection, at the cost of that which was not used for longest; false if all are busy.
    pub(super) fn make_room(&mut self, now: Instant) -> bool {
        if self.active() < self.config.max_connections {
            return true;
        }
        self.notice_use(now);
        let unused = |used: Instant| now.saturating_duration_since(used) >= self.config.busy;
        let all = self.connections.iter();
        let idle = all.filter(|(_, c)| c.phase == Phase::Open && unused(c.used));
        match idle.min_by_key(|(_, c)| c.used).map(|(id, _)| *id) {
            Some(id) => {
                self.counters.closed_for_room += 1;
                self.finish(now, id);
                true
            }
            None => {
                self.counters.no_room += 1;
                false
            }
        }
    }

    /// A peer that asks again and again has forgotten what it had.
    pub(super) fn close_oldest_of(&mut self, now: Instant, local: &Local, peer: PeerKey, lid: Lid) {
        let all = self.connections.iter();
        let same = |c: &Connection| c.peer == peer && local.is_same_port(c.lid, lid);
        let of_peer = all.filter(|(_, c)| same(c) && !c.is_own && !c.is_ending());
        let serials: Vec<_> = of_peer.map(|(id, c)| (c.serial, *id)).collect();
        if serials.len() >= self.config.max_from_peer
            && let Some((_, id)) = serials.into_iter().min()
        {
            self.counters.closed_for_room += 1;
            self.end(now, id);
        }
    }
}
