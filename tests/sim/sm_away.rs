//! The subnet manager goes away for a minute and comes back with an empty memory.

use crate::basic::{all_pairs, one_switch};
use crate::failures::{held, is_complete};
use crate::sim::SmPlace;
use fabric::sm::{Counter, SmConfig};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn flows_lose_nothing_while_the_subnet_manager_is_away() {
    const HOSTS: usize = 10;
    let (mut sim, old) = one_switch(31, HOSTS, |_| {});
    let pairs = all_pairs(&sim);
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
    flows(&mut sim, &mut tokens, 60);
    let sm = sim.start_sm(SmPlace::Switch(0), SmConfig::default());
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
