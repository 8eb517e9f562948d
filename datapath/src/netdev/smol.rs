//! A smoltcp device (`Medium::Ip`) on the host's end of a [`super::mem`] pair.
//!
//! smoltcp thinks it has a point-to-point IP link, as the kernel does on a TUN device: neighbours
//! are the interface's business. Nothing here waits or looks at a clock, so that a simulation can
//! drive many stacks on one thread; a program waits by [`MemPeer::wait`].

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::mem::MemPeer;

/// The smoltcp device.
pub struct SmolDevice {
    peer: MemPeer,
    mtu: usize,
}

impl SmolDevice {
    /// A device whose longest IP packet has `mtu` bytes.
    pub fn new(peer: MemPeer, mtu: usize) -> Self {
        Self { peer, mtu }
    }

    /// The queues' end below, to wait on and to look at counters.
    pub fn peer(&self) -> &MemPeer {
        &self.peer
    }

    /// Follows a change of the interface's MTU, in bytes.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }
}

impl Device for SmolDevice {
    type RxToken<'a> = SmolRxToken<'a>;
    type TxToken<'a> = SmolTxToken<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(SmolRxToken<'_>, SmolTxToken<'_>)> {
        let packet = self.peer.try_recv()?;
        let peer = &self.peer;
        Some((SmolRxToken { peer, packet }, SmolTxToken { peer }))
    }

    fn transmit(&mut self, _now: Instant) -> Option<SmolTxToken<'_>> {
        Some(SmolTxToken { peer: &self.peer })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

/// One received packet.
pub struct SmolRxToken<'a> {
    peer: &'a MemPeer,
    packet: Vec<u8>,
}

impl RxToken for SmolRxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let value = f(&self.packet);
        self.peer.recycle(self.packet);
        value
    }
}

/// The right to send one packet; a full queue drops it, and counts.
pub struct SmolTxToken<'a> {
    peer: &'a MemPeer,
}

impl TxToken for SmolTxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.peer.send_with(len, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netdev::mem::{MemNetdev, pair};
    use crate::netdev::{Netdev, PacketBatch};
    use smoltcp::iface::{Config, Interface, SocketSet};
    use smoltcp::socket::udp;
    use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint};

    struct Host {
        device: SmolDevice,
        netdev: MemNetdev,
        iface: Interface,
        sockets: SocketSet<'static>,
        udp: smoltcp::iface::SocketHandle,
    }

    fn host(last: u8) -> Host {
        let (netdev, peer) = pair("mem0", 16);
        let mut device = SmolDevice::new(peer, 2044);
        let mut iface =
            Interface::new(Config::new(HardwareAddress::Ip), &mut device, Instant::ZERO);
        iface.update_ip_addrs(|addrs| {
            addrs
                .push(IpCidr::new(IpAddress::v4(10, 77, 0, last), 24))
                .unwrap();
        });
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 4], vec![0; 8192]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(7).unwrap();
        let mut sockets = SocketSet::new(vec![]);
        let udp = sockets.add(socket);
        Host {
            device,
            netdev,
            iface,
            sockets,
            udp,
        }
    }

    /// Two stacks on one thread in virtual time; the "subnet" copies packets across.
    #[test]
    fn two_stacks_exchange_a_datagram_without_threads() {
        let mut hosts = [host(1), host(2)];
        let to = IpEndpoint::new(IpAddress::v4(10, 77, 0, 2), 7);
        let (handle, payload) = (hosts[0].udp, [0x5a; 1500]);
        hosts[0]
            .sockets
            .get_mut::<udp::Socket>(handle)
            .send_slice(&payload, to)
            .unwrap();
        let mut batch = PacketBatch::for_mtu(2044);
        for step in 0..3 {
            let now = Instant::from_millis(step);
            for host in &mut hosts {
                host.iface.poll(now, &mut host.device, &mut host.sockets);
            }
            for (from, to) in [(0, 1), (1, 0)] {
                hosts[from].netdev.try_read_batch(&mut batch).unwrap();
                for packet in batch.iter() {
                    hosts[to].netdev.write(packet).unwrap();
                }
            }
        }
        let handle = hosts[1].udp;
        let (data, meta) = hosts[1]
            .sockets
            .get_mut::<udp::Socket>(handle)
            .recv()
            .unwrap();
        assert_eq!(data, payload);
        assert_eq!(meta.endpoint.addr, IpAddress::v4(10, 77, 0, 1));
        assert_eq!(hosts[0].netdev.counters().rx_packets, 1);
        assert_eq!(hosts[0].device.capabilities().max_transmission_unit, 2044);
    }
}
