//! The state machine of one IPoIB interface: port, groups, neighbours and host, put together.
//!
//! Fed by [`Input`]s and time, it drives the port (through the `verbs` traits), the device and the host's settings, and publishes the
//! forwarding table. It never waits and has no clock or thread of its own: one control thread, or a simulation, owns it.
//!
//! Order of a bring-up (ib_ipoib's): port Active with a LID and the P_Key in its table; queue pair; broadcast group joined and attached
//! (carrier, MTU and Q_Key follow it); then the host's groups, subscriptions to traps 64 to 67, announcement of own addresses.

pub(crate) mod connected;
mod device;
mod neighbour;
mod port;
pub mod status;

pub use connected::{ConnectedConfig, ConnectionStatus, Mode, ParseModeError};

use crate::counters::Counters;
use crate::forwarding::{Course, Destination, Forwarding, Hop, destination, is_group};
use crate::host::{HostEvent, NextHop};
use crate::icmp::{self, RateLimit, Reason};
use crate::plane::{Plane, Upcall};
use arp::{NeighbourConfig, Neighbours};
use connected::{Connections, Output};
use device::Mtu;
use mad::{RequestId, SaClient, SaClientConfig};
use multicast::{Groups, GroupsConfig, RequestTag};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{
    ConnectedSend, MadAgent, MadHandler, MadReceived, Port, PortAttributes, PortEvent, UdQueuePair,
    VerbsError,
};
use wire::ipoib::{ENCAP_LEN, Scope};
use wire::mad::attr::TrapNumber;
use wire::mad::{MadHeader, MgmtClass};
use wire::{Gid, PKey, Qpn};

use crate::netdev::Netdev;

/// What an administrator may choose.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// Name for messages, such as `ib0`.
    pub name: String,
    /// Partition; `None`: that of index 0 of the P_Key table. The full-member bit does not matter.
    pub p_key: Option<PKey>,
    /// Queue pair number; `None`: any.
    pub qpn: Option<Qpn>,
    /// Upper bound of the IP MTU, bytes; `None`: that of the broadcast group.
    pub mtu: Option<u32>,
    /// Scope of the broadcast group (RFC 4391 section 4).
    pub scope: Scope,
    /// Timers and limits of the neighbour machine.
    pub neighbours: NeighbourConfig,
    /// Time-outs of SA queries.
    pub sa: SaClientConfig,
    /// How unicast packets go.
    pub mode: Mode,
    /// Settings of connections.
    pub connected: ConnectedConfig,
}

impl Default for InterfaceConfig {
    fn default() -> Self {
        InterfaceConfig {
            name: "ib0".into(),
            p_key: None,
            qpn: None,
            mtu: None,
            scope: Scope::LINK_LOCAL,
            neighbours: NeighbourConfig::default(),
            sa: SaClientConfig::default(),
            mode: Mode::default(),
            connected: ConnectedConfig::default(),
        }
    }
}

/// What the interface asks of the host that its device belongs to.
pub trait Host: Send {
    /// The next hop of packets for `destination` that leave by this interface.
    fn next_hop(&mut self, destination: IpAddr) -> NextHop;
    /// Sets the device's MTU, bytes.
    ///
    /// # Errors
    /// A text for the log; the interface goes on.
    fn set_mtu(&mut self, mtu: u32) -> Result<(), String>;
    /// Larger packets than it was told by an ICMP error go to `destination` now.
    fn forget_path_mtu(&mut self, destination: IpAddr);
}

/// What happens to an interface.
#[derive(Debug)]
pub enum Input {
    /// Something at the port.
    Port(PortEvent),
    /// A MAD for its SA client or its communication manager.
    Mad(MadReceived),
    /// Something in the data path.
    Upcall(Upcall),
    /// Something at the host.
    Host(HostEvent),
}

/// Where inputs are put by the threads that notice them; false if there is no room (it is counted, and protocols repeat).
pub type InputSink = Arc<dyn Fn(Input) -> bool + Send + Sync>;

/// Takes the neighbour that [`Interface::resolve`] found, or why there is none.
pub type ResolveAnswer = Box<dyn FnOnce(Result<status::NeighbourStatus, String>) + Send>;

/// What an answer of the SA is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Join(RequestTag),
    Leave(RequestTag),
    Path(Gid),
    /// Is the port gone, as a report says?
    Gone(Gid),
    Subscribe(TrapNumber),
}

/// One interface. See the module.
pub struct Interface {
    config: InterfaceConfig,
    port: Arc<dyn Port>,
    attributes: Arc<PortAttributes>,
    agent: Box<dyn MadAgent>,
    plane: Arc<Plane>,
    host: Box<dyn Host>,
    qp: Option<Arc<dyn UdQueuePair>>,

    sa: SaClient,
    requests: BTreeMap<RequestId, Purpose>,
    /// Traps not subscribed to yet, and when to try again.
    unsubscribed: Vec<TrapNumber>,
    subscribe_at: Option<Instant>,

    groups: Groups,
    neighbours: Neighbours,
    connections: Connections,
    /// By next hop: the destinations whose senders were told that no more than datagrams fit, since there was no connection.
    told_too_big: BTreeMap<IpAddr, BTreeSet<IpAddr>>,
    /// Who waits for a next hop to be resolved.
    resolving: Vec<(IpAddr, ResolveAnswer)>,
    addresses: BTreeSet<(IpAddr, u8)>,
    host_groups: BTreeSet<IpAddr>,

    /// When the data path is asked again which groups it uses; none while the interface is down.
    ask_use_at: Option<Instant>,

    admin_up: bool,
    /// The port GID and partition that the interface runs with.
    running: Option<(Gid, PKey)>,
    mtu: Mtu,
    /// Working copy of the forwarding table; published when it changed.
    table: Forwarding,
    changed: bool,
    errors: RateLimit,
    finished: bool,
}

/// Resolutions waited for at once.
const MAX_RESOLVING: usize = 256;
/// Groups joined for sending are left when unused for a minute: the data path is asked this often.
const ASK_USE: Duration = Duration::from_secs(20);
/// Next hops, and destinations behind each, of which is remembered that their senders were told a smaller MTU.
const MAX_TOLD: usize = 1024;
/// Next hops kept; more destinations than this make a fresh start.
const MAX_HOPS: usize = 16_384;

impl Interface {
    /// An interface on `port` for the device `netdev`. `inputs` takes what the port's and the device's threads notice; whoever owns the
    /// interface feeds it back by [`handle`](Self::handle).
    ///
    /// # Errors
    /// The port has no room for another MAD agent.
    pub fn new(
        config: InterfaceConfig,
        port: Arc<dyn Port>,
        netdev: Arc<dyn Netdev>,
        host: Box<dyn Host>,
        inputs: InputSink,
        seed: u64,
    ) -> Result<Self, VerbsError> {
        let sink = inputs.clone();
        let handler: Arc<dyn MadHandler> = Arc::new(move |mad| {
            sink(Input::Mad(mad));
        });
        let agent = port.register_mad_agent(&[MgmtClass::SUBN_ADM, MgmtClass::COM_MGT], handler)?;
        let sink = inputs.clone();
        port.subscribe(Arc::new(move |event| {
            sink(Input::Port(event));
        }));
        let plane = Arc::new(Plane::new(
            netdev,
            Box::new(move |upcall| inputs(Input::Upcall(upcall))),
            seed ^ 4,
        ));
        let attributes = port.attributes();
        Ok(Interface {
            connections: Connections::new(
                config.connected.clone(),
                config.mode,
                port.clone(),
                plane.clone(),
                attributes.node_guid,
                agent.tid_high(),
                seed ^ 3,
            ),
            attributes,
            sa: SaClient::new(config.sa, agent.tid_high(), seed),
            requests: BTreeMap::new(),
            unsubscribed: Vec::new(),
            subscribe_at: None,
            ask_use_at: None,
            groups: Groups::new(
                GroupsConfig {
                    scope: config.scope,
                    ..GroupsConfig::default()
                },
                seed ^ 1,
            ),
            neighbours: Neighbours::new(config.neighbours.clone(), seed ^ 2),
            told_too_big: BTreeMap::new(),
            resolving: Vec::new(),
            addresses: BTreeSet::new(),
            host_groups: BTreeSet::new(),
            admin_up: true,
            running: None,
            mtu: Mtu {
                admin: config.mtu,
                ..Mtu::default()
            },
            table: Forwarding::default(),
            changed: false,
            errors: RateLimit::new(),
            finished: false,
            qp: None,
            config,
            port,
            agent,
            plane,
            host,
        })
    }

    /// The data path, for the thread that reads the device.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// How unicast packets go.
    pub fn mode(&self) -> Mode {
        self.connections.mode()
    }

    /// Changes the mode. What was read from the device before that is delivered by the connections that there were.
    ///
    /// # Errors
    /// In words: connections are not offered here.
    pub fn set_mode(&mut self, now: Instant, mode: Mode) -> Result<(), String> {
        if mode == Mode::Connected && !self.config.connected.offer {
            return Err("this interface takes no connections".into());
        }
        self.connections.set_mode(now, mode);
        self.apply_mtu();
        self.settle(now);
        Ok(())
    }

    /// True once the device or the port is gone: the owner ends.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// True while packets can flow: the broadcast group is joined.
    pub fn is_up(&self) -> bool {
        self.table.identity.is_some()
    }

    /// One input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Port(event) => self.port_event(now, event),
            Input::Mad(mad) => match MadHeader::parse(&*mad.mad) {
                Some(header) if header.mgmt_class == MgmtClass::COM_MGT => {
                    self.connections.handle_mad(now, &mad)
                }
                _ => self.sa.handle_mad(now, &mad),
            },
            Input::Upcall(upcall) => self.upcall(now, upcall),
            Input::Host(event) => self.host_event(now, event),
        }
        self.settle(now);
    }

    /// Starts; call once, and then feed.
    pub fn start(&mut self, now: Instant) {
        self.reconsider(now);
        self.settle(now);
    }

    /// Leaves all groups and lets the queue pair go. The leave messages are sent, not awaited.
    pub fn shutdown(&mut self, now: Instant) {
        self.admin_up = false;
        self.finished = true;
        self.reconsider(now);
        self.settle(now);
        self.qp = None;
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [
            self.sa.poll_timeout(),
            self.groups.poll_timeout(),
            self.neighbours.poll_timeout(),
            self.connections.poll_timeout(),
            self.subscribe_at,
            self.ask_use_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sa.handle_timeout(now);
        self.groups.handle_timeout(now);
        self.neighbours.handle_timeout(now);
        self.connections.handle_timeout(now);
        if self.subscribe_at.is_some_and(|at| at <= now) {
            self.subscribe(now);
        }
        if self.ask_use_at.is_some_and(|at| at <= now) {
            self.ask_use_at = Some(now + ASK_USE);
            for group in self.table.groups.values() {
                group.ask_use();
            }
        }
        self.settle(now);
    }

    /// Carries outputs between the machines until none has any left, then publishes what changed.
    fn settle(&mut self, now: Instant) {
        self.connections.hear(now);
        loop {
            if let Some(event) = self.sa.poll_event() {
                self.sa_event(now, event);
            } else if let Some(output) = self.groups.poll_output() {
                self.groups_output(now, output);
            } else if let Some(output) = self.neighbours.poll_output() {
                self.neighbours_output(now, output);
            } else if let Some(output) = self.connections.poll_output() {
                match output {
                    Output::Send(mad) => self.agent.send(mad),
                    Output::Opened(hops) => self.tell_larger_mtu(&hops),
                    Output::Again(frames) => {
                        frames.into_iter().for_each(|f| self.send_ip(now, f));
                    }
                }
            } else if let Some(mad) = self.sa.poll_transmit() {
                self.agent.send(mad);
            } else {
                break;
            }
        }
        if std::mem::take(&mut self.changed) {
            self.plane.publish(self.table.clone());
        }
    }

    fn upcall(&mut self, now: Instant, upcall: Upcall) {
        match upcall {
            Upcall::Miss(frame) => self.send_ip(now, frame),
            Upcall::TooBig(packet, mtu) => {
                if self.note_too_big(&packet, mtu) {
                    self.icmp_error(now, &packet, Reason::TooBig(mtu));
                } else {
                    Counters::bump(&self.plane.counters().icmp_suppressed);
                }
            }
            Upcall::Used(key) => self.used(now, key),
            Upcall::Connect(peer) => self.connections.used(now, peer),
            // They are heard of in any case.
            Upcall::Connection => {}
            Upcall::Arp(source, packet) => self.arp_received(now, source, &packet),
            Upcall::Nd(source, packet) => self.nd_received(now, source, &packet),
        }
    }

    /// Sends an encapsulated IP packet that the data path had no entry for.
    fn send_ip(&mut self, now: Instant, frame: Vec<u8>) {
        let counters = self.plane.counters();
        let Some(identity) = &self.table.identity else {
            return Counters::bump(&counters.tx_drop_down);
        };
        let Some(ip) = frame.get(ENCAP_LEN..).and_then(destination) else {
            return Counters::bump(&counters.tx_drop_not_ip);
        };
        let multicast = is_group(ip);
        if !multicast && !self.table.hops.contains_key(&ip) {
            let hop = match self.host.next_hop(ip) {
                NextHop::OnLink => Hop::Neighbour(ip),
                NextHop::Gateway(gateway) => Hop::Neighbour(gateway),
                NextHop::Broadcast => Hop::Broadcast,
                NextHop::Unreachable => {
                    Counters::bump(&counters.tx_drop_no_route);
                    return self.icmp_error(now, &frame[ENCAP_LEN..], Reason::Unreachable);
                }
            };
            let hops = Arc::make_mut(&mut self.table.hops);
            if hops.len() >= MAX_HOPS {
                hops.clear();
            }
            hops.insert(ip, hop);
            self.changed = true;
        }
        // It may have been resolved since the data path missed it.
        if let Some((key, to)) = self.table.find(identity, ip) {
            let to = to.clone();
            if to.first_use() {
                self.used(now, key);
            }
            return self.send_to(now, &to, vec![frame]);
        }
        match self.table.hops.get(&ip) {
            Some(Hop::Neighbour(hop)) if !multicast => self.neighbours.send(now, *hop, frame),
            // The broadcast group is always in the table while the interface is up: this is another group.
            _ => self.groups.send(now, ip, frame),
        }
    }

    /// Sends packets from control: the queue that waited for a neighbour or group.
    fn send_to(&mut self, now: Instant, to: &Destination, frames: Vec<Vec<u8>>) {
        let Some(identity) = self.table.identity.clone() else {
            return;
        };
        for frame in frames {
            let packet = frame.get(ENCAP_LEN..).unwrap_or_default();
            let way = to.way();
            match to.course(&way, packet.len()) {
                Course::Connection(qp) => {
                    to.count(packet.len());
                    self.plane
                        .post_connected(&**qp, &[ConnectedSend::message(&frame)]);
                }
                Course::Datagram => {
                    to.count(packet.len());
                    identity.qp.post_send(&[identity.send(to, &frame)]);
                    let counters = self.plane.counters();
                    Counters::bump(&counters.tx_packets);
                    Counters::add(&counters.tx_bytes, packet.len() as u64);
                    Counters::add(&counters.tx_multicast, u64::from(to.is_group()));
                }
                Course::Wait(peer) => self.connections.send(now, peer, frame),
                Course::TooBig(mtu) => {
                    if !self.plane.send_fragments(&self.table, to, &frame) {
                        Counters::bump(&self.plane.counters().tx_drop_too_big);
                        self.note_too_big(packet, mtu);
                        self.icmp_error(now, packet, Reason::TooBig(mtu));
                    }
                }
            }
        }
    }

    /// Remembers who is told this MTU for want of a connection. False: there is one by now.
    fn note_too_big(&mut self, packet: &[u8], mtu: usize) -> bool {
        let Some(ip) = destination(packet) else {
            return true;
        };
        let Some(Hop::Neighbour(hop)) = self.table.hops.get(&ip) else {
            return true;
        };
        let Some(to) = self.table.neighbours.get(hop) else {
            return true;
        };
        if self.mode() == Mode::Connected && self.told_too_big.len() < MAX_TOLD {
            let told = self.told_too_big.entry(*hop).or_default();
            if told.len() < MAX_TOLD {
                told.insert(ip);
            }
        }
        to.mtu_now() <= mtu
    }

    /// Now there is a connection to the neighbours at these addresses.
    fn tell_larger_mtu(&mut self, hops: &[IpAddr]) {
        for hop in hops {
            for destination in self.told_too_big.remove(hop).unwrap_or_default() {
                self.host.forget_path_mtu(destination);
            }
        }
    }

    fn icmp_error(&mut self, now: Instant, packet: &[u8], reason: Reason) {
        let counters = self.plane.counters();
        match icmp::error(packet, reason) {
            Some(error) if self.errors.take(now) => {
                Counters::bump(&counters.icmp_errors);
                self.plane.to_host(&error);
            }
            _ => Counters::bump(&counters.icmp_suppressed),
        }
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // The published table holds the queue pair, whose handler holds the plane.
        self.plane.publish(Forwarding::default());
    }
}
