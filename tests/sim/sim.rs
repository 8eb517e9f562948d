//! The subnet: nodes, their state machines, and the loop that runs them.

use crate::host::{self, Content, Log, ScriptedHost};
use crate::net::{CableId, Death, Event, Net, Random};
use crate::stack::Stack;
use datapath::host::HostEvent;
use datapath::netdev::PacketBatch;
use datapath::netdev::mem::{self, MemNetdev, MemPeer};
use datapath::{Interface, InterfaceConfig, Plane};
use fabric::hca::{Hca, HcaConfig};
use fabric::link::LinkSink;
use fabric::link::fault::FaultConfig;
use fabric::node::{ManagementPort, NodeControl, NodeInput};
use fabric::sm::runner::SmPort;
use fabric::sm::{SmConfig, SubnetManager};
use fabric::switch::{Switch, SwitchConfig};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::MadReceived;
use wire::ipoib::nd::link_local;
use wire::{Gid, Guid, Qpn};

pub type MachineId = usize;

/// Longest packet that a host may send: IP's.
const MAX_PACKET: usize = 65_535;
/// Packets that a host's device holds.
const DEVICE_QUEUE: usize = 256;

/// What the sinks hand over.
pub enum Input {
    Node(NodeInput),
    Mad(MadReceived),
    Interface(datapath::Input),
    /// The device of this host wrote a packet.
    Device(usize),
    /// The device of this host has another MTU, bytes.
    Mtu(usize, u32),
}

enum Machine {
    Switch(NodeControl<Switch>),
    Hca(NodeControl<Hca>),
    Interface(Box<Interface>),
    Sm(Box<SubnetManager>, SmPort),
}

impl Machine {
    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Machine::Switch(control) => control.poll_timeout(),
            Machine::Hca(control) => control.poll_timeout(),
            Machine::Interface(interface) => interface.poll_timeout(),
            Machine::Sm(sm, _) => sm.poll_timeout(),
        }
    }
}

struct Slot {
    machine: Option<Machine>,
    /// The earliest timer in the queue.
    armed: Option<Instant>,
}

/// A switch that is part of the subnet.
pub struct SwitchNode {
    pub switch: Arc<Switch>,
}

/// What stands above a host's device.
pub enum Above {
    Scripted(MemPeer),
    Stack(Box<Stack>),
}

/// A host that is alive.
pub struct Alive {
    pub hca: Arc<Hca>,
    pub interface: MachineId,
    control: MachineId,
    netdev: Arc<MemNetdev>,
    plane: Arc<Plane>,
    pub above: Above,
    pub cable: CableId,
    /// Port of its switch.
    port: u8,
}

/// A host, dead or alive.
pub struct HostNode {
    pub guid: Guid,
    pub switch: usize,
    pub alive: Option<Alive>,
    pub log: Log,
    /// Of its device, bytes.
    pub mtu: u32,
    pub config: InterfaceConfig,
    /// Groups that its programs joined.
    pub groups: Vec<IpAddr>,
    pub is_stack: bool,
    /// How often it was started.
    lives: u64,
}

/// Where a subnet manager lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmPlace {
    Switch(usize),
    Host(usize),
}

pub struct Sim {
    pub net: Arc<Net>,
    pub base: Instant,
    slots: Vec<Slot>,
    pub switches: Vec<SwitchNode>,
    /// Cables between switches.
    pub trunks: Vec<CableId>,
    pub hosts: Vec<HostNode>,
    pub random: Random,
    next_token: u32,
    /// Set: every packet that arrives somewhere, LRH through VCRC.
    pub frames: Option<Vec<Vec<u8>>>,
    /// Of all that happened: two runs of one seed agree.
    pub trace: u64,
    pub events: u64,
    batch: PacketBatch,
    /// Of all GIDs, as the manager was told.
    pub prefix: u64,
    /// By cable: the switch and port that lose the link when the far side vanished.
    detach: std::collections::BTreeMap<CableId, (usize, u8)>,
}

impl Sim {
    pub fn new(seed: u64) -> Sim {
        let net = Net::new(seed);
        Sim {
            base: net.now(),
            net,
            slots: Vec::new(),
            switches: Vec::new(),
            trunks: Vec::new(),
            hosts: Vec::new(),
            random: Random(seed ^ 0x5eed),
            next_token: 0,
            frames: None,
            trace: 0xcbf2_9ce4_8422_2325,
            events: 0,
            batch: PacketBatch::for_mtu(MAX_PACKET),
            prefix: Gid::DEFAULT_PREFIX,
            detach: Default::default(),
        }
    }

    pub fn now(&self) -> Instant {
        self.net.now()
    }
    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now() - self.base
    }
    pub fn set_faults(&self, loss: f64, duplicate: f64, reorder: f64) {
        self.net.set_faults(FaultConfig {
            loss,
            duplicate,
            reorder,
            ..FaultConfig::NONE
        });
    }

    // --- what there is ---

    fn add(&mut self, machine: impl FnOnce(MachineId) -> Machine) -> MachineId {
        let id = self.slots.len();
        self.slots.push(Slot {
            machine: None,
            armed: None,
        });
        self.slots[id].machine = Some(machine(id));
        self.arm(id);
        id
    }

    pub fn add_switch(&mut self, ports: u8) -> usize {
        let index = self.switches.len();
        let net = self.net.clone();
        let config = SwitchConfig {
            guid: Guid(0x5000 + index as u64),
            description: format!("switch {index}"),
            ports,
        };
        let mut made = None;
        self.add(|id| {
            let (switch, control) = Switch::new(
                config,
                Box::new(move |input| net.put(id, Input::Node(input))),
            );
            made = Some(switch);
            Machine::Switch(control)
        });
        let switch = made.expect("made above");
        self.switches.push(SwitchNode { switch });
        index
    }

    /// A cable between two switches.
    pub fn connect_switches(&mut self, a: usize, b: usize) -> CableId {
        let ports = [a, b].map(|s| {
            (
                s,
                self.switches[s]
                    .switch
                    .free_ports()
                    .next()
                    .expect("a free port"),
            )
        });
        let sinks = ports.map(|(s, port)| self.switches[s].switch.port(port));
        let cable = self.net.add_cable(sinks);
        for (side, (s, port)) in ports.into_iter().enumerate() {
            self.switches[s]
                .switch
                .attach_link(port, self.net.end(cable, side));
        }
        self.net.join(cable);
        self.trunks.push(cable);
        cable
    }

    /// A host on `switch`, not started yet.
    pub fn add_host(&mut self, switch: usize) -> usize {
        let index = self.hosts.len();
        self.hosts.push(HostNode {
            guid: Guid(0x0002_c903_0000_0000 + index as u64 + 1),
            switch,
            alive: None,
            log: Log::default(),
            mtu: 1500,
            config: InterfaceConfig {
                name: format!("ib{index}"),
                ..InterfaceConfig::default()
            },
            groups: Vec::new(),
            is_stack: false,
            lives: 0,
        });
        index
    }

    /// Turns a host on.
    pub fn start(&mut self, h: usize) {
        assert!(self.hosts[h].alive.is_none());
        self.hosts[h].lives += 1;
        let seed = self.net.random();
        let (guid, config, switch) = (
            self.hosts[h].guid,
            self.hosts[h].config.clone(),
            self.hosts[h].switch,
        );
        let net = self.net.clone();
        let mut hca = None;
        let control = self.add(|id| {
            let config = HcaConfig {
                node_guid: guid,
                port_guid: guid,
                first_qpn: Qpn::new((seed as u32 & 0x3f_ffff) | 0x40),
                ..HcaConfig::new(guid, &format!("host {h}"))
            };
            let (made, control) = Hca::new(
                config,
                Box::new({
                    let net = net.clone();
                    move |input| net.put(id, Input::Node(input))
                }),
            );
            made.set_clock(move || net.now());
            hca = Some(made);
            Machine::Hca(control)
        });
        let hca = hca.expect("made above");
        let (netdev, peer) = mem::pair(&config.name, DEVICE_QUEUE);
        let netdev = Arc::new(netdev);
        let now = self.now();
        let net = self.net.clone();
        let mut plane = None;
        let interface = self.add(|id| {
            let host = ScriptedHost {
                net: net.clone(),
                interface: id,
                index: h,
            };
            let inputs = {
                let net = net.clone();
                Arc::new(move |input| net.put(id, Input::Interface(input)))
            };
            peer.on_ready({
                let net = net.clone();
                move || {
                    net.put(id, Input::Device(h));
                }
            });
            let mut interface = Interface::new(
                config,
                hca.clone(),
                netdev.clone(),
                Box::new(host),
                inputs,
                seed,
            )
            .expect("an agent");
            interface.start(now);
            plane = Some(interface.plane().clone());
            Machine::Interface(Box::new(interface))
        });
        self.hosts[h].mtu = 1500;
        let mut events = vec![HostEvent::Link {
            admin_up: true,
            mtu: 1500,
        }];
        let addresses = [
            (host::v4(h), 16),
            (host::v6(h), 64),
            (IpAddr::V6(link_local(guid)), 64),
        ];
        events.extend(addresses.map(|(ip, prefix)| HostEvent::AddressAdded(ip, prefix)));
        events.extend(
            self.hosts[h]
                .groups
                .iter()
                .map(|group| HostEvent::GroupJoined(*group)),
        );
        for event in events {
            self.net
                .put(interface, Input::Interface(datapath::Input::Host(event)));
        }
        let switch_node = self.switches[switch].switch.clone();
        let port = switch_node.free_ports().next().expect("a free port");
        let sink: Arc<dyn LinkSink> = hca.clone();
        let cable = self.net.add_cable([switch_node.port(port), sink]);
        switch_node.attach_link(port, self.net.end(cable, 0));
        hca.attach_link(self.net.end(cable, 1));
        self.net.join(cable);
        let above = if self.hosts[h].is_stack {
            Above::Stack(Box::new(Stack::new(peer, h, now - self.base)))
        } else {
            Above::Scripted(peer)
        };
        let plane = plane.expect("made above");
        self.hosts[h].alive = Some(Alive {
            hca,
            interface,
            control,
            netdev,
            plane,
            above,
            cable,
            port,
        });
        self.drain();
    }

    /// Ends a host without a word.
    pub fn kill(&mut self, h: usize, death: Death) {
        let Some(alive) = self.hosts[h].alive.take() else {
            return;
        };
        self.net.cut(alive.cable, death);
        self.net.vanish(alive.cable, 1);
        self.detach
            .insert(alive.cable, (self.hosts[h].switch, alive.port));
        self.slots[alive.interface].machine = None;
        self.slots[alive.control].machine = None;
        drop(alive);
        self.drain();
    }

    /// Kills a host and starts it again.
    pub fn stop_start(&mut self, h: usize) {
        self.kill(h, Death::Noticed);
        self.run_for(Duration::from_millis(100));
        self.start(h);
    }

    /// Starts a subnet manager; its machine's number is its name.
    pub fn start_sm(&mut self, place: SmPlace, config: SmConfig) -> MachineId {
        let seed = self.net.random();
        let node: Arc<dyn ManagementPort> = match place {
            SmPlace::Switch(s) => self.switches[s].switch.clone(),
            SmPlace::Host(h) => self.hosts[h]
                .alive
                .as_ref()
                .expect("a live host")
                .hca
                .clone(),
        };
        let (net, now) = (self.net.clone(), self.now());
        let id = self.add(|id| {
            let port = SmPort::bind(&*node, Box::new(move |mad| net.put(id, Input::Mad(mad))))
                .expect("no other manager here");
            let mut sm = SubnetManager::new(config, seed);
            port.turn(now, &mut sm, []);
            Machine::Sm(Box::new(sm), port)
        });
        self.drain();
        id
    }

    /// Ends a subnet manager without a word.
    pub fn kill_sm(&mut self, sm: MachineId) {
        self.slots[sm].machine = None;
        self.drain();
    }

    pub fn sm(&self, id: MachineId) -> &SubnetManager {
        match &self.slots[id].machine {
            Some(Machine::Sm(sm, _)) => sm,
            _ => panic!("no subnet manager there"),
        }
    }

    /// Does something to a subnet manager.
    pub fn with_sm<R>(
        &mut self,
        id: MachineId,
        f: impl FnOnce(&mut SubnetManager, Instant) -> R,
    ) -> R {
        let now = self.now();
        let Some(Machine::Sm(sm, port)) = &mut self.slots[id].machine else {
            panic!("no subnet manager there");
        };
        let result = f(sm, now);
        port.turn(now, sm, []);
        self.arm(id);
        self.drain();
        result
    }
    pub fn reconfigure_sm(&mut self, id: MachineId, config: SmConfig) {
        self.with_sm(id, |sm, now| sm.reconfigure(now, config));
    }

    /// Does something to a host's interface.
    pub fn with_interface<R>(
        &mut self,
        h: usize,
        f: impl FnOnce(&mut Interface, Instant) -> R,
    ) -> R {
        let (now, id) = (self.now(), self.alive(h).interface);
        let Some(Machine::Interface(interface)) = &mut self.slots[id].machine else {
            panic!("no interface there");
        };
        let result = f(interface, now);
        self.arm(id);
        self.drain();
        result
    }

    /// Does something to a host's channel adapter.
    pub fn with_hca<R>(&mut self, h: usize, f: impl FnOnce(&Arc<Hca>) -> R) -> R {
        let result = f(&self.alive(h).hca.clone());
        self.drain();
        result
    }

    pub fn alive(&self, h: usize) -> &Alive {
        self.hosts[h].alive.as_ref().expect("a live host")
    }
    pub fn live(&self) -> Vec<usize> {
        (0..self.hosts.len())
            .filter(|h| self.hosts[*h].alive.is_some())
            .collect()
    }
    pub fn interface(&self, h: usize) -> &Interface {
        match &self.slots[self.alive(h).interface].machine {
            Some(Machine::Interface(interface)) => interface,
            _ => panic!("no interface there"),
        }
    }
    pub fn is_up(&self, h: usize) -> bool {
        self.hosts[h].alive.is_some() && self.interface(h).is_up()
    }
    pub fn gid(&self, h: usize) -> Gid {
        Gid::new(self.prefix, self.hosts[h].guid)
    }
    pub fn link_local(&self, h: usize) -> IpAddr {
        IpAddr::V6(link_local(self.hosts[h].guid))
    }
    pub fn stack(&mut self, h: usize) -> &mut Stack {
        match self.hosts[h].alive.as_mut().map(|alive| &mut alive.above) {
            Some(Above::Stack(stack)) => stack,
            _ => panic!("no stack there"),
        }
    }

    // --- traffic ---

    /// A scripted host sends a packet.
    pub fn send(
        &mut self,
        h: usize,
        source: IpAddr,
        destination: IpAddr,
        content: &Content,
        padding: usize,
    ) {
        let packet = host::build(source, destination, content, padding);
        let Some(Alive {
            above: Above::Scripted(peer),
            ..
        }) = &self.hosts[h].alive
        else {
            return;
        };
        // A full device drops, as a real one.
        let _ = peer.send(&packet);
        self.transmit(h);
        self.drain();
    }

    /// The data thread of a host: device to fabric.
    fn transmit(&mut self, h: usize) {
        let Some(alive) = &self.hosts[h].alive else {
            return;
        };
        while alive
            .netdev
            .try_read_batch(&mut self.batch)
            .is_ok_and(|count| count > 0)
        {
            alive.plane.transmit(&mut self.batch);
        }
    }

    /// An echo request between scripted hosts, from an address of the same kind.
    pub fn ping(&mut self, h: usize, destination: IpAddr) -> u32 {
        self.ping_sized(h, destination, 0)
    }

    /// The same with so many bytes of data after the ICMP header, as `ping -s`.
    pub fn ping_sized(&mut self, h: usize, destination: IpAddr, size: usize) -> u32 {
        self.next_token += 1;
        let token = self.next_token;
        let source = match destination {
            IpAddr::V4(_) => host::v4(h),
            IpAddr::V6(ip) if ip.segments()[0] == 0xfd77 => host::v6(h),
            IpAddr::V6(_) => self.link_local(h),
        };
        self.send(h, source, destination, &Content::EchoRequest(token), size);
        token
    }

    pub fn answered(&self, h: usize, token: u32) -> bool {
        self.hosts[h].log.replies.contains_key(&token)
    }

    /// Pings until all are answered, each again every second; the ones never answered within `limit`.
    pub fn ping_until_answered(
        &mut self,
        pairs: &[(usize, IpAddr)],
        limit: Duration,
    ) -> Vec<(usize, IpAddr)> {
        let until = self.now() + limit;
        let mut open = pairs.to_vec();
        loop {
            let tokens: Vec<u32> = open
                .clone()
                .into_iter()
                .map(|(from, to)| self.ping(from, to))
                .collect();
            let mut left = 10;
            loop {
                self.run_for(Duration::from_millis(100));
                left -= 1;
                if left == 0
                    || open
                        .iter()
                        .zip(&tokens)
                        .all(|((from, _), token)| self.answered(*from, *token))
                {
                    break;
                }
            }
            open = open
                .into_iter()
                .zip(tokens)
                .filter(|((from, _), token)| !self.answered(*from, *token))
                .map(|(pair, _)| pair)
                .collect();
            if open.is_empty() || self.now() >= until {
                return open;
            }
        }
    }

    /// Packets that the device gave to the host.
    fn host_received(&mut self, h: usize) {
        let now = self.now();
        let since = now - self.base;
        let HostNode {
            alive: Some(alive),
            log,
            guid,
            mtu,
            ..
        } = &mut self.hosts[h]
        else {
            return;
        };
        match &mut alive.above {
            Above::Stack(stack) => {
                stack.poll(since);
                if let Some(at) = stack.arm(since) {
                    self.net.at(self.base + at, Event::Wake(h));
                }
                self.transmit(h);
            }
            Above::Scripted(peer) => {
                let mut answers = Vec::new();
                while let Some(bytes) = peer.try_recv() {
                    let Some(packet) = host::parse(&bytes, &mut log.fragments) else {
                        continue;
                    };
                    match packet.content {
                        Content::EchoRequest(token) => {
                            log.requests += 1;
                            let multicast = packet.destination.is_multicast()
                                || packet.destination == IpAddr::from([10, 77, 255, 255]);
                            let source = match packet.source {
                                _ if !multicast => packet.destination,
                                IpAddr::V4(_) => host::v4(h),
                                IpAddr::V6(_) => IpAddr::V6(link_local(*guid)),
                            };
                            let headers = if source.is_ipv4() { 28 } else { 48 };
                            // A kernel would send fragments.
                            let padding = packet.padding.min(*mtu as usize - headers);
                            let reply = Content::EchoReply(token);
                            answers.push((source, packet.source, reply, padding));
                        }
                        Content::EchoReply(token) => {
                            let reply = (packet.source, now, packet.padding);
                            log.replies.entry(token).or_insert(reply);
                        }
                        Content::Datagram(data) => {
                            log.datagrams
                                .push((packet.source, packet.destination, data))
                        }
                        Content::TooBig(mtu) => {
                            log.too_big.push(mtu);
                            log.refused.extend(packet.about.map(|token| (token, mtu)));
                        }
                        Content::Unreachable => log.unreachable += 1,
                        Content::Other(_) => {}
                    }
                    peer.recycle(bytes);
                }
                for (source, destination, content, padding) in &answers {
                    let _ = peer.send(&host::build(*source, *destination, content, *padding));
                }
                if !answers.is_empty() {
                    self.transmit(h);
                }
            }
        }
    }

    /// A stack may have something new to do.
    pub fn poke(&mut self, h: usize) {
        self.host_received(h);
        self.drain();
    }

    // --- time ---

    pub fn run_for(&mut self, duration: Duration) {
        let until = self.now() + duration;
        while let Some(event) = self.net.pop(until) {
            self.events += 1;
            self.note(&event);
            match event {
                Event::Packet { cable, to, packet } => {
                    if let Some(frames) = &mut self.frames {
                        let mut bytes = Vec::new();
                        packet
                            .as_packet()
                            .emit_into(&mut bytes)
                            .expect("hosts send no super-packets here");
                        frames.push(bytes);
                    }
                    if let Some(sink) = self.net.sink(cable, to) {
                        sink.receive(&[packet.as_packet()]);
                    }
                }
                Event::Broken { cable, to } => {
                    if let Some(sink) = self.net.sink(cable, to) {
                        sink.receive_errors(1);
                    }
                }
                Event::Late { cable, side } => self.net.release(cable, side),
                Event::Link {
                    cable,
                    to,
                    epoch,
                    up,
                } => {
                    if self.net.tell(cable, to, epoch, up) {
                        self.link_changed(cable, to, up);
                    }
                }
                Event::Timer(id) => self.timer(id),
                Event::Wake(h) => self.host_received(h),
            }
            self.drain();
        }
    }

    fn link_changed(&mut self, cable: CableId, to: usize, up: bool) {
        match self.detach.get(&cable) {
            // The host at the other end is gone: the port is free again.
            Some(&(switch, port)) if !up && to == 0 => {
                self.switches[switch].switch.detach_link(port);
                self.net.vanish(cable, 0);
                self.detach.remove(&cable);
            }
            _ => {
                if let Some(sink) = self.net.sink(cable, to) {
                    sink.link_changed(up);
                }
            }
        }
    }

    /// Runs until `done`, looking every 10 ms; false if it was not within `limit`.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Sim) -> bool) -> bool {
        let until = self.now() + limit;
        while !done(self) {
            if self.now() >= until {
                return false;
            }
            self.run_for(Duration::from_millis(10));
        }
        true
    }

    fn timer(&mut self, id: MachineId) {
        let now = self.now();
        let slot = &mut self.slots[id];
        if slot.armed != Some(now) {
            return;
        }
        slot.armed = None;
        if slot
            .machine
            .as_ref()
            .and_then(Machine::poll_timeout)
            .is_some_and(|at| at <= now)
        {
            match slot.machine.as_mut() {
                Some(Machine::Switch(control)) => control.handle_timeout(now),
                Some(Machine::Hca(control)) => control.handle_timeout(now),
                Some(Machine::Interface(interface)) => interface.handle_timeout(now),
                Some(Machine::Sm(sm, port)) => port.turn(now, sm, []),
                None => {}
            }
        }
        self.arm(id);
    }

    fn arm(&mut self, id: MachineId) {
        let slot = &mut self.slots[id];
        let Some(at) = slot.machine.as_ref().and_then(Machine::poll_timeout) else {
            return;
        };
        let at = at.max(self.net.now());
        if slot.armed.is_none_or(|armed| at < armed) {
            slot.armed = Some(at);
            self.net.at(at, Event::Timer(id));
        }
    }

    /// Hands out what the sinks were given, in its order, until nothing is left.
    fn drain(&mut self) {
        while let Some((id, input)) = self.net.take_input() {
            let now = self.now();
            match (input, self.slots[id].machine.as_mut()) {
                (Input::Device(h), Some(_)) => {
                    self.host_received(h);
                    continue;
                }
                (Input::Node(input), Some(Machine::Switch(control))) => control.handle(now, input),
                (Input::Node(input), Some(Machine::Hca(control))) => control.handle(now, input),
                (Input::Interface(input), Some(Machine::Interface(interface))) => {
                    interface.handle(now, input)
                }
                (Input::Mtu(h, mtu), Some(Machine::Interface(interface))) => {
                    self.hosts[h].mtu = mtu;
                    let link = HostEvent::Link {
                        admin_up: true,
                        mtu,
                    };
                    interface.handle(now, datapath::Input::Host(link));
                }
                (Input::Mad(mad), Some(Machine::Sm(sm, port))) => port.turn(now, sm, [mad]),
                // It is dead.
                (_, _) => continue,
            }
            self.arm(id);
        }
    }

    fn note(&mut self, event: &Event) {
        let mut hash = self.trace;
        let mut add =
            |value: u64| hash = (hash ^ value).wrapping_mul(0x100_0000_01b3).rotate_left(23);
        add(self.net.now().duration_since(self.base).as_nanos() as u64);
        match event {
            Event::Packet { cable, to, packet } => {
                let packet = packet.as_packet();
                add((*cable as u64) << 1 | *to as u64);
                add(u64::from(packet.lrh.slid.0) << 16 | u64::from(packet.lrh.dlid.0));
                add(u64::from(packet.bth.dest_qp.0) << 32 | u64::from(packet.bth.psn.0));
                for chunk in packet.payload.chunks(8) {
                    add(chunk
                        .iter()
                        .fold(0, |value, byte| value << 8 | u64::from(*byte)));
                }
            }
            Event::Link {
                cable,
                to,
                epoch,
                up,
            } => add((*cable as u64) << 34
                | u64::from(*epoch) << 2
                | (*to as u64) << 1
                | u64::from(*up)),
            Event::Broken { cable, to: end } | Event::Late { cable, side: end } => {
                add((*cable as u64) << 1 | *end as u64)
            }
            Event::Timer(id) => add(*id as u64),
            Event::Wake(h) => add(*h as u64),
        }
        self.trace = hash;
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Links hold the net, which holds the nodes, which hold their links.
        for cable in 0.. {
            if !self.net.forget(cable) {
                break;
            }
        }
    }
}
