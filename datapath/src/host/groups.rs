//! Multicast groups that programs joined on an interface: from notifications and from /proc.
//!
//! Linux 6.14 and later notify of IPv4 and IPv6 groups by rtnetlink (`inet_ifmcaddr_notify`); the
//! crate netlink-packet-route does not know these messages. /proc/net/igmp and igmp6 are as old as
//! the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::NlasIterator;

/// `RTNLGRP_IPV4_MCADDR` and `RTNLGRP_IPV6_MCADDR` (Linux `rtnetlink.h`).
pub(super) const NOTIFICATION_GROUPS: [u32; 2] = [37, 38];
/// `RTM_NEWMULTICAST`.
pub(super) const NEW: u16 = 56;
/// `RTM_DELMULTICAST`.
pub(super) const DEL: u16 = 57;

/// `IFA_MULTICAST` (Linux `if_addr.h`).
const IFA_MULTICAST: u16 = 7;
/// Length of `struct ifaddrmsg` in bytes.
const IFADDRMSG_LEN: usize = 8;

/// The interface index and the group of a [`NEW`] or [`DEL`] message's payload: `struct ifaddrmsg`
/// (family, prefix length, flags, scope, 32-bit index) and attributes.
pub(super) fn parse_notification(payload: &[u8]) -> Option<(u32, IpAddr)> {
    let (header, attributes) = payload.split_at_checked(IFADDRMSG_LEN)?;
    let index = u32::from_ne_bytes(header[4..8].try_into().ok()?);
    let group = NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|nla| nla.kind() == IFA_MULTICAST)?;
    let group = match group.value().len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(group.value()).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(group.value()).ok()?),
        _ => return None,
    };
    Some((index, group))
}

/// All groups of interface `index`, of the calling thread's network namespace.
pub(super) fn read_proc(index: u32) -> io::Result<Vec<IpAddr>> {
    let read = |name| match std::fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
        // No multicast, or no IPv6, in this kernel.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    };
    let mut groups = parse_igmp(&read("igmp")?, index);
    groups.extend(parse_igmp6(&read("igmp6")?, index));
    Ok(groups)
}

/// /proc/net/igmp: a line `INDEX DEVICE : COUNT QUERIER` without indent for each interface, below it
/// its groups as lines `\t\t\t\tGROUP USERS ..`, a group being the hexadecimal value of the big-endian
/// address read as a number of the machine (`igmp_mc_seq_show`).
fn parse_igmp(text: &str, index: u32) -> Vec<IpAddr> {
    let mut ours = false;
    let mut groups = Vec::new();
    for line in text.lines().skip(1) {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !line.starts_with(char::is_whitespace) {
            ours = first.parse() == Ok(index);
        } else if ours && let Ok(group) = u32::from_str_radix(first, 16) {
            groups.push(Ipv4Addr::from(group.to_ne_bytes()).into());
        }
    }
    groups
}

/// /proc/net/igmp6: lines `INDEX DEVICE GROUP USERS FLAGS TIMER` (`igmp6_mc_seq_show`).
fn parse_igmp6(text: &str, index: u32) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()?.parse() == Ok(index)).then_some(())?;
            let group = words.nth(1).filter(|word| word.len() == 32)?;
            Some(Ipv6Addr::from(u128::from_str_radix(group, 16).ok()?).into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn proc_igmp() {
        // As the kernel prints on a little-endian machine; the numbers are those of this machine.
        let hex = |a: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(a));
        let text = format!(
            "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
             1\tlo        :     1      V3\n\t\t\t\t{all}     1 0:00000000\t\t0\n\
             2\tib0       :     2      V3\n\t\t\t\t{mdns}     1 0:00000000\t\t0\n\t\t\t\t{all}     1 0:00000000\t\t0\n\
             22\tib1       :     1      V3\n\t\t\t\t{all}     1 0:00000000\t\t0\n",
            all = hex([224, 0, 0, 1]),
            mdns = hex([224, 0, 0, 251]),
        );
        let expect: Vec<IpAddr> = vec![[224, 0, 0, 251].into(), [224, 0, 0, 1].into()];
        assert_eq!(parse_igmp(&text, 2), expect);
        assert!(parse_igmp(&text, 3).is_empty());
    }

    #[test]
    fn proc_igmp6() {
        let text = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
                    2    ib0             ff0200000000000000000001ff000001     1 00000004 0\n";
        assert_eq!(
            parse_igmp6(text, 2),
            ["ff02::1:ff00:1".parse::<IpAddr>().unwrap()]
        );
    }

    #[test]
    fn notification() {
        let mut payload = vec![2, 32, 0, 0];
        payload.extend(7u32.to_ne_bytes());
        for (kind, value) in [(6u16, [1, 1, 1, 1]), (IFA_MULTICAST, [239, 1, 2, 3])] {
            payload.extend(8u16.to_ne_bytes());
            payload.extend(kind.to_ne_bytes());
            payload.extend(value);
        }
        assert_eq!(
            parse_notification(&payload),
            Some((7, [239, 1, 2, 3].into()))
        );
        assert_eq!(parse_notification(&payload[..16]), None);
        assert_eq!(parse_notification(&[]), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(payload in prop::collection::vec(any::<u8>(), 0..64), text in "[0-9a-fA-F \t\n:]{0,120}") {
            let _ = parse_notification(&payload);
            let _ = (parse_igmp(&text, 1), parse_igmp6(&text, 1));
            let _ = super::super::netlink::split(&payload).count();
        }
    }
}
