//! Floods and random input.

mod common;

use arp::{NeighbourConfig, Neighbours, PathError, State};
use common::*;
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::ipoib::LinkAddress;
use wire::ipoib::arp::ArpOperation;
use wire::ipoib::nd::{neighbor_solicitation, solicited_node};

#[test]
fn a_hundred_thousand_invented_senders() {
    let mut host = Host::up();
    let config = NeighbourConfig::default();
    for n in 2..52 {
        host.make_reachable(v4(n), link(n, 0x49), n as u16);
    }
    // Some are in use as stale entries when the flood comes.
    host.run(45 * SECOND);
    for n in 2..27 {
        host.use_table(v4(n));
    }
    let before = host.table.clone();
    for n in 0..100_000 {
        let stranger = link(1_000_000 + n, 0x1234);
        host.arp_request(v4(5000 + n), stranger, v4(1));
        if n % 2 == 0 {
            let source = six(v6(5000 + n));
            let group = solicited_node(six(v6(1)));
            host.nd(
                stranger,
                &neighbor_solicitation(source, group, six(v6(1)), Some(stranger)),
            );
        }
        if n % 100 == 0 {
            // The SA knows none of them, and is not fast. Nobody else is disturbed.
            if let Some(&gid) = host.queries.first() {
                host.queries.remove(&gid);
                host.machine
                    .path_result(host.now, gid, Err(PathError::NotFound));
                host.drain();
            }
            assert!(host.machine.neighbours(host.now).count() <= 50 + config.max_learned);
            let paths = host.machine.paths(host.now).count();
            let most =
                50 + config.max_learned + config.max_waiting_replies + config.max_path_queries;
            assert!(paths <= most, "{paths}");
            assert!(host.queries.len() <= config.max_path_queries / 2);
        }
    }
    assert_eq!(host.table, before);
    let counters = host.machine.counters();
    assert!(
        counters.evicted > 90_000 && counters.dropped_reply_full > 90_000,
        "{counters:?}"
    );
    // Who is wanted gets a path at once, whatever the queue of strangers.
    let peer = link(200, 0x49);
    let id = host.send(v4(200));
    host.arp_reply(v4(200), peer);
    host.answer(peer.gid, 200);
    assert_eq!(host.flushed.last(), Some(&(v4(200), id)));
    // When it is over nothing is left but what is in use.
    for gid in std::mem::take(&mut host.queries) {
        host.machine
            .path_result(host.now, gid, Err(PathError::TimedOut));
    }
    while !host.queries.is_empty() || host.machine.poll_timeout().is_some() {
        host.drain();
        for gid in std::mem::take(&mut host.queries) {
            host.machine
                .path_result(host.now, gid, Err(PathError::TimedOut));
        }
        host.run(SECOND);
    }
    assert_eq!(
        host.machine.paths(host.now).count() + host.machine.neighbours(host.now).count(),
        0
    );
}

#[test]
fn strangers_do_not_push_out_those_we_talk_to() {
    let config = NeighbourConfig {
        max_entries: 20,
        max_learned: 20,
        ..NeighbourConfig::default()
    };
    let mut host = Host::new(config, 1, Instant::now());
    host.machine.add_address(host.now, v4(1), 16);
    host.machine.link_up(host.now, link(1, 0x48));
    for n in 2..17 {
        host.make_reachable(v4(n), link(n, 0x49), n as u16);
    }
    host.run(45 * SECOND);
    let stale = host.table.clone();
    assert_eq!(stale.len(), 15);
    for n in 100..200 {
        host.arp_request(v4(n), link(n, 0x49), v4(1));
    }
    assert_eq!(host.table, stale);
    assert_eq!(host.machine.neighbours(host.now).count(), 20);
    // With only such neighbours left, a stranger is answered but not remembered.
    for n in 17..22 {
        host.send(v4(n));
    }
    host.arp_request(v4(300), link(300, 0x49), v4(1));
    assert_eq!(host.table, stale);
    assert_eq!(host.state(v4(300)), None);
    assert_eq!(host.machine.counters().not_learned, 1);
}

#[test]
fn a_packet_moves_its_query_to_the_front() {
    let mut host = Host::up();
    for n in 100..200 {
        host.arp_request(v4(n), link(n, 0x49), v4(1));
    }
    assert_eq!(
        host.queries.len(),
        NeighbourConfig::default().max_path_queries / 2
    );
    assert!(!host.queries.contains(&gid(199)));
    let id = host.send(v4(199));
    host.answer(gid(199), 9);
    assert_eq!(host.flushed, [(v4(199), id)]);
}

#[test]
fn a_change_while_a_query_is_outstanding_makes_another() {
    let mut host = Host::up();
    host.make_reachable(v4(2), link(2, 0x49), 2);
    host.machine.gid_in_service(host.now, gid(2));
    host.drain();
    host.machine.gid_in_service(host.now, gid(2));
    host.drain();
    host.answer(gid(2), 3);
    host.answer(gid(2), 4);
    assert!(host.queries.is_empty());
    assert_eq!(host.table[&v4(2)].path.dlid, wire::Lid(4));
}

#[test]
fn local_scans_are_bounded_and_evict_only_the_unused() {
    let config = NeighbourConfig {
        max_entries: 100,
        max_learned: 20,
        ..NeighbourConfig::default()
    };
    let mut host = Host::new(config, 1, Instant::now());
    host.machine.add_address(host.now, v4(1), 16);
    host.machine.link_up(host.now, link(1, 0x48));
    host.drain();
    host.make_reachable(v4(2), link(2, 0x49), 2);
    host.arp_request(v4(3), link(3, 0x49), v4(1));
    host.answer(gid(3), 3);
    for n in 1000..3000 {
        host.send(v4(n));
        assert!(host.machine.neighbours(host.now).count() <= 100);
    }
    assert_eq!(
        (host.state(v4(2)), host.state(v4(3))),
        (Some(State::Reachable), None)
    );
    assert_eq!(host.machine.counters().table_full, 2000 - 99);
    host.run(3 * SECOND);
    // The failed ones make room again.
    host.make_reachable(v4(4), link(4, 0x49), 4);
    assert_eq!(host.unreachable.len(), 2000);
}

#[derive(Clone, Debug)]
enum Op {
    Send(u32, bool),
    Resolve(u32),
    Use(u32, bool),
    Arp {
        request: bool,
        sender: u32,
        address: LinkAddress,
        target: u32,
        multicast: bool,
    },
    Advertise {
        target: u32,
        address: Option<LinkAddress>,
        solicited: bool,
        override_cached: bool,
    },
    Solicit {
        source: u32,
        address: LinkAddress,
        target: u32,
    },
    Answer(prop::sample::Index, Result<u16, PathError>),
    Unasked(u32),
    Confirmed(u32),
    InService(u32),
    OutOfService(u32),
    Refresh,
    LinkUp(u32),
    LinkDown,
    Add(u32),
    Drop(u32),
    Bytes(Vec<u8>),
    Wait(u64),
}

const HOSTS: u32 = 7;

fn op() -> impl Strategy<Value = Op> {
    let host = || 1..=HOSTS;
    let address = || (1..=HOSTS, 0x47u32..0x4b).prop_map(|(n, qpn)| link(n, qpn));
    let answer = prop_oneof![
        4 => (1u16..6).prop_map(Ok),
        1 => prop_oneof![Just(PathError::TimedOut), Just(PathError::NotFound)].prop_map(Err),
    ];
    prop_oneof![
        6 => (host(), any::<bool>()).prop_map(|(n, v)| Op::Send(n, v)),
        1 => host().prop_map(Op::Resolve),
        4 => (host(), any::<bool>()).prop_map(|(n, v)| Op::Use(n, v)),
        6 => (any::<bool>(), host(), address(), host(), any::<bool>()).prop_map(
            |(request, sender, address, target, multicast)| Op::Arp { request, sender, address, target, multicast }
        ),
        4 => (host(), prop::option::of(address()), any::<bool>(), any::<bool>()).prop_map(
            |(target, address, solicited, override_cached)| Op::Advertise {
                target, address, solicited, override_cached
            }
        ),
        2 => (host(), address(), host()).prop_map(
            |(source, address, target)| Op::Solicit { source, address, target }
        ),
        8 => (any::<prop::sample::Index>(), answer).prop_map(|(i, r)| Op::Answer(i, r)),
        1 => host().prop_map(Op::Unasked),
        1 => host().prop_map(Op::Confirmed),
        1 => host().prop_map(Op::InService),
        1 => host().prop_map(Op::OutOfService),
        1 => Just(Op::Refresh),
        1 => (0x47u32..0x4b).prop_map(Op::LinkUp),
        1 => Just(Op::LinkDown),
        1 => host().prop_map(Op::Add),
        1 => host().prop_map(Op::Drop),
        1 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Op::Bytes),
        6 => prop_oneof![0u64..50, 0u64..70_000].prop_map(Op::Wait),
    ]
}

fn apply(host: &mut Host, op: Op) {
    let now = host.now;
    let ip = |n, six| if six { v6(n) } else { v4(n) };
    let m: &mut Neighbours = &mut host.machine;
    match op {
        Op::Send(n, six) => {
            host.send(ip(n, six));
        }
        Op::Resolve(n) => m.resolve(now, v4(n)),
        Op::Use(n, six) => {
            host.use_table(ip(n, six));
        }
        Op::Arp {
            request,
            sender,
            address,
            target,
            multicast,
        } => {
            let operation = if request {
                ArpOperation::REQUEST
            } else {
                ArpOperation::REPLY
            };
            m.handle_arp(
                now,
                from(address, multicast),
                &arp_packet(operation, (v4(sender), address), v4(target)),
            );
        }
        Op::Advertise {
            target,
            address,
            solicited,
            override_cached,
        } => {
            let packet = na(v6(target), address, solicited, override_cached);
            m.handle_nd(now, from(address.unwrap_or(link(2, 0x48)), false), &packet);
        }
        Op::Solicit {
            source,
            address,
            target,
        } => {
            let group = solicited_node(six(v6(target)));
            let packet =
                neighbor_solicitation(six(v6(source)), group, six(v6(target)), Some(address));
            m.handle_nd(now, from(address, true), &packet);
        }
        Op::Answer(index, result) => {
            if !host.queries.is_empty() {
                let gid = *host
                    .queries
                    .iter()
                    .nth(index.index(host.queries.len()))
                    .expect("in range");
                host.queries.remove(&gid);
                m.path_result(now, gid, result.map(record));
            }
        }
        Op::Unasked(n) => {
            if !host.queries.contains(&gid(n)) {
                m.path_result(now, gid(n), Ok(record(99)));
            }
        }
        Op::Confirmed(n) => m.confirmed(now, v4(n)),
        Op::InService(n) => m.gid_in_service(now, gid(n)),
        Op::OutOfService(n) => m.gid_out_of_service(now, gid(n)),
        Op::Refresh => m.refresh_paths(now),
        Op::LinkUp(qpn) => {
            m.link_up(now, link(1, qpn));
            host.down = false;
        }
        Op::LinkDown => {
            m.link_down(now);
            host.down = true;
        }
        Op::Add(n) => {
            m.add_address(now, v4(n), 16);
            m.add_address(now, v6(n), 64);
        }
        Op::Drop(n) => {
            m.remove_address(now, v4(n));
            m.remove_address(now, v6(n));
        }
        Op::Bytes(bytes) => m.handle_nd(now, from(link(2, 0x48), true), &bytes),
        Op::Wait(ms) => host.run(Duration::from_millis(ms)),
    }
    host.drain();
}

/// What must hold at any time, beyond what [`Host::drain`] checks.
fn check(host: &Host, config: &NeighbourConfig) {
    let neighbours: Vec<_> = host.machine.neighbours(host.now).collect();
    assert!(neighbours.len() <= config.max_entries);
    let mut queued = 0;
    for info in &neighbours {
        queued += info.queued as u64;
        assert!(info.queued <= config.queue_packets);
        let known = info
            .address
            .zip(info.path)
            .filter(|_| !host.down && !matches!(info.state, State::Incomplete | State::Failed));
        let installed = host.table.get(&info.ip).map(|e| (e.address, e.path));
        assert_eq!(installed, known, "{info:?}");
        assert!(installed.is_none() || info.queued == 0);
    }
    let known = |ip: &IpAddr| neighbours.iter().any(|info| info.ip == *ip);
    assert!(host.table.keys().all(known));
    let out = (host.flushed.len() + host.unreachable.len()) as u64;
    assert_eq!(
        host.sent,
        out + queued + host.machine.counters().dropped_queue_full
    );
    let paths: Vec<_> = host.machine.paths(host.now).collect();
    assert!(paths.len() <= neighbours.len() + config.max_waiting_replies + config.max_path_queries);
    let users: usize = paths.iter().map(|p| p.neighbours).sum();
    assert_eq!(
        users,
        neighbours
            .iter()
            .filter(|info| info.address.is_some())
            .count()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_input_at_any_time(seed: u64, ops in prop::collection::vec(op(), 1..150)) {
        let config = NeighbourConfig {
            max_entries: 6,
            max_learned: 3,
            max_waiting_replies: 3,
            max_path_queries: 2,
            queue_packets: 3,
            total_queue_bytes: 64,
            ..NeighbourConfig::default()
        };
        let mut host = Host::new(config.clone(), seed, Instant::now());
        host.machine.add_address(host.now, v4(1), 16);
        host.machine.add_address(host.now, v6(1), 64);
        host.machine.link_up(host.now, link(1, 0x48));
        host.drain();
        for op in ops {
            apply(&mut host, op);
            check(&host, &config);
        }
        // In the end all comes to rest and nothing is left.
        apply(&mut host, Op::LinkUp(0x48));
        for _ in 0..300 {
            for gid in std::mem::take(&mut host.queries) {
                host.machine.path_result(host.now, gid, Ok(record(5)));
            }
            host.run(SECOND);
            check(&host, &config);
        }
        prop_assert_eq!(host.machine.poll_timeout(), None);
        prop_assert!(host.table.is_empty());
        prop_assert_eq!(host.machine.paths(host.now).count(), 0);
    }
}
