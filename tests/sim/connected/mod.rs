//! Connected mode (RFC 4755) between simulated hosts.

mod changes;
mod chaos;
mod churn;
mod crossing;
mod ending;
mod lost;
mod mtus;
mod numbers;
mod paths;
mod show;
mod sizes;
mod unheard;
mod vanished;

use crate::basic::one_switch;
use crate::host;
use crate::sim::Sim;
use datapath::{InterfaceConfig, Mode};
use std::net::IpAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// IP MTU of connected mode.
const MTU: u32 = 65_520;
/// IP MTU of the broadcast group.
const GROUP_MTU: u32 = 2044;

/// What an interface does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connected,
    Datagram,
    /// Datagram mode, and no RC flag in the link address.
    Deaf,
}

impl Kind {
    fn set(self, config: &mut InterfaceConfig) {
        config.connected.offer = self != Kind::Deaf;
        config.mode = match self {
            Kind::Connected => Mode::Connected,
            Kind::Datagram | Kind::Deaf => Mode::Datagram,
        };
    }
}

/// Two hosts on a switch, up.
fn pair(seed: u64, kinds: [Kind; 2]) -> Sim {
    let (sim, _) = one_switch(seed, 2, |sim| {
        for (h, kind) in kinds.into_iter().enumerate() {
            kind.set(&mut sim.hosts[h].config);
        }
    });
    sim
}

/// Two hosts in connected mode, which know the service ID of the RFC alone where `rfc_only` says so.
fn rfc_pair(seed: u64, rfc_only: [bool; 2]) -> Sim {
    let (sim, _) = one_switch(seed, 2, |sim| {
        for (host, rfc_only) in sim.hosts.iter_mut().zip(rfc_only) {
            Kind::Connected.set(&mut host.config);
            host.config.connected.rfc_only = rfc_only;
        }
    });
    sim
}

/// IP and ICMP headers of an echo message to `to`, bytes.
fn headers(to: IpAddr) -> u32 {
    if to.is_ipv4() { 28 } else { 48 }
}

fn set_mode(sim: &mut Sim, h: usize, mode: Mode) {
    let set = sim.with_interface(h, |interface, now| interface.set_mode(now, mode));
    assert_eq!(set, Ok(()));
}

/// Host `h` by IPv4 and by IPv6.
fn addresses(h: usize) -> [IpAddr; 2] {
    [host::v4(h), host::v6(h)]
}

/// A counter or count of an interface.
fn stat(sim: &Sim, h: usize, name: &str) -> u64 {
    let stats = sim.interface(h).stats();
    let found = stats.into_iter().find(|(n, _)| n == name);
    found.expect("a counter of this name").1
}

/// Connections of a host that are open: own ones, and those of its peers.
fn open(sim: &Sim, h: usize) -> (u64, u64) {
    let count = |name| stat(sim, h, name);
    (count("connections_own"), count("connections_of_peers"))
}

/// What became of an echo request with Don't Fragment set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    /// Refused with this MTU.
    TooBig(u32),
    /// Neither, in the time there was.
    Silence,
}

fn outcome(sim: &Sim, h: usize, token: u32) -> Outcome {
    let log = &sim.hosts[h].log;
    match (log.replies.contains_key(&token), log.refused.get(&token)) {
        (true, _) => Outcome::Answered,
        (false, Some(mtu)) => Outcome::TooBig(*mtu),
        (false, None) => Outcome::Silence,
    }
}

/// Sends one request and waits for its outcome.
fn ask(sim: &mut Sim, from: usize, to: IpAddr, size: usize, patience: Duration) -> Outcome {
    let token = sim.ping_sized(from, to, size);
    sim.run_until(patience, |sim| {
        outcome(sim, from, token) != Outcome::Silence
    });
    outcome(sim, from, token)
}

/// Sends requests of all sizes, some at a time, each once: those with another outcome than that of a peer that takes packets up to `mtu`.
fn sweep(
    sim: &mut Sim,
    from: usize,
    to: IpAddr,
    sizes: impl Iterator<Item = usize>,
    mtu: u32,
) -> Vec<(usize, Outcome)> {
    // So many errors are made within the time that passes here.
    const AT_ONCE: usize = 8;
    const PATIENCE: Duration = Duration::from_secs(20);
    let sizes: Vec<usize> = sizes.collect();
    let mut wrong = Vec::new();
    for sizes in sizes.chunks(AT_ONCE) {
        let ping = |size: &usize| (*size, sim.ping_sized(from, to, *size));
        let tokens: Vec<_> = sizes.iter().map(ping).collect();
        let is_done = |sim: &Sim| {
            let mut tokens = tokens.iter();
            tokens.all(|(_, token)| outcome(sim, from, *token) != Outcome::Silence)
        };
        sim.run_until(PATIENCE, is_done);
        // What errors cost is earned again.
        sim.run_for(AT_ONCE as u32 * MS);
        for (size, token) in tokens {
            let expected = match size as u32 + headers(to) <= mtu {
                true => Outcome::Answered,
                false => Outcome::TooBig(mtu),
            };
            let got = outcome(sim, from, token);
            if got != expected {
                wrong.push((size, got));
            }
        }
    }
    wrong
}

/// Sizes of echo messages to `to` that give packets of up to `MTU` bytes, and somewhat more.
fn sizes(to: IpAddr, step: usize) -> impl Iterator<Item = usize> {
    let largest = (MTU - headers(to)) as usize;
    let edges = [GROUP_MTU - headers(to), MTU - headers(to)].map(|size| size as usize);
    let around = edges.into_iter().flat_map(|edge| edge - 2..edge + 3);
    (1..=largest).step_by(step).chain(around)
}

/// Sends long packets from the first host to the second until one is answered; how long that took.
fn until_reached(sim: &mut Sim, limit: Duration) -> Duration {
    let start = sim.elapsed();
    while ask(sim, 0, host::v4(1), 60_000, SECOND / 2) != Outcome::Answered {
        assert!(
            sim.elapsed() - start < limit,
            "not reached within {limit:?}"
        );
        sim.run_for(SECOND / 10);
    }
    sim.elapsed() - start
}
