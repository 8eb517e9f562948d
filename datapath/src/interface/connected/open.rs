//! Asking for connections, and ending them.

use super::config::Dialect;
use super::handler::Handler;
use super::lane::PeerKey;
use super::peer::State;
use super::{Connection, Connections, Local, Mode, Phase, messages};
use arp::Source;
use mad::ConnectionId;
use std::sync::Arc;
use std::time::Instant;
use verbs::{ConnectedInit, ConnectedQueuePair, InitAttributes, QpModify, VerbsError};
use wire::ipoib::ENCAP_LEN;
use wire::{Lid, Psn};

impl Connections {
    /// Sees to it that the peer gets a connection, unless one is not to be tried now.
    pub(super) fn want(&mut self, now: Instant, key: PeerKey) {
        let Some(peer) = self.peers.get(&key) else {
            return;
        };
        if !matches!(peer.state, State::Idle) || self.mode == Mode::Datagram || self.local.is_none()
        {
            return;
        }
        let dialect = match self.config.rfc_only {
            false => peer.dialect,
            true => Dialect::Rfc,
        };
        if !self.adopt(key) {
            self.ask(now, key, dialect);
        }
    }

    /// Sends a request.
    pub(super) fn ask(&mut self, now: Instant, key: PeerKey, dialect: Dialect) {
        let (Some(local), Some(peer)) = (self.local, self.peers.get(&key)) else {
            return;
        };
        let path = peer.path;
        if !self.make_room(now) {
            return self.hold(now, key, "all connections are in use".into());
        }
        let (serial, qp) = match self.queue_pair(&local, key, path.dlid) {
            Ok(made) => made,
            Err(error) => return self.hold(now, key, error.to_string()),
        };
        let psn = Psn::new(self.rng.u32(..));
        let req = messages::req(&local, &self.config, &path, key, dialect, qp.qpn(), psn);
        let to = messages::cm_address(&local, &path, key);
        match self.cm.connect(now, to, req) {
            Ok(id) => {
                let connection = Connection::new(now, key, path.dlid, (serial, qp), psn, dialect);
                self.keep(now, id, connection);
                self.enter(key, State::Connecting(id));
            }
            Err(error) => self.hold(now, key, error.to_string()),
        }
    }

    /// Remembers a connection until the CM releases it.
    pub(super) fn keep(&mut self, now: Instant, id: ConnectionId, connection: Connection) {
        self.connections.insert(id, connection);
        self.look_at.get_or_insert(now + self.look_every());
    }

    /// A queue pair in Init, for packets from `peer` at `lid`.
    pub(super) fn queue_pair(
        &mut self,
        local: &Local,
        peer: PeerKey,
        lid: Lid,
    ) -> Result<(u64, Arc<dyn ConnectedQueuePair>), VerbsError> {
        self.next_serial += 1;
        let serial = self.next_serial;
        let handler = Handler {
            serial,
            source: Source {
                lid,
                qpn: peer.1,
                gid: Some(peer.0),
                multicast: false,
            },
            plane: self.plane.clone(),
            events: self.events.clone(),
        };
        let init = ConnectedInit {
            // Of small packets too, about what TCP may have on its way.
            max_sends: 2048,
            max_message: self.config.receive_mtu + ENCAP_LEN as u32,
            ..ConnectedInit::default()
        };
        let qp = self.port.create_connected_qp(init, Arc::new(handler))?;
        qp.modify(QpModify::Init(InitAttributes {
            pkey_index: local.pkey_index,
            ..InitAttributes::default()
        }))?;
        Ok((serial, qp))
    }

    /// Ends a connection that may be in any state. Whose it was, unless it was ending already; that peer's state is the caller's.
    pub(super) fn close(&mut self, now: Instant, id: ConnectionId) -> Option<PeerKey> {
        let peer = self.mark_closing(id)?;
        // It may have ended already; then it is released soon.
        let _ = self.cm.disconnect(now, id);
        Some(peer)
    }

    /// Nothing goes by the connection any more. Whose it was, unless it was so already.
    pub(super) fn mark_closing(&mut self, id: ConnectionId) -> Option<PeerKey> {
        let connection = self.connections.get_mut(&id)?;
        if std::mem::replace(&mut connection.phase, Phase::Closing) == Phase::Closing {
            return None;
        }
        // From any state but Reset, in which it never is here.
        let _ = connection.qp.modify(QpModify::Error);
        Some(connection.peer)
    }
}
