//! Random schedules against a model: whatever is lost, doubled or overtaken, each request is done once and in order, or ends with an error.

use super::super::*;
use super::pair::{ALL, Faults, Pair, Setup};
use std::time::Duration;
use verbs::{AckTimeout, CompletionData, MemoryRegion, Operation, ReceiveQueue, RemoteAddress};
use wire::MtuCode;

/// Bytes of the area that each request writes to or reads from; the first holds the counter of ATOMICs.
const SLOT: usize = 1_200;

/// A request and, by the model, what it does.
#[derive(Clone, Debug)]
enum Asked {
    Send(Vec<u8>, Option<u32>),
    Write(usize, Vec<u8>, Option<u32>),
    Read(usize, Vec<u8>),
    Add(u64, u64),
}

/// Requests of one side in order.
struct Script {
    asked: Vec<(Asked, bool)>,
    posted: usize,
    /// Memory of the other side as it is once all is done.
    memory: Vec<u8>,
}

fn bytes(random: &mut fastrand::Rng, max: usize) -> Vec<u8> {
    // Around the path MTU's multiples.
    let near = [0, 1, 255, 256, 257, 511, 512, 513];
    let len = match random.bool() {
        true => random.usize(0..=max),
        false => near[random.usize(..near.len())],
    };
    let tag = random.u8(..);
    (0..len).map(|i| tag.wrapping_add(i as u8)).collect()
}

fn script(random: &mut fastrand::Rng) -> Script {
    let n = random.usize(0..=7);
    let mut memory = vec![0x55; SLOT * (n + 1)];
    memory[..8].copy_from_slice(&0u64.to_ne_bytes());
    let mut written = vec![0];
    let mut sum = 0u64;
    let asked = (1..=n)
        .map(|slot| {
            let immediate = random.bool().then(|| random.u32(..));
            let asked = match random.u8(0..8) {
                0..4 => Asked::Send(bytes(random, 1_500), immediate),
                4 | 5 => {
                    let data = bytes(random, SLOT);
                    memory[slot * SLOT..][..data.len()].copy_from_slice(&data);
                    written.push(slot);
                    Asked::Write(slot, data, immediate)
                }
                // Never what may change again: a READ that is repeated may see it.
                6 => {
                    let slot = written[random.usize(..written.len())];
                    let (start, room) = match slot {
                        0 => (SLOT - 8, 8),
                        slot => (slot * SLOT, SLOT),
                    };
                    let len = random.usize(0..=room);
                    Asked::Read(start, memory[start..][..len].to_vec())
                }
                _ => {
                    let before = sum;
                    sum = sum.wrapping_add(random.u64(..));
                    Asked::Add(sum.wrapping_sub(before), before)
                }
            };
            (asked, random.bool())
        })
        .collect();
    memory[..8].copy_from_slice(&sum.to_ne_bytes());
    Script {
        asked,
        posted: 0,
        memory,
    }
}

fn post(pair: &mut Pair, side: usize, id: u64, asked: &(Asked, bool), base: RemoteAddress) {
    let at = |offset: usize| RemoteAddress {
        address: base.address + offset as u64,
        ..base
    };
    let operation = match &asked.0 {
        Asked::Send(payload, immediate) => Operation::Send {
            payload,
            immediate: *immediate,
        },
        Asked::Write(slot, payload, immediate) => Operation::Write {
            payload,
            to: at(slot * SLOT),
            immediate: *immediate,
        },
        Asked::Read(offset, data) => Operation::Read {
            from: at(*offset),
            len: data.len() as u32,
        },
        Asked::Add(add, _) => Operation::FetchAdd {
            at: base,
            add: *add,
        },
    };
    let send = ConnectedSend {
        id,
        operation,
        signalled: asked.1,
        solicited: false,
        fence: false,
    };
    pair.engines[side].post(&send).expect("there is room");
}

/// What the other side's user is told of a request.
fn told(asked: &Asked) -> Option<Message> {
    match asked {
        Asked::Send(bytes, immediate) => Some(Message {
            bytes: bytes.clone().into(),
            immediate: *immediate,
            ..Message::default()
        }),
        Asked::Write(_, bytes, Some(immediate)) => Some(Message {
            immediate: Some(*immediate),
            written: Some(bytes.len() as u32),
            ..Message::default()
        }),
        _ => None,
    }
}

/// Does a success come with a completion?
fn completes(asked: &(Asked, bool)) -> bool {
    asked.1 || matches!(asked.0, Asked::Read(..) | Asked::Add(..))
}

/// The requests of `side` against what both sides' users saw. Returns whether all were done.
fn check(pair: &Pair, side: usize, script: &Script, memory: &[u8]) -> bool {
    let mut got = pair.outputs[1 - side].iter().filter_map(|o| match o {
        Output::Message(m) => Some(m),
        _ => None,
    });
    let mut completions = pair.outputs[side].iter().filter_map(|o| match o {
        Output::Completion(c) => Some(c),
        _ => None,
    });
    // How far it went: by what was received, which is a beginning of what was sent.
    let tellings: Vec<Message> = script.asked.iter().filter_map(|(a, _)| told(a)).collect();
    let received: Vec<&Message> = got.by_ref().collect();
    assert!(
        received.len() <= tellings.len() && received.iter().zip(&tellings).all(|(a, b)| *a == b),
        "side {side} sent {tellings:?}, received was {received:?}"
    );
    let mut next = completions.next();
    let mut error = None;
    let mut sure = 0;
    for (id, asked) in script.asked.iter().enumerate() {
        let this = next.filter(|c| c.id == id as u64);
        match this {
            Some(c) if c.status == CompletionStatus::Success => {
                assert!(completes(asked), "request {id} was not to be told of");
                assert_eq!(error, None, "request {id} succeeds after a failure");
                let expected = match &asked.0 {
                    Asked::Read(_, data) => CompletionData::Read(data.clone()),
                    Asked::Add(_, before) => CompletionData::Original(*before),
                    _ => CompletionData::None,
                };
                assert_eq!(c.data, expected, "request {id}: {asked:?}");
                sure = id + 1;
            }
            Some(c) => {
                let expected: &[_] = match error {
                    Some(_) => &[CompletionStatus::Flushed],
                    // Flushed: the other direction failed first.
                    None => &[
                        CompletionStatus::RetryExceeded,
                        CompletionStatus::RnrRetryExceeded,
                    ],
                };
                assert!(expected.contains(&c.status), "request {id}: {c:?}");
                error = Some(c.status);
            }
            None => {
                assert!(!completes(asked), "request {id} never ended");
                assert_eq!(error, None, "request {id} was not flushed");
            }
        }
        if this.is_some() {
            next = completions.next();
        }
    }
    assert_eq!(next, None, "completed twice, or out of order");
    let least = script.asked[..sure].iter().filter_map(|(a, _)| told(a));
    assert!(received.len() >= least.count(), "done, but not received");
    let state = pair.engines[side].status().state;
    assert_eq!(
        state,
        match error {
            Some(_) => QpState::Error,
            None => QpState::Rts,
        }
    );
    if error.is_none() {
        assert_eq!(received.len(), tellings.len());
        assert!(memory == script.memory, "side {side} wrote otherwise");
    }
    error.is_none()
}

fn schedule(seed: u64) -> [bool; 2] {
    let mut random = fastrand::Rng::with_seed(seed);
    let psn = |random: &mut fastrand::Rng| match random.bool() {
        true => Psn::new(0u32.wrapping_sub(random.u32(0..30))),
        false => Psn::new(random.u32(..)),
    };
    let mut setup = Setup {
        psns: [psn(&mut random), psn(&mut random)],
        mtu: MtuCode(1 + random.u8(0..2)),
        ..Setup::default()
    };
    // 1, 2 or 4 ms; a round trip takes up to 0.6 ms.
    setup.rts.timeout = AckTimeout(random.u8(8..11));
    setup.rts.retry_count = random.u8(1..8);
    setup.rts.rnr_retry = random.u8(1..8);
    setup.rts.max_rd_atomic = random.u8(1..4);
    if random.u8(0..4) == 0 {
        setup.init.receives = ReceiveQueue::Posted;
    }
    let bad = random.u8(0..4) != 0;
    let faults = Faults {
        loss: f64::from(u8::from(bad)) * random.f64() * 0.3,
        duplicate: f64::from(u8::from(bad)) * random.f64() * 0.3,
        spread_us: if bad { random.u64(0..300) } else { 0 },
    };
    let mut pair = Pair::new(setup, seed);
    pair.faults = faults;
    let mut scripts = [script(&mut random), script(&mut random)];
    // Side 0 writes into the memory of side 1.
    let memory: Vec<_> = (0..2)
        .map(|side| {
            let mut fresh = vec![0x55; scripts[side].memory.len()];
            fresh[..8].fill(0);
            let regions = &pair.regions[1 - side];
            regions.register(fresh, ALL).expect("registered")
        })
        .collect();
    let mut places = [8; 2];
    for _ in 0..100_000 {
        for side in 0..2 {
            // All at once, or now and then.
            while scripts[side].posted < scripts[side].asked.len() && random.u8(0..3) != 0 {
                let id = scripts[side].posted;
                scripts[side].posted += 1;
                let asked = scripts[side].asked[id].clone();
                post(&mut pair, side, id as u64, &asked, memory[side].address());
            }
            if places[side] > 0 && random.u8(0..3) == 0 {
                places[side] -= 1;
                pair.engines[side].post_receives(1);
            }
        }
        let going = pair.step();
        let posted = scripts.iter().all(|s| s.posted == s.asked.len());
        if !going && posted && places == [0, 0] {
            break;
        }
        if !going {
            pair.now += Duration::from_micros(50);
        }
    }
    assert!(!pair.step(), "seed {seed}: it never ends");
    let mut done = [false; 2];
    for side in 0..2 {
        let mut bytes = vec![0; scripts[side].memory.len()];
        assert!(memory[side].read(0, &mut bytes));
        done[side] = check(&pair, side, &scripts[side], &bytes);
        let counters = pair.counters(side);
        if !bad && setup.init.receives == ReceiveQueue::Unlimited {
            assert!(done[side], "seed {seed}: nothing was lost");
            assert_eq!((counters.tx_repeated, counters.rx_naks), (0, 0));
        }
    }
    done
}

#[test]
fn every_pattern_of_loss_reordering_and_duplication_gives_order_or_an_error() {
    let first = std::env::var("RC_SEED").ok().and_then(|s| s.parse().ok());
    let (first, count) = first.map_or((0, 100_000), |seed| (seed, 1));
    let mut done = 0;
    for seed in first..first + count {
        let result = std::panic::catch_unwind(|| schedule(seed));
        match result {
            Ok(sides) => done += sides.iter().filter(|d| **d).count() as u64,
            Err(_) => panic!("set RC_SEED={seed} to see it again"),
        }
    }
    println!("{done} of {} directions came to their end", 2 * count);
    assert!(count == 1 || done * 10 > count * 17, "most can be mastered");
}
