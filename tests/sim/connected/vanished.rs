//! A peer that vanishes without a word while other conversations go on.

use super::*;
use crate::net::{Death, is_report};
use wire::mad::attr::TrapNumber;

/// Three hosts in connected mode; the first talks to the others.
fn three(seed: u64) -> Sim {
    let (mut sim, _) = one_switch(seed, 3, |sim| {
        for host in &mut sim.hosts {
            Kind::Connected.set(&mut host.config);
            host.config.connected.idle = 20 * SECOND;
        }
    });
    for to in [1, 2].map(host::v4) {
        let outcome = ask(&mut sim, 0, to, 60_000, 5 * SECOND);
        assert_eq!(outcome, Outcome::Answered);
    }
    assert_eq!(open(&sim, 0).0, 2);
    sim
}

/// Sends to both for a while, every 20 ms; the long packets to the one that lives must not be late.
fn talk_for(sim: &mut Sim, duration: Duration) {
    let end = sim.elapsed() + duration;
    while sim.elapsed() < end {
        sim.ping_sized(0, host::v4(1), 20_000);
        let sent = sim.now();
        let token = sim.ping_sized(0, host::v4(2), 20_000);
        sim.run_for(20 * MS);
        let reply = sim.hosts[0].log.replies.get(&token);
        let took = reply.map(|(_, at, _)| *at - sent);
        assert!(
            took.is_some_and(|took| took < 5 * MS),
            "at {:?}: {took:?}",
            sim.elapsed()
        );
    }
}

#[test]
fn the_dead_one_is_dropped_and_the_other_is_not_stalled() {
    for (seed, death) in [(110, Death::Silent), (111, Death::Noticed)] {
        let mut sim = three(seed);
        sim.kill(1, death);
        talk_for(&mut sim, 10 * SECOND);
        // What it had asked for ended too: a trap tells that its port is gone.
        assert_eq!(open(&sim, 0), (1, 1), "{death:?}");
        // Nothing waits for it for ever, and of what it had asked for nothing is left.
        sim.run_for(60 * SECOND);
        assert_eq!(open(&sim, 0), (0, 0), "{death:?}");
        let waiting = crate::failures::holds(&sim, 0)["waiting_packets"];
        assert_eq!(waiting, 0, "{death:?}");
        let start = sim.elapsed();
        sim.start(1);
        assert!(sim.run_until(10 * SECOND, |sim| sim.is_up(1)));
        let took = until_reached(&mut sim, 20 * SECOND);
        println!(
            "{death:?} death: reached again {took:?} after it was up, {:?} after its start",
            sim.elapsed() - start
        );
        assert_eq!(open(&sim, 0), (1, 1));
    }
}

/// It is back before anybody noticed: its queue pairs are others.
#[test]
fn one_that_is_back_at_once_is_reached_again() {
    for (seed, away) in [(112, Duration::ZERO), (113, 50 * MS), (114, SECOND)] {
        let mut sim = three(seed);
        sim.kill(1, Death::Silent);
        sim.run_for(away);
        sim.start(1);
        talk_for(&mut sim, 2 * SECOND);
        let took = until_reached(&mut sim, 20 * SECOND);
        println!("away for {away:?}: reached again {took:?} later");
        // Both ways, and nothing is left of the old connection.
        let back = ask(&mut sim, 1, host::v4(0), 60_000, 5 * SECOND);
        assert_eq!(back, Outcome::Answered);
        for _ in 0..12 {
            sim.run_for(5 * SECOND);
            let outcome = ask(&mut sim, 0, host::v4(1), 60_000, SECOND);
            assert_eq!(outcome, Outcome::Answered);
        }
        assert_eq!([open(&sim, 0), open(&sim, 1)], [(1, 1), (1, 1)]);
        let queue_pairs = [0, 1].map(|h| crate::failures::holds(&sim, h)["queue_pairs"]);
        assert_eq!(queue_pairs, [3, 3]);
    }
}

/// There is no subnet manager to tell that it is gone.
#[test]
fn what_a_vanished_peer_had_asked_for_ages() {
    let (mut sim, sm) = one_switch(115, 2, |sim| {
        for host in &mut sim.hosts {
            Kind::Connected.set(&mut host.config);
            host.config.connected.idle = 20 * SECOND;
        }
    });
    let outcome = ask(&mut sim, 1, host::v4(0), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    sim.kill_sm(sm);
    sim.kill(1, Death::Silent);
    sim.run_for(35 * SECOND);
    assert_eq!(open(&sim, 0), (0, 1), "its own may be in use for longer");
    sim.run_for(40 * SECOND);
    assert_eq!(open(&sim, 0), (0, 0));
    assert_eq!(crate::failures::holds(&sim, 0)["queue_pairs"], 1);
}

/// It is back, and new connections lead both ways, when the report that its port is gone arrives at last.
#[test]
fn a_late_report_ends_no_new_connection() {
    let mut sim = three(116);
    let gone = |p: &wire::packet::Packet<'_>| is_report(p, TrapNumber::GID_OUT_OF_SERVICE);
    // The first report is lost, and repeated a while later.
    let reports = sim.net.lose(sim.alive(0).cable, 0, 1, gone);
    sim.kill(1, Death::Noticed);
    assert!(sim.run_until(SECOND, |_| reports.count() == 1));
    sim.start(1);
    assert!(sim.run_until(10 * SECOND, |sim| sim.is_up(1)));
    until_reached(&mut sim, 5 * SECOND);
    let back = ask(&mut sim, 1, host::v4(0), 60_000, 5 * SECOND);
    assert_eq!(back, Outcome::Answered);
    assert_eq!(reports.seen(), 1, "it was not late enough");
    let opened = [0, 1].map(|h| stat(&sim, h, "connection_opened"));
    assert!(sim.run_until(5 * SECOND, |_| reports.seen() == 2));
    for _ in 0..20 {
        sim.run_for(SECOND / 20);
        for (h, to) in [(0, host::v4(1)), (1, host::v4(0))] {
            let outcome = ask(&mut sim, h, to, 60_000, SECOND);
            assert_eq!(outcome, Outcome::Answered);
        }
    }
    assert_eq!([0, 1].map(|h| stat(&sim, h, "connection_opened")), opened);
}
