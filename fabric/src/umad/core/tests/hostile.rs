//! Datagrams that no library sends.

use super::*;
use wire::mad::attr::SwitchInfo;

const DATAGRAMS: usize = 100_000;
const CLIENTS: [(u32, &str); 6] = [
    (1, "H1"),
    (2, "H2"),
    (3, "H2"),
    (4, "H3"),
    (5, "S"),
    (6, "S"),
];

/// Everything that an SM, the diagnostics and SA clients send; none knows the M_Key.
fn seeds() -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    for method in [Method::GET, Method::SET] {
        for (attr, modifier) in [
            (AttrId::NODE_INFO, 0),
            (AttrId::NODE_DESCRIPTION, 0),
            (AttrId::PORT_INFO, 0),
            (AttrId::PORT_INFO, 1),
            (AttrId::SWITCH_INFO, 0),
            (AttrId::GUID_INFO, 0),
            (AttrId::P_KEY_TABLE, 0),
            (AttrId::SL_TO_VL_MAPPING_TABLE, 1),
            (AttrId::VL_ARBITRATION_TABLE, 1 << 16 | 1),
            (AttrId::LINEAR_FORWARDING_TABLE, 0),
            (AttrId::MULTICAST_FORWARDING_TABLE, 0),
            (AttrId::LED_INFO, 0),
            (AttrId::SM_INFO, 0),
        ] {
            let data = match attr {
                AttrId::PORT_INFO => PortInfo {
                    lid: Lid(7),
                    master_sm_lid: Lid(3),
                    ..PortInfo::default()
                }
                .emit()
                .to_vec(),
                AttrId::SWITCH_INFO => SwitchInfo {
                    linear_fdb_top: 3,
                    ..SwitchInfo::default()
                }
                .emit()
                .to_vec(),
                _ => vec![0x80; 64],
            };
            for path in [&[][..], &[1], &[1, 2], &[1, 3]] {
                let smp = Smp::directed(method, attr, modifier, 1, path).with_data(&data);
                requests.push(to(Lid::PERMISSIVE, 0, Box::new(smp.emit())));
            }
            for lid in [2, 3, 10] {
                let smp = Smp::lid_routed(method, attr, modifier, 1).with_data(&data);
                requests.push(to(Lid(lid), 0, Box::new(smp.emit())));
            }
        }
    }
    let classes = [MgmtClass::SUBN_ADM, MgmtClass::PERF_MGT, MgmtClass(0x32)];
    let methods = [
        Method::GET,
        Method::SET,
        Method::GET_TABLE,
        Method::REPORT,
        Method::GET_RESP,
    ];
    for class in classes {
        for method in methods.into_iter().chain([Method::GET_TABLE.response()]) {
            for lid in [1, 2, 10] {
                requests.push(to(Lid(lid), 1, gmp(class, method, 1)));
            }
        }
    }
    let ctl = |client| {
        move |kind| {
            let info = ClientInfo {
                id: client,
                qp: 2,
                is_sm: false,
                node: "H2".into(),
            };
            Ctl {
                client,
                kind,
                len: 64,
                data: info.emit(),
            }
            .emit()
            .to_vec()
        }
    };
    let controls = CLIENTS
        .iter()
        .flat_map(|(number, _)| (0..12).map(ctl(*number - 1)));
    requests
        .iter()
        .map(|r| r.emit().to_vec())
        .chain(controls)
        .collect()
}

fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(0..5) {
        let at = random.usize(..bytes.len());
        match random.u8(..10) {
            0..3 => bytes[at] ^= 1 << random.u8(..8),
            3..5 => bytes[at] = random.u8(..),
            5..7 => bytes[at] = random.choice([0, 1, 2, 3, 0x7f, 0x80, 0xff]).unwrap_or(0),
            7 | 8 => {
                // What decides most: length, class, method, attribute, hops.
                let at = random
                    .choice([31, 33, 35, 38, 39, 48, 49, 52, 55])
                    .unwrap_or(0);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.u8(..);
                }
            }
            _ => bytes.resize(random.usize(1..400), random.u8(..)),
        }
    }
}

/// Nothing panics or hangs, and nothing that the M_Key guards changes.
#[test]
fn a_hundred_thousand_hostile_datagrams_change_nothing() {
    let seed = 0x1b01_u64;
    println!("seed {seed:#x}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new();
    // The manager's own node, too: else H1 could be led astray, and with it who looks whether all is as before.
    let Star { net, sm, .. } = &mut world.star;
    for (path, port) in [(&[][..], 1), (&[1, 3], 1)] {
        sm.set_port(net, path, port, |i| {
            (i.m_key, i.m_key_protect_bits) = (M_KEY, 2)
        });
    }
    world.star.protect(2);
    let before = world.star.state();
    let seeds = seeds();
    let connect = |world: &mut World| {
        for (number, node) in CLIENTS {
            if !world.core.by_peer.contains_key(&peer(number)) {
                world.connect(number, node, number % 3);
            }
        }
    };
    connect(&mut world);
    for n in 0..DATAGRAMS {
        let mut bytes = seeds[random.usize(..seeds.len())].clone();
        let is_control = bytes.len() == Ctl::LEN;
        mutate(&mut random, &mut bytes);
        let now = world.star.net.now;
        if is_control {
            let from = peer(random.u32(1..8));
            world.core.control(now, from, &bytes, &mut world.notes);
        } else {
            let client = random.u32(..7);
            world.core.data(now, client, &bytes, &mut world.notes);
        }
        world.run();
        world.notes.control.clear();
        world.notes.data.clear();
        if n % 1000 == 0 {
            world.advance(Duration::from_millis(300));
            connect(&mut world);
        }
    }
    world.advance(SMP_TIMEOUT * SMP_SENDS + GSI_TIMEOUT);
    assert_eq!(world.core.poll_timeout(), None, "no transaction is left");
    assert!(world.core.counters.rx_mads.get() > DATAGRAMS as u64 / 2);
    for id in world.notes.open.clone() {
        world.core.died(id, &mut world.notes);
    }
    assert_eq!(world.core.clients().next(), None);
    // Without clients none is a subnet manager.
    world.run();
    assert!(world.star.state() == before, "something changed");
}
