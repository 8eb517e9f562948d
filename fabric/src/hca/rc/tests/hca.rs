//! Connected queue pairs of two HCAs on a switch.

use crate::hca::{Hca, HcaResources};
use crate::link::fault::{FaultConfig, FaultLink};
use crate::node::DropReason;
use crate::node::testing::{Net, Star};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use verbs::{
    Access, AckTimeout, AhAttributes, Completion, CompletionData, CompletionStatus,
    ConnectedHandler, ConnectedInit, ConnectedQueuePair, ConnectedReceive, ConnectedSend,
    InitAttributes, Operation, Port, QpEvent, QpModify, QpState, RnrTimer, RtrAttributes,
    RtsAttributes, VerbsError,
};
use wire::{Lid, MtuCode, Psn, Qpn, RateCode, ServiceLevel};

/// A user that keeps what it is told, and may send everything back.
#[derive(Default)]
struct User {
    messages: Mutex<Vec<Vec<u8>>>,
    completions: Mutex<Vec<Completion>>,
    events: Mutex<Vec<QpEvent>>,
    echo: OnceLock<std::sync::Weak<dyn ConnectedQueuePair>>,
}

impl ConnectedHandler for User {
    fn receive(&self, batch: &[ConnectedReceive<'_>]) {
        for message in batch {
            self.messages.lock().push(message.payload.to_vec());
            if let Some(qp) = self.echo.get().and_then(std::sync::Weak::upgrade) {
                qp.post_send(&[ConnectedSend::message(message.payload)])
                    .expect("room");
            }
        }
    }
    fn complete(&self, batch: &[Completion]) {
        self.completions.lock().extend_from_slice(batch);
    }
    fn event(&self, event: QpEvent) {
        self.events.lock().push(event);
    }
}

type Side = (Arc<dyn ConnectedQueuePair>, Arc<User>);

fn create(hca: &Hca, init: ConnectedInit) -> Side {
    let user = Arc::<User>::default();
    let qp = hca.create_connected_qp(init, user.clone());
    (qp.expect("a queue pair"), user)
}

const RTS: RtsAttributes = RtsAttributes {
    sq_psn: Psn(0xff_fff0),
    // 16.8 ms.
    timeout: AckTimeout(12),
    retry_count: 7,
    rnr_retry: 7,
    max_rd_atomic: 4,
};

fn connect(qp: &dyn ConnectedQueuePair, dlid: Lid, dest_qpn: Qpn) {
    connect_by(qp, path(dlid), dest_qpn);
}

fn path(dlid: Lid) -> AhAttributes {
    AhAttributes {
        dlid,
        sl: ServiceLevel(0),
        src_path_bits: 0,
        rate: RateCode::GBPS_10,
        grh: None,
    }
}

fn connect_by(qp: &dyn ConnectedQueuePair, path: AhAttributes, dest_qpn: Qpn) {
    let access = Access {
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
    };
    let rtr = RtrAttributes {
        path,
        path_mtu: MtuCode::MTU_2048,
        dest_qpn,
        rq_psn: RTS.sq_psn,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer(12),
    };
    let pkey_index = 0;
    for change in [
        QpModify::Init(InitAttributes { pkey_index, access }),
        QpModify::Rtr(rtr),
        QpModify::Rts(RTS),
    ] {
        qp.modify(change).expect("the usual way");
    }
}

/// Queue pairs of the HCAs with LIDs 2 and 3, connected.
fn pair(star: &Star) -> [Side; 2] {
    let sides = [1, 2].map(|hca| create(&star.hcas[hca], ConnectedInit::default()));
    connect(&*sides[0].0, Lid(3), sides[1].0.qpn());
    connect(&*sides[1].0, Lid(2), sides[0].0.qpn());
    sides
}

#[test]
fn long_messages_cross_a_switch_both_ways_whatever_is_lost() {
    let mut star = Star::up();
    let sides = pair(&star);
    // Of what each HCA sends.
    let faults = [1, 2].map(|hca| {
        let faults = FaultLink::new(Box::new(|_, _| false));
        star.hcas[hca].attach_link(faults.link(star.net.cables[hca].end(0)));
        let config = FaultConfig {
            loss: 0.01,
            duplicate: 0.005,
            reorder: 0.005,
            ..FaultConfig::NONE
        };
        faults.set(config, Some(hca as u64));
        faults
    });
    let message = |side: usize, n: usize| -> Vec<u8> {
        let tag = (side * 91 + n) as u8;
        (0..65_520).map(|i| tag.wrapping_add(i as u8)).collect()
    };
    const COUNT: usize = 100;
    let mut posted = [0; 2];
    for _ in 0..2_000 {
        for (side, (qp, _)) in sides.iter().enumerate() {
            while posted[side] < COUNT {
                let payload = message(side, posted[side]);
                let send = ConnectedSend {
                    id: posted[side] as u64,
                    signalled: true,
                    ..ConnectedSend::message(&payload)
                };
                match qp.post_send(&[send]) {
                    Ok(()) => posted[side] += 1,
                    Err(refused) => {
                        assert!(matches!(refused.error, VerbsError::NoResources(..)));
                        break;
                    }
                }
            }
        }
        if sides
            .iter()
            .all(|(_, u)| u.completions.lock().len() == COUNT)
        {
            break;
        }
        star.net.advance(Duration::from_millis(5));
    }
    for (side, (qp, user)) in sides.iter().enumerate() {
        let completions = user.completions.lock();
        let ids: Vec<u64> = completions.iter().map(|c| c.id).collect();
        assert_eq!(ids, (0..COUNT as u64).collect::<Vec<_>>());
        let success = |c: &Completion| c.status == CompletionStatus::Success;
        assert!(completions.iter().all(success));
        let got = user.messages.lock();
        assert_eq!(got.len(), COUNT);
        let whole = |(n, m): (usize, &Vec<u8>)| *m == message(1 - side, n);
        assert!(got.iter().enumerate().all(whole));
        let counters = qp.query().counters;
        assert!(counters.tx_repeated > 0, "{counters:?}");
        let lost = faults[side].with_counters(|[sent, _]| sent.lost.get());
        assert!(lost > 10, "{lost} packets were lost");
    }
}

#[test]
fn an_answer_from_the_handler_comes_back_within_the_call() {
    let star = Star::up();
    let [(one, user), (other, echo)] = pair(&star);
    echo.echo.set(Arc::downgrade(&other)).ok();
    let small: Vec<[u8; 2]> = (0..100u16).map(u16::to_be_bytes).collect();
    let batch: Vec<_> = small.iter().map(|m| ConnectedSend::message(m)).collect();
    one.post_send(&batch).expect("room");
    assert_eq!(*user.messages.lock(), small);
    assert_eq!((one.query().sends, other.query().sends), (0, 0));
    // Acknowledgements of 100 packets each way are few.
    assert!(one.query().counters.rx_responses < 10);
}

#[test]
fn a_queue_pair_may_be_connected_to_another_of_the_same_port() {
    let star = Star::up();
    let sides = [0, 1].map(|_| create(&star.hcas[1], ConnectedInit::default()));
    connect(&*sides[0].0, Lid(2), sides[1].0.qpn());
    connect(&*sides[1].0, Lid(2), sides[0].0.qpn());
    let before = star.hcas[1].counters().xmit_pkts;
    let long = vec![1; 10_000];
    let sent = sides[0].0.post_send(&[ConnectedSend::message(&long)]);
    sent.expect("room");
    assert_eq!(*sides[1].1.messages.lock(), [long]);
    assert_eq!(star.hcas[1].counters().xmit_pkts, before);
}

#[test]
fn memory_of_the_other_hca_is_read_and_written() {
    let star = Star::up();
    let [(qp, user), (_other, told)] = pair(&star);
    let access = Access {
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
    };
    let region = star.hcas[2].register_memory(vec![0; 10_000], access);
    let region = region.expect("registered");
    let at = region.address();
    let payload: Vec<u8> = (0..9_000).map(|i| i as u8).collect();
    let (from, len, immediate) = (at, 9_000, Some(7));
    let operations = [
        Operation::Write {
            payload: &payload,
            to: at,
            immediate,
        },
        Operation::Read { from, len },
        Operation::FetchAdd { at, add: 5 },
    ];
    let sends = operations.map(|operation| ConnectedSend {
        operation,
        // Else the READ might see the sum.
        fence: true,
        ..ConnectedSend::message(&[])
    });
    qp.post_send(&sends).expect("room");
    let first = u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
    let completions = user.completions.lock();
    assert_eq!(completions.len(), 2);
    assert!(completions[0].data == CompletionData::Read(payload.clone()));
    assert_eq!(completions[1].data, CompletionData::Original(first));
    let mut bytes = [0; 8];
    assert!(region.read(0, &mut bytes));
    assert_eq!(u64::from_ne_bytes(bytes), first + 5);
    assert_eq!(told.messages.lock().len(), 1, "told of the WRITE");
    assert_eq!(star.hcas[2].resources().memory_regions, 1);
}

#[test]
fn only_packets_of_the_peer_in_the_partition_are_taken() {
    let star = Star::up();
    let [(one, _), (two, user)] = pair(&star);
    let drops = |reason| star.hcas[2].drops().get(reason);
    // A third host sends to the same queue pair; it knows the PSN too.
    let (stranger, _) = create(&star.hcas[0], ConnectedInit::default());
    connect(&*stranger, Lid(3), two.qpn());
    let message = [ConnectedSend::message(b"x")];
    stranger.post_send(&message).expect("room");
    assert_eq!(drops(DropReason::WrongPeer), 1);
    // A UC packet to an RC queue pair, and an RC packet to a UD one.
    let init = ConnectedInit {
        service: verbs::ConnectedService::Unreliable,
        ..ConnectedInit::default()
    };
    let (unreliable, _) = create(&star.hcas[1], init);
    connect(&*unreliable, Lid(3), two.qpn());
    unreliable.post_send(&message).expect("room");
    assert_eq!(drops(DropReason::BadOpcode), 1);
    assert!(user.messages.lock().is_empty());
    one.post_send(&message).expect("room");
    assert_eq!(user.messages.lock().len(), 1);
    drop(two);
    one.post_send(&message).expect("room");
    assert_eq!(drops(DropReason::NoQueuePair), 1);
}

#[test]
fn packets_with_a_grh_come_from_the_gid_of_the_peer() {
    let star = Star::up();
    let sides = [1, 2].map(|hca| create(&star.hcas[hca], ConnectedInit::default()));
    let gid = |hca: usize| Port::attributes(&*star.hcas[hca]).gid();
    let routed = |lid, dgid| AhAttributes {
        grh: Some(verbs::GrhAttributes {
            dgid,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
        }),
        ..path(lid)
    };
    connect_by(&*sides[0].0, routed(Lid(3), gid(2)), sides[1].0.qpn());
    connect_by(&*sides[1].0, routed(Lid(2), gid(1)), sides[0].0.qpn());
    let message = [ConnectedSend::message(b"routed")];
    sides[0].0.post_send(&message).expect("room");
    assert_eq!(*sides[1].1.messages.lock(), [b"routed"]);
    assert_eq!(sides[0].0.query().sends, 0, "acknowledged");
    // The right LID, but another GID than the receiver was told.
    let (strict, user) = create(&star.hcas[2], ConnectedInit::default());
    connect_by(&*strict, routed(Lid(2), gid(0)), sides[0].0.qpn());
    let (other, _) = create(&star.hcas[1], ConnectedInit::default());
    connect_by(&*other, routed(Lid(3), gid(2)), strict.qpn());
    other.post_send(&message).expect("room");
    assert!(user.messages.lock().is_empty());
    assert_eq!(star.hcas[2].drops().get(DropReason::WrongPeer), 1);
}

#[test]
fn partitions_are_checked() {
    use wire::PKey;
    use wire::mad::attr::PKeyTable;
    use wire::mad::{AttrId, Method};
    let mut star = Star::up();
    let [(one, _), (_two, user)] = pair(&star);
    let mut keys = PKeyTable::default();
    keys.p_key[0] = PKey(0x8001);
    let (set, table) = (Method::SET, AttrId::P_KEY_TABLE);
    let Star { net, sm, .. } = &mut star;
    sm.directed(net, &[1, 3], set, table, 0, &keys.emit());
    one.post_send(&[ConnectedSend::message(b"x")])
        .expect("room");
    assert!(user.messages.lock().is_empty());
    assert_eq!(star.hcas[2].drops().get(DropReason::PKeyMismatch), 1);
    let bad = InitAttributes {
        pkey_index: 9,
        access: Access::default(),
    };
    let (fresh, _) = create(&star.hcas[1], ConnectedInit::default());
    let refused = fresh.modify(QpModify::Init(bad));
    assert_eq!(refused, Err(VerbsError::BadPKeyIndex(9)));
}

#[test]
fn a_peer_that_is_gone_is_given_up_by_the_clock_of_control() {
    let mut star = Star::up();
    let [(one, user), (two, _)] = pair(&star);
    drop(two);
    one.post_send(&[ConnectedSend::message(b"x")])
        .expect("room");
    let once = AckTimeout(12).duration().expect("not for ever");
    star.net.advance(8 * once - Duration::from_nanos(1));
    assert!(user.completions.lock().is_empty());
    star.net.advance(Duration::from_nanos(1));
    let status = CompletionStatus::RetryExceeded;
    assert_eq!(user.completions.lock()[0].status, status);
    assert_eq!(*user.events.lock(), [QpEvent::SendFailed(status)]);
    assert_eq!(one.query().counters.tx_packets, 8);
    let resources = star.hcas[1].resources();
    assert_eq!(resources.queue_pairs[0].connected, Some(QpState::Error));
}

#[test]
fn nothing_is_left_of_a_thousand_connections() {
    let mut net = Net::new();
    let hca = net.hca(1);
    for _ in 0..1_000 {
        let (qp, user) = create(&hca, ConnectedInit::default());
        connect(&*qp, Lid(9), Qpn(9));
        // No link: it waits for a timeout.
        qp.post_send(&[ConnectedSend::message(b"x")]).expect("room");
        assert!(hca.timers.poll_timeout().is_some());
        drop(qp);
        assert_eq!(Arc::strong_count(&user), 1, "the handler is released");
    }
    assert_eq!(hca.resources(), HcaResources::default());
    assert_eq!(hca.timers.poll_timeout(), None);
    drop(net);
    assert_eq!(Arc::strong_count(&hca), 1);
}

#[test]
fn threads_on_both_sides_keep_the_order() {
    let star = Star::up();
    let sides = pair(&star);
    const COUNT: u32 = 3_000;
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        for (qp, _) in &sides {
            scope.spawn(move || {
                for n in 0..COUNT {
                    let payload = n.to_be_bytes().repeat(1 + n as usize % 700);
                    let send = [ConnectedSend::message(&payload)];
                    while qp.post_send(&send).is_err() {
                        assert!(Instant::now() < deadline, "the queue stays full");
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    for (qp, user) in &sides {
        let messages = user.messages.lock();
        let numbers = messages.iter().enumerate();
        let right = |(n, m): (usize, &Vec<u8>)| *m == (n as u32).to_be_bytes().repeat(1 + n % 700);
        assert_eq!(messages.len(), COUNT as usize);
        assert!(numbers.into_iter().all(right));
        let status = qp.query();
        assert_eq!((status.sends, status.counters.tx_repeated), (0, 0));
    }
}
