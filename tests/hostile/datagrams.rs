//! Mutated datagrams into the UDP link of a running subnet, while two of its hosts ping each other.

use crate::mutate::{self, mutate};
use crate::net::Random;
use crate::world::{PATIENCE, Pings, Victim, World};
use crate::{host, watch};
use fabric::sm::SmConfig;
use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use verbs::Port;
use wire::ipoib::nd::{NdMessage, NdPacket};
use wire::ipoib::{ArpPacket, EncapHeader, EtherType};
use wire::mad::{AttrId, MadHeader, Method, MgmtClass, Smp};
use wire::packet::{FlowControl, Packet};
use wire::{Lid, Qpn};

/// Growth of memory that full tables and allocators explain.
const GROWTH: u64 = 100 << 20;

/// Is this a right packet that has a right to change something of others? InfiniBand asks nobody for a password unless there is an M_Key: a Set of
/// an SMP rules the subnet; whoever takes the LID of another speaks for it at the SA. ARP and ND are believed, as on any network.
fn rules(bytes: &[u8], lids: &[Lid]) -> bool {
    let Ok(packet) = Packet::parse(bytes) else {
        return false;
    };
    let mad = || MadHeader::parse(packet.payload);
    match packet.bth.dest_qp {
        Qpn::SMI => mad().is_some_and(|mad| mad.method == Method::SET),
        Qpn::GSI => {
            lids.contains(&packet.lrh.slid)
                && mad().is_some_and(|mad| mad.mgmt_class == MgmtClass::SUBN_ADM)
        }
        _ => {
            let victims = [host::v4(0), host::v4(1), host::v6(0), host::v6(1)];
            match EncapHeader::split(packet.payload) {
                Some((EtherType::ARP, rest)) => ArpPacket::parse(rest)
                    .is_ok_and(|arp| victims.contains(&IpAddr::V4(arp.sender_ip))),
                Some((EtherType::IPV6, rest)) => NdPacket::parse(rest).is_ok_and(|nd| {
                    let target = match nd.message {
                        NdMessage::NeighborAdvertisement { target, .. } => Some(IpAddr::V6(target)),
                        _ => None,
                    };
                    victims.contains(&IpAddr::V6(nd.source))
                        || target.is_some_and(|target| victims.contains(&target))
                }),
                _ => false,
            }
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    repaired: u64,
    /// From an address without a link.
    foreign: u64,
    /// Not sent: see [`rules`].
    spared: u64,
}

/// Sends `total` mutated datagrams. Those that are not `allowed` are not sent.
fn attack(world: &mut World, total: u64, seed: u64, allowed: impl Fn(&[u8]) -> bool) -> Tally {
    let World {
        attackers,
        listener,
        seeds,
        ..
    } = world;
    let mut random = Random(seed);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.connect(listener.local_addr()).unwrap();
    let mut tally = Tally::default();
    let mut bytes = Vec::new();
    while tally.sent < total {
        bytes.clear();
        bytes.extend_from_slice(&seeds[random.below(seeds.len())]);
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut random, &mut bytes, other);
        let repaired = random.below(4) > 0;
        if repaired {
            mutate::repair(&mut bytes);
        }
        if !allowed(&bytes) {
            tally.spared += 1;
            continue;
        }
        // A valid one would make a link of the stranger.
        if !repaired
            && random.below(4) == 0
            && bytes.len() != FlowControl::LEN
            && Packet::parse(&bytes).is_err()
        {
            let before = listener.counters().rx_unknown.get();
            tally.foreign += 1;
            if stranger.send(&bytes).is_ok() {
                let begun = Instant::now();
                // It has a window of one.
                while listener.counters().rx_unknown.get() == before
                    && begun.elapsed() < Duration::from_millis(100)
                {
                    thread::yield_now();
                }
            }
        } else {
            attackers[random.below(2)].send(&bytes, listener);
            tally.repaired += u64::from(repaired);
        }
        tally.sent += 1;
    }
    tally
}

fn stats(world: &World) -> String {
    let list = |values: Vec<(&'static str, u64)>| {
        values
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| format!("{name} {n}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut text = format!("listener: {}\n", list(world.listener.counters().values()));
    for attacker in &world.attackers {
        text += &format!(
            "  link of an attacker, LID {}: {}\n",
            attacker.hca.attributes().lid,
            list(attacker.counters.values())
        );
    }
    for (_, switch) in world.subnet.switches() {
        text += &format!("  switch: {}\n", list(switch.drops().iter().collect()));
    }
    for victim in &world.victims {
        let interface = victim
            .node()
            .inbox()
            .call(|interface, _| interface.stats())
            .unwrap();
        let interface: Vec<String> = interface
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        text += &format!(
            "  host {}: {}; {}\n",
            victim.h,
            list(victim.node().hca().drops().iter().collect()),
            interface.join(", ")
        );
    }
    text
}

#[test]
fn a_ping_goes_on_under_attack() {
    let panics = watch::panics();
    let total = watch::count("IPOIB_HOSTILE", 200_000);
    let mut world = World::start(SmConfig::default());
    let lids: Vec<Lid> = world
        .victims
        .iter()
        .map(Victim::lid)
        .chain([Lid(1), world.victims[0].node().hca().attributes().sm_lid])
        .collect();
    // Tables, caches and allocators fill up first.
    attack(&mut world, total / 10, 1, |bytes| !rules(bytes, &lids));
    let memory = watch::resident();
    let begun = Instant::now();
    let pings = Pings::start(&world.victims[0]);
    let tally = attack(&mut world, total - total / 10, 2, |bytes| {
        !rules(bytes, &lids)
    });
    let (pinged, lost) = pings.finish(&world.victims[0]);
    let grown = watch::resident().saturating_sub(memory);
    eprintln!(
        "{tally:?} in {:?}, {pinged} pings, {} lost, memory grew by {} KiB\n{}",
        begun.elapsed(),
        lost.len(),
        grown >> 10,
        stats(&world)
    );
    assert!(pinged > 10);
    assert_eq!(watch::panics(), panics, "threads panicked");
    assert!(lost.is_empty(), "{lost:?}");
    assert!(grown < GROWTH, "memory grew by {grown} bytes");
}

/// SMPs rule a subnet, and here anybody's are taken: what two hosts were told by them, the subnet manager puts right.
#[test]
fn the_subnet_heals_after_false_management() {
    let panics = watch::panics();
    let total = watch::count("IPOIB_HOSTILE", 200_000) / 4;
    let mut world = World::start(SmConfig {
        sweep_interval: Duration::from_secs(1),
        ..SmConfig::default()
    });
    let tally = attack(&mut world, total, 3, keep_keys);
    eprintln!("{tally:?}\n{}", stats(&world));
    let healed = world.victims[0].reaches(host::v4(1), PATIENCE)
        && world.victims[1].reaches(host::v6(0), PATIENCE);
    for victim in &world.victims {
        eprintln!(
            "host {}: {}",
            victim.h,
            victim
                .node()
                .inbox()
                .call(|interface, _| interface.state_in_words())
                .unwrap()
        );
    }
    assert_eq!(watch::panics(), panics, "threads panicked");
    assert!(healed, "{}", stats(&world));
}

/// With another M_Key it is not the subnet of this manager any more (IBA 14.2.4): nothing else is spared.
fn keep_keys(bytes: &[u8]) -> bool {
    let Ok(packet) = Packet::parse(bytes) else {
        return true;
    };
    if packet.bth.dest_qp != Qpn::SMI {
        return true;
    }
    let Some(smp) = Smp::parse(packet.payload) else {
        return true;
    };
    smp.header.method != Method::SET
        || smp.header.attr_id != AttrId::PORT_INFO
        || (smp.data[..8] == [0; 8] && smp.data[25] >> 6 == 0)
}
