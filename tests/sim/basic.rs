//! Three hosts on one switch: everything that works when nothing fails, and TCP where something does.

use crate::host::{self, Content};
use crate::sim::{Sim, SmPlace};
use fabric::sm::SmConfig;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// `hosts` hosts on one switch with a subnet manager, all up.
pub fn one_switch(seed: u64, hosts: usize, prepare: impl Fn(&mut Sim)) -> (Sim, usize) {
    one_switch_as(seed, hosts, SmConfig::default(), prepare)
}

/// The same with another manager.
pub fn one_switch_as(
    seed: u64,
    hosts: usize,
    config: SmConfig,
    prepare: impl Fn(&mut Sim),
) -> (Sim, usize) {
    let mut sim = Sim::new(seed);
    let switch = sim.add_switch(2 * hosts as u8 + 4);
    for _ in 0..hosts {
        sim.add_host(switch);
    }
    prepare(&mut sim);
    let sm = sim.start_sm(SmPlace::Switch(switch), config);
    (0..hosts).for_each(|h| sim.start(h));
    let up = sim.run_until(10 * SECOND, |sim| (0..hosts).all(|h| sim.is_up(h)));
    assert!(up, "seed {seed}: {:?}", states(&sim));
    (sim, sm)
}

pub fn states(sim: &Sim) -> Vec<(usize, String)> {
    sim.live()
        .into_iter()
        .filter(|h| !sim.is_up(*h))
        .map(|h| (h, sim.interface(h).state_in_words()))
        .collect()
}

/// Every live host to every other, by IPv4, IPv6 and link-local addresses.
pub fn all_pairs(sim: &Sim) -> Vec<(usize, IpAddr)> {
    let live = sim.live();
    let pairs = live
        .iter()
        .flat_map(|a| live.iter().filter(move |b| *b != a).map(move |b| (*a, *b)));
    pairs
        .flat_map(|(a, b)| [(a, host::v4(b)), (a, host::v6(b))])
        .collect()
}

#[test]
fn three_hosts_ping_each_other() {
    let (mut sim, _) = one_switch(1, 3, |_| {});
    println!("3 hosts up after {:?} of virtual time", sim.elapsed());
    let mut pairs = all_pairs(&sim);
    pairs.extend([(0, sim.link_local(1)), (2, sim.link_local(0))]);
    let tokens: Vec<_> = pairs
        .iter()
        .map(|(from, to)| (*from, *to, sim.ping(*from, *to)))
        .collect();
    sim.run_for(SECOND);
    for (from, to, token) in tokens {
        let reply = sim.hosts[from].log.replies.get(&token);
        assert_eq!(
            reply.map(|(source, ..)| *source),
            Some(to),
            "from host {from}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run = |seed| {
        let (mut sim, _) = one_switch(seed, 3, |sim| sim.set_faults(0.02, 0.02, 0.02));
        let pairs = all_pairs(&sim);
        sim.ping_until_answered(&pairs, 30 * SECOND);
        (sim.trace, sim.events, sim.elapsed())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn multicast_is_heard_by_members_alone() {
    let group = IpAddr::from([239, 1, 2, 3]);
    let all_nodes: IpAddr = "ff02::1".parse().expect("literal");
    let (mut sim, _) = one_switch(2, 4, |sim| {
        sim.hosts[1].groups.push(group);
        sim.hosts[2].groups.push(group);
    });
    sim.run_for(2 * SECOND);
    sim.send(
        0,
        host::v4(0),
        group,
        &Content::Datagram(b"to the group".to_vec()),
        0,
    );
    sim.send(
        0,
        sim.link_local(0),
        all_nodes,
        &Content::Datagram(b"to all".to_vec()),
        0,
    );
    // A member hears the others, not itself.
    sim.send(
        1,
        host::v4(1),
        group,
        &Content::Datagram(b"from a member".to_vec()),
        0,
    );
    sim.run_for(SECOND);
    let heard: Vec<Vec<String>> = sim
        .hosts
        .iter()
        .map(|host| {
            let mut heard: Vec<_> = host
                .log
                .datagrams
                .iter()
                .map(|(_, _, data)| String::from_utf8_lossy(data).into_owned())
                .collect();
            heard.sort();
            heard
        })
        .collect();
    assert_eq!(
        heard,
        [
            vec![],
            vec!["to all", "to the group"],
            vec!["from a member", "to all", "to the group"],
            vec!["to all"]
        ]
    );
    // An echo request to all is answered by all the others.
    let token = sim.ping(3, all_nodes);
    sim.run_for(SECOND);
    assert!(sim.answered(3, token));
    assert_eq!(
        sim.hosts[0].log.requests + sim.hosts[1].log.requests + sim.hosts[2].log.requests,
        3
    );
}

#[test]
fn what_is_larger_than_a_group_takes_arrives_in_fragments() {
    // Subnet and limited broadcast, all hosts, and groups that the sender must join at the first packet, which waits for that.
    let groups = [
        "10.77.255.255",
        "255.255.255.255",
        "224.0.0.1",
        "ff02::1",
        "239.1.2.3",
        "ff15::1",
    ]
    .map(|group| group.parse::<IpAddr>().expect("literal"));
    let (mut sim, _) = one_switch(5, 3, |sim| {
        sim.hosts[1].groups.extend(&groups[4..]);
        sim.hosts[2].groups.extend(&groups[4..]);
    });
    // Announcements are over.
    sim.run_for(5 * SECOND);
    let counters = |sim: &Sim, host: usize| -> BTreeMap<&str, u64> {
        let counters = sim.interface(host).plane().counters().list();
        counters.into_iter().collect()
    };
    for len in [2016, 2017, 10_000, 60_000] {
        let data: Vec<u8> = (0..len).map(|i: usize| (i ^ i >> 8) as u8).collect();
        for group in groups {
            let source = match group {
                IpAddr::V4(_) => host::v4(0),
                IpAddr::V6(_) => host::v6(0),
            };
            let before = counters(&sim, 0);
            sim.send(0, source, group, &Content::Datagram(data.clone()), 0);
            sim.run_for(SECOND);
            let after = counters(&sim, 0);
            let grown = |name| after[name] - before[name];
            let total = len + if source.is_ipv4() { 28 } else { 48 };
            let per_fragment = if source.is_ipv4() { 2024 } else { 1992 };
            let fragments = match total {
                ..=2044 => 1,
                _ => (len + 8).div_ceil(per_fragment),
            };
            let case = format!("{len} bytes to {group}");
            assert_eq!(grown("tx_fragmented"), u64::from(fragments > 1), "{case}");
            assert_eq!(grown("tx_packets"), fragments as u64, "{case}");
            assert_eq!(grown("tx_multicast"), fragments as u64, "{case}");
            assert_eq!(grown("tx_drop_too_big"), 0, "{case}");
            for to in [1, 2] {
                let heard = std::mem::take(&mut sim.hosts[to].log.datagrams);
                assert_eq!(heard, [(source, group, data.clone())], "{case}");
            }
        }
    }
}

#[test]
fn tcp_carries_a_megabyte_under_loss() {
    const TOTAL: usize = 1 << 20;
    let (mut sim, _) = one_switch(3, 3, |sim| {
        sim.hosts[0].is_stack = true;
        sim.hosts[1].is_stack = true;
    });
    for to in [host::v4(1), host::v6(1)] {
        sim.stop_start(1);
        assert!(sim.run_until(10 * SECOND, |sim| sim.is_up(1)));
        sim.set_faults(0.01, 0.0, 0.0);
        sim.stack(1).listen(80);
        sim.stack(0).transfer(to, 80, TOTAL);
        sim.poke(1);
        sim.poke(0);
        let start = sim.elapsed();
        // Each byte is compared with what was sent as it arrives.
        for _ in 0..3000 {
            sim.run_for(Duration::from_millis(100));
            if sim.stack(1).received == TOTAL {
                break;
            }
        }
        assert_eq!(sim.stack(1).received, TOTAL, "bytes to {to}");
        println!(
            "1 MiB by TCP to {to} under 1% loss: {:?} of virtual time, {} packets lost",
            sim.elapsed() - start,
            sim.net.lost()
        );
        sim.set_faults(0.0, 0.0, 0.0);
    }
}
