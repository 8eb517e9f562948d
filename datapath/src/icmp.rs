//! ICMP errors that the interface makes for its host: too big, unreachable (RFC 792, RFC 1191, RFC 4443).

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{
    Icmpv4Type, Icmpv6Type, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, PacketBuilder,
};
use std::time::{Duration, Instant};

/// Why a packet did not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Larger than this MTU, bytes.
    TooBig(usize),
    /// The neighbour does not answer.
    Unreachable,
}

/// Least MTU that IPv6 knows, bytes (RFC 8200 section 5): hosts do not believe a smaller one.
pub const MIN_MTU_V6: usize = 1280;
/// Most of an IPv6 error: the minimum MTU less the headers (RFC 4443 section 2.4c).
const QUOTE_V6: usize = MIN_MTU_V6 - 40 - 8;
/// An IPv4 error has at most 576 bytes (RFC 1812 section 4.3.2.3).
const QUOTE_V4: usize = 576 - 20 - 8;

/// The part of a packet that an error may quote.
pub(crate) fn quote(packet: &[u8]) -> &[u8] {
    &packet[..packet.len().min(QUOTE_V6)]
}

/// The error for `packet` (as [`quote`] cut it), an IP packet to be given to the host; `None` where the RFCs forbid one.
pub(crate) fn error(packet: &[u8], reason: Reason) -> Option<Vec<u8>> {
    match packet.first()? >> 4 {
        4 => error_v4(packet, reason),
        6 => error_v6(packet, reason),
        _ => None,
    }
}

fn error_v4(packet: &[u8], reason: Reason) -> Option<Vec<u8>> {
    let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
    let (source, destination) = (ip.source_addr(), ip.destination_addr());
    let rest = &packet[ip.slice().len()..];
    // RFC 1122 section 3.2.2: not about ICMP errors, later fragments, groups, or a source that is not one host.
    let about_error =
        ip.protocol() == IpNumber::ICMP && !matches!(rest.first(), Some(0 | 8 | 13..=18));
    let one_host = !(source.is_unspecified()
        || source.is_multicast()
        || source.is_broadcast()
        || source.is_loopback());
    if about_error
        || !one_host
        || ip.fragments_offset().value() != 0
        || destination.is_multicast()
        || destination.is_broadcast()
    {
        return None;
    }
    let kind = match reason {
        Reason::TooBig(mtu) => DestUnreachableHeader::FragmentationNeeded {
            next_hop_mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        },
        Reason::Unreachable => DestUnreachableHeader::Host,
    };
    // From the destination: a packet from an address of the host itself would be dropped as a martian.
    let builder = PacketBuilder::ipv4(destination.octets(), source.octets(), 64)
        .icmpv4(Icmpv4Type::DestinationUnreachable(kind));
    write(&packet[..packet.len().min(QUOTE_V4)], |quoted, out| {
        builder.write(out, quoted).is_ok()
    })
}

fn error_v6(packet: &[u8], reason: Reason) -> Option<Vec<u8>> {
    let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
    let (source, destination) = (ip.source_addr(), ip.destination_addr());
    // RFC 4443 section 2.4e: not about errors; too-big may be about a group.
    let about_error =
        ip.next_header() == IpNumber::IPV6_ICMP && packet.get(40).is_none_or(|t| *t < 128);
    if about_error || source.is_unspecified() || source.is_multicast() || source.is_loopback() {
        return None;
    }
    let from = match (destination.is_multicast(), reason) {
        (false, _) => destination,
        (true, Reason::TooBig(_)) => source,
        (true, Reason::Unreachable) => return None,
    };
    let kind = match reason {
        Reason::TooBig(mtu) => Icmpv6Type::PacketTooBig {
            mtu: mtu.max(MIN_MTU_V6) as u32,
        },
        Reason::Unreachable => Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Address),
    };
    let builder = PacketBuilder::ipv6(from.octets(), source.octets(), 64).icmpv6(kind);
    write(quote(packet), |quoted, out| {
        builder.write(out, quoted).is_ok()
    })
}

fn write(quoted: &[u8], write: impl FnOnce(&[u8], &mut Vec<u8>) -> bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(quoted.len() + 48);
    write(quoted, &mut out).then_some(out)
}

/// A token bucket: errors are rare by rule (RFC 4443 section 2.4f).
#[derive(Debug)]
pub(crate) struct RateLimit {
    tokens: u32,
    last: Option<Instant>,
}

impl RateLimit {
    const BURST: u32 = 100;
    const INTERVAL: Duration = Duration::from_millis(1);

    pub(crate) fn new() -> Self {
        RateLimit {
            tokens: Self::BURST,
            last: None,
        }
    }

    /// May one more go out?
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let earned = self.last.map_or(0, |last| {
            now.saturating_duration_since(last).as_nanos() / Self::INTERVAL.as_nanos()
        });
        if earned > 0 || self.last.is_none() {
            self.tokens = (u128::from(self.tokens) + earned).min(u128::from(Self::BURST)) as u32;
            self.last = Some(now);
        }
        let granted = self.tokens > 0;
        self.tokens -= u32::from(granted);
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{PacketHeaders, TransportHeader};

    fn udp_v4(destination: [u8; 4], len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 1], destination, 64)
            .udp(1, 2)
            .write(&mut out, &vec![7; len])
            .expect("fits");
        out
    }

    #[test]
    fn too_big_v4_says_the_mtu_and_quotes_the_packet() {
        let packet = udp_v4([10, 0, 0, 2], 2500);
        let error = error(quote(&packet), Reason::TooBig(2044)).expect("allowed");
        let headers = PacketHeaders::from_ip_slice(&error).expect("valid");
        let Some(TransportHeader::Icmpv4(icmp)) = headers.transport else {
            panic!("not ICMP")
        };
        let expected = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 2044 };
        assert_eq!(icmp.icmp_type, Icmpv4Type::DestinationUnreachable(expected));
        assert_eq!(headers.payload.slice(), &packet[..QUOTE_V4]);
    }

    #[test]
    fn too_big_v6_to_a_group_comes_from_the_host_itself() {
        let mut packet = Vec::new();
        let group = "ff02::1".parse::<std::net::Ipv6Addr>().expect("literal");
        let host = "fe80::5".parse::<std::net::Ipv6Addr>().expect("literal");
        PacketBuilder::ipv6(host.octets(), group.octets(), 1)
            .udp(1, 2)
            .write(&mut packet, &[0; 3000])
            .expect("fits");
        let error = error(quote(&packet), Reason::TooBig(1280)).expect("allowed");
        assert_eq!(error.len(), 1280);
        assert_eq!(
            Ipv6HeaderSlice::from_slice(&error)
                .expect("valid")
                .source_addr(),
            host
        );
        assert_eq!(error_v6(quote(&packet), Reason::Unreachable), None);
    }

    #[test]
    fn never_about_groups_or_errors() {
        assert_eq!(
            error(&udp_v4([224, 0, 0, 1], 10), Reason::Unreachable),
            None
        );
        let first = error(&udp_v4([10, 0, 0, 2], 10), Reason::Unreachable).expect("allowed");
        assert_eq!(error(&first, Reason::Unreachable), None);
        assert_eq!(error(&[], Reason::Unreachable), None);
        assert_eq!(error(&[0x45], Reason::Unreachable), None);
    }

    #[test]
    fn rate_is_limited_and_recovers() {
        let mut limit = RateLimit::new();
        let start = Instant::now();
        assert_eq!(
            (0..500).filter(|_| limit.take(start)).count(),
            RateLimit::BURST as usize
        );
        let later = start + 10 * RateLimit::INTERVAL;
        assert_eq!((0..500).filter(|_| limit.take(later)).count(), 10);
    }
}
