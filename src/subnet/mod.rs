//! A software subnet inside this process: switches, channel adapters that no host has taken, a subnet manager, and links to hosts in this
//! process or by UDP.

mod control;
mod nodes;

use crate::machines::Manager;
use crate::run::{Inbox, Running, queues, spawn};
use anyhow::Context;
use control::Controls;
use fabric::link::capture::Tap;
use fabric::link::local::LocalCable;
use fabric::link::udp::{ListenConfig, UdpListener};
use fabric::link::{Link, LinkSink};
use fabric::node::ManagementPort;
use fabric::sm::runner::SmPort;
use fabric::sm::{SmConfig, SubnetManager};
use fabric::switch::Switch;
use fabric::topology::{NodeKind, Topology};
use nodes::SubnetNode;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use wire::Guid;

/// A running subnet. Dropping it ends its threads.
pub struct Subnet {
    site: Arc<Site>,
    sm: Option<Running<Manager>>,
    _control: Running<Controls>,
}

/// The nodes and what they are wired with.
struct Site {
    nodes: Vec<SubnetNode>,
    /// Those of the topology.
    _cables: Vec<LocalCable>,
    tap: Arc<Tap>,
    /// Held while a port is chosen and taken.
    choosing: Mutex<()>,
}

/// A port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SwitchPort {
    /// Index of the node.
    node: usize,
    port: u8,
}

impl Site {
    /// Gives a free switch port its link, and returns what the link delivers to.
    fn attach_free(
        &self,
        link: impl FnOnce(Arc<dyn LinkSink>) -> Arc<dyn Link>,
    ) -> Option<SwitchPort> {
        let _choosing = self.choosing.lock();
        let free = self.nodes.iter().enumerate().find_map(|(node, n)| {
            let port = n.switch()?.free_port()?;
            Some(SwitchPort { node, port })
        })?;
        let node = &self.nodes[free.node];
        node.attach(free.port, self.tap.link(link(node.sink(free.port, true)?)));
        Some(free)
    }

    fn detach(&self, at: SwitchPort) {
        if let Some(switch) = self.nodes[at.node].switch() {
            switch.detach_link(at.port);
        }
    }
}

impl Subnet {
    /// Starts one switch with `ports` ports and a subnet manager at its port 0.
    ///
    /// # Errors
    /// No threads to be had.
    pub fn start(guid: Guid, ports: u8, config: SmConfig) -> anyhow::Result<Subnet> {
        Subnet::with_topology(&Topology::single_switch(guid, ports), Some(config))
    }

    /// Starts the nodes of a topology, wired as it says. With a configuration for it, a subnet manager runs at the first switch, or at the first
    /// channel adapter where there is no switch. Channel adapters answer management, as long as no host takes their place.
    ///
    /// # Errors
    /// No threads to be had, or a topology without nodes.
    pub fn with_topology(topology: &Topology, sm: Option<SmConfig>) -> anyhow::Result<Subnet> {
        let (control_in, control_out) = queues::<Controls>();
        let tap = Arc::new(Tap::default());
        let (nodes, controls) = SubnetNode::all(topology, &control_in, &tap);
        // Before there are cables, because each of them tells two nodes that it came up.
        let control = spawn("ipoib-nodes", control_in, control_out, controls)
            .context("cannot start a thread")?;
        let cables = topology.cables.iter();
        let cables = cables
            .filter_map(|cable| nodes::connect(&nodes, &tap, cable.ends))
            .collect();
        let sm = match sm {
            Some(config) => {
                let kinds = topology.nodes.iter().map(|node| node.kind);
                let first = kinds.clone().position(|kind| kind == NodeKind::Switch);
                let node = nodes.get(first.unwrap_or(0));
                let port = node.and_then(SubnetNode::management);
                let port = port.context("a subnet manager needs a node")?;
                Some(start_manager(&*port, config)?)
            }
            None => None,
        };
        let site = Site {
            nodes,
            _cables: cables,
            tap,
            choosing: Mutex::default(),
        };
        Ok(Subnet {
            site: Arc::new(site),
            sm,
            _control: control,
        })
    }

    /// Connects a host of this process to a free port.
    ///
    /// # Errors
    /// All ports are taken.
    pub fn connect(
        &self,
        sink: Arc<dyn LinkSink>,
        attach: impl FnOnce(Arc<dyn Link>),
    ) -> anyhow::Result<LocalCable> {
        let mut cable = None;
        let link = |own: Arc<dyn LinkSink>| {
            let new = LocalCable::new(&own, &sink);
            cable.insert(new).end(0)
        };
        self.site.attach_free(link);
        let cable = cable.context("all ports of the switches are taken")?;
        attach(cable.end(1));
        cable.join();
        Ok(cable)
    }

    /// Takes hosts by UDP.
    ///
    /// # Errors
    /// The address is taken, or not this machine's.
    pub fn listen(&self, config: ListenConfig) -> std::io::Result<UdpListener> {
        let taken: Arc<Mutex<HashMap<SocketAddr, SwitchPort>>> = Arc::default();
        let accept = {
            let (site, taken) = (self.site.clone(), taken.clone());
            move |source: SocketAddr, link: Arc<dyn Link>| {
                let mut sink = None;
                let link = |own: Arc<dyn LinkSink>| {
                    sink = Some(own);
                    link
                };
                let Some(at) = site.attach_free(link) else {
                    tracing::warn!(%source, "no free port at the switch for another host");
                    return None;
                };
                taken.lock().insert(source, at);
                tracing::info!(%source, switch = site.nodes[at.node].name, port = at.port, "link up");
                sink
            }
        };
        let site = self.site.clone();
        let closed = move |source: SocketAddr| {
            if let Some(at) = taken.lock().remove(&source) {
                tracing::info!(%source, switch = site.nodes[at.node].name, port = at.port, "link down");
                site.detach(at);
            }
        };
        UdpListener::bind(config, Box::new(accept), Box::new(closed))
    }

    /// The nodes of the topology: name and management interface.
    pub fn nodes(&self) -> Vec<(String, Arc<dyn ManagementPort>)> {
        let nodes = self.site.nodes.iter();
        nodes
            .filter_map(|node| Some((node.name.clone(), node.management()?)))
            .collect()
    }

    /// The switches of the topology, by name.
    pub fn switches(&self) -> impl Iterator<Item = (&str, &Arc<Switch>)> {
        let nodes = self.site.nodes.iter();
        nodes.filter_map(|node| Some((node.name.as_str(), node.switch()?)))
    }

    /// The subnet manager's queues, if there is one here.
    pub fn manager(&self) -> Option<&Inbox<Manager>> {
        self.sm.as_ref().map(Running::inbox)
    }

    /// Where packets can be captured: at every port of the switches as they go, and as they come where the other side is no switch.
    pub fn tap(&self) -> &Arc<Tap> {
        &self.site.tap
    }
}

fn start_manager(at: &dyn ManagementPort, config: SmConfig) -> anyhow::Result<Running<Manager>> {
    let (mads, mads_out) = queues::<Manager>();
    let sink = mads.clone();
    let port = SmPort::bind(at, Box::new(move |mad| sink.put(mad)))?;
    let mut manager = Manager {
        sm: SubnetManager::new(config, crate::node::random()),
        port,
    };
    manager.port.turn(Instant::now(), &mut manager.sm, []);
    spawn("ipoib-sm", mads, mads_out, manager).context("cannot start a thread")
}
