//! The nodes of a subnet, their cables, and which host is where.

use super::nodes::{self, Plane, SubnetNode};
use crate::cli::parse_guid;
use fabric::link::capture::Tap;
use fabric::link::local::LocalCable;
use fabric::link::{Link, LinkSink};
use fabric::node::ManagementPort;
use fabric::topology::{NodeKind, Topology};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use wire::Guid;

/// A port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SwitchPort {
    /// Index of the node.
    pub(super) node: usize,
    pub(super) port: u8,
}

/// Where the topology has a port of a channel adapter: at a switch, with a cable to its stand-in.
struct Place {
    at: SwitchPort,
    cable: usize,
    /// The end of the cable at the switch.
    end: usize,
}

/// Why a host cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The host with its GUID, by this name.
    Taken(Guid, String),
    /// The topology has no place for it, and no port is free.
    Full(Option<Guid>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Taken(guid, who) => {
                write!(f, "port GUID {guid} is attached already, from {who}")
            }
            Refusal::Full(None) => {
                f.write_str("all ports of the switches are taken or held down (`ipoib fault list`)")
            }
            Refusal::Full(Some(guid)) => write!(
                f,
                "the topology has no port GUID {guid}, and all ports of its switches are taken or held down (`ipoib fault list`)"
            ),
        }
    }
}

/// An attached host.
pub(super) struct Attached {
    pub(super) at: SwitchPort,
    /// What its link delivers to.
    pub(super) sink: Arc<dyn LinkSink>,
}

struct Host {
    guid: Option<Guid>,
    who: String,
}

/// See the module.
pub(super) struct Site {
    pub(super) nodes: Vec<SubnetNode>,
    /// Those of the topology, in its order.
    cables: Vec<LocalCable>,
    pub(super) tap: Arc<Tap>,
    places: HashMap<Guid, Place>,
    /// Switches where channel adapters are: free ports of others are taken last.
    leaves: Vec<bool>,
    /// Held while a host comes or goes.
    hosts: Mutex<BTreeMap<SwitchPort, Host>>,
}

impl Site {
    /// Plugs in the cables of `topology`, whose nodes these are.
    pub(super) fn new(topology: &Topology, nodes: Vec<SubnetNode>, tap: Arc<Tap>) -> Site {
        let mut places = HashMap::new();
        let mut leaves = vec![false; nodes.len()];
        for (cable, wiring) in topology.cables.iter().enumerate() {
            for end in [0, 1] {
                let (here, there) = (wiring.ends[end], wiring.ends[1 - end]);
                let ca = &topology.nodes[there.node];
                if topology.nodes[here.node].kind == NodeKind::Switch && ca.kind == NodeKind::Ca {
                    leaves[here.node] = true;
                    let at = SwitchPort {
                        node: here.node,
                        port: here.port,
                    };
                    places.insert(ca.port_guid(there.port), Place { at, cable, end });
                }
            }
        }
        let cables = topology.cables.iter();
        let cables = cables
            .map(|cable| nodes::connect(&nodes, &tap, cable.ends))
            .collect();
        Site {
            nodes,
            cables,
            tap,
            places,
            leaves,
            hosts: Mutex::default(),
        }
    }

    /// Does the topology say where hosts belong?
    pub(super) fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Attaches a host: where the topology has its GUID, instead of its stand-in; else at a free port, at the switch with the fewest hosts.
    /// `link` makes the link out of what it delivers to. The link is still to come up.
    pub(super) fn attach(
        &self,
        guid: Option<Guid>,
        who: String,
        link: impl FnOnce(&Arc<dyn LinkSink>) -> Arc<dyn Link>,
    ) -> Result<Attached, Refusal> {
        let mut hosts = self.hosts.lock();
        if let Some(guid) = guid
            && let Some(other) = hosts.values().find(|host| host.guid == Some(guid))
        {
            return Err(Refusal::Taken(guid, other.who.clone()));
        }
        let place = guid.and_then(|guid| self.places.get(&guid));
        let at = match place {
            Some(place) => {
                self.cables[place.cable].cut();
                place.at
            }
            None => self.free(&hosts).ok_or(Refusal::Full(guid))?,
        };
        let node = &self.nodes[at.node];
        let sink = node.sink(at.port).ok_or(Refusal::Full(guid))?;
        node.attach(at.port, link(&sink), &self.tap);
        hosts.insert(at, Host { guid, who });
        Ok(Attached { at, sink })
    }

    /// A free port at the switch with the fewest hosts, present or planned, a leaf if there are any.
    fn free(&self, hosts: &BTreeMap<SwitchPort, Host>) -> Option<SwitchPort> {
        let free = self.nodes.iter().enumerate().filter_map(|(node, n)| {
            // A new host is not the one whose link somebody has cut.
            let is_cut = |port| n.switch_port(port).is_some_and(|p| p.faults.is_down());
            let port = n.switch()?.free_ports().find(|port| !is_cut(*port))?;
            Some(SwitchPort { node, port })
        });
        free.min_by_key(|at| {
            let planned = self.places.values().map(|place| place.at);
            let unplanned = hosts.iter().filter(|(_, host)| {
                host.guid
                    .is_none_or(|guid| !self.places.contains_key(&guid))
            });
            let all = planned.chain(unplanned.map(|(at, _)| *at));
            (
                !self.leaves[at.node],
                all.filter(|a| a.node == at.node).count(),
            )
        })
    }

    /// Takes the link of a host away; its stand-in comes back.
    pub(super) fn detach(&self, at: SwitchPort) {
        let mut hosts = self.hosts.lock();
        let node = &self.nodes[at.node];
        if let Some(switch) = node.switch() {
            switch.detach_link(at.port);
        }
        let guid = hosts.remove(&at).and_then(|host| host.guid);
        if let Some(place) = guid.and_then(|guid| self.places.get(&guid)) {
            let cable = &self.cables[place.cable];
            node.attach(at.port, cable.end(place.end), &self.tap);
            cable.join();
        }
    }

    /// The port of a switch that the topology has at the other end of this port of a channel adapter.
    pub(super) fn across(&self, node: usize, port: u8) -> Option<SwitchPort> {
        let Plane::Ca(ports) = &self.nodes.get(node)?.plane else {
            return None;
        };
        let guid = ports.get(&port)?.attributes().gid().guid();
        Some(self.places.get(&guid)?.at)
    }

    /// Where a host is attached, by its GUID or where it comes from.
    pub(super) fn host(&self, name: &str) -> Option<SwitchPort> {
        let guid = parse_guid(name).ok();
        let hosts = self.hosts.lock();
        let host = hosts
            .iter()
            .find(|(_, host)| host.who == name || guid.is_some() && host.guid == guid);
        host.map(|(at, _)| *at)
    }

    /// Name of the switch.
    pub(super) fn name(&self, at: SwitchPort) -> &str {
        &self.nodes[at.node].name
    }

    /// Who is attached: switch, port, host.
    pub(super) fn attached(&self) -> Vec<(String, u8, String)> {
        let hosts = self.hosts.lock();
        hosts
            .iter()
            .map(|(at, host)| (self.name(*at).to_owned(), at.port, host.who.clone()))
            .collect()
    }
}
