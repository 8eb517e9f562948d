//! Broadcast groups and paths of every MTU, and groups whose MTU changes.

use super::Kind::{Connected, Datagram, Deaf};
use super::*;
use crate::basic::one_switch_as;
use crate::host::Content;
use crate::sim::SmPlace;
use fabric::sm::{GroupParams, Membership, Partition, SmConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use wire::packet::Packet;
use wire::{MtuCode, PKey};

const M256: MtuCode = MtuCode(1);
const M512: MtuCode = MtuCode(2);
const M1024: MtuCode = MtuCode(3);
const M2048: MtuCode = MtuCode::MTU_2048;
const M4096: MtuCode = MtuCode::MTU_4096;
const GROUP: &str = "239.1.2.3";
const GROUP_V6: &str = "ff15::77";

/// A manager whose broadcast group has this MTU.
fn manager(mtu: MtuCode) -> SmConfig {
    let group = GroupParams {
        mtu,
        ..GroupParams::default()
    };
    let all = Partition::all(
        "Default",
        PKey::DEFAULT_LIMITED,
        Membership::Full,
        Some(group),
    );
    SmConfig {
        partitions: vec![all],
        ..SmConfig::default()
    }
}

/// IP MTU of datagrams, bytes.
fn ip_mtu(code: MtuCode) -> u32 {
    u32::from(code.bytes().expect("a code")) - 4
}

/// Two hosts, both members of the groups, where the SA tells of paths with this MTU.
fn hosts(seed: u64, group: MtuCode, path: MtuCode, kinds: [Kind; 2]) -> (Sim, usize) {
    one_switch_as(seed, 2, manager(group), |sim| {
        sim.net.alter_paths(move |record| record.mtu = path);
        for (h, kind) in kinds.into_iter().enumerate() {
            kind.set(&mut sim.hosts[h].config);
            let groups = [GROUP, GROUP_V6].map(|ip| ip.parse::<IpAddr>().expect("an address"));
            sim.hosts[h].groups.extend(groups);
        }
    })
}

/// The longest payload that a host sends of the packets that `matches` takes.
fn longest(
    sim: &Sim,
    h: usize,
    matches: impl Fn(&Packet<'_>) -> bool + Send + 'static,
) -> (Arc<AtomicUsize>, crate::net::Lost) {
    let longest = Arc::new(AtomicUsize::new(0));
    let found = longest.clone();
    let lost = sim.net.lose(sim.alive(h).cable, 1, 0, move |packet| {
        let is = matches(packet);
        if is {
            found.fetch_max(packet.payload.len(), Relaxed);
        }
        is
    });
    (longest, lost)
}

fn is_reliable(packet: &Packet<'_>) -> bool {
    packet.bth.opcode.0 >> 5 == 0
}

/// What became of a packet of `len` bytes, its way back aside.
fn fate(sim: &mut Sim, from: usize, to: IpAddr, len: u32) -> Outcome {
    let before = sim.hosts[1 - from].log.requests;
    let token = sim.ping_sized(from, to, (len - headers(to)) as usize);
    let arrived = |sim: &Sim| sim.hosts[1 - from].log.requests > before;
    let refused = |sim: &Sim| outcome(sim, from, token) != Outcome::Silence;
    sim.run_until(10 * SECOND, |sim| arrived(sim) || refused(sim));
    match (arrived(sim), outcome(sim, from, token)) {
        (true, _) => Outcome::Answered,
        (false, refused) => refused,
    }
}

/// Lengths of packets about each of these.
fn about(limits: &[u32]) -> impl Iterator<Item = u32> {
    let all = limits.iter().flat_map(|n| n - 1..=n + 1);
    // IPv6's least MTU: what is smaller it does not know of.
    let all = all.chain([600, 1279, 1280, 1281, 30_000]);
    all.collect::<Vec<_>>().into_iter()
}

/// All edges both ways, and to groups.
fn edges(sim: &mut Sim, kinds: [Kind; 2], group: u32, path: u32, what: &str) {
    for from in 0..2 {
        let connected = kinds[from] == Connected && kinds[1 - from] != Deaf;
        for to in addresses(1 - from) {
            let limit = match (connected, to.is_ipv4()) {
                (true, _) => MTU,
                (false, true) => path,
                (false, false) => path.max(1280),
            };
            for len in about(&[path, group, MTU]) {
                let expected = match len <= limit {
                    true => Outcome::Answered,
                    false => Outcome::TooBig(limit),
                };
                let got = fate(sim, from, to, len);
                assert_eq!(got, expected, "{what}: {len} bytes from {from} to {to}");
            }
        }
        let device = sim.interface(from).link_status().mtu;
        let expected = match kinds[from] {
            Connected => MTU,
            _ => group,
        };
        assert_eq!(device, Some(expected), "{what}: MTU of host {from}");
        let fits_device = |len: &u32| *len <= expected;
        for ip in [GROUP, GROUP_V6] {
            let source = match ip {
                GROUP => host::v4(from),
                _ => host::v6(from),
            };
            for len in about(&[group, MTU]).filter(fits_device) {
                let content = Content::Datagram(len.to_be_bytes().to_vec());
                let padding = len - headers(source) - 4;
                let group = ip.parse().expect("an address");
                sim.hosts[1 - from].log.datagrams.clear();
                sim.send(from, source, group, &content, padding as usize);
                sim.run_for(SECOND);
                let heard = &sim.hosts[1 - from].log.datagrams;
                let whole = heard
                    .iter()
                    .filter(|(_, _, data)| data.len() as u32 == padding + 4);
                assert_eq!(
                    (heard.len(), whole.count()),
                    (1, 1),
                    "{what}: {len} bytes from {from} to {ip}"
                );
            }
        }
    }
}

#[test]
fn every_group_and_path_mtu() {
    let mtus = [
        (M4096, M4096),
        (M4096, M1024),
        (M4096, M256),
        (M2048, M512),
        (M1024, M1024),
        (M256, M256),
    ];
    let kinds = [
        [Connected, Connected],
        [Connected, Datagram],
        [Connected, Deaf],
        [Datagram, Datagram],
    ];
    let mut seed = 1000;
    for (group, path) in mtus {
        for kinds in kinds {
            seed += 1;
            let what = format!("group {}, path {}, {kinds:?}", ip_mtu(group), ip_mtu(path));
            let (mut sim, _) = hosts(seed, group, path, kinds);
            let longest = [0, 1].map(|h| {
                let reliable = longest(&sim, h, is_reliable);
                let is_datagram = |p: &Packet<'_>| {
                    !is_reliable(p) && p.bth.dest_qp != wire::Qpn::GSI && p.lrh.dlid.is_unicast()
                };
                [reliable, longest(&sim, h, is_datagram)]
            });
            edges(&mut sim, kinds, ip_mtu(group), ip_mtu(path), &what);
            let bytes = usize::from(path.bytes().expect("a code"));
            for (h, [reliable, datagram]) in longest.into_iter().enumerate() {
                let connected = kinds[h] == Connected && kinds[1 - h] != Deaf;
                let expected = usize::from(connected) * bytes;
                assert_eq!(reliable.0.load(Relaxed), expected, "{what}: host {h}");
                assert!(datagram.0.load(Relaxed) <= bytes, "{what}: host {h}");
                assert_eq!(stat(&sim, h, "connection_failed"), 0, "{what}: host {h}");
            }
        }
    }
}

/// A manager takes over whose broadcast group has another MTU.
#[test]
fn a_group_whose_mtu_changes_while_connections_are_open() {
    for (seed, from, to) in [
        (1050, M4096, M2048),
        (1051, M2048, M4096),
        (1052, M4096, M1024),
    ] {
        for kinds in [[Connected, Connected], [Connected, Datagram]] {
            let what = format!("{} to {}, {kinds:?}", ip_mtu(from), ip_mtu(to));
            let (mut sim, sm) = hosts(seed, from, M4096, kinds);
            edges(&mut sim, kinds, ip_mtu(from), ip_mtu(from), &what);
            assert_eq!(open(&sim, 0).0, 1);
            sim.kill_sm(sm);
            sim.start_sm(SmPlace::Switch(0), manager(to));
            let group = ip_mtu(to);
            let known = |sim: &Sim, h: usize| sim.interface(h).link_status().group_mtu;
            let start = sim.elapsed();
            // No packet that fits into a datagram is lost meanwhile but those of an instant, and what is longer goes by the connection.
            let mut lost = 0;
            while (0..2).any(|h| known(&sim, h) != Some(group)) {
                assert!(sim.elapsed() - start < 30 * SECOND, "{what}: unknown");
                for size in [200, 60_000] {
                    let outcome = ask(&mut sim, 0, host::v4(1), size, SECOND / 10);
                    lost += u32::from(outcome != Outcome::Answered);
                }
            }
            println!("{what}: after {:?}, {lost} lost", sim.elapsed() - start);
            assert!(lost <= 2, "{what}");
            edges(&mut sim, kinds, group, group, &what);
            assert_eq!(stat(&sim, 0, "connection_failed"), 0, "{what}");
        }
    }
}

/// Groups are joined again one by one: until then, too, nothing is sent to them that does not fit the broadcast group.
#[test]
fn packets_to_groups_fit_the_broadcast_group_as_soon_as_it_is_smaller() {
    let (old, new) = (M4096, M2048);
    let (mut sim, sm) = hosts(1060, old, old, [Connected; 2]);
    sim.run_for(2 * SECOND);
    let cable = sim.alive(0).cable;
    let long = |p: &Packet<'_>| p.lrh.dlid.is_multicast() && p.payload.len() > 2048;
    let sent_long = sim.net.lose(cable, 1, 0, long);
    let to = GROUP.parse().expect("an address");
    let content = Content::Datagram(b"long".to_vec());
    let long = |sim: &mut Sim| sim.send(0, host::v4(0), to, &content, 3000);
    long(&mut sim);
    assert_eq!(sent_long.seen(), 1);
    sim.kill_sm(sm);
    sim.start_sm(SmPlace::Switch(0), manager(new));
    let smaller = |sim: &Sim| sim.interface(0).link_status().group_mtu == Some(ip_mtu(new));
    let start = sim.elapsed();
    while !smaller(&sim) {
        assert!(sim.elapsed() - start < 30 * SECOND, "not smaller");
        sim.run_for(MS / 10);
    }
    for _ in 0..100 {
        long(&mut sim);
        sim.run_for(10 * MS);
    }
    assert_eq!(sent_long.seen(), 1);
    assert_eq!(stat(&sim, 0, "tx_fragmented"), 100);
}

/// Links to some peers are slower than those to others, and become so while connections are open.
#[test]
fn each_connection_has_the_mtu_of_its_path() {
    let (mut sim, mut sm) = one_switch_as(1070, 3, manager(M4096), |sim| {
        for host in &mut sim.hosts {
            Connected.set(&mut host.config);
        }
    });
    let slow = sim.gid(1);
    // The paths that the hosts know already are asked for anew when the manager is another one.
    for path in [M1024, M512, M2048] {
        sim.net.alter_paths(move |record| {
            if [record.sgid, record.dgid].contains(&slow) {
                record.mtu = path;
            }
        });
        sim.kill_sm(sm);
        sm = sim.start_sm(SmPlace::Switch(0), manager(M4096));
        let slow_mtu = path.bytes().expect("a code");
        let known = |sim: &Sim, h: usize| {
            let other = sim.gid(1 - h).to_string();
            let mut paths = sim.interface(h).path_status(sim.now()).into_iter();
            paths.any(|p| p.gid == other && p.mtu == Some(slow_mtu))
        };
        let start = sim.elapsed();
        while (0..2).any(|h| !known(&sim, h)) {
            assert!(sim.elapsed() - start < 60 * SECOND, "not known");
            for to in [1, 2].map(host::v4) {
                ask(&mut sim, 0, to, 60_000, SECOND / 10);
            }
        }
        for (h, bytes) in [(1, slow_mtu.into()), (2, 4096)] {
            let (sent, _watched) = longest(&sim, 0, is_reliable);
            let (received, _watched) = longest(&sim, h, is_reliable);
            let outcome = ask(&mut sim, 0, host::v4(h), 60_000, 5 * SECOND);
            assert_eq!(outcome, Outcome::Answered, "{path:?}, host {h}");
            let both = [sent.load(Relaxed), received.load(Relaxed)];
            assert_eq!(both, [bytes; 2], "{path:?}, host {h}");
        }
        assert_eq!(stat(&sim, 0, "connection_failed"), 0);
    }
}
