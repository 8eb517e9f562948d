//! Packets in words, and packets from what was understood of them: for `ipoib decode`, captures and tests.

use crate::id::Qpn;
use crate::ipoib::nd::{self, NaFlags, NdMessage, NdPacket};
use crate::ipoib::{ArpPacket, EncapHeader, EtherType};
use crate::mad;
use crate::packet::{EmitError, FlowControl, FlowControlError, Opcode, Packet, PacketError};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Why a datagram could not be taken apart and put together again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReemitError {
    /// Not a packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// Not a flow control packet.
    #[error(transparent)]
    FlowControl(#[from] FlowControlError),
    /// Not writable.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

/// What a packet's payload is, as far as its transport headers tell.
enum Payload<'a> {
    /// To QP0 or QP1.
    Mad(&'a [u8]),
    /// An encapsulation header of IPoIB, and what follows it.
    Ipoib(EtherType, &'a [u8]),
    /// Anything else.
    Opaque(&'a [u8]),
}

impl<'a> Payload<'a> {
    fn of(packet: &Packet<'a>) -> Self {
        let begins_message = matches!(
            packet.bth.opcode,
            Opcode::UD_SEND_ONLY
                | Opcode::RC_SEND_ONLY
                | Opcode::RC_SEND_FIRST
                | Opcode::UC_SEND_ONLY
                | Opcode::UC_SEND_FIRST
        );
        if packet.bth.opcode.is_ud() && matches!(packet.bth.dest_qp, Qpn::SMI | Qpn::GSI) {
            return Self::Mad(packet.payload);
        }
        match EncapHeader::split(packet.payload) {
            Some((kind, rest)) if begins_message && kind.is_ipoib() => Self::Ipoib(kind, rest),
            _ => Self::Opaque(packet.payload),
        }
    }
}

/// One line for a datagram, whatever it is. Of wrong CRCs only the ICRC is told.
pub fn describe(bytes: &[u8]) -> String {
    if bytes.len() == FlowControl::LEN {
        return match FlowControl::parse(bytes) {
            Ok(f) => format!(
                "flow control op {} FCTBS {} VL {} FCCL {}",
                f.op, f.fctbs, f.vl, f.fccl
            ),
            Err(error) => format!("malformed: {error}"),
        };
    }
    match Packet::parse(bytes) {
        Ok(packet) => describe_packet(&packet),
        Err(error) => format!("malformed: {error}"),
    }
}

/// One line for a packet: route, transport, payload.
pub fn describe_packet(packet: &Packet<'_>) -> String {
    let Packet { lrh, bth, ext, .. } = packet;
    let mut line = format!("LID {} -> {} {}", lrh.slid, lrh.dlid, bth.opcode);
    if let Some(deth) = ext.deth {
        line += &format!(" qp {}", qp(deth.src_qp));
    }
    line += &format!(" -> {} pkey {} psn {}", qp(bth.dest_qp), bth.p_key, bth.psn);
    if let Some(aeth) = ext.aeth {
        line += &format!(" syndrome 0x{:02x} msn {}", aeth.syndrome, aeth.msn);
    }
    if let Some(grh) = packet.grh {
        line += &format!(" GRH {} -> {}", grh.sgid, grh.dgid);
    }
    match Payload::of(packet) {
        Payload::Mad(mad) => line += &format!(" {}", describe_mad(mad)),
        Payload::Ipoib(kind, rest) => line += &format!(" {}", describe_ipoib(kind, rest)),
        Payload::Opaque([]) => {}
        Payload::Opaque(rest) => line += &format!(" {} bytes", rest.len()),
    }
    line
}

/// Takes a datagram apart into typed values, IPoIB payloads and MADs included, and writes it again from those, with CRCs of its own. Equal bytes
/// prove that nothing was misread. Payloads not understood are copied.
pub fn reemit(bytes: &[u8]) -> Result<Vec<u8>, ReemitError> {
    if bytes.len() == FlowControl::LEN {
        return Ok(FlowControl::parse(bytes)?.emit().to_vec());
    }
    let packet = Packet::parse_unchecked(bytes)?;
    let payload = match Payload::of(&packet) {
        Payload::Mad(mad) => reemit_mad(mad),
        Payload::Ipoib(kind, rest) => reemit_ipoib(kind, rest),
        Payload::Opaque(rest) => rest.to_vec(),
    };
    let mut out = Vec::new();
    Packet {
        payload: &payload,
        icrc: None,
        ..packet
    }
    .emit_into(&mut out)?;
    Ok(out)
}

/// Takes what follows an encapsulation header apart, as far as it is understood, and writes header and payload again.
pub fn reemit_ipoib(kind: EtherType, bytes: &[u8]) -> Vec<u8> {
    let mut payload = EncapHeader { ether_type: kind }.emit().to_vec();
    match (kind, ArpPacket::parse(bytes), NdPacket::parse(bytes)) {
        (EtherType::ARP, Ok(arp), _) if bytes.len() == ArpPacket::LEN => payload.extend(arp.emit()),
        (EtherType::IPV6, _, Ok(nd)) => payload.extend(nd.emit()),
        _ => payload.extend(bytes),
    }
    payload
}

fn describe_mad(payload: &[u8]) -> String {
    match payload.try_into() {
        Ok(mad) => mad::describe::describe(mad),
        Err(_) => format!("malformed: MAD of {} bytes", payload.len()),
    }
}

fn reemit_mad(payload: &[u8]) -> Vec<u8> {
    let understood = payload.try_into().ok().and_then(mad::describe::reemit);
    understood.map_or_else(|| payload.to_vec(), |mad| mad.to_vec())
}

fn qp(qpn: Qpn) -> String {
    if qpn == Qpn::MULTICAST {
        "mcast".into()
    } else {
        format!("0x{:x}", qpn.0)
    }
}

/// What follows an encapsulation header, in words.
pub fn describe_ipoib(kind: EtherType, bytes: &[u8]) -> String {
    match kind {
        EtherType::ARP => match ArpPacket::parse(bytes) {
            Ok(arp) => format!("ARP {arp}"),
            Err(error) => format!("malformed: {error}"),
        },
        EtherType::IPV4 => describe_ipv4(bytes)
            .unwrap_or_else(|| format!("malformed: IPv4 of {} bytes", bytes.len())),
        EtherType::IPV6 if nd::is_neighbor_discovery(bytes) => match NdPacket::parse(bytes) {
            Ok(packet) => describe_nd(&packet),
            Err(error) => format!("malformed: ND: {error}"),
        },
        EtherType::IPV6 => describe_ipv6(bytes)
            .unwrap_or_else(|| format!("malformed: IPv6 of {} bytes", bytes.len())),
        other => format!("{other} of {} bytes", bytes.len()),
    }
}

fn describe_nd(packet: &NdPacket<'_>) -> String {
    let mut line = format!("IPv6 {} -> {} ", packet.source, packet.destination);
    // Writing to a String cannot fail.
    let _ = match packet.message {
        NdMessage::RouterSolicitation => write!(line, "RS"),
        NdMessage::RouterAdvertisement {
            router_lifetime, ..
        } => write!(line, "RA lifetime {router_lifetime} s"),
        NdMessage::NeighborSolicitation { target } => write!(line, "NS who-has {target}"),
        NdMessage::NeighborAdvertisement {
            flags:
                NaFlags {
                    router,
                    solicited,
                    override_cached,
                },
            target,
        } => {
            let flag = |on, letter| if on { letter } else { "" };
            write!(
                line,
                "NA {target} [{}{}{}]",
                flag(router, "R"),
                flag(solicited, "S"),
                flag(override_cached, "O")
            )
        }
        NdMessage::Redirect {
            target,
            destination,
        } => write!(line, "redirect {destination} to {target}"),
    };
    if let Some(address) = packet.link_address() {
        line += &format!(" ({address})");
    }
    line
}

fn describe_ipv4(b: &[u8]) -> Option<String> {
    let header_len = usize::from(b.first()? & 0xf) * 4;
    if b[0] >> 4 != 4 || header_len < 20 {
        return None;
    }
    let (header, rest) = b.split_at_checked(header_len)?;
    let address = |at: usize| Some(Ipv4Addr::from(*header.get(at..)?.first_chunk::<4>()?));
    let fragment_offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
    let upper = if fragment_offset == 0 {
        describe_upper(header[9], rest)
    } else {
        format!("fragment at {}", fragment_offset * 8)
    };
    Some(format!("IPv4 {} -> {} {upper}", address(12)?, address(16)?))
}

fn describe_ipv6(b: &[u8]) -> Option<String> {
    let (header, rest) = b
        .split_first_chunk::<40>()
        .filter(|(h, _)| h[0] >> 4 == 6)?;
    let address = |at: usize| Some(Ipv6Addr::from(*header.get(at..)?.first_chunk::<16>()?));
    Some(format!(
        "IPv6 {} -> {} {}",
        address(8)?,
        address(24)?,
        describe_upper(header[6], rest)
    ))
}

fn describe_upper(protocol: u8, b: &[u8]) -> String {
    let ports = || {
        b.first_chunk()
            .map(|&[s1, s0, d1, d0]| (u16::from_be_bytes([s1, s0]), u16::from_be_bytes([d1, d0])))
    };
    match (protocol, b.first(), ports()) {
        (6, _, Some((from, to))) => format!("TCP {from} -> {to}"),
        (17, _, Some((from, to))) => format!("UDP {from} -> {to}"),
        (1, Some(8), _) | (58, Some(128), _) => "echo request".into(),
        (1, Some(0), _) | (58, Some(129), _) => "echo reply".into(),
        (1 | 58, Some(kind), _) => format!("ICMP type {kind}"),
        (2, ..) => "IGMP".into(),
        _ => format!("protocol {protocol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Gid, Guid, Lid, PKey, Psn, QKey};
    use crate::ipoib::arp::ArpOperation;
    use crate::ipoib::{LinkAddress, Scope, mgid};
    use crate::packet::{Bth, Deth, Extended, Grh, Lrh};

    #[test]
    fn an_arp_request_in_one_line() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0001_a0b1));
        let arp = ArpPacket {
            operation: ArpOperation::REQUEST,
            sender_hw: LinkAddress {
                flags: 0x80,
                qpn: Qpn(0x48),
                gid,
            },
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_hw: LinkAddress::default(),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        };
        let mut payload = EncapHeader {
            ether_type: EtherType::ARP,
        }
        .emit()
        .to_vec();
        payload.extend(arp.emit());
        let packet = Packet {
            lrh: Lrh {
                slid: Lid(1),
                dlid: Lid(0xc000),
                ..Lrh::default()
            },
            grh: Some(Grh {
                sgid: gid,
                dgid: mgid::broadcast_gid(PKey::DEFAULT_FULL, Scope::LINK_LOCAL),
                ..Grh::default()
            }),
            bth: Bth {
                opcode: Opcode::UD_SEND_ONLY,
                p_key: PKey::DEFAULT_FULL,
                dest_qp: Qpn::MULTICAST,
                psn: Psn(3),
                ..Bth::default()
            },
            ext: Extended {
                deth: Some(Deth {
                    q_key: QKey(0xb1b),
                    src_qp: Qpn(0x48),
                }),
                ..Extended::default()
            },
            payload: &payload,
            lso: None,
            icrc: None,
            hops: 0,
        };
        let mut bytes = Vec::new();
        packet.emit_into(&mut bytes).unwrap();
        assert_eq!(
            describe(&bytes),
            "LID 1 -> 0xc000 UD_SEND_ONLY qp 0x48 -> mcast pkey 0xffff psn 3 GRH fe80::2:c903:1:a0b1 -> ff12:401b:ffff::ffff:ffff \
             ARP who-has 10.0.0.2 tell 10.0.0.1 (80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:01:a0:b1)"
        );
        assert_eq!(reemit(&bytes), Ok(bytes));
    }

    #[test]
    fn short_and_odd_input() {
        assert!(
            describe(&FlowControl::hello(FlowControl::INIT).emit())
                .starts_with("flow control op 1")
        );
        assert!(describe(&[]).starts_with("malformed: "));
        assert_eq!(
            describe_ipoib(EtherType::IPV4, &[0x45; 19]),
            "malformed: IPv4 of 19 bytes"
        );
        assert_eq!(
            describe_ipoib(EtherType::IPV6, &[]),
            "malformed: IPv6 of 0 bytes"
        );
    }
}
