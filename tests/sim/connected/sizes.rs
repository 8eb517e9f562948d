//! Packets of every size between interfaces of every kind.

use super::Kind::{Connected, Datagram, Deaf};
use super::*;
use crate::host::{self, Content};
use crate::sim::{Input, Sim};
use datapath::host::HostEvent;
use std::net::IpAddr;

/// From the first host to the second, and back.
fn every_size(seed: u64, kinds: [Kind; 2], limits: [u32; 2], steps: [usize; 2]) {
    let mut sim = pair(seed, kinds);
    for (from, limit) in limits.into_iter().enumerate() {
        for (to, step) in addresses(1 - from).into_iter().zip(steps) {
            let wrong = sweep(&mut sim, from, to, sizes(to, step), limit);
            assert_eq!(wrong, [], "{kinds:?}, {from} to {to}");
        }
        for neighbour in sim.interface(from).neighbour_status(sim.now()) {
            assert_eq!(neighbour.mtu, Some(limit), "{neighbour:?}");
            let words = match (kinds[from], kinds[1 - from]) {
                (Connected, Deaf) => Some("none: it offers none (no RC flag)"),
                (Connected, _) => Some("connected"),
                _ => None,
            };
            assert_eq!(neighbour.connection.as_deref(), words, "{neighbour:?}");
        }
        let mtu = sim.interface(from).link_status().mtu;
        let expected = match kinds[from] {
            Connected => MTU,
            Datagram | Deaf => GROUP_MTU,
        };
        assert_eq!(mtu, Some(expected), "{kinds:?}, MTU of {from}");
    }
    for (h, kind) in kinds.into_iter().enumerate() {
        let connected = kind == Connected && kinds[1 - h] != Deaf;
        let own = u64::from(connected);
        assert_eq!(open(&sim, h).0, own, "{kinds:?}, connections of {h}");
        assert_eq!(open(&sim, 1 - h).1, own, "{kinds:?}, those of its peer");
        assert_eq!(stat(&sim, h, "tx_connected") > 0, connected, "{kinds:?}");
        assert_eq!(stat(&sim, h, "tx_drop_connection_full"), 0);
        assert_eq!(stat(&sim, h, "connection_failed"), 0);
    }
}

#[test]
fn both_connected() {
    every_size(61, [Connected, Connected], [MTU, MTU], [13, 97]);
}

#[test]
fn connected_and_datagram() {
    every_size(62, [Connected, Datagram], [MTU, GROUP_MTU], [13, 97]);
}

#[test]
fn datagram_and_connected() {
    every_size(63, [Datagram, Connected], [GROUP_MTU, MTU], [13, 97]);
}

#[test]
fn connected_and_one_that_takes_no_connections() {
    every_size(64, [Connected, Deaf], [GROUP_MTU, GROUP_MTU], [13, 97]);
}

/// What is too long for a group goes as fragments, also after the interface was down: its addresses are still its own.
#[test]
fn long_packets_to_groups_are_cut_after_the_interface_was_down() {
    let mut sim = pair(5, [Kind::Connected; 2]);
    let group: IpAddr = "ff15::77".parse().unwrap();
    let content = Content::Datagram(b"long".to_vec());
    for times in 1..=2 {
        sim.send(0, host::v6(0), group, &content, 10_000);
        sim.run_for(2 * SECOND);
        assert_eq!(stat(&sim, 0, "tx_fragmented"), times);
        assert_eq!(stat(&sim, 0, "tx_drop_too_big"), 0);
        for admin_up in [false, true] {
            let link = HostEvent::Link { admin_up, mtu: MTU };
            let input = Input::Interface(datapath::Input::Host(link));
            sim.net.put(sim.alive(0).interface, input);
            let done = |sim: &Sim| sim.is_up(0) == admin_up;
            assert!(sim.run_until(10 * SECOND, done));
        }
    }
}
