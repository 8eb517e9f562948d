//! A host that vanishes, and what the others notice.

use crate::basic::{all_pairs, one_switch, states};
use crate::host;
use crate::net::Death;
use crate::sim::{MachineId, Sim};
use fabric::sm::SubnetManager;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::Gid;
use wire::mad::attr::{JoinState, SmState};

const SECOND: Duration = Duration::from_secs(1);

/// What the SA holds of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Memberships as a full member.
    pub full: usize,
    /// Other memberships: groups that are only sent to.
    pub send_only: usize,
    pub subscriptions: usize,
}

/// Nothing.
pub const NOTHING: Held = Held {
    full: 0,
    send_only: 0,
    subscriptions: 0,
};

pub fn held(sm: &SubnetManager, gid: Gid) -> Held {
    let mut held = Held {
        subscriptions: sm
            .subscriptions()
            .filter(|(subscriber, _)| *subscriber == gid)
            .count(),
        ..NOTHING
    };
    for (_, state) in sm
        .groups()
        .iter()
        .flat_map(|group| &group.members)
        .filter(|(member, _)| *member == gid)
    {
        if state.contains(JoinState::FULL) {
            held.full += 1
        } else {
            held.send_only += 1
        }
    }
    held
}

/// Is what the SA holds all that a host needs: broadcast, all nodes of both families, one solicited-node group (its two addresses end in the same
/// 24 bits); traps 64 to 67?
pub fn is_complete(held: Held) -> bool {
    held.full == 4 && held.subscriptions == 4
}

/// What may be left over of host `h` once all is quiet, by name: what its channel adapter holds, and packets that wait in its interface.
pub fn holds(sim: &Sim, h: usize) -> BTreeMap<&'static str, u64> {
    let interface = sim.interface(h);
    let neighbours = interface.neighbour_status(sim.now());
    let waiting = neighbours.iter().map(|n| n.queued);
    let groups = interface.group_status();
    let waiting = waiting.chain(groups.iter().map(|group| group.queued));
    let mut holds = BTreeMap::from(sim.alive(h).hca.resources().counts());
    holds.insert("waiting_packets", waiting.sum::<usize>() as u64);
    holds
}

/// All hosts come up, all pairs talk, and after a quiet while still do; of `managers` one is master, and its SA holds what the hosts need and
/// nothing else. How long it took until all talked; else what is wrong.
pub fn verdict(sim: &mut Sim, managers: &[MachineId]) -> Result<Duration, String> {
    let (start, hosts) = (sim.elapsed(), sim.hosts.len());
    let all_up = |sim: &Sim| (0..hosts).all(|h| sim.is_up(h));
    if !sim.run_until(60 * SECOND, all_up) {
        return Err(format!("not up: {:?}", states(sim)));
    }
    let pairs = all_pairs(sim);
    let silent = sim.ping_until_answered(&pairs, 60 * SECOND);
    if !silent.is_empty() {
        return Err(format!("silent: {silent:?}"));
    }
    let took = sim.elapsed() - start;
    // Whatever is still under way comes to its end.
    sim.run_for(20 * SECOND);
    let is_master = |sm: &&MachineId| sim.sm(**sm).state() == SmState::MASTER;
    let masters: Vec<&MachineId> = managers.iter().filter(is_master).collect();
    let [master] = masters[..] else {
        return Err(format!("{} masters", masters.len()));
    };
    let sm = sim.sm(*master);
    let ports: BTreeSet<Gid> = (0..hosts).map(|h| sim.gid(h)).collect();
    let members = sm.groups().into_iter().flat_map(|group| group.members);
    let registered = members.map(|(port, _)| port);
    let registered = registered.chain(sm.subscriptions().map(|(port, _)| port));
    let strangers: Vec<Gid> = registered.filter(|port| !ports.contains(port)).collect();
    if !strangers.is_empty() {
        return Err(format!("registered, but not there: {strangers:?}"));
    }
    for h in 0..hosts {
        let held = held(sm, sim.gid(h));
        let holds = holds(sim, h);
        let few = [
            ("queue_pairs", 1),
            ("memory_regions", 0),
            ("waiting_packets", 0),
        ];
        if !is_complete(held) || few.iter().any(|(name, count)| holds[name] != *count) {
            return Err(format!("host {h}: {holds:?}, {held:?}"));
        }
    }
    let again = sim.ping_until_answered(&pairs, Duration::ZERO);
    match again.is_empty() {
        true => Ok(took),
        false => Err(format!("silent again: {again:?}")),
    }
}

/// Does any other host keep a neighbour entry of `h`?
fn is_remembered(sim: &Sim, h: usize) -> bool {
    let gid = sim.gid(h).to_string();
    let knows = |other: usize| {
        sim.interface(other)
            .neighbour_status(sim.now())
            .iter()
            .any(|n| n.gid.as_ref() == Some(&gid))
    };
    sim.live().into_iter().any(knows)
}

fn a_host_vanishes(death: Death) {
    let (mut sim, sm) = one_switch(11, 4, |_| {});
    let pairs = all_pairs(&sim);
    assert_eq!(sim.ping_until_answered(&pairs, 5 * SECOND), []);
    sim.run_for(5 * SECOND);
    let gid = sim.gid(1);
    assert!(is_complete(held(sim.sm(sm), gid)));
    assert!(is_remembered(&sim, 1));
    let old = sim.alive(1).hca.resources().queue_pairs[0].qpn;

    let start = sim.now();
    sim.kill(1, death);
    let gone = sim.run_until(4 * SECOND, |sim| {
        held(sim.sm(sm), gid) == NOTHING && !is_remembered(sim, 1)
    });
    assert!(
        gone,
        "after 4 s the SA holds {:?}, neighbours know it: {}",
        held(sim.sm(sm), gid),
        is_remembered(&sim, 1)
    );
    println!(
        "{death:?} death: memberships and neighbour entries gone after {:?}",
        sim.now() - start
    );

    let start = sim.now();
    sim.start(1);
    let mut pairs = all_pairs(&sim);
    pairs.retain(|(from, to)| *from == 1 || *to == host::v4(1) || *to == host::v6(1));
    assert_eq!(sim.ping_until_answered(&pairs, 2 * SECOND), []);
    println!(
        "traffic with the restarted host after {:?}",
        sim.now() - start
    );
    assert!(sim.now() - start <= 2 * SECOND);
    assert_ne!(sim.alive(1).hca.resources().queue_pairs[0].qpn, old);
}

#[test]
fn a_silent_death_is_noticed_within_four_seconds() {
    a_host_vanishes(Death::Silent);
}

#[test]
fn a_refused_link_is_noticed_at_once() {
    a_host_vanishes(Death::Noticed);
}

/// The old link is silent for seconds while the new life is there already, at another port of the switch.
#[test]
fn a_host_that_restarts_before_its_silence_was_noticed() {
    let (mut sim, sm) = one_switch(12, 4, |_| {});
    let pairs = all_pairs(&sim);
    assert_eq!(sim.ping_until_answered(&pairs, 5 * SECOND), []);
    sim.kill(1, Death::Silent);
    sim.run_for(SECOND / 2);
    let start = sim.now();
    sim.start(1);
    let pairs = all_pairs(&sim);
    assert_eq!(sim.ping_until_answered(&pairs, 10 * SECOND), []);
    println!(
        "traffic with a host that restarted at another port: after {:?}",
        sim.now() - start
    );
    sim.run_for(10 * SECOND);
    let held = held(sim.sm(sm), sim.gid(1));
    assert!(is_complete(held), "{held:?}");
    assert_eq!(sim.ping_until_answered(&pairs, SECOND), []);
}
