//! MTU and partitions.

use crate::basic::states;
use crate::host::{self, Content};
use crate::sim::{Sim, SmPlace};
use fabric::sm::{GroupParams, Membership, Partition, SmConfig};
use std::net::IpAddr;
use std::time::Duration;
use wire::{Guid, MtuCode, PKey};

const SECOND: Duration = Duration::from_secs(1);

fn subnet(seed: u64, hosts: usize, config: SmConfig) -> (Sim, usize) {
    let mut sim = Sim::new(seed);
    let switch = sim.add_switch(16);
    for _ in 0..hosts {
        sim.add_host(switch);
    }
    let sm = sim.start_sm(SmPlace::Switch(switch), config);
    (sim, sm)
}

fn with_mtu(mtu: MtuCode) -> SmConfig {
    let params = GroupParams {
        mtu,
        ..GroupParams::default()
    };
    SmConfig {
        partitions: vec![Partition::all(
            "Default",
            PKey::DEFAULT_LIMITED,
            Membership::Full,
            Some(params),
        )],
        ..SmConfig::default()
    }
}

fn oversize_is_answered_with(mtu: MtuCode, expected: u32) {
    let (mut sim, _) = subnet(21, 2, with_mtu(mtu));
    (0..2).for_each(|h| sim.start(h));
    assert!(
        sim.run_until(5 * SECOND, |sim| sim.is_up(0) && sim.is_up(1)),
        "{:?}",
        states(&sim)
    );
    for (source, destination, headers) in [
        (host::v4(0), host::v4(1), 28),
        (host::v6(0), host::v6(1), 48),
    ] {
        sim.hosts[0].log.too_big.clear();
        sim.hosts[1].log.datagrams.clear();
        let fitting = Content::Datagram(vec![1; expected as usize - headers]);
        let oversize = Content::Datagram(vec![2; expected as usize - headers + 1]);
        // Once while the neighbour is unknown, once afterwards.
        for _ in 0..2 {
            sim.send(0, source, destination, &oversize, 0);
            sim.send(0, source, destination, &fitting, 0);
            sim.run_for(SECOND);
        }
        assert_eq!(sim.hosts[0].log.too_big, [expected; 2]);
        assert_eq!(sim.hosts[1].log.datagrams.len(), 2);
    }
    let link = sim.interface(0).link_status();
    assert_eq!((link.mtu, link.group_mtu), (Some(expected), Some(expected)));
}

#[test]
fn oversize_packets_are_answered_with_the_groups_mtu() {
    oversize_is_answered_with(MtuCode::MTU_2048, 2044);
    oversize_is_answered_with(MtuCode::MTU_4096, 4092);
}

/// Hosts 0 and 1 in partition 1, 2 and 3 in partition 2, and nobody else.
fn two_partitions(sim: &Sim) -> SmConfig {
    let member = |h: usize| (sim.hosts[h].guid, Membership::Full);
    let partition = |key: u16, members: Vec<(Guid, Membership)>| {
        Partition::of(
            &format!("p{key}"),
            PKey(key),
            members,
            Some(GroupParams::default()),
        )
    };
    SmConfig {
        partitions: vec![
            partition(1, vec![member(0), member(1)]),
            partition(2, vec![member(2), member(3)]),
        ],
        ..SmConfig::default()
    }
}

#[test]
fn partitions_do_not_hear_each_other() {
    let mut sim = Sim::new(22);
    let switch = sim.add_switch(16);
    for h in 0..4 {
        sim.add_host(switch);
        sim.hosts[h].config.p_key = Some(PKey(if h < 2 { 1 } else { 2 }));
    }
    let config = two_partitions(&sim);
    sim.start_sm(SmPlace::Switch(switch), config);
    (0..4).for_each(|h| sim.start(h));
    assert!(
        sim.run_until(5 * SECOND, |sim| (0..4).all(|h| sim.is_up(h))),
        "{:?}",
        states(&sim)
    );
    let inside: Vec<(usize, IpAddr)> = [(0, 1), (1, 0), (2, 3), (3, 2)]
        .iter()
        .flat_map(|(a, b)| [(*a, host::v4(*b)), (*a, host::v6(*b))])
        .collect();
    assert_eq!(sim.ping_until_answered(&inside, 5 * SECOND), []);
    let all_nodes: IpAddr = "ff02::1".parse().expect("literal");
    let before: Vec<u64> = sim.hosts.iter().map(|host| host.log.requests).collect();
    let across: Vec<u32> = [host::v4(2), host::v6(2), sim.link_local(3)]
        .map(|to| sim.ping(0, to))
        .to_vec();
    let all = sim.ping(0, all_nodes);
    sim.run_for(10 * SECOND);
    assert!(across.iter().all(|token| !sim.answered(0, *token)));
    assert_eq!(
        sim.hosts[0].log.replies.get(&all).map(|(from, ..)| *from),
        Some(sim.link_local(1))
    );
    let heard: Vec<u64> = sim
        .hosts
        .iter()
        .zip(before)
        .map(|(host, before)| host.log.requests - before)
        .collect();
    assert_eq!(heard, [0, 1, 0, 0]);
    // The host was told that the others are not there.
    assert_eq!(sim.hosts[0].log.unreachable, 3);
}

#[test]
fn an_interface_waits_for_its_p_key() {
    let (mut sim, sm) = subnet(23, 2, SmConfig::default());
    for h in 0..2 {
        sim.hosts[h].config.p_key = Some(PKey(0x8005));
        sim.start(h);
    }
    sim.run_for(5 * SECOND);
    assert!(!sim.is_up(0));
    assert_eq!(
        sim.interface(0).state_in_words(),
        "P_Key 0x8005 is not in the port's table (it has 0xffff)"
    );
    assert_eq!(sim.alive(0).hca.resources().queue_pairs.len(), 0);
    let mut config = SmConfig::default();
    config.partitions.push(Partition::all(
        "five",
        PKey(5),
        Membership::Full,
        Some(GroupParams::default()),
    ));
    sim.reconfigure_sm(sm, config);
    assert!(
        sim.run_until(2 * SECOND, |sim| sim.is_up(0) && sim.is_up(1)),
        "{:?}",
        states(&sim)
    );
    assert_eq!(
        sim.ping_until_answered(&[(0, host::v4(1)), (1, host::v6(0))], 2 * SECOND),
        []
    );
    // And back: it waits again, in the same words.
    sim.reconfigure_sm(sm, SmConfig::default());
    sim.run_for(2 * SECOND);
    assert!(!sim.is_up(0));
    assert_eq!(
        sim.interface(0).state_in_words(),
        "P_Key 0x8005 is not in the port's table (it has 0xffff)"
    );
}
