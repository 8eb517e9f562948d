//! Against what two Linux kernels said to each other: put in the place of either, the machine sends the same bytes.
#![allow(clippy::unwrap_used)]

mod common;

use arp::{Destination, NeighbourConfig};
use common::*;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;
use wire::ipoib::arp::ArpOperation;
use wire::ipoib::nd::{NdMessage, NdPacket};
use wire::ipoib::{ArpPacket, EncapHeader, EtherType, LinkAddress};
use wire::packet::Packet;

/// Encapsulated payloads of a capture's unreliable datagrams with ARP or ND, and whether each went to a group.
fn payloads() -> Option<Vec<(bool, Vec<u8>)>> {
    let path = "../../shared/kernel-peer/captures/01-ud-basic.pcap";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let Ok(bytes) = std::fs::read(&path) else {
        eprintln!("SKIPPED: {} is absent", path.display());
        return None;
    };
    let (mut rest, mut payloads) = (&bytes[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (record, after) = rest[16..].split_at(len);
        rest = after;
        let wire_len = usize::from(u16::from_be_bytes([record[14], record[15]]));
        let Ok(packet) = Packet::parse(&record[16..16 + wire_len]) else {
            continue;
        };
        let kind = EncapHeader::split(packet.payload).map(|(kind, _)| kind);
        let nd = |p: &[u8]| wire::ipoib::nd::is_neighbor_discovery(p.get(4..).unwrap_or_default());
        if kind == Some(EtherType::ARP) || kind == Some(EtherType::IPV6) && nd(packet.payload) {
            payloads.push((packet.lrh.dlid.is_multicast(), packet.payload.to_vec()));
        }
    }
    Some(payloads)
}

fn arp_of(payload: &[u8]) -> Option<ArpPacket> {
    EncapHeader::split(payload)
        .filter(|(kind, _)| *kind == EtherType::ARP)
        .map(|(_, p)| ArpPacket::parse(p).unwrap())
}
fn nd_of(payload: &[u8]) -> Option<NdPacket<'_>> {
    EncapHeader::split(payload)
        .filter(|(kind, _)| *kind == EtherType::IPV6)
        .map(|(_, p)| NdPacket::parse(p).unwrap())
}

/// The machine of the host with these addresses.
fn host(address: LinkAddress, ip: IpAddr) -> Host {
    let config = NeighbourConfig {
        announcements: 0,
        ..NeighbourConfig::default()
    };
    let mut host = Host::new(config, 1, Instant::now());
    host.machine.add_address(host.now, ip, 24);
    host.machine.link_up(host.now, address);
    host.drain();
    host
}

#[test]
fn arp_as_the_kernel_says_it() {
    let Some(payloads) = payloads() else { return };
    let (mut requests, mut replies) = (0, 0);
    for (multicast, payload) in &payloads {
        let Some(packet) = arp_of(payload) else {
            continue;
        };
        let (sender, target) = (IpAddr::V4(packet.sender_ip), IpAddr::V4(packet.target_ip));
        if packet.operation == ArpOperation::REQUEST && *multicast && sender != target {
            let mut asking = host(packet.sender_hw, sender);
            asking.send(target);
            assert_eq!(
                asking.transmitted,
                [(Destination::Broadcast, payload.clone())]
            );
            requests += 1;
        } else if packet.operation == ArpOperation::REPLY {
            let mut answering = host(packet.sender_hw, sender);
            answering.arp_request(target, packet.target_hw, sender);
            answering.answer(packet.target_hw.gid, 3);
            assert_eq!(answering.transmitted.len(), 1);
            assert_eq!(answering.transmitted[0].1, *payload);
            let mut asking = host(packet.target_hw, target);
            let id = asking.send(sender);
            let source = from(packet.sender_hw, false);
            asking.machine.handle_arp(asking.now, source, &packet);
            asking.drain();
            asking.answer(packet.sender_hw.gid, 4);
            assert_eq!(asking.flushed, [(sender, id)]);
            replies += 1;
        }
    }
    assert!(
        requests > 0 && replies > 0,
        "{requests} requests, {replies} replies"
    );
}

#[test]
fn neighbor_discovery_as_the_kernel_says_it() {
    let Some(payloads) = payloads() else { return };
    let (mut requests, mut replies) = (0, 0);
    for (multicast, payload) in &payloads {
        let Some(packet) = nd_of(payload) else {
            continue;
        };
        let source = IpAddr::V6(packet.source);
        match (packet.message, packet.link_address()) {
            (NdMessage::NeighborSolicitation { target }, Some(address)) if *multicast => {
                let mut asking = host(address, source);
                asking.send(IpAddr::V6(target));
                let group = Destination::Group(packet.destination);
                assert_eq!(asking.transmitted, [(group, payload.clone())]);
                // The other kernel's advertisement, the next with this target.
                let answer = payloads.iter().filter_map(|(_, p)| Some((p, nd_of(p)?))).find(|(_, nd)| {
                    nd.link_address().is_some()
                        && matches!(nd.message, NdMessage::NeighborAdvertisement { target: t, .. } if t == target)
                        && nd.destination == packet.source
                });
                let Some((answer, advertisement)) = answer else {
                    continue;
                };
                let peer = advertisement.link_address().unwrap();
                let mut answering = host(peer, IpAddr::V6(target));
                answering.nd(address, &payload[4..]);
                answering.answer(address.gid, 3);
                assert_eq!(answering.transmitted.len(), 1);
                assert_eq!(answering.transmitted[0].1, *answer);
                asking.nd(peer, &answer[4..]);
                asking.answer(peer.gid, 4);
                assert_eq!(asking.flushed.len(), 1);
                assert_eq!(
                    asking.state(IpAddr::V6(target)),
                    Some(arp::State::Reachable)
                );
                replies += 1;
            }
            _ => continue,
        }
        requests += 1;
    }
    assert!(
        requests > 0 && replies > 0,
        "{requests} requests, {replies} replies"
    );
}
