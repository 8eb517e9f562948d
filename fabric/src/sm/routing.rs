//! Unicast routes: minimal number of hops, destinations spread over equally short ways (IBA 14.4.3.4 leaves the choice to the manager).

use super::topology::{NodeId, PortId, Topology};
use std::collections::{BTreeMap, HashMap};
use wire::Lid;

/// No port: the switch drops (IBA 14.2.5.10).
pub(super) const NO_PORT: u8 = 255;
const FAR: u16 = u16::MAX;

/// The graph of switches and where each LID is.
#[derive(Debug, Default)]
pub(super) struct Routing {
    switches: Vec<NodeId>,
    index: HashMap<NodeId, usize>,
    /// By switch: own port, neighbour, its port.
    neighbours: Vec<Vec<(u8, usize, u8)>>,
    distance: Vec<Vec<u16>>,
    /// By LID: switch and port there.
    destinations: BTreeMap<Lid, (usize, u8)>,
    /// Destinations routed out of each port of each switch.
    load: Vec<Vec<u32>>,
    /// Spanning tree of all switches, for multicast: by switch, the port up, the parent, and its port down.
    parent: Vec<Option<(u8, usize, u8)>>,
}

impl Routing {
    pub(super) fn switches(&self) -> &[NodeId] {
        &self.switches
    }

    /// Follows the topology; true if the graph of switches changed, and with it all routes.
    pub(super) fn update(&mut self, topo: &mut Topology) -> bool {
        let switches: Vec<NodeId> = topo
            .nodes
            .iter()
            .filter(|(_, n)| n.switch.as_ref().is_some_and(|s| s.info.linear_fdb_cap > 0))
            .map(|(id, _)| *id)
            .collect();
        let index: HashMap<NodeId, usize> = switches
            .iter()
            .enumerate()
            .map(|(ix, id)| (*id, ix))
            .collect();
        let neighbours: Vec<Vec<(u8, usize, u8)>> = switches
            .iter()
            .filter_map(|id| topo.node(*id))
            .map(|node| {
                let linked = node
                    .external_ports()
                    .filter_map(|p| Some((p, node.ports.get(usize::from(p))?.link?)));
                linked
                    .filter_map(|(p, peer)| Some((p, *index.get(&peer.0)?, peer.1)))
                    .collect()
            })
            .collect();
        let changed = switches != self.switches || neighbours != self.neighbours;
        if changed {
            (self.switches, self.index, self.neighbours) = (switches, index, neighbours);
            self.distance = (0..self.switches.len())
                .map(|ix| self.distances(ix))
                .collect();
            self.load = self
                .switches
                .iter()
                .map(|id| vec![0; topo.node(*id).map_or(0, |n| n.ports.len())])
                .collect();
            self.destinations.clear();
            self.span();
            for id in &self.switches {
                if let Some(switch) = topo.node_mut(*id).and_then(|n| n.switch.as_mut()) {
                    switch.lft.fill(NO_PORT);
                }
            }
        }
        let wanted: BTreeMap<Lid, (usize, u8)> = topo
            .end_ports()
            .filter(|(_, p)| p.lid.is_unicast())
            .filter_map(|(id, p)| {
                topo.attachment(id)
                    .and_then(|(sw, port)| Some((p.lid, (*self.index.get(&sw)?, port))))
            })
            .collect();
        let gone: Vec<Lid> = self
            .destinations
            .iter()
            .filter(|(lid, at)| wanted.get(lid) != Some(at))
            .map(|(lid, _)| *lid)
            .collect();
        for lid in gone {
            self.remove(topo, lid);
        }
        for (lid, at) in wanted {
            if self.destinations.insert(lid, at).is_none() {
                self.add(topo, lid, at);
            }
        }
        changed
    }

    fn distances(&self, from: usize) -> Vec<u16> {
        let mut distance = vec![FAR; self.switches.len()];
        distance[from] = 0;
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for &(_, next, _) in &self.neighbours[at] {
                if distance[next] == FAR {
                    distance[next] = distance[at] + 1;
                    queue.push_back(next);
                }
            }
        }
        distance
    }

    /// The tree grows from the switch that is nearest to all.
    fn span(&mut self) {
        self.parent = vec![None; self.switches.len()];
        let eccentricity = |ix: &usize| {
            self.distance[*ix]
                .iter()
                .copied()
                .filter(|d| *d != FAR)
                .max()
        };
        let Some(root) = (0..self.switches.len()).min_by_key(eccentricity) else {
            return;
        };
        for ix in (0..self.switches.len()).filter(|ix| *ix != root) {
            let near = self.distance[root][ix].wrapping_sub(1);
            self.parent[ix] = self.neighbours[ix]
                .iter()
                .find(|(_, up, _)| self.distance[root][*up] == near)
                .copied();
        }
    }

    /// Ports out of `from` on a shortest way to `to`, the least used one first.
    fn next_hop(&self, from: usize, to: usize) -> Option<u8> {
        let near = self.distance[from][to]
            .checked_sub(1)
            .filter(|_| self.distance[from][to] != FAR)?;
        let ways = self.neighbours[from]
            .iter()
            .filter(|(_, next, _)| self.distance[*next][to] == near);
        ways.map(|(port, ..)| *port).min_by_key(|port| {
            self.load[from]
                .get(usize::from(*port))
                .copied()
                .unwrap_or(0)
        })
    }

    fn add(&mut self, topo: &mut Topology, lid: Lid, (to, port): (usize, u8)) {
        for from in 0..self.switches.len() {
            let out = if from == to {
                Some(port)
            } else {
                self.next_hop(from, to)
            };
            let Some(switch) = topo
                .node_mut(self.switches[from])
                .and_then(|n| n.switch.as_mut())
            else {
                continue;
            };
            let slot = usize::from(lid.0);
            if switch.lft.len() <= slot {
                switch.lft.resize(slot / 64 * 64 + 64, NO_PORT);
            }
            switch.lft[slot] = out.unwrap_or(NO_PORT);
            // Ways to switches themselves carry next to nothing.
            if let Some(load) = out
                .filter(|_| port != 0)
                .and_then(|out| self.load[from].get_mut(usize::from(out)))
            {
                *load += 1;
            }
        }
    }

    fn remove(&mut self, topo: &mut Topology, lid: Lid) {
        let Some((_, port)) = self.destinations.remove(&lid) else {
            return;
        };
        for from in 0..self.switches.len() {
            let Some(switch) = topo
                .node_mut(self.switches[from])
                .and_then(|n| n.switch.as_mut())
            else {
                continue;
            };
            let Some(slot) = switch.lft.get_mut(usize::from(lid.0)) else {
                continue;
            };
            let out = std::mem::replace(slot, NO_PORT);
            if let Some(load) = self.load[from]
                .get_mut(usize::from(out))
                .filter(|_| port != 0)
            {
                *load = load.saturating_sub(1);
            }
        }
    }

    /// The ports that a packet goes through from one end port to another, in pairs of out and in, by the tables as they shall be.
    pub(super) fn trace(&self, topo: &Topology, from: PortId, to: PortId) -> Option<Vec<PortId>> {
        let mut hops = Vec::new();
        let lid = topo.port(to)?.lid;
        let mut at = from;
        if from == to {
            return Some(vec![from]);
        }
        if topo.node(from.0)?.switch.is_none() {
            let peer = topo.port(from)?.link?;
            hops.extend([from, peer]);
            at = peer;
        }
        while at != to && at.0 != to.0 {
            let switch = topo.node(at.0)?.switch.as_ref()?;
            let out = *switch.lft.get(usize::from(lid.0))?;
            let peer = topo.port((at.0, out))?.link?;
            hops.extend([(at.0, out), peer]);
            at = peer;
            if hops.len() > 256 {
                return None;
            }
        }
        Some(hops)
    }

    /// Port masks of a group's tree: the ports to `members` (a switch and its port each), for all switches that lie between them, pruned where
    /// no member lies behind. `senders` only need a way in.
    pub(super) fn tree(
        &self,
        members: &[PortId],
        senders: &[PortId],
    ) -> BTreeMap<NodeId, [u16; 16]> {
        let mut below: HashMap<usize, usize> = HashMap::new();
        let mut masks: HashMap<usize, [u16; 16]> = HashMap::new();
        let mut total = 0;
        for (at, receives) in members
            .iter()
            .map(|m| (m, true))
            .chain(senders.iter().map(|m| (m, false)))
        {
            let Some(&switch) = self.index.get(&at.0) else {
                continue;
            };
            let mask = masks.entry(switch).or_default();
            if receives {
                set(mask, at.1);
            }
            total += 1;
            let mut ix = Some(switch);
            while let Some(at) = ix {
                *below.entry(at).or_default() += 1;
                ix = self.parent[at].map(|(_, up, _)| up);
            }
        }
        for (&ix, &count) in &below {
            if let Some((up_port, up, down_port)) = self.parent[ix].filter(|_| count < total) {
                set(masks.entry(ix).or_default(), up_port);
                set(masks.entry(up).or_default(), down_port);
            }
        }
        masks
            .into_iter()
            .map(|(ix, mask)| (self.switches[ix], mask))
            .collect()
    }
}

fn set(mask: &mut [u16; 16], port: u8) {
    mask[usize::from(port / 16)] |= 1 << (port % 16);
}
