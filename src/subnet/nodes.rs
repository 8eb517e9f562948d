//! The nodes and cables of a subnet, made from its topology.

use super::control::{Control, Controls};
use super::late::Late;
use crate::run::Inbox;
use fabric::hca::{Hca, HcaConfig};
use fabric::link::capture::Tap;
use fabric::link::fault::FaultLink;
use fabric::link::local::{self, LocalCable};
use fabric::link::{Link, LinkSink};
use fabric::node::ManagementPort;
use fabric::switch::{Switch, SwitchConfig};
use fabric::topology::{self, NodeKind, PortId, Topology};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::packet::Packet;
use wire::{Guid, LinkRate};

/// The data planes of a node.
pub(super) enum Plane {
    Switch {
        switch: Arc<Switch>,
        /// From port 1.
        ports: Vec<SwitchPort>,
    },
    /// By port: each port that has a cable, or the first.
    Ca(BTreeMap<u8, Arc<Hca>>),
}

/// What stands between a port of a switch and its link.
pub(super) struct SwitchPort {
    pub(super) faults: Arc<FaultLink>,
    /// What its link delivers to. Kept here: links hold only weak references.
    sink: Arc<dyn LinkSink>,
}

/// A port with a cable.
#[derive(Clone)]
struct Wired {
    port: u8,
    supported: LinkRate,
    /// What the link runs at.
    active: LinkRate,
    /// Another switch is at the other end.
    trunk: bool,
}

/// A node of the topology.
pub(super) struct SubnetNode {
    pub(super) name: String,
    pub(super) guid: Guid,
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
        late: &Inbox<Late>,
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
                for wired in wired {
                    control.set_link_rate(wired.port, wired.supported, wired.active);
                }
                controls.push(Control::Switch(Box::new(control)));
                // Everything that passes a cable can be captured once: between switches where it is sent, else at the switch.
                let port = |port| {
                    let trunk = wired.iter().any(|wired| wired.port == port && wired.trunk);
                    let sink = switch.port(port);
                    let sink = if trunk { sink } else { tap.sink(sink) };
                    let faults = FaultLink::new(Late::wake(late));
                    let sink = faults.sink(sink);
                    SwitchPort { faults, sink }
                };
                let ports = (1..=switch.ports()).map(port).collect();
                Plane::Switch { switch, ports }
            }
            NodeKind::Ca => {
                let unwired = [Wired {
                    port: 1,
                    supported: LinkRate::default(),
                    active: LinkRate::default(),
                    trunk: false,
                }];
                let ports = if wired.is_empty() { &unwired } else { wired };
                let hca = |wired: &Wired| {
                    let port = wired.port;
                    let config = HcaConfig {
                        port_guid: node.port_guid(port),
                        ..HcaConfig::new(node.guid, &node.description)
                    };
                    let (hca, mut control) = Hca::new(config, sink(controls.len()));
                    control.follow_plan(node, port);
                    control.set_link_rate(1, wired.supported, wired.active);
                    controls.push(Control::Hca(Box::new(control)));
                    (port, hca)
                };
                Plane::Ca(ports.iter().map(hca).collect())
            }
        };
        SubnetNode {
            name: node.name.clone(),
            guid: node.guid,
            plane,
        }
    }

    /// All nodes of a topology, and their control sides.
    pub(super) fn all(
        topology: &Topology,
        inbox: &Inbox<Controls>,
        tap: &Arc<Tap>,
        late: &Inbox<Late>,
    ) -> (Vec<SubnetNode>, Controls) {
        let mut wired = vec![Vec::new(); topology.nodes.len()];
        for cable in &topology.cables {
            let is_switch = |end: &PortId| topology.nodes[end.node].kind == NodeKind::Switch;
            let trunk = cable.ends.iter().all(is_switch);
            for (end, supported) in cable.ends.iter().zip(cable.rates) {
                wired[end.node].push(Wired {
                    port: end.port,
                    supported,
                    active: cable.rate(),
                    trunk,
                });
            }
        }
        let mut controls = Vec::new();
        let nodes = topology.nodes.iter().zip(&wired);
        let nodes = nodes
            .map(|(node, wired)| SubnetNode::new(node, wired, &mut controls, inbox, tap, late))
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

    /// A port of a switch; `None` if there is no such port.
    pub(super) fn switch_port(&self, port: u8) -> Option<&SwitchPort> {
        match &self.plane {
            Plane::Switch { ports, .. } => ports.get(usize::from(port).checked_sub(1)?),
            Plane::Ca(_) => None,
        }
    }

    /// What the link of a port delivers to; `None` if there is no such port.
    pub(super) fn sink(&self, port: u8) -> Option<Arc<dyn LinkSink>> {
        match &self.plane {
            Plane::Switch { .. } => Some(self.switch_port(port)?.sink.clone()),
            Plane::Ca(ports) => ports.get(&port).map(|hca| hca.clone() as Arc<dyn LinkSink>),
        }
    }

    /// Gives a port its link.
    pub(super) fn attach(&self, port: u8, link: Arc<dyn Link>, tap: &Arc<Tap>) {
        match &self.plane {
            Plane::Switch { switch, .. } => {
                if let Some(SwitchPort { faults, .. }) = self.switch_port(port) {
                    switch.attach_link(port, tap.link(faults.link(link)));
                }
            }
            Plane::Ca(ports) => {
                if let Some(hca) = ports.get(&port) {
                    hca.attach_link(link);
                }
            }
        }
    }
}

/// Plugs in a cable of the topology.
pub(super) fn connect(nodes: &[SubnetNode], tap: &Arc<Tap>, ends: [PortId; 2]) -> LocalCable {
    let side = |end: PortId| {
        let node = &nodes[end.node];
        let sink = node.sink(end.port);
        // A topology names only ports that its nodes have.
        let sink = sink.unwrap_or_else(|| Arc::new(Nothing));
        (sink, move |link| node.attach(end.port, link, tap))
    };
    local::connect(side(ends[0]), side(ends[1]))
}

/// A port that is not there.
struct Nothing;

impl LinkSink for Nothing {
    fn receive(&self, _packets: &[Packet<'_>]) {}
    fn link_changed(&self, _up: bool) {}
}
