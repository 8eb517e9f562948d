//! A thousand hosts on a fat tree.

use crate::basic::states;
use crate::host;
use crate::sim::{Sim, SmPlace};
use fabric::sm::{Counter, SmConfig};
use std::net::IpAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Leaf switches with `per_leaf` hosts each, all connected to all spines; gives the number of the first spine.
pub fn fat_tree(sim: &mut Sim, leaves: usize, spines: usize, per_leaf: usize) -> usize {
    for _ in 0..leaves {
        sim.add_switch((2 * per_leaf + spines + 2) as u8);
    }
    for spine in 0..spines {
        let spine_index = sim.add_switch((leaves + 2) as u8);
        assert_eq!(spine_index, leaves + spine);
        for leaf in 0..leaves {
            sim.connect_switches(leaf, spine_index);
        }
    }
    for leaf in 0..leaves {
        for _ in 0..per_leaf {
            sim.add_host(leaf);
        }
    }
    leaves
}

#[test]
fn a_thousand_hosts_come_up_and_talk() {
    const SEED: u64 = 41;
    const HOSTS: usize = 1000;
    let real = std::time::Instant::now();
    let mut sim = Sim::new(SEED);
    let spine = fat_tree(&mut sim, 25, 4, HOSTS / 25);
    sim.set_faults(0.01, 0.0, 0.0);
    let sm = sim.start_sm(SmPlace::Switch(spine), SmConfig::default());
    for h in 0..HOSTS {
        sim.start(h);
    }
    let up = sim.run_until(120 * SECOND, |sim| (0..HOSTS).all(|h| sim.is_up(h)));
    assert!(up, "seed {SEED}: {:?}", states(&sim));
    println!(
        "seed {SEED}: {HOSTS} hosts on 29 switches up after {:?} of virtual time, {:?} of real time",
        sim.elapsed(),
        real.elapsed()
    );
    let pairs: Vec<(usize, IpAddr)> = (0..HOSTS)
        .map(|from| {
            let to = (from + 1 + sim.random.below(HOSTS - 1)) % HOSTS;
            (
                from,
                if from % 2 == 0 {
                    host::v4(to)
                } else {
                    host::v6(to)
                },
            )
        })
        .collect();
    let start = sim.elapsed();
    let silent = sim.ping_until_answered(&pairs, 60 * SECOND);
    assert_eq!(silent, [], "seed {SEED}");
    let counters = sim.sm(sm).counters();
    println!(
        "{} random pairs talked after {:?}; {} SMPs, {} SA requests, {} reports, {} heavy sweeps; {} packets on links, {} lost, {} events; {:?} of virtual time, {:?} of real time",
        pairs.len(),
        sim.elapsed() - start,
        counters.get(Counter::SmpsSent),
        counters.get(Counter::SaRequests),
        counters.get(Counter::Reports),
        counters.get(Counter::HeavySweeps),
        sim.net.carried(),
        sim.net.lost(),
        sim.events,
        sim.elapsed(),
        real.elapsed()
    );
}
