//! The fabric's side: one socket, and each source a link.

use super::cidr::Cidr;
use super::counters::{ListenCounters, UdpCounters};
use super::dial::join;
use super::port::{Batch, Delivery, UdpPort};
use super::socket::{Endpoint, Ring, Route};
use super::state::{LinkState, SILENCE};
use super::{Datagram, Malformed, errqueue};
use crate::link::{Link, LinkSink};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Finds a port for a new source: given its address and the link to it, the sink of the port, or `None` if there is no free one. Called by the
/// receiving thread, before the link comes up.
pub type Acceptor =
    Box<dyn Fn(SocketAddr, Arc<dyn Link>) -> Option<Arc<dyn LinkSink>> + Send + Sync>;

/// Told that the link to a source is gone, after its sink heard that it is down.
pub type Closed = Box<dyn Fn(SocketAddr) + Send + Sync>;

/// Where to listen, and for whom.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Address of the socket.
    pub address: SocketAddr,
    /// Sources that may become links, besides those on loopback.
    pub allow: Vec<Cidr>,
    /// Links at one time.
    pub max_links: usize,
}

impl ListenConfig {
    /// Listens at `address`: loopback sources only, at most 1,024 links.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            allow: Vec::new(),
            max_links: 1024,
        }
    }
}

/// The timers of all links are looked at together, and not more often than this.
const SWEEP: Duration = Duration::from_millis(25);

/// Errors taken from the queue before datagrams get their turn.
const ERRORS_AT_ONCE: usize = 64;

/// A listening socket and the links on it.
///
/// A link begins with a valid datagram (a packet with right ICRC, or a hello) from a source without one, and is removed after 3 s of silence or
/// when the source's address refuses datagrams; the next valid datagram from there makes a new one. All links end with the listener.
pub struct UdpListener {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    endpoint: Arc<Endpoint>,
    config: ListenConfig,
    /// The socket has several addresses: answers must say from which.
    wildcard: bool,
    accept: Acceptor,
    closed: Closed,
    counters: ListenCounters,
    links: Mutex<HashMap<SocketAddr, Entry>>,
}

#[derive(Clone)]
struct Entry {
    port: Arc<UdpPort>,
    sink: Arc<dyn LinkSink>,
}

impl UdpListener {
    /// Binds the socket and starts the receiving thread.
    pub fn bind(config: ListenConfig, accept: Acceptor, closed: Closed) -> io::Result<Self> {
        let socket = UdpSocket::bind(config.address)?;
        let local = socket.local_addr()?;
        let endpoint = Endpoint::new(socket)?;
        endpoint.want_errors()?;
        let shared = Arc::new(Shared {
            endpoint: Arc::new(endpoint),
            wildcard: local.ip().is_unspecified(),
            config,
            accept,
            closed,
            counters: ListenCounters::default(),
            links: Mutex::default(),
        });
        let thread = thread::Builder::new().name("udp-listen".into()).spawn({
            let shared = shared.clone();
            move || shared.run()
        })?;
        Ok(Self {
            shared,
            local,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The address of the socket, with the port that was chosen if the configuration had 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What came that belongs to no link, and what became of links.
    pub fn counters(&self) -> &ListenCounters {
        &self.shared.counters
    }

    /// The links there are, with their counters.
    pub fn links(&self) -> Vec<(SocketAddr, Arc<UdpCounters>)> {
        let links = self.shared.links.lock();
        links
            .iter()
            .map(|(source, entry)| (*source, entry.port.counters.clone()))
            .collect()
    }

    /// Takes all links down, waits for the thread and lets go of the sinks. Not to be called by a sink, nor by the callbacks.
    pub fn close(&self) {
        self.shared.endpoint.stop();
        join(self.thread.lock().take());
    }
}

impl Drop for UdpListener {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn run(&self) {
        let endpoint = &self.endpoint;
        let mut ring = Ring::new();
        let (mut more, mut sweep_at) = (false, Instant::now());
        while !endpoint.stopped() {
            let errors = !more && endpoint.wait(sweep_at.saturating_duration_since(Instant::now()));
            match ring.receive(endpoint) {
                Ok(full) => {
                    more = full;
                    if let Some(timeout) = self.deliver(&ring, Instant::now()) {
                        sweep_at = sweep_at.min(timeout);
                    }
                }
                Err(error) => {
                    more = false;
                    match error.kind() {
                        ErrorKind::WouldBlock => {}
                        ErrorKind::ConnectionRefused => endpoint.refused(),
                        _ => self.counters.rx_errors.add(1),
                    }
                }
            }
            if endpoint.take_refused() || errors {
                self.take_errors();
            }
            let now = Instant::now();
            if now >= sweep_at {
                sweep_at = self.sweep(now).max(now + SWEEP);
            }
        }
        let all: Vec<SocketAddr> = self.links.lock().keys().copied().collect();
        for source in all {
            let entry = self.links.lock().get(&source).cloned();
            if let Some(entry) = entry {
                let _ = entry.port.drive(Instant::now(), LinkState::handle_refused);
            }
            self.remove(source);
        }
    }

    /// Gives the datagrams of one receive call to their links. Returns the first timeout of new links.
    fn deliver(&self, ring: &Ring, now: Instant) -> Option<Instant> {
        let mut batch = Batch::new();
        let mut new_timeout = None;
        let mut datagrams = ring.datagrams().peekable();
        while let Some(&(source, local, _)) = datagrams.peek() {
            let entry = self.links.lock().get(&source).cloned();
            let Some(entry) = entry else {
                // One by one until one of them makes a link.
                let (_, _, bytes) = datagrams.next()?;
                if let Some(link) = self.admit(source, local, bytes, &mut batch, now) {
                    new_timeout = Some(link.port.poll_timeout());
                }
                continue;
            };
            let mut delivery = Delivery::new(&entry.port, &*entry.sink, &mut batch, now);
            while let Some((_, _, bytes)) = datagrams.next_if(|next| next.0 == source) {
                delivery.take(bytes.len(), Datagram::parse(bytes));
            }
            delivery.flush();
        }
        new_timeout
    }
    /// A datagram from a source without a link: makes one if all is right with it.
    fn admit<'a>(
        &self,
        source: SocketAddr,
        local: Option<IpAddr>,
        bytes: &'a [u8],
        batch: &mut Batch<'a>,
        now: Instant,
    ) -> Option<Entry> {
        let counters = &self.counters;
        counters.rx_unknown.add(1);
        if !self.permits(source.ip()) {
            counters.refused_source.add(1);
            return None;
        }
        let datagram = Datagram::parse(bytes);
        match datagram {
            Ok(_) => {}
            Err(Malformed::Length) => counters.rx_bad_length.add(1),
            Err(Malformed::Header) => counters.rx_bad_header.add(1),
            Err(Malformed::Icrc) => counters.rx_bad_icrc.add(1),
        }
        datagram.as_ref().ok()?;
        if self.links.lock().len() >= self.config.max_links {
            counters.too_many_links.add(1);
            return None;
        }
        let route = Route {
            to: source,
            from: local.filter(|_| self.wildcard),
        };
        let port = Arc::new(UdpPort::new(self.endpoint.clone(), route, now));
        let Some(sink) = (self.accept)(source, port.clone()) else {
            counters.no_free_port.add(1);
            return None;
        };
        let entry = Entry { port, sink };
        self.links.lock().insert(source, entry.clone());
        counters.opened.add(1);
        let mut delivery = Delivery::new(&entry.port, &*entry.sink, batch, now);
        delivery.take(bytes.len(), datagram);
        delivery.flush();
        Some(entry)
    }

    fn permits(&self, source: IpAddr) -> bool {
        source.to_canonical().is_loopback() || self.config.allow.iter().any(|n| n.contains(source))
    }

    /// Runs the timers of all links. Returns when the next one is due.
    fn sweep(&self, now: Instant) -> Instant {
        let mut next = now + SILENCE;
        let mut silent = Vec::new();
        for (source, entry) in &*self.links.lock() {
            if entry.port.poll_timeout() <= now
                && entry.port.drive(now, |link| link.handle_timeout(now)) == Some(false)
            {
                silent.push(*source);
            }
            next = next.min(entry.port.poll_timeout());
        }
        for source in silent {
            self.counters.closed_silent.add(1);
            self.remove(source);
        }
        next
    }

    /// Closes the links whose sources refuse datagrams.
    fn take_errors(&self) {
        for _ in 0..ERRORS_AT_ONCE {
            let (to, error) = match errqueue::take(&self.endpoint.socket) {
                Ok(Some((Some(to), error))) => (to, error),
                Ok(Some((None, _))) => continue,
                Ok(None) => break,
                Err(_) => return self.counters.rx_errors.add(1),
            };
            // An unreachable network may come back: only "nobody there" is final.
            if error.kind() == ErrorKind::ConnectionRefused {
                let entry = self.links.lock().get(&to).cloned();
                if let Some(entry) = entry {
                    entry.port.counters.refused.add(1);
                    let _ = entry.port.drive(Instant::now(), LinkState::handle_refused);
                    self.counters.closed_refused.add(1);
                    self.remove(to);
                }
            }
        }
    }

    /// Forgets a link whose state machine says that it is down, and tells everybody.
    fn remove(&self, source: SocketAddr) {
        let entry = self.links.lock().remove(&source);
        if let Some(entry) = entry {
            entry.sink.link_changed(false);
            (self.closed)(source);
        }
    }
}
