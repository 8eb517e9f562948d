//! The sockets and the thread of the server.

use super::UmadCounters;
use super::core::{Core, Peer, Sink, Sockets};
use super::protocol::{Ctl, Request};
use crate::link::udp::Cidr;
use crate::node::ManagementPort;
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrAny,
    SocketAddrUnix, SocketFlags, SocketType, bind, connect, recv, recvmsg, send, sendto,
    socket_with,
};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use verbs::MadReceived;

/// MADs of the fabric that wait for the server.
const QUEUE: usize = 1 << 14;
/// Datagrams that wait for a client to read.
const BACKLOG: usize = 1024;
/// How often clients are asked whether they live.
const PROBE: Duration = Duration::from_millis(250);
/// How often control answers are sent again that could not be.
const RETRY: Duration = Duration::from_millis(20);
/// Clients that one is kept for.
const MAX_LATE: usize = 4096;
/// Datagrams taken from one socket before the others have their turn.
const TURN: usize = 64;

/// Who is served, and where.
pub struct UmadConfig {
    /// Base of the names of the abstract Unix sockets: `IBSIM_SOCKNAME` of the clients.
    pub base: String,
    /// Serve UDP too: control at this address, data at the ports that follow.
    pub udp: Option<SocketAddr>,
    /// Who may come by UDP, besides loopback.
    pub allow: Vec<Cidr>,
    /// The nodes that clients may sit on, and their names; the first is for those that name none.
    pub nodes: Vec<(String, Arc<dyn ManagementPort>)>,
}

/// A running server. Dropping it ends it; its clients then hear nothing more.
pub struct UmadServer {
    counters: Arc<UmadCounters>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

struct Wake {
    fd: OwnedFd,
    told: AtomicBool,
    stop: AtomicBool,
}

impl Wake {
    fn wake(&self) {
        if !self.told.swap(true, SeqCst) {
            // Full means that it is awake.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

impl UmadServer {
    /// Makes the sockets and serves them.
    ///
    /// # Errors
    /// A name or address that is taken; no thread to be had.
    pub fn start(config: UmadConfig) -> io::Result<UmadServer> {
        let counters = Arc::new(UmadCounters::default());
        let wake = Arc::new(Wake {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            told: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let (mads, from_fabric) = bounded(QUEUE);
        let sink = sink(mads, wake.clone());
        let files = Files::new(&config, &wake, counters.clone())?;
        let core = Core::new(config.nodes, sink, counters.clone());
        let (thread_wake, thread_counters) = (wake.clone(), counters.clone());
        let thread = std::thread::Builder::new()
            .name("ipoib-umad".into())
            .spawn(move || {
                let mut server = Loop {
                    core,
                    files,
                    wake: thread_wake,
                    from_fabric,
                    counters: thread_counters,
                };
                if let Err(error) = server.run() {
                    tracing::error!(%error, "the umad server ends");
                }
            })?;
        Ok(UmadServer {
            counters,
            wake,
            thread: Some(thread),
        })
    }

    /// What was counted.
    pub fn counters(&self) -> &UmadCounters {
        &self.counters
    }
}

impl Drop for UmadServer {
    fn drop(&mut self) {
        self.wake.stop.store(true, SeqCst);
        self.wake.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the umad server panicked");
        }
    }
}

fn sink(mads: Sender<(usize, MadReceived)>, wake: Arc<Wake>) -> Sink {
    Arc::new(move |node, mad| {
        let taken = mads.try_send((node, mad)).is_ok();
        wake.wake();
        taken
    })
}

const WAKE: u64 = u64::MAX;
const UNIX: u64 = u64::MAX - 1;
const UDP: u64 = u64::MAX - 2;

struct DataSocket {
    fd: OwnedFd,
    backlog: VecDeque<[u8; Request::LEN]>,
}

struct Files {
    epoll: OwnedFd,
    base: String,
    unix: OwnedFd,
    udp: Option<(SocketAddr, OwnedFd)>,
    allow: Vec<Cidr>,
    data: HashMap<u32, DataSocket>,
    /// Control answers that could not be sent yet. The library asks one thing at a time, and waits for the answer for ever.
    late: HashMap<Peer, [u8; Ctl::LEN]>,
    /// Clients found dead while the core was at work.
    dead: Vec<u32>,
    counters: Arc<UmadCounters>,
}

fn datagram(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// The library counts the zero at the end as part of the name.
fn abstract_name(text: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(
        format!("{text}\0").as_bytes(),
    )?)
}

impl Files {
    fn new(config: &UmadConfig, wake: &Wake, counters: Arc<UmadCounters>) -> io::Result<Files> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let unix = datagram(AddressFamily::UNIX)?;
        // First: what comes in between would have no credentials.
        set_socket_passcred(&unix, true)?;
        bind(&unix, &abstract_name(&format!("{}:ctl", config.base))?)?;
        let add = |fd: &OwnedFd, number| {
            epoll::add(
                &epoll,
                fd,
                epoll::EventData::new_u64(number),
                epoll::EventFlags::IN,
            )
        };
        add(&wake.fd, WAKE)?;
        add(&unix, UNIX)?;
        let udp = match config.udp {
            Some(address) => {
                let socket = datagram(SocketAddrAny::from(address).address_family())?;
                bind(&socket, &address)?;
                add(&socket, UDP)?;
                Some((address, socket))
            }
            None => None,
        };
        Ok(Files {
            epoll,
            base: config.base.clone(),
            unix,
            udp,
            allow: config.allow.clone(),
            data: HashMap::new(),
            late: HashMap::new(),
            dead: Vec::new(),
            counters,
        })
    }

    fn make(&self, id: u32, peer: &Peer, info_id: u32) -> io::Result<OwnedFd> {
        let none = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        let fd = match (peer, &self.udp) {
            (Peer::Unix(_), _) => {
                let fd = datagram(AddressFamily::UNIX)?;
                bind(&fd, &abstract_name(&format!("{}:out{id}", self.base))?)?;
                connect(&fd, &abstract_name(&format!("{}:in{info_id}", self.base))?)?;
                fd
            }
            (Peer::Udp(client), Some((address, _))) => {
                let port = u32::from(address.port()) + 1 + id;
                let own = SocketAddr::new(address.ip(), u16::try_from(port).map_err(|_| none())?);
                let theirs = u16::try_from(info_id).map_err(|_| none())?;
                let fd = datagram(SocketAddrAny::from(own).address_family())?;
                bind(&fd, &own)?;
                connect(&fd, &SocketAddr::new(client.ip(), theirs))?;
                fd
            }
            (Peer::Udp(_), None) => return Err(none()),
        };
        epoll::add(
            &self.epoll,
            &fd,
            epoll::EventData::new_u64(id.into()),
            epoll::EventFlags::IN,
        )?;
        Ok(fd)
    }

    /// Sends what waits for a client, as far as it reads.
    fn flush(&mut self, id: u32) {
        let Some(socket) = self.data.get_mut(&id) else {
            return;
        };
        let waited = !socket.backlog.is_empty();
        while let Some(datagram) = socket.backlog.front() {
            match send(&socket.fd, datagram, SendFlags::NOSIGNAL) {
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                Err(Errno::CONNREFUSED) => {
                    self.dead.push(id);
                    return;
                }
                Err(_) => self.counters.tx_errors.add(1),
            }
            socket.backlog.pop_front();
        }
        if waited && socket.backlog.is_empty() {
            self.interest(id, epoll::EventFlags::IN);
        }
    }

    fn try_control(&self, peer: &Peer, datagram: &[u8; Ctl::LEN]) -> Result<usize, Errno> {
        match (peer, &self.udp) {
            (Peer::Unix(name), _) => SocketAddrUnix::new_abstract_name(name)
                .and_then(|to| sendto(&self.unix, datagram, SendFlags::NOSIGNAL, &to)),
            (Peer::Udp(to), Some((_, socket))) => sendto(socket, datagram, SendFlags::NOSIGNAL, to),
            (Peer::Udp(_), None) => Err(Errno::NOTCONN),
        }
    }

    fn retry_control(&mut self) {
        let mut late = std::mem::take(&mut self.late);
        late.retain(|peer, datagram| match self.try_control(peer, datagram) {
            Err(Errno::AGAIN | Errno::NOBUFS) => true,
            Err(_) => {
                self.counters.tx_errors.add(1);
                false
            }
            Ok(_) => false,
        });
        self.late = late;
    }

    fn interest(&self, id: u32, flags: epoll::EventFlags) {
        let Some(socket) = self.data.get(&id) else {
            return;
        };
        let data = epoll::EventData::new_u64(id.into());
        if epoll::modify(&self.epoll, &socket.fd, data, flags).is_err() {
            self.counters.rx_errors.add(1);
        }
    }
}

impl Sockets for Files {
    fn open(&mut self, id: u32, peer: &Peer, info_id: u32) -> bool {
        match self.make(id, peer, info_id) {
            Ok(fd) => {
                let backlog = VecDeque::new();
                self.data.insert(id, DataSocket { fd, backlog });
                true
            }
            Err(error) => {
                tracing::debug!(client = id, %error, "umad: no data socket");
                false
            }
        }
    }

    fn close(&mut self, id: u32) {
        self.data.remove(&id);
        // The number may be another's before it is looked at.
        self.dead.retain(|dead| *dead != id);
    }

    fn is_alive(&mut self, peer: &Peer) -> bool {
        let Peer::Unix(name) = peer else { return true };
        // A socket that is connected to another one refuses this with EPERM; one that is gone, with ECONNREFUSED.
        let refused = SocketAddrUnix::new_abstract_name(name)
            .and_then(|name| {
                let probe = socket_with(
                    AddressFamily::UNIX,
                    SocketType::DGRAM,
                    SocketFlags::CLOEXEC,
                    None,
                )?;
                connect(&probe, &name)
            })
            .is_err_and(|error| error == Errno::CONNREFUSED);
        !refused
    }

    fn send_control(&mut self, peer: &Peer, datagram: &[u8; Ctl::LEN]) {
        if self.late.contains_key(peer) {
            return self.counters.tx_full.add(1);
        }
        match self.try_control(peer, datagram) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) if self.late.len() < MAX_LATE => {
                self.late.insert(peer.clone(), *datagram);
            }
            Err(Errno::AGAIN | Errno::NOBUFS) => self.counters.tx_full.add(1),
            Err(_) => self.counters.tx_errors.add(1),
        }
    }

    fn send_data(&mut self, id: u32, datagram: &[u8; Request::LEN]) {
        let Some(socket) = self.data.get_mut(&id) else {
            return;
        };
        if socket.backlog.len() >= BACKLOG {
            return self.counters.tx_full.add(1);
        }
        let idle = socket.backlog.is_empty();
        socket.backlog.push_back(*datagram);
        if idle {
            self.flush(id);
            if self.data.get(&id).is_some_and(|s| !s.backlog.is_empty()) {
                self.interest(id, epoll::EventFlags::IN | epoll::EventFlags::OUT);
            }
        }
    }
}

struct Loop {
    core: Core,
    files: Files,
    wake: Arc<Wake>,
    from_fabric: Receiver<(usize, MadReceived)>,
    counters: Arc<UmadCounters>,
}

impl Loop {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        let mut next_probe = Instant::now() + PROBE;
        while !self.wake.stop.load(SeqCst) {
            let now = Instant::now();
            let until = self
                .core
                .poll_timeout()
                .map_or(next_probe, |t| t.min(next_probe));
            let until = match self.files.late.is_empty() {
                true => until,
                false => until.min(now + RETRY),
            };
            // Rounded up, so as not to spin through the last millisecond.
            let wait = until.saturating_duration_since(now) + Duration::from_millis(1);
            let wait = Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_millis()) * 1_000_000,
            };
            events.clear();
            match epoll::wait(&self.files.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    WAKE => {
                        let mut count = [0; 8];
                        let _ = rustix::io::read(&self.wake.fd, &mut count);
                        self.wake.told.store(false, SeqCst);
                    }
                    UNIX => self.control(now, false),
                    UDP => self.control(now, true),
                    id => self.data(now, id as u32, flags),
                }
            }
            // What came before `told` was reset is in the queue; what comes after wakes again.
            for _ in 0..self.from_fabric.len() {
                if let Ok((node, mad)) = self.from_fabric.try_recv() {
                    self.core.received(node, mad, &mut self.files);
                }
            }
            self.core.handle_timeout(now, &mut self.files);
            self.files.retry_control();
            if now >= next_probe {
                next_probe = now + PROBE;
                let files = &mut self.files;
                let dead: Vec<u32> = self
                    .core
                    .clients()
                    .filter(|(_, peer)| !files.is_alive(peer))
                    .map(|(id, _)| id)
                    .collect();
                files.dead.extend(dead);
            }
            while let Some(id) = self.files.dead.pop() {
                self.core.died(id, &mut self.files);
            }
        }
        Ok(())
    }

    fn control(&mut self, now: Instant, is_udp: bool) {
        // A datagram that is longer than one may be shows by its length.
        let mut bytes = [0; Ctl::LEN + 1];
        for _ in 0..TURN {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let socket = match (&self.files.udp, is_udp) {
                (Some((_, socket)), true) => socket,
                (None, true) => return,
                (_, false) => &self.files.unix,
            };
            let message = recvmsg(
                socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                RecvFlags::empty(),
            );
            let message = match message {
                Ok(message) => message,
                Err(Errno::AGAIN) => return,
                // Of an earlier send, over UDP.
                Err(Errno::CONNREFUSED | Errno::INTR) => continue,
                Err(_) => return self.counters.rx_errors.add(1),
            };
            let own = rustix::process::geteuid();
            let trusted = ancillary.drain().any(|m| {
                matches!(m, RecvAncillaryMessage::ScmCredentials(who) if who.uid == own || who.uid.is_root())
            });
            let peer = message.address.and_then(|address| match is_udp {
                true => SocketAddr::try_from(address).ok().map(Peer::Udp),
                false => SocketAddrUnix::try_from(address)
                    .ok()
                    .and_then(|a| a.abstract_name().map(|name| Peer::Unix(name.to_vec()))),
            });
            let Some(peer) = peer else {
                self.counters.rx_bad_control.add(1);
                continue;
            };
            let welcome = match &peer {
                Peer::Unix(_) => trusted,
                Peer::Udp(from) => {
                    from.ip().is_loopback()
                        || self.files.allow.iter().any(|cidr| cidr.contains(from.ip()))
                }
            };
            if !welcome {
                self.counters.rx_refused_source.add(1);
                continue;
            }
            self.core
                .control(now, peer, &bytes[..message.bytes], &mut self.files);
        }
    }

    fn data(&mut self, now: Instant, id: u32, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.files.flush(id);
        }
        let mut bytes = [0; Request::LEN + 1];
        for _ in 0..TURN {
            // The client may have gone with what it sent before.
            let Some(socket) = self.files.data.get(&id) else {
                return;
            };
            match recv(socket.fd.as_fd(), &mut bytes, RecvFlags::empty()) {
                Ok((read, _)) => self.core.data(now, id, &bytes[..read], &mut self.files),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(Errno::CONNREFUSED) => return self.files.dead.push(id),
                Err(_) => return self.counters.rx_errors.add(1),
            }
        }
    }
}
