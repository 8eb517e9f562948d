//! Faults on a link: packets get lost, come twice, or change places.
//!
//! A [`FaultLink`] stands around another link. Its decisions come packet by packet from a generator with a seed, so the same packets meet the
//! same faults again. It needs no time: reordering holds a packet back until the next one has passed.

use super::Link;
use super::udp::Counter;
use parking_lot::Mutex;
use std::sync::Arc;
use wire::mad::PortState;
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
    /// Held back until the next packet was sent.
    pub reorder: f64,
}

impl FaultConfig {
    /// No faults.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
    };
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
}

/// A link with faults. A super-packet meets them as one packet.
pub struct FaultLink {
    inner: Arc<dyn Link>,
    state: Mutex<State>,
    counters: FaultCounters,
}

struct State {
    config: FaultConfig,
    random: fastrand::Rng,
    held: Option<OwnedPacket>,
}

impl FaultLink {
    /// Puts faults around `inner`.
    pub fn new(inner: Arc<dyn Link>, config: FaultConfig, seed: u64) -> Self {
        Self {
            inner,
            state: Mutex::new(State {
                config,
                random: fastrand::Rng::with_seed(seed),
                held: None,
            }),
            counters: FaultCounters::default(),
        }
    }

    /// Changes the faults from the next packet on.
    pub fn set(&self, config: FaultConfig) {
        self.state.lock().config = config;
    }

    /// What happened so far.
    pub fn counters(&self) -> &FaultCounters {
        &self.counters
    }

    /// Sends a packet that is held back. Without this it waits for the next one.
    pub fn flush(&self) {
        let held = self.state.lock().held.take();
        if let Some(packet) = held {
            self.inner.transmit(&[packet.as_packet()]);
        }
    }
}

impl Link for FaultLink {
    fn transmit(&self, packets: &[Packet<'_>]) {
        let mut state = self.state.lock();
        if state.config == FaultConfig::NONE && state.held.is_none() {
            drop(state);
            return self.inner.transmit(packets);
        }
        let before = state.held.take();
        let mut held = before.as_ref().map(OwnedPacket::as_packet);
        let mut out = Vec::with_capacity(2 * packets.len() + 1);
        for packet in packets {
            // Every packet takes three numbers, so that a change of one probability leaves the other decisions as they were.
            let [loss, duplicate, reorder] = std::array::from_fn(|_| state.random.f64());
            if loss < state.config.loss {
                self.counters.lost.add(1);
            } else if reorder < state.config.reorder && held.is_none() {
                self.counters.reordered.add(1);
                held = Some(*packet);
            } else {
                out.push(*packet);
                if duplicate < state.config.duplicate {
                    self.counters.duplicated.add(1);
                    out.push(*packet);
                }
                out.extend(held.take());
            }
        }
        state.held = held.as_ref().map(OwnedPacket::from);
        // In one process the receiver may answer within this call.
        drop(state);
        if !out.is_empty() {
            self.inner.transmit(&out);
        }
    }

    fn port_state(&self, state: PortState) {
        self.inner.port_state(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::packet::Lrh;

    #[derive(Default)]
    struct Record(Mutex<Vec<u16>>);

    impl Link for Record {
        fn transmit(&self, packets: &[Packet<'_>]) {
            for packet in packets {
                let payload = [packet.lrh.dlid.0 as u8; 3];
                assert_eq!(packet.payload, payload);
                self.0.lock().push(packet.lrh.dlid.0);
            }
        }
        fn port_state(&self, _: PortState) {}
    }

    fn send(link: &dyn Link, numbers: std::ops::Range<u16>, batch: usize) {
        let numbers: Vec<u16> = numbers.collect();
        for numbers in numbers.chunks(batch) {
            let payloads: Vec<[u8; 3]> = numbers.iter().map(|&n| [n as u8; 3]).collect();
            let packets: Vec<Packet<'_>> = numbers
                .iter()
                .zip(&payloads)
                .map(|(&n, payload)| Packet {
                    lrh: Lrh {
                        dlid: wire::Lid(n),
                        ..Lrh::default()
                    },
                    grh: None,
                    bth: Default::default(),
                    ext: Default::default(),
                    payload,
                    lso: None,
                    icrc: None,
                    hops: 0,
                })
                .collect();
            link.transmit(&packets);
        }
    }

    fn run(config: FaultConfig, seed: u64, batch: usize) -> (Vec<u16>, [u64; 3]) {
        let record = Arc::new(Record::default());
        let link = FaultLink::new(record.clone(), config, seed);
        send(&link, 0..1000, batch);
        link.flush();
        let c = link.counters();
        let counts = [c.lost.get(), c.duplicated.get(), c.reordered.get()];
        (std::mem::take(&mut *record.0.lock()), counts)
    }

    #[test]
    fn no_faults_change_nothing() {
        let (got, counts) = run(FaultConfig::NONE, 1, 7);
        assert_eq!(got, (0..1000).collect::<Vec<_>>());
        assert_eq!(counts, [0; 3]);
    }

    #[test]
    fn the_seed_decides_and_batches_do_not_matter() {
        let config = FaultConfig {
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
        };
        let (got, counts) = run(config, 42, 1);
        assert_eq!(run(config, 42, 64), (got.clone(), counts));
        assert_ne!(run(config, 43, 64).0, got);
        let [lost, duplicated, reordered] = counts;
        assert_eq!(got.len() as u64, 1000 - lost + duplicated);
        for count in [lost, duplicated, reordered] {
            assert!((50..200).contains(&count), "{counts:?}");
        }
    }

    #[test]
    fn each_fault_alone() {
        let all = |config| run(config, 7, 10);
        let none = FaultConfig::NONE;
        assert_eq!(all(FaultConfig { loss: 1.0, ..none }).0, []);

        let twice: Vec<u16> = (0..1000).flat_map(|n| [n, n]).collect();
        let duplicate = FaultConfig {
            duplicate: 1.0,
            ..none
        };
        assert_eq!(all(duplicate).0, twice);

        let swapped: Vec<u16> = (0..1000).map(|n| n ^ 1).collect();
        let reorder = FaultConfig {
            reorder: 1.0,
            ..none
        };
        assert_eq!(all(reorder).0, swapped);
    }
}
