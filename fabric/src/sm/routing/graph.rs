//! The graph of switches, and which ways of it lead to which switch.

use super::super::config::RoutingEngine;
use std::collections::VecDeque;
use wire::Guid;

/// Farther than any switch: no way.
pub(super) const FAR: u16 = u16::MAX;

/// One direction of a cable between switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// To leave by.
    pub(super) port: u8,
    /// Index of the switch at the other end.
    pub(super) to: usize,
    /// Its port.
    pub(super) peer_port: u8,
}

/// Switches by index, their cables, and what may lead where.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) ways: Vec<Vec<Way>>,
    /// Hops from a switch (first index) to another, by the ways that may be used.
    hops: Vec<Vec<u16>>,
    /// Up/down only: is the rest of the way from a switch to another one downwards?
    descends: Vec<Vec<bool>>,
    /// Up/down only: place of each switch in the order in which the roots come first; empty otherwise.
    order: Vec<usize>,
    /// Where the tree of multicast begins.
    pub(super) root: usize,
}

impl Graph {
    /// Finds the ways. `hosts` tells which switches have channel adapters; `guids` are those of the switches.
    pub(super) fn new(
        ways: Vec<Vec<Way>>,
        engine: &RoutingEngine,
        guids: &[Guid],
        hosts: &[bool],
    ) -> Self {
        let mut graph = Graph {
            ways,
            ..Graph::default()
        };
        let count = graph.ways.len();
        graph.hops = (0..count).map(|from| graph.distances(&[from])).collect();
        let far = |ix: &usize| graph.hops[*ix].iter().filter(|d| **d != FAR).max().copied();
        graph.root = (0..count)
            .min_by_key(|ix| (far(ix), hosts[*ix]))
            .unwrap_or_default();
        if let RoutingEngine::UpDown { roots } = engine {
            let given = (0..count)
                .filter(|ix| roots.contains(&guids[*ix]))
                .collect();
            graph.up_down(given, hosts);
        }
        graph
    }

    /// Hops from the nearest of `from`.
    fn distances(&self, from: &[usize]) -> Vec<u16> {
        let mut distance = vec![FAR; self.ways.len()];
        let mut queue: VecDeque<usize> = from.iter().copied().collect();
        from.iter().for_each(|ix| distance[*ix] = 0);
        while let Some(at) = queue.pop_front() {
            for way in &self.ways[at] {
                if distance[way.to] == FAR {
                    distance[way.to] = distance[at] + 1;
                    queue.push_back(way.to);
                }
            }
        }
        distance
    }

    /// Allows only ways that go up and then down: a cycle of channels that wait for each other would need one that goes up again. Roots are those
    /// that were given; else the switches without hosts that are equally far from all that have some (the top of a fat tree); else, or if those
    /// leave somebody without a way, one in the middle, from which everything can be reached.
    fn up_down(&mut self, given: Vec<usize>, hosts: &[bool]) {
        let shortest = std::mem::take(&mut self.hops);
        let tops = (0..self.ways.len()).filter(|ix| {
            let mut to_hosts = hosts.iter().zip(&shortest[*ix]).filter(|(h, _)| **h);
            let first = to_hosts.next().map(|(_, d)| *d);
            !hosts[*ix] && first.is_some() && to_hosts.all(|(_, d)| Some(*d) == first)
        });
        let tops = tops.collect();
        for roots in [given, tops, vec![self.root]] {
            if roots.is_empty() {
                continue;
            }
            self.rank(&roots);
            self.root = roots[0];
            let missing = (0..hosts.len())
                .filter(|to| hosts[*to])
                .find(|to| !self.reaches(*to, |from| shortest[from][*to] != FAR));
            match missing {
                None => break,
                Some(to) => tracing::warn!(
                    ?roots,
                    switch = to,
                    "these roots leave a switch with hosts without a way: others are taken"
                ),
            }
        }
    }

    /// Is there a way to a switch from all that `need` one?
    fn reaches(&self, to: usize, need: impl Fn(usize) -> bool) -> bool {
        (0..self.ways.len()).all(|from| self.hops[from][to] != FAR || !need(from))
    }

    /// A new switch with hosts may be one that others have no way to.
    pub(super) fn serves(&self, to: usize, hosts: &[bool]) -> bool {
        self.order.is_empty() || self.reaches(to, |from| hosts[from])
    }

    fn rank(&mut self, roots: &[usize]) {
        let count = self.ways.len();
        let mut roots = roots.to_vec();
        let mut rank = self.distances(&roots);
        // Parts of the subnet without a root get one of their own.
        while let Some(other) = rank.iter().position(|r| *r == FAR) {
            roots.push(other);
            rank = self.distances(&roots);
        }
        let mut sorted: Vec<usize> = (0..count).collect();
        sorted.sort_by_key(|ix| (rank[*ix], *ix));
        self.order = vec![0; count];
        for (place, ix) in sorted.iter().enumerate() {
            self.order[*ix] = place;
        }
        self.hops = vec![vec![FAR; count]; count];
        self.descends = vec![vec![false; count]; count];
        for to in 0..count {
            // Those that reach it by going down only: they are found by going up from it.
            self.hops[to][to] = 0;
            self.descends[to][to] = true;
            let mut queue = VecDeque::from([to]);
            while let Some(at) = queue.pop_front() {
                for way in &self.ways[at] {
                    if self.is_up(at, way.to) && self.hops[way.to][to] == FAR {
                        self.hops[way.to][to] = self.hops[at][to] + 1;
                        self.descends[way.to][to] = true;
                        queue.push_back(way.to);
                    }
                }
            }
            // The others go up, to one that was decided on before.
            for &from in sorted.iter().filter(|from| **from != to) {
                if self.hops[from][to] == FAR {
                    let above = self.ways[from].iter().filter(|w| self.is_up(from, w.to));
                    let best = above.map(|w| self.hops[w.to][to]).min().unwrap_or(FAR);
                    self.hops[from][to] = best.saturating_add(1);
                }
            }
        }
    }

    fn is_up(&self, from: usize, to: usize) -> bool {
        self.order[to] < self.order[from]
    }

    /// The ways from one switch to another.
    pub(super) fn ways(&self, from: usize, to: usize) -> impl Iterator<Item = &Way> {
        let near = self.hops[from][to].checked_sub(1);
        let near = near.filter(|_| self.hops[from][to] != FAR);
        self.ways[from].iter().filter(move |way| {
            Some(self.hops[way.to][to]) == near
                && (self.order.is_empty()
                    || self.descends[from][to] != self.is_up(from, way.to)
                        && self.descends[way.to][to] >= self.descends[from][to])
        })
    }

    /// A spanning tree of the switches: by switch, the way to its parent.
    pub(super) fn span(&self) -> Vec<Option<Way>> {
        let count = self.ways.len();
        if count == 0 {
            return Vec::new();
        }
        let depth = self.distances(&[self.root]);
        let parent = |ix: usize| {
            let near = depth[ix].checked_sub(1).filter(|_| depth[ix] != FAR)?;
            self.ways[ix].iter().find(|w| depth[w.to] == near).copied()
        };
        (0..count).map(parent).collect()
    }
}
