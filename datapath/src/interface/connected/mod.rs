//! Connected mode (RFC 4755): which peers have connections, and what waits for them.
//!
//! As Linux does, each side sends by the connection that it asked for, and takes whatever comes by those that others asked for. A
//! connection that was asked for by the RFC's service ID carries both directions: for such peers the RFC's rule for crossing requests holds
//! too (section 3.3).
//!
//! [`Connections`] is part of the interface's control: it is fed the neighbours' entries, CM messages, events of queue pairs, and time. Each
//! peer has a [`Lane`] that tells the data path how its packets go.

pub(crate) mod lane;

mod age;
mod config;
mod drain;
mod events;
mod handler;
mod messages;
mod open;
mod peer;
mod show;

use config::Dialect;
pub(crate) use config::MAX_MTU;
pub use config::{ConnectedConfig, Mode, ParseModeError};
pub use show::ConnectionStatus;

use crate::plane::Plane;
use arp::Resolved;
use fastrand::Rng;
use handler::Events;
use lane::{Lane, PeerKey, Way};
use mad::{Cm, CmConfig, CmOutput, ConnectionId};
use peer::{Peer, State};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use verbs::{ConnectedQueuePair, MadReceived, MadSend, Port};
use wire::ipoib::LinkAddress;
use wire::{Guid, Lid, MtuCode, PKey, Psn};

/// Who this side is while the interface is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Local {
    /// With the UD queue pair.
    pub(super) address: LinkAddress,
    /// Without path bits.
    pub(super) lid: Lid,
    pub(super) lmc: u8,
    pub(super) p_key: PKey,
    pub(super) pkey_index: u16,
    /// Largest packet of the port.
    pub(super) max_mtu: MtuCode,
}

impl Local {
    /// Do both LIDs lead to one port? A manager gives the ports of a subnet the same LMC.
    fn is_same_port(&self, a: Lid, b: Lid) -> bool {
        a.0 >> self.lmc == b.0 >> self.lmc
    }
}

/// To be carried out in order.
pub(super) enum Output {
    /// A CM message.
    Send(MadSend),
    /// There is a connection to the neighbours at these addresses now.
    Opened(Vec<IpAddr>),
    /// Packets that waited: to be sent anew, each as its peer's lane says now.
    Again(Vec<Vec<u8>>),
}

/// What became of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Own requests that led to a connection.
    pub(super) opened: u64,
    /// Requests of peers that led to one.
    pub(super) accepted: u64,
    /// Requests of peers refused.
    pub(super) refused: u64,
    /// Own requests that peers refused.
    pub(super) rejected: u64,
    /// Own requests that were not answered, and answers that were not confirmed.
    pub(super) timed_out: u64,
    /// Connections that their peers ended.
    pub(super) disconnected: u64,
    /// Connections whose queue pair failed.
    pub(super) failed: u64,
    /// Connections closed as nothing used them.
    pub(super) closed_idle: u64,
    /// Connections closed to make room: the longest unused.
    pub(super) closed_for_room: u64,
    /// Connections that could not be had as all others were in use.
    pub(super) no_room: u64,
    /// Packets dropped as too many waited for a connection.
    pub(super) dropped_queue_full: u64,
    /// Packets dropped as the interface went down while they waited.
    pub(super) dropped_link_down: u64,
}

/// One connection, from its request until the CM releases it.
struct Connection {
    peer: PeerKey,
    /// Where the peer's messages come from, whoever it says it is.
    lid: Lid,
    /// This side asked for it.
    is_own: bool,
    /// One of a peer's that this side may send by, too.
    is_duplex: bool,
    /// Longest IP packet that the peer takes from it, bytes; 0: not known yet.
    mtu: usize,
    serial: u64,
    qp: Arc<dyn ConnectedQueuePair>,
    /// Of the REQ: where that side begins to send that was asked.
    psn: Psn,
    dialect: Dialect,
    phase: Phase,
    /// Messages both ways when last looked at, and when that changed.
    messages: u64,
    used: Instant,
    /// When it was asked for, then when it was opened.
    since: Instant,
    /// How many messages had been acknowledged, and since when others wait for that.
    waiting: Option<(u64, Instant)>,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Open,
    /// Open, and used until then at least for what is on its way to it still.
    Leaving(Instant),
    /// Nothing new goes by it. It ends when all that it took is acknowledged, at the latest then.
    Draining(Instant),
    /// It ended, or was refused, or is being ended: nothing goes by it any more, whatever the CM still has to do.
    Closing,
}

impl Connection {
    /// An own one, just asked for; `made`: its number and queue pair.
    fn new(
        now: Instant,
        peer: PeerKey,
        lid: Lid,
        made: (u64, Arc<dyn ConnectedQueuePair>),
        psn: Psn,
        dialect: Dialect,
    ) -> Connection {
        let (serial, qp) = made;
        Connection {
            peer,
            lid,
            is_own: true,
            is_duplex: false,
            mtu: 0,
            serial,
            qp,
            psn,
            dialect,
            phase: Phase::Opening,
            messages: 0,
            used: now,
            since: now,
            waiting: None,
        }
    }

    /// Do packets go by it?
    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Leaving(_))
    }

    /// Does nothing new go by it?
    fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Draining(_) | Phase::Closing)
    }
}

/// See the module.
pub(super) struct Connections {
    config: ConnectedConfig,
    mode: Mode,
    port: Arc<dyn Port>,
    plane: Arc<Plane>,
    cm: Cm,
    local: Option<Local>,
    peers: BTreeMap<PeerKey, Peer>,
    /// Whose address is which peer's.
    addresses: BTreeMap<IpAddr, PeerKey>,
    connections: BTreeMap<ConnectionId, Connection>,
    queued_bytes: usize,
    next_serial: u64,
    rng: Rng,
    look_at: Option<Instant>,
    /// When those that are left are looked at next.
    drain_at: Option<Instant>,
    events: Arc<Events>,
    outputs: VecDeque<Output>,
    counters: Counters,
}

impl Connections {
    pub(super) fn new(
        config: ConnectedConfig,
        mode: Mode,
        port: Arc<dyn Port>,
        plane: Arc<Plane>,
        node_guid: Guid,
        tid_high: u32,
        seed: u64,
    ) -> Self {
        let mode = match config.offer {
            true => mode,
            false => Mode::Datagram,
        };
        let cm = CmConfig {
            // Those that rest after their end count there too.
            max_connections: 2 * config.max_connections,
            max_from_lid: (config.max_connections / 4).max(config.max_from_peer),
            ..CmConfig::new(node_guid, tid_high)
        };
        Connections {
            config,
            mode,
            port,
            plane,
            cm: Cm::new(cm, seed),
            local: None,
            peers: BTreeMap::new(),
            addresses: BTreeMap::new(),
            connections: BTreeMap::new(),
            queued_bytes: 0,
            next_serial: 0,
            rng: Rng::with_seed(!seed),
            look_at: None,
            drain_at: None,
            events: Arc::default(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Largest IP packet of the device, bytes, where the group's allows `group`.
    pub(super) fn device_mtu(&self, group: u32) -> u32 {
        match self.mode {
            Mode::Datagram => group,
            Mode::Connected => group.max(self.config.receive_mtu),
        }
    }

    /// Flags of the own link address: what the interface accepts, whichever mode it is in, as Linux has it.
    pub(super) fn flags(&self) -> u8 {
        match self.config.offer {
            true => LinkAddress::FLAG_RC,
            false => 0,
        }
    }

    pub(super) fn set_mode(&mut self, now: Instant, mode: Mode) {
        if std::mem::replace(&mut self.mode, mode) == mode {
            return;
        }
        let keys: Vec<PeerKey> = self.peers.keys().copied().collect();
        for key in keys {
            match self.peers.get(&key).map(|peer| &peer.state) {
                Some(State::Up(id)) => self.change(now, *id),
                _ => self.leave(now, key),
            }
        }
        self.pump(now);
    }

    /// The interface is up, or somebody else than before.
    pub(super) fn link_up(&mut self, now: Instant, local: Local) {
        if self.local == Some(local) {
            return;
        }
        self.link_down(now);
        self.local = Some(local);
        let qpn = local.address.qpn;
        self.cm.set_lmc(local.lmc);
        self.cm
            .set_reject_data(messages::private_data(qpn, &self.config));
        if self.config.offer {
            self.cm.listen(messages::service_id(Dialect::Rfc, qpn));
            if !self.config.rfc_only {
                self.cm.listen(messages::service_id(Dialect::Linux, qpn));
            }
        }
        let keys: Vec<PeerKey> = self.peers.keys().copied().collect();
        for key in keys {
            self.enter(key, State::Idle);
        }
    }

    /// Nothing can be sent, or not by what there is now: all connections end. Peers stay known.
    pub(super) fn link_down(&mut self, now: Instant) {
        let Some(local) = self.local.take() else {
            return;
        };
        for dialect in [Dialect::Linux, Dialect::Rfc] {
            self.cm
                .unlisten(messages::service_id(dialect, local.address.qpn));
        }
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in all {
            self.close(now, id);
        }
        let keys: Vec<PeerKey> = self.peers.keys().copied().collect();
        for key in keys {
            let dropped = self.take_queue(key).len() as u64;
            self.counters.dropped_link_down += dropped;
            self.enter(key, State::Idle);
        }
        self.pump(now);
    }

    /// The neighbour `ip` is where `entry` says. `None`: it takes no connections.
    pub(super) fn attach(
        &mut self,
        now: Instant,
        ip: IpAddr,
        entry: &Resolved,
    ) -> Option<Arc<Lane>> {
        let key = (entry.address.gid, entry.address.qpn);
        let wanted = self.config.offer && entry.address.accepts_rc();
        if self.addresses.get(&ip).is_some_and(|old| *old != key) || !wanted {
            self.detach(now, ip);
        }
        if !wanted {
            return None;
        }
        let is_new = self.addresses.insert(ip, key).is_none();
        let mode = self.mode;
        let peer = self
            .peers
            .entry(key)
            .or_insert_with(|| Peer::new(key, entry.path, mode));
        peer.users += usize::from(is_new);
        if is_new && matches!(peer.state, State::Up(_)) {
            self.outputs.push_back(Output::Opened(vec![ip]));
        }
        if peer.path != entry.path {
            peer.path = entry.path;
            peer.failures = 0;
            // A queue pair would go on sending along the old one; and where none could be had, one may be now.
            self.leave(now, key);
        }
        self.pump(now);
        self.peers.get(&key).map(|peer| peer.lane.clone())
    }

    /// Nobody knows any more where `ip` is.
    pub(super) fn detach(&mut self, now: Instant, ip: IpAddr) {
        let Some(key) = self.addresses.remove(&ip) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.users -= 1;
        if peer.users == 0 {
            self.leave(now, key);
            let packets = self.take_queue(key);
            if let Some(peer) = self.peers.remove(&key) {
                peer.lane.set(Way::Datagram, false);
            }
            self.again(packets);
        }
        self.pump(now);
    }

    /// A packet for this peer, if that is known: the first of a while.
    pub(super) fn used(&mut self, now: Instant, key: PeerKey) {
        self.want(now, key);
        self.pump(now);
    }

    /// A packet (from the encapsulation header on) too long for a datagram, while the peer's lane says [`Way::Waiting`].
    pub(super) fn send(&mut self, now: Instant, key: PeerKey, packet: Vec<u8>) {
        let (max_packets, max_bytes) = (self.config.queue_packets, self.config.total_queue_bytes);
        // None: it was forgotten meanwhile.
        let Some(peer) = self.peers.get_mut(&key) else {
            return crate::counters::Counters::bump(&self.plane.counters().tx_drop_unreachable);
        };
        if peer.queue.len() >= max_packets
            && let Some(oldest) = peer.queue.pop_front()
        {
            self.queued_bytes -= oldest.len();
            self.counters.dropped_queue_full += 1;
        }
        if self.queued_bytes + packet.len() > max_bytes {
            self.counters.dropped_queue_full += 1;
        } else {
            self.queued_bytes += packet.len();
            peer.queue.push_back(packet);
        }
        self.want(now, key);
        self.pump(now);
    }

    /// A CM message.
    pub(super) fn handle_mad(&mut self, now: Instant, mad: &MadReceived) {
        self.cm.handle(now, mad);
        self.pump(now);
    }

    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let held = self.peers.values().filter_map(Peer::held_until);
        let looks = self.look_at.into_iter().chain(self.drain_at);
        held.chain(self.cm.poll_timeout()).chain(looks).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.cm.handle_timeout(now);
        let due = |peer: &Peer| peer.held_until().is_some_and(|until| until <= now);
        let over = self.peers.iter().filter(|(_, peer)| due(peer));
        let over: Vec<PeerKey> = over.map(|(key, _)| *key).collect();
        for key in over {
            self.enter(key, State::Idle);
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(now);
        }
        if self.drain_at.is_some_and(|at| at <= now) {
            self.drain(now);
        }
        self.pump(now);
    }

    /// The peer is in this state from now on, and its lane shows it.
    fn enter(&mut self, key: PeerKey, state: State) {
        let connected = self.mode == Mode::Connected;
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.state = state;
        match peer.state {
            State::Idle if connected && self.local.is_some() => peer.lane.set(Way::Waiting, true),
            State::Connecting(_) => peer.lane.set(Way::Waiting, false),
            State::Up(id) => {
                if let Some(connection) = self.connections.get(&id) {
                    let (qp, mtu) = (connection.qp.clone(), connection.mtu);
                    (peer.last_failure, peer.mtu) = (None, Some(mtu));
                    peer.lane.set(Way::Connected { qp, mtu }, false);
                    let there = self.addresses.iter().filter(|(_, at)| **at == key);
                    let there = there.map(|(ip, _)| *ip).collect();
                    self.outputs.push_back(Output::Opened(there));
                }
            }
            State::Idle | State::Held { .. } => peer.lane.set(Way::Datagram, false),
        }
        // What waited for a connection goes by it, or gets its answer if there will be none.
        if !matches!(peer.state, State::Connecting(_)) {
            let packets = self.take_queue(key);
            self.again(packets);
        }
    }

    /// No connection for a while, as one could not be had or failed.
    fn hold(&mut self, now: Instant, key: PeerKey, why: String) {
        if self.mode == Mode::Datagram {
            return self.enter(key, State::Idle);
        }
        // Unless the peer has opened one, or is about to.
        if self.await_duplex(key) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let doubled = self
            .config
            .hold_down_min
            .saturating_mul(1 << peer.failures.min(16));
        let wait = doubled.min(self.config.hold_down_max);
        peer.failures = peer.failures.saturating_add(1);
        peer.last_failure = Some((now, why.clone()));
        tracing::debug!(peer = %key.0, qpn = %key.1, %why, "no connection for now");
        let until = now + wait;
        self.enter(key, State::Held { until, why });
    }

    fn take_queue(&mut self, key: PeerKey) -> Vec<Vec<u8>> {
        let Some(peer) = self.peers.get_mut(&key) else {
            return Vec::new();
        };
        let packets: Vec<Vec<u8>> = std::mem::take(&mut peer.queue).into();
        self.queued_bytes -= packets.iter().map(Vec::len).sum::<usize>();
        packets
    }

    fn again(&mut self, packets: Vec<Vec<u8>>) {
        if !packets.is_empty() {
            self.outputs.push_back(Output::Again(packets));
        }
    }

    /// Carries out what the CM wants.
    fn pump(&mut self, now: Instant) {
        while let Some(output) = self.cm.poll_output() {
            match output {
                CmOutput::Send(mad) => self.outputs.push_back(Output::Send(mad)),
                CmOutput::Event(event) => self.cm_event(now, event),
            }
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn cm_counters(&self) -> mad::CmCounters {
        *self.cm.counters()
    }
}
