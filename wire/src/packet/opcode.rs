//! BTH operation codes and the extended headers they bring (IBA 9.2.1, table 35).

use std::fmt;

/// BTH operation code: transport in the upper 3 bits, operation in the lower 5 (IBA 9.2.1, table 35).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Opcode(pub u8);

/// A set of extended transport headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HeaderSet(u8);

impl HeaderSet {
    /// Nothing after the BTH.
    pub const NONE: Self = Self(0);
    /// Datagram, 8 bytes.
    pub const DETH: Self = Self(1);
    /// RDMA, 16 bytes.
    pub const RETH: Self = Self(2);
    /// ATOMIC request, 28 bytes.
    pub const ATOMIC: Self = Self(4);
    /// Acknowledge, 4 bytes.
    pub const AETH: Self = Self(8);
    /// ATOMIC acknowledge, 8 bytes.
    pub const ATOMIC_ACK: Self = Self(16);
    /// Immediate data, 4 bytes.
    pub const IMMEDIATE: Self = Self(32);
    /// Invalidate, 4 bytes.
    pub const INVALIDATE: Self = Self(64);

    /// Both sets together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Is all of `other` in this set?
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// Bytes on the wire.
    pub const fn wire_len(self) -> usize {
        const LENGTHS: [usize; 7] = [8, 16, 28, 4, 8, 4, 4];
        let mut len = 0;
        let mut bit = 0;
        while bit < LENGTHS.len() {
            if self.0 >> bit & 1 != 0 {
                len += LENGTHS[bit];
            }
            bit += 1;
        }
        len
    }
}

macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $code:literal: $($header:ident)|+;)*) => {
        impl Opcode {
            $($(#[$meta])* #[doc = concat!("Code ", stringify!($code), ".")] pub const $name: Opcode = Opcode($code);)*

            /// All codes known here.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// The standard's name in capitals; `None` for a code not known here.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// The extended headers after the BTH; none for a code not known here.
            pub const fn headers(self) -> HeaderSet {
                match self.0 {
                    $($code => HeaderSet::NONE$(.with(HeaderSet::$header))+,)*
                    _ => HeaderSet::NONE,
                }
            }
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00: NONE;
    RC_SEND_MIDDLE = 0x01: NONE;
    RC_SEND_LAST = 0x02: NONE;
    RC_SEND_LAST_IMM = 0x03: IMMEDIATE;
    RC_SEND_ONLY = 0x04: NONE;
    RC_SEND_ONLY_IMM = 0x05: IMMEDIATE;
    RC_RDMA_WRITE_FIRST = 0x06: RETH;
    RC_RDMA_WRITE_MIDDLE = 0x07: NONE;
    RC_RDMA_WRITE_LAST = 0x08: NONE;
    RC_RDMA_WRITE_LAST_IMM = 0x09: IMMEDIATE;
    RC_RDMA_WRITE_ONLY = 0x0a: RETH;
    RC_RDMA_WRITE_ONLY_IMM = 0x0b: RETH | IMMEDIATE;
    RC_RDMA_READ_REQUEST = 0x0c: RETH;
    RC_RDMA_READ_RESPONSE_FIRST = 0x0d: AETH;
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0e: NONE;
    RC_RDMA_READ_RESPONSE_LAST = 0x0f: AETH;
    RC_RDMA_READ_RESPONSE_ONLY = 0x10: AETH;
    RC_ACKNOWLEDGE = 0x11: AETH;
    RC_ATOMIC_ACK = 0x12: AETH | ATOMIC_ACK;
    RC_COMPARE_SWAP = 0x13: ATOMIC;
    RC_FETCH_ADD = 0x14: ATOMIC;
    RC_SEND_LAST_INV = 0x16: INVALIDATE;
    RC_SEND_ONLY_INV = 0x17: INVALIDATE;
    UC_SEND_FIRST = 0x20: NONE;
    UC_SEND_MIDDLE = 0x21: NONE;
    UC_SEND_LAST = 0x22: NONE;
    UC_SEND_LAST_IMM = 0x23: IMMEDIATE;
    UC_SEND_ONLY = 0x24: NONE;
    UC_SEND_ONLY_IMM = 0x25: IMMEDIATE;
    UC_RDMA_WRITE_FIRST = 0x26: RETH;
    UC_RDMA_WRITE_MIDDLE = 0x27: NONE;
    UC_RDMA_WRITE_LAST = 0x28: NONE;
    UC_RDMA_WRITE_LAST_IMM = 0x29: IMMEDIATE;
    UC_RDMA_WRITE_ONLY = 0x2a: RETH;
    UC_RDMA_WRITE_ONLY_IMM = 0x2b: RETH | IMMEDIATE;
    UD_SEND_ONLY = 0x64: DETH;
    UD_SEND_ONLY_IMM = 0x65: DETH | IMMEDIATE;
    /// Congestion notification packet (IBA annex A10).
    CNP = 0x81: NONE;
}

impl Opcode {
    /// Unreliable datagram?
    pub const fn is_ud(self) -> bool {
        self.0 >> 5 == 3
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "opcode 0x{:02x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lengths_follow_the_table() {
        let expect = |op: Opcode, len| assert_eq!(op.headers().wire_len(), len, "{op}");
        expect(Opcode::RC_SEND_FIRST, 0);
        expect(Opcode::RC_RDMA_WRITE_ONLY_IMM, 20);
        expect(Opcode::RC_ACKNOWLEDGE, 4);
        expect(Opcode::RC_ATOMIC_ACK, 12);
        expect(Opcode::RC_COMPARE_SWAP, 28);
        expect(Opcode::RC_SEND_ONLY_INV, 4);
        expect(Opcode::UC_RDMA_WRITE_FIRST, 16);
        expect(Opcode::UD_SEND_ONLY, 8);
        expect(Opcode::UD_SEND_ONLY_IMM, 12);
        expect(Opcode(0x15), 0);
        assert_eq!(Opcode::ALL.len(), 23 + 12 + 2 + 1);
    }

    #[test]
    fn names() {
        assert_eq!(Opcode::UD_SEND_ONLY.to_string(), "UD_SEND_ONLY");
        assert_eq!(format!("{:?}", Opcode(0x15)), "opcode 0x15");
    }
}
