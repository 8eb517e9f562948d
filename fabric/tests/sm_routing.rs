//! Routes on all kinds of subnets: shortest and even, or without cycles; several LIDs a port.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

#[path = "sm/model.rs"]
mod model;

use fabric::sm::{RoutingEngine, SmConfig};
use model::{MS, Model};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::mad::attr::{JoinState, PathRecord, PortState, path_record};
use wire::mad::sa::ComponentMask;
use wire::mad::{AttrId, MadStatus, Method, SaMad};
use wire::{Gid, Guid, Lid, PKey};

fn broadcast() -> Gid {
    broadcast_gid(PKey(0xffff), Scope(2))
}

struct Net {
    m: Model,
    hcas: Vec<usize>,
    switches: Vec<usize>,
    /// First free port of each node.
    free: HashMap<usize, u8>,
}

impl Net {
    fn new(config: SmConfig, switches: usize) -> Self {
        let mut m = Model::new(config);
        let first = m.hca(0x1000);
        let switches: Vec<usize> = (0..switches)
            .map(|n| m.switch(0xa0_0000 + n as u64, 64))
            .collect();
        let mut net = Net {
            m,
            hcas: vec![],
            switches,
            free: HashMap::new(),
        };
        net.plug(first, net.switches[0]);
        net.hcas.push(first);
        net
    }
    fn port(&mut self, node: usize) -> (usize, u8) {
        let next = self.free.entry(node).or_insert(1);
        *next += 1;
        (node, *next - 1)
    }
    fn plug(&mut self, a: usize, b: usize) {
        let (a, b) = (self.port(a), self.port(b));
        self.m.link(a, b);
    }
    /// A cable between switches, by their indices.
    fn cable(&mut self, a: usize, b: usize) {
        self.plug(self.switches[a], self.switches[b]);
    }
    fn host(&mut self, at: usize) {
        let hca = self.m.hca(0x1000 * (2 + self.hcas.len() as u64));
        self.plug(hca, self.switches[at]);
        self.hcas.push(hca);
    }
    fn up(mut self) -> Self {
        self.m.run(200 * MS);
        for &hca in &self.hcas {
            assert_eq!(self.m.state(hca), PortState::ACTIVE);
        }
        self
    }

    /// A connected subnet of `switches` switches with about three cables each, some parallel.
    fn random(config: SmConfig, switches: usize, seed: u64) -> Self {
        let mut net = Net::new(config, switches);
        for _ in 0..seed * 7 + 3 {
            net.m.random();
        }
        let mut below = |n: usize| net.m.random() as usize % n;
        let tree: Vec<(usize, usize)> = (1..switches).map(|n| (n, below(n))).collect();
        let more: Vec<(usize, usize)> = (0..switches * 2)
            .map(|_| (below(switches), below(switches)))
            .collect();
        let hosts: Vec<usize> = (0..switches * 2).map(|_| below(switches)).collect();
        for (a, b) in tree.into_iter().chain(more).filter(|(a, b)| a != b) {
            net.cable(a, b);
        }
        hosts.into_iter().for_each(|at| net.host(at));
        net.up()
    }

    fn peer(&self, at: (usize, u8)) -> Option<(usize, u8)> {
        self.m.nodes[at.0].ports[usize::from(at.1)].peer
    }
    fn is_switch(&self, node: usize) -> bool {
        self.m.nodes[node].switch.is_some()
    }
    /// Channels (switch and port) from a switch to a LID; `None` if it does not arrive.
    fn route(&self, from: usize, lid: u16) -> Option<Vec<(usize, u8)>> {
        let (mut at, mut channels) = (from, Vec::new());
        while self.is_switch(at) {
            let out = match self.m.nodes[at].lft[usize::from(lid)] {
                0 => return Some(channels),
                255 => return None,
                out => out,
            };
            channels.push((at, out));
            at = self.peer((at, out))?.0;
            if channels.len() > 64 {
                return None;
            }
        }
        Some(channels)
    }
    fn hops(&self, from: usize) -> HashMap<usize, usize> {
        let mut hops = HashMap::from([(from, 0)]);
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for port in 1..=self.m.nodes[at].info.num_ports {
                if let Some((next, _)) = self.peer((at, port)).filter(|p| self.is_switch(p.0))
                    && !hops.contains_key(&next)
                {
                    hops.insert(next, hops[&at] + 1);
                    queue.push_back(next);
                }
            }
        }
        hops
    }
    fn switch_of(&self, hca: usize) -> usize {
        self.peer((hca, 1)).unwrap().0
    }
    fn lids(&self, hca: usize) -> std::ops::Range<u16> {
        let lid = self.m.lid(hca).0;
        lid..lid + (1 << self.m.nodes[hca].ports[1].info.lmc)
    }

    #[track_caller]
    fn assert_reachable(&self) {
        for &from in &self.switches {
            for &hca in &self.hcas {
                for lid in self.lids(hca) {
                    let route = self.route(from, lid);
                    let route = route.unwrap_or_else(|| panic!("switch {from} to LID {lid}"));
                    let last = *route.last().unwrap();
                    assert_eq!(self.peer(last).unwrap().0, hca);
                }
            }
        }
    }

    #[track_caller]
    fn assert_shortest(&self) {
        for &from in &self.switches {
            let hops = self.hops(from);
            for &hca in &self.hcas {
                for lid in self.lids(hca) {
                    let route = self.route(from, lid).unwrap();
                    assert_eq!(
                        route.len() - 1,
                        hops[&self.switch_of(hca)],
                        "{from} to {lid}"
                    );
                }
            }
        }
    }

    /// LIDs of hosts by the cable that a switch sends them by, for each neighbour: parallel cables carry the same, give or take one.
    #[track_caller]
    fn assert_parallel_even(&self) {
        for &from in &self.switches {
            let mut by_neighbour: BTreeMap<usize, BTreeMap<u8, usize>> = BTreeMap::new();
            for port in 1..=self.m.nodes[from].info.num_ports {
                if let Some((to, _)) = self.peer((from, port)).filter(|p| self.is_switch(p.0)) {
                    let lids = self.hcas.iter().flat_map(|h| self.lids(*h));
                    let used = lids.filter(|l| self.m.nodes[from].lft[usize::from(*l)] == port);
                    by_neighbour
                        .entry(to)
                        .or_default()
                        .insert(port, used.count());
                }
            }
            for (to, loads) in by_neighbour {
                let (least, most) = (loads.values().min(), loads.values().max());
                assert!(
                    most.unwrap() - least.unwrap() <= 1,
                    "{from} to {to}: {loads:?}"
                );
            }
        }
    }

    /// Which channel waits for which: must have no cycle (a deadlock is one).
    fn has_cycle(&self) -> bool {
        let mut waits: BTreeMap<(usize, u8), BTreeSet<(usize, u8)>> = BTreeMap::new();
        let all = self.hcas.iter().flat_map(|h| self.lids(*h));
        let all = all.chain(self.switches.iter().map(|s| self.m.lid(*s).0));
        for lid in all {
            for &from in &self.switches {
                for pair in self.route(from, lid).unwrap_or_default().windows(2) {
                    waits.entry(pair[0]).or_default().insert(pair[1]);
                    waits.entry(pair[1]).or_default();
                }
            }
        }
        // Channels that wait for nobody are taken away until none is left or a cycle remains.
        loop {
            let free: Vec<_> = waits
                .iter()
                .filter(|(_, w)| w.is_empty())
                .map(|(c, _)| *c)
                .collect();
            if free.is_empty() {
                return !waits.is_empty();
            }
            for channel in free {
                waits.remove(&channel);
                for waiting in waits.values_mut() {
                    waiting.remove(&channel);
                }
            }
        }
    }
}

fn up_down(roots: Vec<Guid>) -> SmConfig {
    SmConfig {
        routing: RoutingEngine::UpDown { roots },
        ..SmConfig::default()
    }
}

/// `leaves` with four hosts each below `spines`, with `cables` to each.
fn fat_tree(config: SmConfig, leaves: usize, spines: usize, cables: usize) -> Net {
    let mut net = Net::new(config, leaves + spines);
    for leaf in 0..leaves {
        for spine in leaves..leaves + spines {
            (0..cables).for_each(|_| net.cable(leaf, spine));
        }
        (0..4).for_each(|_| net.host(leaf));
    }
    net.up()
}

fn ring(config: SmConfig) -> Net {
    let mut net = Net::new(config, 6);
    for n in 0..6 {
        net.cable(n, (n + 1) % 6);
        (0..2).for_each(|_| net.host(n));
    }
    net.up()
}

#[test]
fn the_least_hops_and_even_loads_on_any_subnet() {
    for seed in 0..20 {
        let net = Net::random(SmConfig::default(), 4 + seed as usize, seed);
        net.assert_reachable();
        net.assert_shortest();
        net.assert_parallel_even();
    }
}

#[test]
fn all_ways_up_carry_the_same() {
    let net = fat_tree(SmConfig::default(), 8, 3, 2);
    net.assert_shortest();
    for leaf in 0..8 {
        let leaf = net.switches[leaf];
        let mut loads: BTreeMap<u8, usize> = BTreeMap::new();
        for &hca in net.hcas.iter().filter(|h| net.switch_of(**h) != leaf) {
            let out = net.m.nodes[leaf].lft[usize::from(net.m.lid(hca).0)];
            *loads.entry(out).or_default() += 1;
        }
        assert_eq!(loads.len(), 6, "each cable up is used");
        let (least, most) = (loads.values().min(), loads.values().max());
        assert!(most.unwrap() - least.unwrap() <= 1, "{loads:?}");
    }
}

#[test]
fn up_and_down_without_cycles_on_any_subnet() {
    for seed in 0..20 {
        let net = Net::random(up_down(Vec::new()), 4 + seed as usize, seed);
        net.assert_reachable();
        net.assert_parallel_even();
        assert!(!net.has_cycle(), "seed {seed}");
    }
    assert!(
        ring(SmConfig::default()).has_cycle(),
        "the test sees cycles"
    );
    let net = ring(up_down(Vec::new()));
    net.assert_reachable();
    assert!(!net.has_cycle());
}

#[test]
fn the_top_of_a_fat_tree_is_found_or_said() {
    let roots = |n: std::ops::Range<u64>| n.map(|n| Guid(0xa0_0000 + n)).collect();
    for config in [up_down(Vec::new()), up_down(roots(6..9))] {
        let mut net = fat_tree(config, 6, 3, 1);
        net.assert_reachable();
        net.assert_shortest();
        assert!(!net.has_cycle());
        // Hosts at two of the roots: they have no way between them any more, so that others are chosen.
        net.host(6);
        net.host(7);
        let net = net.up();
        net.assert_reachable();
        assert!(!net.has_cycle());
    }
}

#[test]
fn several_lids_of_a_port_go_several_ways() {
    let config = SmConfig {
        lmc: 2,
        ..SmConfig::default()
    };
    let mut net = fat_tree(config, 4, 4, 1);
    net.assert_reachable();
    net.assert_shortest();
    let (a, b) = (net.hcas[1], *net.hcas.last().unwrap());
    assert_eq!(net.m.nodes[b].ports[1].info.lmc, 2);
    assert_eq!(net.m.lid(b).0 % 4, 0);
    let ways: BTreeSet<_> = net
        .lids(b)
        .map(|lid| net.route(net.switch_of(a), lid).unwrap())
        .collect();
    assert_eq!(ways.len(), 4, "four spines, four ways");
    // A table has them all; one that is named comes alone, asked for in any way.
    let ask = |net: &mut Net, method, mask: ComponentMask, record: PathRecord| {
        let record = PathRecord {
            sgid: net.m.gid(a),
            dgid: net.m.gid(b),
            ..record
        };
        let mask = mask | path_record::SGID;
        net.m.ask(
            a,
            SaMad::request(method, AttrId::PATH_RECORD, mask, &record.emit(), 7),
        )
    };
    let lids = net.lids(b);
    for n in 0..4 {
        let dlid = Lid(lids.start + n);
        let one = PathRecord {
            dlid,
            ..PathRecord::default()
        };
        let answer = ask(&mut net, Method::GET, path_record::DLID, one);
        assert_eq!(answer.header.status, MadStatus::OK);
        let path = PathRecord::parse(&answer.data).unwrap();
        assert_eq!((path.dlid, path.dgid), (dlid, net.m.gid(b)));
        assert_eq!(path.slid, Lid(net.m.lid(a).0 + n));
    }
    let beyond = PathRecord {
        dlid: Lid(lids.end + 400),
        ..PathRecord::default()
    };
    let answer = ask(&mut net, Method::GET, path_record::DLID, beyond);
    assert_eq!(answer.header.status, MadStatus::SA_NO_RECORDS);
    let answer = ask(
        &mut net,
        Method::GET,
        path_record::DGID,
        PathRecord::default(),
    );
    let path = PathRecord::parse(&answer.data).unwrap();
    assert_eq!(path.dlid, Lid(lids.start));
    let answer = ask(
        &mut net,
        Method::GET_TABLE,
        path_record::DGID,
        PathRecord::default(),
    );
    // RMPP: three segments of 200 bytes hold four records of 64.
    let length = u32::from_be_bytes(answer.emit()[32..36].try_into().unwrap());
    assert_eq!(length, 2 * 20 + 4 * 64);
    // Requests may come from any of a port's LIDs, and groups are joined all the same.
    let join = net.m.join(b, broadcast(), JoinState::FULL);
    assert_eq!(join.header.status, MadStatus::OK);
}

#[test]
fn a_cable_that_goes_moves_only_what_it_carried() {
    let mut net = fat_tree(SmConfig::default(), 4, 2, 2);
    let tables = |net: &Net| -> Vec<Vec<u8>> {
        net.switches
            .iter()
            .map(|s| net.m.nodes[*s].lft.clone())
            .collect()
    };
    let before = tables(&net);
    let leaf = net.switches[0];
    let cut = (1..=64).find(|p| net.peer((leaf, *p)).is_some_and(|(n, _)| net.is_switch(n)));
    let cut = cut.unwrap();
    let spine = net.peer((leaf, cut)).unwrap();
    net.m.cut((leaf, cut));
    net.m.run(50 * MS);
    net.assert_reachable();
    net.assert_shortest();
    for ((&switch, old), new) in net.switches.iter().zip(&before).zip(tables(&net)) {
        for (lid, (old, new)) in old.iter().zip(&new).enumerate() {
            let carried = (switch, *old) == (leaf, cut) || (switch, *old) == spine;
            assert!(
                old == new || carried,
                "{switch}: LID {lid} moved from {old} to {new}"
            );
        }
    }
}

#[test]
fn trees_change_without_circles_in_between() {
    let mut net = ring(SmConfig::default());
    for hca in net.hcas.clone() {
        net.m.join(hca, broadcast(), JoinState::FULL);
    }
    net.m.watched = Some(Lid(0xc000));
    for (a, b) in (0..6).map(|n| (n, (n + 1) % 6)) {
        let (a, b) = (net.switches[a], net.switches[b]);
        let port = (1..=64).find(|p| net.peer((a, *p)).is_some_and(|peer| peer.0 == b));
        let at = (a, port.unwrap());
        let peer = net.peer(at).unwrap();
        net.m.cut(at);
        net.m.run(50 * MS);
        net.m.link(at, peer);
        net.m.run(50 * MS);
        let others = net.m.multicast(net.hcas[1], Lid(0xc000)).len();
        assert_eq!(others, net.hcas.len() - 1);
    }
    assert_eq!(net.m.circles, 0);
}
