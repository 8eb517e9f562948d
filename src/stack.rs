//! A host on the subnet with an IP stack of its own (smoltcp): no privileges, no network device.
//!
//! The kernel's part for a TUN device is played by two things here: smoltcp, which one thread polls, and `OnLinkHost`, which knows
//! that all addresses are on-link.

use crate::cli::InterfaceAddress;
use crate::node::{Node, NodeConfig};
use crate::run::Inbox;
use anyhow::Context;
use crossbeam_channel::{Receiver, Sender, bounded};
use datapath::host::{HostEvent, NextHop};
use datapath::netdev::{mem, smol::SmolDevice};
use datapath::{Host, Input, Interface};
use parking_lot::{Condvar, Mutex};
use smoltcp::iface::{self, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{AnySocket, icmp};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Packets that the queues to and from the interface hold, each.
const QUEUE: usize = 1024;
/// MTU until the broadcast group tells another, bytes: that of most subnets.
const FIRST_MTU: u32 = 2044;
/// Longest packet that the stack may be told to send, bytes: that of connected mode.
const MAX_PACKET: usize = 65_520;
/// The most addresses of a stack, the link-local one not counted (smoltcp's `iface-max-addr-count`).
const MAX_ADDRESSES: usize = 3;

/// All destinations are neighbours.
struct OnLinkHost {
    addresses: Vec<InterfaceAddress>,
    mtu: Arc<AtomicU32>,
    inbox: Arc<OnceLock<Inbox<Interface>>>,
}

impl Host for OnLinkHost {
    fn next_hop(&mut self, destination: IpAddr) -> NextHop {
        let is_broadcast = |own: &InterfaceAddress| match (own.ip, destination) {
            (IpAddr::V4(ip), IpAddr::V4(to)) if own.prefix < 31 => {
                let host_bits = u32::MAX.checked_shr(own.prefix.into()).unwrap_or(0);
                u32::from(to) == u32::from(ip) | host_bits
            }
            _ => false,
        };
        if self.addresses.iter().any(|own| own.ip == destination) {
            NextHop::Unreachable
        } else if self.addresses.iter().any(is_broadcast) {
            NextHop::Broadcast
        } else {
            NextHop::OnLink
        }
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<(), String> {
        self.mtu.store(mtu, Ordering::Relaxed);
        // As the kernel does, tell that it was done. Before the inbox is there, no link can have told a MTU.
        if let Some(inbox) = self.inbox.get() {
            inbox.put(Input::Host(HostEvent::Link {
                admin_up: true,
                mtu,
            }));
        }
        Ok(())
    }

    /// smoltcp has no path MTUs.
    fn forget_path_mtu(&mut self, _destination: IpAddr) {}
}

/// smoltcp and its device.
struct Inner {
    device: SmolDevice,
    iface: iface::Interface,
    sockets: SocketSet<'static>,
    addresses: Vec<InterfaceAddress>,
    begin: Instant,
    mtu: u32,
}

impl Inner {
    fn now(&self) -> smoltcp::time::Instant {
        // The clock of smoltcp itself is not monotonic.
        smoltcp::time::Instant::from_micros(self.begin.elapsed().as_micros() as i64)
    }

    /// smoltcp asks a device for its MTU only here.
    fn new_iface(
        device: &mut SmolDevice,
        addresses: &[InterfaceAddress],
        now: smoltcp::time::Instant,
    ) -> iface::Interface {
        let mut config = iface::Config::new(HardwareAddress::Ip);
        config.random_seed = crate::node::random();
        let mut iface = iface::Interface::new(config, device, now);
        iface.update_ip_addrs(|list| {
            for own in addresses {
                // There is room: `Stack::start` checked.
                let _ = list.push(IpCidr::new(own.ip.into(), own.prefix));
            }
        });
        // Multicast needs a route too. On such a device a gateway's address does not matter; there is room for two.
        let _ = iface
            .routes_mut()
            .add_default_ipv4_route(Ipv4Addr::new(192, 0, 2, 1));
        let _ = iface
            .routes_mut()
            .add_default_ipv6_route(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
        iface
    }

    /// Takes and sends what there is; true if a socket has news.
    fn poll(&mut self, mtu: u32) -> bool {
        let now = self.now();
        if self.mtu != mtu {
            self.mtu = mtu;
            self.device.set_mtu(mtu as usize);
            self.iface = Self::new_iface(&mut self.device, &self.addresses, now);
        }
        self.iface.poll(now, &mut self.device, &mut self.sockets) == PollResult::SocketStateChanged
    }
}

struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    mtu: Arc<AtomicU32>,
    wake: Sender<()>,
    stop: AtomicBool,
}

impl Shared {
    fn poll(&self, inner: &mut Inner) -> bool {
        let changed = inner.poll(self.mtu.load(Ordering::Relaxed));
        if changed {
            self.changed.notify_all();
        }
        changed
    }

    fn wake(&self) {
        // Full: it is being woken already.
        let _ = self.wake.try_send(());
    }

    fn run(&self, woken: &Receiver<()>) {
        while !self.stop.load(Ordering::Acquire) {
            let delay = {
                let mut inner = self.inner.lock();
                self.poll(&mut inner);
                let now = inner.now();
                let Inner { iface, sockets, .. } = &mut *inner;
                iface.poll_delay(now, sockets)
            };
            let delay = delay.map_or(Duration::from_secs(3600), |delay| {
                Duration::from_micros(delay.total_micros())
            });
            // Woken or not, there is something to look at.
            let _ = woken.recv_timeout(delay);
        }
    }
}

/// A running host. Dropping it ends it.
pub struct Stack {
    node: Node,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Stack {
    /// Starts a host without a link, with these addresses (three at most) and its link-local one.
    ///
    /// # Errors
    /// No threads to be had; too many addresses.
    pub fn start(config: NodeConfig, addresses: &[InterfaceAddress]) -> anyhow::Result<Stack> {
        anyhow::ensure!(
            addresses.len() <= MAX_ADDRESSES,
            "at most {MAX_ADDRESSES} addresses"
        );
        let own_link_local = InterfaceAddress {
            ip: wire::ipoib::nd::link_local(config.port_guid).into(),
            prefix: 64,
        };
        let addresses: Vec<_> = addresses.iter().copied().chain([own_link_local]).collect();
        let (netdev, peer) = mem::pair(&config.interface.name, QUEUE);
        let mtu = Arc::new(AtomicU32::new(FIRST_MTU));
        let inbox = Arc::new(OnceLock::new());
        let host = OnLinkHost {
            addresses: addresses.clone(),
            mtu: mtu.clone(),
            inbox: inbox.clone(),
        };
        let node = Node::start(
            NodeConfig {
                max_packet: MAX_PACKET,
                ..config
            },
            Arc::new(netdev),
            Box::new(host),
        )?;
        inbox.get_or_init(|| node.inbox().clone());
        let events = std::iter::once(HostEvent::Link {
            admin_up: true,
            mtu: FIRST_MTU,
        })
        .chain(
            addresses
                .iter()
                .map(|own| HostEvent::AddressAdded(own.ip, own.prefix)),
        );
        for event in events {
            anyhow::ensure!(node.inbox().put(Input::Host(event)), "the interface ended");
        }

        let (wake, woken) = bounded(1);
        peer.on_ready({
            let wake = wake.clone();
            move || {
                let _ = wake.try_send(());
            }
        });
        let mut device = SmolDevice::new(peer, FIRST_MTU as usize);
        let iface = Inner::new_iface(&mut device, &addresses, smoltcp::time::Instant::ZERO);
        let inner = Inner {
            device,
            iface,
            sockets: SocketSet::new(vec![]),
            addresses,
            begin: Instant::now(),
            mtu: FIRST_MTU,
        };
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            mtu,
            wake,
            stop: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new()
            .name("ipoib-stack".into())
            .spawn({
                let shared = shared.clone();
                move || shared.run(&woken)
            });
        Ok(Stack {
            node,
            shared,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }

    /// The host on the subnet.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Packets can flow.
    pub fn is_running(&self) -> bool {
        self.shared.inner.lock().device.peer().carrier()
    }

    /// The groups by which others find it are joined: all nodes, and the solicited-node groups of its addresses. `None`: the interface
    /// ended.
    pub fn has_joined(&self) -> Option<bool> {
        let groups = self
            .node
            .inbox()
            .call(|interface, _| interface.group_status())?;
        let mut own = groups.iter().filter(|group| group.users > 0).peekable();
        Some(own.peek().is_some() && own.all(|group| group.mlid.is_some()))
    }

    /// Longest IP packet, bytes.
    pub fn mtu(&self) -> u32 {
        self.shared.mtu.load(Ordering::Relaxed)
    }

    /// Adds a socket.
    pub fn add(&self, socket: impl AnySocket<'static>) -> SocketHandle {
        self.shared.inner.lock().sockets.add(socket)
    }

    /// Takes a socket away, whatever it still has to send.
    pub fn remove(&self, handle: SocketHandle) {
        self.shared.inner.lock().sockets.remove(handle);
    }

    /// Calls `f` at once and whenever a socket has news, until it returns something or it is `deadline`; `None` then.
    pub fn drive<T>(
        &self,
        deadline: Instant,
        mut f: impl FnMut(&mut SocketSet<'static>, &mut iface::Interface) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.shared.inner.lock();
        loop {
            let Inner { iface, sockets, .. } = &mut *inner;
            let result = f(sockets, iface);
            let changed = self.shared.poll(&mut inner);
            // Its timers may be others now.
            self.shared.wake();
            if result.is_some() || Instant::now() >= deadline {
                return result;
            }
            if !changed {
                self.shared.changed.wait_until(&mut inner, deadline);
            }
        }
    }

    /// Something to send echo requests from; of one stack's, each must have another `ident`.
    pub fn pinger(&self, ident: u16) -> Pinger<'_> {
        let buffer =
            || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 256], vec![0; 256 << 10]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        // Cannot fail: the socket is not open yet, and an identifier is always valid.
        let _ = socket.bind(icmp::Endpoint::Ident(ident));
        Pinger {
            stack: self,
            handle: self.add(socket),
            ident,
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the thread of an IP stack panicked");
        }
    }
}

/// Sends echo requests and takes the replies (RFC 792, RFC 4443).
pub struct Pinger<'a> {
    stack: &'a Stack,
    handle: SocketHandle,
    ident: u16,
}

/// An echo reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Who answered.
    pub from: IpAddr,
    /// Sequence number of the request.
    pub sequence: u16,
    /// Bytes of ICMP.
    pub length: usize,
    /// When it was taken from the stack.
    pub at: Instant,
}

const HEADER: usize = 8;

impl Pinger<'_> {
    /// Sends a request with `size` bytes of data; when that was.
    ///
    /// # Errors
    /// The stack has no room for it.
    pub fn send(&self, to: IpAddr, sequence: u16, size: usize) -> anyhow::Result<Instant> {
        let send = |sockets: &mut SocketSet<'static>, _: &mut iface::Interface| {
            let at = Instant::now();
            let packet = sockets
                .get_mut::<icmp::Socket>(self.handle)
                .send(HEADER + size, IpAddress::from(to));
            Some(packet.map(|packet| {
                packet.fill(0);
                packet[0] = if to.is_ipv4() { 8 } else { 128 };
                packet[4..6].copy_from_slice(&self.ident.to_be_bytes());
                packet[6..8].copy_from_slice(&sequence.to_be_bytes());
                at
            }))
        };
        let sent = self
            .stack
            .drive(Instant::now(), send)
            .context("the stack ended")?;
        sent.context("the stack has no room for another packet")
    }

    /// The next reply, if one comes before `deadline`.
    pub fn receive(&self, deadline: Instant) -> Option<Reply> {
        self.stack.drive(deadline, |sockets, _| {
            let socket = sockets.get_mut::<icmp::Socket>(self.handle);
            while let Ok((packet, from)) = socket.recv() {
                // The socket sees errors and requests with its identifier too.
                if let [0 | 129, _, _, _, _, _, high, low, ..] = *packet {
                    let (from, sequence) = (from.into(), u16::from_be_bytes([high, low]));
                    return Some(Reply {
                        from,
                        sequence,
                        length: packet.len(),
                        at: Instant::now(),
                    });
                }
            }
            None
        })
    }
}

impl Drop for Pinger<'_> {
    fn drop(&mut self) {
        self.stack.remove(self.handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_on_link_but_broadcasts_and_itself() {
        let own = |text: &str| text.parse::<InterfaceAddress>().unwrap();
        let mut host = OnLinkHost {
            addresses: vec![own("10.77.0.1/24"), own("192.0.2.0/31"), own("fd77::1/64")],
            mtu: Arc::default(),
            inbox: Arc::default(),
        };
        let mut hop = |to: &str| host.next_hop(to.parse().unwrap());
        assert_eq!(hop("10.77.0.2"), NextHop::OnLink);
        assert_eq!(hop("10.77.0.255"), NextHop::Broadcast);
        assert_eq!(hop("192.0.2.1"), NextHop::OnLink);
        assert_eq!(hop("10.77.0.1"), NextHop::Unreachable);
        assert_eq!(hop("fd77::ffff:ffff:ffff:ffff"), NextHop::OnLink);
    }
}
