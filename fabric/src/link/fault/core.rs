//! What becomes of packets, and when.

use super::super::udp::Counter;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use wire::Qpn;
use wire::mad::cm::CmMessage;
use wire::mad::{AttrId, MadBytes};
use wire::packet::Packet;

/// A packet with a payload of its own, to be kept beyond the call that brought it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPacket {
    /// The packet, with no payload.
    headers: Packet<'static>,
    payload: Vec<u8>,
}

impl OwnedPacket {
    /// The packet as it was.
    pub fn as_packet(&self) -> Packet<'_> {
        Packet {
            payload: &self.payload,
            ..self.headers
        }
    }
}

impl From<&Packet<'_>> for OwnedPacket {
    fn from(packet: &Packet<'_>) -> Self {
        Self {
            headers: Packet {
                payload: &[],
                ..*packet
            },
            payload: packet.payload.to_vec(),
        }
    }
}

/// How often packets meet which fault, each from 0 (never) to 1 (always).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Lost.
    pub loss: f64,
    /// Sent twice, one after the other.
    pub duplicate: f64,
    /// Held back until the next packet was sent, or for 10 ms.
    pub reorder: f64,
    /// Bits flipped: the receiver finds the ICRC wrong.
    pub corrupt: f64,
    /// All arrive so much later.
    pub delay: Duration,
}

impl FaultConfig {
    /// No faults.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        corrupt: 0.0,
        delay: Duration::ZERO,
    };
}

/// Messages of the communication manager that are lost (IBA 12.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmLoss {
    /// Which ones.
    pub message: AttrId,
    /// So many more; `None`: all.
    pub left: Option<u32>,
}

/// Is it this message of the communication manager?
pub fn is_cm(packet: &Packet<'_>, message: AttrId) -> bool {
    packet.bth.dest_qp == Qpn::GSI
        && <&MadBytes>::try_from(packet.payload)
            .ok()
            .and_then(CmMessage::parse)
            .is_some_and(|(header, _)| header.attr_id == message)
}

/// Packets that met a fault.
#[derive(Debug, Default)]
pub struct FaultCounters {
    /// Lost.
    pub lost: Counter,
    /// Sent twice.
    pub duplicated: Counter,
    /// Held back.
    pub reordered: Counter,
    /// Broken.
    pub corrupted: Counter,
    /// Late.
    pub delayed: Counter,
    /// Lost because too many were late at once.
    pub overflowed: Counter,
    /// Lost because the link was down.
    pub down: Counter,
}

impl FaultCounters {
    /// Names and values.
    pub fn values(&self) -> [(&'static str, u64); 7] {
        [
            ("lost", self.lost.get()),
            ("duplicated", self.duplicated.get()),
            ("reordered", self.reordered.get()),
            ("corrupted", self.corrupted.get()),
            ("delayed", self.delayed.get()),
            ("overflowed", self.overflowed.get()),
            ("down", self.down.get()),
        ]
    }
}

/// What comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A packet as it was.
    Whole(OwnedPacket),
    /// One whose bits were flipped on the way.
    Broken(OwnedPacket),
}

/// A packet is held back so long at most, if no other comes.
const HOLD: Duration = Duration::from_millis(10);
/// Packets on the way at once.
const MAX_QUEUED: usize = 16_384;

/// Faults of one direction of a link. A super-packet meets them as one packet.
///
/// After [`FaultCore::handle`], and when [`FaultCore::poll_timeout`] says, drain [`FaultCore::poll_output`].
pub struct FaultCore {
    config: FaultConfig,
    random: fastrand::Rng,
    /// A packet that others overtake, and until when.
    held: Option<(Instant, Output)>,
    /// On the way, in their order.
    queue: VecDeque<(Instant, Output)>,
    counters: FaultCounters,
}

impl FaultCore {
    /// Without packets.
    pub fn new(config: FaultConfig, seed: u64) -> Self {
        Self {
            config,
            random: fastrand::Rng::with_seed(seed),
            held: None,
            queue: VecDeque::new(),
            counters: FaultCounters::default(),
        }
    }

    /// Changes the faults from the next packet on; with a seed the generator begins anew.
    pub fn set(&mut self, config: FaultConfig, seed: Option<u64>) {
        self.config = config;
        if let Some(seed) = seed {
            self.random = fastrand::Rng::with_seed(seed);
        }
    }

    /// Loses all that is on the way.
    pub fn clear(&mut self) {
        self.counters
            .down
            .add(self.queue.len() + usize::from(self.held.is_some()));
        (self.queue, self.held) = (VecDeque::new(), None);
    }

    /// The faults.
    pub fn config(&self) -> FaultConfig {
        self.config
    }

    /// True while packets may pass by without being asked about.
    pub fn is_idle(&self) -> bool {
        self.config == FaultConfig::NONE && self.held.is_none() && self.queue.is_empty()
    }

    /// What happened so far.
    pub fn counters(&self) -> &FaultCounters {
        &self.counters
    }

    /// Packets set out.
    pub fn handle(&mut self, now: Instant, packets: &[Packet<'_>]) {
        for packet in packets {
            // Every packet takes four numbers, so that a change of one probability leaves the other decisions as they were.
            let [loss, duplicate, reorder, corrupt] = std::array::from_fn(|_| self.random.f64());
            if loss < self.config.loss {
                self.counters.lost.add(1);
                continue;
            }
            let output = OwnedPacket::from(packet);
            let output = if corrupt < self.config.corrupt {
                self.counters.corrupted.add(1);
                Output::Broken(output)
            } else {
                Output::Whole(output)
            };
            if reorder < self.config.reorder && self.held.is_none() {
                self.counters.reordered.add(1);
                self.held = Some((now + HOLD, output));
                continue;
            }
            if duplicate < self.config.duplicate {
                self.counters.duplicated.add(1);
                self.send(now, output.clone());
            }
            self.send(now, output);
            if let Some((_, held)) = self.held.take() {
                self.send(now, held);
            }
        }
    }

    fn send(&mut self, now: Instant, output: Output) {
        if self.queue.len() >= MAX_QUEUED {
            return self.counters.overflowed.add(1);
        }
        if !self.config.delay.is_zero() {
            self.counters.delayed.add(1);
        }
        self.queue.push_back((now + self.config.delay, output));
    }

    /// What arrives by now.
    pub fn poll_output(&mut self, now: Instant) -> Option<Output> {
        if let Some((_, held)) = self.held.take_if(|(at, _)| *at <= now) {
            self.send(now, held);
        }
        self.queue
            .pop_front_if(|(at, _)| *at <= now)
            .map(|(_, output)| output)
    }

    /// When something arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let held = self.held.as_ref().map(|(at, _)| *at);
        let first = self.queue.front().map(|(at, _)| *at);
        held.into_iter().chain(first).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Lid;
    use wire::packet::Lrh;

    fn packet(number: u16, payload: &[u8]) -> Packet<'_> {
        Packet {
            lrh: Lrh {
                dlid: Lid(number),
                ..Lrh::default()
            },
            payload,
            ..Packet::default()
        }
    }

    fn drain(core: &mut FaultCore, now: Instant, got: &mut Vec<u16>) {
        while let Some(output) = core.poll_output(now) {
            let (Output::Whole(packet) | Output::Broken(packet)) = output;
            let packet = packet.as_packet();
            assert_eq!(packet.payload, [packet.lrh.dlid.0 as u8; 3]);
            got.push(packet.lrh.dlid.0);
        }
    }

    /// Sends 1000 numbered packets at one time; what arrives, and the counters.
    fn run(config: FaultConfig, seed: u64, batch: usize) -> (Vec<u16>, Vec<u64>) {
        let (mut core, now) = (FaultCore::new(config, seed), Instant::now());
        let mut got = Vec::new();
        let payloads: Vec<[u8; 3]> = (0..1000u16).map(|n| [n as u8; 3]).collect();
        let packets: Vec<Packet<'_>> = (0..).zip(&payloads).map(|(n, p)| packet(n, p)).collect();
        for batch in packets.chunks(batch) {
            core.handle(now, batch);
            drain(&mut core, now, &mut got);
        }
        drain(&mut core, now + HOLD + config.delay, &mut got);
        assert_eq!(core.poll_timeout(), None);
        let counters = core.counters().values();
        (got, counters.map(|(_, value)| value).to_vec())
    }

    #[test]
    fn no_faults_change_nothing() {
        let (got, counts) = run(FaultConfig::NONE, 1, 7);
        assert_eq!(got, (0..1000).collect::<Vec<_>>());
        assert_eq!(counts, [0; 7]);
        assert!(FaultCore::new(FaultConfig::NONE, 1).is_idle());
    }

    #[test]
    fn the_seed_decides_and_batches_do_not_matter() {
        let config = FaultConfig {
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
            corrupt: 0.1,
            delay: Duration::ZERO,
        };
        let (got, counts) = run(config, 42, 1);
        assert_eq!(run(config, 42, 64), (got.clone(), counts.clone()));
        assert_ne!(run(config, 43, 64).0, got);
        assert_eq!(got.len() as u64, 1000 - counts[0] + counts[1]);
        for count in &counts[..4] {
            assert!((50..200).contains(count), "{counts:?}");
        }
    }

    #[test]
    fn each_fault_alone() {
        let none = FaultConfig::NONE;
        let all = |config| run(config, 7, 10).0;
        assert_eq!(all(FaultConfig { loss: 1.0, ..none }), []);
        let twice: Vec<u16> = (0..1000).flat_map(|n| [n, n]).collect();
        let duplicate = FaultConfig {
            duplicate: 1.0,
            ..none
        };
        assert_eq!(all(duplicate), twice);
        let swapped: Vec<u16> = (0..1000).map(|n| n ^ 1).collect();
        let reorder = FaultConfig {
            reorder: 1.0,
            ..none
        };
        assert_eq!(all(reorder), swapped);
    }

    #[test]
    fn late_packets_stay_in_order_and_keep_their_time() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        let config = FaultConfig {
            delay: 50 * ms,
            ..FaultConfig::NONE
        };
        let mut core = FaultCore::new(config, 1);
        core.handle(start, &[packet(1, &[1; 3])]);
        core.handle(start + 20 * ms, &[packet(2, &[2; 3])]);
        // What sets out after the end of the fault does not overtake.
        core.set(FaultConfig::NONE, None);
        core.handle(start + 30 * ms, &[packet(3, &[3; 3])]);
        let mut got = Vec::new();
        drain(&mut core, start + 49 * ms, &mut got);
        assert_eq!(
            (core.poll_timeout(), &got[..]),
            (Some(start + 50 * ms), &[][..])
        );
        drain(&mut core, start + 50 * ms, &mut got);
        assert_eq!(
            (core.poll_timeout(), &got[..]),
            (Some(start + 70 * ms), &[1][..])
        );
        drain(&mut core, start + 70 * ms, &mut got);
        assert_eq!(got, [1, 2, 3]);
        assert!(core.is_idle());
    }

    #[test]
    fn a_flood_of_late_packets_is_bounded_and_lost_with_the_link() {
        let now = Instant::now();
        let config = FaultConfig {
            delay: HOLD,
            ..FaultConfig::NONE
        };
        let mut core = FaultCore::new(config, 1);
        for _ in 0..MAX_QUEUED + 5 {
            core.handle(now, &[packet(1, &[])]);
        }
        assert_eq!(core.counters().overflowed.get(), 5);
        core.clear();
        assert_eq!(core.counters().down.get(), MAX_QUEUED as u64);
        assert_eq!(core.poll_output(now + HOLD), None);
    }

    #[test]
    fn broken_packets_say_so_and_a_lonely_one_is_not_held_for_ever() {
        let now = Instant::now();
        let config = FaultConfig {
            corrupt: 1.0,
            reorder: 1.0,
            ..FaultConfig::NONE
        };
        let mut core = FaultCore::new(config, 1);
        core.handle(now, &[packet(9, &[9; 3])]);
        assert_eq!(core.poll_output(now), None);
        assert_eq!(core.poll_timeout(), Some(now + HOLD));
        assert!(matches!(
            core.poll_output(now + HOLD),
            Some(Output::Broken(_))
        ));
    }
}
