//! Connections that are left: what they took is delivered first.

use super::lane::PeerKey;
use super::peer::{Peer, State};
use super::{Connection, Connections, Mode, Phase};
use mad::ConnectionId;
use std::time::{Duration, Instant};
use verbs::QpState;

/// After a change of mode, until the kernel knows of its smaller MTU and what it gave before has been read from the device.
const LEAVE: Duration = Duration::from_millis(100);
/// For what the queue pair holds. A peer that is gone is given up sooner, by its retries.
const DRAIN: Duration = Duration::from_secs(10);
/// Between two looks; also longer than the data path takes to send what it was about to by a connection that is left.
const STEP: Duration = Duration::from_millis(10);

impl Connections {
    /// The mode is another than when packets began to go by this connection.
    pub(super) fn change(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match (self.mode, connection.phase) {
            (Mode::Datagram, Phase::Open) => {
                connection.phase = Phase::Leaving(now + LEAVE);
                self.drain_at.get_or_insert(now + STEP);
            }
            (Mode::Connected, Phase::Leaving(_)) => connection.phase = Phase::Open,
            _ => {}
        }
    }

    /// This side sends to the peer by no connection any more. One that the peer asked for stays: it may send by that.
    pub(super) fn leave(&mut self, now: Instant, key: PeerKey) {
        let id = self.peers.get(&key).and_then(Peer::connection);
        self.enter(key, State::Idle);
        if let Some(id) = id {
            self.let_go(now, id);
        }
    }

    fn let_go(&mut self, now: Instant, id: ConnectionId) {
        match self.connections.get_mut(&id) {
            Some(c) if c.is_own => self.finish(now, id),
            Some(c) if matches!(c.phase, Phase::Leaving(_)) => c.phase = Phase::Open,
            _ => {}
        }
    }

    /// Ends a connection, one that this side sends by when all that it took is delivered.
    pub(super) fn finish(&mut self, now: Instant, id: ConnectionId) {
        match self.connections.get_mut(&id) {
            Some(c) if c.is_ending() => {}
            Some(c) if c.phase != Phase::Opening && (c.is_own || c.is_duplex) => {
                c.phase = Phase::Draining(now + DRAIN);
                self.drain_at.get_or_insert(now + STEP);
                let key = c.peer;
                if self.is_state_of(key, id) {
                    self.enter(key, State::Idle);
                }
            }
            _ => self.end(now, id),
        }
    }

    /// Ends a connection now.
    pub(super) fn end(&mut self, now: Instant, id: ConnectionId) {
        if let Some(key) = self.close(now, id)
            && self.is_state_of(key, id)
        {
            self.enter(key, State::Idle);
        }
    }

    /// Looks at those that are left.
    pub(super) fn drain(&mut self, now: Instant) {
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        self.drain_at = None;
        for id in all {
            let Some(c) = self.connections.get_mut(&id) else {
                continue;
            };
            let key = c.peer;
            match c.phase {
                Phase::Leaving(until) if until <= now => {
                    if self.is_state_of(key, id) {
                        self.enter(key, State::Idle);
                    }
                    self.let_go(now, id);
                }
                Phase::Draining(until) => {
                    let qp = c.qp.query();
                    if qp.sends == 0 && qp.state != QpState::Error {
                        // Until the CM releases it, it takes what the peer sends, and acknowledges that.
                        c.phase = Phase::Closing;
                        // It may have ended already; then it is released soon.
                        let _ = self.cm.disconnect(now, id);
                    } else if until <= now || qp.state == QpState::Error {
                        self.close(now, id);
                    }
                }
                _ => {}
            }
        }
        let is_left = |c: &Connection| matches!(c.phase, Phase::Leaving(_) | Phase::Draining(_));
        let any = self.connections.values().any(is_left);
        self.drain_at = any.then(|| now + STEP);
    }
}
