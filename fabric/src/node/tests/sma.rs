//! Attributes that a manager sets, and what they do.

use super::traps::traps;
use super::*;

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
