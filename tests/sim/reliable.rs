//! Reliable connections between the channel adapters of two hosts, without a communication manager: their timers run in virtual time, and what
//! a cable loses is sent again.

use crate::basic::one_switch;
use crate::failures::holds;
use crate::net::{Lost, is_cm};
use crate::sim::Sim;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{
    AckTimeout, AhAttributes, Completion, CompletionStatus, ConnectedHandler, ConnectedInit,
    ConnectedQueuePair, ConnectedReceive, ConnectedSend, InitAttributes, Port, QpEvent, QpModify,
    QpState, RnrTimer, RtrAttributes, RtsAttributes,
};
use wire::mad::AttrId;
use wire::mad::cm::{CmMessage, Dreq, Req};
use wire::packet::{Bth, Opcode, Packet};
use wire::{MtuCode, Psn, Qpn, RateCode, ServiceLevel};

const SECOND: Duration = Duration::from_secs(1);
/// What IPoIB sends at most, with its header.
const LONG: usize = 65_524;
const TIMEOUT: AckTimeout = AckTimeout(14);
const RETRIES: u8 = 3;

/// What one side saw.
#[derive(Default)]
struct Seen {
    messages: Vec<Vec<u8>>,
    /// With the virtual time.
    completions: Vec<(Completion, Instant)>,
    events: Vec<QpEvent>,
}

struct User {
    seen: Arc<Mutex<Seen>>,
    now: Box<dyn Fn() -> Instant + Send + Sync>,
}

impl ConnectedHandler for User {
    fn receive(&self, batch: &[ConnectedReceive<'_>]) {
        let messages = batch.iter().map(|message| message.payload.to_vec());
        self.seen.lock().messages.extend(messages);
    }
    fn complete(&self, batch: &[Completion]) {
        let now = (self.now)();
        let completions = batch.iter().map(|completion| (completion.clone(), now));
        self.seen.lock().completions.extend(completions);
    }
    fn event(&self, event: QpEvent) {
        self.seen.lock().events.push(event);
    }
}

type Side = (Arc<dyn ConnectedQueuePair>, Arc<Mutex<Seen>>);

/// A queue pair of each of the first two hosts, connected to each other.
fn connect(sim: &mut Sim) -> [Side; 2] {
    let sides: [Side; 2] = [0, 1].map(|h| {
        let net = sim.net.clone();
        let seen = Arc::<Mutex<Seen>>::default();
        let user = Arc::new(User {
            seen: seen.clone(),
            now: Box::new(move || net.now()),
        });
        let hca = &sim.alive(h).hca;
        let qp = hca.create_connected_qp(ConnectedInit::default(), user);
        (qp.expect("room for a queue pair"), seen)
    });
    for h in 0..2 {
        let path = AhAttributes {
            dlid: Port::attributes(&*sim.alive(1 - h).hca).lid,
            sl: ServiceLevel(0),
            src_path_bits: 0,
            rate: RateCode::GBPS_10,
            grh: None,
        };
        let psn = |side: usize| Psn::new(0xff_fff0 + side as u32);
        let changes = [
            QpModify::Init(InitAttributes::default()),
            QpModify::Rtr(RtrAttributes {
                path,
                path_mtu: MtuCode::MTU_2048,
                dest_qpn: sides[1 - h].0.qpn(),
                rq_psn: psn(1 - h),
                max_dest_rd_atomic: 0,
                min_rnr_timer: RnrTimer(12),
            }),
            QpModify::Rts(RtsAttributes {
                sq_psn: psn(h),
                timeout: TIMEOUT,
                retry_count: RETRIES,
                rnr_retry: 7,
                max_rd_atomic: 0,
            }),
        ];
        for change in changes {
            sides[h].0.modify(change).expect("the next state");
        }
    }
    sides
}

/// Message `n`: no two are alike.
fn message(n: usize) -> Vec<u8> {
    (0..LONG)
        .map(|at| (at * 31 + at / 2048 + n) as u8)
        .collect()
}

fn post(sim: &mut Sim, h: usize, side: &Side, range: std::ops::Range<usize>) {
    for n in range {
        let message = message(n);
        let send = ConnectedSend {
            id: n as u64,
            signalled: true,
            ..ConnectedSend::message(&message)
        };
        let posted = sim.with_hca(h, |_| side.0.post_send(&[send]));
        posted.expect("room for a message");
    }
}

/// Loses what `matches` takes of what host `h` sends.
fn lose(
    sim: &Sim,
    h: usize,
    count: u64,
    matches: impl Fn(&Packet<'_>) -> bool + Send + 'static,
) -> Lost {
    sim.net.lose(sim.alive(h).cable, 1, count, matches)
}

#[test]
fn messages_arrive_once_and_in_order_where_packets_are_lost() {
    const COUNT: usize = 20;
    let (mut sim, _) = one_switch(51, 2, |_| {});
    // Until all groups are joined.
    sim.run_for(2 * SECOND);
    let before = [0, 1].map(|h| holds(&sim, h));
    let sides = connect(&mut sim);
    sim.set_faults(0.02, 0.02, 0.02);
    // Besides, the last packet of the first message and the acknowledgements for a while: only a timer helps.
    let last = lose(&sim, 0, 1, |packet| {
        packet.bth.opcode == Opcode::RC_SEND_LAST
    });
    let acks = lose(&sim, 1, 3, |packet| packet.ext.aeth.is_some());
    for (h, side) in sides.iter().enumerate() {
        post(&mut sim, h, side, 0..COUNT);
    }
    let done = sim.run_until(60 * SECOND, |_| {
        sides.iter().all(|(_, seen)| {
            let seen = seen.lock();
            seen.messages.len() >= COUNT && seen.completions.len() >= COUNT
        })
    });
    let seen = |side: &Side| {
        (
            side.1.lock().messages.len(),
            side.1.lock().completions.len(),
        )
    };
    assert!(done, "after a minute: {:?}", sides.each_ref().map(seen));
    // Nothing comes a second time.
    sim.run_for(SECOND);
    for (qp, seen) in &sides {
        let seen = seen.lock();
        assert_eq!(seen.messages.len(), COUNT);
        for (n, got) in seen.messages.iter().enumerate() {
            assert!(*got == message(n), "message {n}");
        }
        let ends = seen.completions.iter();
        let ends: Vec<_> = ends.map(|(end, _)| (end.id, end.status)).collect();
        let all = (0..COUNT as u64).map(|id| (id, CompletionStatus::Success));
        assert_eq!(ends, all.collect::<Vec<_>>());
        assert_eq!(qp.query().sends, 0);
    }
    assert_eq!((last.count(), acks.count()), (1, 3));
    let counters = sides[0].0.query().counters;
    assert!(counters.tx_timeouts > 0, "{counters:?}");
    assert!(counters.tx_repeated > 0, "{counters:?}");
    drop(sides);
    let after = [0, 1].map(|h| holds(&sim, h));
    assert_eq!(before, after);
}

#[test]
fn exhausted_retries_are_reported_at_the_right_virtual_time() {
    let (mut sim, _) = one_switch(52, 2, |_| {});
    let sides = connect(&mut sim);
    let posted = sim.now();
    let from = sides[0].0.qpn();
    let to = sides[1].0.qpn();
    let lost = lose(&sim, 0, u64::MAX, move |p| p.bth.dest_qp == to);
    post(&mut sim, 0, &sides[0], 0..2);
    sim.run_for(10 * SECOND);
    let wait = TIMEOUT.duration().expect("not for ever") * (u32::from(RETRIES) + 1);
    let seen = sides[0].1.lock();
    let ends = seen.completions.iter();
    let ends: Vec<_> = ends.map(|(end, at)| (end.status, *at - posted)).collect();
    let expected = [CompletionStatus::RetryExceeded, CompletionStatus::Flushed];
    assert_eq!(ends, expected.map(|status| (status, wait)));
    assert_eq!(sides[0].0.query().state, QpState::Error, "of {from:?}");
    let failed = QpEvent::SendFailed(CompletionStatus::RetryExceeded);
    assert_eq!(seen.events, [failed]);
    assert!(lost.count() > 0);
    // The other side has heard nothing of it all.
    assert!(sides[1].1.lock().messages.is_empty());
}

#[test]
fn messages_of_the_communication_manager_are_told_apart() {
    let packet = |mad| Packet {
        bth: Bth {
            dest_qp: Qpn::GSI,
            ..Bth::default()
        },
        payload: mad,
        ..Packet::default()
    };
    let req = CmMessage::from(Req::default()).emit(1);
    let dreq = CmMessage::from(Dreq::default()).emit(2);
    assert!(is_cm(&packet(&req), AttrId::CM_REQ) && is_cm(&packet(&dreq), AttrId::CM_DREQ));
    assert!(!is_cm(&packet(&req), AttrId::CM_REP) && !is_cm(&packet(&dreq), AttrId::CM_REQ));
    assert!(!is_cm(&packet(&req[..255]), AttrId::CM_REQ));
    let elsewhere = Packet {
        bth: Bth::default(),
        ..packet(&req)
    };
    assert!(!is_cm(&elsewhere, AttrId::CM_REQ));
}
