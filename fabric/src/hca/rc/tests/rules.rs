//! Rules of the standard, one by one.

use super::super::*;
use super::pair::{ALL, Faults, Pair, RTS, Setup, path};
use std::time::Duration;
use verbs::{Access, AckTimeout, ConnectedService, MemoryRegion, Operation, RemoteAddress};
use wire::packet::{Aeth, AtomicEth, Bth, Reth};
use wire::{Lid, MtuCode};

const SUCCESS: CompletionStatus = CompletionStatus::Success;
const FLUSHED: CompletionStatus = CompletionStatus::Flushed;

fn request(opcode: Opcode, psn: Psn) -> Bth {
    Bth {
        opcode,
        psn,
        ack_req: true,
        ..Bth::default()
    }
}

fn sent(pair: &Pair, side: usize) -> Vec<(Opcode, u32, bool)> {
    let sent = pair.sent.iter().filter(|(by, _)| *by == side);
    sent.map(|(_, b)| (b.opcode, b.psn.0, b.ack_req)).collect()
}

#[test]
fn a_message_is_cut_at_the_path_mtu_and_acknowledged_once() {
    let mut pair = Pair::new(Setup::default(), 1);
    let payload: Vec<u8> = (0..700).map(|i| i as u8).collect();
    pair.send(0, 1, &payload);
    pair.run();
    assert_eq!(
        sent(&pair, 0),
        [
            (Opcode::RC_SEND_FIRST, 0xff_fffe, false),
            (Opcode::RC_SEND_MIDDLE, 0xff_ffff, false),
            (Opcode::RC_SEND_LAST, 0, true)
        ]
    );
    assert_eq!(sent(&pair, 1), [(Opcode::RC_ACKNOWLEDGE, 0, false)]);
    assert_eq!(pair.messages(1), [&payload[..]]);
    assert_eq!(pair.completions(0), [(1, SUCCESS)]);
    assert_eq!(pair.engines[0].poll_timeout(), None);
}

#[test]
fn many_messages_share_an_acknowledgement() {
    let mut pair = Pair::new(Setup::default(), 1);
    (0..20).for_each(|id| pair.send(0, id, &[id as u8]));
    pair.run();
    assert_eq!(pair.messages(1).len(), 20);
    assert_eq!(sent(&pair, 1), [(Opcode::RC_ACKNOWLEDGE, 17, false)]);
    let expected: Vec<_> = (0..20).map(|id| (id, SUCCESS)).collect();
    assert_eq!(pair.completions(0), expected);
}

#[test]
fn a_gap_is_reported_once_and_repaired_from_there() {
    let mut pair = Pair::new(Setup::default(), 1);
    pair.lose = |number| number == 1;
    (0..5).for_each(|id| pair.send(0, id, &[id as u8]));
    pair.run();
    assert_eq!(pair.messages(1), [[0], [1], [2], [3], [4]]);
    let counters = pair.counters(1);
    assert_eq!((counters.rx_naks, counters.rx_out_of_sequence), (1, 3));
    assert_eq!(pair.counters(0).tx_repeated, 4);
    assert_eq!(pair.counters(0).tx_timeouts, 0);
}

#[test]
fn a_lost_acknowledgement_delivers_nothing_twice() {
    let mut pair = Pair::new(Setup::default(), 1);
    pair.lose = |number| number == 1;
    pair.send(0, 1, b"once");
    pair.run();
    assert_eq!(pair.messages(1), [b"once"]);
    assert_eq!(pair.completions(0), [(1, SUCCESS)]);
    assert_eq!(pair.counters(0).tx_timeouts, 1);
    assert_eq!(pair.counters(1).rx_duplicates, 1);
}

#[test]
fn retries_end_and_the_rest_is_flushed() {
    let mut setup = Setup::default();
    setup.rts.retry_count = 3;
    setup.rts.timeout = AckTimeout(8);
    let mut pair = Pair::new(setup, 1);
    pair.lose = |_| true;
    let start = pair.now;
    (0..3).for_each(|id| pair.send(0, id, b"void"));
    pair.run();
    let t = 4 * Duration::from_nanos(4096 << 8);
    assert_eq!(pair.now, start + t);
    assert_eq!(
        pair.completions(0),
        [
            (0, CompletionStatus::RetryExceeded),
            (1, FLUSHED),
            (2, FLUSHED)
        ]
    );
    let failed = QpEvent::SendFailed(CompletionStatus::RetryExceeded);
    assert_eq!(pair.events(0), [failed]);
    assert_eq!(pair.engines[0].status().state, QpState::Error);
    pair.send(0, 9, b"late");
    pair.run();
    assert_eq!(pair.completions(0)[3], (9, FLUSHED));
}

#[test]
fn no_retries_means_none() {
    let mut setup = Setup::default();
    setup.rts.retry_count = 0;
    let mut pair = Pair::new(setup, 1);
    pair.lose = |number| number == 0;
    (0..2).for_each(|id| pair.send(0, id, b"x"));
    pair.run();
    let lost = (0, CompletionStatus::RetryExceeded);
    assert_eq!(pair.completions(0), [lost, (1, FLUSHED)]);
    assert_eq!(pair.counters(0).tx_timeouts, 0, "the NAK was enough");
}

#[test]
fn a_receiver_without_places_is_waited_for() {
    let mut setup = Setup {
        init: Pair::posted(),
        ..Setup::default()
    };
    let mut pair = Pair::new(setup, 1);
    pair.send(0, 1, b"first");
    pair.send(0, 2, b"second");
    while pair.counters(0).tx_rnr_naks < 3 {
        assert!(pair.step());
    }
    assert!(pair.messages(1).is_empty());
    pair.engines[1].post_receives(2);
    pair.run();
    assert_eq!(pair.messages(1), [&b"first"[..], b"second"]);
    assert_eq!(pair.completions(0), [(1, SUCCESS), (2, SUCCESS)]);
    // Each message has its own tries.
    setup.rts.rnr_retry = 1;
    let mut pair = Pair::new(setup, 1);
    pair.send(0, 1, b"first");
    pair.send(0, 2, b"second");
    for naks in 1..=2 {
        while pair.counters(0).tx_rnr_naks < naks {
            assert!(pair.step());
        }
        pair.engines[1].post_receives(1);
    }
    pair.run();
    assert_eq!(pair.completions(0), [(1, SUCCESS), (2, SUCCESS)]);
    // Three times, then never again.
    setup.rts.rnr_retry = 2;
    let mut pair = Pair::new(setup, 1);
    let start = pair.now;
    pair.send(0, 1, b"first");
    pair.run();
    let failed = (1, CompletionStatus::RnrRetryExceeded);
    assert_eq!(pair.completions(0), [failed]);
    assert_eq!(pair.counters(0).tx_rnr_naks, 3);
    // Two waits of 80 us, three round trips of 2 us.
    assert_eq!(pair.now, start + Duration::from_micros(166));
}

#[test]
fn credits_keep_the_sender_from_asking_in_vain() {
    let setup = Setup {
        init: Pair::posted(),
        ..Setup::default()
    };
    let mut pair = Pair::new(setup, 1);
    pair.engines[1].post_receives(1);
    pair.send(0, 0, b"x");
    pair.run();
    let before = sent(&pair, 0).len();
    // It knows now that there is no place: one packet asks, the others stay.
    (1..20).for_each(|id| pair.send(0, id, b"x"));
    while pair.counters(0).tx_rnr_naks < 4 {
        assert!(pair.step());
    }
    assert_eq!(sent(&pair, 0).len() - before, 4);
    pair.engines[1].post_receives(19);
    pair.run();
    assert_eq!(pair.completions(0).len(), 20);
    assert_eq!(pair.counters(0).tx_rnr_naks, 4);
}

/// Every state, and what leads there.
fn in_state(state: QpState) -> Engine {
    use QpState::*;
    let init = ConnectedInit {
        service: match state {
            Sqe => ConnectedService::Unreliable,
            _ => ConnectedService::Reliable,
        },
        ..ConnectedInit::default()
    };
    let mut engine = Engine::new(init, Arc::default());
    let way: &[QpModify] = match state {
        Reset => &[],
        Init => &[INIT],
        Rtr => &[INIT, RTR],
        Rts | Sqe => &[INIT, RTR, QpModify::Rts(RTS)],
        Sqd => &[INIT, RTR, QpModify::Rts(RTS), QpModify::Drain],
        Error => &[INIT, QpModify::Error],
    };
    for change in way {
        engine.modify(*change).expect("the usual way");
    }
    if state == Sqe {
        let from = RemoteAddress {
            address: 0,
            r_key: 0,
        };
        let send = ConnectedSend {
            operation: Operation::Read { from, len: 1 },
            ..ConnectedSend::message(&[])
        };
        engine.post(&send).expect("posted");
        assert!(engine.poll_packet(Instant::now()).is_none());
    }
    assert_eq!(engine.status().state, state);
    engine
}

const INIT: QpModify = QpModify::Init(InitAttributes {
    pkey_index: 0,
    access: ALL,
});
const RTR: QpModify = QpModify::Rtr(RtrAttributes {
    path: AhAttributes {
        dlid: Lid(1),
        sl: wire::ServiceLevel(0),
        src_path_bits: 0,
        rate: wire::RateCode::GBPS_10,
        grh: None,
    },
    path_mtu: MtuCode(1),
    dest_qpn: wire::Qpn(9),
    rq_psn: Psn(0),
    max_dest_rd_atomic: 1,
    min_rnr_timer: verbs::RnrTimer(1),
});

#[test]
fn states_change_as_the_standard_has_it() {
    use QpState::*;
    let changes = [
        (
            QpModify::Reset,
            Reset,
            &[Reset, Init, Rtr, Rts, Sqd, Sqe, Error][..],
        ),
        (INIT, Init, &[Reset, Init]),
        (RTR, Rtr, &[Init]),
        (QpModify::Rts(RTS), Rts, &[Rtr]),
        (QpModify::Drain, Sqd, &[Rts]),
        (QpModify::Path(path()), Sqd, &[Sqd]),
        (QpModify::Resume, Rts, &[Sqd, Sqe]),
        (QpModify::Error, Error, &[Init, Rtr, Rts, Sqd, Sqe, Error]),
    ];
    for (change, to, from) in changes {
        for state in [Reset, Init, Rtr, Rts, Sqd, Sqe, Error] {
            let mut engine = in_state(state);
            let result = engine.modify(change);
            let (expected, stays) = match from.contains(&state) {
                true => (Ok(()), to),
                false => (Err(VerbsError::BadState(state)), state),
            };
            assert_eq!(result, expected, "{state:?} {change:?}");
            assert_eq!(engine.status().state, stays);
        }
    }
    // Work requests by state.
    for state in [Reset, Init, Rtr, Rts, Sqd, Sqe, Error] {
        let taken = in_state(state).post(&ConnectedSend::message(b"x"));
        assert_eq!(taken.is_ok(), !matches!(state, Reset | Init | Rtr));
    }
}

#[test]
fn bad_attributes_change_nothing() {
    let mut engine = in_state(QpState::Init);
    let QpModify::Rtr(rtr) = RTR else { panic!() };
    let mut multicast = rtr;
    multicast.path.dlid = Lid(0xc000);
    let path_mtu = MtuCode(9);
    for bad in [multicast, RtrAttributes { path_mtu, ..rtr }] {
        assert!(engine.modify(QpModify::Rtr(bad)).is_err());
        assert_eq!(engine.status().state, QpState::Init);
    }
    engine.modify(RTR).expect("these are good");
    let retry_count = 8;
    let bad = QpModify::Rts(RtsAttributes { retry_count, ..RTS });
    assert!(engine.modify(bad).is_err());
}

#[test]
fn a_drained_queue_goes_on_where_it_stopped() {
    let mut pair = Pair::new(Setup::default(), 1);
    let long = [7; 600];
    pair.send(0, 1, &long);
    let first = pair.engines[0].poll_packet(pair.now).expect("a packet");
    pair.send(0, 2, b"later");
    pair.engines[0].modify(QpModify::Drain).expect("in RTS");
    let moved = AhAttributes {
        dlid: Lid(7),
        ..path()
    };
    let early = pair.engines[0].modify(QpModify::Path(moved));
    assert_eq!(early, Err(VerbsError::BadState(QpState::Sqd)));
    let bytes = first.payload.bytes();
    pair.deliver(1, request(first.opcode, first.psn), first.ext, bytes);
    pair.run();
    assert_eq!(pair.messages(1), [long]);
    assert_eq!(pair.events(0), [QpEvent::SendQueueDrained]);
    pair.engines[0]
        .modify(QpModify::Path(moved))
        .expect("drained");
    pair.engines[0].modify(QpModify::Resume).expect("in SQD");
    pair.run();
    assert_eq!(pair.messages(1), [&long[..], b"later"]);
    assert_eq!(pair.engines[0].peer().map(|p| p.path.dlid), Some(Lid(7)));
}

#[test]
fn an_unreliable_queue_tells_that_it_is_drained() {
    let mut setup = Setup::default();
    setup.init.service = ConnectedService::Unreliable;
    let mut pair = Pair::new(setup, 1);
    pair.send(0, 1, &[7; 600]);
    assert!(pair.engines[0].poll_packet(pair.now).is_some());
    pair.engines[0].modify(QpModify::Drain).expect("in RTS");
    pair.run();
    assert_eq!(pair.completions(0), [(1, SUCCESS)]);
    assert_eq!(pair.events(0), [QpEvent::SendQueueDrained]);
}

#[test]
fn the_first_packet_of_the_peer_establishes_the_connection() {
    let mut engine = in_state(QpState::Rtr);
    let packet = |psn| Packet {
        lrh: Default::default(),
        grh: None,
        bth: request(Opcode::RC_SEND_ONLY, Psn(psn)),
        ext: Extended::default(),
        payload: b"early",
        lso: None,
        icrc: None,
        hops: 0,
    };
    let regions = Regions::default();
    for psn in 0..2 {
        engine.handle(Instant::now(), &packet(psn), &regions);
    }
    let outputs = engine.take_outputs();
    assert_eq!(outputs[0], Output::Event(QpEvent::CommunicationEstablished));
    assert_eq!(outputs.len(), 3, "told once: {outputs:?}");
    // Before RTR nothing is taken.
    let mut engine = in_state(QpState::Init);
    engine.handle(Instant::now(), &packet(0), &regions);
    assert!(engine.take_outputs().is_empty());
    assert_eq!(engine.status().counters.rx_wrong_state, 1);
}

#[test]
fn what_is_invalid_is_refused_and_ends_the_connection() {
    let mut setup = Setup::default();
    setup.init.max_message = 300;
    let reth = |dma_length| Extended {
        reth: Some(Reth {
            dma_length,
            ..Reth::default()
        }),
        ..Extended::default()
    };
    let atomic = Extended {
        atomic: Some(AtomicEth {
            virtual_address: 0x1000_0004,
            ..AtomicEth::default()
        }),
        ..Extended::default()
    };
    let (invalid, access) = (
        CompletionStatus::RemoteInvalidRequest,
        CompletionStatus::RemoteAccess,
    );
    let none = Extended::default();
    for (opcode, ext, len, status, code) in [
        (Opcode::RC_SEND_LAST, none, 5, invalid, 0x61),
        (Opcode::RC_SEND_MIDDLE, none, 256, invalid, 0x61),
        (Opcode::RC_SEND_FIRST, none, 255, invalid, 0x61),
        (Opcode::RC_SEND_ONLY, none, 257, invalid, 0x61),
        (Opcode::RC_SEND_ONLY_INV, none, 5, invalid, 0x61),
        (Opcode::RC_RDMA_WRITE_ONLY, reth(4), 5, access, 0x62),
        (Opcode::RC_RDMA_WRITE_ONLY, none, 5, invalid, 0x61),
        (Opcode::RC_RDMA_READ_REQUEST, reth(1 << 31), 0, access, 0x62),
        (
            Opcode::RC_RDMA_READ_REQUEST,
            reth(u32::MAX),
            0,
            invalid,
            0x61,
        ),
        (Opcode::RC_FETCH_ADD, atomic, 0, invalid, 0x61),
    ] {
        let mut pair = Pair::new(setup, 1);
        pair.send(1, 5, b"pending");
        pair.deliver(1, request(opcode, Psn(0xff_fffe)), ext, &vec![0; len]);
        let nak = pair.engines[1].poll_packet(pair.now).expect("a NAK");
        assert_eq!(
            (nak.psn, nak.ext.aeth),
            (
                Psn(0xff_fffe),
                Some(Aeth {
                    syndrome: code,
                    msn: 0
                })
            ),
            "{opcode}"
        );
        pair.pump();
        assert_eq!(pair.events(1), [QpEvent::ReceiveFailed(status)]);
        assert_eq!(pair.completions(1), [(5, FLUSHED)]);
        assert_eq!(pair.engines[1].status().state, QpState::Error);
    }
    // The requester learns which of its requests it was.
    let mut pair = Pair::new(setup, 1);
    for (id, len) in [(1, 10), (2, 301), (3, 10)] {
        pair.send(0, id, &vec![0; len]);
    }
    pair.run();
    let expected = [(1, SUCCESS), (2, invalid), (3, FLUSHED)];
    assert_eq!(pair.completions(0), expected);
    assert_eq!(pair.events(0), [QpEvent::SendFailed(invalid)]);
}

#[test]
fn memory_is_reached_by_its_key_inside_its_bounds_and_as_allowed() {
    let read_only = Access {
        remote_read: true,
        ..Access::default()
    };
    let try_it = |access, offset: u64, key: u32, write| {
        let mut pair = Pair::new(Setup::default(), 1);
        let region = pair.regions[1].register(vec![1; 100], access);
        let region = region.expect("registered");
        let at = RemoteAddress {
            address: region.address().address.wrapping_add(offset),
            r_key: region.address().r_key ^ key,
        };
        let payload = &[2; 10];
        let immediate = None;
        match write {
            true => pair.post(
                0,
                1,
                Operation::Write {
                    payload,
                    to: at,
                    immediate,
                },
            ),
            false => pair.post(0, 1, Operation::Read { from: at, len: 10 }),
        }
        pair.run();
        let changed = {
            let mut bytes = [0; 100];
            region.read(0, &mut bytes) && bytes != [1; 100]
        };
        (pair.completions(0)[0].1, changed)
    };
    let refused = (CompletionStatus::RemoteAccess, false);
    assert_eq!(try_it(ALL, 90, 0, true), (SUCCESS, true));
    assert_eq!(try_it(ALL, 90, 0, false), (SUCCESS, false));
    assert_eq!(try_it(read_only, 90, 0, false), (SUCCESS, false));
    assert_eq!(try_it(read_only, 90, 0, true), refused);
    assert_eq!(try_it(ALL, 91, 0, true), refused);
    assert_eq!(try_it(ALL, 91, 0, false), refused);
    assert_eq!(try_it(ALL, u64::MAX, 0, true), refused);
    assert_eq!(try_it(ALL, 0, 1, false), refused);
}

#[test]
fn a_region_ends_with_its_handle() {
    let regions = Arc::<Regions>::default();
    let region = regions.register(vec![0; 8], ALL).expect("registered");
    assert_eq!(regions.len(), 1);
    drop(region);
    assert_eq!(regions.len(), 0);
}

#[test]
fn unreliable_messages_are_lost_as_a_whole() {
    let mut setup = Setup::default();
    setup.init.service = ConnectedService::Unreliable;
    let mut pair = Pair::new(setup, 1);
    pair.lose = |number| number == 4 || number == 9;
    for id in 0..6 {
        pair.send(0, id, &[id as u8; 600]);
    }
    pair.run();
    let got: Vec<u8> = pair.messages(1).iter().map(|m| m[0]).collect();
    assert_eq!(got, [0, 2, 4, 5]);
    assert!(pair.messages(1).iter().all(|m| m.len() == 600));
    assert_eq!(pair.completions(0).len(), 6);
    assert!(sent(&pair, 1).is_empty(), "nothing is acknowledged");
    assert!(sent(&pair, 0).iter().all(|s| s.0.0 >> 5 == 1 && !s.2));
    assert_eq!(pair.counters(1).rx_incomplete, 1);
}

#[test]
fn an_unreliable_write_tells_only_of_what_is_whole() {
    let mut setup = Setup::default();
    setup.init.service = ConnectedService::Unreliable;
    let mut pair = Pair::new(setup, 1);
    // The last packet of the first WRITE.
    pair.lose = |number| number == 2;
    let region = pair.regions[1].register(vec![0; 2_000], ALL);
    let region = region.expect("registered");
    for (id, offset) in [(1, 0), (2, 1_000)] {
        let to = RemoteAddress {
            address: region.address().address + offset,
            ..region.address()
        };
        let (payload, immediate) = (&[id as u8; 600], Some(id as u32));
        let write = Operation::Write {
            payload,
            to,
            immediate,
        };
        pair.post(0, id, write);
    }
    pair.run();
    let expected = Message {
        immediate: Some(2),
        written: Some(600),
        ..Message::default()
    };
    assert_eq!(pair.outputs[1], [Output::Message(expected)]);
    let mut bytes = [0; 600];
    assert!(region.read(1_000, &mut bytes) && bytes == [2; 600]);
    assert_eq!(pair.completions(0), [(1, SUCCESS), (2, SUCCESS)]);
}

#[test]
fn nothing_that_comes_makes_it_panic() {
    for seed in 0..300 {
        let mut setup = Setup::default();
        if seed % 2 == 1 {
            setup.init.service = ConnectedService::Unreliable;
        }
        let mut pair = Pair::new(setup, seed);
        let region = pair.regions[1].register(vec![0; 3_000], ALL);
        let region = region.expect("registered");
        let at = region.address();
        for id in 0..10 {
            pair.send(1, id, &vec![0; pair.random.clone().usize(0..900)]);
        }
        pair.post(1, 10, Operation::Read { from: at, len: 900 });
        pair.post(1, 11, Operation::FetchAdd { at, add: 1 });
        pair.pump();
        for _ in 0..300 {
            let mut random = pair.random.fork();
            let opcode = Opcode::ALL[random.usize(..Opcode::ALL.len())];
            let set = opcode.headers();
            let near = |random: &mut fastrand::Rng, n: u32| {
                Psn::new(n.wrapping_add(random.u32(0..6)).wrapping_sub(3))
            };
            let expected = pair.sent.last().map_or(0, |(_, b)| b.psn.0);
            let psn = match random.u8(0..3) {
                0 => near(&mut random, 0xff_fffe),
                1 => near(&mut random, expected),
                _ => Psn::new(random.u32(..)),
            };
            let has = |header| set.contains(header);
            use wire::packet::HeaderSet as H;
            let virtual_address = at.address + random.u64(0..3_100);
            let ext = Extended {
                reth: has(H::RETH).then(|| Reth {
                    virtual_address,
                    r_key: at.r_key,
                    dma_length: random.u32(..) >> random.u32(0..32),
                }),
                atomic: has(H::ATOMIC).then(|| AtomicEth {
                    virtual_address,
                    r_key: at.r_key,
                    ..AtomicEth::default()
                }),
                aeth: has(H::AETH).then(|| Aeth {
                    syndrome: random.u8(..),
                    msn: random.u32(..) & 0xff_ffff,
                }),
                atomic_ack: has(H::ATOMIC_ACK).then_some(7),
                immediate: has(H::IMMEDIATE).then_some(7),
                ..Extended::default()
            };
            let len = [0, 1, 255, 256, 257][random.usize(0..5)];
            pair.deliver(1, request(opcode, psn), ext, &vec![0; len]);
            pair.engines[1].finish_batch();
            // What is under way from here does not matter, and READs of the whole memory are long.
            for _ in 0..100 {
                pair.engines[1].poll_packet(pair.now);
            }
            pair.now += Duration::from_micros(random.u64(0..100));
            let now = pair.now;
            pair.engines[1].handle_timeout(now);
        }
        let sends = pair.engines[1].status().sends;
        pair.engines[1].modify(QpModify::Error).expect("from any");
        assert!(sends <= 12 && pair.engines[1].status().sends == 0);
        pair.pump();
        assert_eq!(pair.completions(1).len(), 12, "each request ends once");
    }
}

#[test]
fn a_slow_link_with_loss_still_carries_long_messages() {
    let mut setup = Setup {
        mtu: MtuCode::MTU_2048,
        ..Setup::default()
    };
    setup.rts.timeout = AckTimeout(12);
    let mut pair = Pair::new(setup, 3);
    pair.faults = Faults {
        loss: 0.01,
        duplicate: 0.0,
        spread_us: 0,
    };
    for id in 0..60u64 {
        pair.send(0, id, &vec![id as u8; 65_520]);
        pair.send(1, id, &vec![id as u8; 65_520]);
    }
    pair.run();
    for side in 0..2 {
        assert_eq!(pair.completions(side).len(), 60);
        let whole = |(id, m): (usize, &&[u8])| *m == vec![id as u8; 65_520];
        assert!(pair.messages(side).iter().enumerate().all(whole));
        let counters = pair.counters(side);
        assert_eq!(counters.tx_messages, 60);
        // Of 1920 packets about 19 are lost. With a window that stays wide, 1800 and more were sent again.
        assert!(counters.tx_repeated < 800, "{counters:?}");
    }
}
