//! Fragments of IP packets that are larger than what goes to their destination (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! With connections (RFC 4755) the device's MTU is larger than that of groups, and the kernel cannot be made to cut all that it sends to
//! them: no ICMP error may be about an IPv4 group; the MTU of a route to 224.0.0.0/4 does not bind sockets with a source address, and
//! nothing that goes to 224.0.0.0/24 or 255.255.255.255 or is IGMP or MLD; and in both families such a route draws the multicast
//! of other devices to this one. The kernel even forbids fragmentation of what fits the device, though no program asked for that.
//!
//! So the interface, being the last part of the source host, cuts what goes to groups: in IPv4 whatever the DF bit says, in IPv6 where the
//! source is its own (others get a too-big message, RFC 4443 section 3.2). It cuts, too, what any router may: IPv4 packets without DF. And
//! where a path takes less than IPv6's least MTU, it cuts packets of up to that many bytes, whosever they are: no host sends smaller ones there,
//! and whatever is below IPv6 has to carry them (RFC 8200 section 5).

use crate::forwarding::Destination;
use crate::icmp::MIN_MTU_V6;
use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6FragmentHeader};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use wire::ipoib::ENCAP_LEN;

/// Cuts an encapsulated packet into such of at most the MTU of datagrams to `to`; `None` if that is not allowed, or the packet is malformed.
///
/// `own` are the interface's addresses; `id` identifies the fragments where the packet has no identification yet.
pub(crate) fn cut(
    frame: &[u8],
    to: &Destination,
    own: &HashSet<IpAddr>,
    id: u32,
) -> Option<Vec<Vec<u8>>> {
    let (encapsulation, packet) = frame.split_at_checked(ENCAP_LEN)?;
    match packet.first()? >> 4 {
        4 => cut_v4(encapsulation, packet, to, id),
        6 => cut_v6(encapsulation, packet, to, own, id),
        _ => None,
    }
}

fn cut_v4(encapsulation: &[u8], packet: &[u8], to: &Destination, id: u32) -> Option<Vec<Vec<u8>>> {
    let (mut header, _) = Ipv4Header::from_slice(packet).ok()?;
    if header.dont_fragment && !to.is_group() {
        return None;
    }
    let payload = packet.get(header.header_len()..usize::from(header.total_len))?;
    if std::mem::take(&mut header.dont_fragment) && header.identification == 0 {
        // RFC 6864 section 4.1: what was not to be fragmented needs no identification.
        header.identification = id as u16;
    }
    let is_last = !header.more_fragments;
    let start = usize::from(header.fragment_offset.byte_offset());
    let mut frames = Vec::new();
    let mut at = 0;
    while at < payload.len() {
        let len = header.header_len();
        let part = part(&payload[at..], to.mtu.checked_sub(len)?)?;
        header.fragment_offset = offset(start + at)?;
        at += part.len();
        header.more_fragments = !is_last || at < payload.len();
        header.total_len = u16::try_from(len + part.len()).ok()?;
        header.header_checksum = header.calc_header_checksum();
        frames.push([encapsulation, &header.to_bytes(), part].concat());
        header.options = copied_options(&header.options)?;
    }
    (!frames.is_empty()).then_some(frames)
}

/// The options that all fragments have (RFC 791 section 3.1, copied flag), padded.
fn copied_options(mut options: &[u8]) -> Option<Ipv4Options> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    let mut copied = Vec::new();
    while let [kind, rest @ ..] = options {
        let len = match *kind {
            END => break,
            NO_OPERATION => 1,
            _ => usize::from(*rest.first()?).max(2),
        };
        let (option, after) = options.split_at_checked(len)?;
        if kind & COPIED != 0 {
            copied.extend_from_slice(option);
        }
        options = after;
    }
    copied.resize(copied.len().next_multiple_of(4), END);
    copied.as_slice().try_into().ok()
}

fn cut_v6(
    encapsulation: &[u8],
    packet: &[u8],
    to: &Destination,
    own: &HashSet<IpAddr>,
    id: u32,
) -> Option<Vec<Vec<u8>>> {
    let source = Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(8..24)?).ok()?);
    let is_own = source.is_unspecified() || own.contains(&IpAddr::V6(source));
    if packet.len() > MIN_MTU_V6 && !(to.is_group() && is_own) {
        return None;
    }
    let payload_len = u16::from_be_bytes([packet[4], packet[5]]);
    let packet = packet.get(..40 + usize::from(payload_len))?;
    let (first, next_header) = fragmentable(packet)?;
    let (before, rest) = packet.split_at_checked(first)?;
    let (mut fragment, payload) = match IpNumber(packet[next_header]) {
        // The kernel's own, of a datagram larger than any packet.
        IpNumber::IPV6_FRAGMENTATION_HEADER => Ipv6FragmentHeader::from_slice(rest).ok()?,
        next => (
            Ipv6FragmentHeader::new(next, IpFragOffset::ZERO, false, id),
            rest,
        ),
    };
    let mut before = before.to_vec();
    before[next_header] = IpNumber::IPV6_FRAGMENTATION_HEADER.0;
    let room = to.mtu.checked_sub(first + Ipv6FragmentHeader::LEN)?;
    let is_last = !fragment.more_fragments;
    let start = usize::from(fragment.fragment_offset.byte_offset());
    let mut frames = Vec::new();
    let mut at = 0;
    while at < payload.len() {
        let part = part(&payload[at..], room)?;
        fragment.fragment_offset = offset(start + at)?;
        at += part.len();
        fragment.more_fragments = !is_last || at < payload.len();
        let len = first - 40 + Ipv6FragmentHeader::LEN + part.len();
        before[4..6].copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
        frames.push([encapsulation, &before, &fragment.to_bytes(), part].concat());
    }
    (!frames.is_empty()).then_some(frames)
}

/// Where the fragmentable part of an IPv6 packet begins (RFC 8200 section 4.5: behind the headers that routers look at), and where stands
/// what header it begins with.
fn fragmentable(packet: &[u8]) -> Option<(usize, usize)> {
    let (mut first, mut next_header) = (40, 6);
    let (mut at, mut named) = (first, next_header);
    loop {
        let kind = IpNumber(*packet.get(named)?);
        if !matches!(
            kind,
            IpNumber::IPV6_HEADER_HOP_BY_HOP
                | IpNumber::IPV6_ROUTE_HEADER
                | IpNumber::IPV6_DESTINATION_OPTIONS
        ) {
            return Some((first, next_header));
        }
        named = at;
        at += 8 * (1 + usize::from(*packet.get(at + 1)?));
        // Options for the destination are for the routers in between only where a routing header follows.
        if kind != IpNumber::IPV6_DESTINATION_OPTIONS {
            (first, next_header) = (at, named);
        }
    }
}

/// What of `payload` goes into the next fragment: all if there is room for it, else a multiple of 8 bytes.
fn part(payload: &[u8], room: usize) -> Option<&[u8]> {
    if payload.len() <= room {
        return Some(payload);
    }
    let len = room / 8 * 8;
    (len > 0).then(|| &payload[..len])
}

fn offset(bytes: usize) -> Option<IpFragOffset> {
    IpFragOffset::try_new(u16::try_from(bytes / 8).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::defrag::IpDefragPool;
    use etherparse::ip_number::{IPV6_DESTINATION_OPTIONS, IPV6_HEADER_HOP_BY_HOP, UDP};
    use etherparse::{Ipv4HeaderSlice, Ipv6Header, NetSlice, SlicedPacket};
    use proptest::prelude::*;
    use verbs::{AddressHandle, AhAttributes};
    use wire::{Lid, Qpn, RateCode, ServiceLevel};

    const HOST: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
    const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
    const TIMESTAMP: [u8; 8] = [68, 8, 5, 0, 0, 0, 0, 0];

    fn to(qpn: Qpn, mtu: usize) -> Destination {
        let attributes = AhAttributes {
            dlid: Lid(0xc000),
            sl: ServiceLevel(0),
            src_path_bits: 0,
            rate: RateCode::GBPS_10,
            grh: None,
        };
        Destination::new(AddressHandle::new(attributes, None), qpn, mtu, false)
    }

    fn group(mtu: usize) -> Destination {
        to(Qpn::MULTICAST, mtu)
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i ^ i >> 8) as u8).collect()
    }

    fn v4(len: usize, options: &[u8], change: impl FnOnce(&mut Ipv4Header)) -> Vec<u8> {
        let mut header = Ipv4Header {
            total_len: (20 + options.len() + len) as u16,
            dont_fragment: false,
            time_to_live: 1,
            protocol: UDP,
            source: [10, 77, 0, 1],
            destination: [239, 1, 2, 3],
            options: options.try_into().unwrap(),
            ..Ipv4Header::default()
        };
        change(&mut header);
        header.header_checksum = header.calc_header_checksum();
        [&[8, 0, 0, 0], &header.to_bytes()[..], &bytes(len)].concat()
    }

    /// `extensions`: the first's number, and all their bytes.
    fn v6(len: usize, (next, extensions): (IpNumber, &[u8])) -> Vec<u8> {
        let header = Ipv6Header {
            payload_length: (extensions.len() + len) as u16,
            next_header: next,
            hop_limit: 1,
            source: HOST.octets(),
            destination: Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 1).octets(),
            ..Ipv6Header::default()
        };
        let header = header.to_bytes();
        [&[0x86, 0xdd, 0, 0], &header[..], extensions, &bytes(len)].concat()
    }

    fn cut_own(frame: &[u8], to: &Destination) -> Option<Vec<Vec<u8>>> {
        cut(frame, to, &HashSet::from([HOST.into()]), 0x1234_5678)
    }

    /// What a receiver makes of the fragments, which come in this order.
    fn join<'a>(frames: impl Iterator<Item = &'a Vec<u8>>, mtu: usize) -> Vec<(IpNumber, Vec<u8>)> {
        let mut pool = IpDefragPool::<(), ()>::new();
        let joined = frames.filter_map(|frame| {
            let packet = &frame[ENCAP_LEN..];
            assert!(packet.len() <= mtu, "{} bytes of {mtu}", packet.len());
            if let Ok(header) = Ipv4HeaderSlice::from_slice(packet) {
                assert!(!header.dont_fragment());
                assert_eq!(usize::from(header.total_len()), packet.len());
                assert_eq!(
                    header.header_checksum(),
                    header.to_header().calc_header_checksum()
                );
            }
            let sliced = SlicedPacket::from_ip(packet).unwrap();
            let whole = pool.process_sliced_packet(&sliced, (), ()).unwrap();
            whole.map(|whole| (whole.ip_number, whole.payload))
        });
        joined.collect()
    }

    proptest! {
        #[test]
        fn fragments_make_the_packet_again(
            v6_ in any::<bool>(), len in 4093..65_000_usize, mtu in 252..=4092_usize, reversed in any::<bool>(),
            alert in any::<bool>(), dont_fragment in any::<bool>(), identification: u16,
        ) {
            let frame = if v6_ {
                v6(len, if alert { (IPV6_HEADER_HOP_BY_HOP, &[17, 0, 5, 2, 0, 0, 1, 0]) } else { (UDP, &[]) })
            } else {
                v4(len, if alert { &ROUTER_ALERT } else { &[] }, |header| {
                    header.dont_fragment = dont_fragment;
                    header.identification = identification;
                })
            };
            let frames = cut_own(&frame, &group(mtu)).unwrap();
            let overhead = if v6_ { 48 } else { 20 } + if alert { 8 } else { 0 } + 7;
            prop_assert!(frames.len() <= len.div_ceil(mtu - overhead));
            let joined = if reversed { join(frames.iter().rev(), mtu) } else { join(frames.iter(), mtu) };
            prop_assert_eq!(joined, [(UDP, bytes(len))]);
            // Fragments cut again, as those that the kernel makes of more than the device's MTU.
            let again: Vec<_> = frames.iter().flat_map(|frame| {
                if frame.len() - ENCAP_LEN > 200 { cut_own(frame, &group(200)).unwrap() } else { vec![frame.clone()] }
            }).collect();
            prop_assert_eq!(join(again.iter(), 200), [(UDP, bytes(len))]);
        }

        #[test]
        fn nothing_makes_it_panic(
            start in prop::sample::select(&[0x45_u8, 0x46, 0x4f, 0x60][..]),
            next in prop::sample::select(&[0_u8, 17, 43, 44, 60][..]),
            mut packet in prop::collection::vec(prop::sample::select(&[0_u8, 1, 2, 8, 43, 44, 60, 0x94, 0xff][..]), 0..400),
            mtu in 0..300_usize,
        ) {
            packet.get_mut(4).into_iter().for_each(|byte| *byte = start);
            packet.get_mut(10).into_iter().for_each(|byte| *byte = next);
            let sources = HashSet::from([packet.get(12..28).map_or(HOST, |s| {
                Ipv6Addr::from(<[u8; 16]>::try_from(s).unwrap())
            }).into()]);
            for frame in cut(&packet, &group(mtu), &sources, 0).into_iter().flatten() {
                prop_assert!(frame.len() - ENCAP_LEN <= mtu);
            }
        }
    }

    #[test]
    fn options_are_copied_as_their_flag_says() {
        let options = [&TIMESTAMP[..], &[1, 1, 1, 1], &ROUTER_ALERT].concat();
        let frames = cut_own(&v4(6000, &options, |_| ()), &group(2044)).unwrap();
        let header = |frame: &Vec<u8>| Ipv4Header::from_slice(&frame[ENCAP_LEN..]).unwrap().0;
        let seen: Vec<_> = frames.iter().map(header).collect();
        let seen: Vec<_> = seen.iter().map(|header| &header.options[..]).collect();
        assert_eq!(seen, [&options[..], &ROUTER_ALERT, &ROUTER_ALERT]);
    }

    #[test]
    fn options_for_the_destination_are_payload() {
        let extensions = [&[60, 0, 5, 2, 0, 0, 1, 0][..], &[17, 0, 1, 4, 0, 0, 0, 0]].concat();
        let frame = v6(4000, (IPV6_HEADER_HOP_BY_HOP, &extensions));
        let frames = cut_own(&frame, &group(2044)).unwrap();
        let mut payload = Vec::new();
        for frame in &frames {
            let (routers, rest) = frame[ENCAP_LEN + 40..].split_at(8);
            assert_eq!(routers[0], IpNumber::IPV6_FRAGMENTATION_HEADER.0);
            let (fragment, part) = Ipv6FragmentHeader::from_slice(rest).unwrap();
            assert_eq!(fragment.next_header, IPV6_DESTINATION_OPTIONS);
            assert_eq!(
                usize::from(fragment.fragment_offset.byte_offset()),
                payload.len()
            );
            payload.extend_from_slice(part);
        }
        assert_eq!(payload, [&extensions[8..], &bytes(4000)].concat());
    }

    #[test]
    fn who_may_cut_what() {
        let neighbour = to(Qpn(72), 2044);
        let forbidden = v4(4000, &[], |header| header.dont_fragment = true);
        assert!(cut_own(&forbidden, &neighbour).is_none());
        assert!(cut_own(&forbidden, &group(2044)).is_some());
        assert!(cut_own(&v4(4000, &[], |_| ()), &neighbour).is_some());
        let packet = v6(4000, (UDP, &[]));
        assert!(cut_own(&packet, &neighbour).is_none());
        assert!(cut_own(&packet, &group(2044)).is_some());
        // That of another host, which this one forwards.
        assert!(cut(&packet, &group(2044), &HashSet::new(), 1).is_none());
        let (slow, short) = (to(Qpn(72), 252), v6(1280 - 40, (UDP, &[])));
        let frames = cut(&short, &slow, &HashSet::new(), 1).unwrap();
        assert_eq!(join(frames.iter(), 252), [(UDP, bytes(1280 - 40))]);
        assert!(cut_own(&v6(1281 - 40, (UDP, &[])), &slow).is_none());
        // No sender makes them smaller, whatever a router says.
        assert!(cut(&short, &group(252), &HashSet::new(), 1).is_some());
        // Before it has an address.
        let mut packet = packet;
        packet[ENCAP_LEN + 8..ENCAP_LEN + 24].fill(0);
        assert!(cut(&packet, &group(2044), &HashSet::new(), 1).is_some());
    }

    #[test]
    fn an_identification_stays_unless_there_is_none() {
        let seen = |identification, dont_fragment| {
            let frame = v4(4000, &[], |header| {
                header.identification = identification;
                header.dont_fragment = dont_fragment;
            });
            let frames = cut_own(&frame, &group(2044)).unwrap();
            let id = |frame: &Vec<u8>| {
                let sliced = SlicedPacket::from_ip(&frame[ENCAP_LEN..]).unwrap();
                let Some(NetSlice::Ipv4(ip)) = sliced.net else {
                    panic!("not IPv4")
                };
                ip.header().identification()
            };
            let ids: HashSet<u16> = frames.iter().map(id).collect();
            ids.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(seen(7, true), [7]);
        assert_eq!(seen(0, false), [0]);
        assert_eq!(seen(0, true), [0x5678]);
    }
}
