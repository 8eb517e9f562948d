//! Twenty hosts, three leaf and two spine switches, and a seed that decides what fails when.

use crate::failures::verdict;
use crate::net::{CableId, Death, Random};
use crate::scale::fat_tree;
use crate::sim::{MachineId, Sim, SmPlace};
use fabric::sm::SmConfig;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const HOSTS: usize = 20;
const LEAVES: usize = 3;
/// How long things fail.
const CHAOS: Duration = Duration::from_secs(30);

/// Something that was broken is mended.
#[derive(Clone, Copy, Debug)]
enum Mend {
    Cable(CableId),
    Host(usize),
    Sm(usize),
}

/// A place for a subnet manager, and the one that is there.
struct Manager {
    place: SmPlace,
    priority: u8,
    running: Option<MachineId>,
}

struct Chaos {
    sim: Sim,
    random: Random,
    managers: Vec<Manager>,
    mends: Vec<(Duration, Mend)>,
    log: Vec<String>,
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut random = Random(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let mut sim = Sim::new(seed);
        let spine = fat_tree(&mut sim, LEAVES, 2, HOSTS.div_ceil(LEAVES));
        sim.hosts.truncate(HOSTS);
        let [loss, duplicate, reorder] = std::array::from_fn(|_| random.unit() * 0.05);
        sim.set_faults(loss, duplicate, reorder);
        let mut managers = vec![Manager {
            place: SmPlace::Switch(spine),
            priority: 5,
            running: None,
        }];
        match random.below(3) {
            0 => {}
            1 => managers.push(Manager {
                place: SmPlace::Switch(spine + 1),
                priority: 1,
                running: None,
            }),
            _ => managers.push(Manager {
                place: SmPlace::Host(random.below(HOSTS)),
                priority: 1,
                running: None,
            }),
        }
        let log = vec![format!(
            "loss {loss:.3}, duplicates {duplicate:.3}, reordering {reorder:.3}, managers {:?}",
            managers.iter().map(|m| m.place).collect::<Vec<_>>()
        )];
        let mut chaos = Chaos {
            sim,
            random,
            managers,
            mends: Vec::new(),
            log,
        };
        (0..HOSTS).for_each(|h| chaos.sim.start(h));
        (0..chaos.managers.len()).for_each(|m| chaos.start_sm(m));
        chaos
    }

    fn start_sm(&mut self, m: usize) {
        let manager = &mut self.managers[m];
        let possible = match manager.place {
            SmPlace::Switch(_) => true,
            SmPlace::Host(h) => self.sim.hosts[h].alive.is_some(),
        };
        if manager.running.is_none() && possible {
            let config = SmConfig {
                sm_priority: manager.priority,
                ..SmConfig::default()
            };
            manager.running = Some(self.sim.start_sm(manager.place, config));
        }
    }

    fn kill_sm(&mut self, m: usize) {
        if let Some(sm) = self.managers[m].running.take() {
            self.sim.kill_sm(sm);
        }
    }

    fn later(&mut self, longest: Duration, mend: Mend) {
        let at = self.sim.elapsed() + self.random.between(Duration::from_millis(20), longest);
        self.mends.push((at, mend));
    }

    fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Cable(cable) if !self.sim.net.is_joined(cable) => self.sim.net.join(cable),
            Mend::Cable(_) => {}
            Mend::Host(h) if self.sim.hosts[h].alive.is_none() => {
                self.sim.start(h);
                for m in 0..self.managers.len() {
                    if self.managers[m].place == SmPlace::Host(h) {
                        self.start_sm(m);
                    }
                }
            }
            Mend::Host(_) => {}
            Mend::Sm(m) => self.start_sm(m),
        }
        self.note(format!("mended {mend:?}"));
    }

    fn note(&mut self, text: String) {
        self.log.push(format!("{:?}: {text}", self.sim.elapsed()));
    }

    fn harm(&mut self) {
        let death = if self.random.chance(0.5) {
            Death::Silent
        } else {
            Death::Noticed
        };
        match self.random.below(10) {
            0..3 => {
                let cable = self.sim.trunks[self.random.below(self.sim.trunks.len())];
                self.sim.net.cut(cable, death);
                self.note(format!("cut trunk {cable}, {death:?}"));
                self.later(6 * SECOND, Mend::Cable(cable));
            }
            3..5 => {
                let h = self.random.below(HOSTS);
                if let Some(alive) = &self.sim.hosts[h].alive {
                    let cable = alive.cable;
                    self.sim.net.cut(cable, death);
                    self.note(format!("cut host {h}, {death:?}"));
                    self.later(6 * SECOND, Mend::Cable(cable));
                }
            }
            5..8 => {
                let h = self.random.below(HOSTS);
                for m in 0..self.managers.len() {
                    if self.managers[m].place == SmPlace::Host(h) {
                        self.kill_sm(m);
                    }
                }
                self.sim.kill(h, death);
                self.note(format!("killed host {h}, {death:?}"));
                self.later(6 * SECOND, Mend::Host(h));
            }
            _ => {
                let m = self.random.below(self.managers.len());
                self.kill_sm(m);
                self.note(format!("killed manager {m}"));
                self.later(8 * SECOND, Mend::Sm(m));
            }
        }
    }

    fn ping_someone(&mut self) {
        let live = self.sim.live();
        let (from, to) = (
            live[self.random.below(live.len())],
            self.random.below(HOSTS),
        );
        if from != to {
            let to = if self.random.chance(0.5) {
                crate::host::v4(to)
            } else {
                crate::host::v6(to)
            };
            self.sim.ping(from, to);
        }
    }

    fn run(&mut self) {
        while self.sim.elapsed() < CHAOS {
            let step = self
                .random
                .between(Duration::from_millis(20), Duration::from_millis(200));
            self.sim.run_for(step);
            self.ping_someone();
            if self.random.chance(0.1) {
                self.harm();
            }
            let now = self.sim.elapsed();
            let due: Vec<Mend> = self
                .mends
                .extract_if(.., |(at, _)| *at <= now)
                .map(|(_, mend)| mend)
                .collect();
            due.into_iter().for_each(|mend| self.mend(mend));
        }
        // Peace: everything is mended, hosts first.
        for (_, mend) in std::mem::take(&mut self.mends) {
            self.mend(mend);
        }
        (0..self.managers.len()).for_each(|m| self.start_sm(m));
        self.sim.set_faults(0.0, 0.0, 0.0);
    }

    fn verdict(&mut self) -> Result<Duration, String> {
        let managers = self.managers.iter().filter_map(|m| m.running);
        let managers: Vec<MachineId> = managers.collect();
        verdict(&mut self.sim, &managers)
    }
}

fn seeds(range: std::ops::Range<u64>) {
    let mut longest = (Duration::ZERO, 0);
    let mut events = 0;
    let mut failed = Vec::new();
    for seed in range.clone() {
        let mut chaos = Chaos::new(seed);
        chaos.run();
        match chaos.verdict() {
            Ok(took) => longest = longest.max((took, seed)),
            Err(why) => {
                println!("seed {seed}: {why}\n  {}", chaos.log.join("\n  "));
                failed.push((seed, why));
            }
        }
        events += chaos.sim.events;
    }
    println!(
        "seeds {range:?}: all pairs talk at most {:?} of virtual time after the last failure (seed {}); {events} events",
        longest.0, longest.1
    );
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn seeds_0_to_49() {
    seeds(0..50);
}

#[test]
fn seeds_50_to_99() {
    seeds(50..100);
}

#[test]
fn the_same_seed_fails_in_the_same_way() {
    let run = |seed| {
        let mut chaos = Chaos::new(seed);
        chaos.run();
        (chaos.sim.trace, chaos.sim.events, chaos.log)
    };
    for seed in [29, 45, 69] {
        assert!(run(seed) == run(seed), "seed {seed}");
    }
}

/// Runs one seed again: `SIM_SEED=7 cargo test --test sim -- --ignored --nocapture replay`.
#[test]
#[ignore = "for a failed seed"]
fn replay() {
    let seed = std::env::var("SIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .expect("SIM_SEED is a number");
    let mut chaos = Chaos::new(seed);
    chaos.run();
    let verdict = chaos.verdict();
    println!("{}", chaos.log.join("\n"));
    for manager in chaos.managers.iter().filter_map(|m| m.running) {
        let sm = chaos.sim.sm(manager);
        println!(
            "manager {manager}: {:?}, LID {}, {:?}",
            sm.state(),
            sm.lid(),
            sm.counters()
                .iter()
                .filter(|(_, n)| *n > 0)
                .collect::<Vec<_>>()
        );
        for node in sm.nodes() {
            println!(
                "  {} {:?}",
                node.description,
                node.ports
                    .iter()
                    .map(|p| format!("{}:{}:{}", p.number, p.lid, p.state))
                    .collect::<Vec<_>>()
            );
        }
        for group in sm.groups() {
            println!(
                "  {} {}: {} members",
                group.mgid,
                group.mlid,
                group.members.len()
            );
        }
    }
    for h in chaos.sim.live() {
        let link = chaos.sim.interface(h).link_status();
        println!(
            "host {h}: {} lid {} sm {} {:?}",
            link.state,
            link.lid,
            link.sm_lid,
            chaos
                .sim
                .interface(h)
                .group_status()
                .iter()
                .map(|g| format!("{} {:?} {} {}", g.mgid, g.mlid, g.state, g.users))
                .collect::<Vec<_>>()
        );
    }
    println!("{verdict:?}");
}
