//! The nodes and cables of a subnet, made from its topology.

use super::control::{Control, Controls};
use crate::run::Inbox;
use fabric::hca::{Hca, HcaConfig};
use fabric::link::capture::Tap;
use fabric::link::local::{self, LocalCable};
use fabric::link::{Link, LinkSink};
use fabric::node::ManagementPort;
use fabric::switch::{Switch, SwitchConfig};
use fabric::topology::{self, NodeKind, PortId, Topology};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::LinkRate;
use wire::packet::Packet;

/// The data planes of a node.
pub(super) enum Plane {
    Switch {
        switch: Arc<Switch>,
        /// Its ports from 1 with the tap before them. Kept here: links hold only weak references.
        tapped: Vec<Arc<dyn LinkSink>>,
    },
    /// By port: each port that has a cable, or the first.
    Ca(BTreeMap<u8, Arc<Hca>>),
}

/// A port with a cable: its number, what it supports, what the link runs at.
type Wired = (u8, LinkRate, LinkRate);

/// A node of the topology.
pub(super) struct SubnetNode {
    pub(super) name: String,
    pub(super) plane: Plane,
}

impl SubnetNode {
    /// Makes a node; the control sides go to `controls`, whose inbox is `inbox`.
    fn new(
        node: &topology::Node,
        wired: &[Wired],
        controls: &mut Vec<Control>,
        inbox: &Inbox<Controls>,
        tap: &Arc<Tap>,
    ) -> SubnetNode {
        let sink = |index: usize| {
            let inbox = inbox.clone();
            Box::new(move |input| inbox.put((index, input)))
        };
        let plane = match node.kind {
            NodeKind::Switch => {
                let config = SwitchConfig {
                    guid: node.guid,
                    description: node.description.clone(),
                    ports: node.ports,
                };
                let (switch, mut control) = Switch::new(config, sink(controls.len()));
                control.follow_plan(node, 0);
                for (port, supported, active) in wired {
                    control.set_link_rate(*port, *supported, *active);
                }
                controls.push(Control::Switch(Box::new(control)));
                let ports = 1..=switch.ports();
                let tapped = ports.map(|port| tap.sink(switch.port(port))).collect();
                Plane::Switch { switch, tapped }
            }
            NodeKind::Ca => {
                let unwired = [(1, LinkRate::default(), LinkRate::default())];
                let ports = if wired.is_empty() { &unwired } else { wired };
                let hca = |(port, supported, active): &Wired| {
                    let config = HcaConfig {
                        port_guid: node.port_guid(*port),
                        ..HcaConfig::new(node.guid, &node.description)
                    };
                    let (hca, mut control) = Hca::new(config, sink(controls.len()));
                    control.follow_plan(node, *port);
                    control.set_link_rate(1, *supported, *active);
                    controls.push(Control::Hca(Box::new(control)));
                    (*port, hca)
                };
                Plane::Ca(ports.iter().map(hca).collect())
            }
        };
        SubnetNode {
            name: node.name.clone(),
            plane,
        }
    }

    /// All nodes of a topology, and their control sides.
    pub(super) fn all(
        topology: &Topology,
        inbox: &Inbox<Controls>,
        tap: &Arc<Tap>,
    ) -> (Vec<SubnetNode>, Controls) {
        let mut wired = vec![Vec::new(); topology.nodes.len()];
        for cable in &topology.cables {
            for (end, supported) in cable.ends.iter().zip(cable.rates) {
                wired[end.node].push((end.port, supported, cable.rate()));
            }
        }
        let mut controls = Vec::new();
        let nodes = topology.nodes.iter().zip(&wired);
        let nodes = nodes
            .map(|(node, wired)| SubnetNode::new(node, wired, &mut controls, inbox, tap))
            .collect();
        let mut machine = Controls::default();
        controls.into_iter().for_each(|c| machine.push(c));
        (nodes, machine)
    }

    /// Its management interface; of a channel adapter with several ports that of the first.
    pub(super) fn management(&self) -> Option<Arc<dyn ManagementPort>> {
        match &self.plane {
            Plane::Switch { switch, .. } => Some(switch.clone()),
            Plane::Ca(ports) => Some(ports.values().next()?.clone()),
        }
    }

    pub(super) fn switch(&self) -> Option<&Arc<Switch>> {
        match &self.plane {
            Plane::Switch { switch, .. } => Some(switch),
            Plane::Ca(_) => None,
        }
    }

    /// What the link of a port delivers to, at a switch with the tap before it if `tapped`; `None` if there is no such port.
    pub(super) fn sink(&self, port: u8, tap: bool) -> Option<Arc<dyn LinkSink>> {
        match &self.plane {
            Plane::Switch { switch, tapped } => {
                let tapped = tapped.get(usize::from(port).checked_sub(1)?)?;
                Some(if tap {
                    tapped.clone()
                } else {
                    switch.port(port)
                })
            }
            Plane::Ca(ports) => ports.get(&port).map(|hca| hca.clone() as Arc<dyn LinkSink>),
        }
    }

    /// Gives a port its link.
    pub(super) fn attach(&self, port: u8, link: Arc<dyn Link>) {
        match &self.plane {
            Plane::Switch { switch, .. } => switch.attach_link(port, link),
            Plane::Ca(ports) => {
                if let Some(hca) = ports.get(&port) {
                    hca.attach_link(link);
                }
            }
        }
    }
}

/// Plugs in a cable of the topology. Everything that passes it can be captured once: between switches where it is sent, else at the switch.
pub(super) fn connect(nodes: &[SubnetNode], tap: &Arc<Tap>, ends: [PortId; 2]) -> LocalCable {
    let between_switches = ends.iter().all(|end| nodes[end.node].switch().is_some());
    let side = |end: PortId| {
        let node = &nodes[end.node];
        let sink = node.sink(end.port, !between_switches);
        // A topology names only ports that its nodes have.
        let sink = sink.unwrap_or_else(|| Arc::new(Nothing));
        let attach = move |link: Arc<dyn Link>| {
            let tapped = node.switch().is_some();
            node.attach(end.port, if tapped { tap.link(link) } else { link });
        };
        (sink, attach)
    };
    local::connect(side(ends[0]), side(ends[1]))
}

/// A port that is not there.
struct Nothing;

impl LinkSink for Nothing {
    fn receive(&self, _packets: &[Packet<'_>]) {}
    fn link_changed(&self, _up: bool) {}
}
