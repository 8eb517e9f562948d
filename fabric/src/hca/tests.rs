use super::*;
use crate::node::testing::{Manager, Net, Star};
use verbs::{GrhAttributes, MadReceived, MadSend, UdSend};
use wire::mad::attr::PKeyTable;
use wire::mad::{AttrId, Method};
use wire::packet::Lso;
use wire::{Lid, PKey, QKey, RateCode, ServiceLevel};

const GROUP: Gid = Gid([
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
]);
const MLID: Lid = Lid(0xc005);
const Q_KEY: QKey = QKey(0xb1b);

type Inbox = Arc<Mutex<Vec<(Lid, Qpn, Option<Gid>, Vec<u8>)>>>;

/// A queue pair that keeps what it receives.
fn queue_pair(hca: &Hca, init: UdInit) -> (Arc<dyn UdQueuePair>, Inbox) {
    let inbox = Inbox::default();
    let into = inbox.clone();
    let keep = move |batch: &[UdReceive<'_>]| {
        into.lock().extend(
            batch
                .iter()
                .map(|r| (r.slid, r.src_qp, r.grh.map(|g| g.1), r.payload.to_vec())),
        )
    };
    (
        hca.create_ud_qp(init, Arc::new(keep))
            .expect("a queue pair"),
        inbox,
    )
}

fn plain(hca: &Hca) -> (Arc<dyn UdQueuePair>, Inbox) {
    queue_pair(
        hca,
        UdInit {
            q_key: Q_KEY,
            ..UdInit::default()
        },
    )
}

fn ah(hca: &Hca, dlid: Lid, dgid: Option<Gid>) -> AddressHandle {
    let grh = dgid.map(|dgid| GrhAttributes {
        dgid,
        sgid_index: 0,
        flow_label: 0,
        hop_limit: 1,
        traffic_class: 0,
    });
    hca.create_ah(AhAttributes {
        dlid,
        sl: ServiceLevel(0),
        src_path_bits: 0,
        rate: RateCode::GBPS_10,
        grh,
    })
    .expect("an address handle")
}

fn send(qp: &dyn UdQueuePair, ah: &AddressHandle, remote_qpn: Qpn, payload: &[u8]) {
    qp.post_send(&[UdSend {
        ah,
        remote_qpn,
        remote_qkey: Q_KEY,
        payload,
        lso: None,
    }]);
}

/// Programs the MFT of the star's switch: `MLID` leads to `ports`.
fn program_group(star: &mut Star, ports: u16) {
    let mut table = wire::mad::attr::MulticastForwardingTable::default();
    table.port_mask[5] = ports;
    let answer = star.sm.directed(
        &mut star.net,
        &[1],
        Method::SET,
        AttrId::MULTICAST_FORWARDING_TABLE,
        0,
        &table.emit(),
    );
    assert_eq!(answer.expect("an answer").data, table.emit());
}

#[test]
fn unicast_crosses_the_subnet_in_batches() {
    let star = Star::up();
    let (a, _) = plain(&star.hcas[1]);
    let (b, inbox) = plain(&star.hcas[2]);
    let handle = ah(&star.hcas[1], Lid(3), None);
    let payloads: Vec<[u8; 2]> = (0..100u16).map(u16::to_be_bytes).collect();
    let sends: Vec<_> = payloads
        .iter()
        .map(|p| UdSend {
            ah: &handle,
            remote_qpn: b.qpn(),
            remote_qkey: Q_KEY,
            payload: p,
            lso: None,
        })
        .collect();
    a.post_send(&sends);
    let got = inbox.lock();
    assert_eq!(got.len(), 100);
    assert!(
        got.iter()
            .zip(&payloads)
            .all(|(g, p)| g == &(Lid(2), a.qpn(), None, p.to_vec()))
    );
}

#[test]
fn nothing_is_sent_or_taken_unless_active() {
    let mut net = Net::new();
    let (one, switch) = (net.hca(1), net.switch(2, 2));
    net.cable(&one, &switch, 1);
    let (qp, _) = plain(&one);
    send(&*qp, &ah(&one, Lid(3), None), Qpn(9), b"x");
    assert_eq!(
        (
            one.drops().get(DropReason::PortNotActive),
            one.counters().xmit_discards
        ),
        (1, 1)
    );
    assert_eq!(switch.counters(1).expect("port 1").rcv_pkts, 0);
}

#[test]
fn own_lid_loops_inside() {
    let star = Star::up();
    let (a, _) = plain(&star.hcas[1]);
    let (b, inbox) = plain(&star.hcas[1]);
    let before = star.hcas[1].counters().xmit_pkts;
    send(&*a, &ah(&star.hcas[1], Lid(2), None), b.qpn(), b"self");
    assert_eq!(inbox.lock().len(), 1);
    assert_eq!(star.hcas[1].counters().xmit_pkts, before);
}

#[test]
fn keys_are_checked_counted_and_trapped() {
    let mut star = Star::up();
    let mut keys = PKeyTable::default();
    keys.p_key[..3].copy_from_slice(&[PKey(0xffff), PKey(0x8001), PKey(0x0002)]);
    for path in [&[1, 2][..], &[1, 3]] {
        star.sm.directed(
            &mut star.net,
            path,
            Method::SET,
            AttrId::P_KEY_TABLE,
            0,
            &keys.emit(),
        );
    }
    let (default, _) = plain(&star.hcas[1]);
    let (other, _) = queue_pair(
        &star.hcas[1],
        UdInit {
            pkey_index: 1,
            q_key: Q_KEY,
            qpn: None,
        },
    );
    let (limited, _) = queue_pair(
        &star.hcas[1],
        UdInit {
            pkey_index: 2,
            q_key: Q_KEY,
            qpn: None,
        },
    );
    let (target, inbox) = plain(&star.hcas[2]);
    let handle = ah(&star.hcas[1], Lid(3), None);
    star.sm.inbox.lock().clear();
    send(&*other, &handle, target.qpn(), b"wrong partition");
    assert!(inbox.lock().is_empty());
    default.post_send(&[UdSend {
        ah: &handle,
        remote_qpn: target.qpn(),
        remote_qkey: QKey(1),
        payload: b"wrong key",
        lso: None,
    }]);
    assert!(inbox.lock().is_empty());
    send(&*default, &handle, target.qpn(), b"right");
    assert_eq!(inbox.lock().len(), 1);
    let drops = star.hcas[2].drops();
    assert_eq!(
        (
            drops.get(DropReason::PKeyMismatch),
            drops.get(DropReason::QKeyMismatch)
        ),
        (1, 1)
    );
    // Two limited members may not talk; a full one and a limited one may, once the table says so.
    target.set_pkey_index(2).expect("entry 2 is there");
    send(&*limited, &handle, target.qpn(), b"limited to limited");
    assert_eq!(inbox.lock().len(), 1);
    keys.p_key[2] = PKey(0x8002);
    star.sm.directed(
        &mut star.net,
        &[1, 3],
        Method::SET,
        AttrId::P_KEY_TABLE,
        0,
        &keys.emit(),
    );
    send(&*limited, &handle, target.qpn(), b"limited to full");
    assert_eq!(inbox.lock().len(), 2);
    let info = star.sm.port_info(&mut star.net, &[1, 3], 1);
    assert_eq!((info.p_key_violations, info.q_key_violations), (2, 1));
    let trap = star
        .sm
        .inbox
        .lock()
        .iter()
        .find(|m| m.mad[3] == Method::TRAP.0)
        .map(|m| m.mad.clone())
        .expect("a trap");
    let notice = wire::mad::attr::Notice::parse(&trap[64..]).expect("record");
    let details = wire::mad::attr::BadKey::parse(&notice.data_details).expect("record");
    assert_eq!(
        (
            notice.trap_number.0,
            details.lid1,
            details.lid2,
            details.key
        ),
        (257, Lid(2), Lid(3), 0x8001)
    );
    assert!(matches!(
        target.set_pkey_index(3),
        Err(VerbsError::BadPKeyIndex(3))
    ));
    // IBA 10.2.4: a controlled Q_Key in the send means the sender's own.
    target.set_pkey_index(0).expect("entry 0 is there");
    default.post_send(&[UdSend {
        ah: &handle,
        remote_qpn: target.qpn(),
        remote_qkey: QKey(0x8000_0000),
        payload: b"own key",
        lso: None,
    }]);
    assert_eq!(inbox.lock().len(), 3);
}

#[test]
fn multicast_reaches_every_member_but_the_sender() {
    let mut star = Star::up();
    program_group(&mut star, 0b1100);
    let members: Vec<_> = [1, 1, 2, 2, 0]
        .iter()
        .map(|i| plain(&star.hcas[*i]))
        .collect();
    // Not the last queue pair of HCA 2; and HCA 0 is attached, but its port is not in the MFT.
    for i in [0, 1, 2, 4] {
        members[i].0.attach_multicast(GROUP, MLID).expect("a group");
    }
    let handle = ah(&star.hcas[1], MLID, Some(GROUP));
    send(&*members[0].0, &handle, Qpn::MULTICAST, b"all");
    let counts: Vec<_> = members.iter().map(|m| m.1.lock().len()).collect();
    assert_eq!(counts, [0, 1, 1, 0, 0]);
    assert_eq!(
        members[2].1.lock()[0],
        (Lid(2), members[0].0.qpn(), Some(GROUP), b"all".to_vec())
    );
    assert_eq!(star.hcas[1].counters().multicast_xmit_pkts, 1);
    assert_eq!(
        star.hcas[1].counters().multicast_rcv_pkts,
        0,
        "the switch returns nothing"
    );
    // The group is the MGID: another one on the same MLID is not for its members.
    let mut other = GROUP;
    other.0[15] = 1;
    send(
        &*members[0].0,
        &ah(&star.hcas[1], MLID, Some(other)),
        Qpn::MULTICAST,
        b"other",
    );
    assert_eq!(members[2].1.lock().len(), 1);
    assert_eq!(star.hcas[2].drops().get(DropReason::NoGroupMember), 1);
    members[2]
        .0
        .detach_multicast(GROUP, MLID)
        .expect("attached before");
    assert_eq!(
        members[2].0.detach_multicast(GROUP, MLID),
        Err(VerbsError::BadGroup(GROUP))
    );
    send(&*members[0].0, &handle, Qpn::MULTICAST, b"left");
    assert_eq!(members[2].1.lock().len(), 1);
}

#[test]
fn length_is_bounded_by_the_active_mtu_and_super_packets_count_as_their_segments() {
    let mut star = Star::up();
    star.sm.set_port(&mut star.net, &[1, 2], 1, |i| {
        i.neighbor_mtu = MtuCode::MTU_2048
    });
    let (a, _) = plain(&star.hcas[1]);
    let (b, inbox) = plain(&star.hcas[2]);
    let handle = ah(&star.hcas[1], Lid(3), None);
    send(&*a, &handle, b.qpn(), &[0; 2049]);
    assert_eq!(star.hcas[1].drops().get(DropReason::TooLong), 1);
    let before = star.hcas[1].counters();
    let lso = |header_len, mss| UdSend {
        ah: &handle,
        remote_qpn: b.qpn(),
        remote_qkey: Q_KEY,
        payload: &[0; 4044],
        lso: Some(Lso { header_len, mss }),
    };
    a.post_send(&[lso(44, 2048), lso(44, 0), lso(5000, 1)]);
    assert_eq!(star.hcas[1].drops().get(DropReason::TooLong), 4);
    a.post_send(&[lso(44, 1000)]);
    assert_eq!(inbox.lock().len(), 1, "in one piece");
    let after = star.hcas[1].counters();
    assert_eq!(after.xmit_pkts - before.xmit_pkts, 4);
    // Four times LRH, BTH, DETH, ICRC, header and 1000 bytes.
    assert_eq!(
        after.xmit_data - before.xmit_data,
        4 * (8 + 12 + 8 + 4 + 44 + 1000) / 4
    );
}

#[test]
fn numbers_of_queue_pairs() {
    let mut net = Net::new();
    let hca = net.hca(1);
    let wanted = |qpn| {
        hca.create_ud_qp(
            UdInit {
                qpn: Some(Qpn(qpn)),
                ..UdInit::default()
            },
            Arc::new(|_: &[UdReceive<'_>]| ()),
        )
    };
    for reserved in [0, 1, 0xff_ffff, 0x100_0000] {
        assert_eq!(
            wanted(reserved).err(),
            Some(VerbsError::QpnInUse(Qpn(reserved)))
        );
    }
    let first = wanted(0x49).expect("free");
    assert_eq!(wanted(0x49).err(), Some(VerbsError::QpnInUse(Qpn(0x49))));
    let (a, b) = (plain(&hca).0, plain(&hca).0);
    assert_eq!(
        (a.qpn(), b.qpn()),
        (Qpn(0x48), Qpn(0x4a)),
        "0x49 is skipped"
    );
    drop(first);
    assert!(wanted(0x49).is_ok());
    let bad = hca.create_ud_qp(
        UdInit {
            pkey_index: 1,
            ..UdInit::default()
        },
        Arc::new(|_: &[UdReceive<'_>]| ()),
    );
    assert_eq!(bad.err(), Some(VerbsError::BadPKeyIndex(1)));
}

#[test]
fn nothing_is_left_of_ten_thousand_queue_pairs() {
    let mut net = Net::new();
    let hca = net.hca(1);
    let watched = Arc::new(());
    for i in 0..10_000 {
        let held = watched.clone();
        let qp = hca
            .create_ud_qp(
                UdInit::default(),
                Arc::new(move |_: &[UdReceive<'_>]| drop(held.clone())),
            )
            .expect("a queue pair");
        qp.attach_multicast(GROUP, MLID).expect("a group");
        if i == 0 {
            let _ah = ah(&hca, Lid(2), None);
            let held = hca.resources();
            assert_eq!(held.queue_pairs[0].groups, [GROUP]);
            assert_eq!(held.counts().map(|(_, n)| n), [1, 1, 0, 0, 1]);
        }
        drop(Port::register_mad_agent(
            &*hca,
            &[MgmtClass::SUBN_ADM],
            Arc::new(|_: MadReceived| ()),
        ));
    }
    assert_eq!(hca.resources(), HcaResources::default());
    assert!(hca.table.load().groups.is_empty());
    assert_eq!(Arc::strong_count(&watched), 1, "handlers are released");
    drop(net);
    assert_eq!(
        Arc::strong_count(&hca),
        1,
        "nothing else keeps the HCA alive"
    );
}

#[test]
fn mads_find_their_agents() {
    let star = Star::up();
    let agent = |hca: &Hca, classes: &[MgmtClass]| {
        let inbox: Arc<Mutex<Vec<MadReceived>>> = Arc::default();
        let into = inbox.clone();
        (
            Port::register_mad_agent(hca, classes, Arc::new(move |m| into.lock().push(m)))
                .expect("an agent"),
            inbox,
        )
    };
    let (client, answers) = agent(&star.hcas[1], &[]);
    let (_one, first) = agent(&star.hcas[2], &[MgmtClass::SUBN_ADM]);
    let (two, second) = agent(&star.hcas[2], &[MgmtClass::SUBN_ADM, MgmtClass::COM_MGT]);
    assert_ne!(client.tid_high(), 0);
    let mad = |class: u8, method: Method, tid_high: u32| {
        let mut mad = Box::new([0; 256]);
        mad[..4].copy_from_slice(&[1, class, 2, method.0]);
        mad[8..12].copy_from_slice(&tid_high.to_be_bytes());
        mad
    };
    let request = |mad| MadSend {
        dlid: Lid(3),
        sl: ServiceLevel(0),
        remote_qpn: Qpn::GSI,
        q_key: QKey::GSI,
        p_key: PKey::DEFAULT_FULL,
        grh: None,
        mad,
    };
    // A report goes to every agent of the class, a CM message to the one that serves it.
    client.send(request(mad(3, Method::REPORT, client.tid_high())));
    client.send(request(mad(7, Method::SEND, client.tid_high())));
    assert_eq!((first.lock().len(), second.lock().len()), (1, 2));
    // The answer comes back by its TID and to no one else.
    let report = second.lock()[0].clone();
    two.send(report.reply(mad(3, Method::REPORT_RESP, client.tid_high())));
    two.send(report.reply(mad(3, Method::REPORT_RESP, 0xdead)));
    assert_eq!(
        answers.lock().iter().map(|m| m.slid).collect::<Vec<_>>(),
        [Lid(3)]
    );
    let (there, here) = (star.hcas[2].drops(), star.hcas[1].drops());
    assert_eq!(here.get(DropReason::NoAgent), 1);
    client.send(request(mad(6, Method::GET, 0)));
    assert_eq!(there.get(DropReason::NoClassAgent), 1);
    // A wrong Q_Key, a partition that is not there.
    client.send(MadSend {
        q_key: QKey(1),
        ..request(mad(3, Method::REPORT, 0))
    });
    client.send(MadSend {
        p_key: PKey(0x8123),
        ..request(mad(3, Method::REPORT, 0))
    });
    assert_eq!(
        (
            there.get(DropReason::QKeyMismatch),
            here.get(DropReason::NoPKey)
        ),
        (1, 1)
    );
    // To an own LID it stays inside.
    two.send(request(mad(3, Method::REPORT, 0)));
    assert_eq!(first.lock().len(), 2);
}

#[test]
fn the_end_is_told() {
    let mut net = Net::new();
    let hca = net.hca(1);
    let events: Arc<Mutex<Vec<PortEvent>>> = Arc::default();
    let into = events.clone();
    hca.subscribe(Arc::new(move |e| into.lock().push(e)));
    hca.shut_down();
    hca.shut_down();
    assert_eq!(*events.lock(), [PortEvent::DeviceFatal]);
    let none = hca.create_ud_qp(UdInit::default(), Arc::new(|_: &[UdReceive<'_>]| ()));
    assert_eq!(none.err(), Some(VerbsError::DeviceGone));
    assert!(hca.register_sm(Arc::new(|_: MadReceived| ())).is_err());
}

#[test]
fn management_by_lid_and_by_a_manager_without_hops() {
    let mut star = Star::up();
    let Star { net, sm, .. } = &mut star;
    for lid in [1, 2, 10] {
        let answer = sm.by_lid(net, Lid(lid), Method::GET, AttrId::NODE_INFO, 0, &[]);
        assert!(answer.is_some_and(|a| a.status().is_ok()), "LID {lid}");
    }
    assert!(
        sm.by_lid(net, Lid(4), Method::GET, AttrId::NODE_INFO, 0, &[])
            .is_none()
    );
    assert_eq!(star.switch.drops().get(DropReason::NoRoute), 1);
    // A manager on a switch: directed routes begin at port 0.
    let mut on_switch = Manager::new(&*star.switch);
    let Star { net, .. } = &mut star;
    for path in [&[][..], &[1], &[3]] {
        assert!(
            on_switch
                .directed(net, path, Method::GET, AttrId::NODE_INFO, 0, &[])
                .is_some(),
            "{path:?}"
        );
    }
}
