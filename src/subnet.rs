//! A software subnet inside this process: one switch, its subnet manager, and links to hosts in this process or by UDP.

use crate::machines::Manager;
use crate::run::{Inbox, Running, queues, spawn};
use anyhow::Context;
use fabric::link::capture::Tap;
use fabric::link::local::{self, LocalCable};
use fabric::link::udp::{ListenConfig, UdpListener};
use fabric::link::{Link, LinkSink};
use fabric::node::NodeControl;
use fabric::sm::runner::SmPort;
use fabric::sm::{SmConfig, SubnetManager};
use fabric::switch::{Switch, SwitchConfig};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use wire::Guid;

/// A running subnet. Dropping it ends its threads.
pub struct Subnet {
    switch: Arc<Switch>,
    tap: Arc<Tap>,
    /// What links deliver to, by port number from 1; the links themselves hold only weak references.
    sinks: Arc<Vec<Arc<dyn LinkSink>>>,
    sm: Running<Manager>,
    _control: Running<NodeControl<Switch>>,
}

impl Subnet {
    /// Starts a switch with `ports` ports and a subnet manager at its port 0.
    ///
    /// # Errors
    /// No threads to be had.
    pub fn start(guid: Guid, ports: u8, config: SmConfig) -> anyhow::Result<Subnet> {
        let (control_in, control_out) = queues::<NodeControl<Switch>>();
        let sink = control_in.clone();
        let switch_config = SwitchConfig {
            guid,
            description: "ipoib software switch".into(),
            ports,
        };
        let (switch, control) = Switch::new(switch_config, Box::new(move |input| sink.put(input)));
        let control = spawn("ipoib-switch", control_in, control_out, control)
            .context("cannot start a thread")?;
        let (mads, mads_out) = queues::<Manager>();
        let sink = mads.clone();
        let port = SmPort::bind(&*switch, Box::new(move |mad| sink.put(mad)))?;
        let mut manager = Manager {
            sm: SubnetManager::new(config, crate::node::random()),
            port,
        };
        manager.port.turn(Instant::now(), &mut manager.sm, []);
        let sm = spawn("ipoib-sm", mads, mads_out, manager).context("cannot start a thread")?;
        let tap = Arc::new(Tap::default());
        let sinks = (1..=ports)
            .map(|number| tap.sink(switch.port(number)))
            .collect();
        Ok(Subnet {
            switch,
            tap,
            sinks: Arc::new(sinks),
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
        let number = self
            .switch
            .free_port()
            .context("all ports of the switch are taken")?;
        let own = self.sinks[usize::from(number) - 1].clone();
        let to_switch = |link: Arc<dyn Link>| self.switch.attach_link(number, self.tap.link(link));
        Ok(local::connect((own, to_switch), (sink, attach)))
    }

    /// Takes hosts by UDP.
    ///
    /// # Errors
    /// The address is taken, or not this machine's.
    pub fn listen(&self, config: ListenConfig) -> std::io::Result<UdpListener> {
        let taken: Arc<Mutex<HashMap<SocketAddr, u8>>> = Arc::default();
        let accept = {
            let (switch, tap, sinks, taken) = (
                self.switch.clone(),
                self.tap.clone(),
                self.sinks.clone(),
                taken.clone(),
            );
            move |source: SocketAddr, link: Arc<dyn Link>| {
                let Some(number) = switch.free_port() else {
                    tracing::warn!(%source, "no free port at the switch for another host");
                    return None;
                };
                switch.attach_link(number, tap.link(link));
                taken.lock().insert(source, number);
                tracing::info!(%source, port = number, "link up");
                Some(sinks[usize::from(number) - 1].clone())
            }
        };
        let switch = self.switch.clone();
        let closed = move |source: SocketAddr| {
            if let Some(number) = taken.lock().remove(&source) {
                tracing::info!(%source, port = number, "link down");
                switch.detach_link(number);
            }
        };
        UdpListener::bind(config, Box::new(accept), Box::new(closed))
    }

    /// The switch.
    pub fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    /// The subnet manager's queues.
    pub fn manager(&self) -> &Inbox<Manager> {
        self.sm.inbox()
    }

    /// Where packets can be captured: at every port of the switch, as they come and as they go.
    pub fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }
}
