mod pma;
mod sma;
mod traps;

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
        for hca in &star.hcas {
            let a = Port::attributes(&**hca);
            prop_assert!((PortState::DOWN..=PortState::ACTIVE).contains(&a.state));
            prop_assert!(a.lid.0 % (1 << a.lmc) == 0 && a.lid.0 + (1 << a.lmc) <= Lid::MULTICAST_BASE.0);
            prop_assert!(a.active_mtu.bytes() <= a.max_mtu.bytes() && !a.gids.is_empty());
        }
    }
}
