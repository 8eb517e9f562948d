//! Who is here: clients come, become subnet managers, leave and die.

use super::{Client, Core, Node, Peer, Sockets};
use crate::umad::protocol::ClientInfo;
use std::sync::Arc;
use std::time::Instant;
use verbs::MadHandler;

/// Clients at most.
pub(super) const MAX_CLIENTS: usize = 4096;
/// Ports of sockets that cannot be had are passed over, so many at a time.
const OPEN_TRIES: usize = 16;

impl Core {
    /// Answers [`Ctl::CONNECT`](crate::umad::protocol::Ctl::CONNECT).
    pub(super) fn connect(
        &mut self,
        now: Instant,
        peer: &Peer,
        info: ClientInfo,
        sockets: &mut dyn Sockets,
    ) -> Option<[u8; 64]> {
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

    /// Takes what comes for a node.
    fn handler(&self, node: usize) -> Arc<dyn MadHandler> {
        let (sink, counters) = (self.sink.clone(), self.counters.clone());
        Arc::new(move |mad| {
            if !sink(node, mad) {
                counters.queue_full.add(1);
            }
        })
    }

    /// Registers at a node, if that is yet to be done.
    fn attach(&mut self, index: usize) -> bool {
        if self.nodes[index].agent.is_none() {
            let handler = self.handler(index);
            self.nodes[index].agent = self.nodes[index].port.register_umad(handler).ok();
        }
        self.nodes[index].agent.is_some()
    }

    pub(super) fn set_sm(&mut self, id: u32, on: bool, sockets: &mut dyn Sockets) -> bool {
        let Some(node) = self.clients.get(&id).map(|c| c.node) else {
            return false;
        };
        if on {
            // One that was killed must not keep its successor out.
            let mut is_dead = |other: &u32| {
                let sm = self.clients.get(other).filter(|c| c.sm.is_some());
                *other != id && sm.is_some_and(|c| !sockets.is_alive(&c.peer))
            };
            let clients = self.nodes[node].clients.iter().copied();
            let dead: Vec<u32> = clients.filter(&mut is_dead).collect();
            dead.into_iter().for_each(|other| self.died(other, sockets));
        }
        let handler = self.handler(node);
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        if !on {
            client.sm = None;
        } else if client.sm.is_none() {
            match self.nodes[node].port.register_sm(handler) {
                Ok(agent) => client.sm = Some(agent),
                Err(error) => {
                    let node = &self.nodes[node].name;
                    tracing::warn!(node, %error, "umad: a client cannot be subnet manager here");
                }
            }
        }
        client.sm.is_some() == on
    }

    /// Forgets a client that was found dead.
    pub(in crate::umad) fn died(&mut self, id: u32, sockets: &mut dyn Sockets) {
        tracing::info!(client = id, "umad: a client died");
        self.counters.died.add(1);
        self.gone(id, sockets);
    }

    /// Forgets a client.
    pub(super) fn gone(&mut self, id: u32, sockets: &mut dyn Sockets) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.counters.disconnected.add(1);
        self.by_peer.remove(&client.peer);
        sockets.close(id);
        self.abandon(id);
        let node = &mut self.nodes[client.node];
        node.clients.remove(&id);
        if node.clients.is_empty() {
            node.agent = None;
            node.asked.clear();
        }
    }
}
