//! Identifiers of the InfiniBand Architecture as types, so that a LID is never taken for a QPN.

use crate::bits::{Field, newtype_field};
use std::fmt;
use std::net::Ipv6Addr;

/// EUI-64 of a node, port or system (IBA 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(pub u64);

/// Global identifier: a 64-bit subnet prefix and a port GUID, or a multicast group (IBA 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

/// Local identifier (IBA 4.1.3): 0 unset, 1..=0xBFFF unicast, 0xC000..=0xFFFE multicast, 0xFFFF permissive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lid(pub u16);

/// Queue pair number, 24 bits. 0: SMI, 1: GSI, 0xFFFFFF: multicast (IBA 3.5.10).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(pub u32);

/// Queue key of unreliable datagrams (IBA 10.2.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QKey(pub u32);

/// Partition key; bit 15 set: full member (IBA 10.9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PKey(pub u16);

/// Packet sequence number, 24 bits (IBA 9.2.8).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Psn(pub u32);

/// Service level, 0..=15 (IBA 7.6.5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ServiceLevel(pub u8);

/// MTU code of PortInfo, PathRecord, MCMemberRecord: 1 = 256 bytes ... 5 = 4096; other codes are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MtuCode(pub u8);

/// Static rate code of PathRecord and MCMemberRecord.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RateCode(pub u8);

newtype_field!(
    Guid(u64),
    Lid(u16),
    Qpn(u32),
    QKey(u32),
    PKey(u16),
    Psn(u32),
    ServiceLevel(u8),
    MtuCode(u8),
    RateCode(u8)
);

impl Field for Gid {
    fn get(bytes: &[u8], offset: usize, width: usize) -> Self {
        Gid(Field::get(bytes, offset, width))
    }
    fn put(&self, bytes: &mut [u8], offset: usize, width: usize) {
        self.0.put(bytes, offset, width)
    }
}

impl Gid {
    /// The link-local subnet prefix fe80::/64, a port's prefix until the subnet manager sets another.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Puts a GID together; `prefix` is the upper half as a number.
    pub const fn new(prefix: u64, guid: Guid) -> Self {
        Gid((((prefix as u128) << 64) | guid.0 as u128).to_be_bytes())
    }
    /// The upper 64 bits.
    pub const fn prefix(&self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }
    /// The lower 64 bits: the port GUID of a unicast GID.
    pub const fn guid(&self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }
    /// True for ff00::/8.
    pub const fn is_multicast(&self) -> bool {
        self.0[0] == 0xff
    }
}

impl Lid {
    /// Not assigned yet.
    pub const UNSET: Lid = Lid(0);
    /// Source or destination of directed-route SMPs outside their LID-routed parts.
    pub const PERMISSIVE: Lid = Lid(0xffff);
    /// The first multicast LID.
    pub const MULTICAST_BASE: Lid = Lid(0xc000);

    /// True for 1..=0xBFFF.
    pub const fn is_unicast(self) -> bool {
        self.0 != 0 && self.0 < 0xc000
    }
    /// True for 0xC000..=0xFFFE.
    pub const fn is_multicast(self) -> bool {
        self.0 >= 0xc000 && self.0 != 0xffff
    }
}

impl Qpn {
    /// Subnet management interface.
    pub const SMI: Qpn = Qpn(0);
    /// General services interface.
    pub const GSI: Qpn = Qpn(1);
    /// Destination QP of multicast packets.
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// The low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Qpn(n & 0xff_ffff)
    }
}

impl QKey {
    /// Q_Key of QP1 (IBA 10.2.4).
    pub const GSI: QKey = QKey(0x8001_0000);
}

impl PKey {
    /// The default partition, full membership.
    pub const DEFAULT_FULL: PKey = PKey(0xffff);
    /// The default partition, limited membership.
    pub const DEFAULT_LIMITED: PKey = PKey(0x7fff);

    /// The partition number without the membership bit.
    pub const fn base(self) -> u16 {
        self.0 & 0x7fff
    }
    /// Full member?
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }
    /// The same partition with the full-member bit: the form in IPoIB MGIDs (RFC 4391 section 4).
    pub const fn full(self) -> Self {
        PKey(self.0 | 0x8000)
    }
    /// May a holder of `self` talk to a holder of `other`? Same non-zero base and at least one full member (IBA 10.9.3).
    pub const fn matches(self, other: PKey) -> bool {
        self.base() == other.base() && self.base() != 0 && (self.is_full() || other.is_full())
    }
}

impl Psn {
    /// The low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Psn(n & 0xff_ffff)
    }
    /// `n` later, modulo 2^24.
    pub const fn add(self, n: u32) -> Self {
        Psn(self.0.wrapping_add(n) & 0xff_ffff)
    }
    /// How far `self` is after `other`, as a signed 24-bit number.
    pub const fn diff(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl MtuCode {
    /// 2048 bytes, the usual group MTU.
    pub const MTU_2048: MtuCode = MtuCode(4);
    /// 4096 bytes.
    pub const MTU_4096: MtuCode = MtuCode(5);

    /// Payload bytes, `None` for a code the standard does not define.
    pub const fn bytes(self) -> Option<u16> {
        match self.0 {
            n @ 1..=5 => Some(128 << n),
            _ => None,
        }
    }
    /// The code for exactly `bytes`.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        Some(MtuCode(match bytes {
            256 => 1,
            512 => 2,
            1024 => 3,
            2048 => 4,
            4096 => 5,
            _ => return None,
        }))
    }
}

impl RateCode {
    /// 10 Gbit/s (4x SDR).
    pub const GBPS_10: RateCode = RateCode(3);

    /// All that the standard defines.
    pub fn all() -> impl Iterator<Item = RateCode> {
        (0..64).map(RateCode).filter(|code| code.mbps().is_some())
    }

    /// Megabits per second of signalling rate as PathRecord names it; `None` for an undefined code.
    pub const fn mbps(self) -> Option<u32> {
        Some(match self.0 {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_000,
            12 => 56_000,
            13 => 112_000,
            14 => 168_000,
            15 => 25_000,
            16 => 100_000,
            17 => 200_000,
            18 => 300_000,
            19 => 28_000,
            20 => 50_000,
            21 => 400_000,
            22 => 600_000,
            23 => 800_000,
            24 => 1_200_000,
            25 => 1_600_000,
            _ => return None,
        })
    }
}

macro_rules! debug_as_display {
    ($($t:ty),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }
    )*};
}
debug_as_display!(Guid, Gid, Lid, Qpn, QKey, PKey, Psn, MtuCode, RateCode);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}
impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0xc000 {
            write!(f, "{}", self.0)
        } else {
            write!(f, "0x{:04x}", self.0)
        }
    }
}
impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}
impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}
impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}
impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Display for MtuCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(n) => write!(f, "{n}"),
            None => write!(f, "code {}", self.0),
        }
    }
}
impl fmt::Display for RateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mbps() {
            Some(n) => write!(f, "{} Gbit/s", f64::from(n) / 1000.0),
            None => write!(f, "code {}", self.0),
        }
    }
}
