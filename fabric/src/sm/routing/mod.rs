//! Unicast routes and multicast trees (IBA 14.4.3.4 leaves the choice to the manager): the least number of hops, or up/down without deadlocks;
//! destinations spread evenly over equally good ways, those of one port (LMC) over as different ones as there are.

mod graph;
mod tree;

use super::config::RoutingEngine;
use super::topology::{Node, NodeId, PortId, Topology};
use graph::{Graph, Way};
use std::collections::{BTreeMap, HashMap};
use tree::Tree;
use wire::{Guid, Lid};

/// No port: the switch drops (IBA 14.2.5.10).
pub(super) const NO_PORT: u8 = 255;

/// Where an end port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
    switch: usize,
    port: u8,
    /// From its base LID on.
    lids: u16,
}

/// The graph of switches and where each LID is.
#[derive(Debug, Default)]
pub(super) struct Routing {
    switches: Vec<NodeId>,
    index: HashMap<NodeId, usize>,
    graph: Graph,
    /// Switches that have, or had, channel adapters.
    hosts: Vec<bool>,
    /// By base LID.
    destinations: BTreeMap<Lid, Destination>,
    /// LIDs routed out of each port of each switch.
    load: Vec<Vec<u32>>,
    /// Spanning tree of all switches, for multicast: by switch, the way up.
    parent: Vec<Option<Way>>,
    /// By multicast LID.
    trees: HashMap<Lid, Tree>,
}

impl Routing {
    pub(super) fn switches(&self) -> &[NodeId] {
        &self.switches
    }

    /// Follows the topology; true if the graph of switches changed, and with it all routes.
    pub(super) fn update(&mut self, topo: &mut Topology, engine: &RoutingEngine) -> bool {
        let switches: Vec<NodeId> = topo
            .nodes
            .iter()
            .filter(|(_, n)| n.switch.as_ref().is_some_and(|s| s.info.linear_fdb_cap > 0))
            .map(|(id, _)| id)
            .collect();
        let index: HashMap<NodeId, usize> = switches
            .iter()
            .enumerate()
            .map(|(ix, id)| (*id, ix))
            .collect();
        let ways: Vec<Vec<Way>> = switches
            .iter()
            .filter_map(|id| topo.node(*id))
            .map(|node| {
                let linked = node
                    .external_ports()
                    .filter_map(|p| Some((p, node.ports.get(usize::from(p))?.link?)));
                linked
                    .filter_map(|(port, peer)| {
                        let to = *index.get(&peer.0)?;
                        Some(Way {
                            port,
                            to,
                            peer_port: peer.1,
                        })
                    })
                    .collect()
            })
            .collect();
        let mut changed = switches != self.switches || ways != self.graph.ways;
        if changed {
            self.hosts = vec![false; switches.len()];
            (self.switches, self.index) = (switches, index);
        }
        let wanted = self.wanted(topo);
        for at in wanted.values().filter(|at| at.port != 0) {
            if !std::mem::replace(&mut self.hosts[at.switch], true) {
                changed |= !self.graph.serves(at.switch, &self.hosts);
            }
        }
        if changed {
            let guids: Vec<Guid> = self
                .switches
                .iter()
                .map(|id| topo.node(*id).map_or(Guid::default(), |n| n.guid()))
                .collect();
            self.graph = Graph::new(ways, engine, &guids, &self.hosts);
            self.parent = self.graph.span();
            self.load = self
                .switches
                .iter()
                .map(|id| vec![0; topo.node(*id).map_or(0, |n| n.ports.len())])
                .collect();
            self.destinations.clear();
        }
        let gone: Vec<Lid> = self
            .destinations
            .iter()
            .filter(|(lid, at)| wanted.get(lid) != Some(at))
            .map(|(lid, _)| *lid)
            .collect();
        gone.into_iter().for_each(|lid| self.remove(topo, lid));
        let added: Vec<(Lid, Destination)> = wanted
            .into_iter()
            .filter(|(lid, _)| !self.destinations.contains_key(lid))
            .collect();
        if changed || !added.is_empty() {
            for from in 0..self.switches.len() {
                self.assign(topo, from, &added, changed);
            }
            self.destinations.extend(added);
        }
        changed
    }

    fn wanted(&self, topo: &Topology) -> BTreeMap<Lid, Destination> {
        let with_lid = topo.end_ports().filter(|(_, p)| p.lid.is_unicast());
        let places = with_lid.filter_map(|(id, p)| {
            let (at, port) = topo.attachment(id)?;
            let switch = *self.index.get(&at)?;
            let lids = topo.lids_of(id);
            Some((p.lid, Destination { switch, port, lids }))
        });
        places.collect()
    }

    /// A switch and those between it and the root of multicast.
    fn upwards(&self, switch: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(switch), |ix| Some(self.parent[*ix]?.to))
    }

    /// Enters destinations into the table of a switch. With a new graph what it had stays as far as that is still a way and no more than the
    /// way's share: a cable that goes moves no more than it carried.
    fn assign(
        &mut self,
        topo: &mut Topology,
        from: usize,
        added: &[(Lid, Destination)],
        anew: bool,
    ) {
        let graph = &self.graph;
        let load = &mut self.load[from];
        let node = topo.node_mut(self.switches[from]);
        let Some(switch) = node.and_then(|n| n.switch.as_mut()) else {
            return;
        };
        let end = added.last().map_or(0, |(lid, at)| lid.0 + at.lids - 1);
        let slots = switch.lft.len().max(usize::from(end) / 64 * 64 + 64);
        let old = if anew {
            std::mem::take(&mut switch.lft)
        } else {
            Vec::new()
        };
        switch.lft.resize(slots, NO_PORT);
        let mut ways: Vec<Vec<&Way>> = vec![Vec::new(); self.switches.len()];
        for (_, at) in added.iter().filter(|(_, at)| at.switch != from) {
            if ways[at.switch].is_empty() {
                ways[at.switch] = graph.ways(from, at.switch).collect();
            }
        }
        if !old.is_empty() {
            let mut share = vec![0.0_f64; load.len()];
            let single = || {
                let far = added.iter().filter(|(_, at)| at.switch != from);
                far.filter(|(_, at)| at.lids == 1)
            };
            for (_, at) in single().filter(|(_, at)| at.port != 0) {
                let ways = &ways[at.switch];
                for way in ways {
                    if let Some(share) = share.get_mut(usize::from(way.port)) {
                        *share += 1.0 / ways.len() as f64;
                    }
                }
            }
            for (lid, at) in single() {
                let slot = usize::from(lid.0);
                let Some(&out) = old.get(slot) else { continue };
                if !ways[at.switch].iter().any(|w| w.port == out) {
                    continue;
                }
                let port = usize::from(out);
                if at.port == 0 {
                    switch.lft[slot] = out;
                } else if f64::from(load[port]) < (share[port] - 1e-6).ceil() {
                    switch.lft[slot] = out;
                    load[port] += 1;
                }
            }
        }
        for &(lid, at) in added {
            // Ways of this port's other LIDs.
            let mut used: Vec<&Way> = Vec::new();
            for slot in (lid.0..).take(at.lids.into()).map(usize::from) {
                if switch.lft[slot] != NO_PORT {
                    continue;
                }
                let out = if at.switch == from {
                    at.port
                } else {
                    let best = ways[at.switch].iter().copied().min_by_key(|way| {
                        let by_switch = used.iter().filter(|u| u.to == way.to).count();
                        let by_port = used.iter().filter(|u| u.port == way.port).count();
                        (by_switch, by_port, load.get(usize::from(way.port)))
                    });
                    used.extend(best.filter(|_| at.lids > 1));
                    best.map_or(NO_PORT, |way| way.port)
                };
                switch.lft[slot] = out;
                // Ways to switches themselves carry next to nothing.
                if let Some(load) = load.get_mut(usize::from(out)).filter(|_| at.port != 0) {
                    *load += 1;
                }
            }
        }
    }

    fn remove(&mut self, topo: &mut Topology, lid: Lid) {
        let Some(at) = self.destinations.remove(&lid) else {
            return;
        };
        for from in 0..self.switches.len() {
            let node = topo.node_mut(self.switches[from]);
            let Some(switch) = node.and_then(|n| n.switch.as_mut()) else {
                continue;
            };
            for slot in switch
                .lft
                .iter_mut()
                .skip(lid.0.into())
                .take(at.lids.into())
            {
                let out = usize::from(std::mem::replace(slot, NO_PORT));
                if let Some(load) = self.load[from].get_mut(out).filter(|_| at.port != 0) {
                    *load = load.saturating_sub(1);
                }
            }
        }
    }

    /// Calls `hop` for each port that a packet goes through from one end port to a LID of another, out and in, by the tables as they shall be;
    /// false if it does not arrive.
    pub(super) fn trace<'a>(
        topo: &'a Topology,
        from: PortId,
        (to, dlid): (PortId, Lid),
        mut hop: impl FnMut(&'a super::topology::PortData),
    ) -> bool {
        if from == to {
            topo.port(from).into_iter().for_each(hop);
            return true;
        }
        // A node is looked up once: this is most of what a path query costs.
        let (mut at, mut node) = (from, topo.node(from.0));
        // As many hops as a route may have.
        for _ in 0..=wire::mad::MAX_HOPS {
            if at.0 == to.0 {
                return true;
            }
            let out = match node.map(|n| n.switch.as_ref()) {
                Some(Some(switch)) => switch.lft.get(usize::from(dlid.0)).copied(),
                Some(None) if at == from => Some(from.1),
                _ => None,
            };
            let port = |node: Option<&'a Node>, port: u8| node?.ports.get(usize::from(port));
            let Some((out, peer)) = out
                .and_then(|out| port(node, out))
                .and_then(|out| Some((out, out.link?)))
            else {
                return false;
            };
            node = topo.node(peer.0);
            let Some(into) = port(node, peer.1) else {
                return false;
            };
            hop(out);
            hop(into);
            at = peer;
        }
        false
    }
}
