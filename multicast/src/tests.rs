//! The join machine against a model SA in virtual time: scripted cases here, random ones in `random`.

mod model;
mod random;

use crate::{BroadcastParameters, GroupState, Groups, GroupsConfig, JoinError, Output};
use model::{Sim, ms, secs};
use std::net::IpAddr;
use wire::mad::MadStatus;
use wire::mad::attr::{JoinState, mcmember};
use wire::{Gid, PKey, QKey};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn gid(text: &str) -> Gid {
    Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets())
}

#[test]
fn broadcast_first_then_the_stack_then_packets() {
    let mut sim = Sim::new(GroupsConfig::default(), 1);
    sim.groups.join(sim.now, ip("224.0.0.1"));
    sim.groups.join(sim.now, ip("ff02::1"));
    sim.groups.send(sim.now, ip("224.0.0.22"), vec![0; 40]);
    assert_eq!(sim.groups.counters().dropped_no_broadcast, 1);
    sim.port_up();
    // Only the broadcast group is asked for, with Linux's mask.
    assert_eq!(
        sim.asked,
        [(
            gid("ff12:401b:8001::ffff:ffff"),
            JoinState::FULL,
            mcmember::JOIN
        )]
    );
    sim.run(ms(100));
    sim.groups.send(sim.now, ip("224.0.0.22"), vec![1; 40]);
    sim.run(ms(100));
    let rest = [
        (gid("ff12:401b:8001::1"), JoinState::FULL, mcmember::CREATE),
        (gid("ff12:601b:8001::1"), JoinState::FULL, mcmember::CREATE),
        (
            gid("ff12:401b:8001::16"),
            JoinState::SEND_ONLY_FULL,
            mcmember::CREATE,
        ),
    ];
    assert_eq!(sim.asked[1..], rest);
    assert_eq!(sim.attached.len(), 3);
    assert_eq!(sim.sent, [(rest[2].0, vec![1; 40])]);
    assert_eq!(sim.groups.broadcast().unwrap().q_key, QKey(0xb1b));
}

#[test]
fn leaves_with_the_last_user() {
    let mut sim = Sim::up(GroupsConfig::default(), 2);
    let group = ip("239.1.2.3");
    for _ in 0..2 {
        sim.groups.join(sim.now, group);
    }
    sim.run(secs(1));
    sim.groups.leave(sim.now, group);
    sim.run(secs(1));
    assert_eq!(sim.sa.members.len(), 2);
    sim.groups.leave(sim.now, group);
    sim.groups.leave(sim.now, group);
    sim.run(secs(1));
    sim.check_settled();
    assert_eq!((sim.sa.members.len(), sim.attached.len()), (1, 1));
}

#[test]
fn send_only_groups_are_left_when_idle() {
    let mut sim = Sim::up(GroupsConfig::default(), 3);
    sim.groups.send(sim.now, ip("ff02::16"), vec![0; 9]);
    sim.run(secs(50));
    sim.groups.used(sim.now, gid("ff12:601b:8001::16"));
    sim.run(secs(50));
    assert_eq!(sim.sa.members.len(), 2);
    assert_eq!(sim.attached.len(), 1);
    sim.run(secs(11));
    assert_eq!((sim.sa.members.len(), sim.routes.len()), (1, 1));
    assert_eq!(sim.groups.snapshot().len(), 1);
}

#[test]
fn reregistration_joins_in_place() {
    let mut sim = Sim::up(GroupsConfig::default(), 4);
    for n in 1..=50 {
        sim.groups.join(sim.now, IpAddr::from([239, 0, 0, n]));
    }
    sim.run(secs(1));
    let (asked, attached) = (sim.asked.len(), sim.attached.clone());
    sim.sa.members.clear();
    sim.groups.reregister(sim.now);
    sim.groups.reregister(sim.now);
    let mut carrier = true;
    for _ in 0..100 {
        sim.run(ms(10));
        carrier &= sim.carrier && sim.attached == attached && sim.routes.len() == 51;
    }
    assert!(carrier, "carrier, attachments and routes stay");
    assert_eq!(sim.asked.len() - asked, 51, "one join per group");
    assert_eq!(sim.asked[asked].0, gid("ff12:401b:8001::ffff:ffff"));
    sim.check_settled();
}

#[test]
fn changed_parameters_are_taken_over() {
    let mut sim = Sim::up(GroupsConfig::default(), 5);
    sim.groups.join(sim.now, ip("239.1.2.3"));
    sim.run(secs(1));
    sim.sa.q_key = QKey(0x1234);
    sim.sa.members.clear();
    sim.sa.forget_groups();
    sim.sa.next_mlid += 100;
    sim.groups.reregister(sim.now);
    sim.run(secs(2));
    sim.check_settled();
    assert_eq!(sim.broadcast_ups, 2);
    assert!(
        sim.routes
            .values()
            .all(|record| record.q_key == QKey(0x1234))
    );
}

#[test]
fn backoff_doubles_from_one_second_to_sixteen() {
    let mut sim = Sim::up(GroupsConfig::default(), 6);
    sim.sa.refuse = Some(MadStatus::SA_REQ_INVALID);
    sim.groups.join(sim.now, ip("239.1.2.3"));
    let waits = sim.wait_times(gid("ff12:401b:8001::f01:203"), 8, 2);
    for (wait, limit) in waits.iter().zip([1, 2, 4, 8, 16, 16, 16]) {
        assert!(
            (limit * 750..=limit * 1000 + 10).contains(wait),
            "{waits:?}"
        );
    }
    let status = sim
        .groups
        .snapshot()
        .into_iter()
        .find(|status| status.users == 1 && status.group.is_some())
        .unwrap();
    assert_eq!(status.state, GroupState::BackOff);
    let text = status.last_error.unwrap();
    assert!(
        text.contains("asked FullMember of ff12:401b:8001::f01:203 with P_Key 0x8001"),
        "{text}"
    );
    assert!(text.contains("SA said ERR_REQ_INVALID (0x0200)"), "{text}");
}

#[test]
fn backoff_starts_small_after_an_event() {
    let mut sim = Sim::new(GroupsConfig::default(), 7);
    sim.sa.refuse = Some(MadStatus::SA_REQ_INSUFFICIENT_COMPONENTS);
    sim.port_up();
    let waits = sim.wait_times(gid("ff12:401b:8001::ffff:ffff"), 9, 1);
    for (wait, limit) in waits
        .iter()
        .zip([100, 200, 400, 800, 1600, 3200, 6400, 12800])
    {
        assert!((limit * 3 / 4..=limit + 20).contains(wait), "{waits:?}");
    }
    assert!(!sim.carrier);
}

#[test]
fn broadcast_is_created_only_if_allowed() {
    let mut sim = Sim::new(GroupsConfig::default(), 8);
    sim.sa.has_broadcast = false;
    sim.port_up();
    sim.run(secs(60));
    assert!(!sim.carrier && sim.asked.iter().all(|(_, _, mask)| *mask == mcmember::JOIN));
    let create = BroadcastParameters {
        q_key: QKey(0x77),
        ..BroadcastParameters::default()
    };
    let mut sim = Sim::new(
        GroupsConfig {
            create_broadcast: Some(create),
            ..GroupsConfig::default()
        },
        8,
    );
    sim.sa.has_broadcast = false;
    sim.port_up();
    sim.run(secs(1));
    assert!(sim.carrier);
    assert_eq!(sim.groups.broadcast().unwrap().q_key, QKey(0x77));
    assert_eq!(sim.asked.len(), 2);
}

#[test]
fn send_only_falls_back_to_non_member() {
    let mut sim = Sim::up(GroupsConfig::default(), 9);
    sim.sa.send_only_full = false;
    sim.sa.create("ff12:401b:8001::f01:203");
    sim.groups.send(sim.now, ip("239.1.2.3"), vec![5]);
    sim.run(secs(1));
    assert_eq!(sim.sent, [(gid("ff12:401b:8001::f01:203"), vec![5])]);
    assert_eq!(sim.asked.last().unwrap().1, JoinState::SEND_ONLY_NON);
    sim.run(secs(120));
    sim.check_settled();
}

#[test]
fn packets_for_more_than_the_link_go_to_the_routers() {
    let config = GroupsConfig {
        send_only_creates: false,
        ..GroupsConfig::default()
    };
    let mut sim = Sim::up(config, 10);
    let (group, routers) = (gid("ff12:401b:8001::f01:203"), gid("ff12:401b:8001::2"));
    sim.sa.create("ff12:401b:8001::2");
    sim.groups.send(sim.now, ip("239.1.2.3"), vec![1]);
    sim.groups.send(sim.now, ip("224.0.0.77"), vec![2]);
    sim.run(secs(1));
    assert_eq!(
        sim.sent,
        [(routers, vec![1])],
        "the other one stays on the link and is dropped"
    );
    assert_eq!(sim.groups.counters().dropped_no_group, 1);
    assert_eq!(sim.aliases.get(&group), Some(&routers));
    // A receiver appears: the SA reports the group.
    sim.sa.create("ff12:401b:8001::f01:203");
    sim.groups.group_created(sim.now, group);
    sim.run(secs(2));
    assert!(
        sim.aliases.is_empty()
            && sim.routes.contains_key(&group)
            && !sim.routes.contains_key(&routers)
    );
    // And goes again.
    sim.sa.groups.remove(&group);
    sim.sa.members.retain(|(mgid, _), _| *mgid != group);
    sim.groups.group_deleted(sim.now, group);
    sim.run(secs(2));
    assert_eq!(sim.aliases.get(&group), Some(&routers));
    sim.run(secs(120));
    sim.check_settled();
    assert_eq!(sim.groups.snapshot().len(), 1);
}

#[test]
fn broadcast_stands_in_where_there_are_no_routers() {
    let config = GroupsConfig {
        send_only_creates: false,
        broadcast_fallback: true,
        ..GroupsConfig::default()
    };
    let mut sim = Sim::up(config, 11);
    sim.groups.send(sim.now, ip("ff05::5"), vec![1]);
    sim.run(secs(1));
    assert_eq!(sim.sent, [(gid("ff12:401b:8001::ffff:ffff"), vec![1])]);
    sim.groups.port_down(sim.now);
    sim.run(ms(0));
    assert!(sim.aliases.is_empty() && sim.routes.is_empty() && !sim.carrier);
}

#[test]
fn queues_are_bounded() {
    let config = GroupsConfig {
        queue_packets: 4,
        queue_bytes: 500,
        max_groups: 3,
        ..GroupsConfig::default()
    };
    let mut sim = Sim::up(config, 12);
    for n in 0..6 {
        sim.groups.send(sim.now, ip("239.0.0.1"), vec![n; 100]);
    }
    for _ in 0..2 {
        sim.groups.send(sim.now, ip("239.0.0.2"), vec![9; 100]);
    }
    sim.groups.send(sim.now, ip("239.0.0.3"), vec![9; 100]);
    assert_eq!(sim.groups.queued_bytes(), 500);
    let counters = sim.groups.counters();
    assert_eq!(
        (
            counters.dropped_queue_full,
            counters.dropped_too_many_groups
        ),
        (3, 1)
    );
    sim.run(secs(1));
    let first: Vec<u8> = sim.sent.iter().map(|(_, packet)| packet[0]).collect();
    assert_eq!(first, [2, 3, 4, 5, 9]);
    assert_eq!(sim.groups.queued_bytes(), 0);
}

#[test]
fn another_partition_starts_anew() {
    let mut sim = Sim::up(GroupsConfig::default(), 13);
    sim.groups.join(sim.now, ip("224.0.0.1"));
    sim.run(secs(1));
    sim.p_key = PKey(2);
    sim.port_up();
    sim.run(secs(1));
    sim.check_settled();
    let groups: Vec<String> = sim.routes.keys().map(Gid::to_string).collect();
    assert_eq!(groups, ["ff12:401b:8002::1", "ff12:401b:8002::ffff:ffff"]);
    assert_eq!(
        sim.sa.members.len(),
        2,
        "the old partition's groups are left"
    );
}

#[test]
fn a_failed_attach_is_tried_again() {
    let mut sim = Sim::up(GroupsConfig::default(), 14);
    let mgid = gid("ff12:401b:8001::1");
    sim.groups.join(sim.now, ip("224.0.0.1"));
    sim.run(ms(100));
    sim.attached.remove(&mgid);
    sim.groups.attach_failed(sim.now, mgid, "no room".into());
    sim.run(ms(100));
    assert!(!sim.routes.contains_key(&mgid));
    sim.run(secs(2));
    assert!(sim.attached.contains_key(&mgid) && sim.routes.contains_key(&mgid));
}

#[test]
fn report_floods_cause_few_requests() {
    let mut sim = Sim::up(GroupsConfig::default(), 15);
    sim.groups.join(sim.now, ip("224.0.0.1"));
    sim.run(secs(5));
    let asked = sim.asked.len();
    for _ in 0..1000 {
        for mgid in [
            "ff12:401b:8001::1",
            "ff12:401b:8001::ffff:ffff",
            "ff12:401b:8001::7",
        ] {
            sim.groups.group_created(sim.now, gid(mgid));
            sim.groups.group_deleted(sim.now, gid(mgid));
        }
        sim.run(ms(10));
    }
    let extra = sim.asked.len() - asked;
    assert!((10..=22).contains(&extra), "{extra} in 10 s for two groups");
    assert!(sim.carrier);
}

#[test]
fn event_floods_do_not_put_rejoining_off() {
    let mut sim = Sim::up(GroupsConfig::default(), 17);
    let asked = sim.asked.len();
    for _ in 0..1000 {
        sim.groups.reregister(sim.now);
        sim.run(ms(10));
    }
    let extra = sim.asked.len() - asked;
    assert!((20..=200).contains(&extra), "{extra} in 10 s");
    assert!(sim.carrier);
}

#[test]
fn what_was_never_given_is_not_left() {
    let config = GroupsConfig {
        send_only_creates: false,
        ..GroupsConfig::default()
    };
    let mut sim = Sim::up(config, 18);
    sim.groups.send(sim.now, ip("224.0.0.9"), vec![1]);
    sim.run(secs(30));
    assert_eq!(
        sim.groups.snapshot().len(),
        2,
        "remembered, so that not every packet asks"
    );
    sim.run(secs(31));
    assert_eq!(sim.groups.snapshot().len(), 1);
    assert_eq!(
        (sim.groups.counters().joins, sim.groups.counters().leaves),
        (2, 0)
    );
}

#[test]
fn results_of_cancelled_requests_are_ignored() {
    let mut groups = Groups::new(GroupsConfig::default(), 16);
    let now = std::time::Instant::now();
    groups.port_up(now, gid("fe80::1"), PKey(0x8001));
    let Some(Output::Join { tag, .. }) = groups.poll_output() else {
        panic!()
    };
    groups.port_down(now);
    assert_eq!(groups.poll_output(), Some(Output::Cancel { tag }));
    groups.join_result(now, tag, Err(JoinError::NoAnswer));
    assert_eq!(groups.counters().late_results, 1);
    assert_eq!((groups.poll_output(), groups.poll_timeout()), (None, None));
}
