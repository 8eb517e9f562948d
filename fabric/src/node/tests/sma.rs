//! Attributes that a manager sets, and what they do.

use super::testing::datagram;
use super::traps::traps;
use super::*;
use wire::LinkRate;

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

/// IBA 14.2.5.6.
#[test]
fn what_is_enabled_counts_when_the_link_trains_again() {
    let mut star = Star::bare();
    let Star { net, sm, .. } = &mut star;
    let path = &[1];
    let mut enable = |width, speed, extended| {
        let answer = sm.set_port(net, path, 2, |i| {
            i.link_width_enabled = LinkWidth(width);
            (i.link_speed_enabled, i.link_speed_ext_enabled) = (speed, extended);
        });
        assert_eq!(answer.status(), MadStatus::OK);
        let before = LinkRate::active(&sm.port_info(net, path, 2));
        let down = |i: &mut PortInfo| i.port_state = PortState::DOWN;
        assert!(sm.set_port(net, path, 2, down).status().is_ok());
        net.advance(Duration::from_secs(1));
        [before, LinkRate::active(&sm.port_info(net, path, 2))]
    };
    let rates = |before: &str, after: &str| [before.parse().ok(), after.parse().ok()];
    // LinkSpeedExtEnabled 30: no extended speed.
    assert_eq!(enable(1, 3, 30), rates("4xEDR", "1xDDR"));
    assert_eq!(enable(3, 15, 1), rates("1xDDR", "4xFDR"));
    // All that is supported.
    assert_eq!(enable(255, 15, 31), rates("4xFDR", "4xEDR"));
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

/// A data packet of `len` bytes from LID 1 to `dlid`.
fn data(dlid: Lid, len: usize) -> Packet<'static> {
    static ZEROS: [u8; 5000] = [0; 5000];
    datagram(Lid(1), dlid, &ZEROS[..len])
}

/// A link that writes down what is sent into it.
#[derive(Default)]
struct Recorder(parking_lot::Mutex<Vec<(u8, usize)>>);

impl crate::link::Link for Recorder {
    fn transmit(&self, packets: &[Packet<'_>]) {
        let seen = packets.iter().map(|p| (p.lrh.vl, p.payload.len()));
        self.0.lock().extend(seen);
    }
    fn port_state(&self, _state: PortState) {}
}

#[test]
fn data_makes_an_armed_port_active() {
    let mut star = Star::up();
    let Star { net, sm, hcas, .. } = &mut star;
    let path = &[1, 2];
    sm.set_port(net, path, 1, |i| i.port_state = PortState::DOWN);
    net.advance(Duration::from_millis(50));
    sm.set_port(net, path, 1, |i| i.port_state = PortState::ARMED);
    traps(sm);
    assert_eq!(
        sm.port_info(net, path, 1).port_state,
        PortState::ARMED,
        "SMPs are no data"
    );
    hcas[0].core().ports[1].transmit(&[data(Lid(2), 10)], hcas[0].drops());
    net.run();
    assert_eq!(sm.port_info(net, path, 1).port_state, PortState::ACTIVE);
    assert_eq!(Port::attributes(&*hcas[1]).state, PortState::ACTIVE);
    assert!(traps(sm).is_empty(), "no change that the link made");
}

#[test]
fn neighbor_mtu_bounds_what_leaves_and_mtu_cap_what_comes() {
    let mut star = Star::up();
    let Star {
        net, sm, switch, ..
    } = &mut star;
    let small = |i: &mut PortInfo| i.neighbor_mtu = wire::MtuCode(2);
    assert!(sm.set_port(net, &[1], 3, small).status().is_ok());
    let link = Arc::new(Recorder::default());
    switch.attach_link(3, link.clone());
    let before = switch.counters(3).expect("port 3").xmit_discards;
    let port = switch.port(1);
    port.receive(&[data(Lid(3), 512), data(Lid(3), 513), data(Lid(3), 100)]);
    assert_eq!(*link.0.lock(), [(0, 512), (0, 100)]);
    assert_eq!(
        switch.counters(3).expect("port 3").xmit_discards,
        before + 1
    );
    assert_eq!(switch.drops().get(DropReason::TooLong), 1);
    port.receive(&[data(Lid(3), 4097), data(Lid(3), 200)]);
    port.receive_errors(4);
    assert_eq!(link.0.lock().last(), Some(&(0, 200)));
    assert_eq!(switch.counters(1).expect("port 1").rcv_errors, 5);
}

#[test]
fn service_levels_take_the_lanes_of_the_table() {
    let mut star = Star::up();
    let Star {
        net, sm, switch, ..
    } = &mut star;
    sm.set_port(net, &[1], 3, |i| i.operational_vls = 2);
    let mut table = SlToVl::default();
    (table.vl[1], table.vl[2], table.vl[3]) = (1, 2, 15);
    let (set, attr) = (Method::SET, AttrId::SL_TO_VL_MAPPING_TABLE);
    // In by port 1, out by port 3.
    let answer = sm.directed(net, &[1], set, attr, 0x0103, &table.emit());
    assert_eq!(answer.expect("an answer").data[..8], table.emit());
    let link = Arc::new(Recorder::default());
    switch.attach_link(3, link.clone());
    let of = |sl, vl| {
        let mut packet = data(Lid(3), 8);
        (packet.lrh.sl, packet.lrh.vl) = (ServiceLevel(sl), vl);
        packet
    };
    switch
        .port(1)
        .receive(&[of(0, 0), of(1, 0), of(2, 0), of(3, 0), of(0, 1)]);
    assert_eq!(*link.0.lock(), [(0, 8), (1, 8), (0, 8)]);
    assert_eq!(
        switch.drops().get(DropReason::NoLane),
        2,
        "VL2 is not operational, VL15 means to drop"
    );
    switch.port(2).receive(&[of(1, 1)]);
    assert_eq!(link.0.lock().last(), Some(&(0, 8)), "another input's table");
}

#[test]
fn guids_are_set_but_the_first() {
    let mut star = Star::up();
    let Star { net, sm, hcas, .. } = &mut star;
    let own = Port::attributes(&*hcas[1]).gids.clone();
    let mut wanted = GuidInfo::default();
    (wanted.guid[0], wanted.guid[2]) = (Guid(5), Guid(0xabc));
    let (set, attr) = (Method::SET, AttrId::GUID_INFO);
    let answer = sm
        .directed(net, &[1, 2], set, attr, 0, &wanted.emit())
        .expect("an answer");
    wanted.guid[0] = own[0].guid();
    assert_eq!(answer.data, wanted.emit());
    let gids = Port::attributes(&*hcas[1]).gids.clone();
    let at = |i: usize| gids[i].guid();
    assert_eq!(
        (gids.len(), at(0), at(1), at(2)),
        (3, own[0].guid(), Guid(0), Guid(0xabc)),
        "an index of a GID is one of GUIDInfo"
    );
    let to = |dgid| {
        let mut packet = data(Lid(2), 8);
        packet.grh = Some(wire::packet::Grh {
            dgid,
            ..Default::default()
        });
        packet
    };
    use crate::link::LinkSink;
    let counts = || {
        let drops = hcas[1].drops();
        (
            drops.get(DropReason::NoQueuePair),
            drops.get(DropReason::NotOurGid),
        )
    };
    hcas[1].receive(&[to(gids[0])]);
    hcas[1].receive(&[to(gids[2])]);
    assert_eq!(counts(), (2, 0));
    hcas[1].receive(&[to(gids[1])]);
    hcas[1].receive(&[to(wire::Gid::new(wire::Gid::DEFAULT_PREFIX, Guid(99)))]);
    hcas[1].receive(&[to(wire::Gid::new(1, gids[0].guid()))]);
    assert_eq!(counts(), (2, 3));
    sm.set_port(net, &[1, 2], 1, |i| i.gid_prefix = 1);
    hcas[1].receive(&[to(gids[0]), to(wire::Gid::new(1, gids[0].guid()))]);
    assert_eq!(counts(), (4, 3), "the new prefix and the default one");
}

#[test]
fn lmc_gives_a_port_its_lids() {
    let mut star = Star::up();
    let Star { net, sm, hcas, .. } = &mut star;
    let answer = sm.set_port(net, &[1, 2], 1, |i| (i.lid, i.lmc) = (Lid(6), 2));
    assert_eq!(
        answer.status(),
        MadStatus::INVALID_FIELD,
        "6 is no multiple of 4"
    );
    sm.set_port(net, &[1, 2], 1, |i| (i.lid, i.lmc) = (Lid(4), 2));
    use crate::link::LinkSink;
    (3..9).for_each(|lid| hcas[1].receive(&[data(Lid(lid), 8)]));
    let drops = hcas[1].drops();
    let counts = (
        drops.get(DropReason::NoQueuePair),
        drops.get(DropReason::NotOurLid),
    );
    assert_eq!(counts, (4, 2));
}

#[test]
fn multicast_beyond_the_table_takes_the_default_ports() {
    let mut star = Star::up();
    let Star {
        net, sm, switch, ..
    } = &mut star;
    let (set, attr) = (Method::SET, AttrId::SWITCH_INFO);
    let info = |multicast_fdb_top| SwitchInfo {
        linear_fdb_top: 10,
        default_multicast_primary_port: 1,
        default_multicast_not_primary_port: 3,
        multicast_fdb_top,
        ..SwitchInfo::default()
    };
    let bad = sm.directed(net, &[1], set, attr, 0, &info(0x1000).emit());
    assert_eq!(bad.expect("an answer").status(), MadStatus::INVALID_FIELD);
    sm.directed(net, &[1], set, attr, 0, &info(0xbfff).emit())
        .expect("an answer");
    let links = [1, 3].map(|port| {
        let link = Arc::new(Recorder::default());
        switch.attach_link(port, link.clone());
        link
    });
    let sent = || links.each_ref().map(|l| l.0.lock().len());
    switch.port(2).receive(&[data(Lid(0xc000), 8)]);
    assert_eq!(sent(), [1, 0]);
    switch.port(1).receive(&[data(Lid(0xc000), 8)]);
    assert_eq!(sent(), [1, 1]);
}

#[test]
fn lights_diagnosis_and_fixed_attributes() {
    let mut star = Star::bare();
    let Star { net, sm, .. } = &mut star;
    let mut ask = |method, attr, modifier, data: &[u8]| {
        let answer = sm.directed(net, &[1, 2], method, attr, modifier, data);
        answer.map(|a| (a.status(), a.data[0])).expect("an answer")
    };
    let ok = MadStatus::OK;
    assert_eq!(ask(Method::GET, AttrId::LED_INFO, 0, &[]), (ok, 0));
    assert_eq!(ask(Method::SET, AttrId::LED_INFO, 0, &[0xff]), (ok, 0x80));
    assert_eq!(ask(Method::GET, AttrId::LED_INFO, 0, &[]), (ok, 0x80));
    assert_eq!(ask(Method::GET, AttrId::VENDOR_DIAG, 0, &[]), (ok, 0));
    let bad = MadStatus::INVALID_FIELD;
    assert_eq!(ask(Method::GET, AttrId::VENDOR_DIAG, 1, &[]).0, bad);
    assert_eq!(ask(Method::GET, AttrId::NODE_INFO, 1, &[]).0, bad);
    let unsupported = MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED;
    for attr in [
        AttrId::NODE_DESCRIPTION,
        AttrId::NODE_INFO,
        AttrId::VENDOR_DIAG,
    ] {
        assert_eq!(ask(Method::SET, attr, 0, &[]).0, unsupported);
    }
    for attr in [AttrId::SWITCH_INFO, AttrId::RANDOM_FORWARDING_TABLE] {
        assert_eq!(ask(Method::GET, attr, 0, &[]).0, unsupported, "of an HCA");
    }
}

#[test]
fn protection_levels() {
    // M_KeyProtectBits; what Get(PortInfo) without the key shows, and with it (IBA 14.2.4.1).
    for (bits, without, with) in [(0, Some(7), 7), (1, Some(0), 7), (2, None, 7), (3, None, 7)] {
        let mut star = Star::up();
        let Star { net, sm, .. } = &mut star;
        let path = &[1, 2];
        sm.set_port(net, path, 1, |i| {
            (i.m_key, i.m_key_protect_bits) = (7, bits)
        });
        let mut get = |key| {
            sm.m_key = key;
            let answer = sm.directed(net, path, Method::GET, AttrId::PORT_INFO, 1, &[]);
            answer
                .and_then(|a| PortInfo::parse(&a.data))
                .map(|i| i.m_key)
        };
        assert_eq!((get(0), get(7)), (without, Some(with)), "level {bits}");
        sm.m_key = 8;
        let led = sm.directed(net, path, Method::SET, AttrId::LED_INFO, 0, &[0x80]);
        assert_eq!(led, None, "a Set needs the key at any level");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn nothing_changes_without_the_m_key(mads in proptest::collection::vec((any_mad(), any::<bool>(), any::<bool>()), 1..40)) {
        let mut star = Star::up();
        star.protect(2);
        let before = star.state();
        for (mad, to_switch, gsi) in &mads {
            let mut mad = *mad;
            mad[24] |= 1;
            let mut packet = data(Lid(if *to_switch { 10 } else { 2 }), 0);
            packet.payload = &mad;
            (packet.lrh.vl, packet.bth.dest_qp) = if *gsi { (0, Qpn::GSI) } else { (15, Qpn::SMI) };
            packet.ext.deth = Some(wire::packet::Deth { q_key: QKey::GSI, src_qp: Qpn::GSI });
            use crate::link::LinkSink;
            match to_switch {
                true => star.switch.port(1).receive(&[packet]),
                false => star.hcas[1].receive(&[packet]),
            }
            star.net.run();
        }
        prop_assert_eq!(star.state(), before);
    }
}
