//! `ipoib demo`: a subnet and hosts that talk IP over it, with a table of what happened.
//!
//! The hosts are network namespaces with a TUN device (`namespace.rs`); where those are refused, smoltcp stacks of this process
//! (`in_process.rs`). Both do the same things by `DemoHost`, so that there is one demo.

mod in_process;
mod namespace;
mod report;
mod userns;

use crate::cli::{Demo, InterfaceAddress};
use crate::node::{Node, NodeConfig};
use crate::show;
use crate::subnet::Subnet;
use anyhow::{Context, bail, ensure};
use datapath::InterfaceConfig;
use datapath::interface::status::GroupStatus;
use fabric::sm::SmConfig;
use parking_lot::Mutex;
use report::{Answer, Bulk, HostRow, Multicast, Ping, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Guid;
use wire::ipoib::nd::solicited_node;

/// The whole demo ends within this time, with an error if it must.
const LIMIT: Duration = Duration::from_secs(180);
/// All interfaces are up within this time.
const BRING_UP: Duration = Duration::from_secs(30);
/// The first echo to a host takes address resolution and a path query.
const FIRST_ECHO: Duration = Duration::from_secs(10);
/// Later ones take what a busy machine takes.
const LATER_ECHO: Duration = Duration::from_secs(5);
/// Echoes between two addresses, after the first.
const ECHOES: usize = 5;
/// Size of the TCP transfer, bytes.
const BULK: usize = 32 << 20;
/// A transfer that takes longer has failed.
const BULK_LIMIT: Duration = Duration::from_secs(90);
/// TCP port of the transfer.
const BULK_PORT: u16 = 7777;
/// All hosts (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What a TCP transfer took.
struct Sent {
    duration: Duration,
    /// CRC-32 of what was sent ...
    sent: u32,
    /// ... and of what was received.
    received: u32,
}

/// A host of the demo.
trait DemoHost: Send + Sync {
    fn node(&self) -> &Node;
    /// The host's IP stack sees a carrier.
    fn is_running(&self) -> bool;
    /// Sends one echo request to `to` and returns who answered after what time, once there are `want` or the time is over.
    fn echo(
        &self,
        to: IpAddr,
        want: usize,
        timeout: Duration,
    ) -> anyhow::Result<BTreeMap<IpAddr, Duration>>;
    /// Opens [`BULK_PORT`]. The result is to be run on a thread: it takes one connection, reads it to its end and answers with the CRC-32.
    fn listen(&self) -> anyhow::Result<Box<dyn FnOnce(Instant) -> anyhow::Result<()> + Send + '_>>;
    /// Connects there, sends the [`pattern`] and reads the answer.
    fn send(&self, to: IpAddr, bytes: usize, deadline: Instant) -> anyhow::Result<Sent>;
}

/// What the k-th host is called.
fn addresses(k: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(10, 77, 0, k).into(),
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, k.into()).into(),
    ]
}

/// Runs the demo. To be called while the process has one thread.
///
/// # Errors
/// The hosts or the subnet could not be made. What the hosts then failed to do is in the table, and in the exit code.
pub fn run(args: Demo) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    let refused = if args.in_process {
        None
    } else {
        namespace::probe().err()
    };
    let in_process = args.in_process || refused.is_some();
    let note =
        refused.map(|error| format!("{error:#}; going on with IP stacks inside this process"));
    if let Some(note) = &note {
        eprintln!("ipoib demo: {note}");
    }
    let stage = Arc::new(Mutex::new("starting"));
    watchdog(stage.clone())?;

    let subnet = Subnet::start(Guid(0x0200_0000_0077_ff00), args.hosts, SmConfig::default())?;
    let mut hosts: Vec<Box<dyn DemoHost>> = Vec::new();
    for k in 1..=args.hosts {
        let config = NodeConfig {
            port_guid: Guid(0x0200_0000_0077_0000 | u64::from(k)),
            description: format!("ipoib demo h{k}"),
            interface: InterfaceConfig {
                name: "ib0".into(),
                mode: args.mode,
                ..InterfaceConfig::default()
            },
            max_packet: 0,
        };
        let [v4, v6] = addresses(k);
        let of_host = [
            InterfaceAddress { ip: v4, prefix: 24 },
            InterfaceAddress { ip: v6, prefix: 64 },
        ];
        hosts.push(if in_process {
            Box::new(in_process::StackHost::start(config, &of_host, &subnet)?)
        } else {
            Box::new(
                namespace::NamespaceHost::start(config, &of_host, &subnet)
                    .with_context(|| format!("host h{k}"))?,
            )
        });
    }
    *stage.lock() = "waiting for the interfaces to come up";
    wait_until_up(&hosts)?;
    let bring_up = begin.elapsed();
    let rows = hosts
        .iter()
        .zip(1..)
        .map(|(host, k)| host_row(host.node(), k))
        .collect::<anyhow::Result<_>>()?;
    *stage.lock() = "pinging";
    let pings = ping_ring(&hosts);
    *stage.lock() = "pinging all hosts at once";
    let multicast = ping_all(&hosts);
    *stage.lock() = "transferring by TCP";
    let bulk = transfer(&hosts);
    *stage.lock() = "ending";
    let report = Report {
        hosts_are: if in_process {
            "in-process stacks"
        } else {
            "network namespaces"
        },
        mode: args.mode,
        note,
        broadcast_group: broadcast_group(hosts[0].node()),
        hosts: rows,
        pings,
        multicast,
        tcp: bulk,
        bring_up_ms: report::millis(bring_up),
        passed: false,
    }
    .judged();
    drop(hosts);
    drop(subnet);
    if args.json {
        show::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        show::print(&report.to_string())?;
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Ends the process when it takes too long: namespaces and devices have no names, so they go with it.
fn watchdog(stage: Arc<Mutex<&'static str>>) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name("ipoib-watchdog".into())
        .spawn(move || {
            std::thread::sleep(LIMIT);
            eprintln!(
                "ipoib demo: not done after {} s: {}",
                LIMIT.as_secs(),
                stage.lock()
            );
            std::process::exit(1);
        })?;
    Ok(())
}

fn wait_until_up(hosts: &[Box<dyn DemoHost>]) -> anyhow::Result<()> {
    let deadline = Instant::now() + BRING_UP;
    for (host, k) in hosts.iter().zip(1..) {
        loop {
            let state = host.node().inbox().call(move |interface, _| {
                (
                    interface.is_up(),
                    interface.state_in_words(),
                    has_joined(&interface.group_status(), k),
                )
            });
            let (up, words, joined) =
                state.with_context(|| format!("the interface of h{k} ended"))?;
            let running = host.is_running();
            if up && running && joined {
                break;
            }
            if Instant::now() > deadline {
                let words = match (up, running) {
                    (false, _) => words,
                    (true, false) => "up, but its host sees no carrier".into(),
                    (true, true) => "up, but it has not joined its multicast groups".into(),
                };
                bail!(
                    "ib0 of h{k} did not come up within {} s: {words}",
                    BRING_UP.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// The groups by which others find the host: those of its stack, among them the solicited-node group of its IPv6 address.
fn has_joined(groups: &[GroupStatus], k: u8) -> bool {
    let solicited = solicited_node(Ipv6Addr::from(0xfd77 << 112 | u128::from(k)));
    let mut own = groups.iter().filter(|group| group.users > 0);
    groups
        .iter()
        .any(|group| group.group == Some(solicited.into()))
        && own.all(|group| group.mlid.is_some())
}

fn host_row(node: &Node, k: u8) -> anyhow::Result<HostRow> {
    let status = node
        .inbox()
        .call(|interface, _| interface.link_status())
        .context("the interface ended")?;
    Ok(HostRow {
        name: format!("h{k}"),
        addresses: addresses(k),
        lid: status.lid,
        gid: status.gid,
        link_address: status.link_address.unwrap_or_default(),
        mtu: status.mtu.or(status.group_mtu),
    })
}

fn broadcast_group(node: &Node) -> String {
    let groups = node
        .inbox()
        .call(|interface, _| interface.group_status())
        .unwrap_or_default();
    // The only one that no IP group maps to.
    groups
        .into_iter()
        .find(|group| group.group.is_none())
        .map_or_else(String::new, |group| group.mgid)
}

/// Each host pings the next and the one before.
fn ping_ring(hosts: &[Box<dyn DemoHost>]) -> Vec<Ping> {
    let count = hosts.len();
    let pairs: BTreeSet<(usize, usize)> = (0..count)
        .flat_map(|k| [(k, (k + 1) % count), ((k + 1) % count, k)])
        .collect();
    let of_pair = |(from, to): (usize, usize)| {
        addresses(to as u8 + 1).map(|address| {
            let mut ping = Ping {
                from: name(from),
                to: name(to),
                address,
                first_ms: None,
                rtt_ms: None,
                error: None,
            };
            ping.error = ping_pair(&*hosts[from], address, &mut ping)
                .err()
                .map(|error| format!("{error:#}"));
            ping
        })
    };
    pairs.into_iter().flat_map(of_pair).collect()
}

fn ping_pair(host: &dyn DemoHost, address: IpAddr, ping: &mut Ping) -> anyhow::Result<()> {
    let echo = |timeout| -> anyhow::Result<Duration> {
        match host.echo(address, 1, timeout)?.get(&address) {
            Some(time) => Ok(*time),
            None => bail!(
                "no answer within {} s{}",
                timeout.as_secs(),
                neighbour_in_words(host.node(), address)
            ),
        }
    };
    ping.first_ms = Some(report::millis(echo(FIRST_ECHO)?));
    let mut times = (0..ECHOES)
        .map(|_| echo(LATER_ECHO))
        .collect::<anyhow::Result<Vec<_>>>()?;
    times.sort();
    ping.rtt_ms = Some(report::millis(times[ECHOES / 2]));
    Ok(())
}

/// What stands in the way, as far as the interface knows.
fn neighbour_in_words(node: &Node, address: IpAddr) -> String {
    let list = node
        .inbox()
        .call(|interface, now| interface.neighbour_status(now))
        .unwrap_or_default();
    match list.into_iter().find(|neighbour| neighbour.ip == address) {
        Some(neighbour) => {
            let failure = neighbour
                .last_failure
                .map_or_else(String::new, |failure| format!(", {failure}"));
            format!(" (neighbour {}{failure})", neighbour.state)
        }
        None => String::new(),
    }
}

fn name(index: usize) -> String {
    format!("h{}", index + 1)
}

/// One echo request of the first host, to all.
fn ping_all(hosts: &[Box<dyn DemoHost>]) -> Multicast {
    let others = hosts.len() - 1;
    let mut result = Multicast {
        from: name(0),
        group: ALL_NODES.into(),
        expected: others,
        answers: Vec::new(),
        error: None,
    };
    // The groups are joined one after the other once an interface is up; an echo may be earlier.
    for _ in 0..4 {
        match hosts[0].echo(ALL_NODES.into(), others, LATER_ECHO) {
            Ok(answers) => {
                result.answers = answers
                    .into_iter()
                    .map(|(from, time)| Answer {
                        from,
                        rtt_ms: report::millis(time),
                    })
                    .collect();
            }
            Err(error) => result.error = Some(format!("{error:#}")),
        }
        if result.answers.len() == others {
            result.error = None;
            return result;
        }
    }
    result
        .error
        .get_or_insert_with(|| format!("{} of {others} hosts answered", result.answers.len()));
    result
}

/// The first host sends to the second.
fn transfer(hosts: &[Box<dyn DemoHost>]) -> Bulk {
    let [to, _] = addresses(2);
    let deadline = Instant::now() + BULK_LIMIT;
    let done = || -> anyhow::Result<Sent> {
        let serve = hosts[1].listen()?;
        std::thread::scope(|scope| {
            let server = scope.spawn(move || serve(deadline));
            let sent = hosts[0].send(to, BULK, deadline);
            server
                .join()
                .unwrap_or_else(|_| bail!("the receiver panicked"))
                .context("receiver")?;
            let sent = sent.context("sender")?;
            ensure!(
                sent.sent == sent.received,
                "the data changed on its way: CRC-32 {:08x} became {:08x}",
                sent.sent,
                sent.received
            );
            Ok(sent)
        })
    };
    let result = done();
    let mut bulk = Bulk {
        from: name(0),
        to: name(1),
        bytes: BULK,
        seconds: None,
        mbit_per_s: None,
        crc32: None,
        error: None,
    };
    match result {
        Ok(sent) => {
            let seconds = sent.duration.as_secs_f64();
            bulk.seconds = Some(seconds);
            bulk.mbit_per_s = Some(BULK as f64 * 8.0 / 1e6 / seconds);
            bulk.crc32 = Some(format!("{:08x}", sent.sent));
        }
        Err(error) => bulk.error = Some(format!("{error:#}")),
    }
    bulk
}

/// `bytes` bytes that do not repeat (xorshift64), in blocks.
fn pattern(bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    const BLOCK: usize = 64 << 10;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..bytes).step_by(BLOCK).map(move |at| {
        let mut block = vec![0; BLOCK.min(bytes - at)];
        for chunk in block.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_be_bytes()[..chunk.len()]);
        }
        block
    })
}

/// Reads to the end of the stream; the CRC-32 of all.
fn receive_all(mut read: impl FnMut(&mut [u8]) -> anyhow::Result<usize>) -> anyhow::Result<u32> {
    let mut digest = crc32fast::Hasher::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match read(&mut buffer)? {
            0 => return Ok(digest.finalize()),
            length => digest.update(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_has_its_length_and_does_not_repeat() {
        let all: Vec<u8> = pattern(200_003).flatten().collect();
        assert_eq!(all.len(), 200_003);
        let words: BTreeSet<&[u8]> = all.chunks(8).collect();
        assert_eq!(words.len(), all.len().div_ceil(8));
        let mut rest = &all[..];
        let crc = receive_all(|buffer| Ok(std::io::Read::read(&mut rest, buffer)?)).unwrap();
        assert_eq!(crc, crc32fast::hash(&all));
    }
}
