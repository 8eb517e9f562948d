//! The interface of a [`Node`] as a network device of this Linux host.

use crate::cli::InterfaceAddress;
use crate::node::{Node, NodeConfig};
use anyhow::Context;
use datapath::host::{HostEvent, HostLink, HostMonitor, NetnsRef, NextHop};
use datapath::netdev::tun;
use datapath::{Host, Input, MIN_MTU_V6};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;

/// A TUN device may be given any MTU by its administrator, up to this: the longest IP packet.
const MAX_PACKET: usize = 65_535;

/// The device's settings and routes, by netlink.
struct LinuxHost(HostLink);

impl Host for LinuxHost {
    fn next_hop(&mut self, destination: IpAddr) -> NextHop {
        self.0.next_hop(destination).unwrap_or_else(|error| {
            tracing::warn!(%destination, %error, "cannot ask the kernel for the next hop");
            NextHop::Unreachable
        })
    }
    fn set_mtu(&mut self, mtu: u32) -> Result<(), String> {
        self.0.set_mtu(mtu).map_err(|error| error.to_string())
    }
    fn forget_path_mtu(&mut self, destination: IpAddr) {
        if let Err(error) = self.0.forget_path_mtu(destination) {
            // It may have forgotten by itself.
            tracing::debug!(%destination, %error, "a larger MTU could not be told");
        }
    }
}

/// A host whose interface is a TUN device.
pub struct LinuxNode {
    // Fields are dropped in this order: no event is delivered once the node ends.
    _monitor: Arc<HostMonitor>,
    node: Node,
}

impl LinuxNode {
    /// Makes the device in `netns` (or the current network namespace), with its addresses, up but without carrier, and starts the node.
    ///
    /// # Errors
    /// No permission, no /dev/net/tun, the name is taken, an address that the kernel refuses.
    pub fn start(
        config: NodeConfig,
        netns: Option<&NetnsRef>,
        addresses: &[InterfaceAddress],
    ) -> anyhow::Result<LinuxNode> {
        let name = config.interface.name.clone();
        let device = tun::open_in(netns, &name)?;
        let link = HostLink::open(netns, &name)?;
        // Containers often have no IPv6: the interface then works without.
        let own_link_local = link.set_addr_gen_mode_none();
        link.set_up(true)?;
        if let Err(error) = own_link_local.and_then(|()| link.add_link_local(config.port_guid)) {
            tracing::warn!(interface = %name, %error, "no IPv6 link-local address: is IPv6 disabled in this network namespace?");
        }
        for address in addresses {
            link.add_address(address.ip, address.prefix)
                .with_context(|| format!("address {address}"))?;
        }
        let config = NodeConfig {
            max_packet: MAX_PACKET,
            ..config
        };
        let port_guid = config.port_guid;
        let node = Node::start(config, Arc::new(device), Box::new(LinuxHost(link)))?;
        let inbox = node.inbox().clone();
        let link = HostLink::open(netns, &name)?;
        let (had_ipv6, was_small) = (Cell::new(true), Cell::new(false));
        let monitor = HostMonitor::start(
            netns,
            &name,
            Box::new(move |event| {
                if let HostEvent::Link { admin_up, mtu } = event {
                    let is_small = mtu < MIN_MTU_V6 as u32;
                    was_small.set(was_small.get() || is_small);
                    // The kernel deletes it, as all IPv6 addresses, when a device is set down or its MTU is too small for IPv6, and makes a
                    // new one only from an address that it knows, or, after the latter, a random one.
                    if !had_ipv6.replace(admin_up && !is_small) && had_ipv6.get() {
                        let restored = match was_small.replace(false) {
                            true => link.restore_link_local(port_guid),
                            false => link.add_link_local(port_guid),
                        };
                        if let Err(error) = restored {
                            tracing::warn!(%error, "cannot restore the link-local address");
                        }
                    }
                }
                // The control thread is never so far behind that its queue of thousands is full, unless it has ended.
                if !inbox.put(Input::Host(event)) {
                    tracing::warn!(?event, "lost an event of the host");
                }
            }),
        )?;
        let monitor = Arc::new(monitor);
        if !monitor.multicast_notified() {
            tracing::info!(
                "this kernel does not tell of multicast groups: reading them from /proc at each report"
            );
            let recheck = Arc::downgrade(&monitor);
            node.plane().on_group_report(Box::new(move || {
                if let Some(monitor) = recheck.upgrade() {
                    monitor.recheck_groups();
                }
            }));
        }
        Ok(LinuxNode {
            _monitor: monitor,
            node,
        })
    }

    /// The host on the subnet.
    pub fn node(&self) -> &Node {
        &self.node
    }
}
