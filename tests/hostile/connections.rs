//! Hostile peers of connected mode: floods of CM messages, messages about the connections of others, anything over a connection.

use crate::mutate::{self, mutate};
use crate::net::{Lost, Random, is_cm};
use crate::sim::{Input, Sim, SmPlace};
use crate::targets::{deliver, survives};
use crate::{host, watch};
use datapath::Mode;
use datapath::plane::Upcall;
use fabric::sm::SmConfig;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use verbs::{
    AckTimeout, AhAttributes, ConnectedHandler, ConnectedInit, ConnectedQueuePair,
    ConnectedReceive, ConnectedSend, InitAttributes, MadReceived, Port, QpModify, RnrTimer,
    RtrAttributes, RtsAttributes,
};
use wire::mad::AttrId;
use wire::mad::cm::{
    AboutMessage, CmMessage, CmPath, Drep, Dreq, Mra, Rej, RejectReason, Rep, Req, Rtu, ServiceId,
};
use wire::packet::Packet;
use wire::{Gid, Guid, Lid, MtuCode, PKey, Psn, Qpn, RateCode, ServiceLevel};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// Connections that a host may have.
const MOST: usize = 128;
/// Hosts that talk; the last one attacks.
const HOSTS: usize = 3;
const ATTACKER: usize = HOSTS;

/// What the attacker's port is told by CM messages: the interface there hears nothing of them.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<CmMessage>>>);

impl Heard {
    fn take_reps(&self) -> Vec<Rep> {
        let all = std::mem::take(&mut *self.0.lock());
        let reps = all.into_iter().filter_map(|message| match message {
            CmMessage::Rep(rep) => Some(rep),
            _ => None,
        });
        reps.collect()
    }
}

/// Hosts in connected mode that are up, and the attacker.
fn world(seed: u64, stack: Option<usize>) -> (Sim, Heard, Lost) {
    let mut sim = Sim::new(seed);
    sim.add_switch(8);
    sim.start_sm(SmPlace::Switch(0), SmConfig::default());
    for h in 0..=ATTACKER {
        sim.add_host(0);
        sim.hosts[h].is_stack = stack == Some(h);
        let config = &mut sim.hosts[h].config;
        config.connected.max_connections = MOST;
        config.connected.idle = 20 * SECOND;
        if h != ATTACKER {
            config.mode = Mode::Connected;
        }
        sim.start(h);
    }
    assert!(sim.run_until(10 * SECOND, |sim| (0..=ATTACKER).all(|h| sim.is_up(h))));
    let heard = Heard::default();
    let into = heard.clone();
    // The switch is side 0 of a host's cable.
    let deaf = sim
        .net
        .lose(sim.alive(ATTACKER).cable, 0, u64::MAX, move |p| {
            let is_any = p.bth.dest_qp == Qpn::GSI && p.payload.get(1) == Some(&7);
            if is_any && let Ok(mad) = p.payload.try_into() {
                into.0.lock().extend(CmMessage::parse(mad).map(|(_, m)| m));
            }
            is_any
        });
    (sim, heard, deaf)
}

fn stat(sim: &Sim, h: usize, name: &str) -> u64 {
    let stats = sim.interface(h).stats();
    let found = stats.into_iter().find(|(n, _)| n == name);
    found.unwrap_or_else(|| panic!("{name}?")).1
}

fn queue_pairs(sim: &mut Sim, h: usize) -> u64 {
    let counts = sim.with_hca(h, |hca| hca.resources().counts());
    counts.iter().find(|(n, _)| *n == "queue_pairs").unwrap().1
}

fn lid(sim: &Sim, h: usize) -> Lid {
    sim.alive(h).hca.attributes().lid
}

/// The queue pair for datagrams of a host's interface.
fn ud_qpn(sim: &Sim, h: usize) -> Qpn {
    Qpn::new(sim.interface(h).link_status().qpn.unwrap())
}

/// A CM message arrives at the interface of `h`.
fn tell(sim: &mut Sim, h: usize, from: Lid, message: CmMessage) {
    let mad = MadReceived {
        slid: from,
        dlid: lid(sim, h),
        src_qp: Qpn::GSI,
        dest_qp: Qpn::GSI,
        sl: ServiceLevel(0),
        p_key: PKey(0xffff),
        grh: None,
        mad: Box::new(message.emit(7)),
    };
    let interface = sim.alive(h).interface;
    sim.net
        .put(interface, Input::Interface(datapath::Input::Mad(mad)));
    sim.poke(h);
}

/// A right request of the attacker for a connection to the interface of `h`.
fn request(sim: &Sim, h: usize, id: u32, qpn: Qpn) -> Req {
    let mut private_data = [0; 92];
    private_data[..4].copy_from_slice(&ud_qpn(sim, ATTACKER).0.to_be_bytes());
    private_data[4..8].copy_from_slice(&65_524u32.to_be_bytes());
    Req {
        local_comm_id: id,
        service_id: ServiceId::ipoib_linux(ud_qpn(sim, h)),
        local_ca_guid: sim.hosts[ATTACKER].guid,
        local_qpn: qpn,
        starting_psn: Psn::new(0),
        p_key: PKey(0xffff),
        path_packet_payload_mtu: MtuCode::MTU_2048,
        primary: CmPath {
            local_lid: lid(sim, ATTACKER),
            remote_lid: lid(sim, h),
            local_gid: sim.gid(ATTACKER),
            remote_gid: sim.gid(h),
            packet_rate: RateCode::GBPS_10,
            local_ack_timeout: 15,
            ..CmPath::default()
        },
        private_data,
        ..Req::default()
    }
}

/// A request with anything in it that may make a difference.
fn odd_request(sim: &Sim, random: &mut Random, h: usize) -> Req {
    let mut req = request(sim, h, random.next() as u32, Qpn::new(random.next() as u32));
    let any = |random: &mut Random, n: usize| random.below(n) == 0;
    if any(random, 2) {
        req.local_ca_guid = Guid(random.next());
    }
    if any(random, 2) {
        let gids = [
            Gid([0xff; 16]),
            Gid::default(),
            sim.gid(h),
            Gid::new(random.next(), Guid(random.next())),
        ];
        req.primary.local_gid = gids[random.below(4)];
    }
    if any(random, 2) {
        let numbers = [0, 1, 0xff_ffff, ud_qpn(sim, h).0, random.next() as u32];
        let qpn = numbers[random.below(5)].to_be_bytes();
        req.private_data[..4].copy_from_slice(&qpn);
        let mtus = [0, 1, 3, 4, 5, 0xffff, u32::MAX, random.next() as u32];
        let mtu = mtus[random.below(8)].to_be_bytes();
        req.private_data[4..8].copy_from_slice(&mtu);
    }
    if any(random, 4) {
        let numbers = [0, 1, 2, ud_qpn(sim, h).0, 0xff_ffff];
        req.local_qpn = Qpn::new(numbers[random.below(5)]);
    }
    if any(random, 8) {
        req.path_packet_payload_mtu = MtuCode(random.below(16) as u8);
    }
    if any(random, 8) {
        let lids = [
            Lid(0),
            Lid(0xc000),
            Lid::PERMISSIVE,
            lid(sim, h),
            Lid(random.next() as u16),
        ];
        req.primary.local_lid = lids[random.below(5)];
    }
    if any(random, 8) {
        req.primary.hop_limit = [1, 64, 255][random.below(3)];
        req.primary.flow_label = random.next() as u32 & 0xf_ffff;
        req.primary.packet_rate = RateCode(random.below(64) as u8);
        req.primary.sl = ServiceLevel(random.below(16) as u8);
    }
    if any(random, 16) {
        req.p_key = PKey(random.next() as u16);
    }
    if any(random, 16) {
        req.alternate = req.primary;
        req.transport_service_type = random.below(4) as u8;
        req.retry_count = random.below(8) as u8;
    }
    if any(random, 4) {
        req.service_id = ServiceId::ipoib_rfc(ud_qpn(sim, h));
    }
    req.starting_psn = Psn::new(random.next() as u32);
    req
}

/// Long packets from `from` to `to` until one is answered.
fn reaches(sim: &mut Sim, from: usize, to: IpAddr, within: Duration) -> bool {
    let end = sim.elapsed() + within;
    while sim.elapsed() < end {
        let token = sim.ping_sized(from, to, 60_000);
        if sim.run_until(200 * MS, |sim| sim.answered(from, token)) {
            return true;
        }
    }
    false
}

/// After a quiet while nothing is left of anything.
fn nothing_is_left(sim: &mut Sim) {
    sim.run_for(60 * SECOND);
    for h in 0..HOSTS {
        let names = [
            "connections_own",
            "connections_of_peers",
            "connections_changing",
        ];
        let left = names.map(|name| stat(sim, h, name));
        assert_eq!(left, [0; 3], "host {h}");
        assert_eq!(queue_pairs(sim, h), 1, "host {h}");
    }
    survives(sim);
}

#[test]
fn a_flood_of_requests_leaves_room_for_others() {
    let panics = watch::panics();
    let (mut sim, heard, _deaf) = world(1, None);
    let mut random = Random(5);
    assert!(reaches(&mut sim, 0, host::v4(1), 5 * SECOND));
    let total = watch::count("IPOIB_HOSTILE_CM", 6000);
    let own = lid(&sim, ATTACKER);
    let (mut most, mut lost, mut accepted) = (0, 0, 0);
    let mut talks = [Vec::new(), Vec::new()];
    for n in 0..total {
        let req = odd_request(&sim, &mut random, 0);
        tell(&mut sim, 0, own, req.into());
        if random.below(16) == 0 {
            tell(&mut sim, 0, own, req.into());
        }
        for rep in heard.take_reps() {
            accepted += 1;
            if random.below(2) == 0 {
                let rtu = Rtu {
                    local_comm_id: rep.remote_comm_id,
                    remote_comm_id: rep.local_comm_id,
                    private_data: [0; 224],
                };
                tell(&mut sim, 0, own, rtu.into());
            }
        }
        sim.run_for(MS);
        if n % 100 == 0 {
            most = most.max(queue_pairs(&mut sim, 0));
            let token = sim.ping_sized(0, host::v4(1), 30_000);
            lost += u64::from(!sim.run_until(200 * MS, |sim| sim.answered(0, token)));
        }
        // In the midst of it somebody new comes, in both directions.
        if n >= total / 2 && n % 100 == 50 {
            for (talk, (from, to)) in talks.iter_mut().zip([(2, host::v4(0)), (0, host::v6(2))]) {
                let token = sim.ping_sized(from, to, 30_000);
                talk.push(sim.run_until(20 * MS, |sim| sim.answered(from, token)));
            }
        }
    }
    println!("{total} requests, {accepted} accepted, {most} queue pairs at most, {lost} lost");
    assert!(accepted > MOST as u64 / 4, "{accepted}");
    assert!(most <= 2 * MOST as u64 + 1, "{most} queue pairs");
    for talk in &talks {
        let late = talk.iter().skip(talk.len() / 3).filter(|ok| !**ok).count();
        assert!(talk.len() > 10 && late == 0, "{talks:?}");
    }
    assert!(lost == 0, "{lost} long packets of others were lost");
    assert_eq!(watch::panics(), panics);
    nothing_is_left(&mut sim);
}

/// All that can be said about the connection `ids` (of the sender, of the receiver) of queue pair `qpn`.
fn about(random: &mut Random, ids: (u32, u32), qpn: Qpn, guid: Guid) -> CmMessage {
    let (local_comm_id, remote_comm_id) = ids;
    let reasons = [4, 6, 8, 10, 28, random.next() as u16];
    match random.below(6) {
        0 => Rep {
            local_comm_id,
            remote_comm_id,
            local_qpn: Qpn::new([0, 1, random.next() as u32][random.below(3)]),
            local_ca_guid: guid,
            ..Rep::default()
        }
        .into(),
        1 => Rtu {
            local_comm_id,
            remote_comm_id,
            private_data: [0; 224],
        }
        .into(),
        2 => Rej {
            local_comm_id,
            remote_comm_id,
            message_rejected: AboutMessage(random.below(3) as u8),
            reason: RejectReason(reasons[random.below(6)]),
            ..Rej::default()
        }
        .into(),
        3 => Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: qpn,
            private_data: [0; 220],
        }
        .into(),
        4 => Drep {
            local_comm_id,
            remote_comm_id,
            private_data: [0; 224],
        }
        .into(),
        _ => Mra {
            local_comm_id,
            remote_comm_id,
            message_mraed: AboutMessage(random.below(3) as u8),
            service_timeout: 31,
            private_data: [0; 222],
        }
        .into(),
    }
}

/// An attacker knows the numbers of its own connections to two hosts, and tries those near them.
#[test]
fn whoever_has_a_connection_cannot_guess_those_of_others() {
    let (mut sim, heard, _deaf) = world(2, None);
    let mut random = Random(6);
    let own = lid(&sim, ATTACKER);
    let mut known = Vec::new();
    for h in [0, 1] {
        let req = request(&sim, h, 99, Qpn::new(0x9000));
        tell(&mut sim, h, own, req.into());
        sim.run_for(MS);
        known.extend(heard.take_reps().first().map(|rep| rep.local_comm_id));
        if h == 0 {
            assert!(reaches(&mut sim, 0, host::v4(1), 5 * SECOND));
        }
    }
    let [zero, one] = known[..] else {
        panic!("{known:?}")
    };
    let guid = sim.hosts[1].guid;
    for _ in 0..20_000 {
        let near =
            |random: &mut Random, id: u32| id.wrapping_add(random.below(9) as u32).wrapping_sub(4);
        let ids = (near(&mut random, one), near(&mut random, zero));
        // It knows how queue pairs are numbered, too.
        let qpn = Qpn::new(ud_qpn(&sim, 0).0 + random.below(5) as u32);
        let message = about(&mut random, ids, qpn, guid);
        tell(&mut sim, 0, own, message);
    }
    assert!(reaches(&mut sim, 0, host::v4(1), SECOND));
    assert_eq!(stat(&sim, 0, "connection_opened"), 1);
    nothing_is_left(&mut sim);
}

/// A request by the RFC's service ID makes a connection for both directions: it must not draw the packets for somebody else.
#[test]
fn a_connection_asked_for_in_the_name_of_another_gets_no_packets() {
    let (mut sim, heard, _deaf) = world(3, None);
    let own = lid(&sim, ATTACKER);
    let small = sim.ping(0, host::v4(1));
    assert!(sim.run_until(SECOND, |sim| sim.answered(0, small)));
    assert!(reaches(&mut sim, 0, host::v4(1), 5 * SECOND));
    // Until no connection is left.
    sim.run_for(60 * SECOND);
    for from in [lid(&sim, ATTACKER), lid(&sim, 1)] {
        let qpn = Qpn::new(0x9000 + u32::from(from.0));
        let mut req = request(&sim, 0, qpn.0, qpn);
        req.service_id = ServiceId::ipoib_rfc(ud_qpn(&sim, 0));
        req.private_data[..4].copy_from_slice(&ud_qpn(&sim, 1).0.to_be_bytes());
        req.primary.local_gid = sim.gid(1);
        req.primary.local_lid = from;
        tell(&mut sim, 0, own, req.into());
        sim.run_for(MS);
        let reps = heard.take_reps();
        let rtu = Rtu {
            local_comm_id: req.local_comm_id,
            remote_comm_id: reps[0].local_comm_id,
            private_data: [0; 224],
        };
        tell(&mut sim, 0, own, rtu.into());
        let token = sim.ping_sized(0, host::v4(1), 30_000);
        assert!(
            sim.run_until(SECOND, |sim| sim.answered(0, token)),
            "packets for host 1 went to the attacker, which claimed {from}"
        );
        sim.run_for(60 * SECOND);
    }
    nothing_is_left(&mut sim);
}

/// Whoever asks again and again in the name of another ends none of that one's connections.
#[test]
fn requests_in_the_name_of_another_take_nothing_from_it() {
    let (mut sim, heard, _deaf) = world(4, None);
    assert!(reaches(&mut sim, 1, host::v4(0), 5 * SECOND));
    let own = lid(&sim, ATTACKER);
    for n in 0..20 {
        let mut req = request(&sim, 0, 0x7000 + n, Qpn::new(0x9000 + n));
        req.private_data[..4].copy_from_slice(&ud_qpn(&sim, 1).0.to_be_bytes());
        req.primary.local_gid = sim.gid(1);
        tell(&mut sim, 0, own, req.into());
        sim.run_for(MS);
    }
    assert_eq!(heard.take_reps().len(), 20);
    assert!(stat(&sim, 0, "connection_closed_for_room") > 0);
    assert_eq!(stat(&sim, 1, "connection_disconnected"), 0);
    assert_eq!(stat(&sim, 1, "connections_own"), 1);
    assert!(reaches(&mut sim, 1, host::v4(0), SECOND));
    nothing_is_left(&mut sim);
}

struct Nobody;

impl ConnectedHandler for Nobody {
    fn receive(&self, _batch: &[ConnectedReceive<'_>]) {}
}

/// A connection of the attacker to host `h`, as its owner's programs would have it; it sends `early` before it confirms.
fn connect(
    sim: &mut Sim,
    heard: &Heard,
    h: usize,
    id: u32,
    early: Option<&[u8]>,
) -> Arc<dyn ConnectedQueuePair> {
    let init = ConnectedInit {
        max_sends: 4096,
        max_send_bytes: 64 << 20,
        max_message: 1 << 20,
        ..ConnectedInit::default()
    };
    let own = lid(sim, ATTACKER);
    let qp = sim.with_hca(ATTACKER, |hca| {
        hca.create_connected_qp(init, Arc::new(Nobody)).unwrap()
    });
    qp.modify(QpModify::Init(InitAttributes::default()))
        .unwrap();
    let req = request(sim, h, id, qp.qpn());
    tell(sim, h, own, req.into());
    sim.run_for(MS);
    let rep = heard.take_reps()[0];
    let path = AhAttributes {
        dlid: lid(sim, h),
        sl: ServiceLevel(0),
        src_path_bits: 0,
        rate: RateCode::GBPS_10,
        grh: None,
    };
    qp.modify(QpModify::Rtr(RtrAttributes {
        path,
        path_mtu: MtuCode::MTU_2048,
        dest_qpn: rep.local_qpn,
        // Each says which PSN the other begins with.
        rq_psn: req.starting_psn,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer(12),
    }))
    .unwrap();
    qp.modify(QpModify::Rts(RtsAttributes {
        sq_psn: rep.starting_psn,
        timeout: AckTimeout(15),
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
    }))
    .unwrap();
    if let Some(message) = early {
        sim.with_hca(ATTACKER, |_| {
            qp.post_send(&[ConnectedSend::message(message)]).unwrap();
        });
        sim.run_for(100 * MS);
    }
    let rtu = Rtu {
        local_comm_id: id,
        remote_comm_id: rep.local_comm_id,
        private_data: [0; 224],
    };
    tell(sim, h, own, rtu.into());
    qp
}

#[test]
fn anything_may_come_by_a_connection() {
    let panics = watch::panics();
    // What is above it takes any packets.
    const VICTIM: usize = 2;
    let (mut sim, heard, _deaf) = world(4, Some(VICTIM));
    let mut random = Random(7);
    let token = sim.ping(0, host::v6(VICTIM));
    assert!(sim.run_until(SECOND, |sim| sim.answered(0, token)));
    let mut qp = connect(&mut sim, &heard, VICTIM, 1, None);
    let frames = crate::corpus::bring_up();
    let ip: Vec<Vec<u8>> = frames
        .iter()
        .filter_map(|frame| {
            let packet = Packet::parse(frame).ok()?;
            (packet.bth.dest_qp.0 > 1).then(|| packet.payload.to_vec())
        })
        .collect();
    let mut ended = 0;
    for n in 0..3000u32 {
        let mut message = ip[random.below(ip.len())].clone();
        let other = &ip[random.below(ip.len())];
        mutate(&mut random, &mut message, other);
        match random.below(16) {
            0 => message.truncate(random.below(4)),
            1 => message.resize([4, 5, 65_523, 65_524][random.below(4)], 1),
            2 if random.below(8) == 0 => message.resize(65_525, 1),
            _ => {}
        }
        let too_long = message.len() > 65_524;
        sim.with_hca(ATTACKER, |_| {
            // It may have ended; then it is made anew below.
            let _ = qp.post_send(&[ConnectedSend::message(&message)]);
        });
        sim.run_for(Duration::from_micros(200));
        if too_long {
            sim.run_for(SECOND);
            ended += 1;
            qp = connect(&mut sim, &heard, VICTIM, 100 + n, None);
        }
        if n % 200 == 0 {
            let token = sim.ping_sized(0, host::v6(1), 60_000);
            assert!(sim.run_until(SECOND, |sim| sim.answered(0, token)), "{n}");
        }
    }
    // ARP and ND are believed, as on any network: for a while the victim may look for others where they are not.
    let talks = [(0, host::v4(VICTIM)), (1, host::v6(VICTIM))];
    let silent = sim.ping_until_answered(&talks, 60 * SECOND);
    assert!(silent.is_empty(), "{silent:?}");
    let taken = stat(&sim, VICTIM, "rx_connected");
    assert!(ended > 3 && taken > 2000, "{ended}, {taken}");
    assert_eq!(stat(&sim, 0, "connection_failed"), 0);
    assert_eq!(watch::panics(), panics);
    drop(qp);
    sim.run_for(MS);
    nothing_is_left(&mut sim);
}

/// A connection that fails just before it is confirmed, while control has no room for the news.
#[test]
fn a_connection_that_failed_unheard_is_found_out() {
    let (mut sim, heard, _deaf) = world(6, None);
    sim.net.refuse(|input| {
        matches!(
            input,
            Input::Interface(datapath::Input::Upcall(Upcall::Connection))
        )
    });
    let qp = connect(&mut sim, &heard, 0, 1, Some(&[0; 65_525]));
    sim.run_for(SECOND);
    assert_eq!(stat(&sim, 0, "connection_failed"), 1);
    drop(qp);
    nothing_is_left(&mut sim);
}

/// Mutated packets of a live connection: by another's LID they change nothing, by that of its peer they may end it, for a while.
#[test]
fn mutated_packets_of_connections() {
    let panics = watch::panics();
    let (mut sim, _heard, _deaf) = world(5, None);
    let mut random = Random(8);
    sim.frames = Some(Vec::new());
    for (from, to) in [(0, host::v4(1)), (1, host::v6(0))] {
        assert!(reaches(&mut sim, from, to, 5 * SECOND));
    }
    let seeds: Vec<Vec<u8>> = sim
        .frames
        .take()
        .unwrap()
        .into_iter()
        .filter(|frame| {
            Packet::parse(frame).is_ok_and(|p| {
                p.bth.opcode.0 >> 5 == 0 || is_cm(&p, AttrId::CM_REQ) || is_cm(&p, AttrId::CM_REP)
            })
        })
        .collect();
    assert!(seeds.len() > 100, "{}", seeds.len());
    let own = lid(&sim, ATTACKER).0.to_be_bytes();
    for forge in [false, true] {
        for n in 0..10_000 {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            let other = &seeds[random.below(seeds.len())];
            if n % 4 > 0 {
                mutate(&mut random, &mut bytes, other);
            }
            if !forge && bytes.len() > 8 {
                bytes[6..8].copy_from_slice(&own);
            }
            mutate::repair(&mut bytes);
            deliver(&mut sim, ATTACKER as u8 + 1, &bytes);
            if n % 16 == 0 {
                sim.run_for(Duration::from_micros(500));
            }
            if !forge && n % 500 == 0 {
                let token = sim.ping_sized(0, host::v4(1), 60_000);
                assert!(sim.run_until(SECOND, |sim| sim.answered(0, token)), "{n}");
            }
        }
        println!("opened {}", stat(&sim, 0, "connection_opened"));
        for (from, to) in [(0, host::v4(1)), (1, host::v6(0)), (2, host::v4(0))] {
            assert!(reaches(&mut sim, from, to, 10 * SECOND), "{from} to {to}");
        }
    }
    assert_eq!(watch::panics(), panics);
    nothing_is_left(&mut sim);
}
