//! A running subnet with its threads and sockets: two hosts that are attacked, and two that attack.

use crate::host;
use datapath::host::{HostEvent, NextHop};
use datapath::netdev::mem::{self, MemPeer};
use datapath::{Input, InterfaceConfig};
use fabric::hca::{Hca, HcaConfig};
use fabric::link::local::LocalCable;
use fabric::link::udp::{HELLO_INTERVAL, ListenConfig, UdpCounters, UdpLink, UdpListener};
use fabric::link::{Link, LinkSink};
use fabric::node::NodeControl;
use fabric::sm::SmConfig;
use fabric::topology::Topology;
use ipoib::node::{Node, NodeConfig};
use ipoib::run::{Running, queues, spawn};
use ipoib::subnet::Subnet;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use verbs::Port;
use wire::ipoib::nd::link_local;
use wire::mad::PortState;
use wire::packet::{FlowControl, Packet};
use wire::{Gid, Guid, Lid};

/// Datagrams on the way at most: the attack is stopped by what we do with it, not by a full socket.
const WINDOW: u64 = 64;
/// Time between pings.
const PING: Duration = Duration::from_millis(10);
/// Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

struct Routes;

impl datapath::Host for Routes {
    fn next_hop(&mut self, destination: IpAddr) -> NextHop {
        match destination {
            IpAddr::V4(ip) if ip.octets()[..2] == [10, 77] => NextHop::OnLink,
            IpAddr::V6(ip) if ip.segments()[0] == 0xfd77 || ip.segments()[0] == 0xfe80 => {
                NextHop::OnLink
            }
            _ => NextHop::Unreachable,
        }
    }
    fn set_mtu(&mut self, _mtu: u32) -> Result<(), String> {
        Ok(())
    }
    /// It remembers none.
    fn forget_path_mtu(&mut self, _destination: IpAddr) {}
}

pub enum Cable {
    Local(LocalCable),
    Udp(Arc<UdpLink>),
}

/// A host: it answers echo requests and notes the answers to its own.
pub struct Victim {
    pub h: usize,
    node: Option<Node>,
    pub peer: Arc<MemPeer>,
    cable: Cable,
    pub answered: Arc<Mutex<BTreeSet<u32>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Victim {
    fn start(h: usize, connect: impl FnOnce(&Node) -> Cable) -> Victim {
        let guid = Guid(0x0002_c903_0000_0001 + h as u64);
        let (netdev, peer) = mem::pair(&format!("ib{h}"), 4096);
        let config = NodeConfig {
            port_guid: guid,
            description: format!("host {h}"),
            interface: InterfaceConfig {
                name: format!("ib{h}"),
                ..InterfaceConfig::default()
            },
            max_packet: 65_535,
        };
        let node = Node::start(config, Arc::new(netdev), Box::new(Routes)).unwrap();
        for (ip, prefix) in [
            (host::v4(h), 16),
            (host::v6(h), 64),
            (IpAddr::V6(link_local(guid)), 64),
        ] {
            assert!(
                node.inbox()
                    .put(Input::Host(HostEvent::AddressAdded(ip, prefix)))
            );
        }
        let cable = connect(&node);
        let (peer, stop, answered) = (
            Arc::new(peer),
            Arc::new(AtomicBool::new(false)),
            Arc::<Mutex<BTreeSet<u32>>>::default(),
        );
        let thread = thread::spawn({
            let (peer, stop, answered) = (peer.clone(), stop.clone(), answered.clone());
            move || {
                while !stop.load(Relaxed) {
                    peer.wait(Duration::from_millis(100));
                    while let Some(packet) = peer.try_recv() {
                        match echo(&packet) {
                            Some(Echo {
                                to,
                                from,
                                request: true,
                                token,
                            }) if [host::v4(h), host::v6(h)].contains(&to) => {
                                // A full device drops.
                                let _ = peer.send(&host::build(
                                    to,
                                    from,
                                    &host::Content::EchoReply(token),
                                    0,
                                ));
                            }
                            Some(Echo {
                                request: false,
                                token,
                                ..
                            }) => {
                                answered.lock().insert(token);
                            }
                            _ => {}
                        }
                        peer.recycle(packet);
                    }
                }
            }
        });
        Victim {
            h,
            node: Some(node),
            peer,
            cable,
            answered,
            stop,
            thread: Some(thread),
        }
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    pub fn lid(&self) -> Lid {
        self.node().hca().attributes().lid
    }

    pub fn gid(&self) -> Gid {
        self.node().hca().attributes().gid()
    }

    fn is_up(&self) -> bool {
        self.node()
            .inbox()
            .call(|interface, _| interface.is_up())
            .unwrap()
    }

    fn ping(&self, to: IpAddr, token: u32) {
        let from = if to.is_ipv4() {
            host::v4(self.h)
        } else {
            host::v6(self.h)
        };
        self.peer
            .send(&host::build(
                from,
                to,
                &host::Content::EchoRequest(token),
                0,
            ))
            .unwrap();
    }

    /// Pings until an answer comes.
    pub fn reaches(&self, to: IpAddr, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut token = 0xf000_0000 | (self.h as u32) << 16;
        while Instant::now() < until {
            token += 1;
            self.ping(to, token);
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(10));
                if self.answered.lock().contains(&token) {
                    return true;
                }
            }
        }
        false
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.node = None;
        match &self.cable {
            Cable::Local(cable) => cable.cut(),
            Cable::Udp(link) => link.close(),
        }
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Echo requests from the first victim to the second, by IPv4 and IPv6 in turn, until [`Pings::finish`].
pub struct Pings {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Pings {
    pub fn start(from: &Victim) -> Pings {
        let stop = Arc::<AtomicBool>::default();
        let (peer, stopped) = (from.peer.clone(), stop.clone());
        let thread = thread::spawn(move || {
            for token in 0.. {
                if stopped.load(Relaxed) {
                    return token;
                }
                let (source, to) = if token % 2 == 0 {
                    (host::v4(0), host::v4(1))
                } else {
                    (host::v6(0), host::v6(1))
                };
                peer.send(&host::build(
                    source,
                    to,
                    &host::Content::EchoRequest(token),
                    0,
                ))
                .unwrap();
                thread::sleep(PING);
            }
            0
        });
        Pings { stop, thread }
    }

    /// How many were sent, and those that were not answered.
    pub fn finish(self, from: &Victim) -> (u32, Vec<u32>) {
        self.stop.store(true, Relaxed);
        let pinged = self.thread.join().unwrap();
        let lost = || {
            let answered = from.answered.lock();
            let lost = (0..pinged).filter(|token| !answered.contains(token));
            lost.collect::<Vec<_>>()
        };
        // The last answers are still on their way.
        let until = Instant::now() + PATIENCE;
        while !lost().is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        (pinged, lost())
    }
}

struct Echo {
    from: IpAddr,
    to: IpAddr,
    request: bool,
    token: u32,
}

/// Reads echo messages of the shape that [`host::build`] gives them; anything may come.
fn echo(packet: &[u8]) -> Option<Echo> {
    let (from, to, body): (IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 if packet.len() >= 28 && packet[9] == 1 => {
            let ip = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
            (ip(12), ip(16), &packet[20..])
        }
        6 if packet.len() >= 48 && packet[6] == 58 => {
            let ip = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
            (ip(8), ip(24), &packet[40..])
        }
        _ => return None,
    };
    let request = match body[0] {
        8 | 128 => true,
        0 | 129 => false,
        _ => return None,
    };
    (!from.is_multicast()).then_some(Echo {
        from,
        to,
        request,
        token: u32::from_be_bytes(body[4..8].try_into().unwrap()),
    })
}

/// Sends packets as datagrams, as any implementation of the link does, and lets others send anything from the same address.
struct RawLink {
    socket: UdpSocket,
    operating: AtomicBool,
}

impl RawLink {
    fn hello(&self) {
        let op = if self.operating.load(Relaxed) {
            FlowControl::NORMAL
        } else {
            FlowControl::INIT
        };
        let _ = self.socket.send(&FlowControl::hello(op).emit());
    }
}

impl Link for RawLink {
    fn transmit(&self, packets: &[Packet<'_>]) {
        for packet in packets {
            let mut bytes = Vec::new();
            if packet.emit_into(&mut bytes).is_ok() {
                let _ = self.socket.send(&bytes);
            }
        }
    }
    fn port_state(&self, state: PortState) {
        self.operating.store(
            matches!(state, PortState::ARMED | PortState::ACTIVE),
            Relaxed,
        );
        self.hello();
    }
}

/// A source of datagrams that is a host of the subnet: it answers the subnet manager, has a LID, and its port is active.
pub struct Attacker {
    link: Arc<RawLink>,
    pub hca: Arc<Hca>,
    _control: Running<NodeControl<Hca>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    sent: u64,
    /// Of its link at the fabric; another object when the link had to be made again.
    pub counters: Arc<UdpCounters>,
}

impl Attacker {
    fn start(guid: u64, listener: &UdpListener) -> Attacker {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(listener.local_addr()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let link = Arc::new(RawLink {
            socket,
            operating: AtomicBool::new(false),
        });
        let (control_in, control_out) = queues::<NodeControl<Hca>>();
        let sink = control_in.clone();
        let (hca, control) = Hca::new(
            HcaConfig::new(Guid(guid), "attacker"),
            Box::new(move |input| sink.put(input)),
        );
        let control = spawn("attacker", control_in, control_out, control).unwrap();
        hca.attach_link(link.clone());
        hca.link_changed(true);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (link, hca, stop) = (link.clone(), hca.clone(), stop.clone());
            move || {
                let (mut buffer, mut hello_at) = ([0; 9000], Instant::now());
                while !stop.load(Relaxed) {
                    if let Ok(len) = link.socket.recv(&mut buffer)
                        && let Ok(packet) = Packet::parse(&buffer[..len])
                    {
                        hca.receive(&[packet]);
                    }
                    if Instant::now() >= hello_at {
                        link.hello();
                        hello_at = Instant::now() + HELLO_INTERVAL;
                    }
                }
            }
        });
        let source = link.socket.local_addr().unwrap();
        let counters = wait_for("the attacker's link", || link_counters(listener, source));
        wait_for("the attacker's port", || {
            (hca.attributes().state == PortState::ACTIVE).then_some(())
        });
        Attacker {
            link,
            hca,
            _control: control,
            stop,
            thread: Some(thread),
            sent: 0,
            counters,
        }
    }

    /// Sends when the fabric has taken in what was sent before.
    pub fn send(&mut self, bytes: &[u8], listener: &UdpListener) {
        let begun = Instant::now();
        // Hellos and answers of the attacker count there too, so the window is a little wider than it looks.
        while self.sent.saturating_sub(self.counters.rx_datagrams.get()) >= WINDOW {
            thread::yield_now();
            if begun.elapsed() > Duration::from_secs(1) {
                // The kernel dropped some, or the link was made anew.
                if let Some(counters) =
                    link_counters(listener, self.link.socket.local_addr().unwrap())
                {
                    self.counters = counters;
                }
                self.sent = self.counters.rx_datagrams.get();
            }
        }
        self.sent += u64::from(self.link.socket.send(bytes).is_ok());
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn link_counters(listener: &UdpListener, source: SocketAddr) -> Option<Arc<UdpCounters>> {
    listener
        .links()
        .into_iter()
        .find(|(s, _)| *s == source)
        .map(|(_, counters)| counters)
}

pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub struct World {
    pub victims: [Victim; 2],
    pub attackers: Vec<Attacker>,
    pub listener: UdpListener,
    pub subnet: Subnet,
    pub seeds: Vec<Vec<u8>>,
}

impl World {
    pub fn start(sm: SmConfig) -> World {
        World::start_in(&Topology::single_switch(Guid(0x5000), 16), sm)
    }

    pub fn start_in(topology: &Topology, sm: SmConfig) -> World {
        let subnet = Subnet::with_topology(topology, Some(sm)).unwrap();
        let frames = subnet.tap().start(100_000);
        let listener = subnet
            .listen(ListenConfig::new("127.0.0.1:0".parse().unwrap()))
            .unwrap();
        let local = Victim::start(0, |node| {
            Cable::Local(
                subnet
                    .connect(None, node.sink(), |link| node.attach(link))
                    .unwrap(),
            )
        });
        let remote = Victim::start(1, |node| {
            let link = UdpLink::connect(listener.local_addr(), node.sink()).unwrap();
            node.attach(link.clone());
            Cable::Udp(link)
        });
        let attackers = vec![
            Attacker::start(0xbad1, &listener),
            Attacker::start(0xbad2, &listener),
        ];
        let victims = [local, remote];
        for victim in &victims {
            wait_for("the interface", || victim.is_up().then_some(()));
        }
        assert!(
            victims[0].reaches(host::v4(1), PATIENCE) && victims[0].reaches(host::v6(1), PATIENCE)
        );
        assert!(
            victims[1].reaches(host::v4(0), PATIENCE) && victims[1].reaches(host::v6(0), PATIENCE)
        );
        subnet.tap().stop();
        let mut seeds: Vec<Vec<u8>> = frames.try_iter().map(|frame| frame.bytes).collect();
        assert!(seeds.len() > 100, "{}", seeds.len());
        seeds.extend(vectors());
        World {
            victims,
            attackers,
            listener,
            subnet,
            seeds,
        }
    }
}

/// Packets of Linux kernels.
fn vectors() -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/kernel-peer/vectors");
    let Ok(entries) = std::fs::read_dir(&path) else {
        eprintln!("SKIPPED: {} is absent", path.display());
        return Vec::new();
    };
    let files = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "hex"));
    files
        .map(|file| {
            std::fs::read_to_string(file)
                .unwrap()
                .split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                .collect()
        })
        .collect()
}
