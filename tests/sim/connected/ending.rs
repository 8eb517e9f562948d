//! Connections that are left while something is on its way by them.

use super::*;
use crate::host::Content;
use crate::net::Death;
use fabric::link::fault::FaultConfig;
use verbs::AckTimeout;

/// What one connection holds back, and a bit.
const LONG: usize = 50;

fn long_pings(sim: &mut Sim, n: usize) -> Vec<u32> {
    let ping = |_| sim.ping_sized(0, host::v4(1), 60_000);
    (0..n).map(ping).collect()
}

fn connected(seed: u64) -> Sim {
    let mut sim = pair(seed, [Kind::Connected; 2]);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    sim
}

/// What the kernel gave before the change is far too long for datagrams; so is what it gives before it knows of the new MTU.
#[test]
fn a_change_of_mode_loses_nothing() {
    for (seed, loss) in [(240, 0.0), (241, 0.01)] {
        let mut sim = connected(seed);
        let cable = sim.alive(0).cable;
        let faults = FaultConfig {
            loss,
            ..FaultConfig::NONE
        };
        sim.net.set_cable_faults(cable, faults, seed);
        let mut tokens = long_pings(&mut sim, LONG);
        set_mode(&mut sim, 0, Mode::Datagram);
        tokens.extend(long_pings(&mut sim, 5));
        let all = |sim: &Sim| tokens.iter().all(|token| sim.answered(0, *token));
        assert!(sim.run_until(20 * SECOND, all), "{loss}");
        assert_eq!(stat(&sim, 0, "tx_lost_connection"), 0);
        sim.net.set_cable_faults(cable, FaultConfig::NONE, seed);
        sim.run_for(2 * SECOND);
        assert_eq!([open(&sim, 0), open(&sim, 1)], [(0, 1), (1, 0)]);
        assert_eq!(stat(&sim, 0, "connections_changing"), 0);
        let outcome = ask(&mut sim, 0, host::v4(1), 60_000, SECOND);
        assert_eq!(outcome, Outcome::TooBig(GROUP_MTU));
        let outcome = ask(&mut sim, 0, host::v4(1), 1000, SECOND);
        assert_eq!(outcome, Outcome::Answered);
    }
}

/// The same where a peer's connection, which is for both directions, was used.
#[test]
fn a_change_of_mode_loses_nothing_on_a_peers_connection() {
    let mut sim = rfc_pair(242, [true; 2]);
    for (h, to) in [(1, host::v4(0)), (0, host::v4(1))] {
        let outcome = ask(&mut sim, h, to, 60_000, 5 * SECOND);
        assert_eq!(outcome, Outcome::Answered);
    }
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(0, 1), (1, 0)]);
    let mut tokens = long_pings(&mut sim, LONG);
    set_mode(&mut sim, 0, Mode::Datagram);
    tokens.extend(long_pings(&mut sim, 5));
    let all = |sim: &Sim| tokens.iter().all(|token| sim.answered(0, *token));
    assert!(sim.run_until(5 * SECOND, all));
    sim.run_for(2 * SECOND);
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(0, 1), (1, 0)]);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, SECOND);
    assert_eq!(outcome, Outcome::TooBig(GROUP_MTU));
    let outcome = ask(&mut sim, 1, host::v4(0), 1000, SECOND);
    assert_eq!(outcome, Outcome::Answered);
}

/// A peer changes its mode whose connection this side sends by: it takes what comes until it has told so.
#[test]
fn a_peers_change_of_mode_loses_nothing() {
    let mut sim = rfc_pair(247, [true; 2]);
    let outcome = ask(&mut sim, 1, host::v4(0), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(0, 1), (1, 0)]);
    let cable = sim.alive(0).cable;
    let is_reliable = |p: &wire::packet::Packet<'_>| p.bth.opcode.0 >> 5 == 0;
    const COUNT: usize = 300;
    for n in 0..COUNT {
        if n == 20 {
            set_mode(&mut sim, 1, Mode::Datagram);
        }
        // Something is not acknowledged yet when it ends.
        let lost = (100..140)
            .contains(&n)
            .then(|| sim.net.lose(cable, 1, 1, is_reliable));
        let content = Content::Datagram(vec![n as u8; 8000]);
        sim.send(0, host::v4(0), host::v4(1), &content, 0);
        drop(lost);
        sim.run_for(MS);
    }
    sim.run_for(2 * SECOND);
    assert_eq!(sim.hosts[1].log.datagrams.len(), COUNT);
    assert_eq!(stat(&sim, 0, "tx_lost_connection"), 0);
    assert_eq!(stat(&sim, 0, "connection_disconnected"), 1);
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(1, 0), (0, 1)]);
}

#[test]
fn a_change_of_mode_that_is_taken_back_keeps_the_connection() {
    let mut sim = connected(243);
    let tokens = long_pings(&mut sim, LONG);
    for mode in [Mode::Datagram, Mode::Connected] {
        set_mode(&mut sim, 0, mode);
    }
    let all = |sim: &Sim| tokens.iter().all(|token| sim.answered(0, *token));
    assert!(sim.run_until(5 * SECOND, all));
    sim.run_for(2 * SECOND);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, SECOND);
    assert_eq!(outcome, Outcome::Answered);
    assert_eq!(stat(&sim, 0, "connection_opened"), 1);
}

/// Nothing waits for ever for a peer that is gone.
#[test]
fn a_change_of_mode_ends_the_connection_to_a_dead_peer() {
    let mut sim = connected(244);
    sim.kill(1, Death::Silent);
    long_pings(&mut sim, 5);
    set_mode(&mut sim, 0, Mode::Datagram);
    sim.run_for(20 * SECOND);
    assert_eq!(stat(&sim, 0, "tx_lost_connection"), 5);
    assert_eq!(stat(&sim, 0, "connections_changing"), 0);
    assert_eq!(crate::failures::holds(&sim, 0)["queue_pairs"], 1);
    assert_eq!(crate::failures::holds(&sim, 0)["waiting_packets"], 0);
}

/// With no time-out, only a look at what does not move finds that a peer takes nothing any more.
#[test]
fn a_connection_that_does_not_move_is_given_up() {
    let (mut sim, _) = one_switch(245, 2, |sim| {
        for host in &mut sim.hosts {
            Kind::Connected.set(&mut host.config);
        }
        sim.hosts[0].config.connected.ack_timeout = AckTimeout(0);
    });
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    // Idle for long: that alone is no reason.
    sim.run_for(60 * SECOND);
    assert_eq!(open(&sim, 0).0, 1);
    let cable = sim.alive(0).cable;
    let is_reliable = |p: &wire::packet::Packet<'_>| p.bth.opcode.0 >> 5 == 0;
    let lost = sim.net.lose(cable, 1, u64::MAX, is_reliable);
    long_pings(&mut sim, 1);
    sim.run_for(SECOND);
    assert!(lost.count() > 0);
    drop(lost);
    sim.run_for(45 * SECOND);
    assert_eq!(stat(&sim, 0, "connection_failed"), 1);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
}

/// A peer that takes each connection and ends it soon: not each packet asks for another.
#[test]
fn a_peer_that_ends_each_connection_at_once_is_not_asked_for_each_packet() {
    let mut sim = pair(246, [Kind::Connected, Kind::Datagram]);
    sim.hosts[1].config.connected.idle = 20 * MS;
    sim.stop_start(1);
    assert!(sim.run_until(10 * SECOND, |sim| sim.is_up(1)));
    for _ in 0..200 {
        let outcome = ask(&mut sim, 0, host::v4(1), 1000, SECOND);
        assert_eq!(outcome, Outcome::Answered);
        sim.run_for(60 * MS);
    }
    let opened = stat(&sim, 0, "connection_opened");
    assert!((2..8).contains(&opened), "{opened}");
    assert!(stat(&sim, 0, "connection_disconnected") >= 2);
}
