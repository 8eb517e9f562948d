//! Multicast GIDs of IP groups (RFC 4391 section 4): `ff 1S signature(16) P_Key(16) group(80)`.

use crate::id::{Gid, PKey};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Scope of a multicast GID, 4 bits, with the meanings of RFC 4291 section 2.7. All groups of an interface have that of its broadcast group; the
/// scope of an IPv6 group does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(pub u8);

impl Scope {
    /// The local subnet, the default everywhere.
    pub const LINK_LOCAL: Self = Self(2);
    /// The site.
    pub const SITE_LOCAL: Self = Self(5);
    /// The organization.
    pub const ORGANIZATION_LOCAL: Self = Self(8);
    /// Unlimited.
    pub const GLOBAL: Self = Self(0xe);
}

impl Default for Scope {
    fn default() -> Self {
        Self::LINK_LOCAL
    }
}

/// Which protocol's groups an MGID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signature {
    /// 0x401B
    Ipv4,
    /// 0x601B
    Ipv6,
}

/// An IPoIB multicast GID in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpoibMgid {
    /// Protocol.
    pub signature: Signature,
    /// Scope.
    pub scope: Scope,
    /// Partition, with the full-member bit in all MGIDs that follow the RFC.
    pub p_key: PKey,
    /// The lower 80 bits: of an IPv4 group its lower 28 bits, of an IPv6 group its lower 80, of the broadcast group 0xffffffff.
    pub group: u128,
}

const GROUP_MASK: u128 = (1 << 80) - 1;
const BROADCAST_GROUP: u128 = 0xffff_ffff;

impl IpoibMgid {
    /// Takes an MGID apart; `None` if it is not of an IPv4 or IPv6 group: other signature, or not a transient multicast GID.
    pub fn parse(gid: Gid) -> Option<Self> {
        let [0xff, flags_scope, 0x40 | 0x60, 0x1b, p1, p0, ..] = gid.0 else {
            return None;
        };
        let signature = if gid.0[2] == 0x40 {
            Signature::Ipv4
        } else {
            Signature::Ipv6
        };
        (flags_scope >> 4 == 1).then(|| Self {
            signature,
            scope: Scope(flags_scope & 0xf),
            p_key: PKey(u16::from_be_bytes([p1, p0])),
            group: u128::from_be_bytes(gid.0) & GROUP_MASK,
        })
    }

    /// Puts the MGID together.
    pub const fn gid(&self) -> Gid {
        let signature: u128 = match self.signature {
            Signature::Ipv4 => 0x401b,
            Signature::Ipv6 => 0x601b,
        };
        let top = 0xff10 | (self.scope.0 & 0xf) as u128;
        Gid(
            (top << 112 | signature << 96 | (self.p_key.0 as u128) << 80 | self.group & GROUP_MASK)
                .to_be_bytes(),
        )
    }

    /// The broadcast group of its partition?
    pub fn is_broadcast(&self) -> bool {
        self.signature == Signature::Ipv4 && self.group == BROADCAST_GROUP
    }

    /// The IPv4 group; 255.255.255.255 for the broadcast group. `None` for IPv6 and for groups that no IPv4 group maps to.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        match self.signature {
            Signature::Ipv4 if self.group == BROADCAST_GROUP => Some(Ipv4Addr::BROADCAST),
            Signature::Ipv4 if self.group >> 28 == 0 => {
                Some(Ipv4Addr::from(0xe000_0000 | self.group as u32))
            }
            _ => None,
        }
    }

    /// The IPv6 group in scope `ff02`, since the mapping loses flags, scope and the 32 bits after them. `None` for IPv4.
    pub fn ipv6_link_local(&self) -> Option<Ipv6Addr> {
        (self.signature == Signature::Ipv6).then(|| Ipv6Addr::from(0xff02 << 112 | self.group))
    }
}

/// The broadcast group of a partition: ARP, limited and subnet broadcasts, and the parameters of all other groups.
pub const fn broadcast_gid(p_key: PKey, scope: Scope) -> Gid {
    IpoibMgid {
        signature: Signature::Ipv4,
        scope,
        p_key: p_key.full(),
        group: BROADCAST_GROUP,
    }
    .gid()
}

/// The MGID of an IPv4 group: its lower 28 bits. 255.255.255.255 has the broadcast group.
pub fn ipv4_multicast_gid(group: Ipv4Addr, p_key: PKey, scope: Scope) -> Gid {
    if group.is_broadcast() {
        return broadcast_gid(p_key, scope);
    }
    let group = u128::from(group.to_bits() & 0x0fff_ffff);
    IpoibMgid {
        signature: Signature::Ipv4,
        scope,
        p_key: p_key.full(),
        group,
    }
    .gid()
}

/// The MGID of an IPv6 group: its lower 80 bits.
pub fn ipv6_multicast_gid(group: Ipv6Addr, p_key: PKey, scope: Scope) -> Gid {
    IpoibMgid {
        signature: Signature::Ipv6,
        scope,
        p_key: p_key.full(),
        group: group.to_bits() & GROUP_MASK,
    }
    .gid()
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PKey = PKey(0x8001);

    #[test]
    fn mapping() {
        let text = |gid: Gid| gid.to_string();
        let v4 = |a: &str| text(ipv4_multicast_gid(a.parse().unwrap(), P, Scope::LINK_LOCAL));
        let v6 = |a: &str| text(ipv6_multicast_gid(a.parse().unwrap(), P, Scope::LINK_LOCAL));
        assert_eq!(
            text(broadcast_gid(PKey(1), Scope::LINK_LOCAL)),
            "ff12:401b:8001::ffff:ffff"
        );
        assert_eq!(
            text(broadcast_gid(P, Scope::SITE_LOCAL)),
            "ff15:401b:8001::ffff:ffff"
        );
        assert_eq!(v4("255.255.255.255"), "ff12:401b:8001::ffff:ffff");
        assert_eq!(v4("224.0.0.1"), "ff12:401b:8001::1");
        assert_eq!(v4("239.1.2.3"), "ff12:401b:8001::f01:203");
        assert_eq!(v4("224.0.0.22"), "ff12:401b:8001::16");
        assert_eq!(v6("ff02::1"), "ff12:601b:8001::1");
        assert_eq!(v6("ff02::16"), "ff12:601b:8001::16");
        assert_eq!(v6("ff02::1:ff01:a0b1"), "ff12:601b:8001::1:ff01:a0b1");
        assert_eq!(v6("ff05:1:2:3:4:5:6:7"), "ff12:601b:8001:3:4:5:6:7");
    }

    #[test]
    fn and_back() {
        let mgid = |text: &str| IpoibMgid::parse(Gid(text.parse::<Ipv6Addr>().unwrap().octets()));
        let broadcast = mgid("ff15:401b:8001::ffff:ffff").unwrap();
        assert!(broadcast.is_broadcast());
        assert_eq!(
            (broadcast.scope, broadcast.p_key, broadcast.ipv4()),
            (Scope::SITE_LOCAL, P, Some(Ipv4Addr::BROADCAST))
        );
        assert_eq!(
            mgid("ff12:401b:8001::f01:203").unwrap().ipv4(),
            Some(Ipv4Addr::new(239, 1, 2, 3))
        );
        assert_eq!(mgid("ff12:401b:8001::1000:0").unwrap().ipv4(), None);
        let nodes = mgid("ff12:601b:ffff::1").unwrap();
        assert_eq!(
            (nodes.ipv4(), nodes.ipv6_link_local()),
            (None, Some("ff02::1".parse().unwrap()))
        );
        for other in [
            "ff12:a01b:ffff::1",
            "ff02:601b:ffff::1",
            "fe80::1",
            "ff12:4001:ffff::1",
        ] {
            assert_eq!(mgid(other), None, "{other}");
        }
    }
}
