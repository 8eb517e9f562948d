//! The queues of control are full: what the data path and queue pairs tell is lost.

use super::*;
use crate::net::{Death, is_cm};
use crate::sim::Input;
use datapath::plane::Upcall;
use wire::mad::AttrId;

/// Control hears nothing of what happens at queue pairs.
fn deaf_to_queue_pairs(sim: &Sim) {
    sim.net.refuse(|input| {
        matches!(
            input,
            Input::Interface(datapath::Input::Upcall(Upcall::Connection))
        )
    });
}

#[test]
fn neither_a_lost_confirmation_nor_a_dead_peer_strands_anybody() {
    for (seed, death) in [(230, Death::Silent), (231, Death::Noticed)] {
        let mut sim = pair(seed, [Kind::Connected, Kind::Connected]);
        deaf_to_queue_pairs(&sim);
        // The listener learns by packets alone that its connection is open, and of those with its next input.
        let is_rtu = |p: &wire::packet::Packet<'_>| is_cm(p, AttrId::CM_RTU);
        let lost = sim.net.lose(sim.alive(0).cable, 1, u64::MAX, is_rtu);
        until_reached(&mut sim, 5 * SECOND);
        sim.run_for(10 * SECOND);
        assert!(lost.count() > 0);
        drop(lost);
        until_reached(&mut sim, 10 * SECOND);
        sim.kill(1, death);
        sim.ping_sized(0, host::v4(1), 60_000);
        sim.run_for(SECOND / 10);
        sim.start(1);
        until_reached(&mut sim, 30 * SECOND);
        for (h, limit) in [(0, 2), (1, 2)] {
            let (own, of_peers) = open(&sim, h);
            assert!(own + of_peers <= limit, "host {h}: {own}, {of_peers}");
        }
    }
}

/// The queue of control was full, so control has something to do: then it hears of all that queue pairs told meanwhile.
#[test]
fn the_failure_of_a_connection_is_heard_of_with_the_next_input() {
    let mut sim = pair(233, [Kind::Connected, Kind::Connected]);
    until_reached(&mut sim, 5 * SECOND);
    deaf_to_queue_pairs(&sim);
    let cable = sim.alive(0).cable;
    let is_reliable = |p: &wire::packet::Packet<'_>| p.bth.opcode.0 >> 5 == 0;
    let lost = sim.net.lose(cable, 1, u64::MAX, is_reliable);
    sim.ping_sized(0, host::v4(1), 60_000);
    // It is given up after 1.1 s; the lane is looked at every 10 s.
    sim.run_for(1500 * MS);
    drop(lost);
    let any = Upcall::TooBig(Vec::new(), 0);
    sim.with_interface(0, |interface, now| {
        interface.handle(now, datapath::Input::Upcall(any))
    });
    assert_eq!(stat(&sim, 0, "connection_failed"), 1);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, SECOND);
    assert_eq!(outcome, Outcome::Answered);
}

/// What was not told at the first use is told at a later one.
#[test]
fn the_use_of_a_stale_neighbour_is_told_again() {
    let mut sim = pair(234, [Kind::Datagram, Kind::Datagram]);
    let small = |sim: &mut Sim| ask(sim, 0, host::v4(1), 100, SECOND);
    assert_eq!(small(&mut sim), Outcome::Answered);
    let is_used = |input: &Input| {
        matches!(
            input,
            Input::Interface(datapath::Input::Upcall(Upcall::Used(_)))
        )
    };
    sim.net.refuse(is_used);
    sim.run_for(120 * SECOND);
    assert_eq!(small(&mut sim), Outcome::Answered);
    sim.net.refuse(|_| false);
    let arp = |sim: &Sim| stat(sim, 0, "rx_arp");
    let before = arp(&sim);
    assert_eq!(small(&mut sim), Outcome::Answered);
    sim.run_for(15 * SECOND);
    assert!(arp(&sim) > before, "nobody asked whether it is there still");
}

#[test]
fn wishes_for_connections_that_are_lost_are_repeated() {
    let mut sim = pair(232, [Kind::Connected, Kind::Connected]);
    sim.net.refuse(|input| {
        matches!(
            input,
            Input::Interface(datapath::Input::Upcall(
                Upcall::Connect(_) | Upcall::Used(_) | Upcall::TooBig(..)
            ))
        )
    });
    for _ in 0..5 {
        let small = ask(&mut sim, 0, host::v4(1), 100, SECOND);
        assert_eq!(small, Outcome::Answered);
    }
    assert_eq!(open(&sim, 0), (0, 0));
    sim.net.refuse(|_| false);
    let small = ask(&mut sim, 0, host::v4(1), 100, SECOND);
    assert_eq!(small, Outcome::Answered);
    sim.run_for(SECOND);
    assert_eq!(open(&sim, 0).0, 1);
}
