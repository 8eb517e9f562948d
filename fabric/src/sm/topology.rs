//! The subnet as the manager knows it: nodes, their ports, and the links between them.
//!
//! Only what nodes themselves said is in here. A node exists as long as links lead to it from the manager's own; [`Topology::walk`] finds out
//! and notes the directed route to each.

use super::config::EndPort;
use slotmap::SlotMap;
use std::collections::{BTreeMap, HashMap, VecDeque};
use wire::mad::MAX_HOPS;
use wire::mad::attr::{
    CapabilityMask, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo,
};
use wire::{Gid, Guid, Lid, LinkRate, MtuCode, PKey, RateCode};

slotmap::new_key_type! {
    /// Names a node as long as the manager runs; never used again for another.
    pub(super) struct NodeId;
}

/// A port of a node; port 0 of a switch is its management port.
pub(super) type PortId = (NodeId, u8);

/// What is known of one port.
#[derive(Debug, Default)]
pub(super) struct PortData {
    /// GUID of an end port (a CA port, or port 0 of a switch); zero for other ports of switches.
    pub(super) guid: Guid,
    /// As the port said last; see [`PortData::said`].
    pub(super) info: Option<PortInfo>,
    /// Of its link.
    rate: RateCode,
    /// The other end.
    pub(super) link: Option<PortId>,
    /// Nobody answered behind this port: asked again from time to time.
    pub(super) silent: bool,
    /// P_Key table as the port said last.
    pub(super) pkeys: Vec<PKey>,
    /// First block of GUIDInfo.
    pub(super) guids: [Guid; 8],
    /// The LID that the manager gave; unset while it has not.
    pub(super) lid: Lid,
    /// Subscribers were told that the GID is in service.
    pub(super) announced: bool,
    /// The port must be told to register everything again.
    pub(super) reregister: bool,
    /// A Set is on the way.
    pub(super) busy: bool,
    /// Sets that changed nothing; bounds the attempts at a port that does not obey.
    pub(super) fruitless: u8,
    /// What another subnet manager at this port said: GUID, priority, state.
    pub(super) is_sm: Option<wire::mad::attr::SmInfo>,
}

/// What is known of a switch beyond its ports.
#[derive(Debug, Default)]
pub(super) struct SwitchData {
    pub(super) info: SwitchInfo,
    /// Wanted forwarding table, by LID.
    pub(super) lft: Vec<u8>,
    /// Blocks of it as they were sent last.
    pub(super) lft_sent: Vec<Option<[u8; 64]>>,
    /// Wanted multicast table, by block and position.
    pub(super) mft: BTreeMap<(u16, u8), [u16; 32]>,
    /// Port states are being read.
    pub(super) reading: bool,
    /// Something changed meanwhile: read again.
    pub(super) again: bool,
    /// A Set(SwitchInfo) is on the way.
    pub(super) busy: bool,
}

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) description: NodeDescription,
    pub(super) switch: Option<SwitchData>,
    /// By port number.
    pub(super) ports: Vec<PortData>,
    /// Ports to leave by on the way from the manager.
    pub(super) path: Vec<u8>,
}

impl Node {
    pub(super) fn new(info: NodeInfo) -> Self {
        let is_switch = info.node_type == NodeType::SWITCH;
        Node {
            description: NodeDescription::default(),
            switch: is_switch.then(SwitchData::default),
            ports: (0..=info.num_ports).map(|_| PortData::default()).collect(),
            path: Vec::new(),
            info,
        }
    }
    pub(super) fn guid(&self) -> Guid {
        self.info.node_guid
    }
    /// Numbers of the ports that have LIDs.
    pub(super) fn end_ports(&self) -> impl Iterator<Item = u8> + use<> {
        if self.switch.is_some() {
            0..=0
        } else {
            1..=self.info.num_ports
        }
    }
    /// Numbers of the ports with links.
    pub(super) fn external_ports(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.info.num_ports
    }
}

/// The subnet.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) nodes: SlotMap<NodeId, Node>,
    by_guid: HashMap<Guid, NodeId>,
    by_port_guid: HashMap<Guid, PortId>,
    by_lid: HashMap<Lid, PortId>,
    /// The manager's own port.
    pub(super) own: Option<PortId>,
    /// A port of a channel adapter has 2^lmc LIDs.
    lmc: u8,
}

impl Topology {
    pub(super) fn new(lmc: u8) -> Self {
        Topology {
            lmc,
            ..Topology::default()
        }
    }
    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id)
    }
    pub(super) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id)
    }
    pub(super) fn port(&self, (id, port): PortId) -> Option<&PortData> {
        self.nodes.get(id)?.ports.get(usize::from(port))
    }
    pub(super) fn port_mut(&mut self, (id, port): PortId) -> Option<&mut PortData> {
        self.nodes.get_mut(id)?.ports.get_mut(usize::from(port))
    }
    pub(super) fn by_node_guid(&self, guid: Guid) -> Option<NodeId> {
        self.by_guid.get(&guid).copied()
    }
    pub(super) fn by_port_guid(&self, guid: Guid) -> Option<PortId> {
        self.by_port_guid.get(&guid).copied()
    }
    /// The end port that answers to a LID.
    pub(super) fn by_lid(&self, lid: Lid) -> Option<PortId> {
        let offset = lid.0 & ((1 << self.lmc) - 1);
        let port = *self.by_lid.get(&Lid(lid.0 - offset))?;
        (offset < self.lids_of(port)).then_some(port)
    }
    /// What partitions look at.
    pub(super) fn end_port(&self, id: PortId) -> Option<EndPort> {
        Some(EndPort {
            guid: self.port(id)?.guid,
            node_type: self.node(id.0)?.info.node_type,
            own: self.own == Some(id),
        })
    }
    /// LMC of an end port: switches have one LID (IBA 14.2.5.6 for base port 0).
    pub(super) fn lmc_of(&self, port: PortId) -> u8 {
        if port.1 == 0 { 0 } else { self.lmc }
    }
    /// How many LIDs an end port has, from its base LID on.
    pub(super) fn lids_of(&self, port: PortId) -> u16 {
        1 << self.lmc_of(port)
    }
    pub(super) fn own_port(&self) -> Option<&PortData> {
        self.port(self.own?)
    }
    /// LID of the manager's own end port.
    pub(super) fn own_lid(&self) -> Lid {
        self.own_port().map_or(Lid::UNSET, |p| p.lid)
    }
    /// All end ports with what is known of them.
    pub(super) fn end_ports(&self) -> impl Iterator<Item = (PortId, &PortData)> {
        self.nodes.iter().flat_map(|(id, node)| {
            node.end_ports()
                .filter_map(move |p| Some(((id, p), node.ports.get(usize::from(p))?)))
        })
    }

    /// The node with this NodeInfo, new or known; the port that it names becomes known.
    pub(super) fn add(&mut self, info: NodeInfo) -> (NodeId, bool) {
        let known = self.by_guid.get(&info.node_guid).copied();
        // A node that says to be something else than before is another one.
        let known = known.filter(|id| {
            self.nodes.get(*id).is_some_and(|n| {
                n.info.node_type == info.node_type && n.info.num_ports == info.num_ports
            })
        });
        let id = known.unwrap_or_else(|| {
            let id = self.nodes.insert(Node::new(info));
            self.by_guid.insert(info.node_guid, id);
            id
        });
        let port = if info.node_type == NodeType::SWITCH {
            0
        } else {
            info.local_port_num
        };
        if let Some(data) = self.port_mut((id, port)) {
            data.guid = info.port_guid;
            self.by_port_guid.insert(info.port_guid, (id, port));
        }
        (id, known.is_none())
    }

    /// Notes that a cable connects the two.
    pub(super) fn connect(&mut self, a: PortId, b: PortId) -> bool {
        if self.port(a).and_then(|p| p.link) == Some(b) {
            return false;
        }
        self.disconnect(a);
        self.disconnect(b);
        for (from, to) in [(a, b), (b, a)] {
            if let Some(port) = self.port_mut(from) {
                port.link = Some(to);
                port.silent = false;
            }
        }
        true
    }

    /// Notes that nothing is at the other end.
    pub(super) fn disconnect(&mut self, a: PortId) -> bool {
        let Some(b) = self.port_mut(a).and_then(|p| p.link.take()) else {
            return false;
        };
        if let Some(port) = self.port_mut(b) {
            port.link = None;
        }
        true
    }

    /// Gives a LID to an end port.
    pub(super) fn set_lid(&mut self, port: PortId, lid: Lid) {
        let Some(data) = self.port_mut(port) else {
            return;
        };
        let old = std::mem::replace(&mut data.lid, lid);
        if self.by_lid.get(&old) == Some(&port) {
            self.by_lid.remove(&old);
        }
        self.by_lid.insert(lid, port);
    }

    /// Forgets a node or, of a CA, the port.
    pub(super) fn forget_port(&mut self, port: PortId) -> Option<PortData> {
        self.disconnect(port);
        let old = std::mem::take(self.port_mut(port)?);
        if self.by_port_guid.get(&old.guid) == Some(&port) {
            self.by_port_guid.remove(&old.guid);
        }
        if self.by_lid.get(&old.lid) == Some(&port) {
            self.by_lid.remove(&old.lid);
        }
        Some(old)
    }
    pub(super) fn forget_node(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(id) else {
            return;
        };
        for port in 0..=node.info.num_ports {
            self.forget_port((id, port));
        }
        if let Some(node) = self.nodes.remove(id)
            && self.by_guid.get(&node.guid()) == Some(&id)
        {
            self.by_guid.remove(&node.guid());
        }
    }

    /// Goes through all that links lead to from the own node, notes the shortest route to each, and returns the end ports that none leads to.
    pub(super) fn walk(&mut self) -> Vec<PortId> {
        let Some(own) = self.own else {
            return Vec::new();
        };
        let mut routes: BTreeMap<NodeId, (Vec<u8>, Option<u8>)> =
            BTreeMap::from([(own.0, (Vec::new(), None))]);
        let mut reached: std::collections::HashSet<PortId> = [own].into();
        let mut queue = VecDeque::from([own.0]);
        while let Some(id) = queue.pop_front() {
            let Some(node) = self.nodes.get(id) else {
                continue;
            };
            let path = routes
                .get(&id)
                .map(|(path, _)| path.clone())
                .unwrap_or_default();
            // CAs do not forward; the own one has only the port that the manager is at.
            let ports = if node.switch.is_some() {
                1..=node.info.num_ports
            } else if id == own.0 {
                own.1..=own.1
            } else {
                continue;
            };
            for port in ports {
                let Some(peer) = node.ports.get(usize::from(port)).and_then(|p| p.link) else {
                    continue;
                };
                let is_switch = self.nodes.get(peer.0).is_some_and(|n| n.switch.is_some());
                reached.insert(if is_switch { (peer.0, 0) } else { peer });
                if path.len() < MAX_HOPS && !routes.contains_key(&peer.0) {
                    let mut path = path.clone();
                    path.push(port);
                    routes.insert(peer.0, (path, Some(peer.1)));
                    queue.push_back(peer.0);
                }
            }
        }
        for (id, (path, _)) in routes {
            if let Some(node) = self.nodes.get_mut(id) {
                node.path = path;
            }
        }
        self.end_ports()
            .filter(|(id, p)| p.guid != Guid::default() && !reached.contains(id))
            .map(|(id, _)| id)
            .collect()
    }

    /// The directed route to a port: to a switch as a whole, to a CA through that port.
    pub(super) fn path_to(&self, (id, port): PortId) -> Option<Vec<u8>> {
        let node = self.nodes.get(id)?;
        if node.switch.is_some() || self.own.is_some_and(|own| own.0 == id) {
            return Some(node.path.clone());
        }
        match node.ports.get(usize::from(port)).and_then(|p| p.link) {
            Some(peer) if self.nodes.get(peer.0)?.switch.is_some() || self.own == Some(peer) => {
                let mut path = self.nodes.get(peer.0)?.path.clone();
                path.push(peer.1);
                Some(path)
            }
            _ => Some(node.path.clone()),
        }
    }

    /// The switch that an end port is at and the port there; a switch's port 0 is at itself.
    pub(super) fn attachment(&self, (id, port): PortId) -> Option<PortId> {
        if self.nodes.get(id)?.switch.is_some() {
            return Some((id, 0));
        }
        let peer = self.port((id, port))?.link?;
        self.nodes.get(peer.0)?.switch.is_some().then_some(peer)
    }
}

impl PortData {
    /// Notes what the port says; gives back what it said before.
    pub(super) fn said(&mut self, info: PortInfo) -> Option<PortInfo> {
        self.rate = LinkRate::active(&info).unwrap_or_default().code();
        self.info.replace(info)
    }
    pub(super) fn state(&self) -> PortState {
        self.info.map_or(PortState::NO_CHANGE, |i| i.port_state)
    }
    pub(super) fn has(&self, capability: CapabilityMask) -> bool {
        self.info
            .is_some_and(|i| i.capability_mask.contains(capability))
    }
    /// Link trained: something may be at the other end.
    pub(super) fn is_up(&self) -> bool {
        self.state() >= PortState::INIT
    }
    pub(super) fn gid(&self, prefix: u64) -> Gid {
        Gid::new(prefix, self.guid)
    }
    /// Largest payload that leaves by this port.
    pub(super) fn mtu(&self) -> MtuCode {
        self.info.map_or(MtuCode::default(), |i| {
            if i.port_state >= PortState::ARMED {
                i.neighbor_mtu.min(i.mtu_cap)
            } else {
                i.mtu_cap
            }
        })
    }
    pub(super) fn rate(&self) -> RateCode {
        self.rate
    }
    /// A key of the partition of `key`, full membership preferred; only one that may talk to a holder of `key` where `must_match`.
    pub(super) fn pkey_like(&self, key: PKey) -> Option<PKey> {
        let mut same = self
            .pkeys
            .iter()
            .copied()
            .filter(|k| k.base() == key.base() && k.base() != 0);
        let first = same.next()?;
        Some(if first.is_full() {
            first
        } else {
            same.find(|k| k.is_full()).unwrap_or(first)
        })
    }
    /// The keys in the table, without its gaps.
    pub(super) fn known_pkeys(&self) -> impl Iterator<Item = PKey> + '_ {
        self.pkeys.iter().copied().filter(|k| k.base() != 0)
    }
    /// Does a port with these keys share a partition with this one in which they may talk?
    pub(super) fn may_talk_to(&self, mut keys: impl Iterator<Item = PKey>) -> bool {
        keys.any(|a| self.pkeys.iter().any(|b| a.matches(*b)))
    }
}
