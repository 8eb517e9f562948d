//! Many machines in virtual time, with loss and restarts. A failure is its seed.

mod common;

use arp::{Destination, NeighbourConfig, PathError, Resolved, Source};
use common::*;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::ipoib::{ArpPacket, EncapHeader, EtherType};
use wire::{Gid, Lid};

enum Event {
    Deliver {
        node: usize,
        from: Source,
        payload: Vec<u8>,
    },
    Answer {
        node: usize,
        life: u32,
        gid: Gid,
        answered: bool,
    },
}

/// Node `i` is host `i + 1`.
struct Network {
    now: Instant,
    hosts: Vec<Host>,
    /// Current QPN and LID of each node; the QPN changes with each restart.
    qpns: Vec<u32>,
    lids: Vec<u16>,
    events: BTreeMap<(Instant, u64), Event>,
    sequence: u64,
    random: u64,
    /// Percent of packets and path queries lost.
    loss: u64,
}

impl Network {
    fn new(nodes: u32, seed: u64) -> Self {
        let now = Instant::now();
        let mut network = Network {
            now,
            hosts: Vec::new(),
            qpns: vec![0x100; nodes as usize],
            lids: (1..=nodes as u16).collect(),
            events: BTreeMap::new(),
            sequence: 0,
            random: seed,
            loss: 0,
        };
        for node in 0..nodes as usize {
            network.hosts.push(Host::new(
                NeighbourConfig::default(),
                seed + node as u64,
                now,
            ));
            network.restart(node);
        }
        network
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn address(&self, node: usize) -> wire::ipoib::LinkAddress {
        link(node as u32 + 1, self.qpns[node])
    }

    /// A new process: it knows nothing, and has another QPN.
    fn restart(&mut self, node: usize) {
        self.qpns[node] += 1;
        let n = node as u32 + 1;
        let mut host = Host::new(NeighbourConfig::default(), u64::from(n), self.now);
        host.machine.add_address(self.now, v4(n), 16);
        host.machine.add_address(self.now, v6(n), 64);
        host.machine.link_up(self.now, self.address(node));
        self.hosts[node] = host;
        self.collect(node);
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + delay, self.sequence), event);
    }

    /// Takes a node's outputs into the network.
    fn collect(&mut self, node: usize) {
        self.hosts[node].drain();
        let address = self.address(node);
        for gid in self.hosts[node].queries.clone() {
            // The query stays in the host's set until it is answered.
            let pending = |e: &Event| {
                matches!(e, Event::Answer { node: n, gid: g, life, .. }
                if (*n, *g, *life) == (node, gid, self.qpns[node]))
            };
            if !self.events.values().any(pending) {
                let answered = self.below(100) >= self.loss;
                let delay = if answered { MS } else { 2 * SECOND };
                self.schedule(
                    delay,
                    Event::Answer {
                        node,
                        life: self.qpns[node],
                        gid,
                        answered,
                    },
                );
            }
        }
        for (to, payload) in std::mem::take(&mut self.hosts[node].transmitted) {
            let receivers: Vec<usize> = match to {
                Destination::Broadcast | Destination::Group(_) => {
                    (0..self.hosts.len()).filter(|&n| n != node).collect()
                }
                Destination::Unicast(to) => self.node_at(to).into_iter().collect(),
            };
            let multicast = !matches!(to, Destination::Unicast(_));
            for receiver in receivers {
                if self.below(100) >= self.loss {
                    let delay = Duration::from_micros(5 + self.below(200));
                    let from = Source {
                        lid: Lid(self.lids[node]),
                        ..from(address, multicast)
                    };
                    self.schedule(
                        delay,
                        Event::Deliver {
                            node: receiver,
                            from,
                            payload: payload.clone(),
                        },
                    );
                }
            }
        }
    }

    /// Who gets a packet sent there.
    fn node_at(&self, to: Resolved) -> Option<usize> {
        let node = self.lids.iter().position(|&lid| Lid(lid) == to.path.dlid)?;
        self.address(node)
            .same_destination(&to.address)
            .then_some(node)
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let event = self.events.keys().next().map(|&(at, _)| at);
            let timer = self
                .hosts
                .iter()
                .filter_map(|h| h.machine.poll_timeout())
                .min();
            let Some(at) = event.into_iter().chain(timer).min().filter(|&at| at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            if event.is_some_and(|at| at <= self.now) {
                let (_, event) = self.events.pop_first().expect("peeked at");
                self.handle(event);
            } else {
                for node in 0..self.hosts.len() {
                    self.hosts[node].now = self.now;
                    if self.hosts[node]
                        .machine
                        .poll_timeout()
                        .is_some_and(|at| at <= self.now)
                    {
                        self.hosts[node].machine.handle_timeout(self.now);
                        self.collect(node);
                    }
                }
            }
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        let node = match event {
            Event::Deliver {
                node,
                from,
                payload,
            } => {
                let machine = &mut self.hosts[node].machine;
                match EncapHeader::split(&payload).expect("header") {
                    (EtherType::ARP, packet) => {
                        machine.handle_arp(self.now, from, &ArpPacket::parse(packet).expect("ARP"));
                    }
                    (_, packet) => machine.handle_nd(self.now, from, packet),
                }
                node
            }
            Event::Answer {
                node,
                life,
                gid,
                answered,
            } => {
                if life == self.qpns[node] {
                    self.hosts[node].queries.remove(&gid);
                    let lid = self.lids[(gid.guid().0 & 0xffff) as usize - 1];
                    let result = if answered {
                        Ok(record(lid))
                    } else {
                        Err(PathError::TimedOut)
                    };
                    self.hosts[node].machine.path_result(self.now, gid, result);
                }
                node
            }
        };
        self.hosts[node].now = self.now;
        self.collect(node);
    }

    /// A packet from `node` to `ip` the way the data path does it; where it arrives, if it goes at once.
    fn send(&mut self, node: usize, ip: IpAddr) -> Option<usize> {
        self.hosts[node].now = self.now;
        let entry = self.hosts[node].table.get(&ip).copied();
        if !self.hosts[node].use_table(ip) {
            self.hosts[node].send(ip);
        }
        self.collect(node);
        self.node_at(entry?)
    }
}

#[test]
fn the_first_packet_arrives_within_milliseconds() {
    let mut pair = Network::new(2, 1);
    pair.run(10 * SECOND);
    for ip in [v4(2), v6(2)] {
        assert_eq!(pair.send(0, ip), None);
        pair.run(5 * MS);
        assert_eq!(pair.hosts[0].flushed.pop(), Some((ip, pair.hosts[0].sent)));
        assert_eq!(pair.send(0, ip), Some(1));
    }
    // The other learned from the request: its answer needs no request of its own.
    assert_eq!(pair.send(1, v4(1)), Some(0));
}

#[test]
fn idle_neighbours_make_no_traffic() {
    let mut network = Network::new(5, 1);
    for node in 0..5u32 {
        network.send(node as usize, v4((node + 1) % 5 + 1));
    }
    network.run(150 * SECOND);
    assert!(network.events.is_empty());
    assert!(
        network
            .hosts
            .iter()
            .all(|h| h.table.is_empty() && h.machine.poll_timeout().is_none())
    );
}

#[test]
fn a_restart_with_a_new_qpn_is_followed_at_once() {
    let mut network = Network::new(10, 3);
    for node in 1..10 {
        network.send(node, v4(1));
        network.send(node, v6(1));
    }
    // Until the first life's announcements are over: one still under way may arrive after those of the second.
    network.run(10 * SECOND);
    network.restart(0);
    network.run(MS);
    for node in 1..10 {
        for ip in [v4(1), v6(1)] {
            assert_eq!(
                network.send(node, ip),
                Some(0),
                "{node} to {ip}: {:?}",
                network.hosts[node].machine.get(network.now, ip)
            );
        }
    }
}

#[test]
fn a_restart_with_lost_announcements_is_found_by_probes() {
    let mut network = Network::new(3, 3);
    network.send(1, v4(1));
    network.run(10 * SECOND);
    network.loss = 100;
    network.restart(0);
    network.run(3 * SECOND);
    network.loss = 0;
    let mut seconds = 0;
    while network.send(1, v4(1)).is_none() && seconds < 100 {
        network.run(SECOND);
        seconds += 1;
    }
    // Reachable at most 45 s, delay 5 s, three probes, and a new resolution.
    assert!((1..=55).contains(&seconds), "{seconds}");
}

#[test]
fn every_pair_talks_after_loss_and_restarts() {
    for seed in 0..6 {
        const NODES: u64 = 12;
        let mut network = Network::new(NODES as u32, seed);
        network.loss = 20;
        for _ in 0..1200 {
            let (node, peer) = (
                network.below(NODES) as usize,
                network.below(NODES) as u32 + 1,
            );
            if peer as usize != node + 1 {
                let ip = if network.below(2) == 0 {
                    v4(peer)
                } else {
                    v6(peer)
                };
                network.send(node, ip);
            }
            match network.below(150) {
                0 => network.restart(node),
                1 => {
                    // Another SM gives another LID, and says so to all.
                    network.lids[node] += NODES as u16;
                    for node in 0..NODES as usize {
                        let now = network.now;
                        network.hosts[node].machine.refresh_paths(now);
                        network.collect(node);
                    }
                }
                _ => {}
            }
            network.run(100 * MS);
        }
        network.loss = 0;
        let pairs = (0..NODES as usize).flat_map(|a| (0..NODES as u32).map(move |b| (a, b)));
        let pairs: Vec<_> = pairs.filter(|&(a, b)| a != b as usize).collect();
        // As long as the slowest recovery takes: all keep talking, and all get through in the end.
        for _ in 0..60 {
            for &(a, b) in &pairs {
                network.send(a, v4(b + 1));
                network.send(a, v6(b + 1));
            }
            network.run(SECOND);
        }
        for &(a, b) in &pairs {
            for ip in [v4(b + 1), v6(b + 1)] {
                assert_eq!(
                    network.send(a, ip),
                    Some(b as usize),
                    "seed {seed}: {a} to {ip}"
                );
            }
        }
    }
}
