mod hostile;

use super::clients::MAX_CLIENTS;
use super::transactions::{
    GSI_TIMEOUT, MAX_PENDING, MAX_PENDING_OF_CLIENT, SMP_SENDS, SMP_TIMEOUT,
};
use super::*;
use crate::node::DropReason;
use crate::node::testing::{M_KEY, Star};
use crate::umad::protocol::{ClientInfo, TIMED_OUT};
use parking_lot::Mutex;
use std::time::Duration;
use verbs::GrhInfo;
use wire::mad::attr::{CapabilityMask, NodeInfo, NodeType, PKeyTable, PortInfo};
use wire::mad::{AttrId, Smp};
use wire::{Gid, Lid};

/// Sockets that note what is sent.
#[derive(Default)]
struct Notes {
    open: BTreeSet<u32>,
    dead: BTreeSet<Peer>,
    control: Vec<(Peer, Ctl)>,
    data: Vec<(u32, Request)>,
}

impl Sockets for Notes {
    fn open(&mut self, id: u32, _peer: &Peer, _info_id: u32) -> bool {
        self.open.insert(id)
    }
    fn close(&mut self, id: u32) {
        self.open.remove(&id);
    }
    fn is_alive(&mut self, peer: &Peer) -> bool {
        !self.dead.contains(peer)
    }
    fn send_control(&mut self, peer: &Peer, datagram: &[u8; Ctl::LEN]) {
        let ctl = Ctl::parse(datagram).expect("a control datagram");
        self.control.push((peer.clone(), ctl));
    }
    fn send_data(&mut self, id: u32, datagram: &[u8; Request::LEN]) {
        assert!(
            self.open.contains(&id),
            "data for a client that is not there"
        );
        self.data
            .push((id, Request::parse(datagram).expect("a data datagram")));
    }
}

type Arrived = Arc<Mutex<VecDeque<(usize, MadReceived)>>>;

/// A star with a server in front of its nodes H1, H2, H3 and S.
struct World {
    star: Star,
    core: Core,
    notes: Notes,
    arrived: Arrived,
}

fn peer(number: u32) -> Peer {
    Peer::Unix(number.to_ne_bytes().to_vec())
}

impl World {
    fn new() -> World {
        let star = Star::up();
        let mut nodes: Vec<(String, Arc<dyn ManagementPort>)> = Vec::new();
        for (hca, number) in star.hcas.iter().zip(1..) {
            nodes.push((format!("H{number}"), hca.clone()));
        }
        nodes.push(("S".into(), star.switch.clone()));
        let arrived = Arrived::default();
        let into = arrived.clone();
        let sink: Sink = Arc::new(move |node, mad| {
            into.lock().push_back((node, mad));
            true
        });
        World {
            core: Core::new(nodes, sink, Arc::default()),
            star,
            notes: Notes::default(),
            arrived,
        }
    }

    /// Until nothing is on its way.
    fn run(&mut self) {
        loop {
            self.star.net.run();
            let Some((node, mad)) = self.arrived.lock().pop_front() else {
                return;
            };
            self.core.received(node, mad, &mut self.notes);
        }
    }

    fn advance(&mut self, by: Duration) {
        let end = self.star.net.now + by;
        loop {
            self.run();
            let due = self.core.poll_timeout().filter(|at| *at <= end);
            let now = self.star.net.now;
            let pause = due.unwrap_or(end).saturating_duration_since(now);
            self.star.net.advance(pause);
            self.run();
            let now = self.star.net.now;
            self.core.handle_timeout(now, &mut self.notes);
            if due.is_none() {
                return;
            }
        }
    }

    fn control(&mut self, peer: &Peer, client: u32, kind: u32, data: [u8; 64]) -> Option<[u8; 64]> {
        let (now, len) = (self.star.net.now, 64);
        let bytes = Ctl {
            client,
            kind,
            len,
            data,
        }
        .emit();
        self.core
            .control(now, peer.clone(), &bytes, &mut self.notes);
        self.run();
        let (to, answer) = self.notes.control.pop().expect("an answer at once");
        assert_eq!(&to, peer);
        (answer.kind == kind).then_some(answer.data)
    }

    fn connect_as(&mut self, peer: &Peer, info: ClientInfo) -> Option<u32> {
        let data = self.control(peer, 0, Ctl::CONNECT, info.emit())?;
        Some(ClientInfo::parse(&data).id)
    }

    /// Client `number` of `node`; its number at the server.
    fn connect(&mut self, number: u32, node: &str, qp: u32) -> u32 {
        let info = ClientInfo {
            qp,
            node: node.into(),
            ..ClientInfo::default()
        };
        self.connect_as(&peer(number), info).expect("there is room")
    }

    fn set_sm(&mut self, number: u32, client: u32, on: bool) -> bool {
        let mut data = [0; 64];
        data[0] = on.into();
        self.control(&peer(number), client, Ctl::SET_ISSM, data)
            .is_some()
    }

    fn send(&mut self, client: u32, request: &Request) {
        let now = self.star.net.now;
        self.core
            .data(now, client, &request.emit(), &mut self.notes);
        self.run();
    }

    fn received(&mut self) -> Vec<(u32, Request)> {
        std::mem::take(&mut self.notes.data)
    }

    fn port_info(&mut self, number: u32, client: u32) -> PortInfo {
        let data = self.control(&peer(number), client, Ctl::GET_PORTINFO, [0; 64]);
        PortInfo::parse(&data.expect("PortInfo")).expect("64 bytes")
    }
}

fn to(dlid: Lid, dqp: u32, mad: Box<MadBytes>) -> Request {
    Request {
        dlid,
        slid: Lid(0),
        dqp,
        sqp: dqp,
        status: 0,
        length: 256,
        mad,
    }
}

fn node_info(path: &[u8], tid: u64) -> Request {
    let smp = Smp::directed(Method::GET, AttrId::NODE_INFO, 0, tid, path);
    to(Lid::PERMISSIVE, 0, Box::new(smp.emit()))
}

fn gmp(class: MgmtClass, method: Method, tid: u64) -> Box<MadBytes> {
    let mut mad = Box::new([0; MAD_LEN]);
    mad[..4].copy_from_slice(&[1, class.0, 1, method.0]);
    mad[8..16].copy_from_slice(&tid.to_be_bytes());
    mad
}

#[test]
fn what_nobody_answers_comes_back_with_status_110() {
    let mut world = World::new();
    let client = world.connect(1, "H2", 0);
    // Nothing is at port 5 of the switch, and no LID 9.
    let smp = Request {
        length: 200,
        ..node_info(&[1, 5], 0xdead_beef_0102_0304)
    };
    let query = to(Lid(9), 1, gmp(MgmtClass::SUBN_ADM, Method::GET, 7));
    let back = |asked: &Request| Request {
        status: TIMED_OUT,
        ..asked.clone()
    };
    world.send(client, &smp);
    let tick = Duration::from_nanos(1);
    world.advance(SMP_TIMEOUT * SMP_SENDS - tick);
    assert_eq!(world.received(), []);
    assert_eq!(
        world.core.counters.sent_again.get(),
        u64::from(SMP_SENDS) - 1
    );
    world.advance(tick);
    assert_eq!(world.received(), [(client, back(&smp))]);
    world.send(client, &query);
    world.advance(GSI_TIMEOUT - tick);
    assert_eq!(world.received(), []);
    world.advance(tick);
    assert_eq!(world.received(), [(client, back(&query))]);
    assert_eq!(world.core.counters.timed_out.get(), 2);
    assert_eq!(world.core.poll_timeout(), None);
}

#[test]
fn clients_with_the_same_tid_get_their_own_answers() {
    let mut world = World::new();
    let (tid, now) = (0x0001_0000_0000_0007, world.star.net.now);
    let (one, two) = (world.connect(1, "H1", 0), world.connect(2, "H1", 0));
    let three = world.connect(3, "H3", 0);
    // One hop from H1 is the switch, two are H2; and H3 is itself.
    for (client, path) in [(one, &[1][..]), (two, &[1, 2]), (three, &[])] {
        let asked = node_info(path, tid).emit();
        world.core.data(now, client, &asked, &mut world.notes);
    }
    world.run();
    let mut answers = world.received();
    answers.sort_by_key(|(client, _)| *client);
    let told = answers.iter().map(|(client, answer)| {
        assert_eq!((answer.status, answer.mad[3]), (0, Method::GET_RESP.0));
        assert_eq!(answer.mad[8..16], u64::to_be_bytes(tid));
        let smp = Smp::parse(&answer.mad[..]).expect("an SMP");
        let info = NodeInfo::parse(&smp.data).expect("NodeInfo");
        (*client, info.node_guid.0)
    });
    let expected = [(one, 0x20_0000), (two, 0x10_0010), (three, 0x10_0020)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    // A second answer to the same request has no one waiting.
    let (_, answer) = answers.remove(0);
    let again = MadReceived {
        slid: Lid::PERMISSIVE,
        dlid: Lid::PERMISSIVE,
        src_qp: Qpn::SMI,
        dest_qp: Qpn::SMI,
        sl: ServiceLevel(0),
        p_key: PKey::DEFAULT_FULL,
        grh: None,
        mad: answer.mad,
    };
    world.core.received(0, again, &mut world.notes);
    assert_eq!(world.received(), []);
    assert_eq!(world.core.counters.rx_unexpected.get(), 1);
}

#[test]
fn reports_and_queries_find_their_clients_and_answers_go_back_as_they_came() {
    let mut world = World::new();
    let keys = PKeyTable {
        p_key: std::array::from_fn(|i| PKey([0xffff, 0x8001].get(i).copied().unwrap_or(0))),
    };
    let Star { net, sm, hcas, .. } = &mut world.star;
    for path in [&[][..], &[1, 2]] {
        let (set, attr) = (Method::SET, AttrId::P_KEY_TABLE);
        sm.directed(net, path, set, attr, 0, &keys.emit())
            .expect("P_KeyTable answered");
    }
    let inbox = Arc::new(Mutex::new(Vec::new()));
    let into = inbox.clone();
    let manager = hcas[0]
        .register_mad_agent(&[], Arc::new(move |mad| into.lock().push(mad)))
        .expect("room for an agent");
    let (plain, with_qp) = (world.connect(1, "H2", 0), world.connect(2, "H2", 77));
    let sm = world.connect(3, "H2", 0);
    assert!(world.set_sm(3, sm, true));
    let [gid, peer_gid] = [0, 1].map(|i| ManagementPort::attributes(&*world.star.hcas[i]).gid());
    let tid = u64::from(manager.tid_high()) << 32 | 9;
    let grh = |sgid: Gid, dgid: Gid| GrhInfo {
        sgid,
        dgid,
        hop_limit: 255,
        traffic_class: 3,
        flow_label: 5,
    };
    let (report, get) = (Method::REPORT, Method::GET);
    for (qp, method, takers) in [
        (77, report, vec![with_qp]),
        (1, report, vec![plain, with_qp]),
        (1, get, vec![sm]),
        (78, report, vec![]),
    ] {
        manager.send(MadSend {
            dlid: Lid(2),
            sl: ServiceLevel(3),
            remote_qpn: Qpn::new(qp),
            q_key: QKey::GSI,
            p_key: PKey(0x8001),
            grh: Some(grh(gid, peer_gid)),
            mad: gmp(MgmtClass::SUBN_ADM, method, tid),
        });
        world.run();
        let asked = world.received();
        let by: Vec<u32> = asked.iter().map(|(client, _)| *client).collect();
        assert_eq!(by, takers, "{qp} {method}");
        let Some((client, request)) = asked.into_iter().next() else {
            continue;
        };
        assert_eq!((request.slid, request.sqp, request.dqp), (Lid(1), 1, qp));
        let answer = gmp(MgmtClass::SUBN_ADM, method.response(), tid);
        world.send(client, &to(request.slid, request.sqp, answer));
        let answer = inbox.lock().pop().expect("an answer");
        assert_eq!((answer.sl, answer.p_key), (ServiceLevel(3), PKey(0x8001)));
        assert_eq!(answer.grh, Some(grh(peer_gid, gid)));
    }
    assert_eq!(world.core.counters.nobody.get(), 1);
    // An answer to what was never asked takes the default.
    let answer = gmp(MgmtClass::SUBN_ADM, Method::GET_RESP, tid + 1);
    world.send(sm, &to(Lid(1), 1, answer));
    let answer = inbox.lock().pop().expect("an answer");
    assert_eq!(
        (answer.sl, answer.p_key, answer.grh),
        (ServiceLevel(0), PKey::DEFAULT_FULL, None)
    );
}

#[test]
fn a_dead_manager_makes_room() {
    let mut world = World::new();
    let is_sm = |info: PortInfo| info.capability_mask.contains(CapabilityMask::IS_SM);
    let (one, two) = (world.connect(1, "H2", 0), world.connect(2, "H2", 0));
    assert!(world.set_sm(1, one, true) && world.set_sm(1, one, true));
    assert!(!world.set_sm(2, two, true), "there is one");
    assert!(!world.set_sm(2, one, false), "not for another client");
    assert!(is_sm(world.port_info(2, two)));
    world.notes.dead.insert(peer(1));
    assert!(world.set_sm(2, two, true), "the first is dead");
    assert_eq!(world.core.counters.died.get(), 1);
    let three = world.connect(3, "H2", 0);
    world.core.died(two, &mut world.notes);
    assert!(!is_sm(world.port_info(3, three)));
    assert_eq!(world.notes.open, BTreeSet::from([three]));
}

#[test]
fn tables_are_bounded() {
    let mut world = World::new();
    let lost = node_info(&[1, 5], 1);
    let clients = (MAX_PENDING / MAX_PENDING_OF_CLIENT) as u32;
    for number in 0..clients {
        let client = world.connect(number, "H2", 0);
        for _ in 0..MAX_PENDING_OF_CLIENT {
            world.send(client, &lost);
        }
        assert_eq!(world.received(), []);
        world.send(client, &lost);
        assert_eq!(world.received()[0].1.status, TIMED_OUT, "of one client");
        assert_eq!(
            world.core.counters.too_many_requests.get(),
            u64::from(number) + 1
        );
    }
    let late = world.connect(clients, "H2", 0);
    world.send(late, &lost);
    assert_eq!(world.received()[0].1.status, TIMED_OUT, "of all");
    for number in 0..clients {
        let id = world.core.by_peer[&peer(number)];
        assert!(
            world
                .control(&peer(number), id, Ctl::DISCONNECT, [0; 64])
                .is_some()
        );
    }
    assert_eq!(
        world.core.poll_timeout(),
        None,
        "nothing waits for who has left"
    );

    let mad = gmp(MgmtClass(0x32), Method::SEND, 0);
    let from = Request {
        slid: Lid(2),
        ..to(Lid(2), 1, mad)
    };
    for _ in 0..=MAX_ASKED {
        world.send(late, &from);
    }
    assert_eq!(world.core.nodes[1].asked.len(), MAX_ASKED);

    while world.core.clients.len() < MAX_CLIENTS - 1 {
        world.connect(1_000_000 + world.core.clients.len() as u32, "H1", 0);
    }
    let udp = |port| Peer::Udp(SocketAddr::from(([127, 0, 0, 1], port)));
    let info = ClientInfo::default();
    let old = world
        .connect_as(&udp(1), info.clone())
        .expect("the last place");
    assert_eq!(
        world.connect_as(&udp(2), info.clone()),
        Some(old),
        "the place of the one that is silent"
    );
    let last = udp(2);
    let mut on = [0; 64];
    on[0] = 1;
    assert!(
        world.control(&last, old, Ctl::SET_ISSM, on).is_none(),
        "H1 has one"
    );
    assert!(world.control(&last, old, Ctl::DISCONNECT, on).is_some());
    world.connect(7, "H1", 0);
    assert_eq!(world.connect_as(&udp(3), info), None);
    assert_eq!(world.core.counters.too_many_clients.get(), 1);
}

#[test]
fn a_node_tells_its_clients_of_itself_whatever_its_m_key() {
    for level in 0..=3 {
        let mut world = World::new();
        world.star.protect(level);
        for (number, node) in [(1, "H2"), (2, "S")] {
            let client = world.connect(number, node, 0);
            let mut ask = |kind| world.control(&peer(number), client, kind, [0; 64]);
            let info = ask(Ctl::GET_NODEINFO).expect("NodeInfo");
            let kind = NodeInfo::parse(&info).expect("NodeInfo").node_type;
            assert_eq!(kind == NodeType::SWITCH, node == "S");
            assert_eq!(ask(Ctl::GET_PKEYS).expect("P_Keys")[..2], [0xff, 0xff]);
            assert!(ask(Ctl::GET_VENDOR).is_some());
            let info = world.port_info(number, client);
            let shown = if level == 0 { M_KEY } else { 0 };
            assert_eq!((info.m_key, info.m_key_violations), (shown, 0));
            // It is the server that may ask, not its client.
            world.send(client, &node_info(&[], 1));
            world.advance(SMP_TIMEOUT * SMP_SENDS);
            let status = world.received()[0].1.status;
            assert_eq!(status, if level < 2 { 0 } else { TIMED_OUT });
        }
        let drops = world.star.hcas[1].drops().get(DropReason::MKeyMismatch);
        assert_eq!(drops > 0, level >= 2);
    }
    let mut world = World::new();
    let set = Smp::lid_routed(Method::SET, AttrId::NODE_DESCRIPTION, 0, 0);
    let before = world.star.state();
    world.star.hcas[1].query_sma(Box::new(set.with_data(b"x").emit()));
    world.run();
    assert_eq!(world.star.state(), before);
    assert_eq!(world.star.hcas[1].drops().get(DropReason::BadMethod), 1);
}
