//! Topologies of regular shape.

use super::{Cable, Node, PortId, Topology};
use std::fmt;
use std::str::FromStr;
use wire::{Guid, LinkRate};

/// GUIDs of generated nodes: locally administered, apart from those that hosts invent.
const SWITCH_GUIDS: u64 = 0x0200_0000_0010_0000;
const CA_GUIDS: u64 = 0x0200_0000_0020_0000;

/// A regular topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Two levels: each leaf has one cable to each spine, and hosts. Written `fat-tree:SPINES,LEAVES,HOSTS_PER_LEAF`.
    FatTree {
        /// Switches of the upper level, 1 to 254.
        spines: u8,
        /// Switches of the lower level, 1 to 254.
        leaves: u8,
        /// Channel adapters at each leaf; together with the spines at most 254.
        hosts: u8,
    },
}

/// Not a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadShape;

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a shape: write fat-tree:SPINES,LEAVES,HOSTS_PER_LEAF, at least one spine and one leaf, and no switch with more than 254 ports",
        )
    }
}

impl std::error::Error for BadShape {}

impl FromStr for Shape {
    type Err = BadShape;

    fn from_str(text: &str) -> Result<Self, BadShape> {
        let numbers = text.strip_prefix("fat-tree:").ok_or(BadShape)?;
        let numbers: Result<Vec<u8>, _> = numbers.split(',').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[spines @ 1..=254, leaves @ 1..=254, hosts])
                if u16::from(spines) + u16::from(hosts) <= 254 =>
            {
                Ok(Shape::FatTree {
                    spines,
                    leaves,
                    hosts,
                })
            }
            _ => Err(BadShape),
        }
    }
}

impl Shape {
    /// Nodes and cables of this shape, all links of the default rate. Spines are `spine1`..., leaves `leaf1`..., channel adapters `host1`... in
    /// the order of the leaves; a leaf's hosts have its first ports, the spines its last.
    pub fn topology(self) -> Topology {
        let Shape::FatTree {
            spines,
            leaves,
            hosts,
        } = self;
        let guid = |base: u64, n: usize| Guid(base + n as u64);
        let mut topology = Topology::default();
        for n in 1..=usize::from(spines) {
            let (name, guid) = (format!("spine{n}"), guid(SWITCH_GUIDS, n));
            topology.nodes.push(Node::switch(&name, guid, leaves));
        }
        for n in 1..=usize::from(leaves) {
            let (name, guid) = (
                format!("leaf{n}"),
                guid(SWITCH_GUIDS, usize::from(spines) + n),
            );
            // `FromStr` lets no more than 254 through; whoever builds a larger one by hand gets no further ports.
            let ports = spines.saturating_add(hosts);
            topology.nodes.push(Node::switch(&name, guid, ports));
        }
        let mut connect = |a: PortId, b: PortId| {
            topology.cables.push(Cable {
                ends: [a.min(b), a.max(b)],
                rates: [LinkRate::default(); 2],
            })
        };
        for leaf in 0..leaves {
            let node = usize::from(spines) + usize::from(leaf);
            for spine in 0..spines {
                let down = PortId {
                    node: spine.into(),
                    port: leaf + 1,
                };
                connect(
                    PortId {
                        node,
                        port: hosts + spine + 1,
                    },
                    down,
                );
            }
            for host in 0..hosts {
                let n = usize::from(leaf) * usize::from(hosts) + usize::from(host);
                let ca = usize::from(spines) + usize::from(leaves) + n;
                connect(
                    PortId {
                        node,
                        port: host + 1,
                    },
                    PortId { node: ca, port: 1 },
                );
            }
        }
        topology.cables.sort_unstable_by_key(|cable| cable.ends);
        for n in 1..=usize::from(leaves) * usize::from(hosts) {
            // Room for a port GUID after each.
            topology
                .nodes
                .push(Node::ca(&format!("host{n}"), guid(CA_GUIDS, 2 * n), 1));
        }
        topology
    }
}
