//! A software subnet inside this process: switches, channel adapters that no host has taken, a subnet manager, and links to hosts in this
//! process or by UDP.

mod control;
mod faults;
mod late;
mod newcomers;
mod nodes;
mod site;

use crate::machines::Manager;
use crate::run::{Inbox, Running, queues, spawn};
use anyhow::{Context, anyhow};
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
use late::Late;
use newcomers::{Event, Newcomers};
use nodes::SubnetNode;
use parking_lot::Mutex;
use site::{Attached, Site, SwitchPort};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use wire::{Guid, Lid};

/// Sources that are remembered because they were refused, and attached ones.
const MAX_SOURCES: usize = 4096;

/// A running subnet. Dropping it ends its threads.
pub struct Subnet {
    site: Arc<Site>,
    /// The embedded subnet manager, if there is to be one.
    sm: Option<Mutex<Managed>>,
    /// Ports of switches whose links were broken by another name than the switch's.
    named: Mutex<HashMap<(String, u8), SwitchPort>>,
    /// LIDs given as faults, by port GUID: the one before the first of them, and the last.
    moved: Mutex<BTreeMap<Guid, (Lid, Lid)>>,
    _control: Running<Controls>,
    _late: Running<Late>,
}

/// The embedded subnet manager and what starts it again.
struct Managed {
    at: Arc<dyn ManagementPort>,
    config: SmConfig,
    running: Option<Running<Manager>>,
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
        let (late, late_out) = queues::<Late>();
        let late = spawn("ipoib-late", late, late_out, Late::default())
            .context("cannot start a thread")?;
        let (nodes, controls) = SubnetNode::all(topology, &control_in, &tap, late.inbox());
        // Before there are cables, because each of them tells two nodes that it came up.
        let control = spawn("ipoib-nodes", control_in, control_out, controls)
            .context("cannot start a thread")?;
        let site = Site::new(topology, nodes, tap);
        // Of thousands of cables that came up at once, more may have told their nodes than the queue had room for. The thread runs as long as this.
        let _ = control.inbox().call(Controls::look);
        let sm = match sm {
            Some(config) => {
                let kinds = topology.nodes.iter().map(|node| node.kind);
                let first = kinds.clone().position(|kind| kind == NodeKind::Switch);
                let node = site.nodes.get(first.unwrap_or(0));
                let port = node.and_then(SubnetNode::management);
                let at = port.context("a subnet manager needs a node")?;
                Some(Mutex::new(Managed {
                    running: Some(start_manager(&*at, config.clone())?),
                    at,
                    config,
                }))
            }
            None => None,
        };
        Ok(Subnet {
            site: Arc::new(site),
            sm,
            named: Mutex::default(),
            moved: Mutex::default(),
            _control: control,
            _late: late,
        })
    }

    /// Connects a host of this process: where the topology has its port GUID, or to a free port. It stays there.
    ///
    /// # Errors
    /// All ports are taken, or the one of the GUID.
    pub fn connect(
        &self,
        guid: Option<Guid>,
        sink: Arc<dyn LinkSink>,
        attach: impl FnOnce(Arc<dyn Link>),
    ) -> anyhow::Result<LocalCable> {
        let mut cable = None;
        let link = |own: &Arc<dyn LinkSink>| cable.insert(LocalCable::new(own, &sink)).end(0);
        let attached = self.site.attach(guid, "this process".into(), link);
        attached.map_err(|refusal| anyhow!("{refusal}"))?;
        let cable = cable.context("no link was made")?;
        attach(cable.end(1));
        cable.join();
        Ok(cable)
    }

    /// Takes hosts by UDP. Where the topology has channel adapters, hosts are asked for their port GUID first.
    ///
    /// # Errors
    /// The address is taken, or not this machine's; no threads to be had.
    pub fn listen(&self, config: ListenConfig) -> anyhow::Result<UdpListener> {
        let address = config.address;
        let bound = match self.site.has_places() {
            true => {
                let (inbox, outbox) = queues::<Newcomers>();
                let newcomers = Newcomers::new(self.site.clone());
                let newcomers = spawn("ipoib-newcomers", inbox.clone(), outbox, newcomers)
                    .context("cannot start a thread")?;
                let accept = move |source, link| Newcomers::admit(&inbox, source, link);
                let closed = move |source| {
                    newcomers.inbox().put(Event::Closed(source));
                };
                UdpListener::bind(config, Box::new(accept), Box::new(closed))
            }
            false => self.listen_plainly(config),
        };
        bound.with_context(|| format!("cannot listen on {address}"))
    }

    /// Gives each source a free port as it comes.
    fn listen_plainly(&self, config: ListenConfig) -> std::io::Result<UdpListener> {
        let taken: Arc<Mutex<HashMap<SocketAddr, Option<SwitchPort>>>> = Arc::default();
        let accept = {
            let (site, taken) = (self.site.clone(), taken.clone());
            move |source: SocketAddr, link: Arc<dyn Link>| {
                let mut taken = taken.lock();
                match site.attach(None, source.to_string(), |_| link) {
                    Ok(Attached { at, sink }) => {
                        tracing::info!(%source, switch = site.name(at), port = at.port, "link up");
                        taken.insert(source, Some(at));
                        Some(sink)
                    }
                    // It comes again with each datagram: one line for each source, and bounded.
                    Err(refusal) => {
                        if taken.len() < MAX_SOURCES && taken.insert(source, None).is_none() {
                            tracing::warn!(%source, "host not attached: {refusal}");
                        }
                        None
                    }
                }
            }
        };
        let site = self.site.clone();
        let closed = move |source: SocketAddr| {
            let mut taken = taken.lock();
            if let Some(Some(at)) = taken.remove(&source) {
                tracing::info!(%source, switch = site.name(at), port = at.port, "link down");
                site.detach(at);
                // There is a free port now: who is refused from now on is told again.
                taken.retain(|_, at| at.is_some());
            }
        };
        UdpListener::bind(config, Box::new(accept), Box::new(closed))
    }

    /// Who is attached: name of the switch, port, where the host is.
    pub fn attached(&self) -> Vec<(String, u8, String)> {
        self.site.attached()
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

    /// The subnet manager's queues, if one runs here.
    pub fn manager(&self) -> Option<Inbox<Manager>> {
        let sm = self.sm.as_ref()?.lock();
        sm.running.as_ref().map(|running| running.inbox().clone())
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
