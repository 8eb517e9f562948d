//! Two engines and what lies between them, in virtual time.

use super::super::*;
use std::time::Duration;
use verbs::{Access, AckTimeout, ReceiveQueue, RnrTimer};
use wire::packet::Bth;
use wire::{Lid, MtuCode, Qpn, RateCode, ServiceLevel};

/// What happens to packets.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) loss: f64,
    pub(super) duplicate: f64,
    /// Each packet is under way so long at most; those that left later may come earlier.
    pub(super) spread_us: u64,
}

/// A packet on its way.
#[derive(Clone, Debug)]
pub(super) struct Flying {
    at: Instant,
    to: usize,
    bth: Bth,
    ext: Extended,
    bytes: Vec<u8>,
}

/// What a side is made of.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) init: ConnectedInit,
    pub(super) psns: [Psn; 2],
    pub(super) mtu: MtuCode,
    pub(super) rts: RtsAttributes,
    pub(super) max_dest_rd_atomic: u8,
}

pub(super) const RTS: RtsAttributes = RtsAttributes {
    sq_psn: Psn(0),
    // 1 ms.
    timeout: AckTimeout(8),
    retry_count: 7,
    rnr_retry: 7,
    max_rd_atomic: 4,
};

impl Default for Setup {
    fn default() -> Self {
        Setup {
            init: ConnectedInit::default(),
            psns: [Psn(0xff_fffe), Psn(5)],
            mtu: MtuCode(1),
            rts: RTS,
            max_dest_rd_atomic: 4,
        }
    }
}

pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) engines: [Engine; 2],
    pub(super) regions: [Arc<Regions>; 2],
    pub(super) outputs: [Vec<Output>; 2],
    pub(super) flying: Vec<Flying>,
    /// Every packet that left: the side, and its BTH.
    pub(super) sent: Vec<(usize, Bth)>,
    pub(super) faults: Faults,
    pub(super) random: fastrand::Rng,
    /// Loses what it says true to: packets counted from 0.
    pub(super) lose: fn(usize) -> bool,
}

pub(super) fn path() -> AhAttributes {
    AhAttributes {
        dlid: Lid(1),
        sl: ServiceLevel(0),
        src_path_bits: 0,
        rate: RateCode::GBPS_10,
        grh: None,
    }
}

pub(super) const ALL: Access = Access {
    remote_read: true,
    remote_write: true,
    remote_atomic: true,
};

impl Pair {
    pub(super) fn new(setup: Setup, seed: u64) -> Pair {
        let mut engines = [0, 1].map(|_| Engine::new(setup.init, Arc::default()));
        for (side, engine) in engines.iter_mut().enumerate() {
            let init = InitAttributes {
                pkey_index: 0,
                access: ALL,
            };
            let rtr = RtrAttributes {
                path: path(),
                path_mtu: setup.mtu,
                dest_qpn: Qpn(9),
                rq_psn: setup.psns[1 - side],
                max_dest_rd_atomic: setup.max_dest_rd_atomic,
                // 80 us.
                min_rnr_timer: RnrTimer(6),
            };
            let rts = RtsAttributes {
                sq_psn: setup.psns[side],
                ..setup.rts
            };
            for change in [QpModify::Init(init), QpModify::Rtr(rtr), QpModify::Rts(rts)] {
                engine.modify(change).expect("the usual way");
            }
        }
        let now = Instant::now();
        Pair {
            now,
            engines,
            regions: Default::default(),
            outputs: Default::default(),
            flying: Vec::new(),
            sent: Vec::new(),
            faults: Faults::default(),
            random: fastrand::Rng::with_seed(seed),
            lose: |_| false,
        }
    }

    pub(super) fn posted() -> ConnectedInit {
        ConnectedInit {
            receives: ReceiveQueue::Posted,
            ..ConnectedInit::default()
        }
    }

    /// Lets both sides say what they have to.
    pub(super) fn pump(&mut self) {
        for side in 0..2 {
            while let Some(out) = self.engines[side].poll_packet(self.now) {
                let bth = Bth {
                    opcode: out.opcode,
                    solicited: out.solicited,
                    ack_req: out.ack_req,
                    psn: out.psn,
                    ..Bth::default()
                };
                let number = self.sent.len();
                self.sent.push((side, bth));
                let copies = match self.random.f64() {
                    _ if (self.lose)(number) => 0,
                    x if x < self.faults.loss => 0,
                    x if x < self.faults.loss + self.faults.duplicate => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let delay = 1_000 + self.random.u64(0..=self.faults.spread_us * 1_000);
                    self.flying.push(Flying {
                        at: self.now + Duration::from_nanos(delay),
                        to: 1 - side,
                        bth,
                        ext: out.ext,
                        bytes: out.payload.bytes().to_vec(),
                    });
                }
            }
            let outputs = self.engines[side].take_outputs();
            self.outputs[side].extend(outputs);
        }
    }

    fn next(&self) -> Option<Instant> {
        let timeouts = self.engines.iter().filter_map(Engine::poll_timeout);
        timeouts.chain(self.flying.iter().map(|f| f.at)).min()
    }

    pub(super) fn deliver(&mut self, to: usize, bth: Bth, ext: Extended, payload: &[u8]) {
        let packet = Packet {
            lrh: Default::default(),
            grh: None,
            bth,
            ext,
            payload,
            lso: None,
            icrc: None,
            hops: 0,
        };
        self.engines[to].handle(self.now, &packet, &self.regions[to]);
    }

    /// The next thing that happens; false if nothing will.
    pub(super) fn step(&mut self) -> bool {
        self.pump();
        let Some(now) = self.next() else {
            return false;
        };
        self.now = self.now.max(now);
        // In the order they left, where they arrive at once.
        let mut at = 0;
        while at < self.flying.len() {
            if self.flying[at].at > self.now {
                at += 1;
                continue;
            }
            let f = self.flying.remove(at);
            self.deliver(f.to, f.bth, f.ext, &f.bytes);
        }
        for engine in &mut self.engines {
            engine.finish_batch();
            engine.handle_timeout(self.now);
        }
        true
    }

    /// Until nothing happens any more.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it never ends");
    }

    pub(super) fn post(&mut self, side: usize, id: u64, operation: verbs::Operation<'_>) {
        let send = ConnectedSend {
            id,
            operation,
            signalled: true,
            solicited: false,
            fence: false,
        };
        self.engines[side].post(&send).expect("posted");
    }

    pub(super) fn send(&mut self, side: usize, id: u64, payload: &[u8]) {
        let immediate = None;
        self.post(side, id, verbs::Operation::Send { payload, immediate });
    }

    pub(super) fn completions(&self, side: usize) -> Vec<(u64, CompletionStatus)> {
        let outputs = self.outputs[side].iter();
        outputs
            .filter_map(|o| match o {
                Output::Completion(c) => Some((c.id, c.status)),
                _ => None,
            })
            .collect()
    }

    pub(super) fn messages(&self, side: usize) -> Vec<&[u8]> {
        let outputs = self.outputs[side].iter();
        outputs
            .filter_map(|o| match o {
                Output::Message(m) => Some(&m.bytes[..]),
                _ => None,
            })
            .collect()
    }

    pub(super) fn events(&self, side: usize) -> Vec<QpEvent> {
        let outputs = self.outputs[side].iter();
        outputs
            .filter_map(|o| match o {
                Output::Event(e) => Some(*e),
                _ => None,
            })
            .collect()
    }

    pub(super) fn counters(&self, side: usize) -> ConnectedCounters {
        self.engines[side].status().counters
    }
}
