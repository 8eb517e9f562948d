//! What changes while connections are open, or none can be had: modes of peers, LIDs.

use super::*;
use crate::net::is_cm;
use fabric::sm::SaFault;
use wire::Lid;
use wire::mad::AttrId;

/// A peer that knows the RFC's service ID alone has opened the connection that both send by, ends it, and would take another.
#[test]
fn a_connection_that_has_ended_is_not_waited_for() {
    let mut sim = rfc_pair(120, [false, true]);
    let outcome = ask(&mut sim, 1, host::v4(0), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(0, 1), (1, 0)]);
    set_mode(&mut sim, 1, Mode::Datagram);
    // What the other side knows by Linux's service ID is refused while the old connection is not forgotten yet.
    sim.run_for(150 * MS);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    sim.run_for(5 * SECOND);
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(1, 0), (0, 1)]);
    assert_eq!(stat(&sim, 0, "connection_dropped_queue_full"), 0);
}

/// A switch to datagram mode does not end what the peer sends by.
#[test]
fn a_peers_own_connection_stays_when_the_mode_changes() {
    let mut sim = rfc_pair(121, [true; 2]);
    let outcome = ask(&mut sim, 1, host::v4(0), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    set_mode(&mut sim, 0, Mode::Datagram);
    let outcome = ask(&mut sim, 1, host::v4(0), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    assert_eq!(stat(&sim, 1, "connection_opened"), 1);
    assert_eq!(stat(&sim, 1, "connection_disconnected"), 0);
}

/// Either side's LID moves: connections are opened along the new paths, and none is opened along an old one.
#[test]
fn a_moved_lid_costs_no_failed_connection() {
    for (seed, moved) in [(122, 0), (123, 1)] {
        let (mut sim, sm) = one_switch(seed, 2, |sim| {
            for host in &mut sim.hosts {
                Kind::Connected.set(&mut host.config);
            }
        });
        let pairs = [(0, host::v4(1)), (1, host::v4(0))];
        for (h, to) in pairs {
            let outcome = ask(&mut sim, h, to, 60_000, 5 * SECOND);
            assert_eq!(outcome, Outcome::Answered);
        }
        let guid = sim.hosts[moved].guid;
        sim.with_sm(sm, |sm, now| sm.move_lid(now, guid, Lid(77)))
            .expect("a free LID");
        let has_moved = |sim: &Sim| sim.interface(moved).link_status().lid == 77;
        assert!(sim.run_until(10 * SECOND, has_moved));
        let start = sim.elapsed();
        for (h, to) in pairs {
            while ask(&mut sim, h, to, 60_000, SECOND / 4) != Outcome::Answered {
                let patience = 10 * SECOND;
                assert!(
                    sim.elapsed() - start < patience,
                    "host {moved} moved, {h} to {to}"
                );
            }
        }
        println!("host {moved} moved: {:?}", sim.elapsed() - start);
        // The side that moved opens none that fails.
        assert_eq!(stat(&sim, moved, "connection_failed"), 0);
        assert_eq!([open(&sim, 0), open(&sim, 1)], [(1, 1); 2]);
    }
}

/// The own LID moves while the SA is silent: what is known of a peer's is enough to open a connection that works.
#[test]
fn a_request_says_the_own_lid_of_now() {
    let (mut sim, sm) = one_switch(124, 2, |sim| {
        for host in &mut sim.hosts {
            Kind::Connected.set(&mut host.config);
        }
    });
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, 5 * SECOND);
    assert_eq!(outcome, Outcome::Answered);
    let guid = sim.hosts[0].guid;
    sim.with_sm(sm, |sm, now| {
        sm.set_sa_fault(Some(SaFault::Drop), None);
        sm.move_lid(now, guid, Lid(77))
    })
    .expect("a free LID");
    let has_moved = |sim: &Sim| sim.interface(0).link_status().lid == 77;
    assert!(sim.run_until(10 * SECOND, has_moved));
    // The answers do not find it.
    for _ in 0..4 {
        ask(&mut sim, 0, host::v4(1), 60_000, SECOND);
    }
    assert_eq!(stat(&sim, 0, "connection_opened"), 2);
    assert_eq!(stat(&sim, 0, "connection_failed"), 0);
    sim.with_sm(sm, |sm, _| sm.set_sa_fault(None, None));
    let mended = sim.elapsed();
    while ask(&mut sim, 0, host::v4(1), 60_000, SECOND) != Outcome::Answered {
        assert!(sim.elapsed() - mended < 60 * SECOND);
    }
}

fn is_request(packet: &wire::packet::Packet<'_>) -> bool {
    is_cm(packet, AttrId::CM_REQ)
}

/// What kept a connection from being opened is over when there is another path: nothing waits for the end of the hold-down.
#[test]
fn another_path_ends_the_hold_down() {
    let (mut sim, sm) = one_switch(125, 2, |sim| {
        let config = &mut sim.hosts[0].config;
        Kind::Connected.set(config);
        config.connected.hold_down_min = 600 * SECOND;
        config.connected.hold_down_max = 600 * SECOND;
    });
    let lost = sim.net.lose(sim.alive(0).cable, 1, u64::MAX, is_request);
    for _ in 0..2 {
        let outcome = ask(&mut sim, 0, host::v4(1), 60_000, 10 * SECOND);
        assert_eq!(outcome, Outcome::TooBig(GROUP_MTU));
    }
    drop(lost);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, 10 * SECOND);
    assert_eq!(outcome, Outcome::TooBig(GROUP_MTU), "held down");
    let guid = sim.hosts[1].guid;
    sim.with_sm(sm, |sm, now| sm.move_lid(now, guid, Lid(77)))
        .expect("a free LID");
    // The answers are no longer than the other side's MTU.
    let asked = sim.hosts[1].log.requests;
    let start = sim.elapsed();
    while stat(&sim, 0, "tx_connected") == 0 {
        assert!(sim.elapsed() - start < 30 * SECOND, "held down");
        ask(&mut sim, 0, host::v4(1), 60_000, SECOND / 2);
    }
    assert!(sim.hosts[1].log.requests > asked);
}

/// Own requests do not arrive, and the peer's connection is for both directions: what waits goes by that.
#[test]
fn a_peers_connection_takes_the_place_of_an_own_one_that_could_not_be_had() {
    let mut sim = rfc_pair(126, [false, true]);
    let lost = sim.net.lose(sim.alive(0).cable, 1, u64::MAX, is_request);
    let tokens = [(0, host::v4(1)), (1, host::v4(0))].map(|(h, to)| {
        let token = sim.ping_sized(h, to, 60_000);
        sim.run_for(SECOND / 2);
        (h, token)
    });
    assert!(lost.count() > 0);
    sim.run_for(9 * SECOND);
    for (h, token) in tokens {
        assert_eq!(outcome(&sim, h, token), Outcome::Answered, "host {h}");
    }
    assert_eq!(stat(&sim, 0, "connection_timed_out"), 1);
    assert_eq!([open(&sim, 0), open(&sim, 1)], [(0, 1), (1, 0)]);
    let outcome = ask(&mut sim, 0, host::v4(1), 60_000, SECOND);
    assert_eq!(outcome, Outcome::Answered);
}
