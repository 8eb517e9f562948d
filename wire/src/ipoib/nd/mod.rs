//! Neighbor Discovery for IPv6 over InfiniBand (RFC 4861; the 24-byte link-layer address option of RFC 4391 section 9.3).
//!
//! [`NdPacket::parse`] takes a whole IPv6 packet and applies the receive rules of RFC 4861 sections 6.1, 7.1 and 8.1: what it returns may be
//! acted on. Options it does not know are kept as they are.

mod options;
#[cfg(test)]
mod tests;

use super::address::LinkAddress;
use crate::id::Guid;
pub use options::NdOptions;
use options::{LINK_LAYER_OPTION_LEN, LinkLayerOption, link_layer_option, parse_link_layer_option};
use std::net::Ipv6Addr;

const IPV6_HEADER_LEN: usize = 40;
const NEXT_HEADER_ICMPV6: u8 = 58;
/// Proves that the packet passed no router (RFC 4861 section 3.1).
const HOP_LIMIT: u8 = 255;

/// One Neighbor Discovery packet, IPv6 header included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdPacket<'a> {
    /// IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// IPv6 source; unspecified in solicitations of duplicate address detection.
    pub source: Ipv6Addr,
    /// IPv6 destination.
    pub destination: Ipv6Addr,
    /// The message without its options.
    pub message: NdMessage,
    /// The options.
    pub options: NdOptions<'a>,
}

/// A Neighbor Discovery message without its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdMessage {
    /// ICMPv6 type 133.
    RouterSolicitation,
    /// ICMPv6 type 134.
    RouterAdvertisement {
        /// Hop limit for hosts to use, 0: not told.
        cur_hop_limit: u8,
        /// M 0x80, O 0x40 and later ones.
        flags: u8,
        /// Seconds as default router.
        router_lifetime: u16,
        /// Milliseconds, 0: not told.
        reachable_time: u32,
        /// Milliseconds, 0: not told.
        retrans_timer: u32,
    },
    /// ICMPv6 type 135.
    NeighborSolicitation {
        /// Who is asked for.
        target: Ipv6Addr,
    },
    /// ICMPv6 type 136.
    NeighborAdvertisement {
        /// R, S and O.
        flags: NaFlags,
        /// Who it is about.
        target: Ipv6Addr,
    },
    /// ICMPv6 type 137.
    Redirect {
        /// The better first hop.
        target: Ipv6Addr,
        /// For packets to this address.
        destination: Ipv6Addr,
    },
}

/// Flags of a Neighbor Advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NaFlags {
    /// R: the sender is a router.
    pub router: bool,
    /// S: answers a solicitation.
    pub solicited: bool,
    /// O: replaces a cached link address.
    pub override_cached: bool,
}

/// Why an IPv6 packet is not to be acted on as Neighbor Discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NdError {
    /// Some other packet.
    #[error("no Neighbor Discovery packet")]
    NotNeighborDiscovery,
    /// Shorter than its IPv6 header says, or than its message.
    #[error("{have} bytes where {need} are needed")]
    Truncated {
        /// Bytes there are.
        have: usize,
        /// Bytes there must be.
        need: usize,
    },
    /// It passed a router.
    #[error("hop limit {0} instead of 255")]
    HopLimit(u8),
    /// The ICMPv6 checksum is wrong.
    #[error("wrong ICMPv6 checksum 0x{0:04x}")]
    Checksum(u16),
    /// The ICMPv6 code is not zero.
    #[error("ICMPv6 code {0} instead of 0")]
    Code(u8),
    /// The target (of a Redirect: the destination) is a multicast address.
    #[error("{0} is a multicast address")]
    Multicast(Ipv6Addr),
    /// An option of length 0 or beyond the end of the packet.
    #[error("option with a length of {0} times 8 bytes")]
    OptionLength(u8),
    /// A solicitation from the unspecified address (duplicate address detection) to an address that is not solicited-node.
    #[error("solicitation from the unspecified address to {0}, which is no solicited-node address")]
    DadDestination(Ipv6Addr),
    /// A solicitation from the unspecified address with a source link-layer address.
    #[error("solicitation from the unspecified address with a source link-layer address")]
    DadLinkAddress,
    /// A solicited advertisement to a multicast address.
    #[error("advertisement to {0} with the solicited flag")]
    SolicitedMulticast(Ipv6Addr),
    /// A router message from an address that is not link-local.
    #[error("router message from {0}, which is not link-local")]
    RouterAddress(Ipv6Addr),
    /// A Redirect to a target that is neither a router (link-local) nor the destination itself.
    #[error("redirect to {0}, which is neither link-local nor the destination")]
    RedirectTarget(Ipv6Addr),
}

/// Does this IPv6 packet hold an ICMPv6 message of type 133 to 137, valid or not?
pub fn is_neighbor_discovery(ip: &[u8]) -> bool {
    ip.len() > IPV6_HEADER_LEN
        && ip[0] >> 4 == 6
        && ip[6] == NEXT_HEADER_ICMPV6
        && matches!(ip[IPV6_HEADER_LEN], 133..=137)
}

/// The solicited-node multicast address (RFC 4291 section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | address.to_bits() & 0xff_ffff)
}

/// The link-local address of a port: its GUID as interface identifier with the universal/local bit set (RFC 4391 section 8). Linux
/// (`addrconf_ifid_infiniband`) sets the bit and never toggles it, so a GUID that has it already keeps it.
pub const fn link_local(guid: Guid) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfe80 << 112 | (guid.0 | 1 << 57) as u128)
}

/// A whole Neighbor Solicitation packet. `source_link` must be `None` when `source` is unspecified.
pub fn neighbor_solicitation(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    source_link: Option<LinkAddress>,
) -> Vec<u8> {
    let option = source_link.map(|address| link_layer_option(LinkLayerOption::Source, address));
    build(
        source,
        destination,
        NdMessage::NeighborSolicitation { target },
        option,
    )
}

/// A whole Neighbor Advertisement packet.
pub fn neighbor_advertisement(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    flags: NaFlags,
    target_link: Option<LinkAddress>,
) -> Vec<u8> {
    let option = target_link.map(|address| link_layer_option(LinkLayerOption::Target, address));
    build(
        source,
        destination,
        NdMessage::NeighborAdvertisement { flags, target },
        option,
    )
}

fn build(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: NdMessage,
    option: Option<[u8; LINK_LAYER_OPTION_LEN]>,
) -> Vec<u8> {
    let options = NdOptions(option.as_ref().map_or(&[], |bytes| bytes));
    NdPacket {
        traffic_class: 0,
        flow_label: 0,
        source,
        destination,
        message,
        options,
    }
    .emit()
}

impl<'a> NdPacket<'a> {
    /// Reads a whole IPv6 packet and applies the receive rules; bytes after the IPv6 payload are ignored.
    pub fn parse(ip: &'a [u8]) -> Result<Self, NdError> {
        if !is_neighbor_discovery(ip) {
            return Err(NdError::NotNeighborDiscovery);
        }
        let end = IPV6_HEADER_LEN + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        let icmp = ip.get(IPV6_HEADER_LEN..end).ok_or(NdError::Truncated {
            have: ip.len(),
            need: end,
        })?;
        if ip[7] != HOP_LIMIT {
            return Err(NdError::HopLimit(ip[7]));
        }
        // The message up to its options, zero where the packet ends before.
        let mut fixed = [0u8; 40];
        let fixed_len = fixed_len(ip[IPV6_HEADER_LEN]);
        let Some((head, options)) = icmp.split_at_checked(fixed_len) else {
            return Err(NdError::Truncated {
                have: icmp.len(),
                need: fixed_len,
            });
        };
        fixed[..fixed_len].copy_from_slice(head);
        let (source, destination) = (address(ip, 8), address(ip, 24));
        if icmpv6_checksum(source, destination, icmp) != 0 {
            return Err(NdError::Checksum(u16::from_be_bytes([icmp[2], icmp[3]])));
        }
        if icmp[1] != 0 {
            return Err(NdError::Code(icmp[1]));
        }
        let packet = Self {
            traffic_class: ip[0] << 4 | ip[1] >> 4,
            flow_label: u32::from_be_bytes([0, ip[1] & 0xf, ip[2], ip[3]]),
            source,
            destination,
            message: NdMessage::parse(&fixed),
            options: NdOptions::parse(options)?,
        };
        packet.check()?;
        Ok(packet)
    }

    /// The rules that need the message's meaning.
    fn check(&self) -> Result<(), NdError> {
        let unicast = |a: Ipv6Addr| {
            if a.is_multicast() {
                Err(NdError::Multicast(a))
            } else {
                Ok(())
            }
        };
        let from_router = || {
            if self.source.is_unicast_link_local() {
                Ok(())
            } else {
                Err(NdError::RouterAddress(self.source))
            }
        };
        let no_link_address = || {
            if self.options.iter().any(|(kind, _)| kind == 1) {
                Err(NdError::DadLinkAddress)
            } else {
                Ok(())
            }
        };
        match self.message {
            // RFC 4861 section 6.1.1
            NdMessage::RouterSolicitation if self.source.is_unspecified() => no_link_address(),
            NdMessage::RouterSolicitation => Ok(()),
            // RFC 4861 section 6.1.2
            NdMessage::RouterAdvertisement { .. } => from_router(),
            // RFC 4861 section 7.1.1
            NdMessage::NeighborSolicitation { target } => {
                unicast(target)?;
                if !self.source.is_unspecified() {
                    Ok(())
                } else if solicited_node(self.destination) == self.destination {
                    no_link_address()
                } else {
                    Err(NdError::DadDestination(self.destination))
                }
            }
            // RFC 4861 section 7.1.2
            NdMessage::NeighborAdvertisement { flags, target } => {
                unicast(target)?;
                if flags.solicited && self.destination.is_multicast() {
                    return Err(NdError::SolicitedMulticast(self.destination));
                }
                Ok(())
            }
            // RFC 4861 section 8.1, without the rule that the sender must be the present first hop
            NdMessage::Redirect {
                target,
                destination,
            } => {
                from_router()?;
                unicast(destination)?;
                if target == destination || target.is_unicast_link_local() {
                    Ok(())
                } else {
                    Err(NdError::RedirectTarget(target))
                }
            }
        }
    }

    /// The source link-layer address of a solicitation or Router Advertisement, the target's of an advertisement or Redirect.
    pub fn link_address(&self) -> Option<LinkAddress> {
        match self.message {
            NdMessage::NeighborAdvertisement { .. } | NdMessage::Redirect { .. } => {
                self.options.target_link_address()
            }
            _ => self.options.source_link_address(),
        }
    }

    /// The whole IPv6 packet with its checksum.
    pub fn emit(&self) -> Vec<u8> {
        let fixed = self.message.emit();
        let fixed_len = fixed_len(fixed[0]);
        let len = fixed_len + self.options.0.len();
        let mut ip = Vec::with_capacity(IPV6_HEADER_LEN + len);
        ip.extend(
            (6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff)
                .to_be_bytes(),
        );
        ip.extend((len as u16).to_be_bytes());
        ip.extend([NEXT_HEADER_ICMPV6, HOP_LIMIT]);
        ip.extend(self.source.octets());
        ip.extend(self.destination.octets());
        ip.extend(&fixed[..fixed_len]);
        for (kind, option) in self.options.iter() {
            match (kind, parse_link_layer_option(option)) {
                (1, Some(address)) => {
                    ip.extend(link_layer_option(LinkLayerOption::Source, address))
                }
                (2, Some(address)) => {
                    ip.extend(link_layer_option(LinkLayerOption::Target, address))
                }
                _ => ip.extend(option),
            }
        }
        let checksum = icmpv6_checksum(self.source, self.destination, &ip[IPV6_HEADER_LEN..]);
        ip[IPV6_HEADER_LEN + 2..][..2].copy_from_slice(&checksum.to_be_bytes());
        ip
    }
}

/// Bytes of a message before its options, ICMPv6 header included.
const fn fixed_len(icmp_type: u8) -> usize {
    match icmp_type {
        133 => 8,
        134 => 16,
        137 => 40,
        _ => 24,
    }
}

impl NdMessage {
    /// `b[0]` is 133 to 137.
    fn parse(b: &[u8; 40]) -> Self {
        let target = address(b, 8);
        match b[0] {
            133 => Self::RouterSolicitation,
            134 => Self::RouterAdvertisement {
                cur_hop_limit: b[4],
                flags: b[5],
                router_lifetime: u16::from_be_bytes([b[6], b[7]]),
                reachable_time: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
                retrans_timer: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
            },
            135 => Self::NeighborSolicitation { target },
            136 => Self::NeighborAdvertisement {
                flags: NaFlags {
                    router: b[4] & 0x80 != 0,
                    solicited: b[4] & 0x40 != 0,
                    override_cached: b[4] & 0x20 != 0,
                },
                target,
            },
            _ => Self::Redirect {
                target,
                destination: address(b, 24),
            },
        }
    }

    /// The message with a checksum of zero; the first [`fixed_len`] bytes count.
    fn emit(&self) -> [u8; 40] {
        let mut b = [0u8; 40];
        match *self {
            Self::RouterSolicitation => b[0] = 133,
            Self::RouterAdvertisement {
                cur_hop_limit,
                flags,
                router_lifetime,
                reachable_time,
                retrans_timer,
            } => {
                b[0] = 134;
                b[4] = cur_hop_limit;
                b[5] = flags;
                b[6..8].copy_from_slice(&router_lifetime.to_be_bytes());
                b[8..12].copy_from_slice(&reachable_time.to_be_bytes());
                b[12..16].copy_from_slice(&retrans_timer.to_be_bytes());
            }
            Self::NeighborSolicitation { target } => {
                b[0] = 135;
                b[8..24].copy_from_slice(&target.octets());
            }
            Self::NeighborAdvertisement { flags, target } => {
                b[0] = 136;
                b[4] = u8::from(flags.router) << 7
                    | u8::from(flags.solicited) << 6
                    | u8::from(flags.override_cached) << 5;
                b[8..24].copy_from_slice(&target.octets());
            }
            Self::Redirect {
                target,
                destination,
            } => {
                b[0] = 137;
                b[8..24].copy_from_slice(&target.octets());
                b[24..].copy_from_slice(&destination.octets());
            }
        }
        b
    }
}

fn address(bytes: &[u8], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    Ipv6Addr::from(octets)
}

/// The checksum to put where `icmp` has zero; 0 over a message with the right checksum (RFC 4443 section 2.3).
fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, icmp: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(2)
            .map(|pair| {
                u64::from(u16::from_be_bytes([
                    pair[0],
                    pair.get(1).copied().unwrap_or(0),
                ]))
            })
            .sum()
    };
    let mut sum = words(&source.octets())
        + words(&destination.octets())
        + icmp.len() as u64
        + u64::from(NEXT_HEADER_ICMPV6)
        + words(icmp);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
