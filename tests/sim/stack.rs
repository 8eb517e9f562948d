//! A host with smoltcp above its device: real TCP.

use crate::host;
use datapath::netdev::mem::MemPeer;
use datapath::netdev::smol::SmolDevice;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::net::IpAddr;
use std::time::Duration;

/// Buffer of a socket, each way.
const BUFFER: usize = 64 << 10;

/// Byte `index` of a transfer.
fn pattern(index: usize) -> u8 {
    (index as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0]
}

pub struct Stack {
    device: SmolDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    sending: Option<(SocketHandle, usize, usize)>,
    receiving: Option<SocketHandle>,
    /// The next poll that is arranged.
    armed: Option<Duration>,
    /// Bytes that arrived, all of them right.
    pub received: usize,
}

fn at(since: Duration) -> Instant {
    Instant::from_micros(since.as_micros() as i64)
}

fn socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
    tcp::Socket::new(buffer(), buffer())
}

impl Stack {
    /// A stack of host `h`; time is since the start of the simulation.
    pub fn new(peer: MemPeer, h: usize, since: Duration) -> Stack {
        let mut device = SmolDevice::new(peer, 2044);
        let mut interface =
            Interface::new(Config::new(HardwareAddress::Ip), &mut device, at(since));
        interface.update_ip_addrs(|addresses| {
            for (ip, prefix) in [(host::v4(h), 16), (host::v6(h), 64)] {
                addresses
                    .push(IpCidr::new(IpAddress::from(ip), prefix))
                    .expect("room for two");
            }
        });
        Stack {
            device,
            interface,
            sockets: SocketSet::new(vec![]),
            sending: None,
            receiving: None,
            armed: None,
            received: 0,
        }
    }

    pub fn listen(&mut self, port: u16) {
        let mut socket = socket();
        socket.listen(port).expect("a port");
        self.receiving = Some(self.sockets.add(socket));
    }

    /// Connects and sends `total` bytes.
    pub fn transfer(&mut self, to: IpAddr, port: u16, total: usize) {
        let mut socket = socket();
        socket
            .connect(
                self.interface.context(),
                (IpAddress::from(to), port),
                49_152,
            )
            .expect("a fresh socket");
        self.sending = Some((self.sockets.add(socket), 0, total));
    }

    pub fn poll(&mut self, since: Duration) {
        let now = at(since);
        self.interface
            .poll(now, &mut self.device, &mut self.sockets);
        if let Some((handle, sent, total)) = &mut self.sending {
            let socket = self.sockets.get_mut::<tcp::Socket>(*handle);
            while socket.can_send() && sent < total {
                let from = *sent;
                let room = *total - from;
                let fill = |buffer: &mut [u8]| {
                    let len = buffer.len().min(room);
                    buffer[..len]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(at, byte)| *byte = pattern(from + at));
                    (len, len)
                };
                *sent += socket.send(fill).expect("can send");
            }
            if sent == total {
                socket.close();
            }
        }
        if let Some(handle) = self.receiving {
            let socket = self.sockets.get_mut::<tcp::Socket>(handle);
            while socket.can_recv() {
                let from = self.received;
                let check = |buffer: &mut [u8]| {
                    assert!(
                        buffer
                            .iter()
                            .enumerate()
                            .all(|(at, byte)| *byte == pattern(from + at)),
                        "bytes after {from} are wrong"
                    );
                    (buffer.len(), buffer.len())
                };
                self.received += socket.recv(check).expect("can receive");
            }
        }
        self.interface
            .poll(now, &mut self.device, &mut self.sockets);
    }

    /// When to poll again, since the start; `None` also where that is arranged already.
    pub fn arm(&mut self, since: Duration) -> Option<Duration> {
        let delay = self.interface.poll_delay(at(since), &self.sockets)?;
        // Never at once: that would be a loop without time.
        let wanted = since + Duration::from(delay).max(Duration::from_micros(50));
        let arranged = self
            .armed
            .is_some_and(|armed| armed > since && armed <= wanted);
        (!arranged).then(|| *self.armed.insert(wanted))
    }
}
