//! Traps, and what the manager's messages to itself and others do.

use super::*;

/// Takes the traps out of the manager's inbox.
pub(super) fn traps(sm: &Manager) -> Vec<Notice> {
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
    // SubnetTimeOut is 18: 1.07 s.
    net.advance(Duration::from_millis(3300));
    let again = raw_traps(sm);
    assert_eq!(again.len(), 2, "after 1.07 s and 2.15 s more");
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

#[test]
fn news_while_a_trap_waits_is_new_and_paced() {
    let mut star = Star::up();
    let Star { net, sm, .. } = &mut star;
    raw_traps(sm);
    net.cables[2].cut();
    net.run();
    let first = raw_traps(sm);
    net.cables[2].join();
    net.run();
    assert!(raw_traps(sm).is_empty(), "50 ms must lie between the two");
    let mut repress = Smp::parse(&first[0].mad[..]).expect("an SMP");
    repress.header.method = Method::TRAP_REPRESS;
    sm.agent.send(smp_send(&repress, Lid(10)));
    net.advance(Duration::from_millis(50));
    let second = raw_traps(sm);
    assert_eq!(second.len(), 1, "the repress was for the news before");
    assert_ne!(second[0].mad[8..16], first[0].mad[8..16]);
}

#[test]
fn trap_144_tells_a_new_description() {
    let mut star = Star::up();
    traps(&star.sm);
    // Node 0 is the switch, node 2 the HCA of LID 2.
    for _ in 0..2 {
        star.net.input(2, NodeInput::Describe("renamed".into()));
    }
    let seen = traps(&star.sm);
    let change = seen[0].capability().expect("trap 144");
    assert_eq!(
        (
            seen.len(),
            change.lid,
            change.local_changes,
            change.change_flags
        ),
        (1, Lid(2), true, 1)
    );
    let Star { net, sm, .. } = &mut star;
    let answer = sm.directed(net, &[1, 2], Method::GET, AttrId::NODE_DESCRIPTION, 0, &[]);
    assert_eq!(
        answer.expect("an answer").data,
        NodeDescription::new("renamed").emit()
    );
}

#[test]
fn sm_info_where_no_manager_lives_is_not_answered() {
    let mut star = Star::up();
    let Star { net, sm, .. } = &mut star;
    let answer = sm.directed(net, &[1, 3], Method::GET, AttrId::SM_INFO, 0, &[]);
    assert_eq!(answer, None);
    assert_eq!(star.hcas[2].drops().get(DropReason::NoSubnetManager), 1);
}
