//! Rules of the standard, one by one.

use super::super::*;
use super::world::{Phase, SERVICE, World, config};
use verbs::MadReceived;
use wire::mad::cm::{AboutMessage, Apr, Drep, Lap, SidrRep, SidrReq};
use wire::{Guid, Lid, PKey, Qpn, ServiceLevel};

fn open(world: &mut World) -> (ConnectionId, ConnectionId) {
    let (id, there) = world.requested();
    world.accept(1, there);
    world.settle();
    world.confirm(0, id);
    world.settle();
    assert_eq!(world.in_phase(1, Phase::Open), [there]);
    (id, there)
}

fn names(world: &World, from: usize) -> Vec<(usize, &'static str)> {
    let sent = world.sent[from..].iter();
    sent.map(|(side, m)| {
        let name = match m {
            CmMessage::Req(_) => "REQ",
            CmMessage::Mra(_) => "MRA",
            CmMessage::Rej(_) => "REJ",
            CmMessage::Rep(_) => "REP",
            CmMessage::Rtu(_) => "RTU",
            CmMessage::Dreq(_) => "DREQ",
            CmMessage::Drep(_) => "DREP",
            _ => "other",
        };
        (*side, name)
    })
    .collect()
}

fn last_rej(world: &World) -> (AboutMessage, RejectReason) {
    let rej = world.sent.iter().rev().find_map(|(_, m)| match m {
        CmMessage::Rej(rej) => Some((rej.message_rejected, rej.reason)),
        _ => None,
    });
    rej.expect("a REJ")
}

/// A message that some third party sends to `to`.
fn inject(world: &mut World, to: usize, message: impl Into<CmMessage>) {
    let send = World::address(to).send(&message.into(), 7);
    let mad = World::received(1 - to, send);
    world.nodes[to].cm.handle(world.now, &mad);
    world.collect();
}

#[test]
fn a_connection_opens_with_three_messages_and_closes_with_two() {
    let mut world = World::new(1);
    let (id, there) = open(&mut world);
    assert_eq!(names(&world, 0), [(0, "REQ"), (1, "REP"), (0, "RTU")]);
    world.disconnect(0, id);
    world.settle();
    assert_eq!(names(&world, 3), [(0, "DREQ"), (1, "DREP")]);
    let told = world.nodes[1].events.last();
    assert_eq!(told, Some(&CmEvent::Disconnected { id: there }));
    assert_eq!((world.nodes[0].cm.len(), world.nodes[1].cm.len()), (1, 1));
    let before = world.now;
    while world.advance() {}
    assert_eq!(world.now - before, config(0).time_wait);
    assert!(world.nodes.iter().all(|n| n.cm.is_empty()));
    // All answers carry the TID of what they answer: the REQ's, the DREQ's.
    let [req, rep, rtu, dreq, drep] = world.tids[..] else {
        panic!("{:?}", world.tids)
    };
    assert!((req, rep, dreq) == (rep, rtu, drep) && req != dreq);
}

#[test]
fn dreqs_that_cross_are_both_answered_and_end_it() {
    let mut world = World::new(1);
    let (id, there) = open(&mut world);
    world.disconnect(0, id);
    world.disconnect(1, there);
    // Each has the other's DREQ; no DREP arrives.
    world.deliver(0);
    world.deliver(0);
    assert_eq!(names(&world, 3)[2..], [(1, "DREP"), (0, "DREP")]);
    world.flying.clear();
    let before = world.now;
    while world.advance() {}
    assert_eq!(world.now - before, config(0).time_wait);
}

#[test]
fn private_data_and_values_arrive() {
    let mut world = World::new(1);
    let mut req = Req {
        service_id: SERVICE,
        local_qpn: Qpn(5),
        ..Req::default()
    };
    req.private_data[..3].copy_from_slice(b"req");
    let to = World::address(1);
    let id = world.nodes[0].cm.connect(world.now, to, req).expect("room");
    while let Some(output) = world.nodes[0].cm.poll_output() {
        let CmOutput::Send(send) = output else {
            panic!("{output:?}")
        };
        let (header, message) = CmMessage::parse(&send.mad).expect("a CM message");
        let CmMessage::Req(sent) = message else {
            panic!("{message:?}")
        };
        assert_eq!(header.tid >> 32, 1, "the agent's number");
        let expected = Req {
            local_comm_id: id.0,
            local_ca_guid: Guid(1),
            remote_cm_response_timeout: 17,
            local_cm_response_timeout: 17,
            max_cm_retries: 7,
            ..req
        };
        assert_eq!(sent, expected);
    }
}

#[test]
fn a_repeated_req_gets_the_same_rep_and_a_repeated_rep_the_same_rtu() {
    let mut world = World::new(1);
    let id = world.connect(0);
    let req = world.flying[0].clone();
    world.settle();
    let there = world.in_phase(1, Phase::Requested)[0];
    // Not decided: nothing to answer.
    world.flying.push(req.clone());
    world.settle();
    assert_eq!(names(&world, 0), [(0, "REQ")]);
    world.accept(1, there);
    let rep = world.flying.pop().expect("the REP");
    world.flying.push(req);
    world.deliver(0);
    assert_eq!(world.flying.len(), 1);
    assert_eq!(world.flying[0].1.mad, rep.1.mad);
    world.settle();
    world.confirm(0, id);
    let rtu = world.flying.pop().expect("the RTU");
    world.flying.push(rep);
    world.deliver(0);
    assert_eq!(world.flying[0].1.mad, rtu.1.mad);
    world.settle();
    assert_eq!(world.in_phase(1, Phase::Open), [there]);
    assert_eq!(world.nodes[1].cm.counters().duplicates, 2);
}

#[test]
fn what_is_not_answered_is_repeated_and_given_up() {
    let mut world = World::new(1);
    world.connect(0);
    let start = world.now;
    while world.advance() {}
    world.flying.clear();
    assert_eq!(names(&world, 0)[..8], [(0, "REQ"); 8]);
    assert_eq!(names(&world, 8), [(0, "REJ")]);
    assert_eq!(world.now - start, code_duration(17) * 8);
    assert_eq!(world.nodes[0].events.len(), 2, "TimedOut and Released");
    // A listener that nobody confirms to.
    let (id, there) = world.requested();
    world.accept(1, there);
    world.flying.clear();
    world.disconnect(0, id);
    world.flying.clear();
    let from = world.sent.len();
    while world.advance() {}
    assert_eq!(
        names(&world, from)[..8],
        [
            (1, "REP"),
            (1, "REP"),
            (1, "REP"),
            (1, "REP"),
            (1, "REP"),
            (1, "REP"),
            (1, "REP"),
            (1, "REJ")
        ]
    );
    assert!(world.nodes.iter().all(|n| n.cm.is_empty()));
}

#[test]
fn a_requester_that_gives_up_tells_a_listener_that_has_not_decided() {
    let mut world = World::new(1);
    let (id, there) = world.requested();
    world.disconnect(0, id);
    world.settle();
    assert!(world.nodes.iter().all(|n| n.cm.is_empty()));
    let last = &world.nodes[1].events[1..];
    assert!(
        matches!(last, [CmEvent::Rejected { id, .. }, CmEvent::Released { .. }] if *id == there)
    );
}

#[test]
fn an_mra_makes_the_other_side_wait() {
    let mut world = World::new(1);
    let (id, there) = world.requested();
    // 8.6 s, twice what would be given up after.
    world.nodes[1]
        .cm
        .delay(world.now, there, 21)
        .expect("it waits");
    world.collect();
    world.settle();
    let next = world.nodes[0].cm.poll_timeout().expect("it waits");
    assert_eq!(next - world.now, code_duration(17) + code_duration(21));
    world.accept(1, there);
    world.settle();
    assert_eq!(world.in_phase(0, Phase::Replied), [id]);
}

/// Whoever asks for more time again and again is given up all the same.
#[test]
fn an_mra_delays_the_end_once() {
    let mut world = World::new(1);
    let id = world.connect(0);
    let start = world.now;
    let mra = Mra {
        local_comm_id: 9,
        remote_comm_id: id.0,
        message_mraed: AboutMessage::REQ,
        service_timeout: 31,
        private_data: [0; 222],
    };
    while world.in_phase(0, Phase::Asked) == [id] {
        world.flying.clear();
        inject(&mut world, 0, mra);
        assert!(world.advance());
        assert!(world.now - start < Duration::from_secs(70));
    }
    assert!(world.now - start > Duration::from_secs(60));
}

#[test]
fn data_before_the_rtu_opens_the_connection() {
    let mut world = World::new(1);
    let (id, there) = world.requested();
    world.accept(1, there);
    world.settle();
    world.confirm(0, id);
    world.flying.clear();
    assert!(world.send_data(0, id));
    assert_eq!(world.in_phase(1, Phase::Open), [there]);
    assert_eq!(world.nodes[1].cm.poll_timeout(), None, "no REP any more");
}

#[test]
fn a_req_from_the_queue_pair_of_a_connection_is_stale() {
    let mut world = World::new(1);
    open(&mut world);
    let CmMessage::Req(req) = world.sent[0].1 else {
        panic!()
    };
    let again = Req {
        local_comm_id: req.local_comm_id ^ 1,
        ..req
    };
    inject(&mut world, 1, again);
    assert_eq!(
        last_rej(&world),
        (AboutMessage::REQ, RejectReason::STALE_CONN)
    );
    let told = world.nodes[1].events.last();
    assert!(matches!(told, Some(CmEvent::Disconnected { .. })));
    assert_eq!(world.nodes[1].cm.counters().stale, 1);
}

/// With LMC the other side answers from another LID of its port than it is asked at.
#[test]
fn whose_connection_is_stale_says_where_its_messages_come_from() {
    let mut world = World::new(1);
    let there = CmAddress {
        dlid: Lid(5),
        ..World::address(1)
    };
    let (local_qpn, remote_qpn) = (world.qpn(0), Qpn(0x77));
    let asked = Req {
        service_id: SERVICE,
        local_qpn,
        ..Req::default()
    };
    let cm = &mut world.nodes[0].cm;
    let id = cm.connect(world.now, there, asked).expect("room");
    let rep = Rep {
        local_comm_id: 9,
        remote_comm_id: id.0,
        local_qpn: remote_qpn,
        local_ca_guid: Guid(2),
        ..Rep::default()
    };
    let hear = |cm: &mut Cm, now, from, message: CmMessage| {
        let mad = MadReceived {
            slid: from,
            ..World::received(1, World::address(0).send(&message, 7))
        };
        cm.handle(now, &mad);
    };
    hear(cm, world.now, Lid(4), rep.into());
    cm.confirm(id, [0; 224]).expect("it was asked for");
    let again = Req {
        local_comm_id: 10,
        local_qpn: remote_qpn,
        local_ca_guid: Guid(2),
        ..asked
    };
    hear(cm, world.now, Lid(6), again.into());
    assert_eq!(cm.counters().stale, 0, "somebody else's");
    let again = Req {
        local_comm_id: 11,
        ..again
    };
    hear(cm, world.now, Lid(4), again.into());
    assert_eq!(cm.counters().stale, 1);
}

/// Linux says no LIDs for a path with a hop limit of more than 1.
#[test]
fn a_request_from_beyond_a_router_has_the_lids_of_its_packet() {
    let mut world = World::new(1);
    let mut req = Req {
        local_comm_id: 9,
        service_id: SERVICE,
        ..Req::default()
    };
    req.primary.local_lid = Lid::PERMISSIVE;
    req.primary.remote_lid = Lid::PERMISSIVE;
    let mut mad = World::received(1, World::address(0).send(&req.into(), 7));
    mad.sl = ServiceLevel(3);
    world.nodes[0].cm.handle(world.now, &mad);
    let Some(CmOutput::Event(CmEvent::Requested { req, .. })) = world.nodes[0].cm.poll_output()
    else {
        panic!("no request")
    };
    let path = req.primary;
    assert_eq!(
        (path.local_lid, path.remote_lid, path.sl),
        (mad.slid, mad.dlid, ServiceLevel(3))
    );
}

/// With LMC it has several LIDs.
#[test]
fn one_port_does_not_take_all_connections() {
    let mut world = World::new(1);
    let cm = &mut world.nodes[0].cm;
    cm.set_lmc(2);
    let most = 3;
    cm.config.max_from_lid = most;
    for n in 0..8u16 {
        let req = Req {
            local_comm_id: 10 + u32::from(n),
            service_id: SERVICE,
            local_qpn: Qpn(10 + u32::from(n)),
            ..Req::default()
        };
        let mad = MadReceived {
            slid: Lid(8 + n % 4),
            ..World::received(1, World::address(0).send(&req.into(), 7))
        };
        cm.handle(world.now, &mad);
    }
    assert_eq!((cm.len(), cm.counters().refused), (most, 5));
    let req = Req {
        local_comm_id: 20,
        service_id: SERVICE,
        local_qpn: Qpn(20),
        ..Req::default()
    };
    let mad = MadReceived {
        slid: Lid(12),
        ..World::received(1, World::address(0).send(&req.into(), 7))
    };
    cm.handle(world.now, &mad);
    assert_eq!(cm.len(), most + 1, "another port");
}

#[test]
fn requests_that_nobody_takes_are_refused_with_a_reason() {
    let mut world = World::new(1);
    let req = Req {
        local_comm_id: 9,
        service_id: SERVICE,
        local_qpn: Qpn(3),
        ..Req::default()
    };
    let service_id = ServiceId(1);
    inject(&mut world, 0, Req { service_id, ..req });
    let about = AboutMessage::REQ;
    assert_eq!(last_rej(&world), (about, RejectReason::INVALID_SERVICE_ID));
    let transport_service_type = 2;
    inject(
        &mut world,
        0,
        Req {
            transport_service_type,
            ..req
        },
    );
    assert_eq!(
        last_rej(&world),
        (about, RejectReason::INVALID_TRANSPORT_TYPE)
    );
    for n in 0..70 {
        let (local_comm_id, local_qpn) = (10 + n, Qpn(10 + n));
        inject(
            &mut world,
            0,
            Req {
                local_comm_id,
                local_qpn,
                ..req
            },
        );
    }
    assert_eq!(last_rej(&world), (about, RejectReason::NO_RESOURCES));
    assert_eq!(world.nodes[0].cm.len(), 64);
    let refused = world.nodes[0].cm.connect(world.now, World::address(1), req);
    assert_eq!(refused, Err(CmError::TooMany(64)));
    // The user never decides: all are given up.
    world.flying.clear();
    while world.advance() {
        world.flying.clear();
    }
    assert!(world.nodes[0].cm.is_empty() && world.nodes[0].held.is_empty());
}

#[test]
fn who_knows_nothing_says_so() {
    let mut world = World::new(1);
    let ids = |local_comm_id, remote_comm_id| Rep {
        local_comm_id,
        remote_comm_id,
        ..Rep::default()
    };
    inject(&mut world, 0, ids(3, 4));
    assert_eq!(
        last_rej(&world),
        (AboutMessage::REP, RejectReason::INVALID_COMM_ID)
    );
    inject(
        &mut world,
        0,
        Dreq {
            local_comm_id: 3,
            remote_comm_id: 4,
            remote_qpn: Qpn(5),
            private_data: [0; 220],
        },
    );
    let expected = Drep {
        local_comm_id: 4,
        remote_comm_id: 3,
        private_data: [0; 224],
    };
    assert_eq!(world.sent.last(), Some(&(0, expected.into())));
    inject(
        &mut world,
        0,
        Lap {
            local_comm_id: 3,
            ..Lap::default()
        },
    );
    let expected = Apr {
        remote_comm_id: 3,
        ap_status: 1,
        ..Apr::default()
    };
    assert_eq!(world.sent.last(), Some(&(0, expected.into())));
    for (service_id, status) in [(SERVICE, 2), (ServiceId(1), 1)] {
        let request_id = 8;
        inject(
            &mut world,
            0,
            SidrReq {
                request_id,
                service_id,
                ..SidrReq::default()
            },
        );
        let expected = SidrRep {
            request_id,
            service_id,
            status,
            ..SidrRep::default()
        };
        assert_eq!(world.sent.last(), Some(&(0, expected.into())));
    }
}

#[test]
fn a_listener_that_crashed_is_found_out() {
    let mut world = World::new(1);
    let (id, _) = open(&mut world);
    world.crash(1);
    assert!(!world.send_data(0, id));
    world.disconnect(0, id);
    world.settle();
    while world.advance() {}
    assert!(world.nodes.iter().all(|n| n.cm.is_empty()));
}

#[test]
fn random_bytes_do_no_harm() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut world = World::new(7);
    open(&mut world);
    let samples: Vec<_> = world.sent.clone();
    for _ in 0..50_000 {
        let (_, message) = samples[random.usize(..samples.len())];
        let mut mad = Box::new(message.emit(random.u64(..)));
        for _ in 0..random.usize(0..4) {
            mad[random.usize(0..90)] = random.u8(..);
        }
        if random.u8(0..3) == 0 {
            random.fill(&mut mad[24..]);
        }
        let to = random.usize(0..2);
        let received = MadReceived {
            slid: World::address(1 - to).dlid,
            dlid: World::address(to).dlid,
            src_qp: Qpn::GSI,
            dest_qp: Qpn::GSI,
            sl: ServiceLevel(0),
            p_key: PKey::DEFAULT_FULL,
            grh: None,
            mad,
        };
        world.nodes[to].cm.handle(world.now, &received);
        world.collect();
        world.flying.clear();
        world.sent.clear();
        world.now += Duration::from_millis(random.u64(0..50));
        for node in &mut world.nodes {
            assert!(node.cm.len() <= 64);
            node.cm.handle_timeout(world.now);
        }
        world.collect();
    }
}
