//! Encapsulation header between the transport headers and the IP or ARP packet (RFC 4391 section 6).

use std::fmt;

/// Bytes of the encapsulation header; an interface's IP MTU is its IB MTU less this.
pub const ENCAP_LEN: usize = 4;

/// What follows the encapsulation header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// Reverse ARP.
    pub const RARP: Self = Self(0x8035);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);

    /// One of the four that RFC 4391 section 6 allows?
    pub const fn is_ipoib(self) -> bool {
        matches!(self, Self::IPV4 | Self::ARP | Self::RARP | Self::IPV6)
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.write_str("IPv4"),
            Self::ARP => f.write_str("ARP"),
            Self::RARP => f.write_str("RARP"),
            Self::IPV6 => f.write_str("IPv6"),
            Self(n) => write!(f, "ethertype 0x{n:04x}"),
        }
    }
}
impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The encapsulation header: EtherType and two reserved bytes, sent as zero and ignored on receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncapHeader {
    /// What follows.
    pub ether_type: EtherType,
}

impl EncapHeader {
    /// Splits a payload (of a UD or RC SEND) into the type and what it names; `None` for fewer than [`ENCAP_LEN`] bytes.
    pub fn split(payload: &[u8]) -> Option<(EtherType, &[u8])> {
        let (&[high, low, _, _], rest) = payload.split_first_chunk()?;
        Some((EtherType(u16::from_be_bytes([high, low])), rest))
    }

    /// The header on the wire.
    pub const fn emit(self) -> [u8; ENCAP_LEN] {
        let [high, low] = self.ether_type.0.to_be_bytes();
        [high, low, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_ignores_reserved_bytes() {
        assert_eq!(
            EncapHeader::split(&[0x86, 0xdd, 9, 9, 1, 2]),
            Some((EtherType::IPV6, &[1, 2][..]))
        );
        assert_eq!(EncapHeader::split(&[0x08, 0, 0]), None);
        assert_eq!(
            EncapHeader {
                ether_type: EtherType::ARP
            }
            .emit(),
            [8, 6, 0, 0]
        );
    }
}
