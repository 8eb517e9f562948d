//! Where a MAD goes: the server without its sockets.

mod clients;
mod control;
#[cfg(test)]
mod tests;
mod transactions;

use super::UmadCounters;
use super::protocol::{Ctl, Request};
use super::rmpp;
use crate::node::ManagementPort;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use transactions::{Asked, Transactions};
use verbs::{MadAgent, MadReceived, MadSend};
use wire::mad::{MAD_LEN, MadBytes, MadHeader, Method, MgmtClass};
use wire::{PKey, QKey, Qpn, ServiceLevel};

/// Requests of others of which a node remembers how they came.
const MAX_ASKED: usize = 1024;

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
    /// What its clients were asked last through QP1: the protocol has no place for the service level, partition and GRH of an answer.
    asked: VecDeque<MadReceived>,
}

struct Client {
    peer: Peer,
    node: usize,
    qp: u32,
    sm: Option<Box<dyn MadAgent>>,
    pending: usize,
    heard: Instant,
}

/// The server's state.
pub(super) struct Core {
    nodes: Vec<Node>,
    clients: BTreeMap<u32, Client>,
    by_peer: HashMap<Peer, u32>,
    transactions: Transactions,
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
            asked: VecDeque::new(),
        };
        Core {
            nodes: nodes.into_iter().map(node).collect(),
            clients: BTreeMap::new(),
            by_peer: HashMap::new(),
            transactions: Transactions::default(),
            taken: BTreeSet::new(),
            sink,
            counters,
        }
    }

    /// Number and control socket of each client.
    pub(super) fn clients(&self) -> impl Iterator<Item = (u32, &Peer)> {
        self.clients.iter().map(|(id, client)| (*id, &client.peer))
    }

    /// A datagram of a client's data socket.
    pub(super) fn data(&mut self, now: Instant, id: u32, bytes: &[u8], sockets: &mut dyn Sockets) {
        let Some(client) = self.clients.get_mut(&id) else {
            return self.counters.rx_unknown_client.add(1);
        };
        client.heard = now;
        let node = client.node;
        let Some(request) = Request::parse(bytes) else {
            return self.counters.rx_bad_length.add(1);
        };
        let Some(length) = usize::try_from(request.length)
            .ok()
            .filter(|n| (MadHeader::LEN..=MAD_LEN).contains(n))
        else {
            return self.counters.rx_bad_length.add(1);
        };
        self.counters.rx_mads.add(1);
        let mut mad = request.mad.clone();
        // Beyond it are bytes of the client's stack.
        mad[length..].fill(0);
        if MgmtClass(mad[1]).is_smp() == (request.dqp != 0) {
            return self.counters.rx_bad_address.add(1);
        }
        if rmpp::from_client(&mut mad, length) {
            self.counters.tables_cut.add(1);
        }
        if is_request(MgmtClass(mad[1]), Method(mad[3])) {
            return self.transact(now, id, Asked::Mad(request), mad, sockets);
        }
        let node = &self.nodes[node];
        let asked = node.asked.iter().rev().find(|a| is_answer(a, &request));
        if let Some(agent) = &node.agent {
            agent.send(match asked {
                Some(asked) => asked.reply(mad),
                None => send_for(node, &request, mad),
            });
        }
    }

    /// A MAD came for a node.
    pub(super) fn received(&mut self, node: usize, mad: MadReceived, sockets: &mut dyn Sockets) {
        let method = Method(mad.mad[3]);
        if method.is_response() || method == Method::TRAP_REPRESS {
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
        if mad.dest_qp != Qpn::SMI {
            let asked = &mut self.nodes[node].asked;
            if asked.len() >= MAX_ASKED {
                asked.pop_front();
            }
            asked.push_back(mad);
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
        let clients = self.nodes[node].clients.iter().copied();
        clients
            .filter(|id| self.clients.get(id).is_some_and(takes))
            .collect()
    }
}

/// How a MAD of a client goes out that answers nothing known.
fn send_for(node: &Node, request: &Request, mad: Box<MadBytes>) -> MadSend {
    let attributes = node.port.attributes();
    let sl = match request.dlid == attributes.sm_lid {
        true => attributes.sm_sl,
        false => ServiceLevel(0),
    };
    MadSend {
        dlid: request.dlid,
        sl,
        remote_qpn: Qpn::new(request.dqp),
        q_key: QKey::GSI,
        p_key: PKey::DEFAULT_FULL,
        grh: None,
        mad,
    }
}

/// Does a client answer `asked` by this?
fn is_answer(asked: &MadReceived, answer: &Request) -> bool {
    (asked.slid, asked.src_qp.0) == (answer.dlid, answer.dqp)
        && asked.mad[1] == answer.mad[1]
        && asked.mad[8..16] == answer.mad[8..16]
        && Method(asked.mad[3]).response() == Method(answer.mad[3])
}

/// Does somebody answer it? OpenSM waits for the answer to its own traps before it does anything else.
fn is_request(class: MgmtClass, method: Method) -> bool {
    match method {
        Method::TRAP => class.is_smp(),
        Method::SEND | Method::TRAP_REPRESS => false,
        method => !method.is_response(),
    }
}

/// What answers it.
fn answer_to(request: Method) -> Method {
    match request {
        Method::TRAP => Method::TRAP_REPRESS,
        request => request.response(),
    }
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
