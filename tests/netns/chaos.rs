//! Random sequences of faults by seed, in one subnet of three hosts: after each all talk, and in the end nothing is left over.
//!
//! `NETNS_FAULT_SEEDS`: how many sequences.

use crate::failover::join;
use crate::subnet::{Subnet, run, wait_until, words};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const HOSTS: u32 = 3;
const SEEDS: u64 = 20;
/// Growth of a process's memory that allocators explain.
const GROWTH: u64 = 16 << 20;
/// Each kind once, before anything is measured.
const WARM_UP: u64 = u64::MAX;

struct Chaos {
    subnet: Subnet,
    guids: Vec<String>,
    lids: Vec<Value>,
}

impl Chaos {
    /// Everybody hears everybody, by IPv4, by IPv6, and in the group that all are in: each sooner or later.
    #[track_caller]
    fn all_talk(&self) {
        let pairs = (1..=HOSTS).flat_map(|from| (1..=HOSTS).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        let unicast = pairs.flat_map(|(from, to)| {
            let once = "ping -n -c 1 -W 1";
            [format!("{once} 10.77.0.{to}"), format!("{once} fd77::{to}")]
                .map(|line| (from, line, vec![to]))
        });
        let group = (1..=HOSTS).map(|from| {
            let others = (1..=HOSTS).filter(|to| *to != from).collect();
            // The first answer is its own.
            let line = "ping -n -c 2 -i 0.2 -W 1 -I ib0 239.1.2.3".to_owned();
            (from, line, others)
        });
        let mut silent: Vec<(u32, String, Vec<u32>)> = unicast.chain(group).collect();
        let still_silent = || {
            std::thread::scope(|scope| {
                let ask = |talk: &(u32, String, Vec<u32>)| {
                    let (from, line, answer) = talk.clone();
                    scope.spawn(move || {
                        let said = words(&run(&mut self.subnet.on(from, &line)));
                        let heard = |host: &u32| {
                            let v4 = format!("from 10.77.0.{host}");
                            said.contains(&v4) || said.contains(&format!("from fd77::{host}"))
                        };
                        (!answer.iter().all(heard)).then_some((from, line, answer))
                    })
                };
                let pings: Vec<_> = silent.iter().map(ask).collect();
                let pings = pings.into_iter().map(|ping| ping.join().unwrap());
                silent = pings.flatten().collect();
            });
            silent.clone()
        };
        wait_until("all talk", still_silent, Vec::is_empty);
    }

    fn fault(&self, kind: u64, random: &mut fastrand::Rng) -> String {
        let host = random.usize(..self.guids.len());
        let guid = &self.guids[host];
        match kind {
            0 => format!("link {guid} 1 down"),
            1 => format!("link {guid} 1 up"),
            2 => {
                let mut p = || random.u32(..30);
                format!(
                    "link {guid} 1 --loss {}% --duplicate {}% --reorder {}% --corrupt {}% --delay {} --seed {}",
                    p(),
                    p(),
                    p(),
                    p(),
                    p(),
                    p()
                )
            }
            3 => "sm stop".into(),
            4 => "sm start".into(),
            5 => format!("sa drop --count {}", random.u32(1..20)),
            6 => format!("sa delay {}", random.u32(1..500)),
            7 => format!("sa status 0x{:04x}", 0x100 << random.u32(..7)),
            8 => {
                let keys = ["0x8001 0xffff", "0x7fff", "0x8001", "0x8001 0x8002 0xffff"];
                format!("pkey {guid} {}", keys[random.usize(..4)])
            }
            9 => format!("lid {guid} {}", random.u32(1..300)),
            _ => format!("prefix fec0:0:0:{}::", random.u32(1..4)),
        }
    }

    /// What cannot be done while something else is broken is refused in words.
    fn harm(&self, line: &str) {
        let output = self.subnet.try_fault(line);
        let said = words(&output);
        let expected = [
            "the subnet manager is stopped",
            "runs already",
            "is the LID of",
            "no port of the subnet",
            "no node",
            "is not the master",
        ];
        let refused = expected.iter().any(|why| said.contains(why));
        assert!(output.status.success() || refused, "{line}: {said}");
    }

    /// All is as it was.
    fn heal(&self) {
        if self.subnet.faults()["sm"] == "stopped" {
            self.subnet.fault("sm start");
        }
        self.subnet.fault("sa clear");
        self.subnet.fault("prefix fe80::");
        for guid in &self.guids {
            self.subnet.fault(&format!("link {guid} 1 clear"));
        }
        for (guid, lid) in self.guids.iter().zip(&self.lids) {
            for line in [format!("pkey {guid}"), format!("lid {guid} {lid}")] {
                // The manager must have found the port again.
                let heal = || words(&self.subnet.try_fault(&line));
                wait_until(&line, heal, String::is_empty);
            }
        }
    }

    fn sequence(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let kinds: Vec<u64> = match seed {
            WARM_UP => (0..11).collect(),
            _ => (0..random.u32(2..7)).map(|_| random.u64(..11)).collect(),
        };
        let lines: Vec<String> = kinds
            .iter()
            .map(|kind| self.fault(*kind, &mut random))
            .collect();
        eprintln!("seed {seed}: {}", lines.join("; "));
        let begin = Instant::now();
        for line in lines {
            self.harm(&line);
            let (from, to) = (random.u32(1..=HOSTS), random.u32(1..=HOSTS));
            let ping = format!("ping -n -c 3 -i 0.05 -W 0.1 10.77.0.{to}");
            // It may be answered or not.
            run(&mut self.subnet.on(from, &ping));
        }
        self.heal();
        let healed = begin.elapsed();
        self.all_talk();
        eprintln!(
            "  healed after {healed:.1?}, all talk {:.1?} later",
            begin.elapsed() - healed
        );
    }

    fn processes(&self) -> Vec<(String, i32)> {
        let hosts = (1..=HOSTS).map(|host| format!("host{host}"));
        let names = std::iter::once("fabric".to_owned()).chain(hosts);
        names
            .map(|name| (name.clone(), self.subnet.pid(&name)))
            .collect()
    }

    /// What processes, HCAs and the SA hold.
    fn held(&self) -> BTreeMap<String, String> {
        let mut held = BTreeMap::new();
        for host in 1..=HOSTS {
            let stats = self.subnet.show(host, "stats");
            for what in ["queue_pairs", "attached_groups", "mad_agents"] {
                let count = &stats[format!("held_{what}")];
                held.insert(format!("host {host}: {what}"), count.to_string());
            }
            // As many as are told of, and one for each.
            let told = ["neigh", "mcast"].map(|topic| self.subnet.show(host, topic));
            let told: usize = told
                .iter()
                .map(|list| list.as_array().map_or(0, Vec::len))
                .sum();
            let handles = stats["held_address_handles"].as_u64().unwrap_or(u64::MAX);
            let leaked = handles.saturating_sub(told as u64);
            held.insert(
                format!("host {host}: address handles nobody knows of"),
                leaked.to_string(),
            );
        }
        let fabric = self.subnet.show_fabric();
        let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
        let members = list(&fabric["groups"]).into_iter().flat_map(|group| {
            let members = list(&group["members"]).into_iter();
            let full = members.filter(|member| member["join_state"] == "FullMember");
            full.map(move |member| format!("{} {}", group["mgid"], member["gid"]))
                .collect::<Vec<_>>()
        });
        let members: BTreeSet<String> = members.collect();
        held.insert("members".into(), format!("{members:#?}"));
        let mut subscriptions: Vec<String> = list(&fabric["subscriptions"])
            .iter()
            .map(Value::to_string)
            .collect();
        subscriptions.sort();
        held.insert("subscriptions".into(), format!("{subscriptions:#?}"));
        for (name, pid) in self.processes() {
            for what in ["task", "fd"] {
                let count = std::fs::read_dir(format!("/proc/{pid}/{what}"))
                    .unwrap()
                    .count();
                held.insert(format!("{name}: /proc/{what}"), count.to_string());
            }
        }
        held
    }

    /// Resident memory of each process, bytes (proc(5), status).
    fn memory(&self) -> Vec<u64> {
        let resident = |(_, pid)| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = line.and_then(|rest| rest.split_whitespace().next());
            kib.unwrap().parse::<u64>().unwrap() << 10
        };
        self.processes().into_iter().map(resident).collect()
    }
}

#[test]
fn random_sequences_leave_nothing_behind() {
    let count = std::env::var("NETNS_FAULT_SEEDS");
    let count = count.map_or(SEEDS, |count| count.parse().expect("a number"));
    let Some(subnet) = Subnet::up(HOSTS) else {
        return;
    };
    let members: Vec<_> = (1..=HOSTS).map(|host| join(&subnet, host)).collect();
    let chaos = Chaos {
        guids: (1..=HOSTS).map(|host| subnet.guid(host)).collect(),
        lids: (1..=HOSTS)
            .map(|host| subnet.show(host, "link")["lid"].clone())
            .collect(),
        subnet,
    };
    chaos.all_talk();
    // Threads, buffers and tables that are made once.
    chaos.sequence(WARM_UP);
    // Until it is quiet: three looks that see the same.
    let quiet = || {
        [0; 3].map(|_| {
            std::thread::sleep(Duration::from_millis(300));
            chaos.held()
        })
    };
    let [before, ..] = wait_until("a quiet subnet", quiet, |[a, b, c]| a == b && b == c);
    let memory = chaos.memory();
    for seed in 0..count {
        chaos.sequence(seed);
    }
    let is_same = |held: &BTreeMap<String, String>| *held == before;
    let what = format!("what is held is what was held before, {before:#?}");
    wait_until(&what, || chaos.held(), is_same);
    let after = chaos.memory();
    eprintln!("resident memory before and after, bytes: {memory:?}, {after:?}");
    for (before, after) in memory.iter().zip(&after) {
        assert!(*after < before + GROWTH, "{memory:?}, {after:?}");
    }
    drop(members);
}
