//! Flow control packets, the only link packets (IBA 7.9.4).

use super::crc::vcrc;

/// A flow control packet: 6 bytes on the link, and the only thing of that length there.
///
/// Over UDP links it says that the port is there: [`FlowControl::INIT`] while Down or Init, [`FlowControl::NORMAL`] when Armed or Active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControl {
    /// Operation, 4 bits.
    pub op: u8,
    /// Flow control total blocks sent, 12 bits.
    pub fctbs: u16,
    /// Virtual lane, 4 bits.
    pub vl: u8,
    /// Flow control credit limit, 12 bits.
    pub fccl: u16,
}

/// Why 6 bytes are no flow control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowControlError {
    /// Not 6 bytes.
    #[error("a flow control packet has 6 bytes, not {0}")]
    Length(usize),
    /// The LPCRC does not match.
    #[error("link packet CRC is 0x{found:04x} where 0x{computed:04x} is right")]
    BadLpcrc {
        /// In the packet.
        found: u16,
        /// Over its first four bytes.
        computed: u16,
    },
}

impl FlowControl {
    /// Length on the wire, bytes.
    pub const LEN: usize = 6;
    /// Operation of a port that is Armed or Active.
    pub const NORMAL: u8 = 0;
    /// Operation of a port that is Down or Init.
    pub const INIT: u8 = 1;

    /// What a port without credit accounting sends: VL 0, half the credit range.
    pub const fn hello(op: u8) -> Self {
        Self {
            op,
            fctbs: 0,
            vl: 0,
            fccl: 0x800,
        }
    }

    /// Reads a packet and checks its LPCRC.
    pub fn parse(bytes: &[u8]) -> Result<Self, FlowControlError> {
        let &[a, b, c, d, low, high] = bytes else {
            return Err(FlowControlError::Length(bytes.len()));
        };
        let found = u16::from_le_bytes([low, high]);
        let computed = vcrc(&[a, b, c, d]);
        if found != computed {
            return Err(FlowControlError::BadLpcrc { found, computed });
        }
        let twelve = |high: u8, low| u16::from_be_bytes([high & 0xf, low]);
        Ok(Self {
            op: a >> 4,
            fctbs: twelve(a, b),
            vl: c >> 4,
            fccl: twelve(c, d),
        })
    }

    /// Writes the packet with its LPCRC.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [a, b] = (u16::from(self.op) << 12 | self.fctbs & 0xfff).to_be_bytes();
        let [c, d] = (u16::from(self.vl) << 12 | self.fccl & 0xfff).to_be_bytes();
        let [low, high] = vcrc(&[a, b, c, d]).to_le_bytes();
        [a, b, c, d, low, high]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let packet = FlowControl {
            op: 1,
            fctbs: 0x234,
            vl: 5,
            fccl: 0x678,
        };
        let bytes = packet.emit();
        assert_eq!(bytes[..4], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!(FlowControl::parse(&bytes), Ok(packet));
        assert_eq!(
            FlowControl::hello(FlowControl::INIT).emit()[..4],
            [0x10, 0, 0x08, 0]
        );
    }

    #[test]
    fn every_bit_is_covered() {
        let bytes = FlowControl::hello(FlowControl::NORMAL).emit();
        for bit in 0..48 {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(
                    FlowControl::parse(&wrong),
                    Err(FlowControlError::BadLpcrc { .. })
                ),
                "bit {bit}"
            );
        }
        assert_eq!(
            FlowControl::parse(&bytes[..5]),
            Err(FlowControlError::Length(5))
        );
    }
}
