//! What the CM and queue pairs tell.

use super::config::Dialect;
use super::lane::PeerKey;
use super::peer::State;
use super::{Connection, Connections, Local, MAX_MTU, Phase, messages};
use mad::{CmAddress, CmEvent, ConnectionId};
use std::time::Instant;
use verbs::{QpEvent, QpModify};
use wire::Psn;
use wire::mad::cm::{Rej, RejectReason, Rep, Req};

impl Connections {
    pub(super) fn cm_event(&mut self, now: Instant, event: CmEvent) {
        match event {
            CmEvent::Requested { id, req, from } => self.requested(now, id, &req, &from),
            CmEvent::Replied { id, rep } => self.replied(now, id, &rep),
            CmEvent::Established { id } => self.established(now, id),
            CmEvent::Rejected { id, rej } => self.rejected(now, id, &rej),
            CmEvent::TimedOut { id } => {
                self.counters.timed_out += 1;
                self.failed(now, id, "no answer".into());
            }
            CmEvent::Disconnected { id } => {
                self.counters.disconnected += 1;
                self.disconnected(now, id);
            }
            CmEvent::Released { id } => {
                self.ended(id);
                self.connections.remove(&id);
            }
        }
    }

    /// Hears what queue pairs told since last time.
    pub(in crate::interface) fn hear(&mut self, now: Instant) {
        let told = std::mem::take(&mut *self.events.lock());
        for (serial, event) in told {
            self.qp_event(now, serial, event);
        }
    }

    /// Something at the queue pair of the connection `serial`.
    fn qp_event(&mut self, now: Instant, serial: u64, event: QpEvent) {
        let mut all = self.connections.iter();
        let Some(id) = all.find(|(_, c)| c.serial == serial).map(|(id, _)| *id) else {
            return;
        };
        match event {
            QpEvent::CommunicationEstablished => {
                // An error: it ended meanwhile.
                let _ = self.cm.established(id);
            }
            QpEvent::SendFailed(status) | QpEvent::ReceiveFailed(status) => {
                self.broken(now, id, format!("the connection failed: {status:?}"));
            }
            // Nothing here is ever drained.
            QpEvent::SendQueueDrained => {}
        }
        self.pump(now);
    }

    /// The queue pair is in Error.
    pub(super) fn broken(&mut self, now: Instant, id: ConnectionId, why: String) {
        // Whether it worked before says how long to wait for another.
        self.notice_use_of(now, id);
        let phase = self.connections.get(&id).map(|c| c.phase);
        if let Some(key) = self.close(now, id) {
            self.counters.failed += 1;
            // What is too long for a datagram waits for another one: refused, the kernel would keep to the smaller MTU for minutes.
            if phase == Some(Phase::Open) && self.is_state_of(key, id) && self.is_first_failure(key)
            {
                self.enter(key, State::Idle);
            } else {
                self.hold_if_used(now, key, id, why);
            }
        }
    }

    /// A request of a peer.
    fn requested(&mut self, now: Instant, id: ConnectionId, req: &Req, from: &CmAddress) {
        // None: nothing is listened for.
        let Some(local) = self.local else { return };
        let (qpn, mtu) = messages::read_private_data(&req.private_data);
        let peer: PeerKey = (req.primary.local_gid, qpn);
        let rfc = messages::service_id(Dialect::Rfc, local.address.qpn);
        let dialect = match req.service_id == rfc {
            true => Dialect::Rfc,
            false => Dialect::Linux,
        };
        if let Err(reason) = self.acceptable(&local, req, peer, dialect) {
            return self.refuse(id, reason);
        }
        self.close_oldest_of(now, &local, peer, from.dlid);
        if !self.make_room(now) {
            return self.refuse(id, RejectReason::NO_QP);
        }
        let Ok((serial, qp)) = self.queue_pair(&local, peer, from.dlid) else {
            return self.refuse(id, RejectReason::NO_QP);
        };
        let psn = Psn::new(self.rng.u32(..));
        let rtr = messages::rtr_of_req(&local, req, psn);
        if let Err(error) = qp.modify(QpModify::Rtr(rtr)) {
            tracing::debug!(peer = %peer.0, %error, "a request for a connection that cannot be");
            return self.refuse(id, RejectReason::UNSUPPORTED);
        }
        let rep = messages::rep(&local, &self.config, qp.qpn(), psn);
        if self.cm.accept(now, id, rep).is_err() {
            return;
        }
        let made = (serial, qp);
        let connection = Connection {
            is_own: false,
            is_duplex: dialect == Dialect::Rfc
                && mtu.is_some()
                && local.is_same_port(from.dlid, req.primary.local_lid),
            mtu: mtu.unwrap_or_default().min(MAX_MTU as usize),
            ..Connection::new(now, peer, from.dlid, made, req.starting_psn, dialect)
        };
        self.keep(now, id, connection);
    }

    /// Does this side take such a connection?
    fn acceptable(
        &self,
        local: &Local,
        req: &Req,
        peer: PeerKey,
        dialect: Dialect,
    ) -> Result<(), RejectReason> {
        if req.transport_service_type != 0 {
            return Err(RejectReason::INVALID_TRANSPORT_TYPE);
        }
        if req.p_key.base() != local.p_key.base() {
            return Err(RejectReason::CONSUMER_DEFINED);
        }
        if req.primary.remote_gid.guid() != local.address.gid.guid() {
            return Err(RejectReason::INVALID_GID);
        }
        if !req.primary.local_lid.is_unicast() {
            return Err(RejectReason::INVALID_LID);
        }
        if req.path_packet_payload_mtu.bytes().is_none()
            || req.path_packet_payload_mtu > local.max_mtu
        {
            return Err(RejectReason::INVALID_MTU);
        }
        // RFC 4755 section 3.3: of two requests that cross, the side of the smaller link address accepts the other's. An own one by Linux's
        // service ID is none of those: a peer that follows the RFC may not know that.
        let crossing = dialect == Dialect::Rfc
            && self.peers.get(&peer).is_some_and(|p| {
                let own = |c: &Connection| c.is_own && c.dialect == Dialect::Rfc;
                let own = |id| self.connections.get(&id).is_some_and(own);
                matches!(p.state, State::Connecting(id) if own(id))
            });
        let address = |key: PeerKey| (key.1, key.0);
        let own = (local.address.gid, local.address.qpn);
        if crossing && address(own) > address(peer) {
            return Err(RejectReason::CONSUMER_DEFINED);
        }
        Ok(())
    }

    fn refuse(&mut self, id: ConnectionId, reason: RejectReason) {
        self.counters.refused += 1;
        // An error: whoever asked gave up meanwhile.
        let _ = self.cm.reject(id, reason);
    }

    /// A peer accepts.
    fn replied(&mut self, now: Instant, id: ConnectionId, rep: &Rep) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let key = connection.peer;
        let (Some(local), Some(peer)) = (self.local, self.peers.get(&key)) else {
            self.close(now, id);
            return;
        };
        let (_, mtu) = messages::read_private_data(&rep.private_data);
        let Some(mtu) = mtu else {
            self.refuse(id, RejectReason::CONSUMER_DEFINED);
            return self.hold(now, key, "the peer takes no packets".into());
        };
        let rtr = messages::rtr_of_rep(&local, &peer.path, key, rep, connection.psn);
        let rts = messages::rts(&self.config, rep.starting_psn);
        let qp = &connection.qp;
        let ready = qp.modify(QpModify::Rtr(rtr));
        if let Err(error) = ready.and_then(|()| qp.modify(QpModify::Rts(rts))) {
            self.refuse(id, RejectReason::UNSUPPORTED);
            return self.hold(now, key, error.to_string());
        }
        let data = messages::private_data(local.address.qpn, &self.config);
        if self.cm.confirm(id, data).is_err() {
            return;
        }
        self.counters.opened += 1;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = Phase::Open;
            connection.mtu = mtu.min(MAX_MTU as usize);
            (connection.used, connection.since) = (now, now);
        }
        self.enter(key, State::Up(id));
    }

    /// A peer that was accepted is ready.
    fn established(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let rts = messages::rts(&self.config, connection.psn);
        if let Err(error) = connection.qp.modify(QpModify::Rts(rts)) {
            // It failed at the same time.
            return self.broken(now, id, error.to_string());
        }
        self.counters.accepted += 1;
        connection.phase = Phase::Open;
        (connection.used, connection.since) = (now, now);
        let key = connection.peer;
        // There is a way to it now, whatever kept own requests from being answered.
        if self
            .peers
            .get(&key)
            .is_some_and(|p| p.held_until().is_some())
        {
            self.enter(key, State::Idle);
        }
        self.adopt(key);
    }

    /// Sends by a connection that the peer asked for, if it is one for both directions and there is no own one; false if there is none such.
    pub(super) fn adopt(&mut self, key: PeerKey) -> bool {
        if self.mode == super::Mode::Datagram {
            return false;
        }
        let Some(id) = self.duplex_with(key, |c| c.phase == Phase::Open) else {
            return false;
        };
        match self.peers.get(&key).map(|peer| &peer.state) {
            Some(State::Connecting(other) | State::Up(other)) if *other != id => return false,
            None => return false,
            _ => {}
        }
        self.enter(key, State::Up(id));
        true
    }

    fn rejected(&mut self, now: Instant, id: ConnectionId, rej: &Rej) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let (key, is_own, dialect) = (connection.peer, connection.is_own, connection.dialect);
        self.counters.rejected += 1;
        self.mark_closing(id);
        if !self.is_state_of(key, id) {
            return;
        }
        if !is_own {
            return self.enter(key, State::Idle);
        }
        match rej.reason {
            RejectReason::INVALID_SERVICE_ID if dialect == Dialect::Linux => {
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.dialect = Dialect::Rfc;
                }
                if !self.await_duplex(key) {
                    self.ask(now, key, Dialect::Rfc);
                }
            }
            // Its own request crossed this one and stands: packets go by that connection as soon as it is open.
            RejectReason::CONSUMER_DEFINED if self.await_duplex(key) => {}
            // It had a connection of this queue pair's number, and has dropped it.
            RejectReason::STALE_CONN if self.is_first_failure(key) => self.ask(now, key, dialect),
            reason => {
                if reason == RejectReason::INVALID_SERVICE_ID
                    && let Some(peer) = self.peers.get_mut(&key)
                {
                    peer.dialect = Dialect::Linux;
                }
                self.hold(now, key, format!("refused: {reason}"));
            }
        }
    }

    /// True for the first failure of a row, which it counts.
    fn is_first_failure(&mut self, key: PeerKey) -> bool {
        let first = self.peers.get_mut(&key).filter(|peer| peer.failures == 0);
        first.map(|peer| peer.failures = 1).is_some()
    }

    /// Uses the peer's connection for both directions, now or when it is open; false if there is none.
    pub(super) fn await_duplex(&mut self, key: PeerKey) -> bool {
        let Some(id) = self.duplex_with(key, |c| !c.is_ending()) else {
            return false;
        };
        self.enter(key, State::Connecting(id));
        self.adopt(key);
        true
    }

    /// A connection that the peer asked for, for both directions.
    fn duplex_with(&self, key: PeerKey, is: impl Fn(&Connection) -> bool) -> Option<ConnectionId> {
        let (local, peer) = (self.local?, self.peers.get(&key)?);
        let suits = |c: &Connection| c.is_from(&local, key, peer) && c.is_duplex && is(c);
        let mut all = self.connections.iter();
        all.find(|(_, c)| suits(c)).map(|(id, _)| *id)
    }

    /// Is `id` the connection that the peer's packets go by, or are to?
    pub(super) fn is_state_of(&self, key: PeerKey, id: ConnectionId) -> bool {
        let peer = self.peers.get(&key);
        peer.and_then(super::Peer::connection) == Some(id)
    }

    /// The connection could not be opened.
    fn failed(&mut self, now: Instant, id: ConnectionId, why: String) {
        if let Some(key) = self.mark_closing(id) {
            self.hold_if_used(now, key, id, why);
        }
    }

    fn hold_if_used(&mut self, now: Instant, key: PeerKey, id: ConnectionId, why: String) {
        if self.is_state_of(key, id) {
            self.hold(now, key, why);
        }
    }

    /// The peer ended it.
    fn disconnected(&mut self, now: Instant, id: ConnectionId) {
        let Some(c) = self.connections.get(&id).filter(|c| !c.is_ending()) else {
            return;
        };
        let soon = now.saturating_duration_since(c.since) < self.config.hold_down_min;
        let (key, is_own) = (c.peer, c.is_own);
        let is_used = self.is_state_of(key, id);
        // What is on its way may arrive still, until the CM releases the connection.
        self.finish(now, id);
        // Whoever takes connections and ends them at once is not asked for one by each packet.
        if is_used && is_own && soon && !self.is_first_failure(key) {
            self.hold(now, key, "the peer ended it at once".into());
        }
    }

    /// It is over.
    fn ended(&mut self, id: ConnectionId) {
        if let Some(key) = self.mark_closing(id)
            && self.is_state_of(key, id)
        {
            self.enter(key, State::Idle);
        }
    }
}
