use super::*;
use crate::node::testing::{SWITCH_LID, Star, datagram};
use proptest::prelude::*;
use wire::PKey;
use wire::mad::attr::{LinearForwardingTable, MulticastForwardingTable, PKeyTable, SwitchInfo};
use wire::mad::{AttrId, MadStatus, Method};
use wire::packet::Bth;

/// A packet of LID 2 for `dlid`.
fn packet(dlid: Lid) -> Packet<'static> {
    datagram(Lid(2), dlid, b"data")
}

#[test]
fn tables_are_written_and_read_by_mads() {
    let mut star = Star::up();
    let Star {
        net, sm, switch, ..
    } = &mut star;
    let info = sm
        .directed(net, &[1], Method::GET, AttrId::SWITCH_INFO, 0, &[])
        .and_then(|a| SwitchInfo::parse(&a.data))
        .expect("SwitchInfo");
    assert!(
        info.enhanced_port0 && info.linear_fdb_cap == 0xc000 && info.multicast_fdb_cap == 0x3fff
    );
    let wanted = SwitchInfo {
        linear_fdb_top: 5 * 64 + 7,
        ..info
    };
    sm.directed(
        net,
        &[1],
        Method::SET,
        AttrId::SWITCH_INFO,
        0,
        &wanted.emit(),
    )
    .expect("an answer");
    let mut block = LinearForwardingTable {
        port: [NO_PORT; 64],
    };
    block.port[7..9].copy_from_slice(&[3, 3]);
    sm.directed(
        net,
        &[1],
        Method::SET,
        AttrId::LINEAR_FORWARDING_TABLE,
        5,
        &block.emit(),
    )
    .expect("an answer");
    assert_eq!(switch.route(Lid(5 * 64 + 7)), [3]);
    assert_eq!(switch.route(Lid(5 * 64 + 6)), []);
    assert_eq!(switch.route(Lid(5 * 64 + 8)), [], "beyond LinearFDBTop");
    assert_eq!(switch.route(Lid(2)), [2], "other blocks keep their content");
    let last = u32::from(0xc000u16 / 64);
    for (attr, modifier) in [
        (AttrId::LINEAR_FORWARDING_TABLE, last),
        (AttrId::MULTICAST_FORWARDING_TABLE, 0x200),
    ] {
        let answer = sm
            .directed(net, &[1], Method::GET, attr, modifier, &[])
            .expect("an answer");
        assert_eq!(answer.status(), MadStatus::INVALID_FIELD);
    }
    // Two positions of one block are one set of ports.
    for (position, mask) in [(0u32, 0x0006), (15, 0x4000)] {
        let mut block = MulticastForwardingTable::default();
        block.port_mask[31] = mask;
        let modifier = position << 28 | 1;
        sm.directed(
            net,
            &[1],
            Method::SET,
            AttrId::MULTICAST_FORWARDING_TABLE,
            modifier,
            &block.emit(),
        )
        .expect("an answer");
        let read = sm
            .directed(
                net,
                &[1],
                Method::GET,
                AttrId::MULTICAST_FORWARDING_TABLE,
                modifier,
                &[],
            )
            .expect("an answer");
        assert_eq!(read.data, block.emit());
    }
    assert_eq!(switch.route(Lid(0xc000 + 63)), [1, 2, 254]);
}

#[test]
fn what_cannot_be_forwarded_is_counted() {
    let star = Star::up();
    let port = star.switch.port(2);
    let mut expected = Vec::new();
    let mut feed = |packet: Packet<'_>, reason| {
        port.receive(&[packet]);
        expected.push(reason);
        let n = expected.iter().filter(|r| **r == reason).count() as u64;
        assert_eq!(star.switch.drops().get(reason), n, "{reason:?}");
    };
    feed(packet(Lid(77)), DropReason::NoRoute);
    feed(packet(Lid(0)), DropReason::NoRoute);
    feed(packet(Lid::PERMISSIVE), DropReason::NoRoute);
    feed(packet(Lid(0xc001)), DropReason::NoRoute);
    feed(packet(Lid(2)), DropReason::WouldReturn);
    feed(
        Packet {
            hops: 64,
            ..packet(Lid(3))
        },
        DropReason::HopLimit,
    );
    feed(packet(SWITCH_LID), DropReason::NoQueuePair);
    assert_eq!(
        star.switch
            .counters(2)
            .expect("port 2")
            .rcv_switch_relay_errors,
        6
    );
    // Port 4 has no link and is Down.
    star.switch.port(4).receive(&[packet(Lid(3))]);
    assert_eq!(star.switch.drops().get(DropReason::PortNotActive), 1);
}

#[test]
fn partition_enforcement() {
    let mut star = Star::up();
    let Star {
        net,
        sm,
        switch,
        hcas,
    } = &mut star;
    let mut keys = PKeyTable::default();
    keys.p_key[0] = PKey(0x8001);
    sm.directed(
        net,
        &[1],
        Method::SET,
        AttrId::P_KEY_TABLE,
        3 << 16,
        &keys.emit(),
    )
    .expect("an answer");
    let before = hcas[2].counters().rcv_pkts;
    switch.port(2).receive(&[packet(Lid(3))]);
    assert_eq!(
        hcas[2].counters().rcv_pkts,
        before + 1,
        "a table alone filters nothing"
    );
    sm.set_port(net, &[1], 3, |i| i.partition_enforcement_outbound = true);
    let before = hcas[2].counters().rcv_pkts;
    switch.port(2).receive(&[
        packet(Lid(3)),
        Packet {
            bth: Bth {
                p_key: PKey(1),
                ..packet(Lid(3)).bth
            },
            ..packet(Lid(3))
        },
    ]);
    assert_eq!(hcas[2].counters().rcv_pkts, before + 1);
    assert_eq!(
        switch.counters(3).expect("port 3").xmit_constraint_errors,
        1
    );
    net.run();
    let trap = sm
        .inbox
        .lock()
        .iter()
        .find(|m| m.mad[3] == Method::TRAP.0 && m.mad[69] == 3)
        .map(|m| m.mad.clone())
        .expect("trap 259");
    assert_eq!(trap[68..70], 259u16.to_be_bytes());
}

#[test]
fn ports_are_found_and_released() {
    let star = Star::up();
    assert_eq!(star.switch.free_ports().next(), Some(4));
    star.switch.detach_link(2);
    assert_eq!(star.switch.free_ports().next(), Some(2));
    let (switch, hcas) = (
        Arc::downgrade(&star.switch),
        star.hcas.iter().map(Arc::downgrade).collect::<Vec<_>>(),
    );
    drop(star);
    assert!(
        switch.upgrade().is_none() && hcas.iter().all(|h| h.upgrade().is_none()),
        "links make no cycles"
    );
}

proptest! {
    #[test]
    fn port_masks_list_their_ports(ports in proptest::collection::btree_set(any::<u8>(), 0..40)) {
        let mut mask = PortMask::default();
        for port in &ports {
            let position = usize::from(port / 16);
            mask.set_position(position, mask.position(position) | 1 << (port % 16));
            prop_assert!(mask.ports().any(|p| PortMask::one(p) == PortMask::one(*port)));
        }
        prop_assert_eq!(mask.ports().collect::<Vec<_>>(), ports.into_iter().collect::<Vec<_>>());
    }
}
