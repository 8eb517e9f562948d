//! Three hosts to which everything happens at random: messages of the CM and packets of connections lost, hosts and cables that end, modes that
//! change. When it is over all reach each other by as many connections as there should be, and then those go too.

use super::*;
use crate::failures::holds;
use crate::net::{Death, Lost, Random, is_cm};
use wire::Qpn;
use wire::mad::AttrId;

const HOSTS: usize = 3;
/// Seeds of the normal run; CONNECTED_SEEDS sets another number.
const SEEDS: u64 = 20;
/// How long things happen.
const CHAOS: Duration = Duration::from_secs(60);

struct Chaos {
    sim: Sim,
    random: Random,
    /// What goes on and ends at some time.
    losses: Vec<(Duration, Lost)>,
    cuts: Vec<(Duration, usize)>,
    dead: Vec<(Duration, usize)>,
    log: Vec<String>,
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9));
        let rfc_only: Vec<bool> = (0..HOSTS).map(|_| random.chance(0.3)).collect();
        let (mut sim, _) = one_switch(seed, HOSTS, |sim| {
            for (host, rfc_only) in sim.hosts.iter_mut().zip(&rfc_only) {
                Kind::Connected.set(&mut host.config);
                let config = &mut host.config.connected;
                config.rfc_only = *rfc_only;
                config.idle = 10 * SECOND;
                config.hold_down_max = 4 * SECOND;
            }
        });
        sim.run_for(3 * SECOND);
        Chaos {
            sim,
            random,
            losses: Vec::new(),
            cuts: Vec::new(),
            dead: Vec::new(),
            log: vec![format!("RFC only: {rfc_only:?}")],
        }
    }

    fn note(&mut self, text: String) {
        self.log.push(format!("{:?} {text}", self.sim.elapsed()));
    }

    /// Loses some packets that host `h` sends, or that it is sent.
    fn lose(&mut self, h: usize, end: Duration) {
        let cable = self.sim.alive(h).cable;
        let (side, most) = (self.random.below(2), 1 + self.random.below(4) as u64);
        let kind = self.random.below(8) as u16;
        self.note(format!(
            "the next {most} of kind {kind} at side {side} of host {h} are lost"
        ));
        // ConnectRequest to DisconnectReply, and what goes by queue pairs other than those of management.
        let lost = self
            .sim
            .net
            .lose(cable, side, most, move |packet| match kind {
                0..7 => is_cm(packet, AttrId(0x10 + kind)),
                _ => packet.bth.opcode.0 >> 5 == 0 && packet.bth.dest_qp > Qpn::GSI,
            });
        self.losses.push((end, lost));
    }

    fn harm(&mut self) {
        let h = self.random.below(HOSTS);
        if self.sim.hosts[h].alive.is_none() {
            return;
        }
        let now = self.sim.elapsed();
        let end = now + self.random.between(MS, 6 * SECOND);
        let death = match self.random.chance(0.5) {
            true => Death::Silent,
            false => Death::Noticed,
        };
        match self.random.below(10) {
            0 => {
                self.note(format!("host {h} is killed, {death:?}"));
                self.sim.kill(h, death);
                self.dead.push((end, h));
            }
            1 => {
                let cable = self.sim.alive(h).cable;
                self.note(format!("host {h} is cut off, {death:?}"));
                self.sim.net.cut(cable, death);
                self.cuts.push((end, cable));
            }
            2..4 => {
                let mode = match self.sim.interface(h).mode() {
                    Mode::Connected => Mode::Datagram,
                    Mode::Datagram => Mode::Connected,
                };
                self.note(format!("host {h}: {mode}"));
                set_mode(&mut self.sim, h, mode);
            }
            _ => self.lose(h, end),
        }
    }

    /// Ends what is to end until `now`.
    fn mend(&mut self, now: Duration) {
        self.losses.retain(|(end, _)| *end > now);
        let due = |(end, _): &mut (Duration, usize)| *end <= now;
        let cuts: Vec<_> = self.cuts.extract_if(.., due).collect();
        for (_, cable) in cuts {
            let mut alive = self.sim.hosts.iter().filter_map(|h| h.alive.as_ref());
            // A host that was killed meanwhile has another.
            if alive.any(|alive| alive.cable == cable) {
                self.sim.net.join(cable);
            }
        }
        let dead: Vec<_> = self.dead.extract_if(.., due).collect();
        for (_, h) in dead {
            self.note(format!("host {h} is started"));
            self.sim.start(h);
        }
    }

    fn send(&mut self) {
        let from = self.random.below(HOSTS);
        let to = (from + 1 + self.random.below(HOSTS - 1)) % HOSTS;
        let to = addresses(to)[self.random.below(2)];
        let size = [56, 3000, 65_000][self.random.below(3)];
        self.sim.ping_sized(from, to, size);
    }

    fn run(&mut self) {
        while self.sim.elapsed() < CHAOS {
            let pause = self.random.between(MS, SECOND / 2);
            self.sim.run_for(pause);
            for _ in 0..self.random.below(4) {
                self.send();
            }
            if self.random.chance(0.3) {
                self.harm();
            }
            self.mend(self.sim.elapsed());
        }
        self.mend(Duration::MAX);
        self.note("peace".into());
    }

    /// What is wrong in the end.
    fn verdict(&mut self) -> Result<(), String> {
        let sim = &mut self.sim;
        if !sim.run_until(60 * SECOND, |sim| (0..HOSTS).all(|h| sim.is_up(h))) {
            return Err(format!("not up: {:?}", crate::basic::states(sim)));
        }
        // What the subnet manager still has to tell of it.
        sim.run_for(10 * SECOND);
        (0..HOSTS).for_each(|h| set_mode(sim, h, Mode::Connected));
        let pairs = (0..HOSTS).flat_map(|a| (0..HOSTS).map(move |b| (a, b)));
        let pairs = pairs.filter(|(a, b)| a != b);
        let pairs = pairs.flat_map(|(a, b)| addresses(b).map(|to| (a, to)));
        let pairs: Vec<(usize, IpAddr)> = pairs.collect();
        // Neighbours, and then connections.
        let start = sim.elapsed();
        let mut open = pairs.clone();
        while !open.is_empty() {
            open.retain(|(from, to)| ask(sim, *from, *to, 65_000, SECOND) != Outcome::Answered);
            if sim.elapsed() - start > 60 * SECOND {
                return Err(format!("not reached: {open:?}"));
            }
        }
        // Whatever was one too many is closed, as it is idle.
        for _ in 0..6 {
            sim.run_for(5 * SECOND);
            for (from, to) in &pairs {
                let outcome = ask(sim, *from, *to, 65_000, SECOND);
                if outcome != Outcome::Answered {
                    return Err(format!("{from} to {to} in peace: {outcome:?}"));
                }
            }
        }
        for h in 0..HOSTS {
            let (own, of_peers) = self::open(sim, h);
            let count = own + of_peers;
            if count < HOSTS as u64 - 1 || count > 2 * (HOSTS as u64 - 1) {
                return Err(format!("host {h} has {own} connections, peers {of_peers}"));
            }
        }
        let count =
            |side: fn((u64, u64)) -> u64| (0..HOSTS).map(|h| side(self::open(sim, h))).sum::<u64>();
        let (own, of_peers) = (count(|c| c.0), count(|c| c.1));
        if own != of_peers {
            return Err(format!("{own} own connections, {of_peers} of peers"));
        }
        sim.run_for(120 * SECOND);
        for h in 0..HOSTS {
            let (holds, changing) = (holds(sim, h), stat(sim, h, "connections_changing"));
            if holds["queue_pairs"] != 1 || holds["waiting_packets"] != 0 || changing != 0 {
                return Err(format!("left over at {h}: {holds:?}, {changing}"));
            }
        }
        Ok(())
    }
}

#[test]
fn everything_happens_at_random() {
    let seeds = std::env::var("CONNECTED_SEEDS");
    let seeds = seeds.map_or(SEEDS, |n| n.parse().expect("a number"));
    let mut failed = Vec::new();
    for seed in 0..seeds {
        let mut chaos = Chaos::new(seed);
        chaos.run();
        if let Err(why) = chaos.verdict() {
            println!("seed {seed}: {why}\n  {}", chaos.log.join("\n  "));
            failed.push((seed, why));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
