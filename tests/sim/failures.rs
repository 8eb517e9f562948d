//! A host that vanishes, and what the others notice.

use crate::basic::{all_pairs, one_switch};
use crate::host;
use crate::net::Death;
use crate::sim::Sim;
use fabric::sm::SubnetManager;
use std::time::Duration;
use wire::Gid;
use wire::mad::attr::JoinState;

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
