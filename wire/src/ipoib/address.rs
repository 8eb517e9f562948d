//! The 20-byte link-layer address (RFC 4391 section 9.1.1, RFC 4755 section 3.1).

use crate::id::{Gid, Qpn};
use std::fmt;
use std::str::FromStr;

/// Flags, QPN and GID of an interface or, with QPN 0xffffff and an MGID, of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkAddress {
    /// Flags as received, unknown ones included; see [`LinkAddress::known_flags`].
    pub flags: u8,
    /// UD queue pair.
    pub qpn: Qpn,
    /// Port GID.
    pub gid: Gid,
}

/// Text that is no link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a link address is 20 bytes in hexadecimal with colons, as in 80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:01:a0:b1"
)]
pub struct ParseLinkAddressError;

impl LinkAddress {
    /// Length on the wire, bytes.
    pub const LEN: usize = 20;
    /// The interface accepts reliable connections.
    pub const FLAG_RC: u8 = 0x80;
    /// The interface accepts unreliable connections.
    pub const FLAG_UC: u8 = 0x40;

    /// Reads an address.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let &[flags, q2, q1, q0, ref gid @ ..] = bytes;
        Self {
            flags,
            qpn: Qpn(u32::from_be_bytes([0, q2, q1, q0])),
            gid: Gid(*gid),
        }
    }

    /// Reads an address from the front of `bytes`; `None` for fewer than [`Self::LEN`].
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(Self::from_bytes)
    }

    /// The address on the wire; of the QPN the lower 24 bits.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4]
            .copy_from_slice(&(u32::from(self.flags) << 24 | self.qpn.0 & 0xff_ffff).to_be_bytes());
        bytes[4..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// The address of a multicast group (RFC 4391 section 9.1.1).
    pub const fn multicast(mgid: Gid) -> Self {
        Self {
            flags: 0,
            qpn: Qpn::MULTICAST,
            gid: mgid,
        }
    }

    /// The flags RFC 4755 defines. Others (RSS builds of OFED set 0x20) say nothing to us.
    pub const fn known_flags(&self) -> u8 {
        self.flags & (Self::FLAG_RC | Self::FLAG_UC)
    }
    /// Does it accept reliable connections?
    pub const fn accepts_rc(&self) -> bool {
        self.flags & Self::FLAG_RC != 0
    }
    /// Does it accept unreliable connections?
    pub const fn accepts_uc(&self) -> bool {
        self.flags & Self::FLAG_UC != 0
    }
    /// All zero: the target of an ARP request.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
    /// The same queue pair of the same port, whatever the flags say: they change with the peer's mode, the destination does not.
    pub fn same_destination(&self, other: &Self) -> bool {
        self.qpn == other.qpn && self.gid == other.gid
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.to_bytes().iter().enumerate() {
            write!(f, "{}{byte:02x}", if n == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl FromStr for LinkAddress {
    type Err = ParseLinkAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; Self::LEN];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts
                .next()
                .filter(|p| matches!(p.len(), 1 | 2) && !p.starts_with('+'))
                .ok_or(ParseLinkAddressError)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseLinkAddressError)?;
        }
        if parts.next().is_some() {
            Err(ParseLinkAddressError)
        } else {
            Ok(Self::from_bytes(&bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Guid;

    const TEXT: &str = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:01:a0:b1";

    #[test]
    fn layout_and_text() {
        let address = LinkAddress {
            flags: 0x80,
            qpn: Qpn(0x48),
            gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0001_a0b1)),
        };
        assert_eq!(address.to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(address));
        assert_eq!(LinkAddress::from_bytes(&address.to_bytes()), address);
        assert!(address.accepts_rc() && !address.accepts_uc());
        assert_eq!(LinkAddress::parse(&[0; 19]), None);
    }

    #[test]
    fn unknown_flags_are_kept_but_mean_nothing() {
        let tss = LinkAddress {
            flags: 0xa0,
            ..LinkAddress::default()
        };
        assert_eq!(tss.to_bytes()[0], 0xa0);
        assert_eq!(tss.known_flags(), LinkAddress::FLAG_RC);
        assert!(tss.same_destination(&LinkAddress::default()) && tss != LinkAddress::default());
    }

    #[test]
    fn bad_text_is_refused() {
        for text in [
            "",
            ":",
            &TEXT[3..],
            &format!("{TEXT}:00"),
            &TEXT.replace("48", "4g"),
            &TEXT.replace("48", "+8"),
            &TEXT.replace(":48", ":048"),
        ] {
            assert_eq!(
                text.parse::<LinkAddress>(),
                Err(ParseLinkAddressError),
                "{text}"
            );
        }
    }
}
