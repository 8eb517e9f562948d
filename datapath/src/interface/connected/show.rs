//! What an operator sees of connections: `ipoib show connections`, and their part of `ipoib show neigh`.

use super::config::Dialect;
use super::lane::PeerKey;
use super::peer::{Peer, State};
use super::{Connection, Connections, Local, Mode, Phase};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

/// One line of `ipoib show connections`: a connection from its request until nothing of it is left.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionStatus {
    /// Neighbours there, by what ARP and ND say; none: nothing was asked or heard of it, or it is elsewhere than they say.
    pub ips: Vec<IpAddr>,
    /// Which way packets go by it: `out`, `in`, or `both` for one that was asked for by the service ID of RFC 4755.
    pub direction: &'static str,
    /// Who asked for it: `this` side or the `peer`.
    pub opened_by: &'static str,
    /// `opening`, `open`; `leaving`: open for what is on its way still; `draining`: nothing new goes by it; `closing`.
    pub state: &'static str,
    /// Longest IP packet, bytes: what the peer takes from it, or for `in` what this side takes; none while that is not known.
    pub mtu: Option<usize>,
    /// Own reliable-connected queue pair.
    pub qpn: u32,
    /// That of the peer, once known.
    pub peer_qpn: Option<u32>,
    /// The peer's UD queue pair, which with its GID is its link address.
    pub peer_ud_qpn: u32,
    /// GID of the peer, as it says.
    pub gid: String,
    /// LID of the peer.
    pub lid: u16,
    /// Milliseconds since it carried something, to within those between two looks at all connections (10 s at most).
    pub idle_ms: u64,
    /// Messages (IP packets) that the peer acknowledged.
    pub tx_messages: u64,
    /// Messages sent or to be sent, and not acknowledged yet.
    pub tx_pending: usize,
    /// Packets sent again.
    pub tx_repeated: u64,
    /// Messages received.
    pub rx_messages: u64,
}

/// The connections of one neighbour.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::interface) struct Outline {
    /// Where the one that this side sends by stands, or why there is none; none where none is wanted.
    pub(in crate::interface) out: Option<String>,
    /// Which way packets go by connections that are open: `out`, `in`, `both`.
    pub(in crate::interface) direction: Option<&'static str>,
    /// Packets that wait for one.
    pub(in crate::interface) queued: usize,
    /// What the next packet meets if it is to go by a connection that is not there yet: the largest that the last one carried, if there was
    /// one.
    pub(in crate::interface) mtu_to_be: Option<Option<usize>>,
}

impl Connection {
    /// Do both sides send by it?
    fn is_both(&self) -> bool {
        self.is_duplex || self.is_own && self.dialect == Dialect::Rfc
    }

    /// Did this peer ask for it, where ARP and the SA say that it is, and not whoever asks in its name?
    pub(super) fn is_from(&self, local: &Local, key: PeerKey, peer: &Peer) -> bool {
        !self.is_own && self.peer == key && local.is_same_port(self.lid, peer.path.dlid)
    }
}

impl Connections {
    /// The neighbour at `ip`.
    pub(in crate::interface) fn outline(&self, now: Instant, ip: IpAddr) -> Outline {
        let peer = |key: &PeerKey| self.peers.get(key).map(|peer| (*key, peer));
        let Some((key, peer)) = self.addresses.get(&ip).and_then(peer) else {
            return Outline::default();
        };
        let out = match &peer.state {
            State::Idle if self.mode == Mode::Datagram => None,
            State::Idle => Some(match &peer.last_failure {
                Some((at, why)) => {
                    let ago = now.saturating_duration_since(*at).as_secs();
                    format!("idle; the last failed {ago} s ago: {why}; the next packet tries again")
                }
                None => "idle".into(),
            }),
            State::Connecting(_) => Some("connecting".into()),
            State::Up(_) => Some("connected".into()),
            State::Held { until, why } => {
                let left = until.saturating_duration_since(now).as_secs_f64().ceil();
                Some(format!("none: {why}; next attempt in {left} s"))
            }
        };
        let may_be = match &peer.state {
            State::Idle => self.mode == Mode::Connected && self.local.is_some(),
            state => matches!(state, State::Connecting(_)),
        };
        let by = match peer.state {
            State::Up(id) => self.connections.get(&id),
            _ => None,
        };
        let is_in = by.is_some_and(Connection::is_both)
            || self.local.is_some_and(|local| {
                let mut all = self.connections.values();
                all.any(|c| c.is_open() && c.is_from(&local, key, peer))
            });
        let direction = match (by.is_some(), is_in) {
            (true, true) => Some("both"),
            (true, false) => Some("out"),
            (false, true) => Some("in"),
            (false, false) => None,
        };
        Outline {
            out,
            direction,
            queued: peer.queue.len(),
            mtu_to_be: may_be.then_some(peer.mtu),
        }
    }

    /// `ipoib show connections`, by peer.
    pub(in crate::interface) fn list(&mut self, now: Instant) -> Vec<ConnectionStatus> {
        self.notice_use(now);
        let mut ips: BTreeMap<PeerKey, Vec<IpAddr>> = BTreeMap::new();
        for (ip, key) in &self.addresses {
            ips.entry(*key).or_default().push(*ip);
        }
        let mut all: Vec<&Connection> = self.connections.values().collect();
        all.sort_by_key(|c| (c.peer, !c.is_own, c.serial));
        all.into_iter()
            .map(|c| {
                let there = self.peers.get(&c.peer);
                let at = self.local.zip(there);
                let is_from = |(local, peer): (Local, &Peer)| c.is_from(&local, c.peer, peer);
                let is_there = c.is_own || at.is_some_and(is_from);
                let ips = ips.get(&c.peer).filter(|_| is_there);
                self.status(now, c, ips.cloned().unwrap_or_default())
            })
            .collect()
    }

    fn status(&self, now: Instant, c: &Connection, ips: Vec<IpAddr>) -> ConnectionStatus {
        let qp = c.qp.query();
        let is_both = c.is_both();
        let (opened_by, one_way) = match c.is_own {
            true => ("this", "out"),
            false => ("peer", "in"),
        };
        let mtu = match c.is_own || is_both {
            true => c.mtu,
            false => self.config.receive_mtu as usize,
        };
        ConnectionStatus {
            ips,
            direction: if is_both { "both" } else { one_way },
            opened_by,
            state: match c.phase {
                Phase::Opening => "opening",
                Phase::Open => "open",
                Phase::Leaving(_) => "leaving",
                Phase::Draining(_) => "draining",
                Phase::Closing => "closing",
            },
            mtu: Some(mtu).filter(|mtu| *mtu > 0),
            qpn: c.qp.qpn().0,
            peer_qpn: qp.rtr.map(|rtr| rtr.dest_qpn.0),
            peer_ud_qpn: c.peer.1.0,
            gid: c.peer.0.to_string(),
            lid: c.lid.0,
            idle_ms: now.saturating_duration_since(c.used).as_millis() as u64,
            tx_messages: qp.counters.tx_messages,
            tx_pending: qp.sends,
            tx_repeated: qp.counters.tx_repeated,
            rx_messages: qp.counters.rx_messages,
        }
    }

    /// Connections open now: own ones, those of peers; and those that are being opened or closed.
    pub(in crate::interface) fn count(&self) -> [u64; 3] {
        self.connections.values().fold([0; 3], |mut n, c| {
            let kind = match (c.is_open(), c.is_own) {
                (true, true) => 0,
                (true, false) => 1,
                _ => 2,
            };
            n[kind] += 1;
            n
        })
    }
}
