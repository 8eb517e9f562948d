//! A machine with a checked model of everything around it.
#![allow(dead_code, unreachable_pub)]

use arp::{Destination, NeighbourConfig, Neighbours, Output, Resolved, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use wire::ipoib::arp::ArpOperation;
use wire::ipoib::nd::{NaFlags, NdPacket, neighbor_advertisement};
use wire::ipoib::{ArpPacket, EncapHeader, EtherType, LinkAddress};
use wire::mad::attr::PathRecord;
use wire::{Gid, Guid, Lid, MtuCode, Qpn, RateCode};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MS: Duration = Duration::from_millis(1);

/// Host `n`'s GID, link address and IP addresses.
pub fn gid(n: u32) -> Gid {
    Gid::new(
        Gid::DEFAULT_PREFIX,
        Guid(0x0002_c903_0000_0000 + u64::from(n)),
    )
}
pub fn link(n: u32, qpn: u32) -> LinkAddress {
    LinkAddress {
        flags: 0x80,
        qpn: Qpn(qpn),
        gid: gid(n),
    }
}
pub fn v4(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a4d_0000 + n))
}
pub fn v6(n: u32) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits((0xfd77 << 112) + u128::from(n)))
}
pub fn six(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V6(ip) => ip,
        IpAddr::V4(_) => unreachable!("an IPv6 address of a test"),
    }
}
pub fn four(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => unreachable!("an IPv4 address of a test"),
    }
}
pub fn record(lid: u16) -> PathRecord {
    PathRecord {
        dlid: Lid(lid),
        slid: Lid(1),
        mtu: MtuCode::MTU_2048,
        rate: RateCode::GBPS_10,
        ..PathRecord::default()
    }
}
pub fn arp_packet(
    operation: ArpOperation,
    sender: (IpAddr, LinkAddress),
    target: IpAddr,
) -> ArpPacket {
    ArpPacket {
        operation,
        sender_hw: sender.1,
        sender_ip: four(sender.0),
        target_hw: LinkAddress::default(),
        target_ip: four(target),
    }
}
pub fn from(address: LinkAddress, multicast: bool) -> Source {
    Source {
        lid: Lid(9),
        qpn: address.qpn,
        gid: Some(address.gid),
        multicast,
    }
}
/// An advertisement of `target` at `address`, to host 1.
pub fn na(
    target: IpAddr,
    address: Option<LinkAddress>,
    solicited: bool,
    override_cached: bool,
) -> Vec<u8> {
    let flags = NaFlags {
        router: false,
        solicited,
        override_cached,
    };
    neighbor_advertisement(six(target), six(v6(1)), six(target), flags, address)
}

/// What the tests read in a payload sent.
#[derive(Debug, PartialEq)]
pub enum Parsed {
    Arp(ArpPacket),
    Nd(Vec<u8>),
}
pub fn parse(payload: &[u8]) -> Parsed {
    let (ether_type, rest) = EncapHeader::split(payload).expect("encapsulation header");
    match ether_type {
        EtherType::ARP => Parsed::Arp(ArpPacket::parse(rest).expect("valid ARP")),
        EtherType::IPV6 => {
            NdPacket::parse(rest).expect("valid ND");
            Parsed::Nd(rest.to_vec())
        }
        other => panic!("{other}"),
    }
}

/// A machine, a forwarding table that follows its outputs, and the accounts of its packets.
pub struct Host {
    pub machine: Neighbours,
    pub now: Instant,
    pub table: BTreeMap<IpAddr, Resolved>,
    pub queries: BTreeSet<Gid>,
    pub transmitted: Vec<(Destination, Vec<u8>)>,
    pub flushed: Vec<(IpAddr, u64)>,
    pub unreachable: Vec<(IpAddr, u64)>,
    /// Resolutions that failed without a packet.
    pub failed: usize,
    pub conflicts: usize,
    pub installs: usize,
    pub sent: u64,
    last: BTreeMap<IpAddr, u64>,
    max_queries: usize,
    pub down: bool,
}

impl Host {
    pub fn new(config: NeighbourConfig, seed: u64, now: Instant) -> Self {
        let max_queries = config.max_path_queries;
        Host {
            machine: Neighbours::new(config, seed),
            now,
            table: BTreeMap::new(),
            queries: BTreeSet::new(),
            transmitted: Vec::new(),
            flushed: Vec::new(),
            unreachable: Vec::new(),
            failed: 0,
            conflicts: 0,
            installs: 0,
            sent: 0,
            last: BTreeMap::new(),
            max_queries,
            down: false,
        }
    }

    /// Host 1, up, its announcements over.
    pub fn up() -> Self {
        let mut host = Host::new(NeighbourConfig::default(), 1, Instant::now());
        host.machine.add_address(host.now, v4(1), 16);
        host.machine.add_address(host.now, v6(1), 64);
        host.machine.link_up(host.now, link(1, 0x48));
        host.run(10 * SECOND);
        host.transmitted.clear();
        host
    }

    /// Sends a numbered packet the way the data path does.
    pub fn send(&mut self, ip: IpAddr) -> u64 {
        self.sent += 1;
        let id = self.sent;
        self.machine.send(self.now, ip, id.to_be_bytes().to_vec());
        self.drain();
        id
    }

    /// Uses the table: true if the packet could go.
    pub fn use_table(&mut self, ip: IpAddr) -> bool {
        let Some(entry) = self.table.get_mut(&ip) else {
            return false;
        };
        if std::mem::take(&mut entry.stale) {
            self.machine.used(self.now, ip);
            self.drain();
        }
        true
    }

    pub fn answer(&mut self, gid: Gid, lid: u16) {
        assert!(self.queries.remove(&gid), "{gid} was not asked for");
        self.machine.path_result(self.now, gid, Ok(record(lid)));
        self.drain();
    }

    /// Follows all outputs and checks the promises about them.
    pub fn drain(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Transmit { to, payload } => {
                    parse(&payload);
                    self.transmitted.push((to, payload));
                }
                Output::QueryPath(gid) => {
                    assert!(self.queries.insert(gid), "two queries for {gid}");
                    assert!(self.queries.len() <= self.max_queries);
                }
                Output::Install { ip, entry } => {
                    let old = self.table.insert(ip, entry);
                    assert_ne!(old, Some(entry), "installed twice");
                    self.installs += 1;
                }
                Output::Remove { ip } => {
                    assert!(
                        self.table.remove(&ip).is_some(),
                        "removed what was not installed"
                    );
                }
                Output::Flush { ip, packets } => {
                    assert!(self.table.contains_key(&ip), "flush before install");
                    assert_ne!(self.state(ip), Some(arp::State::Stale), "a flush is a use");
                    assert!(!packets.is_empty());
                    for id in packets
                        .iter()
                        .filter_map(|p| self.own_packet(ip, p))
                        .collect::<Vec<_>>()
                    {
                        self.flushed.push((ip, id));
                    }
                }
                Output::Unreachable { ip, packets } => {
                    self.failed += usize::from(packets.is_empty());
                    for id in packets
                        .iter()
                        .filter_map(|p| self.own_packet(ip, p))
                        .collect::<Vec<_>>()
                    {
                        self.unreachable.push((ip, id));
                    }
                }
                Output::Conflict { .. } => self.conflicts += 1,
            }
        }
    }

    /// The number of a packet of [`Self::send`], later than all before; `None` for the machine's own.
    fn own_packet(&mut self, ip: IpAddr, packet: &[u8]) -> Option<u64> {
        let id = u64::from_be_bytes(packet.try_into().ok()?);
        let last = self.last.insert(ip, id).unwrap_or(0);
        assert!(last < id, "{ip}: packet {id} after {last}");
        Some(id)
    }

    /// Lets time pass, with all timers on the way.
    pub fn run(&mut self, time: Duration) {
        self.drain();
        let end = self.now + time;
        while let Some(at) = self.machine.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.machine.handle_timeout(self.now);
            assert!(
                self.machine
                    .poll_timeout()
                    .is_none_or(|next| next > self.now),
                "timer does not advance"
            );
            self.drain();
        }
        self.now = end;
    }

    pub fn state(&self, ip: IpAddr) -> Option<arp::State> {
        self.machine.get(self.now, ip).map(|info| info.state)
    }

    /// Makes `ip` a reachable neighbour at `address`, LID `lid`.
    pub fn make_reachable(&mut self, ip: IpAddr, address: LinkAddress, lid: u16) {
        self.send(ip);
        self.arp_reply(ip, address);
        self.answer(address.gid, lid);
        assert_eq!(self.state(ip), Some(arp::State::Reachable));
        self.transmitted.clear();
        self.flushed.clear();
    }

    pub fn arp_reply(&mut self, ip: IpAddr, address: LinkAddress) {
        let packet = arp_packet(ArpOperation::REPLY, (ip, address), v4(1));
        self.machine
            .handle_arp(self.now, from(address, false), &packet);
        self.drain();
    }

    pub fn arp_request(&mut self, ip: IpAddr, address: LinkAddress, target: IpAddr) {
        let packet = arp_packet(ArpOperation::REQUEST, (ip, address), target);
        self.machine
            .handle_arp(self.now, from(address, true), &packet);
        self.drain();
    }

    pub fn nd(&mut self, address: LinkAddress, packet: &[u8]) {
        self.machine
            .handle_nd(self.now, from(address, false), packet);
        self.drain();
    }

    /// ARP packets transmitted since last asked, with where they went.
    pub fn take_arp(&mut self) -> Vec<(Destination, ArpPacket)> {
        let all = std::mem::take(&mut self.transmitted);
        let arp = |(to, payload): (Destination, Vec<u8>)| match parse(&payload) {
            Parsed::Arp(packet) => Some((to, packet)),
            Parsed::Nd(_) => None,
        };
        all.into_iter().filter_map(arp).collect()
    }
}
