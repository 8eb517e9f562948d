//! One machine against scripted peers.

mod common;

use arp::{Destination, Failure, NeighbourConfig, PathError, State};
use common::*;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};
use wire::Lid;
use wire::ipoib::LinkAddress;
use wire::ipoib::arp::ArpOperation;
use wire::ipoib::nd::{NdMessage, NdPacket, neighbor_solicitation, solicited_node};

fn unicast_to(to: Destination) -> LinkAddress {
    match to {
        Destination::Unicast(to) => to.address,
        other => panic!("{other:?}"),
    }
}

#[test]
fn states_of_rfc_4861() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    host.send(v4(2));
    assert_eq!(host.state(v4(2)), Some(State::Incomplete));
    let asked = host.take_arp();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].0, Destination::Broadcast);
    assert_eq!(
        (asked[0].1.sender_ip, asked[0].1.target_ip),
        (four(v4(1)), four(v4(2)))
    );
    assert!(asked[0].1.target_hw.is_zero());
    host.arp_reply(v4(2), peer);
    assert_eq!(host.state(v4(2)), Some(State::Reachable));
    assert!(host.table.is_empty(), "no path yet");
    host.answer(peer.gid, 2);
    assert_eq!(host.flushed, [(v4(2), 1)]);
    assert_eq!(
        (host.table[&v4(2)].address, host.table[&v4(2)].path.dlid),
        (peer, Lid(2))
    );
    // Reachable for 15 to 45 s, then stale and reported on first use.
    host.run(15 * SECOND - MS);
    assert_eq!(host.state(v4(2)), Some(State::Reachable));
    host.run(30 * SECOND + MS);
    assert_eq!(host.state(v4(2)), Some(State::Stale));
    assert!(host.table[&v4(2)].stale);
    assert!(host.use_table(v4(2)));
    assert_eq!(host.state(v4(2)), Some(State::Delay));
    assert!(host.take_arp().is_empty());
    host.run(5 * SECOND);
    assert_eq!(host.state(v4(2)), Some(State::Probe));
    let probes = host.take_arp();
    assert_eq!(probes.len(), 1);
    assert_eq!(unicast_to(probes[0].0), peer);
    host.arp_reply(v4(2), peer);
    assert_eq!(host.state(v4(2)), Some(State::Reachable));
    // Nobody answers the next probes: three of them, then it is gone.
    host.run(45 * SECOND);
    host.use_table(v4(2));
    host.run(5 * SECOND + 3 * SECOND - MS);
    assert_eq!(host.take_arp().len(), 3);
    assert!(host.use_table(v4(2)));
    host.run(MS);
    assert_eq!(host.state(v4(2)), None);
    assert!(host.table.is_empty());
    assert_eq!(host.machine.counters().probe_failed, 1);
}

#[test]
fn unused_neighbours_expire() {
    let mut host = Host::up();
    host.make_reachable(v4(2), link(2, 0x49), 2);
    host.run(45 * SECOND);
    assert_eq!(host.state(v4(2)), Some(State::Stale));
    host.run(60 * SECOND);
    assert_eq!(host.state(v4(2)), None);
    assert!(host.table.is_empty() && host.machine.paths(host.now).next().is_none());
    assert_eq!(host.machine.poll_timeout(), None);
    assert!(
        host.take_arp().is_empty(),
        "an unused neighbour is not probed"
    );
}

#[test]
fn no_answer_then_back_off() {
    let mut host = Host::up();
    host.send(v4(2));
    host.send(v4(2));
    host.run(3 * SECOND - MS);
    assert_eq!(host.take_arp().len(), 3);
    assert!(host.unreachable.is_empty());
    host.run(MS);
    assert_eq!(host.unreachable, [(v4(2), 1), (v4(2), 2)]);
    let info = host.machine.get(host.now, v4(2)).unwrap();
    assert_eq!(
        (info.state, info.last_failure),
        (State::Failed, Some(Failure::NoAnswer(3)))
    );
    host.run(SECOND / 4);
    let info = host.machine.get(host.now, v4(2)).unwrap();
    assert_eq!(info.failed_ago, Some(SECOND / 4));
    assert_eq!(info.retry_in, Some(SECOND * 3 / 4));
    host.run(SECOND * 3 / 4);
    let info = host.machine.get(host.now, v4(2)).unwrap();
    assert_eq!(info.retry_in, Some(Duration::ZERO));
    host.send(v4(2));
    assert_eq!(host.state(v4(2)), Some(State::Incomplete));
    let info = host.machine.get(host.now, v4(2)).unwrap();
    assert_eq!((info.failed_ago, info.retry_in), (Some(SECOND), None));
    host.run(3 * SECOND);
    assert_eq!(host.take_arp().len(), 3);
    // Back-offs of 1, 2, 4, 8, 16, 16 s, in which packets come back at once.
    for backoff in [2, 4, 8, 16, 16] {
        host.run(backoff * SECOND - MS);
        let id = host.send(v4(2));
        assert_eq!(host.unreachable.last(), Some(&(v4(2), id)));
        assert!(host.take_arp().is_empty());
        host.run(MS);
        host.send(v4(2));
        assert_eq!(host.state(v4(2)), Some(State::Incomplete));
        host.run(3 * SECOND);
        assert_eq!(host.take_arp().len(), 3);
        assert_eq!(host.state(v4(2)), Some(State::Failed));
    }
    // An operator's request does not wait.
    host.machine.resolve(host.now, v4(2));
    host.drain();
    assert_eq!(host.state(v4(2)), Some(State::Incomplete));
    assert_eq!(host.failed, 0);
    host.run(3 * SECOND);
    assert_eq!(host.failed, 1);
    // Once it answers, all is forgotten.
    host.run(16 * SECOND);
    host.make_reachable(v4(2), link(2, 0x49), 2);
}

#[test]
fn no_path_then_back_off() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    host.send(v4(2));
    host.arp_reply(v4(2), peer);
    host.queries.clear();
    host.machine
        .path_result(host.now, peer.gid, Err(PathError::NotFound));
    host.drain();
    assert_eq!(host.unreachable, [(v4(2), 1)]);
    let info = host.machine.get(host.now, v4(2)).unwrap();
    assert_eq!(info.state, State::Failed);
    let text = info.last_failure.unwrap().to_string();
    assert!(
        text.contains("knows no path") && text.contains(&peer.gid.to_string()),
        "{text}"
    );
    host.transmitted.clear();
    // A request of the same peer makes no query before the back-off is over; afterwards it does.
    host.arp_request(v4(2), peer, v4(1));
    assert!(host.queries.is_empty() && host.transmitted.is_empty());
    assert_eq!(host.machine.counters().dropped_reply_no_path, 1);
    host.run(SECOND);
    host.arp_request(v4(2), peer, v4(1));
    host.answer(peer.gid, 2);
    assert_eq!(host.take_arp().len(), 1);
    assert!(host.table.contains_key(&v4(2)));
}

#[test]
fn who_speaks_again_need_not_sit_out_a_long_back_off() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    for failures in 1..5 {
        host.send(v4(2));
        host.arp_reply(v4(2), peer);
        host.queries.clear();
        host.machine
            .path_result(host.now, peer.gid, Err(PathError::NotFound));
        host.drain();
        assert_eq!(host.unreachable.len(), failures);
        host.run([1, 2, 4, 0][failures - 1] * SECOND);
    }
    // 8 s of back-off have begun.
    host.run(SECOND - MS);
    host.arp_request(v4(2), peer, v4(2));
    assert!(host.queries.is_empty());
    host.run(MS);
    host.arp_request(v4(2), peer, v4(2));
    host.answer(peer.gid, 2);
    assert!(host.table.contains_key(&v4(2)));
}

#[test]
fn a_record_without_a_lid_is_no_path() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    host.send(v4(2));
    host.arp_reply(v4(2), peer);
    host.answer(peer.gid, 0xc000);
    assert_eq!(host.unreachable.len(), 1);
    let failure = host.machine.get(host.now, v4(2)).unwrap().last_failure;
    assert_eq!(
        failure,
        Some(Failure::Path(peer.gid, PathError::BadLid(Lid(0xc000))))
    );
}

#[test]
fn gratuitous_arp_moves_a_neighbour_at_once() {
    let mut host = Host::up();
    host.make_reachable(v4(2), link(2, 0x49), 2);
    let restarted = link(2, 0x50);
    host.arp_request(v4(2), restarted, v4(2));
    assert_eq!(host.table[&v4(2)].address, restarted);
    assert!(host.table[&v4(2)].stale && host.queries.is_empty());
    assert_eq!(host.machine.counters().address_changed, 1);
    // With another GID the old address is no longer used, and the new path asked for.
    let replaced = link(3, 0x51);
    host.arp_request(v4(2), replaced, v4(2));
    assert!(host.table.is_empty());
    let id = host.send(v4(2));
    host.answer(replaced.gid, 3);
    assert_eq!(host.table[&v4(2)].address, replaced);
    assert_eq!(host.flushed, [(v4(2), id)]);
    assert_eq!(host.state(v4(2)), Some(State::Delay));
    assert_eq!(
        host.machine.paths(host.now).count(),
        1,
        "the old GID's path is not kept"
    );
    // Flags we do not know change nothing.
    let installs = host.installs;
    host.arp_request(
        v4(2),
        LinkAddress {
            flags: 0xa0,
            ..replaced
        },
        v4(2),
    );
    assert_eq!(host.installs, installs);
    host.arp_request(
        v4(2),
        LinkAddress {
            flags: 0,
            ..replaced
        },
        v4(2),
    );
    assert_eq!(host.installs, installs + 1);
}

#[test]
fn unknown_hosts_gratuitous_arp_is_not_remembered() {
    let mut host = Host::up();
    host.arp_request(v4(2), link(2, 0x49), v4(2));
    host.arp_request(v4(2), link(2, 0x49), v4(3));
    assert_eq!(host.machine.neighbours(host.now).count(), 0);
    assert_eq!(host.machine.counters().ignored, 2);
    assert!(host.transmitted.is_empty() && host.queries.is_empty());
}

#[test]
fn requests_are_answered_for_own_addresses_only() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    host.arp_request(v4(2), peer, v4(1));
    assert!(host.transmitted.is_empty(), "the reply waits for the path");
    host.answer(peer.gid, 2);
    let replies = host.take_arp();
    assert_eq!(replies.len(), 1);
    assert_eq!(unicast_to(replies[0].0), peer);
    let reply = replies[0].1;
    assert_eq!(
        (reply.operation, reply.sender_hw),
        (ArpOperation::REPLY, link(1, 0x48))
    );
    assert_eq!(
        (reply.sender_ip, reply.target_ip, reply.target_hw),
        (four(v4(1)), four(v4(2)), peer)
    );
    assert_eq!(host.state(v4(2)), Some(State::Stale));
    assert!(host.table[&v4(2)].stale);
    // A probe (RFC 5227) is answered, and nobody learned from it.
    let probe = arp_packet(
        ArpOperation::REQUEST,
        ("0.0.0.0".parse().unwrap(), peer),
        v4(1),
    );
    host.machine.handle_arp(host.now, from(peer, true), &probe);
    host.drain();
    assert_eq!(host.take_arp().len(), 1);
    assert_eq!(host.machine.neighbours(host.now).count(), 1);
    host.machine.remove_address(host.now, v4(1));
    host.arp_request(v4(2), peer, v4(1));
    assert!(host.take_arp().is_empty());
}

#[test]
fn own_and_nonsensical_arp_is_dropped() {
    let mut host = Host::up();
    host.arp_request(v4(1), link(1, 0x48), v4(1));
    assert_eq!(host.machine.counters().dropped_own, 1);
    let broadcast: IpAddr = "255.255.255.255".parse().unwrap();
    let bad = [
        (v4(2), link(2, 0)),
        (v4(2), link(2, 0xff_ffff)),
        (broadcast, link(2, 0x49)),
    ];
    for (ip, address) in bad {
        host.arp_request(ip, address, v4(1));
    }
    host.arp_request(
        v4(2),
        LinkAddress {
            gid: wire::Gid([0xff; 16]),
            ..link(2, 0x49)
        },
        v4(1),
    );
    let strange = arp_packet(ArpOperation(8), (v4(2), link(2, 0x49)), v4(1));
    host.machine
        .handle_arp(host.now, from(link(2, 0x49), true), &strange);
    host.drain();
    assert_eq!(host.machine.counters().dropped_invalid, 5);
    assert!(host.transmitted.is_empty() && host.queries.is_empty() && host.conflicts == 0);
}

#[test]
fn conflicts_are_defended_now_and_then() {
    let mut host = Host::up();
    let thief = link(2, 0x49);
    for _ in 0..5 {
        host.arp_request(v4(1), thief, v4(7));
        host.run(SECOND);
    }
    assert_eq!((host.conflicts, host.machine.counters().conflicts), (1, 5));
    let defence = host.take_arp();
    assert_eq!(defence.len(), 1);
    assert_eq!(
        (defence[0].0, defence[0].1.sender_ip),
        (Destination::Broadcast, four(v4(1)))
    );
    host.run(5 * SECOND);
    host.arp_request(v4(1), thief, v4(7));
    assert_eq!(host.conflicts, 2);
    host.nd(thief, &na(v6(1), Some(thief), false, true));
    assert_eq!(host.conflicts, 3);
    assert_eq!(host.machine.neighbours(host.now).count(), 0);
}

#[test]
fn announcements_at_link_up_and_new_address() {
    let mut host = Host::new(NeighbourConfig::default(), 1, Instant::now());
    host.machine.add_address(host.now, v4(1), 16);
    host.machine.add_address(host.now, v6(1), 64);
    host.run(10 * SECOND);
    assert!(host.transmitted.is_empty());
    host.machine.link_up(host.now, link(1, 0x48));
    host.drain();
    assert_eq!(host.transmitted.len(), 2);
    host.run(10 * SECOND);
    assert_eq!(host.transmitted.len(), 6);
    for (to, payload) in host.transmitted.drain(..) {
        match parse(&payload) {
            Parsed::Arp(packet) => {
                assert_eq!(to, Destination::Broadcast);
                assert_eq!(
                    (packet.sender_ip, packet.sender_hw),
                    (packet.target_ip, link(1, 0x48))
                );
            }
            Parsed::Nd(ip) => {
                let packet = NdPacket::parse(&ip).unwrap();
                let all_nodes: Ipv6Addr = "ff02::1".parse().unwrap();
                assert_eq!(
                    (to, packet.destination),
                    (Destination::Group(all_nodes), all_nodes)
                );
                assert_eq!(packet.link_address(), Some(link(1, 0x48)));
                let NdMessage::NeighborAdvertisement { flags, target } = packet.message else {
                    panic!()
                };
                assert!(flags.override_cached && !flags.solicited && target == six(v6(1)));
            }
        }
    }
    host.machine.add_address(host.now, v4(9), 16);
    host.drain();
    assert_eq!(host.take_arp().len(), 1);
    host.machine.link_down(host.now);
    host.run(10 * SECOND);
    assert!(host.transmitted.is_empty() && host.machine.poll_timeout().is_none());
}

#[test]
fn neighbor_discovery() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    host.send(v6(2));
    let (to, payload) = host.transmitted.pop().unwrap();
    assert_eq!(to, Destination::Group(solicited_node(six(v6(2)))));
    let Parsed::Nd(ip) = parse(&payload) else {
        panic!()
    };
    let packet = NdPacket::parse(&ip).unwrap();
    assert_eq!(
        (packet.source, packet.link_address()),
        (six(v6(1)), Some(link(1, 0x48)))
    );
    host.nd(peer, &na(v6(2), None, true, true));
    assert_eq!(
        host.state(v6(2)),
        Some(State::Incomplete),
        "an advertisement without address says nothing"
    );
    host.nd(peer, &na(v6(2), Some(peer), true, true));
    host.answer(peer.gid, 2);
    assert_eq!(
        (host.state(v6(2)), host.flushed.len()),
        (Some(State::Reachable), 1)
    );
    // RFC 4861 section 7.2.5: another address without override only raises doubt ...
    let other = link(3, 0x50);
    host.nd(other, &na(v6(2), Some(other), false, false));
    assert_eq!(
        (host.state(v6(2)), host.table[&v6(2)].address),
        (Some(State::Stale), peer)
    );
    host.nd(other, &na(v6(2), Some(other), true, false));
    assert_eq!(
        (host.state(v6(2)), host.table[&v6(2)].address),
        (Some(State::Stale), peer)
    );
    // ... the same address, solicited, removes it ...
    host.nd(peer, &na(v6(2), None, true, false));
    assert_eq!(host.state(v6(2)), Some(State::Reachable));
    host.nd(peer, &na(v6(2), Some(peer), false, true));
    assert_eq!(
        host.state(v6(2)),
        Some(State::Reachable),
        "unsolicited but nothing new"
    );
    // ... and override replaces.
    host.nd(other, &na(v6(2), Some(other), false, true));
    host.answer(other.gid, 3);
    assert_eq!(
        (host.state(v6(2)), host.table[&v6(2)].address),
        (Some(State::Stale), other)
    );
    host.nd(peer, &na(v6(2), Some(peer), true, true));
    host.answer(peer.gid, 2);
    assert_eq!(
        (host.state(v6(2)), host.table[&v6(2)].address),
        (Some(State::Reachable), peer)
    );
    host.nd(peer, &na(v6(7), Some(peer), false, true));
    assert_eq!(host.state(v6(7)), None, "no entry for what was not asked");
}

#[test]
fn solicitations_are_answered() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    let group = solicited_node(six(v6(1)));
    host.nd(
        peer,
        &neighbor_solicitation(six(v6(2)), group, six(v6(1)), Some(peer)),
    );
    host.answer(peer.gid, 2);
    let (to, payload) = host.transmitted.pop().unwrap();
    assert_eq!(unicast_to(to), peer);
    let Parsed::Nd(ip) = parse(&payload) else {
        panic!()
    };
    let packet = NdPacket::parse(&ip).unwrap();
    let NdMessage::NeighborAdvertisement { flags, target } = packet.message else {
        panic!()
    };
    assert!(flags.solicited && flags.override_cached && !flags.router);
    assert_eq!(
        (target, packet.source, packet.destination),
        (six(v6(1)), six(v6(1)), six(v6(2)))
    );
    assert_eq!(packet.link_address(), Some(link(1, 0x48)));
    assert_eq!(host.state(v6(2)), Some(State::Stale));
    // Duplicate address detection is answered to all nodes.
    host.nd(
        peer,
        &neighbor_solicitation(Ipv6Addr::UNSPECIFIED, group, six(v6(1)), None),
    );
    let (to, payload) = host.transmitted.pop().unwrap();
    assert_eq!(to, Destination::Group("ff02::1".parse().unwrap()));
    let Parsed::Nd(ip) = parse(&payload) else {
        panic!()
    };
    let NdMessage::NeighborAdvertisement { flags, .. } = NdPacket::parse(&ip).unwrap().message
    else {
        panic!()
    };
    assert!(!flags.solicited);
    // Without its link address the reply goes to the known one, as any packet.
    let installed = host.table[&v6(2)];
    host.nd(
        peer,
        &neighbor_solicitation(six(v6(2)), six(v6(1)), six(v6(1)), None),
    );
    assert_eq!(host.state(v6(2)), Some(State::Delay));
    assert_eq!(host.table[&v6(2)].address, installed.address);
    // For others' addresses we are silent.
    let group = solicited_node(six(v6(7)));
    host.nd(
        peer,
        &neighbor_solicitation(six(v6(2)), group, six(v6(7)), Some(peer)),
    );
    assert!(host.transmitted.is_empty());
    host.nd(
        link(1, 0x48),
        &neighbor_solicitation(six(v6(1)), group, six(v6(7)), Some(link(1, 0x48))),
    );
    assert_eq!(
        (host.conflicts, host.machine.counters().dropped_own),
        (0, 1)
    );
    host.nd(peer, &[0x60; 80]);
    assert_eq!(host.machine.counters().dropped_invalid, 1);
}

#[test]
fn trap_65_removes_at_once() {
    let mut host = Host::up();
    let peer = link(2, 0x49);
    host.make_reachable(v4(2), peer, 2);
    host.make_reachable(v4(3), link(3, 0x49), 3);
    host.send(v6(2));
    host.nd(peer, &na(v6(2), Some(peer), true, true));
    assert_eq!(host.table.len(), 3);
    host.machine.gid_out_of_service(host.now, peer.gid);
    host.drain();
    assert_eq!(host.table.keys().collect::<Vec<_>>(), [&v4(3)]);
    assert_eq!(host.machine.paths(host.now).count(), 1);
    // A packet that waits for its path asks anew.
    host.send(v4(2));
    host.arp_reply(v4(2), peer);
    assert!(host.queries.contains(&peer.gid));
    host.transmitted.clear();
    host.machine.gid_out_of_service(host.now, peer.gid);
    host.drain();
    assert_eq!(host.state(v4(2)), Some(State::Incomplete));
    assert_eq!(host.take_arp().len(), 1);
    host.answer(peer.gid, 2);
    assert!(
        !host.table.contains_key(&v4(2)),
        "the late answer is of no use"
    );
}

#[test]
fn trap_64_ends_back_off() {
    let mut host = Host::up();
    host.send(v4(2));
    host.run(3 * SECOND);
    assert_eq!(host.state(v4(2)), Some(State::Failed));
    host.machine.gid_in_service(host.now, gid(2));
    host.drain();
    host.make_reachable(v4(2), link(2, 0x49), 2);
    // A known path is asked for again: the port may have another LID.
    host.machine.gid_in_service(host.now, gid(2));
    host.drain();
    host.answer(gid(2), 7);
    assert_eq!(host.table[&v4(2)].path.dlid, Lid(7));
}

#[test]
fn refresh_keeps_forwarding() {
    let mut host = Host::up();
    for n in 2..102 {
        host.make_reachable(v4(n), link(n, 0x49), n as u16);
    }
    let installs = host.installs;
    host.machine.refresh_paths(host.now);
    let mut asked = 0;
    for step in 0..400 {
        host.run(5 * MS);
        // The SA forgets all, or a few moved, or nothing changed; the first attempts time out.
        for gid in std::mem::take(&mut host.queries) {
            asked += 1;
            let n = (gid.guid().0 & 0xffff) as u16;
            let result = match n {
                _ if step < 20 => Err(PathError::TimedOut),
                2..12 => Ok(record(n + 1000)),
                _ => Ok(record(n)),
            };
            host.machine.path_result(host.now, gid, result);
            host.drain();
        }
        assert_eq!(host.table.len(), 100);
    }
    assert!((101..=200).contains(&asked), "{asked}");
    assert_eq!(host.installs, installs + 10);
    assert_eq!(host.table[&v4(2)].path.dlid, Lid(1002));
    assert_eq!(host.machine.counters().path_changed, 10);
}

#[test]
fn a_path_refused_again_and_again_is_dropped() {
    let mut host = Host::up();
    host.make_reachable(v4(2), link(2, 0x49), 2);
    host.machine.refresh_paths(host.now);
    let mut refused = 0;
    while host.state(v4(2)) == Some(State::Reachable) && refused < 10 {
        assert!(host.table.contains_key(&v4(2)));
        host.run(SECOND);
        for gid in std::mem::take(&mut host.queries) {
            refused += 1;
            host.machine
                .path_result(host.now, gid, Err(PathError::NotFound));
            host.drain();
        }
    }
    assert_eq!((refused, host.state(v4(2))), (5, Some(State::Failed)));
    assert!(host.table.is_empty());
}

#[test]
fn queues_are_bounded() {
    let config = NeighbourConfig {
        queue_packets: 4,
        queue_bytes: 100,
        total_queue_bytes: 250,
        ..NeighbourConfig::default()
    };
    let mut host = Host::new(config, 1, Instant::now());
    host.machine.link_up(host.now, link(1, 0x48));
    for _ in 0..6 {
        host.send(v4(2));
    }
    assert_eq!(host.machine.get(host.now, v4(2)).unwrap().queued, 4);
    // 32 bytes wait for host 2; 90 of 100 for host 3, 90 for host 4: not another 90 for host 5.
    for n in [3, 3, 4, 5] {
        host.machine.send(host.now, v4(n), vec![0; 90]);
    }
    let queued: Vec<usize> = host
        .machine
        .neighbours(host.now)
        .map(|i| i.queued)
        .collect();
    assert_eq!(queued, [4, 1, 1, 0]);
    assert_eq!(host.machine.counters().dropped_queue_full, 2 + 1 + 1);
    host.run(3 * SECOND);
    let oldest_first: Vec<u64> = host.unreachable.iter().map(|&(_, id)| id).collect();
    assert_eq!(oldest_first, [3, 4, 5, 6]);
}

#[test]
fn packets_do_not_wait_for_ever() {
    let mut host = Host::up();
    host.send(v4(2));
    host.arp_reply(v4(2), link(2, 0x49));
    host.run(5 * SECOND - MS);
    assert!(host.unreachable.is_empty());
    host.run(MS);
    assert_eq!(host.unreachable.len(), 1);
    host.answer(gid(2), 2);
    assert!(host.table.contains_key(&v4(2)) && host.flushed.is_empty());
}

#[test]
fn link_down_keeps_neighbours_as_stale() {
    let mut host = Host::up();
    host.make_reachable(v4(2), link(2, 0x49), 2);
    host.send(v4(3));
    host.machine.link_down(host.now);
    host.drain();
    assert_eq!(host.unreachable.len(), 1);
    assert_eq!(
        (host.state(v4(2)), host.state(v4(3))),
        (Some(State::Stale), None)
    );
    assert!(host.table.is_empty());
    let id = host.send(v4(2));
    assert_eq!(host.unreachable.last(), Some(&(v4(2), id)));
    host.transmitted.clear();
    host.machine.link_up(host.now, link(1, 0x60));
    host.run(SECOND);
    assert!(host.use_table(v4(2)));
    assert!(
        host.take_arp()
            .iter()
            .all(|(_, packet)| packet.sender_hw == link(1, 0x60))
    );
    host.answer(gid(2), 5);
    assert_eq!(host.table[&v4(2)].path.dlid, Lid(5));
}

#[test]
fn the_source_of_a_request_is_in_the_targets_prefix() {
    let mut host = Host::up();
    let far: IpAddr = "192.168.7.1".parse().unwrap();
    let link_local: IpAddr = "fe80::1".parse().unwrap();
    host.machine.add_address(host.now, far, 24);
    host.machine.add_address(host.now, link_local, 64);
    host.run(5 * SECOND);
    host.transmitted.clear();
    for (target, source) in [
        ("192.168.7.9", far),
        ("10.77.3.3", v4(1)),
        ("172.16.0.1", far),
    ] {
        host.send(target.parse().unwrap());
        let asked = host.take_arp();
        assert_eq!(asked[0].1.sender_ip, four(source), "{target}");
    }
    for (target, source) in [
        ("fe80::9", link_local),
        ("fd77::9", v6(1)),
        ("fd99::9", link_local),
    ] {
        host.send(target.parse().unwrap());
        let (_, payload) = host.transmitted.pop().unwrap();
        let Parsed::Nd(ip) = parse(&payload) else {
            panic!()
        };
        assert_eq!(
            NdPacket::parse(&ip).unwrap().source,
            six(source),
            "{target}"
        );
    }
}
