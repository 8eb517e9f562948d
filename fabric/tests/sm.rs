//! The subnet manager and SA against a scripted subnet, in virtual time.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

#[path = "sm/model.rs"]
mod model;

use fabric::sm::{Counter, SmConfig};
use model::{MS, Model, two_switches, up};
use std::time::{Duration, Instant};
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::mad::attr::*;
use wire::mad::{AttrId, MadStatus, Method, Smp};
use wire::{Gid, Guid, Lid, PKey};

const HCAS: std::ops::Range<usize> = 0..4;
const SEC: Duration = Duration::from_secs(1);

fn broadcast() -> Gid {
    broadcast_gid(PKey(0xffff), Scope(2))
}
fn group(n: u8) -> Gid {
    let mut mgid = broadcast().0;
    mgid[12..].copy_from_slice(&[1, 2, 3, n]);
    Gid(mgid)
}

#[track_caller]
fn assert_all_talk(m: &Model, hcas: &[usize]) {
    for &a in hcas {
        assert_eq!(m.state(a), PortState::ACTIVE, "node {a}");
        for &b in hcas {
            if a != b {
                assert_eq!(m.follow(a, m.lid(b)), Some(b), "{a} to {b}");
            }
        }
    }
}

#[test]
fn a_subnet_comes_up() {
    let mut m = two_switches(SmConfig::default());
    m.run(20 * MS);
    assert_eq!(m.sm.state(), SmState::MASTER);
    assert_eq!(m.lid(0), Lid(1), "the manager is first");
    assert_all_talk(&m, &[0, 1, 2, 3]);
    for hca in HCAS {
        let port = &m.nodes[hca].ports[1];
        assert_eq!(port.info.master_sm_lid, Lid(1));
        assert_eq!(port.info.neighbor_mtu.0, 4);
        assert_eq!(port.info.operational_vls, 4);
        assert_eq!(port.info.subnet_timeout, 18);
        assert_eq!(port.info.gid_prefix, Gid::DEFAULT_PREFIX);
        assert_eq!(port.reregistered, 1);
        assert_eq!(port.pkeys[0], PKey(0xffff));
    }
    let lids: std::collections::BTreeSet<u16> = (0..6).map(|n| m.lid(n).0).collect();
    assert_eq!(lids.len(), 6);
    assert!(!m.nodes[4].switch.unwrap().port_state_change);
    // A subnet that is as it shall be is left alone.
    let sets = m.sets;
    m.run(60 * SEC);
    assert_eq!(m.sets, sets);
    assert_eq!(m.sm.counters().get(Counter::LightSweeps), 5 + 1);
}

#[test]
fn lids_stay_across_absence_and_runs() {
    let mut m = up(SmConfig::default());
    let before: Vec<Lid> = HCAS.map(|n| m.lid(n)).collect();
    m.cut((2, 1));
    m.run(50 * MS);
    assert_eq!(m.follow(0, before[2]), None);
    m.link((2, 1), (5, 7));
    m.run(50 * MS);
    assert_eq!(m.lid(2), before[2]);
    assert_all_talk(&m, &[0, 1, 2, 3]);
    // Another run at another place keeps them by what the ports say, and by its map where they say nothing.
    let map = m.sm.lid_map();
    m.sm = fabric::sm::SubnetManager::new(
        SmConfig {
            lid_map: map,
            ..SmConfig::default()
        },
        8,
    );
    m.reset_hca(3);
    m.run(50 * MS);
    assert_eq!(HCAS.map(|n| m.lid(n)).collect::<Vec<_>>(), before);
    assert_all_talk(&m, &[0, 1, 2, 3]);
}

#[test]
fn a_lid_that_must_change_reregisters_all() {
    let mut m = two_switches(SmConfig {
        lid_map: vec![(Guid(0x2001), Lid(9))],
        ..SmConfig::default()
    });
    m.nodes[1].ports[1].info.lid = Lid(4);
    m.nodes[2].ports[1].info.lid = Lid(9);
    m.run(50 * MS);
    assert_eq!(m.lid(1), Lid(9));
    assert_ne!(m.lid(2), Lid(9));
    assert_all_talk(&m, &[0, 1, 2, 3]);
}

#[test]
fn a_new_hca_is_active_within_milliseconds() {
    let mut m = up(SmConfig::default());
    let smps = m.sm.counters().get(Counter::SmpsSent);
    let new = m.hca(0x9000);
    m.link((new, 1), (5, 8));
    m.run(5 * MS);
    assert_all_talk(&m, &[0, 1, 2, 3, new]);
    assert!(
        m.sm.counters().get(Counter::SmpsSent) - smps < 80,
        "only the switch and the new node are looked at"
    );
}

#[test]
fn a_node_that_stops_answering_stalls_nobody() {
    let mut m = two_switches(SmConfig::default());
    m.nodes[3].alive = false;
    m.run(20 * MS);
    assert_all_talk(&m, &[0, 1, 2]);
    // It answers after all.
    m.nodes[3].alive = true;
    m.run(5 * SEC);
    assert_all_talk(&m, &[0, 1, 2, 3]);
    // It dies while its link stays up: gone after the next light sweep, back when it lives.
    m.nodes[3].alive = false;
    m.run(15 * SEC);
    assert_eq!(m.follow(0, m.lid(3)), None);
    assert!(m.sm.nodes().iter().all(|n| n.guid != Guid(0x4000)));
    m.nodes[3].alive = true;
    m.run(5 * SEC);
    assert_all_talk(&m, &[0, 1, 2, 3]);
}

#[test]
fn a_switch_that_dies_takes_only_what_hangs_on_it() {
    let mut m = up(SmConfig::default());
    m.nodes[5].alive = false;
    m.run(15 * SEC);
    assert_eq!(m.sm.nodes().len(), 3);
    m.nodes[5].alive = true;
    m.run(5 * SEC);
    assert_all_talk(&m, &[0, 1, 2, 3]);
}

#[test]
fn lost_smps_are_repeated() {
    for seed in 0..5 {
        let mut m = two_switches(SmConfig::default());
        for _ in 0..seed {
            m.random();
        }
        m.loss = 100;
        m.run(60 * SEC);
        m.loss = 0;
        m.run(15 * SEC);
        assert_all_talk(&m, &[0, 1, 2, 3]);
    }
}

#[test]
fn loops_and_parallel_links() {
    let mut m = Model::new(SmConfig::default());
    let hcas: Vec<usize> = (1..=12).map(|n| m.hca(0x1000 * n)).collect();
    let switches: Vec<usize> = (0..4).map(|n| m.switch(0xa0000 + n, 36)).collect();
    for (n, &hca) in hcas.iter().enumerate() {
        m.link((hca, 1), (switches[n % 4], 1 + n as u8 / 4));
    }
    for n in 0..4 {
        for cable in 0..2 {
            m.link(
                (switches[n], 20 + cable),
                (switches[(n + 1) % 4], 30 + cable),
            );
        }
    }
    m.run(100 * MS);
    assert_all_talk(&m, &hcas);
    // Both cables carry something.
    let used = |m: &Model, port| {
        m.nodes[switches[0]]
            .lft
            .iter()
            .filter(|p| **p == port)
            .count()
    };
    assert!(used(&m, 20) > 0 && used(&m, 21) > 0);
    for &hca in &hcas {
        m.join(hca, broadcast(), JoinState::FULL);
    }
    let all = m.multicast(hcas[0], Lid(0xc000));
    assert_eq!(all, hcas[1..].to_vec(), "each once");
    // A ring that is cut is a chain.
    for cable in 0..2 {
        m.cut((switches[0], 20 + cable));
    }
    m.run(100 * MS);
    assert_all_talk(&m, &hcas);
    assert_eq!(m.multicast(hcas[0], Lid(0xc000)), hcas[1..].to_vec());
}

#[test]
fn groups_live_by_their_full_members() {
    let mut m = up(SmConfig::default());
    m.subscribe(0, TrapNumber::ALL);
    let join = m.join(1, group(1), JoinState::FULL);
    assert_eq!(join.header.status, MadStatus::OK);
    let record = McMemberRecord::parse(&join.data).unwrap();
    assert_eq!(record.mlid, Lid(0xc001));
    assert_eq!(m.reports(), [(m.lid(0), 66, group(1))]);
    m.join(1, group(1), JoinState::SEND_ONLY_NON);
    m.join(2, group(1), JoinState::FULL);
    m.join(3, group(1), JoinState::SEND_ONLY_FULL);
    assert!(m.reports().is_empty());
    assert_eq!(m.multicast(0, Lid(0xc001)), [1, 2], "senders only send");
    assert_eq!(m.multicast(3, Lid(0xc001)), [1, 2]);
    let left = McMemberRecord::parse(&m.leave(1, group(1), JoinState::FULL).data).unwrap();
    assert_eq!(left.join_state, JoinState::SEND_ONLY_NON);
    assert_eq!(m.multicast(3, Lid(0xc001)), [2]);
    assert_eq!(
        m.leave(1, group(1), JoinState::FULL).header.status,
        MadStatus::SA_REQ_INVALID
    );
    m.leave(2, group(1), JoinState::FULL);
    assert!(m.reports().is_empty());
    m.leave(3, group(1), JoinState::SEND_ONLY_FULL);
    assert_eq!(m.reports(), [(m.lid(0), 67, group(1))]);
    assert!(m.sm.groups().iter().all(|g| g.mgid != group(1)));
    // The number is free again.
    assert_eq!(
        McMemberRecord::parse(&m.join(1, group(2), JoinState::SEND_ONLY_FULL).data)
            .unwrap()
            .mlid,
        Lid(0xc001)
    );
    assert!(
        m.join(1, group(3), JoinState::NON).header.status == MadStatus::SA_REQ_INVALID,
        "who only listens creates nothing"
    );
}

#[test]
fn a_port_that_goes_leaves_everything() {
    let mut m = up(SmConfig::default());
    m.subscribe(0, TrapNumber::GID_OUT_OF_SERVICE);
    m.subscribe(0, TrapNumber::GID_IN_SERVICE);
    m.subscribe(3, TrapNumber::ALL);
    m.join(3, group(1), JoinState::FULL);
    m.join(3, broadcast(), JoinState::FULL);
    m.join(1, broadcast(), JoinState::FULL);
    m.sa_out.clear();
    let gone = m.gid(3);
    m.cut((3, 1));
    m.run(5 * MS);
    assert_eq!(m.reports(), [(m.lid(0), 65, gone)]);
    assert_eq!(m.sm.groups().len(), 1);
    assert_eq!(m.sm.groups()[0].members, [(m.gid(1), JoinState::FULL)]);
    m.sa_out.clear();
    m.link((3, 1), (5, 3));
    m.run(5 * MS);
    assert_eq!(
        m.reports(),
        [(m.lid(0), 64, gone)],
        "and it is no subscriber any more"
    );
}

#[test]
fn a_port_found_in_init_began_anew() {
    let mut m = up(SmConfig::default());
    m.subscribe(0, TrapNumber::ALL);
    m.join(3, group(1), JoinState::FULL);
    m.sa_out.clear();
    m.reset_hca(3);
    m.run(10 * MS);
    let gid = m.gid(3);
    assert_eq!(
        m.reports().iter().map(|r| r.1).collect::<Vec<_>>(),
        [67, 65, 64]
    );
    assert!(m.reports().iter().skip(1).all(|r| r.2 == gid));
    assert_all_talk(&m, &[0, 1, 2, 3]);
    assert_eq!(m.nodes[3].ports[1].reregistered, 2);
    assert_eq!(
        m.nodes[1].ports[1].reregistered, 1,
        "its LID is the same: the others need not know"
    );
}

#[test]
fn reports_are_repeated_until_answered() {
    let mut m = up(SmConfig::default());
    m.subscribe(0, TrapNumber::ALL);
    m.join(1, group(1), JoinState::FULL);
    let report = m
        .sa_out
        .iter()
        .find(|s| s.dlid == m.lid(0))
        .unwrap()
        .clone();
    m.sa_out.clear();
    m.run(1500 * MS);
    assert_eq!(m.sa_out, std::slice::from_ref(&report));
    let answer = wire::mad::SaMad::parse(&report.mad[..])
        .unwrap()
        .response(MadStatus::OK);
    m.tell(0, answer);
    m.sa_out.clear();
    m.run(5 * SEC);
    assert_eq!(m.sa_out, []);
    m.join(1, group(2), JoinState::FULL);
    m.run(20 * SEC);
    assert_eq!(m.reports().len(), 4);
    assert_eq!(m.sm.counters().get(Counter::ReportsLost), 1);
}

#[test]
fn reports_to_many_are_paced_and_not_told_twice() {
    let mut m = Model::new(SmConfig {
        report_timeout: 60 * SEC,
        ..SmConfig::default()
    });
    let switch = m.switch(0xa000, 254);
    let hcas: Vec<usize> = (1..=200).map(|n| m.hca(0x10_0000 * n)).collect();
    for (n, &hca) in hcas.iter().enumerate() {
        m.link((hca, 1), (switch, 1 + n as u8));
    }
    m.run(100 * MS);
    for &hca in &hcas {
        m.subscribe(hca, TrapNumber::MULTICAST_GROUP_CREATED);
        m.subscribe(hca, TrapNumber::MULTICAST_GROUP_DELETED);
    }
    // Each joins and leaves three times before anybody answers.
    let mut sent = Vec::new();
    for _ in 0..3 {
        for n in 0..20 {
            m.join(hcas[1], group(n), JoinState::FULL);
            sent.append(&mut m.sa_out);
            m.leave(hcas[1], group(n), JoinState::FULL);
            sent.append(&mut m.sa_out);
        }
    }
    let mut per_group: std::collections::BTreeMap<(Gid, Lid), Vec<u16>> = Default::default();
    let mut rounds = 0;
    while !sent.is_empty() {
        m.sa_out = std::mem::take(&mut sent);
        let reports = m.reports();
        assert!(
            reports.len() <= 1024,
            "{} on the way at once",
            reports.len()
        );
        reports
            .iter()
            .for_each(|r| per_group.entry((r.2, r.0)).or_default().push(r.1));
        for send in std::mem::take(&mut m.sa_out) {
            let mad = wire::mad::SaMad::parse(&send.mad[..]).unwrap();
            if mad.header.method == wire::mad::Method::REPORT {
                let node = hcas.iter().find(|h| m.lid(**h) == send.dlid).unwrap();
                m.tell(*node, mad.response(MadStatus::OK));
                sent.append(&mut m.sa_out);
            }
        }
        rounds += 1;
    }
    assert!(rounds > 3);
    assert_eq!(per_group.len(), 20 * 200, "everybody was told of each");
    assert!(per_group.values().all(|traps| traps.last() == Some(&67)));
    assert_eq!(m.sm.counters().get(Counter::ReportsLost), 0);
    assert_eq!(m.sm.counters().get(Counter::NewsDropped), 0);
}

#[test]
fn the_m_key_is_set_used_and_waited_for() {
    let config = SmConfig {
        m_key: fabric::sm::MKey {
            key: 0xfeed,
            protect: 2,
            lease: 0,
        },
        ..SmConfig::default()
    };
    let mut m = two_switches(config.clone());
    // Somebody else's, for 20 s.
    let foreign = &mut m.nodes[3].ports[1].info;
    (
        foreign.m_key,
        foreign.m_key_protect_bits,
        foreign.m_key_lease_period,
    ) = (7, 3, 20);
    m.run(SEC);
    assert_all_talk(&m, &[0, 1, 2]);
    for node in [0, 1, 2] {
        let info = &m.nodes[node].ports[1].info;
        assert_eq!((info.m_key, info.m_key_protect_bits), (0xfeed, 2));
    }
    assert_eq!(m.nodes[4].ports[0].info.m_key, 0xfeed);
    assert_eq!(m.nodes[3].ports[1].info.m_key, 7);
    m.run(30 * SEC);
    assert_all_talk(&m, &[0, 1, 2, 3]);
    assert_eq!(m.nodes[3].ports[1].info.m_key, 0xfeed);
    // It still reaches all that it locked, and the next manager with the key as well.
    let sets = m.sets;
    m.run(60 * SEC);
    assert_eq!(m.sets, sets);
    m.sm = fabric::sm::SubnetManager::new(config, 11);
    m.run(SEC);
    assert_eq!(m.nodes[3].ports[1].reregistered, 2);
    assert_all_talk(&m, &[0, 1, 2, 3]);
}

#[test]
fn a_thousand_hosts() {
    let started = Instant::now();
    let mut m = Model::new(SmConfig::default());
    let hcas: Vec<usize> = (1..=1000).map(|n| m.hca(0x1000 * n)).collect();
    let leaves: Vec<usize> = (0..50).map(|n| m.switch(0xa00_0000 + n, 36)).collect();
    let spines: Vec<usize> = (0..4).map(|n| m.switch(0xb00_0000 + n, 64)).collect();
    for (n, &hca) in hcas.iter().enumerate() {
        m.link((hca, 1), (leaves[n / 20], 1 + (n % 20) as u8));
    }
    for (l, &leaf) in leaves.iter().enumerate() {
        for (s, &spine) in spines.iter().enumerate() {
            m.link((leaf, 30 + s as u8), (spine, 1 + l as u8));
        }
    }
    m.run(1000 * MS);
    println!(
        "1,000 HCAs, 54 switches: up after {:?} of processor time, {} SMPs",
        started.elapsed(),
        m.sm.counters().get(Counter::SmpsSent)
    );
    let active = hcas
        .iter()
        .filter(|h| m.state(**h) == PortState::ACTIVE)
        .count();
    assert_eq!(active, 1000);
    let joins = Instant::now();
    for (n, &hca) in hcas.iter().enumerate() {
        m.join(hca, broadcast(), JoinState::FULL);
        let mut own = group(0).0;
        own[12..].copy_from_slice(&(n as u32 + 100).to_be_bytes());
        assert_eq!(
            m.join(hca, Gid(own), JoinState::FULL).header.status,
            MadStatus::OK
        );
    }
    println!("2,000 joins one by one: {:?}", joins.elapsed());
    assert_eq!(m.multicast(hcas[5], Lid(0xc000)).len(), 999);
    let sweep = Instant::now();
    let smps = m.sm.counters().get(Counter::SmpsSent);
    m.run(11 * SEC);
    println!(
        "light sweep: {:?}, {} SMPs",
        sweep.elapsed(),
        m.sm.counters().get(Counter::SmpsSent) - smps
    );
    let new = Instant::now();
    let hca = m.hca(0x9999_0000);
    m.link((hca, 1), (leaves[7], 25));
    m.run(10 * MS);
    println!("one more host: {:?}", new.elapsed());
    assert_eq!(m.state(hca), PortState::ACTIVE);
    assert_eq!(m.follow(hcas[0], m.lid(hca)), Some(hca));
}

#[test]
fn a_better_master_is_obeyed_and_replaced_when_silent() {
    let mut m = two_switches(SmConfig::default());
    m.nodes[3].sm = Some(SmInfo {
        guid: Guid(0x4001),
        priority: 9,
        sm_key: 1,
        sm_state: SmState::MASTER,
        ..SmInfo::default()
    });
    m.nodes[3].ports[1].info.capability_mask.0 |= CapabilityMask::IS_SM.0;
    m.run(SEC);
    assert_eq!(m.sm.state(), SmState::STANDBY);
    assert_eq!(m.sets, 0, "a standby changes nothing");
    m.nodes[3].alive = false;
    m.run(5 * SEC);
    assert_eq!(m.sm.state(), SmState::MASTER);
    assert_all_talk(&m, &[0, 1, 2]);
    // It comes back as a standby with a higher priority: it gets the subnet.
    m.nodes[3].alive = true;
    m.nodes[3].sm.as_mut().unwrap().sm_state = SmState::STANDBY;
    m.run(15 * SEC);
    assert_eq!(m.nodes[3].sm.unwrap().sm_state, SmState::MASTER);
    assert_eq!(m.sm.state(), SmState::STANDBY);
}

#[test]
fn a_burst_of_traps_starves_nobody() {
    let mut m = up(SmConfig::default());
    let new = m.hca(0x9000);
    m.link((new, 1), (5, 8));
    // So dense that something is always being read.
    for _ in 0..10_000 {
        m.trap128(4);
        m.trap128(5);
        m.run(MS / 100);
    }
    assert_all_talk(&m, &[0, 1, 2, 3, new]);
    // One more round of reads after the last trap at most.
    let smps = m.sm.counters().get(Counter::SmpsSent);
    m.run(5 * MS);
    let after = m.sm.counters().get(Counter::SmpsSent) - smps;
    assert!(after < 200, "{after} SMPs wait when the burst is over");
}

#[test]
fn traps_that_nothing_can_mend_are_counted() {
    let mut m = up(SmConfig::default());
    let smps = m.sm.counters().get(Counter::SmpsSent);
    for trap in [
        TrapNumber::BUFFER_OVERRUN,
        TrapNumber::BAD_M_KEY,
        TrapNumber::BAD_P_KEY,
    ] {
        let notice = Notice {
            trap_number: trap,
            ..Notice::link_state_change(m.lid(4))
        };
        m.trap(4, notice);
    }
    m.run(5 * MS);
    assert_eq!(m.sm.counters().get(Counter::LinkErrorTraps), 1);
    assert_eq!(m.sm.counters().get(Counter::KeyTraps), 2);
    assert_eq!(m.sm.counters().get(Counter::SmpsSent), smps);
}

#[test]
fn who_knew_another_manager_registers_here() {
    let mut m = up(SmConfig::default());
    m.nodes[2].ports[1].info.master_sm_lid = Lid(99);
    m.run(15 * SEC);
    assert_eq!(m.nodes[2].ports[1].info.master_sm_lid, m.lid(0));
    assert_eq!(
        [1, 2, 3].map(|n| m.nodes[n].ports[1].reregistered),
        [1, 2, 1]
    );
}

fn other_sm(m: &mut Model, node: usize, sm_state: SmState) {
    m.nodes[node].sm = Some(SmInfo {
        guid: m.nodes[node].info.port_guid,
        priority: 9,
        sm_key: 1,
        sm_state,
        ..SmInfo::default()
    });
    m.nodes[node].ports[1].info.capability_mask.0 |= CapabilityMask::IS_SM.0;
}

#[test]
fn of_two_that_begin_the_better_goes_on() {
    let mut m = two_switches(SmConfig::default());
    other_sm(&mut m, 3, SmState::DISCOVERING);
    m.run(3 * SEC);
    assert_eq!((m.sm.state(), m.sets), (SmState::STANDBY, 0));
    m.nodes[3].sm.as_mut().unwrap().sm_state = SmState::MASTER;
    m.run(60 * SEC);
    assert_eq!((m.sm.state(), m.sets), (SmState::STANDBY, 0));
    // One that sweeps for ever is not waited for.
    m.nodes[3].sm.as_mut().unwrap().sm_state = SmState::DISCOVERING;
    m.run(15 * SEC);
    assert_eq!(m.sm.state(), SmState::MASTER);
    assert_all_talk(&m, &[0, 1, 2, 3]);
}

#[test]
fn a_silent_master_is_replaced_in_bounded_time_and_lids_stay() {
    let mut m = up(SmConfig::default());
    let lids: Vec<Lid> = HCAS.map(|n| m.lid(n)).collect();
    // Another manager took the subnet: ours is started anew beside it.
    other_sm(&mut m, 3, SmState::MASTER);
    m.sm = fabric::sm::SubnetManager::new(SmConfig::default(), 9);
    m.run(SEC);
    assert_eq!(m.sm.state(), SmState::STANDBY);
    m.nodes[3].alive = false;
    m.run(3 * SEC);
    assert_eq!(m.sm.state(), SmState::MASTER);
    assert_eq!(HCAS.map(|n| m.lid(n)).collect::<Vec<_>>(), lids);
    assert_all_talk(&m, &[0, 1, 2]);
    assert_eq!([0, 1, 2].map(|n| m.nodes[n].ports[1].reregistered), [2; 3]);
}

/// Nothing of a running subnet is taken apart while a node takes its time to answer another manager.
#[test]
fn who_takes_over_finds_all_before_it_writes() {
    for (late, handed_over) in [(150 * MS, false), (300 * MS, false), (300 * MS, true)] {
        let mut m = up(SmConfig::default());
        other_sm(&mut m, 3, SmState::MASTER);
        m.sm = fabric::sm::SubnetManager::new(SmConfig::default(), 9);
        m.run(SEC);
        assert_eq!(m.sm.state(), SmState::STANDBY);
        m.slow = Some((2, late));
        m.nodes[3].ports[1].info.capability_mask = CapabilityMask(0);
        let giver = m.nodes[3].sm.take().unwrap();
        if handed_over {
            let smp = Smp::lid_routed(Method::SET, AttrId::SM_INFO, 1, 77).with_data(&giver.emit());
            m.from(3, smp);
        }
        let sets = m.sets;
        for _ in 0..5000 {
            m.run(MS);
            assert_eq!(m.follow(0, m.lid(2)), Some(2));
        }
        assert_eq!(m.sm.state(), SmState::MASTER);
        assert!(m.sets > sets);
        assert_all_talk(&m, &[0, 1, 2, 3]);
    }
}

/// Nor if it is the manager's own switch that takes its time, as on a busy machine.
#[test]
fn who_starts_anew_on_a_switch_finds_all_before_it_writes() {
    let soon = [7, 90, 150, 300].map(|ms| (ms * MS, SmConfig::default().sweep_interval));
    // It is late for a whole interval: nothing is begun anew.
    for (late, sweep_interval) in soon.into_iter().chain([(300 * MS, SEC)]) {
        let config = SmConfig {
            sweep_interval,
            ..SmConfig::default()
        };
        let mut m = Model::new(config.clone());
        let switch = m.switch(0xa000, 36);
        let hcas = [1, 2].map(|n| m.hca(0x1000 * n));
        for (hca, port) in hcas.into_iter().zip([1, 20]) {
            m.link((hca, 1), (switch, port));
        }
        m.run(100 * MS);
        m.sm = fabric::sm::SubnetManager::new(config, 9);
        m.slow = Some((switch, late));
        let sets = m.sets;
        for _ in 0..20_000 {
            m.run(MS);
            assert_eq!(m.follow(hcas[0], m.lid(hcas[1])), Some(hcas[1]), "{late:?}");
        }
        assert_eq!(m.sm.state(), SmState::MASTER);
        assert!(m.sets > sets);
        assert_all_talk(&m, &hcas);
    }
}

#[test]
fn a_running_subnet_with_a_silent_node_is_taken_over_however_often_it_is_swept() {
    let mut m = up(SmConfig::default());
    m.nodes[3].alive = false;
    let config = SmConfig {
        sweep_interval: SEC,
        ..SmConfig::default()
    };
    m.sm = fabric::sm::SubnetManager::new(config, 9);
    m.run(5 * SEC);
    assert_eq!(m.sm.state(), SmState::MASTER);
    assert_all_talk(&m, &[0, 1, 2]);
}

#[test]
fn a_node_with_a_huge_table_that_refuses_keys_is_given_up() {
    let mut m = two_switches(SmConfig::default());
    m.nodes[2].info.partition_cap = 0xffff;
    m.nodes[2].ports[1].pkeys = vec![PKey(0x9234); 1 << 16];
    m.stubborn = Some(2);
    m.run(60 * SEC);
    assert_all_talk(&m, &[0, 1, 3]);
    // Four times the whole table at each sweep, and the reading of it.
    assert!(m.nodes[2].smps < 80_000, "{}", m.nodes[2].smps);
}

#[test]
fn random_mads_change_nothing() {
    let mut m = up(SmConfig::default());
    m.join(3, broadcast(), JoinState::FULL);
    let (nodes, groups, sets) = (m.sm.nodes(), m.sm.groups(), m.sets);
    let classes = [1u8, 0x81, 3, 4, 7];
    let attrs = [
        1u16, 2, 3, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x19, 0x1b, 0x20, 0x31, 0x35, 0x38, 0xf3,
    ];
    for n in 0..200_000u32 {
        let mut mad = [0u8; 256];
        for chunk in mad.chunks_mut(8) {
            chunk.copy_from_slice(&m.random().to_be_bytes());
        }
        let r = m.random();
        mad[0] = 1;
        mad[1] = classes[r as usize % 5];
        mad[2] = if mad[1] == 3 { 2 } else { 1 };
        if r >> 8 & 3 != 0 {
            mad[3] = [1, 2, 3, 5, 6, 7, 0x12, 0x15, 0x81, 0x86, 0x92][(r as usize >> 16) % 11];
            mad[16..18].copy_from_slice(&attrs[(r as usize >> 24) % 16].to_be_bytes());
        }
        if r >> 40 & 1 != 0 {
            mad[24..36].fill(0);
            mad[36..44].fill(0);
        }
        let received = verbs::MadReceived {
            slid: Lid((r >> 48) as u16 % 9),
            dlid: Lid(1),
            src_qp: wire::Qpn(1),
            dest_qp: wire::Qpn(u32::from(mad[1] == 3 || r >> 41 & 1 != 0)),
            sl: wire::ServiceLevel(0),
            p_key: PKey(0xffff),
            grh: None,
            mad: Box::new(mad),
        };
        m.sm.handle_mad(m.now, received);
        if n % 64 == 0 {
            m.run(MS);
            m.sa_out.clear();
        }
    }
    m.run(30 * SEC);
    assert_eq!(m.sm.state(), SmState::MASTER);
    assert_eq!(m.sm.nodes(), nodes);
    assert_eq!(m.sm.groups(), groups);
    assert_eq!(m.sets, sets);
    assert_all_talk(&m, &[0, 1, 2, 3]);
}
