//! The subnet manager goes away for a minute and comes back with an empty memory.

use crate::basic::{all_pairs, one_switch};
use crate::failures::{held, is_complete};
use crate::host;
use crate::sim::SmPlace;
use fabric::sm::{Counter, SmConfig};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn flows_lose_nothing_while_the_subnet_manager_is_away() {
    const HOSTS: usize = 11;
    let (mut sim, old) = one_switch(31, HOSTS, |_| {});
    // Nobody has talked to the last one, nor it to anybody.
    let (new, pairs): (Vec<_>, Vec<_>) = all_pairs(&sim)
        .into_iter()
        .filter(|(from, _)| *from < HOSTS - 1)
        .partition(|(_, to)| [host::v4(HOSTS - 1), host::v6(HOSTS - 1)].contains(to));
    assert_eq!(sim.ping_until_answered(&pairs, 10 * SECOND), []);
    sim.run_for(10 * SECOND);
    let before = sim.sm(old).counters().get(Counter::SaRequests);
    println!(
        "{before} SA requests until all {} pairs talked",
        pairs.len() / 2
    );

    sim.kill_sm(old);
    let mut tokens = Vec::new();
    let flows = |sim: &mut crate::sim::Sim, tokens: &mut Vec<(usize, u32)>, seconds: u32| {
        for _ in 0..2 * seconds {
            for (from, to) in &pairs {
                tokens.push((*from, sim.ping(*from, *to)));
            }
            sim.run_for(SECOND / 2);
        }
    };
    // All that time they try to reach the new one: there is no path to be had, and they back off.
    flows(&mut sim, &mut tokens, 30);
    assert_eq!(sim.ping_until_answered(&new, 25 * SECOND).len(), new.len());
    flows(&mut sim, &mut tokens, 5);
    let sm = sim.start_sm(SmPlace::Switch(0), SmConfig::default());
    let back = sim.now();
    for (from, to) in &pairs {
        tokens.push((*from, sim.ping(*from, *to)));
    }
    assert_eq!(sim.ping_until_answered(&new, 2 * SECOND), []);
    println!(
        "a new neighbour resolved by all, {:?} after its return",
        sim.now() - back
    );
    flows(&mut sim, &mut tokens, 20);
    sim.run_for(SECOND);
    let lost = tokens
        .iter()
        .filter(|(from, token)| !sim.answered(*from, *token))
        .count();
    println!(
        "{} pings while the manager was away 60 s and 20 s after its return: {lost} lost",
        tokens.len()
    );
    assert_eq!(lost, 0);

    for h in 0..HOSTS {
        assert!(sim.is_up(h));
        let held = held(sim.sm(sm), sim.gid(h));
        assert!(is_complete(held), "host {h}: {held:?}");
    }
    let after = sim.sm(sm).counters().get(Counter::SaRequests);
    println!("{after} SA requests within 20 s after its return");
    // Four joins, four subscriptions, nine paths per host, and as much again for what came too early.
    assert!(
        after <= 2 * (4 + 4 + 9) * HOSTS as u64,
        "{after} SA requests"
    );
}
