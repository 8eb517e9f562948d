//! ARP for IPv4 with 20-byte hardware addresses (RFC 826, RFC 4391 section 9.2).

use super::address::LinkAddress;
use std::fmt;
use std::net::Ipv4Addr;

/// Hardware type InfiniBand.
const HRD_INFINIBAND: u16 = 32;
/// Protocol type IPv4.
const PRO_IPV4: u16 = 0x0800;

/// ar$op.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArpOperation(pub u16);

impl ArpOperation {
    /// Who has the target address?
    pub const REQUEST: Self = Self(1);
    /// The sender has it.
    pub const REPLY: Self = Self(2);
}

impl fmt::Debug for ArpOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::REQUEST => f.write_str("REQUEST"),
            Self::REPLY => f.write_str("REPLY"),
            Self(n) => write!(f, "operation {n}"),
        }
    }
}

/// An ARP packet, what follows the encapsulation header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Operation; those but request and reply are for others.
    pub operation: ArpOperation,
    /// Sender's link address.
    pub sender_hw: LinkAddress,
    /// Sender's IP address; unspecified in probes (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Target's link address; zero in requests.
    pub target_hw: LinkAddress,
    /// Target's IP address.
    pub target_ip: Ipv4Addr,
}

/// Why bytes are no ARP packet for IPv4 over InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArpError {
    /// Fewer than 56 bytes.
    #[error("ARP packet of {0} bytes instead of 56")]
    Truncated(usize),
    /// ar$hrd is not 32.
    #[error("ARP hardware type {0} instead of 32 (InfiniBand)")]
    HardwareType(u16),
    /// ar$pro is not 0x0800.
    #[error("ARP protocol type 0x{0:04x} instead of 0x0800 (IPv4)")]
    ProtocolType(u16),
    /// ar$hln is not 20.
    #[error("ARP hardware address length {0} instead of 20")]
    HardwareLength(u8),
    /// ar$pln is not 4.
    #[error("ARP protocol address length {0} instead of 4")]
    ProtocolLength(u8),
}

impl ArpPacket {
    /// Length on the wire, bytes.
    pub const LEN: usize = 56;

    /// Reads a packet; bytes after it are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArpError> {
        let (&[h1, h0, p1, p0, hln, pln, o1, o0], rest) = bytes
            .split_first_chunk()
            .ok_or(ArpError::Truncated(bytes.len()))?;
        match (
            u16::from_be_bytes([h1, h0]),
            u16::from_be_bytes([p1, p0]),
            hln,
            pln,
        ) {
            (HRD_INFINIBAND, PRO_IPV4, 20, 4) => {}
            (HRD_INFINIBAND, PRO_IPV4, 20, pln) => return Err(ArpError::ProtocolLength(pln)),
            (HRD_INFINIBAND, PRO_IPV4, hln, _) => return Err(ArpError::HardwareLength(hln)),
            (HRD_INFINIBAND, pro, ..) => return Err(ArpError::ProtocolType(pro)),
            (hrd, ..) => return Err(ArpError::HardwareType(hrd)),
        }
        let pair = |bytes: &[u8]| -> Option<(LinkAddress, Ipv4Addr)> {
            let ip: &[u8; 4] = bytes.get(LinkAddress::LEN..)?.first_chunk()?;
            Some((LinkAddress::parse(bytes)?, Ipv4Addr::from(*ip)))
        };
        let both = pair(rest).zip(rest.get(24..).and_then(pair));
        let ((sender_hw, sender_ip), (target_hw, target_ip)) =
            both.ok_or(ArpError::Truncated(bytes.len()))?;
        Ok(Self {
            operation: ArpOperation(u16::from_be_bytes([o1, o0])),
            sender_hw,
            sender_ip,
            target_hw,
            target_ip,
        })
    }

    /// The packet on the wire.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..2].copy_from_slice(&HRD_INFINIBAND.to_be_bytes());
        bytes[2..4].copy_from_slice(&PRO_IPV4.to_be_bytes());
        bytes[4] = 20;
        bytes[5] = 4;
        bytes[6..8].copy_from_slice(&self.operation.0.to_be_bytes());
        bytes[8..28].copy_from_slice(&self.sender_hw.to_bytes());
        bytes[28..32].copy_from_slice(&self.sender_ip.octets());
        bytes[32..52].copy_from_slice(&self.target_hw.to_bytes());
        bytes[52..].copy_from_slice(&self.target_ip.octets());
        bytes
    }
}

impl fmt::Display for ArpPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            ArpOperation::REQUEST => write!(
                f,
                "who-has {} tell {} ({})",
                self.target_ip, self.sender_ip, self.sender_hw
            ),
            ArpOperation::REPLY => write!(f, "{} is-at {}", self.sender_ip, self.sender_hw),
            other => write!(f, "{other:?} {} -> {}", self.sender_ip, self.target_ip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ArpPacket {
        ArpPacket {
            operation: ArpOperation::REQUEST,
            sender_hw: "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:01:a0:b1"
                .parse()
                .unwrap(),
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_hw: LinkAddress::default(),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        }
    }

    #[test]
    fn layout_of_a_request() {
        let mut expect = vec![
            0x00, 0x20, 0x08, 0x00, 0x14, 0x04, 0x00, 0x01, 0x80, 0x00, 0x00, 0x48, 0xfe, 0x80, 0,
            0, 0, 0, 0, 0,
        ];
        expect.extend([0x00, 0x02, 0xc9, 0x03, 0x00, 0x01, 0xa0, 0xb1, 10, 0, 0, 1]);
        expect.extend([0; 20]);
        expect.extend([10, 0, 0, 2]);
        assert_eq!(request().emit()[..], expect);
        assert_eq!(ArpPacket::parse(&expect), Ok(request()));
    }

    #[test]
    fn other_kinds_are_refused() {
        let good = request().emit();
        let with = |at: usize, value| {
            let mut bytes = good;
            bytes[at] = value;
            ArpPacket::parse(&bytes)
        };
        assert_eq!(with(1, 1), Err(ArpError::HardwareType(1)));
        assert_eq!(with(2, 9), Err(ArpError::ProtocolType(0x0900)));
        assert_eq!(with(4, 6), Err(ArpError::HardwareLength(6)));
        assert_eq!(with(5, 16), Err(ArpError::ProtocolLength(16)));
        for len in 0..56 {
            assert_eq!(
                ArpPacket::parse(&good[..len]),
                Err(ArpError::Truncated(len))
            );
        }
    }
}
