use super::testing::{Manager, Net, Star, smp_send};
use super::*;
use proptest::prelude::*;
use std::time::Duration;
use verbs::{MadReceived, MadSend, Port};
use wire::mad::attr::*;
use wire::mad::{AttrId, MadBytes, MadHeader, MadStatus, Method, PERF_DATA_OFFSET, Smp, put};
use wire::packet::Packet;
use wire::{Guid, Lid, PKey, QKey, Qpn, ServiceLevel};

const SWITCH: SmiNode = SmiNode {
    is_switch: true,
    ports: 8,
};
const CA: SmiNode = SmiNode {
    is_switch: false,
    ports: 1,
};

fn shared_mad(name: &str) -> Option<MadBytes> {
    let path = format!(
        "{}/../../shared/mads/{name}.hex",
        env!("CARGO_MANIFEST_DIR")
    );
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("SKIPPED: no {path}");
        return None;
    };
    let bytes = text
        .lines()
        .filter_map(|l| l.split_once(": "))
        .flat_map(|(_, l)| l.split_whitespace());
    let bytes: Vec<u8> = bytes
        .map(|b| u8::from_str_radix(b, 16).expect("hex"))
        .collect();
    Some(bytes.try_into().expect("256 bytes"))
}

/// The hop pointer, hop count, direction and paths are what the recorded answer has.
fn same_route(ours: &MadBytes, recorded: &MadBytes) {
    // The upper half of the TID was overwritten by the recorded client's library.
    assert_eq!(ours[..8], recorded[..8]);
    assert_eq!(ours[12..64], recorded[12..64]);
    assert_eq!(ours[128..192], recorded[128..192], "initial path");
    // Entry 0 of the return path means nothing; that simulator writes into it.
    assert_eq!(ours[193..196], recorded[193..196], "return path");
}

#[test]
fn recorded_route_of_one_hop() {
    let (Some(mut mad), Some(recorded)) = (
        shared_mad("03-dr-smp-nodeinfo-get.req"),
        shared_mad("03-dr-smp-nodeinfo-get.resp"),
    ) else {
        return;
    };
    assert_eq!(CA.send(&mut mad, Lid::UNSET), Ok(Route::Out(1)));
    assert_eq!(SWITCH.receive(&mut mad, 2), Ok(Route::Here));
    let mut answer = Smp::parse(&mad)
        .expect("an SMP")
        .response(MadStatus::OK)
        .emit();
    assert_eq!(SWITCH.send(&mut answer, Lid::PERMISSIVE), Ok(Route::Out(2)));
    assert_eq!(CA.receive(&mut answer, 1), Ok(Route::Back));
    same_route(&answer, &recorded);
}

#[test]
fn recorded_route_of_two_hops() {
    let name = "04-dr-smp-nodeinfo-get-2hops";
    let (Some(mut mad), Some(recorded)) = (
        shared_mad(&format!("{name}.req")),
        shared_mad(&format!("{name}.resp")),
    ) else {
        return;
    };
    assert_eq!(CA.send(&mut mad, Lid::UNSET), Ok(Route::Out(1)));
    assert_eq!(SWITCH.receive(&mut mad, 2), Ok(Route::Out(3)));
    assert_eq!(CA.receive(&mut mad, 1), Ok(Route::Here));
    let mut answer = Smp::parse(&mad)
        .expect("an SMP")
        .response(MadStatus::OK)
        .emit();
    assert_eq!(CA.send(&mut answer, Lid::PERMISSIVE), Ok(Route::Out(1)));
    assert_eq!(SWITCH.receive(&mut answer, 3), Ok(Route::Out(2)));
    assert_eq!(CA.receive(&mut answer, 1), Ok(Route::Back));
    same_route(&answer, &recorded);
}

#[test]
fn broken_routes_are_refused() {
    let fresh = |path: &[u8]| Smp::directed(Method::GET, AttrId::NODE_INFO, 0, 1, path).emit();
    let bad = Err(DropReason::BadRoute);
    assert_eq!(
        CA.send(&mut fresh(&[2]), Lid::UNSET),
        bad,
        "a port that is not there"
    );
    assert_eq!(
        SWITCH.receive(&mut fresh(&[1]), 1),
        bad,
        "a beginning from a link"
    );
    assert_eq!(
        SWITCH.receive(&mut fresh(&[]), 1),
        bad,
        "an empty path from a link"
    );
    let mut mad = fresh(&[1, 9]);
    mad[6] = 1;
    assert_eq!(SWITCH.receive(&mut mad, 1), bad, "port 9 of 8");
    let mut mad = fresh(&[1, 1, 1]);
    mad[6] = 1;
    assert_eq!(
        CA.receive(&mut mad, 1),
        bad,
        "a channel adapter forwards nothing"
    );
    let mut mad = fresh(&[1]);
    mad[7] = 64;
    assert_eq!(SWITCH.receive(&mut mad, 1), bad, "too many hops");
}

#[test]
fn lid_routed_ends_of_a_directed_route() {
    let mut smp = Smp::directed(Method::GET, AttrId::NODE_INFO, 0, 1, &[1]);
    smp.dr_dlid = Lid(7);
    smp.set_hop_pointer(1);
    let mut mad = smp.emit();
    assert_eq!(SWITCH.receive(&mut mad, 2), Ok(Route::ByLid(Lid(7))));
    assert_eq!(CA.receive(&mut mad, 1), Ok(Route::Here));
    let mut answer = Smp::parse(&mad)
        .expect("an SMP")
        .response(MadStatus::OK)
        .emit();
    assert_eq!(CA.send(&mut answer, Lid(10)), Ok(Route::ByLid(Lid(10))));
    assert_eq!(SWITCH.receive(&mut answer, 3), Ok(Route::Out(2)));
}

#[test]
fn node_info_tells_the_port_of_entry() {
    let mut star = Star::bare();
    let Star { net, sm, .. } = &mut star;
    let mut ask = |path: &[u8]| {
        NodeInfo::parse(
            &sm.directed(net, path, Method::GET, AttrId::NODE_INFO, 0, &[])
                .expect("answer")
                .data,
        )
        .expect("record")
    };
    let own = ask(&[]);
    assert_eq!(
        (
            own.node_type,
            own.node_guid,
            own.port_guid,
            own.local_port_num
        ),
        (NodeType::CA, Guid(0x10_0000), Guid(0x10_0001), 1)
    );
    let switch = ask(&[1]);
    assert_eq!(
        (
            switch.node_type,
            switch.num_ports,
            switch.node_guid,
            switch.local_port_num
        ),
        (NodeType::SWITCH, 8, Guid(0x20_0000), 1)
    );
    let other = ask(&[1, 3]);
    assert_eq!(
        (other.node_guid, other.local_port_num),
        (Guid(0x10_0020), 1)
    );
    // A port without a link answers nothing.
    assert_eq!(
        sm.directed(net, &[1, 4], Method::GET, AttrId::NODE_INFO, 0, &[]),
        None
    );
    assert_eq!(star.switch.drops().get(DropReason::PortNotActive), 1);
}

#[test]
fn port_states() {
    let mut star = Star::bare();
    let Star { net, sm, hcas, .. } = &mut star;
    let lid = |i: &mut PortInfo| (i.lid, i.master_sm_lid) = (Lid(2), Lid(1));
    let path = &[1, 2];
    assert_eq!(sm.port_info(net, path, 1).port_state, PortState::INIT);
    assert!(sm.set_port(net, path, 1, lid).status().is_ok());
    // Init -> Active is not a step of the state machine; nothing of such a Set is taken.
    let answer = sm.set_port(net, path, 1, |i| {
        (i.port_state, i.lid) = (PortState::ACTIVE, Lid(5))
    });
    assert_eq!(answer.status(), MadStatus::INVALID_FIELD);
    let info = PortInfo::parse(&answer.data).expect("record");
    assert_eq!((info.port_state, info.lid), (PortState::INIT, Lid(2)));
    assert_eq!(
        sm.set_port(net, path, 1, |i| i.port_state = PortState::INIT)
            .status(),
        MadStatus::INVALID_FIELD
    );
    sm.activate(net, path, 1);
    assert_eq!(Port::attributes(&*hcas[1]).state, PortState::ACTIVE);
    assert_eq!(
        sm.set_port(net, path, 1, |i| i.port_state = PortState::ARMED)
            .status(),
        MadStatus::INVALID_FIELD
    );
    // Down answers first, then bounces.
    assert!(
        sm.set_port(net, path, 1, |i| i.port_state = PortState::DOWN)
            .status()
            .is_ok()
    );
    assert_eq!(Port::attributes(&*hcas[1]).state, PortState::DOWN);
    assert_eq!(
        sm.directed(net, path, Method::GET, AttrId::PORT_INFO, 1, &[]),
        None
    );
    net.advance(Duration::from_millis(49));
    assert_eq!(Port::attributes(&*hcas[1]).state, PortState::DOWN);
    net.advance(Duration::from_millis(1));
    assert_eq!(sm.port_info(net, path, 1).port_state, PortState::INIT);
    // A switch port can be disabled and polls again when told to.
    assert!(
        sm.set_port(net, &[1], 2, |i| i.port_physical_state =
            PortPhysicalState::DISABLED)
            .status()
            .is_ok()
    );
    net.advance(Duration::from_secs(1));
    let info = sm.port_info(net, &[1], 2);
    assert_eq!(
        (info.port_state, info.port_physical_state),
        (PortState::DOWN, PortPhysicalState::DISABLED)
    );
    assert!(
        sm.set_port(net, &[1], 2, |i| i.port_physical_state =
            PortPhysicalState::POLLING)
            .status()
            .is_ok()
    );
    net.advance(Duration::from_secs(1));
    assert_eq!(sm.port_info(net, &[1], 2).port_state, PortState::INIT);
}

#[test]
fn a_cut_link_takes_the_ports_down_even_if_nobody_looked_in_between() {
    let mut star = Star::up();
    star.net.cables[1].cut();
    star.net.cables[1].join();
    star.net.run();
    assert_eq!(star.switch.port_state(2), Some(PortState::INIT));
    assert_eq!(Port::attributes(&*star.hcas[1]).state, PortState::INIT);
    assert_eq!(star.hcas[1].counters().link_downed, 1);
}

#[test]
fn events_follow_the_attributes() {
    let mut star = Star::bare();
    let events: Arc<parking_lot::Mutex<Vec<verbs::PortEvent>>> = Arc::default();
    let into = events.clone();
    star.hcas[1].subscribe(Arc::new(move |e| into.lock().push(e)));
    let Star { net, sm, .. } = &mut star;
    let answer = sm.set_port(net, &[1, 2], 1, |i| {
        (i.lid, i.master_sm_lid, i.client_reregister, i.gid_prefix) =
            (Lid(2), Lid(1), true, 0xfec0 << 48)
    });
    assert!(
        PortInfo::parse(&answer.data)
            .expect("record")
            .client_reregister,
        "o14-12.2.1"
    );
    assert!(!sm.port_info(net, &[1, 2], 1).client_reregister);
    sm.activate(net, &[1, 2], 1);
    let mut keys = PKeyTable::default();
    keys.p_key[..2].copy_from_slice(&[PKey(0xffff), PKey(0x8001)]);
    sm.directed(
        net,
        &[1, 2],
        Method::SET,
        AttrId::P_KEY_TABLE,
        0,
        &keys.emit(),
    );
    sm.set_port(net, &[1, 2], 1, |i| i.port_state = PortState::DOWN);
    use verbs::PortEvent::*;
    assert_eq!(
        *events.lock(),
        [
            LidChange,
            SmChange,
            GidChange,
            ClientReregister,
            Active,
            PKeyChange,
            Error
        ]
    );
    assert_eq!(
        Port::attributes(&*star.hcas[1]).pkey_index(PKey(0x0001)),
        Some(1)
    );
}

#[test]
fn unsupported_requests_say_so() {
    let mut star = Star::bare();
    let Star { net, sm, .. } = &mut star;
    let mut status = |method, attr, modifier| {
        sm.directed(net, &[1], method, attr, modifier, &[])
            .map(|a| a.status())
    };
    assert_eq!(
        status(Method(0x44), AttrId::NODE_INFO, 0),
        Some(MadStatus(0x0008))
    );
    assert_eq!(
        status(Method::GET, AttrId(0x7777), 0),
        Some(MadStatus(0x000c))
    );
    assert_eq!(
        status(Method::SET, AttrId::NODE_INFO, 0),
        Some(MadStatus(0x000c))
    );
    assert_eq!(
        status(Method::GET, AttrId::PORT_INFO, 9),
        Some(MadStatus::INVALID_FIELD)
    );
    assert_eq!(
        status(Method::GET, AttrId::P_KEY_TABLE, 1),
        Some(MadStatus::INVALID_FIELD)
    );
    assert_eq!(
        status(Method::GET, AttrId::VL_ARBITRATION_TABLE, 1),
        Some(MadStatus::INVALID_FIELD),
        "half 0 does not exist"
    );
    assert_eq!(
        status(Method::GET, AttrId::VL_ARBITRATION_TABLE, 1 << 16 | 1),
        Some(MadStatus::OK)
    );
}

#[test]
fn m_key_guards_and_its_lease_runs_out() {
    let mut star = Star::up();
    let Star { net, sm, hcas, .. } = &mut star;
    let path = &[1, 2];
    sm.set_port(net, path, 1, |i| {
        (i.m_key, i.m_key_protect_bits, i.m_key_lease_period) = (7, 2, 3)
    });
    let name = |text| NodeDescription::new(text).emit();
    assert_eq!(
        sm.directed(
            net,
            path,
            Method::SET,
            AttrId::NODE_DESCRIPTION,
            0,
            &name("x")
        ),
        None
    );
    assert_eq!(
        sm.directed(net, path, Method::GET, AttrId::NODE_INFO, 0, &[]),
        None,
        "protection 2 hides everything"
    );
    assert_eq!(hcas[1].drops().get(DropReason::MKeyMismatch), 2);
    let traps = traps(sm);
    assert_eq!(
        traps.iter().map(|t| t.trap_number).collect::<Vec<_>>(),
        [TrapNumber::BAD_M_KEY],
        "one in a second"
    );
    sm.m_key = 7;
    assert_eq!(sm.port_info(net, path, 1).m_key_violations, 2);
    sm.m_key = 0;
    assert_eq!(
        sm.directed(
            net,
            path,
            Method::SET,
            AttrId::NODE_DESCRIPTION,
            0,
            &name("x")
        ),
        None
    );
    net.advance(Duration::from_secs(3));
    assert!(
        sm.directed(net, path, Method::GET, AttrId::NODE_INFO, 0, &[])
            .is_some(),
        "the lease is over"
    );
}

/// Takes the traps out of the manager's inbox.
fn traps(sm: &Manager) -> Vec<Notice> {
    raw_traps(sm)
        .iter()
        .filter_map(|t| Notice::parse(&t.mad[64..]))
        .collect()
}

fn raw_traps(sm: &Manager) -> Vec<MadReceived> {
    let mut inbox = sm.inbox.lock();
    let (traps, rest) = inbox.drain(..).partition(|m| m.mad[3] == Method::TRAP.0);
    *inbox = rest;
    let traps: std::collections::VecDeque<_> = traps;
    traps.into()
}

#[test]
fn trap_128_repeats_until_repressed() {
    let mut star = Star::up();
    let Star { net, sm, .. } = &mut star;
    traps(sm);
    net.cables[2].cut();
    net.run();
    let first = raw_traps(sm);
    assert_eq!(first.len(), 1);
    let notice = Notice::parse(&first[0].mad[64..]).expect("record");
    assert_eq!(
        (notice.trap_number, notice.producer_type, notice.issuer_lid),
        (TrapNumber::LINK_STATE_CHANGE, ProducerType::SWITCH, Lid(10))
    );
    net.advance(Duration::from_secs(1));
    net.advance(Duration::from_secs(2));
    let again = raw_traps(sm);
    assert_eq!(again.len(), 2, "after 1 s and 2 s more");
    assert!(
        again.iter().all(|t| t.mad[8..16] == first[0].mad[8..16]),
        "with the same TID"
    );
    let mut repress = Smp::parse(&first[0].mad[..]).expect("an SMP");
    repress.header.method = Method::TRAP_REPRESS;
    sm.agent.send(smp_send(&repress, Lid(10)));
    net.advance(Duration::from_secs(1000));
    assert!(traps(sm).is_empty());
    // PortStateChange is set until 1 is written.
    let change = |sm: &mut Manager, net: &mut Net, method, info: SwitchInfo| {
        SwitchInfo::parse(
            &sm.directed(net, &[1], method, AttrId::SWITCH_INFO, 0, &info.emit())
                .expect("answer")
                .data,
        )
        .expect("record")
    };
    let info = change(sm, net, Method::GET, SwitchInfo::default());
    assert!(info.port_state_change);
    assert!(
        change(
            sm,
            net,
            Method::SET,
            SwitchInfo {
                port_state_change: false,
                ..info
            }
        )
        .port_state_change
    );
    assert!(!change(sm, net, Method::SET, info).port_state_change);
}

#[test]
fn an_unanswered_trap_is_given_up() {
    let mut star = Star::up();
    traps(&star.sm);
    let before = star.switch.drops().get(DropReason::TrapUnanswered);
    star.net.cables[2].cut();
    star.net.advance(Duration::from_secs(1000));
    assert_eq!(traps(&star.sm).len(), 8);
    assert_eq!(
        star.switch.drops().get(DropReason::TrapUnanswered),
        before + 1
    );
}

#[test]
fn trap_144_when_a_manager_comes_and_goes() {
    let mut star = Star::up();
    traps(&star.sm);
    let other = Manager::new(&*star.hcas[1]);
    assert!(
        star.hcas[1].register_sm(Arc::new(|_| ())).is_err(),
        "one at a time"
    );
    star.net.run();
    let seen = traps(&star.sm);
    assert_eq!(
        (seen.len(), seen[0].trap_number, seen[0].issuer_lid),
        (1, TrapNumber::CAPABILITY_CHANGE, Lid(2))
    );
    assert!(
        star.sm
            .port_info(&mut star.net, &[1, 2], 1)
            .capability_mask
            .contains(CapabilityMask::IS_SM)
    );
    drop(other);
    star.net.run();
    assert!(
        !star
            .sm
            .port_info(&mut star.net, &[1, 2], 1)
            .capability_mask
            .contains(CapabilityMask::IS_SM)
    );
    assert!(!star.hcas[1].resources().subnet_manager);
}

#[test]
fn sm_info_goes_to_the_manager_and_its_answer_back() {
    let mut star = Star::up();
    let other = Manager::new(&*star.hcas[2]);
    star.net.run();
    let request = Smp::directed(Method::GET, AttrId::SM_INFO, 0, 77, &[1, 3]);
    star.sm.agent.send(smp_send(&request, Lid::PERMISSIVE));
    star.net.run();
    let asked = other.inbox.lock().pop_back().expect("the request");
    let answer = Smp::parse(&asked.mad[..])
        .expect("an SMP")
        .response(MadStatus::OK);
    other.agent.send(asked.reply(Box::new(answer.emit())));
    star.net.run();
    let got = star.sm.inbox.lock().pop_back().expect("the answer");
    let got = Smp::parse(&got.mad[..]).expect("an SMP");
    assert_eq!(
        (got.header.tid, got.header.method, got.hop_pointer()),
        (77, Method::GET_RESP, 0)
    );
}

fn perf(method: Method, attr: AttrId, data: &[u8], tid: u64) -> MadBytes {
    let mut mad = [0; 256];
    put(
        &mut mad,
        0,
        &MadHeader::request(wire::mad::MgmtClass::PERF_MGT, method, attr, 0, tid).emit(),
    );
    put(&mut mad, PERF_DATA_OFFSET, data);
    mad
}

#[test]
fn counters_through_mads() {
    let mut star = Star::up();
    let inbox: Arc<parking_lot::Mutex<Vec<MadReceived>>> = Arc::default();
    let into = inbox.clone();
    let agent =
        Port::register_mad_agent(&*star.hcas[0], &[], Arc::new(move |m| into.lock().push(m)))
            .expect("an agent");
    let mut ask = |dlid, method, attr, data: &[u8]| {
        let mad = Box::new(perf(method, attr, data, u64::from(agent.tid_high()) << 32));
        let grh = None;
        agent.send(MadSend {
            dlid,
            sl: ServiceLevel(0),
            remote_qpn: Qpn::GSI,
            q_key: QKey::GSI,
            p_key: PKey::DEFAULT_FULL,
            grh,
            mad,
        });
        star.net.run();
        inbox.lock().pop().expect("an answer").mad
    };
    // The HCA's own port, a switch port, and all switch ports together.
    for (lid, select) in [(1, 1), (2, 1), (10, 2), (10, 255)] {
        let select = PortCounters {
            port_select: select,
            counter_select: 0xffff,
            ..PortCounters::default()
        };
        let answer = ask(Lid(lid), Method::GET, AttrId::PORT_COUNTERS, &select.emit());
        let counters = PortCounters::parse(&answer[64..]).expect("record");
        assert!(
            counters.port_xmit_pkts > 5,
            "port {}: {counters:?}",
            select.port_select
        );
        assert_eq!(
            counters.port_xmit_data,
            counters.port_xmit_pkts * 72,
            "MADs have 288 bytes before the VCRC"
        );
    }
    let select = PortCounters {
        port_select: 1,
        counter_select: 1 << 14,
        ..PortCounters::default()
    };
    let cleared =
        PortCounters::parse(&ask(Lid(2), Method::SET, AttrId::PORT_COUNTERS, &select.emit())[64..])
            .expect("record");
    assert!(cleared.port_xmit_pkts == 0 && cleared.port_rcv_pkts > 0);
    let select = PortCountersExtended {
        port_select: 1,
        ..PortCountersExtended::default()
    };
    let extended = PortCountersExtended::parse(
        &ask(
            Lid(2),
            Method::GET,
            AttrId::PORT_COUNTERS_EXTENDED,
            &select.emit(),
        )[64..],
    )
    .expect("record");
    assert!(
        extended.port_xmit_pkts > 5,
        "each attribute has its own zero"
    );
    let bad = PortCounters {
        port_select: 9,
        ..PortCounters::default()
    };
    let answer = ask(Lid(10), Method::GET, AttrId::PORT_COUNTERS, &bad.emit());
    assert_eq!(
        MadHeader::parse(&answer[..]).expect("header").status,
        MadStatus::INVALID_FIELD
    );
}

fn any_mad() -> impl Strategy<Value = MadBytes> {
    let class = prop_oneof![
        Just(0x01u8),
        Just(0x81),
        Just(0x04),
        Just(0x03),
        any::<u8>()
    ];
    let method = prop_oneof![
        Just(1u8),
        Just(2),
        Just(5),
        Just(7),
        Just(0x81),
        any::<u8>()
    ];
    let attr = prop_oneof![0x10u16..0x21, any::<u16>()];
    let modifier = prop_oneof![0u32..4, any::<u32>()];
    let hops = (0u8..6, 0u8..6, prop_oneof![Just(0u8), Just(0x80)]);
    (
        class,
        method,
        attr,
        modifier,
        hops,
        proptest::collection::vec(any::<u8>(), 256),
        any::<bool>(),
    )
        .prop_map(|(class, method, attr, modifier, hops, noise, permissive)| {
            let mut mad: MadBytes = noise.try_into().expect("256 bytes");
            mad[..4].copy_from_slice(&[1, class, 1, method]);
            (mad[6], mad[7], mad[4]) = hops;
            mad[16..18].copy_from_slice(&attr.to_be_bytes());
            mad[20..24].copy_from_slice(&modifier.to_be_bytes());
            if permissive {
                mad[32..36].fill(0xff);
                for at in (128..256).step_by(2) {
                    mad[at] %= 4;
                }
            }
            mad
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever comes, nothing panics, and the subnet still answers where its ports are up.
    #[test]
    fn hostile_packets(mads in proptest::collection::vec((any_mad(), 0usize..4, any::<[u16; 3]>(), 0u32..5, any::<u8>(), 0usize..258), 1..20)) {
        let mut star = Star::up();
        for (mad, at, [slid, dlid, p_key], qp, lane, len) in &mads {
            let mut packet = Packet {
                lrh: wire::packet::Lrh { vl: if lane % 2 == 0 { 15 } else { 0 }, slid: Lid(*slid), ..Default::default() },
                grh: (lane % 8 == 1).then(Default::default),
                bth: wire::packet::Bth { opcode: wire::packet::Opcode(if lane % 16 == 3 { *lane } else { 0x64 }), p_key: PKey(*p_key), dest_qp: Qpn(*qp), ..Default::default() },
                ext: wire::packet::Extended { deth: (lane % 16 != 5).then_some(wire::packet::Deth { q_key: QKey::GSI, src_qp: Qpn(*qp) }), ..Default::default() },
                payload: if *len > 255 { mad } else { &mad[..*len] },
                lso: (*lane == 7).then_some(wire::packet::Lso { header_len: *slid, mss: *dlid }),
                icrc: None,
                hops: *lane,
            };
            packet.lrh.dlid = Lid(match dlid % 8 { 0..3 => 0xffff, 3 => 10, 4 => 2, _ => *dlid });
            use crate::link::LinkSink;
            match at {
                0 => star.hcas[1].receive(&[packet, packet]),
                n => star.switch.port(*n as u8).receive(&[packet]),
            }
            star.net.run();
        }
        star.net.advance(Duration::from_secs(1));
    }
}
