//! A host on the subnet inside this process: channel adapter, interface, and the threads that run them.

use crate::run::{Inbox, Running, queues, spawn};
use anyhow::Context;
use datapath::netdev::{Netdev, NetdevError, PacketBatch};
use datapath::{Host, Input, Interface, InterfaceConfig, Plane};
use fabric::hca::{Hca, HcaConfig};
use fabric::link::capture::Tap;
use fabric::link::{Link, LinkSink};
use fabric::node::NodeControl;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use wire::{Guid, LinkRate};

/// What distinguishes a host.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// GUID of its port.
    pub port_guid: Guid,
    /// NodeDescription.
    pub description: String,
    /// Its interface.
    pub interface: InterfaceConfig,
    /// Longest IP packet that the device may hand out, bytes.
    pub max_packet: usize,
}

/// A running host. Dropping it leaves the groups and ends all of its threads.
pub struct Node {
    hca: Arc<Hca>,
    tap: Arc<Tap>,
    sink: Arc<dyn LinkSink>,
    interface: Running<Interface>,
    plane: Arc<Plane>,
    netdev: Arc<dyn Netdev>,
    reader: Option<JoinHandle<()>>,
    control: Running<NodeControl<Hca>>,
}

impl Node {
    /// The width and speed that the port supports from now on, and that its link runs at. Say it before [`Node::attach`].
    pub fn set_link_rate(&self, rate: LinkRate) {
        let set = move |control: &mut NodeControl<Hca>, _| control.set_link_rate(1, rate, rate);
        // It ends with this host only.
        let _ = self.control.inbox().call(set);
    }

    /// Starts a host without a link.
    ///
    /// # Errors
    /// No threads to be had.
    pub fn start(
        config: NodeConfig,
        netdev: Arc<dyn Netdev>,
        host: Box<dyn Host>,
    ) -> anyhow::Result<Node> {
        let seed = random();
        let (control_in, control_out) = queues::<NodeControl<Hca>>();
        let sink = control_in.clone();
        let hca_config = HcaConfig {
            // One port: its GUID serves for the node too.
            node_guid: config.port_guid,
            port_guid: config.port_guid,
            // A new instance gets new queue pair numbers: an old one's packets must not reach it.
            first_qpn: wire::Qpn::new((seed as u32 & 0x3f_ffff) | 0x40),
            ..HcaConfig::new(config.port_guid, &config.description)
        };
        let (hca, control) = Hca::new(hca_config, Box::new(move |input| sink.put(input)));
        let control = spawn("ipoib-hca", control_in, control_out, control)
            .context("cannot start a thread")?;
        let (inputs, outputs) = queues::<Interface>();
        let sink = inputs.clone();
        let name = config.interface.name.clone();
        let mut interface = Interface::new(
            config.interface,
            hca.clone(),
            netdev.clone(),
            host,
            Arc::new(move |input| sink.put(input)),
            seed,
        )?;
        interface.start(Instant::now());
        let plane = interface.plane().clone();
        let interface = spawn(&format!("ipoib-{name}"), inputs, outputs, interface)
            .context("cannot start a thread")?;
        let reader = std::thread::Builder::new()
            .name(format!("ipoib-{name}-tx"))
            .spawn({
                let (plane, inbox) = (plane.clone(), interface.inbox().clone());
                move || read(&plane, PacketBatch::for_mtu(config.max_packet), &inbox)
            })
            .context("cannot start a thread")?;
        let tap = Arc::new(Tap::default());
        let sink = tap.sink(hca.clone());
        Ok(Node {
            hca,
            tap,
            sink,
            interface,
            plane,
            netdev,
            reader: Some(reader),
            control,
        })
    }

    /// What a link delivers to.
    pub fn sink(&self) -> Arc<dyn LinkSink> {
        self.sink.clone()
    }

    /// Gives the adapter its link.
    pub fn attach(&self, link: Arc<dyn Link>) {
        self.hca.attach_link(self.tap.link(link));
    }

    /// The interface's data path.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// The interface's queues.
    pub fn inbox(&self) -> &Inbox<Interface> {
        self.interface.inbox()
    }

    /// The interface's thread.
    pub fn interface(&self) -> &Running<Interface> {
        &self.interface
    }

    /// The channel adapter.
    pub fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }

    /// Where its packets can be captured.
    pub fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Leaves groups while the link is still there.
        self.inbox().call(|interface, now| interface.shutdown(now));
        self.netdev.wake();
        if self
            .reader
            .take()
            .is_some_and(|reader| reader.join().is_err())
        {
            tracing::error!("the reader of a device panicked");
        }
    }
}

/// The data thread: device to fabric.
fn read(plane: &Plane, mut batch: PacketBatch, inbox: &Inbox<Interface>) {
    loop {
        match plane.netdev().read_batch(&mut batch) {
            Ok(0) => return,
            Ok(_) => plane.transmit(&mut batch),
            Err(error) => {
                if !matches!(error, NetdevError::DeviceGone) {
                    tracing::error!(device = plane.netdev().name(), %error, "reading failed");
                }
                inbox.put(Input::Host(datapath::host::HostEvent::Gone));
                return;
            }
        }
    }
}

/// A number that differs from run to run.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}
