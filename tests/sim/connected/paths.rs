//! Paths by other LIDs than a port's first (LMC), and paths with a GRH.

use super::*;
use crate::basic::one_switch_as;
use crate::net::{Lost, is_cm};
use fabric::sm::SmConfig;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::Lid;
use wire::mad::AttrId;
use wire::mad::cm::{CmMessage, Req};
use wire::packet::Grh;

const LMC: u8 = 2;

/// SLID and DLID.
type Lids = (Lid, Lid);

/// What a host sent by connections.
#[derive(Default)]
struct Sent {
    lids: BTreeSet<Lids>,
    grhs: Vec<Option<Grh>>,
    requests: Vec<(Lids, Req)>,
}

fn watch(sim: &Sim, h: usize) -> (Arc<Mutex<Sent>>, Lost) {
    let sent: Arc<Mutex<Sent>> = Arc::default();
    let into = sent.clone();
    let watched = sim.net.lose(sim.alive(h).cable, 1, 0, move |packet| {
        let lids = (packet.lrh.slid, packet.lrh.dlid);
        let mut into = into.lock();
        if packet.bth.opcode.0 >> 5 == 0 {
            into.lids.insert(lids);
            if !into.grhs.contains(&packet.grh) {
                into.grhs.push(packet.grh);
            }
        }
        if is_cm(packet, AttrId::CM_REQ)
            && let Ok(mad) = packet.payload.try_into()
            && let Some((_, CmMessage::Req(req))) = CmMessage::parse(mad)
        {
            into.requests.push((lids, req));
        }
        true
    });
    (sent, watched)
}

/// Two hosts in connected mode whose ports have four LIDs each, and paths between the second of the one and the third of the other.
fn by_path_bits(seed: u64, rfc_only: [bool; 2]) -> (Sim, usize) {
    let config = SmConfig {
        lmc: LMC,
        ..SmConfig::default()
    };
    one_switch_as(seed, 2, config, |sim| {
        sim.net.alter_paths(|path| {
            path.slid.0 += 1;
            path.dlid.0 += 2;
        });
        for (host, rfc_only) in sim.hosts.iter_mut().zip(rfc_only) {
            Kind::Connected.set(&mut host.config);
            host.config.connected.rfc_only = rfc_only;
        }
    })
}

fn base_lid(sim: &Sim, h: usize) -> Lid {
    Lid(sim.interface(h).link_status().lid)
}

#[test]
fn connections_by_other_lids_than_the_first() {
    for (seed, rfc_only) in [(1100, [false; 2]), (1101, [false, true]), (1102, [true; 2])] {
        let (mut sim, _) = by_path_bits(seed, rfc_only);
        let sent = [0, 1].map(|h| watch(&sim, h));
        for (from, to) in [(0, host::v4(1)), (1, host::v6(0)), (0, host::v6(1))] {
            let wrong = sweep(&mut sim, from, to, sizes(to, 1997), MTU);
            assert_eq!(wrong, [], "{rfc_only:?}, {from} to {to}");
        }
        for h in 0..2 {
            assert_eq!(stat(&sim, h, "connection_failed"), 0, "{rfc_only:?}");
        }
        // By an own connection from the second LID to the peer's third; by the peer's the other way round.
        let [a, b] = [0, 1].map(|h| base_lid(&sim, h));
        let of = |a: Lid, b: Lid| (Lid(a.0 + 1), Lid(b.0 + 2));
        let (of_first, of_second) = (of(a, b), of(b, a));
        let back = |(slid, dlid)| (dlid, slid);
        let counts = [open(&sim, 0), open(&sim, 1)];
        let expected = match (rfc_only, counts) {
            ([false, false], [(1, 1), (1, 1)]) => vec![of_first, back(of_second)],
            // One carries both directions.
            ([_, true], [(1, 0), (0, 1)]) => vec![of_first],
            ([_, true], [(0, 1), (1, 0)]) => vec![back(of_second)],
            _ => panic!("{rfc_only:?}: {counts:?}"),
        };
        let expected = BTreeSet::from_iter(expected);
        let lids = [&sent[0], &sent[1]].map(|(sent, _)| sent.lock().lids.clone());
        assert_eq!(lids[0], expected, "{rfc_only:?}");
        let expected: BTreeSet<Lids> = expected.into_iter().map(back).collect();
        assert_eq!(lids[1], expected, "{rfc_only:?}");
    }
}

/// The manager gives either port other LIDs: connections are opened along the new paths.
#[test]
fn lids_that_move_with_their_path_bits() {
    for (seed, moved, rfc_only) in [(1110, 0, false), (1111, 1, false), (1112, 1, true)] {
        let (mut sim, sm) = by_path_bits(seed, [rfc_only; 2]);
        until_reached(&mut sim, 5 * SECOND);
        let guid = sim.hosts[moved].guid;
        sim.with_sm(sm, |sm, now| sm.move_lid(now, guid, Lid(80)))
            .expect("a free LID");
        let has_moved = |sim: &Sim| base_lid(sim, moved) == Lid(80);
        assert!(sim.run_until(10 * SECOND, has_moved));
        until_reached(&mut sim, 10 * SECOND);
        let sent = [0, 1].map(|h| watch(&sim, h));
        for (from, to) in [(0, host::v4(1)), (1, host::v4(0))] {
            let outcome = ask(&mut sim, from, to, 60_000, 10 * SECOND);
            assert_eq!(outcome, Outcome::Answered, "host {moved} moved");
        }
        for (sent, _) in &sent {
            let wrong = |(slid, dlid): &Lids| slid.0 / 4 == dlid.0 / 4 || slid.0 % 4 == 0;
            let lids = sent.lock().lids.clone();
            assert!(!lids.is_empty() && !lids.iter().any(wrong), "{lids:?}");
        }
        assert_eq!(stat(&sim, moved, "connection_failed"), 0);
    }
}

/// Paths with a GRH, inside the subnet and beyond it as far as anybody can tell: headers, REQ and both directions.
#[test]
fn connections_with_a_grh() {
    for (seed, hop_limit, rfc_only) in [(1120, 1, false), (1121, 64, false), (1122, 64, true)] {
        let (mut sim, _) = one_switch(seed, 2, |sim| {
            sim.net.alter_paths(move |path| {
                (path.hop_limit, path.flow_label, path.tclass) = (hop_limit, 0xabcde, 7);
            });
            for host in &mut sim.hosts {
                Kind::Connected.set(&mut host.config);
                host.config.connected.rfc_only = rfc_only;
            }
        });
        let sent = [0, 1].map(|h| watch(&sim, h));
        for (from, to) in [(0, host::v4(1)), (1, host::v6(0))] {
            let wrong = sweep(&mut sim, from, to, sizes(to, 1997), MTU);
            assert_eq!(wrong, [], "hop limit {hop_limit}, {from} to {to}");
        }
        let mut requests = 0;
        for (h, (sent, _)) in sent.iter().enumerate() {
            assert_eq!(stat(&sim, h, "connection_failed"), 0);
            let grh = Grh {
                traffic_class: 7,
                flow_label: 0xabcde,
                hop_limit,
                sgid: sim.gid(h),
                dgid: sim.gid(1 - h),
            };
            let sent = sent.lock();
            assert_eq!(sent.grhs, [Some(grh)], "hop limit {hop_limit}");
            requests += sent.requests.len();
            for (lids, req) in &sent.requests {
                let path = req.primary;
                assert_eq!(path.subnet_local, hop_limit == 1);
                let said = match path.subnet_local {
                    true => *lids,
                    false => (Lid::PERMISSIVE, Lid::PERMISSIVE),
                };
                assert_eq!((path.local_lid, path.remote_lid), said);
                assert_eq!((path.local_gid, path.remote_gid), (grh.sgid, grh.dgid));
                let rest = (path.hop_limit, path.flow_label, path.traffic_class);
                assert_eq!(rest, (hop_limit, 0xabcde, 7));
            }
        }
        assert!(requests >= 1);
        let (own, of_peer) = open(&sim, 0);
        assert_eq!(own + of_peer, if rfc_only { 1 } else { 2 });
    }
}
