//! Both sides ask for a connection at the same instant.

use super::*;
use wire::mad::AttrId;

/// Two hosts that know each other and have no connection; then both are connected mode's and send at once.
fn at_once(seed: u64, rfc_only: [bool; 2]) -> Sim {
    let (mut sim, _) = one_switch(seed, 2, |sim| {
        for (h, rfc_only) in rfc_only.into_iter().enumerate() {
            sim.hosts[h].config.connected.rfc_only = rfc_only;
        }
    });
    let pairs = [(0, host::v4(1)), (1, host::v4(0))];
    assert_eq!(sim.ping_until_answered(&pairs, 5 * SECOND), []);
    for h in 0..2 {
        set_mode(&mut sim, h, Mode::Connected);
    }
    sim.run_for(SECOND);
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(0, 0); 2]);
    // That they do cross is seen: neither has arrived when both have left.
    let requests = [0, 1].map(|h| {
        let is_req = |p: &wire::packet::Packet<'_>| crate::net::is_cm(p, AttrId::CM_REQ);
        sim.net.lose(sim.alive(h).cable, 1, 0, is_req)
    });
    let tokens = pairs.map(|(h, to)| (h, sim.ping_sized(h, to, 60_000)));
    assert_eq!(requests.map(|r| r.seen()), [1, 1]);
    let answered = sim.run_until(10 * SECOND, |sim| {
        tokens.iter().all(|(h, token)| sim.answered(*h, *token))
    });
    assert!(answered, "seed {seed}, {rfc_only:?}");
    for (from, to) in pairs {
        let wrong = sweep(&mut sim, from, to, sizes(to, 997), MTU);
        assert_eq!(wrong, [], "seed {seed}, {rfc_only:?}, {from} to {to}");
    }
    // Whatever was one too many is gone.
    sim.run_for(60 * SECOND);
    for (from, to) in pairs {
        let outcome = ask(&mut sim, from, to, 60_000, SECOND);
        assert_eq!(outcome, Outcome::Answered, "seed {seed}, {rfc_only:?}");
    }
    println!(
        "seed {seed}, {rfc_only:?}: {:?}, {:?} own connections and of the peer",
        open(&sim, 0),
        open(&sim, 1)
    );
    sim
}

#[test]
fn as_linux_does_there_are_two_connections() {
    for seed in 80..85 {
        let sim = at_once(seed, [false, false]);
        assert_eq!([open(&sim, 0), open(&sim, 1)], [(1, 1); 2]);
        assert_eq!(stat(&sim, 0, "connection_rejected"), 0);
    }
}

#[test]
fn as_rfc_4755_wants_it_there_is_one_connection() {
    let mut winners = std::collections::BTreeSet::new();
    for seed in 85..95 {
        let sim = at_once(seed, [true, true]);
        let counts = [open(&sim, 0), open(&sim, 1)];
        assert!(
            counts == [(1, 0), (0, 1)] || counts == [(0, 1), (1, 0)],
            "{counts:?}"
        );
        winners.insert(counts);
    }
    assert_eq!(winners.len(), 2, "queue pair numbers are random");
}

#[test]
fn where_one_side_knows_the_rfc_alone_both_reach_each_other() {
    for seed in 95..100 {
        for rfc_only in [[false, true], [true, false]] {
            let sim = at_once(seed, rfc_only);
            let (own, of_peer) = open(&sim, 0);
            assert_eq!(
                (of_peer, own),
                open(&sim, 1),
                "the same connections on both sides"
            );
            assert!((1..=2).contains(&(own + of_peer)));
        }
    }
}
