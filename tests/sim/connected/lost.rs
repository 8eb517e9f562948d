//! Losses while a connection is opened and used.

use super::*;
use crate::net::is_cm;
use fabric::link::fault::FaultConfig;
use wire::mad::{AttrId, MgmtClass};

/// Nearly all sizes.
const FINE: usize = 13;
/// Some sizes on both sides of the group's MTU.
const STEP: usize = 997;

#[test]
fn one_lost_message_of_the_communication_manager_loses_no_packet() {
    let messages = [
        (AttrId::CM_REQ, 0),
        (AttrId::CM_REP, 1),
        (AttrId::CM_RTU, 0),
    ];
    for (seed, (message, sender)) in messages.into_iter().enumerate() {
        let name = message.name(MgmtClass::COM_MGT).expect("a name");
        for second in [Kind::Connected, Kind::Datagram] {
            let mut sim = pair(70 + seed as u64, [Kind::Connected, second]);
            let cable = sim.alive(sender).cable;
            let lost = sim.net.lose(cable, 1, 1, move |p| is_cm(p, message));
            let start = sim.elapsed();
            // The one that is longer than a datagram waits for the connection.
            let small = sim.ping_sized(0, host::v4(1), 1000);
            let large = sim.ping_sized(0, host::v4(1), 60_000);
            assert!(sim.run_until(SECOND, |sim| sim.answered(0, small)));
            assert!(sim.run_until(10 * SECOND, |sim| sim.answered(0, large)));
            println!(
                "{name} lost: a long packet was answered after {:?}",
                sim.elapsed() - start
            );
            assert_eq!(lost.count(), 1, "{name}");
            for (to, step) in addresses(1).into_iter().zip([FINE, STEP]) {
                let wrong = sweep(&mut sim, 0, to, sizes(to, step), MTU);
                assert_eq!(wrong, [], "{name} lost, to {to}");
            }
            let back = match second {
                Kind::Connected => MTU,
                _ => GROUP_MTU,
            };
            for to in addresses(0) {
                let wrong = sweep(&mut sim, 1, to, sizes(to, STEP), back);
                assert_eq!(wrong, [], "{name} lost, back to {to}");
            }
            assert_eq!(open(&sim, 0).0, 1);
            assert_eq!(stat(&sim, 0, "connection_failed"), 0);
        }
    }
}

#[test]
fn where_no_request_arrives_packets_go_as_datagrams_or_are_refused_and_later_by_a_connection() {
    let mut sim = pair(75, [Kind::Connected, Kind::Connected]);
    let is_req = |p: &wire::packet::Packet<'_>| is_cm(p, AttrId::CM_REQ);
    let lost = [0, 1].map(|h| sim.net.lose(sim.alive(h).cable, 1, u64::MAX, is_req));
    let start = sim.elapsed();
    while sim.elapsed() - start < 30 * SECOND {
        for to in addresses(1) {
            let small = ask(&mut sim, 0, to, 1500, SECOND);
            assert_eq!(small, Outcome::Answered, "to {to}");
            let large = ask(&mut sim, 0, to, 30_000, 10 * SECOND);
            assert_eq!(large, Outcome::TooBig(GROUP_MTU), "to {to}");
        }
        sim.run_for(SECOND / 2);
    }
    assert!(lost[0].count() > 0 && lost[1].count() > 0);
    assert_eq!(open(&sim, 0), (0, 0));
    drop(lost);
    let mended = sim.elapsed();
    for (h, to) in [(0, host::v4(1)), (1, host::v6(0))] {
        loop {
            match ask(&mut sim, h, to, 30_000, 10 * SECOND) {
                Outcome::Answered => break,
                // Nor does the answer have to wait for the end of the other side's hold-down.
                refused => assert_eq!(refused, Outcome::TooBig(GROUP_MTU)),
            }
            assert!(
                sim.elapsed() - mended < 65 * SECOND,
                "{to} is never reached"
            );
            sim.run_for(SECOND);
        }
    }
    println!(
        "connected both ways {:?} after requests arrive again",
        sim.elapsed() - mended
    );
    for to in addresses(1) {
        assert_eq!(sweep(&mut sim, 0, to, sizes(to, STEP), MTU), [], "to {to}");
    }
}

/// What is too long for a datagram waits for the connection that takes the failed one's place.
#[test]
fn a_connection_that_fails_for_the_first_time_costs_no_smaller_mtu() {
    let mut sim = pair(78, [Kind::Connected, Kind::Connected]);
    let long = |sim: &mut Sim| ask(sim, 0, host::v4(1), 60_000, SECOND);
    assert_eq!(long(&mut sim), Outcome::Answered);
    let cable = sim.alive(0).cable;
    let is_reliable = |p: &wire::packet::Packet<'_>| p.bth.opcode.0 >> 5 == 0;
    let lost = sim.net.lose(cable, 1, u64::MAX, is_reliable);
    assert_eq!(long(&mut sim), Outcome::Silence);
    let failed = |sim: &Sim| stat(sim, 0, "connection_failed") == 1;
    assert!(sim.run_until(5 * SECOND, failed));
    drop(lost);
    assert_eq!(long(&mut sim), Outcome::Answered);
    assert_eq!(stat(&sim, 0, "connection_opened"), 2);
}

/// One of 100 packets is lost on each cable, in each direction.
#[test]
fn losses_are_repaired_by_the_connection() {
    for (seed, kinds) in [
        (76, [Kind::Connected, Kind::Connected]),
        (77, [Kind::Connected, Kind::Datagram]),
    ] {
        let mut sim = pair(seed, kinds);
        let loss = FaultConfig {
            loss: 0.01,
            ..FaultConfig::NONE
        };
        for h in 0..2 {
            let cable = sim.alive(h).cable;
            sim.net.set_cable_faults(cable, loss, seed + h as u64);
        }
        for to in addresses(1) {
            // Once it is connected, what is lost is ARP, ND and packets from a host in datagram mode.
            let wrong = sweep(&mut sim, 0, to, sizes(to, 301), MTU);
            println!("{kinds:?} to {to}: {wrong:?}");
            let silent = |(_, outcome): &(usize, Outcome)| *outcome == Outcome::Silence;
            assert!(wrong.iter().all(silent), "{kinds:?} to {to}: {wrong:?}");
            let few = match kinds[1] {
                Kind::Connected => 2,
                _ => 20,
            };
            assert!(wrong.len() <= few, "{kinds:?} to {to}: {wrong:?}");
            for (size, _) in wrong {
                let mut again = (0..5).map(|_| ask(&mut sim, 0, to, size, SECOND));
                assert!(
                    again.any(|outcome| outcome == Outcome::Answered),
                    "{size} to {to}"
                );
            }
        }
        assert_eq!(stat(&sim, 0, "connection_failed"), 0);
        assert_eq!(stat(&sim, 0, "connection_opened"), 1);
    }
}
