//! Networks in CIDR notation, for `--allow`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP network. A plain address is a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

/// Why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// What stands before the slash is no IP address.
    #[error("\"{0}\" is no IP address; write a network as 192.0.2.0/24 or 2001:db8::/32")]
    Address(String),
    /// What stands behind the slash is no prefix length.
    #[error("\"{text}\" is no prefix length; it is a number from 0 to {max} here")]
    Prefix {
        /// As written.
        text: String,
        /// 32 or 128.
        max: u8,
    },
    /// The address has bits beyond the prefix.
    #[error(
        "{address}/{prefix} has bits set beyond its prefix; did you mean {network}/{prefix}, or {address} alone?"
    )]
    HostBits {
        /// As written.
        address: IpAddr,
        /// As written.
        prefix: u8,
        /// The address without these bits.
        network: IpAddr,
    },
}

impl Cidr {
    /// Is `address` in the network? An IPv4 address in IPv6 form counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network.is_ipv4() && mask(address, self.prefix) == self.network
    }
}

fn mask(address: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(a) => {
            let keep = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            Ipv4Addr::from_bits(a.to_bits() & keep).into()
        }
        IpAddr::V6(a) => {
            let keep = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            Ipv6Addr::from_bits(a.to_bits() & keep).into()
        }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| CidrError::Address(address.to_owned()))?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => max,
            Some(text) => text
                .parse()
                .ok()
                .filter(|&n| n <= max && text.bytes().all(|b| b.is_ascii_digit()))
                .ok_or_else(|| CidrError::Prefix {
                    text: text.to_owned(),
                    max,
                })?,
        };
        let network = mask(address, prefix);
        if network != address {
            return Err(CidrError::HostBits {
                address,
                prefix,
                network,
            });
        }
        Ok(Self { network, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn contains() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "11.0.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
        ] {
            assert!(cidr(network).contains(inside.parse().unwrap()), "{network}");
            assert!(
                !cidr(network).contains(outside.parse().unwrap()),
                "{network}"
            );
            assert_eq!(cidr(&cidr(network).to_string()), cidr(network));
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let error = |text: &str| text.parse::<Cidr>().unwrap_err().to_string();
        assert!(error("example/8").contains("\"example\""));
        assert!(error("").contains("no IP address"));
        assert!(error("10.0.0.0/33").contains("0 to 32"));
        assert!(error("10.0.0.0/+8").contains("\"+8\""));
        assert!(error("10.0.0.0/").contains("\"\""));
        assert!(error("::/129").contains("0 to 128"));
        assert!(error("10.1.2.3/8").contains("did you mean 10.0.0.0/8, or 10.1.2.3 alone?"));
    }
}
