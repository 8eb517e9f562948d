//! The host's side: one socket, one link.

use super::Datagram;
use super::counters::UdpCounters;
use super::port::{Batch, Delivery, UdpPort};
use super::socket::{Endpoint, Ring, Route};
use crate::link::{Link, LinkSink};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;
use wire::mad::PortState;
use wire::packet::Packet;

/// A link to the fabric that listens at an address.
///
/// It is there for good: while nobody answers it is down and says hello, so it comes up when the fabric does. Its thread receives, gives packets
/// to the sink, and keeps the timers; [`Link::transmit`] sends from the caller's thread and never waits: what does not fit into the socket's
/// buffer is dropped and counted, as are super-packets ([`wire::packet::Lso`]), which this link does not cut into segments yet.
///
/// The thread holds the sink. Where the sink holds the link in turn, [`UdpLink::close`] ends both.
pub struct UdpLink {
    port: Arc<UdpPort>,
    local: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl UdpLink {
    /// Opens a socket to `fabric` and starts to say hello. Succeeds whether or not somebody listens there.
    pub fn connect(fabric: SocketAddr, sink: Arc<dyn LinkSink>) -> io::Result<Arc<Self>> {
        let any: SocketAddr = match fabric {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(fabric)?;
        let local = socket.local_addr()?;
        let endpoint = Arc::new(Endpoint::new(socket)?);
        let route = Route {
            to: fabric,
            from: None,
        };
        let port = Arc::new(UdpPort::new(endpoint, route, Instant::now()));
        let thread = thread::Builder::new().name("udp-link".into()).spawn({
            let port = port.clone();
            move || run(&port, &*sink)
        })?;
        Ok(Arc::new(Self {
            port,
            local,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// The address of this side.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Is the link up?
    pub fn is_up(&self) -> bool {
        self.port.is_up()
    }

    /// What came and went.
    pub fn counters(&self) -> Arc<UdpCounters> {
        self.port.counters.clone()
    }

    /// Takes the link down for good, waits for its thread and lets go of the sink. Not to be called by the sink.
    pub fn close(&self) {
        self.port.endpoint.stop();
        join(self.thread.lock().take());
    }
}

/// Waits for a link's thread, unless it is the caller itself.
pub(super) fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread.filter(|t| t.thread().id() != thread::current().id()) {
        // A panic of the sink was printed when it happened.
        let _ = thread.join();
    }
}

impl Drop for UdpLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl Link for UdpLink {
    fn transmit(&self, packets: &[Packet<'_>]) {
        self.port.transmit(packets);
    }

    fn port_state(&self, state: PortState) {
        self.port.port_state(state);
    }

    fn enable(&self, up: bool) {
        self.port.enable(up);
    }
}

fn run(port: &UdpPort, sink: &dyn LinkSink) {
    let endpoint = &port.endpoint;
    let mut ring = Ring::new();
    let mut more = false;
    let tell = |change: Option<bool>| {
        if let Some(up) = change {
            sink.link_changed(up);
        }
    };
    while !endpoint.stopped() {
        if !more {
            let now = Instant::now();
            tell(port.drive(now, |link| link.handle_timeout(now)));
            endpoint.wait(
                port.poll_timeout()
                    .saturating_duration_since(Instant::now()),
            );
        }
        let received = ring.receive(endpoint);
        let now = Instant::now();
        more = match received {
            Ok(more) => {
                deliver(port, sink, &ring, now);
                more
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::ConnectionRefused => endpoint.refused(),
                    ErrorKind::WouldBlock => {}
                    _ => port.counters.rx_errors.add(1),
                }
                false
            }
        };
        if endpoint.take_refused() {
            port.counters.refused.add(1);
            tell(port.drive(now, |link| link.handle_refused()));
        }
        if more {
            tell(port.drive(now, |link| link.handle_timeout(now)));
        }
    }
    tell(port.drive(Instant::now(), |link| link.handle_refused()));
}

fn deliver(port: &UdpPort, sink: &dyn LinkSink, ring: &Ring, now: Instant) {
    let mut batch = Batch::new();
    let mut delivery = Delivery::new(port, sink, &mut batch, now);
    for (_, _, bytes) in ring.datagrams() {
        delivery.take(bytes.len(), Datagram::parse(bytes));
    }
    delivery.flush();
}
