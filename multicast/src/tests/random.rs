//! Random histories: whatever happened, in the end what is wanted is joined and what is not is left.

use super::ip;
use super::model::{Sim, ms, secs};
use crate::GroupsConfig;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::mad::MadStatus;
use wire::{Gid, PKey};

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    Join(usize),
    Leave(usize),
    Send(usize),
    Up,
    Down,
    OtherPartition,
    Reregister,
    SaRestart,
    SaRefuses(bool),
    OtherQKey,
    SendOnlyFull(bool),
    Created(usize),
    Deleted(usize),
}

const GROUPS: [&str; 7] = [
    "224.0.0.1",
    "224.0.0.2",
    "239.1.2.3",
    "ff02::1",
    "ff02::2",
    "ff05::77",
    "ff02::1:ff01:a0b1",
];

fn step() -> impl Strategy<Value = Step> {
    let group = 0..GROUPS.len();
    prop_oneof![
        6 => prop_oneof![0u64..5, 5u64..2000, 2000u64..90_000].prop_map(Step::Wait),
        4 => group.clone().prop_map(Step::Join),
        3 => group.clone().prop_map(Step::Leave),
        4 => group.clone().prop_map(Step::Send),
        2 => Just(Step::Up),
        1 => Just(Step::Down),
        1 => Just(Step::OtherPartition),
        1 => Just(Step::Reregister),
        1 => Just(Step::SaRestart),
        1 => any::<bool>().prop_map(Step::SaRefuses),
        1 => Just(Step::OtherQKey),
        1 => any::<bool>().prop_map(Step::SendOnlyFull),
        1 => group.clone().prop_map(Step::Created),
        1 => group.prop_map(Step::Deleted),
    ]
}

fn config() -> impl Strategy<Value = GroupsConfig> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(send_only_creates, all_routers_fallback, broadcast_fallback)| GroupsConfig {
            send_only_creates,
            all_routers_fallback,
            broadcast_fallback,
            queue_packets: 3,
            ..GroupsConfig::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn everything_wanted_is_joined_in_the_end(
        config in config(),
        steps in proptest::collection::vec(step(), 1..60),
        loss in prop_oneof![Just(0u64), 1u64..60],
        delay in 0u64..300,
        seed in any::<u64>(),
    ) {
        let mut sim = Sim::new(config, seed);
        (sim.loss, sim.delay) = (loss, ms(delay));
        let mut wanted: BTreeMap<IpAddr, u32> = BTreeMap::new();
        let (mut up, mut triggers, mut sent) = (false, 0usize, 0u64);
        let start = sim.now;
        for step in &steps {
            let mgid = |group: usize, sim: &Sim| -> Gid {
                let snapshot = sim.groups.snapshot();
                snapshot.iter().find(|status| status.group == Some(ip(GROUPS[group]))).map(|status| status.mgid).unwrap_or_default()
            };
            triggers += 1;
            match *step {
                Step::Wait(time) => { triggers -= 1; sim.run(ms(time)) }
                Step::Join(group) => {
                    *wanted.entry(ip(GROUPS[group])).or_default() += 1;
                    sim.groups.join(sim.now, ip(GROUPS[group]));
                }
                Step::Leave(group) => {
                    let users = wanted.entry(ip(GROUPS[group])).or_default();
                    *users = users.saturating_sub(1);
                    sim.groups.leave(sim.now, ip(GROUPS[group]));
                }
                Step::Send(group) => { sent += 1; sim.groups.send(sim.now, ip(GROUPS[group]), vec![group as u8; 50]) }
                Step::Up => { up = true; sim.port_up() }
                Step::Down => { up = false; sim.groups.port_down(sim.now) }
                Step::OtherPartition => {
                    sim.p_key = PKey(sim.p_key.0 ^ 3);
                    if up { sim.port_up() }
                }
                Step::Reregister => sim.groups.reregister(sim.now),
                Step::SaRestart => { sim.sa.forget_groups(); sim.groups.reregister(sim.now) }
                Step::SaRefuses(all) => sim.sa.refuse = all.then_some(MadStatus::SA_REQ_INVALID),
                Step::OtherQKey => {
                    sim.sa.q_key.0 ^= 1;
                    sim.sa.forget_groups();
                    sim.groups.reregister(sim.now);
                }
                Step::SendOnlyFull(can) => sim.sa.send_only_full = can,
                Step::Created(group) => sim.groups.group_created(sim.now, mgid(group, &sim)),
                Step::Deleted(group) => sim.groups.group_deleted(sim.now, mgid(group, &sim)),
            }
            sim.run(ms(0));
        }
        // Peace: the SA works, nothing is lost, time passes.
        (sim.loss, sim.sa.refuse) = (0, None);
        if !up {
            sim.port_up();
        }
        sim.run(secs(30 + 61 + 30));
        wanted.retain(|_, users| *users > 0);
        sim.check_settled();
        prop_assert!(sim.carrier);
        let joined: BTreeMap<IpAddr, u32> =
            sim.groups.snapshot().into_iter().filter_map(|status| Some((status.group?, status.users))).collect();
        prop_assert_eq!(&joined, &wanted);
        prop_assert_eq!(sim.attached.len(), wanted.len() + 1);
        prop_assert!(sim.groups.poll_timeout().is_none(), "nothing left to do");
        // Every packet was sent or counted.
        let counters = sim.groups.counters();
        let dropped = counters.dropped_no_broadcast + counters.dropped_no_group + counters.dropped_queue_full
            + counters.dropped_stale + counters.dropped_too_many_groups;
        prop_assert_eq!(sim.sent.len() as u64 + dropped, sent);
        // No storm: each trigger costs at most the few asks of a plan and the steps of the back-off (8 doublings) per group, and time one ask of
        // each kind per group in the longest wait.
        let groups = GROUPS.len() + 1;
        let slots = sim.now.duration_since(start).as_secs() as usize / 12 + 1;
        let bound = 2 * groups * (9 * (triggers + 1) + slots);
        prop_assert!(sim.asked.len() <= bound, "{} joins, bound {}", sim.asked.len(), bound);
    }
}
