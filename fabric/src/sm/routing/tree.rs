//! Trees of multicast: of each group the part of the spanning tree of all switches that lies between its members, kept up member by member.

use super::super::sa::Member;
use super::super::topology::PortId;
use super::Routing;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use wire::{Guid, Lid};

/// Bit by port of a switch.
pub(in super::super) type PortMask = [u16; 16];

/// Who is in a group, and the port masks that follow. Those who only send need a way in.
#[derive(Debug, Default)]
pub(super) struct Tree {
    members: BTreeMap<Guid, (PortId, bool)>,
    receivers: HashMap<PortId, usize>,
    total: usize,
    /// Members at each switch and behind it, seen from the root.
    below: HashMap<usize, usize>,
    masks: HashMap<usize, PortMask>,
}

impl Routing {
    /// Follows a group: `members` changed, or `anew` are all that it has. Tells the switches whose port masks are to be compared, by index.
    pub(in super::super) fn follow(
        &mut self,
        mlid: Lid,
        anew: bool,
        members: Vec<Member>,
    ) -> BTreeSet<usize> {
        let old = self.trees.remove(&mlid).filter(|_| !anew);
        let mut tree = old.unwrap_or_default();
        let mut touched = BTreeSet::new();
        for (guid, place) in members {
            tree.place(self, guid, place, &mut touched);
        }
        if !tree.members.is_empty() {
            self.trees.insert(mlid, tree);
        }
        if anew {
            touched.extend(0..self.switches.len());
        }
        touched
    }

    /// The mask of a group at a switch.
    pub(in super::super) fn mask(&self, mlid: Lid, switch: usize) -> PortMask {
        let tree = self.trees.get(&mlid);
        let mask = tree.and_then(|tree| tree.masks.get(&switch));
        mask.copied().unwrap_or_default()
    }
}

impl Tree {
    fn place(
        &mut self,
        routing: &Routing,
        guid: Guid,
        place: Option<(PortId, bool)>,
        touched: &mut BTreeSet<usize>,
    ) {
        let place = place.filter(|(at, _)| routing.index.contains_key(&at.0));
        let before = match place {
            Some(place) => self.members.insert(guid, place),
            None => self.members.remove(&guid),
        };
        if before == place {
            return;
        }
        let index = |at: &PortId| routing.index.get(&at.0).copied();
        // The ways of two members to the root have all ways in them whose use can change.
        let mut others = self.members.iter().filter(|(other, _)| **other != guid);
        let other = others.next().and_then(|(_, (at, _))| index(at));
        for (place, come) in [(before, false), (place, true)] {
            let Some((at, receives)) = place else {
                continue;
            };
            let Some(switch) = index(&at) else {
                continue;
            };
            if receives {
                let count = self.receivers.entry(at).or_default();
                step(count, come);
                if *count == 0 {
                    self.receivers.remove(&at);
                }
                let used = self.receivers.contains_key(&at);
                self.mark(switch, at.1, used, touched);
            }
            step(&mut self.total, come);
            for ix in routing.upwards(switch) {
                step(self.below.entry(ix).or_default(), come);
            }
            for from in [Some(switch), other].into_iter().flatten() {
                for ix in routing.upwards(from) {
                    let Some(way) = routing.parent[ix] else {
                        break;
                    };
                    let below = self.below.get(&ix).copied().unwrap_or_default();
                    let used = 0 < below && below < self.total;
                    self.mark(ix, way.port, used, touched);
                    self.mark(way.to, way.peer_port, used, touched);
                }
            }
        }
    }

    fn mark(&mut self, switch: usize, port: u8, used: bool, touched: &mut BTreeSet<usize>) {
        let mask = self.masks.entry(switch).or_default();
        let (word, bit) = (&mut mask[usize::from(port / 16)], 1 << (port % 16));
        if (*word & bit != 0) != used {
            *word ^= bit;
            touched.insert(switch);
        }
    }
}

fn step(count: &mut usize, up: bool) {
    *count = if up {
        *count + 1
    } else {
        count.saturating_sub(1)
    };
}

#[cfg(test)]
mod tests {
    use super::super::graph::Way;
    use super::*;
    use crate::sm::topology::NodeId;
    use slotmap::SlotMap;

    /// Switches in random trees; each has the ways to those below at ports from 1 on, and the one up at port 100.
    fn routing(rng: &mut fastrand::Rng) -> Routing {
        let mut names: SlotMap<NodeId, ()> = SlotMap::with_key();
        let mut routing = Routing::default();
        let count = rng.usize(1..9);
        let mut children = vec![0; count];
        for ix in 0..count {
            let id = names.insert(());
            routing.switches.push(id);
            routing.index.insert(id, ix);
            let up = (ix > 0 && rng.u8(..8) > 0).then(|| rng.usize(..ix));
            routing.parent.push(up.map(|to| {
                children[to] += 1;
                let (port, peer_port) = (100, children[to]);
                Way {
                    port,
                    to,
                    peer_port,
                }
            }));
        }
        routing
    }

    /// A way is used that has members on both sides, or a receiver at its end.
    fn wanted(routing: &Routing, members: &BTreeMap<Guid, (PortId, bool)>) -> Vec<PortMask> {
        let mut masks = vec![PortMask::default(); routing.switches.len()];
        let mut set = |ix: usize, port: u8| {
            masks[ix][usize::from(port / 16)] |= 1 << (port % 16);
        };
        for (at, _) in members.values().filter(|(_, receives)| *receives) {
            set(routing.index[&at.0], at.1);
        }
        for (ix, way) in routing.parent.iter().enumerate() {
            let is_below = |at: &PortId| {
                routing
                    .upwards(routing.index[&at.0])
                    .any(|above| above == ix)
            };
            let below = members.values().filter(|(at, _)| is_below(at)).count();
            if let Some(way) = way.filter(|_| below != 0 && below != members.len()) {
                set(ix, way.port);
                set(way.to, way.peer_port);
            }
        }
        masks
    }

    #[test]
    fn a_tree_follows_its_members_step_by_step() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut routing = routing(&mut rng);
            let mlid = Lid(0xc000);
            let mut members = BTreeMap::new();
            let mut before = wanted(&routing, &members);
            for step in 0..30 {
                let guid = Guid(rng.u64(1..7));
                let switch = routing.switches[rng.usize(..routing.switches.len())];
                let place = (rng.u8(..3) > 0).then(|| ((switch, rng.u8(20..24)), rng.bool()));
                match place {
                    Some(place) => members.insert(guid, place),
                    None => members.remove(&guid),
                };
                let touched = routing.follow(mlid, false, vec![(guid, place)]);
                let after = wanted(&routing, &members);
                for ix in 0..routing.switches.len() {
                    assert_eq!(
                        routing.mask(mlid, ix),
                        after[ix],
                        "seed {seed}, step {step}, switch {ix}"
                    );
                    assert!(
                        before[ix] == after[ix] || touched.contains(&ix),
                        "seed {seed}, step {step}: nobody was told of switch {ix}"
                    );
                }
                before = after;
            }
        }
    }
}
