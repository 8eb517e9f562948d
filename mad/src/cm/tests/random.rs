//! Random schedules: messages lost, doubled and overtaken, either side crashing. In the end both sides agree.

use super::super::*;
use super::world::{Phase, World};

/// The user of a side does something, or not.
fn decide(world: &mut World, random: &mut fastrand::Rng, side: usize, calm: bool) {
    for id in world.in_phase(side, Phase::Requested) {
        match random.u8(0..8) {
            0 if !calm => {
                let rejected = world.nodes[side].cm.reject(id, RejectReason::NO_QP);
                rejected.expect("it waits");
                world.set_phase(side, id, Phase::Closed);
                world.collect();
            }
            1 | 2 if !calm => {
                let delayed = world.nodes[side].cm.delay(world.now, id, 18);
                delayed.expect("it waits");
                world.collect();
            }
            3 | 4 if !calm => {}
            _ => world.accept(side, id),
        }
    }
    for id in world.in_phase(side, Phase::Replied) {
        match random.u8(0..8) {
            0 if !calm => world.disconnect(side, id),
            1 | 2 if !calm => {}
            3 if !calm => {
                let delayed = world.nodes[side].cm.delay(world.now, id, 18);
                delayed.expect("it waits");
                world.collect();
            }
            _ => world.confirm(side, id),
        }
    }
    if !calm && random.u8(0..12) == 0 {
        let phases = [Phase::Asked, Phase::Open, Phase::Accepted, Phase::Requested];
        let all = world.in_phase(side, phases[random.usize(0..4)]);
        if let Some(id) = all.first() {
            world.disconnect(side, *id);
        }
    }
    if !calm && random.u8(0..4) == 0 {
        for id in world.in_phase(side, Phase::Open) {
            // Who gets no acknowledgement ends the connection.
            if !world.send_data(side, id) && random.bool() {
                world.disconnect(side, id);
            }
        }
    }
}

fn schedule(seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(seed);
    let loss = random.f64() * 0.5;
    let crashes = random.u8(0..3);
    let mut attempts = 1 + random.u8(0..4);
    for _ in 0..random.u32(5..80) {
        let side = random.usize(0..2);
        match random.u8(0..16) {
            0..8 if !world.flying.is_empty() => {
                // Mostly the oldest.
                let index = match random.u8(0..4) {
                    0 => random.usize(..world.flying.len()),
                    _ => 0,
                };
                match random.f64() {
                    x if x < loss => drop(world.flying.remove(index)),
                    x if x < loss + 0.15 => {
                        let again = world.flying[index].clone();
                        world.flying.push(again);
                        world.deliver(index);
                    }
                    _ => world.deliver(index),
                }
            }
            8..11 => {
                world.advance();
            }
            11 | 12 if attempts > 0 => {
                attempts -= 1;
                world.connect(side);
            }
            13 if crashes > 0 && random.u8(0..8) == 0 => world.crash(side),
            _ => decide(&mut world, &mut random, side, false),
        }
    }
    // Now nothing is lost any more, and the users do what they ought to.
    for round in 0.. {
        assert!(round < 1_000, "it never ends");
        world.settle();
        for side in 0..2 {
            decide(&mut world, &mut random, side, true);
        }
        if !world.flying.is_empty() || world.advance() {
            continue;
        }
        // Both send: who finds nobody ends the connection.
        let mut dead = Vec::new();
        for side in 0..2 {
            for id in world.in_phase(side, Phase::Open) {
                if !world.send_data(side, id) {
                    dead.push((side, id));
                }
            }
        }
        if dead.is_empty() {
            break;
        }
        for (side, id) in dead {
            world.disconnect(side, id);
        }
    }
    let ends = |side: usize| {
        let node = &world.nodes[side];
        assert_eq!(node.cm.len(), node.held.len(), "side {side} leaks");
        let mut ends: Vec<_> = node
            .held
            .values()
            .map(|h| {
                assert_eq!(
                    h.phase,
                    Phase::Open,
                    "side {side}: {h:?} is neither open nor closed"
                );
                match side {
                    0 => (h.local_qpn, h.remote_qpn),
                    _ => (h.remote_qpn, h.local_qpn),
                }
            })
            .collect();
        ends.sort_unstable();
        ends
    };
    let (ours, theirs) = (ends(0), ends(1));
    assert_eq!(ours, theirs, "they do not agree");
    ours.len()
}

#[test]
fn whatever_happens_both_sides_agree_in_the_end() {
    let first = std::env::var("CM_SEED").ok().and_then(|s| s.parse().ok());
    let (first, count) = first.map_or((0, 100_000), |seed| (seed, 1));
    let mut open = 0;
    for seed in first..first + count {
        match std::panic::catch_unwind(|| schedule(seed)) {
            Ok(n) => open += n as u64,
            Err(_) => panic!("set CM_SEED={seed} to see it again"),
        }
    }
    println!("{open} connections were open in the end of {count} schedules");
    assert!(count == 1 || open > count / 4, "some survive");
}
