//! Clients, transactions and where a MAD goes: the server without its sockets.

use super::UmadCounters;
use super::protocol::{ClientInfo, Ctl, Request, TIMED_OUT};
use super::rmpp::{self, ToClient};
use crate::node::ManagementPort;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{MadAgent, MadReceived, MadSend};
use wire::mad::attr::NodeInfo;
use wire::mad::{AttrId, MAD_LEN, MadBytes, Method, MgmtClass, Smp};
use wire::{Lid, PKey, QKey, Qpn, ServiceLevel};

/// Clients at most.
const MAX_CLIENTS: usize = 4096;
/// Requests under way, of all clients and of one.
const MAX_PENDING: usize = 1 << 16;
const MAX_PENDING_OF_CLIENT: usize = 2048;
/// SMPs are sent again like this, as kernels do for OpenSM: unacknowledged datagrams get lost.
const SMP_TIMEOUT: Duration = Duration::from_millis(200);
const SMP_SENDS: u32 = 4;
/// For all else: the infiniband-diags wait a second and then send again themselves.
const GSI_TIMEOUT: Duration = Duration::from_secs(1);
/// Ports of sockets that cannot be had are passed over, so many at a time.
const OPEN_TRIES: usize = 16;

/// A client's control socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Peer {
    /// Abstract name, with the zero at its end.
    Unix(Vec<u8>),
    Udp(SocketAddr),
}

/// What the core wants of the sockets at once.
pub(super) trait Sockets {
    /// Makes the data socket of client number `id`, who calls itself `info_id`; false if that cannot be.
    fn open(&mut self, id: u32, peer: &Peer, info_id: u32) -> bool;
    fn close(&mut self, id: u32);
    /// Is somebody there?
    fn is_alive(&mut self, peer: &Peer) -> bool;
    fn send_control(&mut self, peer: &Peer, datagram: &[u8; Ctl::LEN]);
    fn send_data(&mut self, id: u32, datagram: &[u8; Request::LEN]);
}

/// Takes what comes for a node of this index; false if it has no room.
pub(super) type Sink = Arc<dyn Fn(usize, MadReceived) -> bool + Send + Sync>;

struct Node {
    name: String,
    port: Arc<dyn ManagementPort>,
    /// While clients are here.
    agent: Option<Box<dyn MadAgent>>,
    clients: BTreeSet<u32>,
}

struct Client {
    peer: Peer,
    node: usize,
    qp: u32,
    sm: Option<Box<dyn MadAgent>>,
    pending: usize,
    heard: Instant,
}

enum Asked {
    Mad(Request),
    Control(Ctl),
}

struct Pending {
    client: u32,
    node: usize,
    asked: Asked,
    sent: MadSend,
    sends_left: u32,
    deadline: Instant,
}

/// The server's state.
pub(super) struct Core {
    nodes: Vec<Node>,
    clients: BTreeMap<u32, Client>,
    by_peer: HashMap<Peer, u32>,
    pending: HashMap<u32, Pending>,
    deadlines: BTreeSet<(Instant, u32)>,
    next_tid: u32,
    /// Numbers whose socket could not be had.
    taken: BTreeSet<u32>,
    sink: Sink,
    counters: Arc<UmadCounters>,
}

impl Core {
    pub(super) fn new(
        nodes: Vec<(String, Arc<dyn ManagementPort>)>,
        sink: Sink,
        counters: Arc<UmadCounters>,
    ) -> Core {
        let node = |(name, port)| Node {
            name,
            port,
            agent: None,
            clients: BTreeSet::new(),
        };
        Core {
            nodes: nodes.into_iter().map(node).collect(),
            clients: BTreeMap::new(),
            by_peer: HashMap::new(),
            pending: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_tid: 0,
            taken: BTreeSet::new(),
            sink,
            counters,
        }
    }

    /// Number and control socket of each client.
    pub(super) fn clients(&self) -> impl Iterator<Item = (u32, &Peer)> {
        self.clients.iter().map(|(id, client)| (*id, &client.peer))
    }

    /// A datagram of a control socket.
    pub(super) fn control(
        &mut self,
        now: Instant,
        peer: Peer,
        bytes: &[u8],
        sockets: &mut dyn Sockets,
    ) {
        let Some(ctl) = Ctl::parse(bytes) else {
            return self.counters.rx_bad_control.add(1);
        };
        if ctl.kind == Ctl::CONNECT {
            let answer = self.connect(now, &peer, &ctl, sockets);
            return self.answer(&peer, &ctl, answer, sockets);
        }
        let id = ctl.client;
        let Some(client) = self.clients.get_mut(&id).filter(|c| c.peer == peer) else {
            self.counters.rx_unknown_client.add(1);
            return self.answer(&peer, &ctl, None, sockets);
        };
        client.heard = now;
        let attributes = self.nodes[client.node].port.attributes();
        let gid = attributes.gids.first().copied().unwrap_or_default();
        let mut data = [0; 64];
        match ctl.kind {
            Ctl::DISCONNECT => {
                self.answer(&peer, &ctl, Some(data), sockets);
                self.gone(id, sockets);
                return;
            }
            Ctl::GET_PORT => {
                data[..2].copy_from_slice(&attributes.lid.0.to_ne_bytes());
                data[2] = attributes.state.0;
            }
            Ctl::GET_GID => data[..16].copy_from_slice(&gid.0),
            Ctl::GET_GUID => data[..8].copy_from_slice(&gid.0[8..]),
            Ctl::GET_VENDOR | Ctl::GET_NODEINFO => {
                return self.query(now, id, ctl, AttrId::NODE_INFO, 0, sockets);
            }
            Ctl::GET_PORTINFO => {
                let port = ctl.data[0].into();
                return self.query(now, id, ctl, AttrId::PORT_INFO, port, sockets);
            }
            Ctl::GET_PKEYS => {
                return self.query(now, id, ctl, AttrId::P_KEY_TABLE, 0, sockets);
            }
            Ctl::SET_ISSM => {
                let on = ctl.data[..4] != [0; 4];
                let done = self.set_sm(id, on, sockets);
                return self.answer(&peer, &ctl, done.then_some(data), sockets);
            }
            _ => return self.answer(&peer, &ctl, None, sockets),
        }
        self.answer(&peer, &ctl, Some(data), sockets);
    }

    fn answer(&self, peer: &Peer, ctl: &Ctl, data: Option<[u8; 64]>, sockets: &mut dyn Sockets) {
        let answer = match data {
            Some(data) => Ctl { data, ..*ctl },
            None => {
                self.counters.control_refused.add(1);
                Ctl {
                    kind: Ctl::ERROR,
                    ..*ctl
                }
            }
        };
        sockets.send_control(peer, &answer.emit());
    }

    fn connect(
        &mut self,
        now: Instant,
        peer: &Peer,
        ctl: &Ctl,
        sockets: &mut dyn Sockets,
    ) -> Option<[u8; 64]> {
        let info = ClientInfo::parse(&ctl.data);
        let Some(node) = self.find_node(&info.node) else {
            tracing::warn!(
                node = info.node,
                "umad: a client asks for a node that is not there"
            );
            return None;
        };
        if let Some(&old) = self.by_peer.get(peer) {
            self.gone(old, sockets);
        }
        if self.clients.len() >= MAX_CLIENTS {
            // Of those that cannot be asked whether they live, the one that has been silent for longest.
            let udp = self
                .clients
                .iter()
                .filter(|(_, c)| matches!(c.peer, Peer::Udp(_)) && c.sm.is_none());
            let oldest = udp.min_by_key(|(_, c)| c.heard).map(|(id, _)| *id);
            match oldest {
                Some(id) => self.gone(id, sockets),
                None => {
                    self.counters.too_many_clients.add(1);
                    return None;
                }
            }
        }
        let id = self.free_id(peer, info.id, sockets)?;
        self.clients.insert(
            id,
            Client {
                peer: peer.clone(),
                node,
                qp: info.qp,
                sm: None,
                pending: 0,
                heard: now,
            },
        );
        self.by_peer.insert(peer.clone(), id);
        self.nodes[node].clients.insert(id);
        if !self.attach(node) || (info.is_sm && !self.set_sm(id, true, sockets)) {
            self.gone(id, sockets);
            return None;
        }
        self.counters.connected.add(1);
        let name = &self.nodes[node].name;
        tracing::debug!(client = id, node = name, ?peer, "umad: client");
        let info = ClientInfo {
            id,
            node: name.clone(),
            ..info
        };
        Some(info.emit())
    }

    /// The lowest number that no client has and whose socket can be made.
    fn free_id(&mut self, peer: &Peer, info_id: u32, sockets: &mut dyn Sockets) -> Option<u32> {
        for _ in 0..OPEN_TRIES {
            let id = (0..).find(|id| !self.clients.contains_key(id) && !self.taken.contains(id))?;
            if sockets.open(id, peer, info_id) {
                return Some(id);
            }
            if !sockets.is_alive(peer) {
                break;
            }
            self.taken.insert(id);
        }
        // Whoever had those sockets may be gone next time.
        self.taken.clear();
        self.counters.no_socket.add(1);
        None
    }

    /// By name as SIM_HOST gives it, or by GUID, with or without `0x`, `H-`, `S-`.
    fn find_node(&self, name: &str) -> Option<usize> {
        if name.is_empty() {
            return (!self.nodes.is_empty()).then_some(0);
        }
        // A client has room for 31 bytes of it.
        let cut = |full: &str| full.len() > 31 && name.len() == 31 && full.starts_with(name);
        let by_name = |n: &Node| n.name == name || cut(&n.name);
        if let Some(index) = self.nodes.iter().position(by_name) {
            return Some(index);
        }
        let digits = ["0x", "H-", "S-"]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(name);
        let guid = u64::from_str_radix(digits, 16).ok()?;
        self.nodes
            .iter()
            .position(|n| n.port.attributes().node_guid.0 == guid)
    }

    /// Registers at a node, if that is yet to be done.
    fn attach(&mut self, index: usize) -> bool {
        let (sink, node) = (self.sink.clone(), &mut self.nodes[index]);
        if node.agent.is_none() {
            let full = self.counters.clone();
            node.agent = node
                .port
                .register_umad(Arc::new(move |mad| {
                    if !sink(index, mad) {
                        full.queue_full.add(1);
                    }
                }))
                .ok();
        }
        node.agent.is_some()
    }

    fn set_sm(&mut self, id: u32, on: bool, sockets: &mut dyn Sockets) -> bool {
        let Some(node) = self.clients.get(&id).map(|c| c.node) else {
            return false;
        };
        // One that was killed must not keep its successor out.
        let others: Vec<u32> = self.nodes[node]
            .clients
            .iter()
            .copied()
            .filter(|other| {
                *other != id
                    && self
                        .clients
                        .get(other)
                        .is_some_and(|c| c.sm.is_some() && !sockets.is_alive(&c.peer))
            })
            .collect();
        if on {
            others
                .into_iter()
                .for_each(|other| self.gone(other, sockets));
        }
        let (sink, full) = (self.sink.clone(), self.counters.clone());
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        if !on || client.sm.is_some() {
            client.sm = client.sm.take().filter(|_| on);
            return true;
        }
        let sm = self.nodes[node].port.register_sm(Arc::new(move |mad| {
            if !sink(node, mad) {
                full.queue_full.add(1);
            }
        }));
        match sm {
            Ok(agent) => client.sm = Some(agent),
            Err(error) => {
                let node = &self.nodes[node].name;
                tracing::warn!(node, %error, "umad: a client cannot be subnet manager here");
            }
        }
        client.sm.is_some()
    }

    /// Answers a control request by asking the node's SMA.
    fn query(
        &mut self,
        now: Instant,
        id: u32,
        ctl: Ctl,
        attr: AttrId,
        modifier: u32,
        sockets: &mut dyn Sockets,
    ) {
        let smp = Smp::directed(Method::GET, attr, modifier, 0, &[]);
        let send = MadSend {
            dlid: Lid::PERMISSIVE,
            sl: ServiceLevel(0),
            remote_qpn: Qpn::SMI,
            q_key: QKey(0),
            p_key: PKey::DEFAULT_FULL,
            grh: None,
            mad: Box::new(smp.emit()),
        };
        self.transact(now, id, Asked::Control(ctl), send, sockets);
    }

    /// A datagram of a client's data socket.
    pub(super) fn data(&mut self, now: Instant, id: u32, bytes: &[u8], sockets: &mut dyn Sockets) {
        let Some(client) = self.clients.get_mut(&id) else {
            return self.counters.rx_unknown_client.add(1);
        };
        client.heard = now;
        let Some(request) = Request::parse(bytes) else {
            return self.counters.rx_bad_length.add(1);
        };
        let Some(length) = usize::try_from(request.length)
            .ok()
            .filter(|n| (wire::mad::MadHeader::LEN..=MAD_LEN).contains(n))
        else {
            return self.counters.rx_bad_length.add(1);
        };
        self.counters.rx_mads.add(1);
        let mut mad = request.mad.clone();
        // Beyond it are bytes of the client's stack.
        mad[length..].fill(0);
        let (class, method) = (MgmtClass(mad[1]), Method(mad[3]));
        if class.is_smp() == (request.dqp != 0) {
            return self.counters.rx_bad_address.add(1);
        }
        if rmpp::from_client(&mut mad, length) {
            self.counters.tables_cut.add(1);
        }
        let send = MadSend {
            dlid: request.dlid,
            sl: ServiceLevel(0),
            remote_qpn: Qpn::new(request.dqp),
            q_key: QKey::GSI,
            p_key: PKey::DEFAULT_FULL,
            grh: None,
            mad,
        };
        if is_request(method) {
            return self.transact(now, id, Asked::Mad(request), send, sockets);
        }
        if let Some(agent) = self.agent_of(id) {
            agent.send(send);
        }
    }

    fn agent_of(&self, id: u32) -> Option<&dyn MadAgent> {
        self.nodes[self.clients.get(&id)?.node].agent.as_deref()
    }

    /// Sends a request and keeps it until it is answered.
    fn transact(
        &mut self,
        now: Instant,
        id: u32,
        asked: Asked,
        mut send: MadSend,
        sockets: &mut dyn Sockets,
    ) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let node = client.node;
        if client.pending >= MAX_PENDING_OF_CLIENT || self.pending.len() >= MAX_PENDING {
            self.counters.too_many_requests.add(1);
            return self.unanswered(id, &asked, sockets);
        }
        let Some(agent) = &self.nodes[node].agent else {
            return self.unanswered(id, &asked, sockets);
        };
        client.pending += 1;
        let mut tid = self.next_tid.wrapping_add(1);
        while self.pending.contains_key(&tid) {
            tid = tid.wrapping_add(1);
        }
        self.next_tid = tid;
        send.mad[8..12].copy_from_slice(&agent.tid_high().to_be_bytes());
        send.mad[12..16].copy_from_slice(&tid.to_be_bytes());
        let (timeout, sends) = timing(&send.mad);
        let deadline = now + timeout;
        let pending = Pending {
            client: id,
            node,
            asked,
            sent: send.clone(),
            sends_left: sends - 1,
            deadline,
        };
        self.pending.insert(tid, pending);
        self.deadlines.insert((deadline, tid));
        agent.send(send);
    }

    /// A request comes back to its client without an answer.
    fn unanswered(&self, id: u32, asked: &Asked, sockets: &mut dyn Sockets) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        self.counters.timed_out.add(1);
        match asked {
            Asked::Mad(request) => {
                let back = Request {
                    status: TIMED_OUT,
                    ..request.clone()
                };
                sockets.send_data(id, &back.emit());
            }
            Asked::Control(ctl) => self.answer(&client.peer, ctl, None, sockets),
        }
    }

    fn forget(&mut self, tid: u32) -> Option<Pending> {
        let pending = self.pending.remove(&tid)?;
        self.deadlines.remove(&(pending.deadline, tid));
        if let Some(client) = self.clients.get_mut(&pending.client) {
            client.pending -= 1;
        }
        Some(pending)
    }

    /// A MAD came for a node.
    pub(super) fn received(&mut self, node: usize, mad: MadReceived, sockets: &mut dyn Sockets) {
        if self.nodes.get(node).is_none() {
            return;
        }
        if Method(mad.mad[3]).is_response() {
            return self.response(node, mad, sockets);
        }
        let takers = self.takers(node, &mad);
        if takers.is_empty() {
            return self.counters.nobody.add(1);
        }
        let datagram = request(&mad, MAD_LEN as u64).emit();
        for id in takers {
            self.counters.tx_mads.add(1);
            sockets.send_data(id, &datagram);
        }
    }

    fn response(&mut self, node: usize, mad: MadReceived, sockets: &mut dyn Sockets) {
        let tid = u32::from_be_bytes([mad.mad[12], mad.mad[13], mad.mad[14], mad.mad[15]]);
        let fits = self.pending.get(&tid).is_some_and(|p| {
            let asked = &p.sent.mad;
            p.node == node
                && asked[8..12] == mad.mad[8..12]
                && asked[1] == mad.mad[1]
                && Method(asked[3]).response() == Method(mad.mad[3])
        });
        if !fits {
            return self.counters.rx_unexpected.add(1);
        }
        let (length, stop) = match rmpp::to_client(&mad) {
            ToClient::Drop => return self.counters.rx_unexpected.add(1),
            ToClient::Deliver(length) => (length, None),
            ToClient::DeliverFirst(length, stop) => (length, Some(stop)),
        };
        if let Some(stop) = stop {
            self.counters.tables_cut.add(1);
            if let Some(agent) = &self.nodes[node].agent {
                agent.send(mad.reply(stop));
            }
        }
        let Some(pending) = self.forget(tid) else {
            return;
        };
        match pending.asked {
            Asked::Mad(asked) => {
                let mut answer = request(&mad, length);
                answer.mad[8..16].copy_from_slice(&asked.mad[8..16]);
                self.counters.tx_mads.add(1);
                sockets.send_data(pending.client, &answer.emit());
            }
            Asked::Control(ctl) => {
                let data = Smp::parse(&mad.mad[..])
                    .filter(|smp| smp.status().is_ok())
                    .map(|smp| match ctl.kind {
                        Ctl::GET_VENDOR => vendor(&smp.data),
                        _ => smp.data,
                    });
                if let Some(client) = self.clients.get(&pending.client) {
                    self.answer(&client.peer, &ctl, data, sockets);
                }
            }
        }
    }

    /// Whose is a request or report for this node? SMPs, traps and questions to subnet administration are the subnet manager's.
    fn takers(&self, node: usize, mad: &MadReceived) -> Vec<u32> {
        let (class, method) = (MgmtClass(mad.mad[1]), Method(mad.mad[3]));
        let for_sm = class.is_smp() || (class == MgmtClass::SUBN_ADM && method != Method::REPORT);
        let takes = |client: &Client| match mad.dest_qp.0 {
            0 | 1 => client.sm.is_some() == for_sm,
            qp => client.qp == qp,
        };
        self.nodes[node]
            .clients
            .iter()
            .copied()
            .filter(|id| self.clients.get(id).is_some_and(takes))
            .collect()
    }

    /// Forgets a client that left or died.
    pub(super) fn gone(&mut self, id: u32, sockets: &mut dyn Sockets) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.counters.disconnected.add(1);
        self.by_peer.remove(&client.peer);
        sockets.close(id);
        let tids: Vec<u32> = match client.pending {
            0 => Vec::new(),
            _ => self
                .pending
                .iter()
                .filter(|(_, p)| p.client == id)
                .map(|(tid, _)| *tid)
                .collect(),
        };
        tids.into_iter().for_each(|tid| {
            self.forget(tid);
        });
        let node = &mut self.nodes[client.node];
        node.clients.remove(&id);
        if node.clients.is_empty() {
            node.agent = None;
        }
    }

    /// When [`Core::handle_timeout`] wants to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Sends again, or gives up, what is due.
    pub(super) fn handle_timeout(&mut self, now: Instant, sockets: &mut dyn Sockets) {
        let mut again = VecDeque::new();
        while let Some(&(at, tid)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.remove(&(at, tid));
            let Some(pending) = self.pending.get_mut(&tid) else {
                continue;
            };
            if pending.sends_left == 0 {
                if let Some(pending) = self.forget(tid) {
                    self.unanswered(pending.client, &pending.asked, sockets);
                }
                continue;
            }
            pending.sends_left -= 1;
            pending.deadline = now + timing(&pending.sent.mad).0;
            self.deadlines.insert((pending.deadline, tid));
            again.push_back((pending.node, pending.sent.clone()));
        }
        for (node, send) in again {
            self.counters.sent_again.add(1);
            let name = &self.nodes[node].name;
            let mad = wire::mad::describe::describe(&send.mad);
            tracing::debug!(node = name, "umad: nobody answers, sent again: {mad}");
            if let Some(agent) = &self.nodes[node].agent {
                agent.send(send);
            }
        }
    }
}

/// How long an answer is waited for, and how often the request is sent.
fn timing(mad: &MadBytes) -> (Duration, u32) {
    match MgmtClass(mad[1]).is_smp() {
        true => (SMP_TIMEOUT, SMP_SENDS),
        false => (GSI_TIMEOUT, 1),
    }
}

/// Does somebody answer it? (Traps are repressed, by a MAD of its own.)
fn is_request(method: Method) -> bool {
    !method.is_response() && !matches!(method, Method::SEND | Method::TRAP | Method::TRAP_REPRESS)
}

fn request(mad: &MadReceived, length: u64) -> Request {
    Request {
        dlid: mad.dlid,
        slid: mad.slid,
        dqp: mad.dest_qp.0,
        sqp: mad.src_qp.0,
        status: 0,
        length,
        mad: mad.mad.clone(),
    }
}

/// NodeInfo as an answer to [`Ctl::GET_VENDOR`]: u32 vendor, part and hardware version, u64 firmware version.
fn vendor(node_info: &[u8; 64]) -> [u8; 64] {
    let info = NodeInfo::parse(node_info).unwrap_or_default();
    let mut data = [0; 64];
    data[..4].copy_from_slice(&info.vendor_id.to_ne_bytes());
    data[4..8].copy_from_slice(&u32::from(info.device_id).to_ne_bytes());
    data[8..12].copy_from_slice(&info.revision.to_ne_bytes());
    data[16..24].copy_from_slice(&1u64.to_ne_bytes());
    data
}
