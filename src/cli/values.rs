//! Values of options, arguments and settings: how they are written.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use wire::{Guid, PKey, Qpn};

/// Which whole numbers may stand in a place, what they count there, and an example: what errors say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    least: u64,
    most: u64,
    what: &'static str,
    example: u64,
}

impl Numbers {
    /// Largest IP packet of an interface.
    pub const MTU: Numbers = Numbers::new(72, 65_520, "bytes", 2044);
    /// `retry_count` and `rnr_retry` of a connection (IBA 9.7.6.1.3: 3 bits).
    pub const RETRIES: Numbers = Numbers::new(0, 7, "times", 7);

    /// From `least` to `most`, both included.
    pub const fn new(least: u64, most: u64, what: &'static str, example: u64) -> Numbers {
        Numbers {
            least,
            most,
            what,
            example,
        }
    }

    /// The largest.
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// Is it one of them?
    pub fn contains(&self, n: u64) -> bool {
        (self.least..=self.most).contains(&n)
    }

    /// Reads one, of a type that holds all of them.
    pub fn parser<T: TryFrom<u64>>(
        self,
    ) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
        move |text| {
            let number = text.parse().ok().filter(|n| self.contains(*n));
            number
                .and_then(|n| T::try_from(n).ok())
                .ok_or_else(|| format!("expected {self}"))
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Numbers {
            least,
            most,
            what,
            example,
        } = self;
        write!(
            f,
            "a whole number from {least} to {most} ({what}), such as {example}"
        )
    }
}

/// `udp://ADDR:PORT`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpUrl(pub SocketAddr);

impl FromStr for UdpUrl {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let address = s.strip_prefix("udp://").ok_or_else(|| {
            format!("{s:?} is not of the form udp://ADDR:PORT, such as udp://127.0.0.1:7700")
        })?;
        address.parse().map(UdpUrl).map_err(|_| {
            format!("{address:?} is not an address and port; write the address in numbers, such as 127.0.0.1:7700 or [::1]:7700")
        })
    }
}

impl fmt::Display for UdpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp://{}", self.0)
    }
}

/// An address with its prefix length: `10.77.0.1/24`, `fd77::1/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the on-link prefix.
    pub prefix: u8,
}

impl FromStr for InterfaceAddress {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = |what: &str| {
            format!(
                "{s:?} {what}; write address and prefix length, such as 10.77.0.1/24 or fd77::1/64"
            )
        };
        let (ip, prefix) = s
            .split_once('/')
            .ok_or_else(|| bad("has no prefix length"))?;
        let ip: IpAddr = ip.parse().map_err(|_| bad("is not an IP address"))?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        match prefix.parse() {
            Ok(prefix) if prefix <= longest => Ok(InterfaceAddress { ip, prefix }),
            _ => Err(bad("has a bad prefix length")),
        }
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

fn hex(s: &str) -> Option<u64> {
    let digits = s
        .strip_prefix("0x")
        .or_else(|| s.strip_prefix("0X"))
        .unwrap_or(s);
    let digits = digits.replace(':', "");
    (!digits.starts_with(['+', '-'])).then(|| u64::from_str_radix(&digits, 16).ok())?
}

/// A GUID as sysfs or ibstat print it: `0x0002c90300a00091`, `0002:c903:00a0:0091`.
pub fn parse_guid(s: &str) -> Result<Guid, String> {
    match hex(s) {
        Some(0) | None => Err(format!(
            "{s:?} is not a GUID: up to 16 hexadecimal digits, not all zero"
        )),
        Some(guid) => Ok(Guid(guid)),
    }
}

/// A P_Key in hexadecimal, with or without the full-member bit.
pub fn parse_pkey(s: &str) -> Result<PKey, String> {
    match hex(s).and_then(|n| u16::try_from(n).ok()) {
        Some(key) if key & 0x7fff != 0 => Ok(PKey(key)),
        _ => Err(format!(
            "{s:?} is not a P_Key: hexadecimal 0x0001 to 0xffff, but not 0x8000"
        )),
    }
}

/// A probability: a number from 0 to 1, or in per cent.
pub fn parse_probability(s: &str) -> Result<f64, String> {
    let p = match s.strip_suffix('%') {
        Some(s) => s.parse().map(|p: f64| p / 100.0),
        None => s.parse(),
    };
    p.ok()
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| format!("{s:?} is not a probability from 0 to 1, or from 0% to 100%"))
}

/// The upper half of a GID, as an IPv6 prefix or in hexadecimal.
pub fn parse_prefix(s: &str) -> Result<u64, String> {
    let prefix = match s.parse::<std::net::Ipv6Addr>() {
        Ok(ip) => {
            let [prefix, rest] = [64, 0].map(|shift| (ip.to_bits() >> shift) as u64);
            (rest == 0).then_some(prefix)
        }
        // A few digits are no prefix: `fe80` is meant to be fe80::.
        Err(_) => hex(s).filter(|prefix| prefix >> 60 != 0),
    };
    // Not multicast (IBA 4.1.1).
    prefix
        .filter(|prefix| *prefix != 0 && prefix >> 56 != 0xff)
        .ok_or_else(|| {
            format!("{s:?} is not a GID prefix, such as fec0:0:0:1:: or 0xfec0000000000001")
        })
}

/// Status of a MAD, in hexadecimal.
pub fn parse_status(s: &str) -> Result<u16, String> {
    let status = hex(s).and_then(|n| u16::try_from(n).ok());
    status.filter(|status| *status != 0).ok_or_else(|| {
        format!("{s:?} is not a status: hexadecimal 0x0001 to 0xffff, such as 0x0100")
    })
}

/// A queue pair number, decimal or 0x-hexadecimal.
pub fn parse_qpn(s: &str) -> Result<Qpn, String> {
    let number = if s.starts_with("0x") {
        hex(s)
    } else {
        s.parse().ok()
    };
    match number {
        Some(n @ 2..=0xff_fffe) => Ok(Qpn::new(n as u32)),
        _ => Err(format!(
            "{s:?} is not a queue pair number from 2 to 0xfffffe"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_may_be() {
        let read = Numbers::MTU.parser::<u32>();
        assert_eq!(read("2044"), Ok(2044));
        let words = "expected a whole number from 72 to 65520 (bytes), such as 2044";
        for bad in [
            "71",
            "65521",
            "-1",
            "big",
            "",
            "1e3",
            "99999999999999999999",
        ] {
            assert_eq!(read(bad), Err(words.into()), "{bad}");
        }
    }

    #[test]
    fn identifiers() {
        assert_eq!(
            parse_guid("0002:c903:00a0:0091"),
            Ok(Guid(0x2_c903_00a0_0091))
        );
        assert!(
            parse_guid("0").is_err() && parse_guid("xyz").is_err() && parse_guid("+1").is_err()
        );
        assert_eq!(parse_pkey("0x8001"), Ok(PKey(0x8001)));
        assert!(parse_pkey("0x8000").is_err() && parse_pkey("10000").is_err());
        assert_eq!(parse_qpn("0x48"), Ok(Qpn(0x48)));
        assert_eq!(parse_qpn("72"), Ok(Qpn(72)));
        assert!(parse_qpn("1").is_err() && parse_qpn("0xffffff").is_err());
        assert_eq!(parse_probability("2.5%"), Ok(0.025));
        assert_eq!(parse_probability("1"), Ok(1.0));
        for bad in ["1.1", "-0.1", "101%", "NaN", "x"] {
            assert!(parse_probability(bad).is_err(), "{bad}");
        }
        let prefix = Ok(0xfec0_0000_0000_0001);
        assert_eq!(parse_prefix("fec0:0:0:1::"), prefix);
        assert_eq!(parse_prefix("0xfec0000000000001"), prefix);
        for bad in ["fec0::1", "0", "ff12::", "x"] {
            assert!(parse_prefix(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_status("0x0300"), Ok(0x300));
        assert!(parse_status("0").is_err() && parse_status("10000").is_err());
        assert!(
            "127.0.0.1:1".parse::<UdpUrl>().is_err()
                && "udp://localhost:1".parse::<UdpUrl>().is_err()
        );
        assert_eq!(
            "udp://[::1]:7".parse::<UdpUrl>().map(|u| u.to_string()),
            Ok("udp://[::1]:7".into())
        );
    }
}
