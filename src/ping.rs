//! `ipoib ping`: echo requests over a fabric from a stack of the program's own.

use crate::cli::{InterfaceAddress, Ping};
use crate::node::{NodeConfig, random};
use crate::show;
use crate::signals::Signals;
use crate::stack::{Pinger, Stack};
use anyhow::{Context, bail};
use datapath::{InterfaceConfig, Mode};
use fabric::link::udp::UdpLink;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use wire::Guid;

/// How long the fabric may take until the interface is up.
const BRING_UP: Duration = Duration::from_secs(5);
/// How long replies are awaited after the last request.
const LINGER: Duration = Duration::from_secs(2);
/// How often signals are looked at while waiting for replies.
const GLANCE: Duration = Duration::from_millis(50);
/// Longest packet that goes as a datagram on most subnets, bytes.
const DATAGRAM: u32 = 2044;
/// Headers of IP and ICMP, bytes.
const HEADERS_V4: u32 = 28;
const HEADERS_V6: u32 = 48;

/// Pings until the count is reached or a signal; success if there was a reply.
///
/// # Errors
/// The fabric does not answer, the partition is refused, the packets are too long for the subnet.
pub fn run(args: Ping) -> anyhow::Result<ExitCode> {
    let seed = random();
    // EUI-64 with the local bit; another one in each run, so that two at a time do not meet.
    let guid = Guid(seed & !(0xff << 56) | 0x02 << 56);
    let (own, made_up) = match args.address {
        Some(address) => (address, ""),
        None => (
            made_up_address(args.ip, guid, seed),
            " (made up; --address chooses another)",
        ),
    };
    let headers = match args.ip {
        IpAddr::V4(_) => HEADERS_V4,
        IpAddr::V6(_) => HEADERS_V6,
    };
    let too_long = u32::from(args.size) + headers > DATAGRAM;
    let mode = args.mode.unwrap_or(match too_long {
        true => Mode::Connected,
        false => Mode::Datagram,
    });
    let config = NodeConfig {
        port_guid: guid,
        description: "ipoib ping".into(),
        interface: InterfaceConfig {
            name: "ping".into(),
            p_key: args.pkey,
            mode,
            ..InterfaceConfig::default()
        },
        max_packet: 0,
    };
    let signals = Signals::install()?;
    let stack = Stack::start(config, &[own])?;
    let link = UdpLink::connect(args.fabric.0, stack.node().sink())
        .with_context(|| format!("cannot connect to {}", args.fabric))?;
    stack.node().attach(link.clone());
    let result = wait_until_up(&stack, &link, &args, &signals).and_then(|up| {
        if !up {
            return Ok(ExitCode::FAILURE);
        }
        let most = stack.mtu().saturating_sub(headers);
        if u32::from(args.size) > most {
            let hint = match mode {
                Mode::Datagram => "; --mode connected takes more",
                Mode::Connected => "",
            };
            bail!(
                "--size {}: with an MTU of {} bytes in {mode} mode, at most {most} fit into one packet{hint}",
                args.size,
                stack.mtu()
            );
        }
        show::say(format_args!(
            "PING {} from {}{made_up} over {}: {} bytes of data",
            args.ip, own.ip, args.fabric, args.size
        ));
        session(&stack, &args, &signals)
    });
    drop(stack);
    link.close();
    result
}

/// An address in the /24 or /64 of the target, where hosts are seldom.
fn made_up_address(target: IpAddr, guid: Guid, seed: u64) -> InterfaceAddress {
    match target {
        IpAddr::V4(ip) => {
            let [a, b, c, last] = if ip.is_multicast() || ip.is_broadcast() {
                [169, 254, 0, 0]
            } else {
                ip.octets()
            };
            // 200 to 254, but not the target.
            let candidate = 200 + (seed >> 32) as u8 % 55;
            let own = if candidate != last {
                candidate
            } else {
                200 + (candidate - 199) % 55
            };
            InterfaceAddress {
                ip: Ipv4Addr::new(a, b, c, own).into(),
                prefix: 24,
            }
        }
        // The stack has that address anyway.
        IpAddr::V6(ip) if ip.is_multicast() || ip.is_unicast_link_local() => InterfaceAddress {
            ip: wire::ipoib::nd::link_local(guid).into(),
            prefix: 64,
        },
        IpAddr::V6(ip) => {
            let prefix = u128::from(ip) >> 64 << 64;
            InterfaceAddress {
                ip: Ipv6Addr::from(prefix | u128::from(0xf000_0000 | seed >> 36)).into(),
                prefix: 64,
            }
        }
    }
}

/// False where a signal came first.
fn wait_until_up(
    stack: &Stack,
    link: &UdpLink,
    args: &Ping,
    signals: &Signals,
) -> anyhow::Result<bool> {
    let deadline = Instant::now() + BRING_UP;
    loop {
        let state = stack
            .node()
            .inbox()
            .call(|interface, _| (interface.is_up(), interface.state_in_words()));
        let (up, words) = state.context("the interface ended")?;
        // Without its groups it can ask, but is not found by those that do not know it yet.
        if up && (stack.has_joined() == Some(true) || Instant::now() > deadline) {
            return Ok(true);
        }
        if Instant::now() > deadline {
            if !link.is_up() {
                bail!(
                    "the fabric at {} does not answer: is `ipoib fabric` running there, and does it allow this host (--allow)?",
                    args.fabric
                );
            }
            bail!("not up after {} s: {words}", BRING_UP.as_secs());
        }
        if signals
            .channel()
            .recv_timeout(Duration::from_millis(10))
            .is_ok()
        {
            return Ok(false);
        }
    }
}

/// What was sent and came back.
#[derive(Debug, Default)]
struct Tally {
    sent: u32,
    received: u32,
    duplicates: u32,
    times: Vec<Duration>,
    /// Requests without a reply: number and when each was sent. The sequence number is its lower half.
    waiting: BTreeMap<u32, Instant>,
    /// Those answered, to tell second replies to a request (of a group, each from another host).
    answered: BTreeMap<u32, Instant>,
}

impl Tally {
    fn sent(&mut self, at: Instant) {
        self.waiting.insert(self.sent, at);
        self.sent += 1;
        // A reply later than this is none.
        let oldest = self.sent.saturating_sub(1 << 15);
        self.waiting = self.waiting.split_off(&oldest);
        self.answered = self.answered.split_off(&oldest);
    }

    /// Round trip time, and whether that is the first reply; `None` for a reply to nothing.
    fn received(&mut self, sequence: u16, at: Instant) -> Option<(Duration, bool)> {
        let has = |number: &u32| *number as u16 == sequence;
        if let Some(number) = self.waiting.keys().copied().rfind(has) {
            let sent = self.waiting.remove(&number)?;
            self.answered.insert(number, sent);
            self.received += 1;
            let time = at.saturating_duration_since(sent);
            self.times.push(time);
            return Some((time, true));
        }
        let number = self.answered.keys().copied().rfind(has)?;
        self.duplicates += 1;
        Some((at.saturating_duration_since(self.answered[&number]), false))
    }

    fn summary(&self, target: IpAddr, took: Duration) -> String {
        let lost = f64::from(self.sent - self.received) * 100.0 / f64::from(self.sent.max(1));
        let duplicates = if self.duplicates == 0 {
            String::new()
        } else {
            format!(", +{} duplicates", self.duplicates)
        };
        let mut text = format!(
            "\n--- {target} ping statistics ---\n{} packets transmitted, {} received{duplicates}, {lost:.0}% packet loss, time {} ms\n",
            self.sent,
            self.received,
            took.as_millis(),
        );
        if let (Some(min), Some(max)) = (self.times.iter().min(), self.times.iter().max()) {
            let average =
                self.times.iter().sum::<Duration>().as_secs_f64() / self.times.len() as f64;
            text += &format!(
                "rtt min/avg/max = {:.3}/{:.3}/{:.3} ms\n",
                millis(*min),
                average * 1e3,
                millis(*max)
            );
        }
        text
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn session(stack: &Stack, args: &Ping, signals: &Signals) -> anyhow::Result<ExitCode> {
    let pinger = stack.pinger(random() as u16);
    let interval = Duration::from_millis(args.interval);
    let begin = Instant::now();
    let mut tally = Tally::default();
    let mut interrupted = false;
    while tally.sent < args.count && !interrupted {
        let due = Instant::now() + interval;
        tally.sent(pinger.send(args.ip, tally.sent as u16, args.size.into())?);
        if tally.sent < args.count {
            interrupted = collect(&pinger, args, signals, &mut tally, due, false);
        }
        if tally.waiting.contains_key(&(tally.sent - 1)) && tally.sent < args.count && !interrupted
        {
            eprintln!(
                "seq={}: no answer yet{}",
                tally.sent - 1,
                obstacle(stack, args.ip)
            );
        }
    }
    if !interrupted {
        collect(
            &pinger,
            args,
            signals,
            &mut tally,
            Instant::now() + LINGER,
            true,
        );
    }
    show::print(&tally.summary(args.ip, begin.elapsed()))?;
    if tally.received == 0 && tally.sent > 0 {
        eprintln!(
            "ipoib ping: no answer from {}{}",
            args.ip,
            obstacle(stack, args.ip)
        );
    }
    Ok(if tally.received > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Takes replies until `end`; with `all_is_enough`, until each request has one. True after a signal.
fn collect(
    pinger: &Pinger<'_>,
    args: &Ping,
    signals: &Signals,
    tally: &mut Tally,
    end: Instant,
    all_is_enough: bool,
) -> bool {
    // How many a group has is not known.
    let all_is_enough = all_is_enough && !args.ip.is_multicast();
    loop {
        if signals.channel().try_recv().is_ok() {
            return true;
        }
        let now = Instant::now();
        if now >= end || all_is_enough && tally.waiting.is_empty() {
            return false;
        }
        let Some(reply) = pinger.receive(end.min(now + GLANCE)) else {
            continue;
        };
        if let Some((time, first)) = tally.received(reply.sequence, reply.at) {
            let again = if first || args.ip.is_multicast() {
                ""
            } else {
                " (again)"
            };
            show::say(format_args!(
                "{} bytes from {}: seq={} time={:.3} ms{again}",
                reply.length,
                reply.from,
                reply.sequence,
                millis(time)
            ));
        }
    }
}

/// What stands in the way, as far as the interface knows.
fn obstacle(stack: &Stack, target: IpAddr) -> String {
    let status = stack.node().inbox().call(move |interface, now| {
        let neighbour = interface
            .neighbour_status(now)
            .into_iter()
            .find(|neighbour| neighbour.ip == target);
        (interface.is_up(), interface.state_in_words(), neighbour)
    });
    match status {
        Some((false, words, _)) => format!(": {words}"),
        Some((true, _, Some(neighbour))) => {
            let failure = neighbour
                .last_failure
                .map_or_else(String::new, |failure| format!(": {failure}"));
            let connection = match (neighbour.direction, neighbour.connection) {
                (_, None) => String::new(),
                (Some("out"), _) => {
                    "; packets go by a connection, and it has opened none for its answers: what is too long for its datagrams needs connected mode there, too".into()
                }
                (_, Some(words)) => format!("; connection: {words}"),
            };
            format!(" (neighbour {}{failure}{connection})", neighbour.state)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_addresses_are_in_the_targets_subnet_and_not_the_target() {
        for seed in (0..200_u64).map(|n| n << 32) {
            for target in ["10.77.0.1", "10.77.0.200", "10.77.0.254"] {
                let target: Ipv4Addr = target.parse().unwrap();
                let own = made_up_address(target.into(), Guid(1), seed);
                let IpAddr::V4(ip) = own.ip else {
                    panic!("{own}")
                };
                assert!(
                    ip != target
                        && ip.octets()[..3] == [10, 77, 0]
                        && (200..=254).contains(&ip.octets()[3]),
                    "{own}"
                );
            }
        }
        let made_up = |target: &str, seed| {
            made_up_address(target.parse().unwrap(), Guid(0x1234), seed).to_string()
        };
        assert_eq!(made_up("fd77::1", 0x1234_5678 << 36), "fd77::f234:5678/64");
        assert_eq!(made_up("fd77::1", u64::MAX), "fd77::ffff:ffff/64");
        assert_eq!(made_up("ff02::1", 7), "fe80::200:0:0:1234/64");
    }

    #[test]
    fn replies_are_told_from_second_ones_and_from_those_to_nothing() {
        let begin = Instant::now();
        let ms = |n| begin + Duration::from_millis(n);
        let mut tally = Tally::default();
        tally.sent(ms(0));
        tally.sent(ms(10));
        assert_eq!(
            tally.received(1, ms(14)),
            Some((Duration::from_millis(4), true))
        );
        assert_eq!(
            tally.received(1, ms(15)),
            Some((Duration::from_millis(5), false))
        );
        assert_eq!(tally.received(9, ms(15)), None);
        let text = tally.summary("10.0.0.1".parse().unwrap(), Duration::from_millis(20));
        assert!(
            text.contains(
                "2 packets transmitted, 1 received, +1 duplicates, 50% packet loss, time 20 ms"
            ),
            "{text}"
        );
        assert!(
            text.contains("rtt min/avg/max = 4.000/4.000/4.000 ms"),
            "{text}"
        );
    }

    #[test]
    fn sequence_numbers_go_round() {
        let now = Instant::now();
        let mut tally = Tally::default();
        for _ in 0..0x1_0005 {
            tally.sent(now);
        }
        assert_eq!(tally.waiting.len(), 1 << 15);
        assert!(
            tally.received(4, now).is_some_and(|(_, first)| first)
                && !tally.waiting.contains_key(&0x1_0004)
        );
    }
}
