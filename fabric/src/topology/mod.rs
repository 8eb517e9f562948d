//! The plan of a subnet: its nodes, and the cables between them. No running part of the subnet is here.

mod emit;
mod generate;
mod parse;
#[cfg(test)]
mod tests;

pub use generate::{BadShape, Shape};
pub use parse::TopologyError;

use std::collections::BTreeMap;
use wire::{Guid, LinkRate};

/// Nodes and cables. What [`Topology::parse`] and [`Shape::topology`] give is sound: names and GUIDs are unique, every cable has two ports that
/// exist, and no port has two cables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// In the order of the file.
    pub nodes: Vec<Node>,
    /// In the order of their first ends; the first end of each is the one whose node comes first.
    pub cables: Vec<Cable>,
}

/// A switch or channel adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// The name in the file, by which cables and tools call it.
    pub name: String,
    /// NodeDescription.
    pub description: String,
    /// IEEE company number, 24 bits.
    pub vendor_id: u32,
    /// Device ID of the vendor.
    pub device_id: u16,
    /// SystemImageGUID.
    pub system_image_guid: Guid,
    /// NodeGUID; of a switch also the GUID of port 0.
    pub guid: Guid,
    /// Number of external ports, from 1.
    pub ports: u8,
    /// GUIDs of ports of a channel adapter that are not the usual ones; see [`Node::port_guid`].
    pub port_guids: BTreeMap<u8, Guid>,
}

/// Kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// Switch.
    Switch,
    /// Channel adapter.
    Ca,
}

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// Index in [`Topology::nodes`].
    pub node: usize,
    /// From 1.
    pub port: u8,
}

/// A cable and what the port at each end can do; the link runs at [`Cable::rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cable {
    /// Its ends.
    pub ends: [PortId; 2],
    /// Width and speed that each end supports.
    pub rates: [LinkRate; 2],
}

impl Cable {
    /// What the two ends agree on.
    pub fn rate(&self) -> LinkRate {
        self.rates[0].min(self.rates[1])
    }
}

impl Node {
    /// A switch without more properties.
    pub fn switch(name: &str, guid: Guid, ports: u8) -> Node {
        Node {
            kind: NodeKind::Switch,
            name: name.into(),
            description: name.into(),
            vendor_id: 0,
            device_id: 0,
            system_image_guid: guid,
            guid,
            ports,
            port_guids: BTreeMap::new(),
        }
    }

    /// A channel adapter without more properties.
    pub fn ca(name: &str, guid: Guid, ports: u8) -> Node {
        Node {
            kind: NodeKind::Ca,
            ..Node::switch(name, guid, ports)
        }
    }

    /// GUID of a port: the one that was stated; else of a switch its own, of a channel adapter its own and the number of the port.
    pub fn port_guid(&self, port: u8) -> Guid {
        match self.kind {
            NodeKind::Switch => self.guid,
            NodeKind::Ca => self
                .port_guids
                .get(&port)
                .copied()
                .unwrap_or(Guid(self.guid.0.wrapping_add(u64::from(port)))),
        }
    }
}

impl Topology {
    /// One switch with nothing plugged in.
    pub fn single_switch(guid: Guid, ports: u8) -> Topology {
        let description = "ipoib software switch".into();
        Topology {
            nodes: vec![Node {
                description,
                ..Node::switch("switch", guid, ports)
            }],
            cables: Vec::new(),
        }
    }
}
