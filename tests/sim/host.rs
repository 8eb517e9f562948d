//! What plays the kernel of a scripted host: it answers echo requests and keeps a log of what arrived.

use crate::net::Net;
use crate::sim::{Input, MachineId};
use datapath::host::NextHop;
use etherparse::SlicedPacket;
use etherparse::defrag::IpDefragPool;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

/// Routes and MTU of a host on 10.77.0.0/16 and fd77::/64.
pub struct ScriptedHost {
    pub net: Arc<Net>,
    pub interface: MachineId,
    pub index: usize,
}

impl datapath::Host for ScriptedHost {
    fn next_hop(&mut self, destination: IpAddr) -> NextHop {
        match destination {
            IpAddr::V4(ip) if ip == Ipv4Addr::new(10, 77, 255, 255) => NextHop::Broadcast,
            IpAddr::V4(ip) if ip.octets()[..2] == [10, 77] => NextHop::OnLink,
            IpAddr::V6(ip)
                if ip.segments()[..4] == [0xfd77, 0, 0, 0] || ip.segments()[0] == 0xfe80 =>
            {
                NextHop::OnLink
            }
            _ => NextHop::Unreachable,
        }
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<(), String> {
        // As the kernel: what was set is reported.
        self.net.put(self.interface, Input::Mtu(self.index, mtu));
        Ok(())
    }

    /// It remembers none.
    fn forget_path_mtu(&mut self, _destination: IpAddr) {}
}

/// An IP packet as this simulation needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    EchoRequest(u32),
    EchoReply(u32),
    Datagram(Vec<u8>),
    /// The MTU that a too-big message names.
    TooBig(u32),
    Unreachable,
    Other(u8),
}

pub struct IpPacket {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub content: Content,
    /// Bytes of an echo message after its header and token.
    pub padding: usize,
    /// The token of the echo message that an error is about.
    pub about: Option<u32>,
}

const UDP: u8 = 17;
const ICMP_V4: u8 = 1;
const ICMP_V6: u8 = 58;

fn sum(bytes: &[u8], mut total: u32) -> u32 {
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    }
    total
}

fn fold(mut total: u32) -> [u8; 2] {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    (!(total as u16)).to_be_bytes()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Byte `at` of the padding: no two of the places that packets are cut at look alike.
fn pad(at: usize) -> u8 {
    (at as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0]
}

/// Builds a packet with `padding` bytes more of payload; 65,535 bytes of IPv4 packet or IPv6 payload at most.
pub fn build(source: IpAddr, destination: IpAddr, content: &Content, padding: usize) -> Vec<u8> {
    let v4 = source.is_ipv4();
    let icmp = if v4 { ICMP_V4 } else { ICMP_V6 };
    let echo = |kind: u8, token: u32| [&[kind, 0, 0, 0][..], &token.to_be_bytes()].concat();
    let (protocol, mut body) = match content {
        Content::EchoRequest(token) => (icmp, echo(if v4 { 8 } else { 128 }, *token)),
        Content::EchoReply(token) => (icmp, echo(if v4 { 0 } else { 129 }, *token)),
        Content::Datagram(data) => (UDP, [&[0x30, 0x39, 0, 7, 0, 0, 0, 0][..], data].concat()),
        Content::TooBig(_) | Content::Unreachable | Content::Other(_) => {
            unreachable!("the interface makes those")
        }
    };
    body.extend((0..padding).map(pad));
    let headers = if v4 { 20 } else { 0 };
    let total = u16::try_from(headers + body.len()).expect("no IP packet is longer");
    let len = total - headers as u16;
    if protocol == UDP {
        body[4..6].copy_from_slice(&len.to_be_bytes());
    }
    let pseudo = if protocol == ICMP_V4 {
        0
    } else {
        sum(
            &octets(source),
            sum(&octets(destination), u32::from(len) + u32::from(protocol)),
        )
    };
    let at = if protocol == UDP { 6 } else { 2 };
    let checksum = fold(sum(&body, pseudo));
    body[at..at + 2].copy_from_slice(&checksum);
    let mut packet = if v4 {
        let total = total.to_be_bytes();
        // Don't Fragment.
        let mut header = vec![
            0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0,
        ];
        header.extend(octets(source));
        header.extend(octets(destination));
        let checksum = fold(sum(&header, 0));
        header[10..12].copy_from_slice(&checksum);
        header
    } else {
        let [high, low] = len.to_be_bytes();
        let mut header = vec![0x60, 0, 0, 0, high, low, protocol, 64];
        header.extend(octets(source));
        header.extend(octets(destination));
        header
    };
    packet.extend(body);
    packet
}

/// Reads a packet, a joined one with the last of its fragments; its lengths, checksums and padding must be right.
pub fn parse(packet: &[u8], fragments: &mut IpDefragPool) -> Option<IpPacket> {
    let (source, destination, protocol, body): (IpAddr, IpAddr, u8, &[u8]) =
        match packet.first()? >> 4 {
            4 => {
                let ip = |at: usize| {
                    Some(IpAddr::from(
                        <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?,
                    ))
                };
                assert_eq!(
                    fold(sum(packet.get(..20)?, 0)),
                    [0, 0],
                    "checksum of an IPv4 header"
                );
                let total = u16::from_be_bytes([packet[2], packet[3]]);
                assert_eq!(usize::from(total), packet.len(), "IPv4 total length");
                (ip(12)?, ip(16)?, packet[9], packet.get(20..)?)
            }
            6 => {
                let ip = |at: usize| {
                    Some(IpAddr::from(
                        <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?,
                    ))
                };
                let body = packet.get(40..)?;
                let len = u16::from_be_bytes([packet[4], packet[5]]);
                assert_eq!(usize::from(len), body.len(), "IPv6 payload length");
                (ip(8)?, ip(24)?, packet[6], body)
            }
            _ => return None,
        };
    let sliced = SlicedPacket::from_ip(packet).ok()?;
    let joined = if sliced.is_ip_payload_fragmented() {
        let joined = fragments.process_sliced_packet(&sliced, (), ());
        Some(joined.expect("fragments that fit together")?)
    } else {
        None
    };
    let (protocol, body) = joined.as_ref().map_or((protocol, body), |joined| {
        (joined.ip_number.0, &joined.payload[..])
    });
    let pseudo = match protocol {
        ICMP_V4 => 0,
        _ => sum(
            &octets(source),
            sum(
                &octets(destination),
                body.len() as u32 + u32::from(protocol),
            ),
        ),
    };
    if matches!(protocol, ICMP_V4 | ICMP_V6 | UDP) {
        assert_eq!(
            fold(sum(body, pseudo)),
            [0, 0],
            "checksum of {protocol} from {source} to {destination}"
        );
    }
    let word = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let content = match (protocol, body.first()?) {
        (ICMP_V4, 8) | (ICMP_V6, 128) => Content::EchoRequest(word(4)?),
        (ICMP_V4, 0) | (ICMP_V6, 129) => Content::EchoReply(word(4)?),
        (ICMP_V4, 3) if body.get(1) == Some(&4) => Content::TooBig(word(4)? & 0xffff),
        (ICMP_V6, 2) => Content::TooBig(word(4)?),
        (ICMP_V4, 3) | (ICMP_V6, 1) => Content::Unreachable,
        (UDP, _) => Content::Datagram(body.get(8..)?.to_vec()),
        (other, _) => Content::Other(other),
    };
    let content_is_error = matches!(content, Content::TooBig(_) | Content::Unreachable);
    let padding = match content {
        Content::EchoRequest(_) | Content::EchoReply(_) => body.get(8..)?,
        _ => &[],
    };
    let right = padding
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == pad(at));
    assert!(right, "padding from {source} to {destination}");
    Some(IpPacket {
        source,
        destination,
        content,
        padding: padding.len(),
        about: match (content_is_error, protocol) {
            (false, _) => None,
            // Header of the error, header and token of what it quotes.
            (true, ICMP_V4) => word(8 + 20 + 4),
            (true, _) => word(8 + 40 + 4),
        },
    })
}

/// What arrived at a host.
#[derive(Default)]
pub struct Log {
    /// Echo replies: from whom, when and with how much padding, by token.
    pub replies: BTreeMap<u32, (IpAddr, Instant, usize)>,
    /// How many requests came.
    pub requests: u64,
    /// Datagrams: source, destination, content.
    pub datagrams: Vec<(IpAddr, IpAddr, Vec<u8>)>,
    /// MTUs in too-big messages.
    pub too_big: Vec<u32>,
    /// The same of echo messages, by token.
    pub refused: BTreeMap<u32, u32>,
    pub unreachable: u64,
    /// Of packets that are not complete yet.
    pub fragments: IpDefragPool,
}

/// IPv4 address of host `index`.
pub fn v4(index: usize) -> IpAddr {
    let number = index as u16 + 1;
    IpAddr::V4(Ipv4Addr::new(10, 77, (number >> 8) as u8, number as u8))
}

/// IPv6 address of host `index`.
pub fn v6(index: usize) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, index as u16 + 1))
}
