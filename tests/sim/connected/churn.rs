//! Many hosts in connected mode that are allowed few connections each: all at once to one, and at random for an hour in which hosts die,
//! move, come back and change their mode. In the end nothing is left over.

use super::*;
use crate::failures::holds;
use crate::net::{Death, Random};
use crate::scale::fat_tree;
use crate::sim::SmPlace;
use arp::NeighbourConfig;
use fabric::sm::SmConfig;
use std::collections::BTreeMap;

const LEAVES: usize = 10;
const IDLE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// With room for `limit` connections at once, both directions together.
fn configure(config: &mut InterfaceConfig, limit: usize) {
    Kind::Connected.set(config);
    config.connected.max_connections = limit;
    config.connected.max_from_peer = 2;
    config.connected.idle = IDLE;
    config.connected.busy = SECOND;
    config.connected.hold_down_max = 8 * SECOND;
}

/// All hosts up, their groups joined.
fn world(seed: u64, hosts: usize, limit: usize) -> Sim {
    let mut sim = Sim::new(seed);
    let spine = fat_tree(&mut sim, LEAVES, 2, hosts / LEAVES);
    for host in &mut sim.hosts {
        configure(&mut host.config, limit);
        // Not those of all hosts to all hosts; whoever comes back announces itself as usual.
        host.config.neighbours.announcements = 0;
    }
    sim.start_sm(SmPlace::Switch(spine), SmConfig::default());
    (0..hosts).for_each(|h| sim.start(h));
    for host in &mut sim.hosts {
        host.config.neighbours.announcements = NeighbourConfig::default().announcements;
    }
    all_up(&mut sim);
    sim
}

fn all_up(sim: &mut Sim) {
    let up = sim.run_until(120 * SECOND, |sim| {
        (0..sim.hosts.len()).all(|h| sim.is_up(h))
    });
    assert!(up, "{:?}", crate::basic::states(sim));
    sim.run_for(10 * SECOND);
}

/// What each host holds, and its connections in any state.
fn leftovers(sim: &Sim) -> Vec<BTreeMap<&'static str, u64>> {
    let names = [
        "connections_own",
        "connections_of_peers",
        "connections_changing",
    ];
    (0..sim.hosts.len())
        .map(|h| {
            let mut holds = holds(sim, h);
            holds.extend(names.map(|name| (name, stat(sim, h, name))));
            holds
        })
        .collect()
}

/// Without traffic: connections age, and then the neighbours. Nothing may be left that was not there before.
fn assert_nothing_left(sim: &mut Sim, before: &[BTreeMap<&'static str, u64>]) {
    sim.run_for(10 * 60 * SECOND);
    let after = leftovers(sim);
    let different = before.iter().zip(&after).enumerate();
    let different: Vec<_> = different.filter(|(_, (b, a))| b != a).take(5).collect();
    assert!(different.is_empty(), "host, before, after: {different:?}");
}

#[test]
fn five_hundred_at_once_to_one_that_takes_few() {
    const HOSTS: usize = 500;
    const LIMIT: usize = 64;
    let mut sim = world(120, HOSTS, LIMIT);
    let before = leftovers(&sim);
    let start = sim.elapsed();
    let mut pairs: Vec<(usize, IpAddr)> = (1..HOSTS).map(|h| (h, host::v4(0))).collect();
    // And somebody else, at the same time.
    pairs.extend((1..HOSTS).map(|h| (h, host::v6(1 + h * 7 % (HOSTS - 1)))));
    pairs.retain(|(h, to)| *to != host::v6(*h));
    let mut rounds = 0;
    // Long packets: by a connection, or not at all. Everybody tries again every second.
    while !pairs.is_empty() && sim.elapsed() - start < 300 * SECOND {
        rounds += 1;
        let ping = |(h, to): &(usize, IpAddr)| sim.ping_sized(*h, *to, 10_000);
        let tokens: Vec<u32> = pairs.iter().map(ping).collect();
        sim.run_for(SECOND);
        let queue_pairs = holds(&sim, 0)["queue_pairs"];
        assert!(queue_pairs <= 1 + 2 * LIMIT as u64, "{queue_pairs}");
        let mut tokens = tokens.into_iter();
        pairs.retain(|(h, _)| {
            let token = tokens.next().expect("one each");
            outcome(&sim, *h, token) != Outcome::Answered
        });
    }
    assert_eq!(pairs, [], "never answered");
    println!(
        "all were answered by the one and by another after {:?} of virtual time, {rounds} rounds; {} connections of the one made room, {} had none; {} events",
        sim.elapsed() - start,
        stat(&sim, 0, "connection_closed_for_room"),
        stat(&sim, 0, "connection_no_room"),
        sim.events
    );
    assert!(stat(&sim, 0, "connection_closed_for_room") > 0);
    assert!(stat(&sim, 0, "connection_no_room") > 0);
    assert_nothing_left(&mut sim, &before);
}

/// Something is put right again.
enum Mend {
    Host(usize),
    Cable(usize),
}

/// A packet that was sent.
struct Sent {
    from: usize,
    to: usize,
    at: Duration,
    token: u32,
}

struct Churn {
    sim: Sim,
    random: Random,
    mends: Vec<(Duration, Mend)>,
    /// Hosts at which something happened, from when until when.
    incidents: Vec<(usize, Duration, Duration)>,
    sent: Vec<Sent>,
}

impl Churn {
    /// Something that happens to one host, or a packet of it.
    fn step(&mut self) {
        let (sim, random) = (&mut self.sim, &mut self.random);
        let h = random.below(sim.hosts.len());
        let now = sim.elapsed();
        let soon = now + random.between(SECOND / 10, 60 * SECOND);
        let death = match random.chance(0.5) {
            true => Death::Silent,
            false => Death::Noticed,
        };
        if sim.hosts[h].alive.is_none() {
            return;
        }
        match random.below(20) {
            0 => {
                sim.kill(h, death);
                if random.chance(0.3) {
                    sim.hosts[h].switch = random.below(LEAVES);
                }
                self.mends.push((soon, Mend::Host(h)));
                self.incidents.push((h, now, soon));
            }
            1 => {
                let cable = sim.alive(h).cable;
                sim.net.cut(cable, death);
                self.mends.push((soon, Mend::Cable(cable)));
                self.incidents.push((h, now, soon));
            }
            2 => {
                let mode = match sim.interface(h).mode() {
                    Mode::Connected => Mode::Datagram,
                    Mode::Datagram => Mode::Connected,
                };
                set_mode(sim, h, mode);
                self.incidents.push((h, now, now));
            }
            _ => {
                // Few have many friends.
                let to = match random.chance(0.5) {
                    true => random.below(sim.hosts.len()),
                    false => random.below(5),
                };
                if to != h {
                    let address = addresses(to)[random.below(2)];
                    let size = [56, 1500, 3000, 65_000][random.below(4)];
                    self.sent.push(Sent {
                        from: h,
                        to,
                        at: now,
                        token: sim.ping_sized(h, address, size),
                    });
                }
            }
        }
    }

    /// What is due, or all.
    fn mend(&mut self, all: bool) {
        let now = self.sim.elapsed();
        let due = |(at, _): &mut (Duration, Mend)| all || *at <= now;
        let due: Vec<_> = self.mends.extract_if(.., due).collect();
        for (_, mend) in due {
            match mend {
                Mend::Host(h) => self.sim.start(h),
                Mend::Cable(cable) => {
                    let mut alive = self.sim.hosts.iter().filter_map(|h| h.alive.as_ref());
                    // A host that was killed meanwhile has another.
                    if alive.any(|alive| alive.cable == cable) {
                        self.sim.net.join(cable);
                    }
                }
            }
        }
    }

    /// Goes on for so long.
    fn run(&mut self, duration: Duration) {
        let end = self.sim.elapsed() + duration;
        while self.sim.elapsed() < end {
            let pause = self.random.between(SECOND / 10, 2 * SECOND);
            self.sim.run_for(pause);
            self.step();
            self.mend(false);
        }
    }

    /// Packets without answer and without error between hosts at which nothing happened shortly before or after.
    fn lost_in_silence(&self) -> Vec<(usize, usize, Duration)> {
        let calm = |sent: &&Sent| {
            self.incidents.iter().all(|(h, from, to)| {
                ![sent.from, sent.to].contains(h)
                    || sent.at + 2 * SECOND < *from
                    || *to + 10 * SECOND < sent.at
            })
        };
        let silent = |sent: &&Sent| outcome(&self.sim, sent.from, sent.token) == Outcome::Silence;
        let lost = self.sent.iter().filter(silent).filter(calm);
        lost.map(|sent| (sent.from, sent.to, sent.at)).collect()
    }
}

#[test]
fn an_hour_of_churn_leaves_nothing() {
    const SEED: u64 = 121;
    const HOSTS: usize = 100;
    let sim = world(SEED, HOSTS, 8);
    let before = leftovers(&sim);
    let mut churn = Churn {
        sim,
        random: Random(SEED),
        mends: Vec::new(),
        incidents: Vec::new(),
        sent: Vec::new(),
    };
    churn.sim.set_faults(0.001, 0.001, 0.001);
    churn.run(HOUR / 2);
    churn.sim.set_faults(0.0, 0.0, 0.0);
    churn.sim.run_for(10 * SECOND);
    let first = churn.sent.len();
    churn.sent.clear();
    churn.run(HOUR / 2);
    churn.sim.run_for(10 * SECOND);
    println!(
        "seed {SEED}: {} packets and {} incidents; {} events",
        first + churn.sent.len(),
        churn.incidents.len(),
        churn.sim.events
    );
    assert_eq!(churn.lost_in_silence(), []);
    churn.mend(true);
    let mut sim = churn.sim;
    all_up(&mut sim);
    (0..HOSTS).for_each(|h| set_mode(&mut sim, h, Mode::Connected));
    let other = |h: usize| (h + 1 + sim.random.below(HOSTS - 1)) % HOSTS;
    let others: Vec<usize> = (0..HOSTS).map(other).collect();
    let pairs = others.into_iter().enumerate();
    let pairs: Vec<_> = pairs.map(|(h, to)| (h, addresses(to)[h % 2])).collect();
    assert_eq!(sim.ping_until_answered(&pairs, 60 * SECOND), []);
    assert_nothing_left(&mut sim, &before);
}
