//! What fuzzers call: each takes any bytes. The same functions run on stable Rust over the corpus (`corpus.rs`).
//!
//! Those that drive machines read records: kind, argument, length (two bytes, little-endian), and that many bytes.

use crate::sim::{Input, MachineId, Sim, SmPlace};
use arp::Source;
use datapath::plane::Upcall;
use fabric::node::NodeInput;
use fabric::sm::SmConfig;
use std::time::Duration;
use verbs::{GrhInfo, MadReceived, Port};
use wire::describe::{describe, describe_packet, reemit};
use wire::mad::{MAD_LEN, MadBytes};
use wire::packet::{FlowControl, Packet, vcrc_ok};
use wire::{Gid, Lid, PKey, Qpn, ServiceLevel};

/// Hosts of the subnets that the targets drive.
pub const HOSTS: usize = 2;
/// The machine of the switch's control: the first that is added.
pub const SWITCH: MachineId = 0;
/// Events in ten quiet seconds of a subnet of this size. Sweeps, renewed joins and neighbours need hundreds.
const STORM: u64 = 100_000;

/// All of `wire` that reads packets.
pub fn packet_parse(data: &[u8]) {
    let _ = vcrc_ok(data);
    // A line for whatever it is; what parses must come out with the same length.
    let _ = describe(data);
    if let Ok(packet) = Packet::parse_unchecked(data) {
        let _ = describe_packet(&packet);
        let mut again = Vec::new();
        packet
            .emit_into(&mut again)
            .expect("what was read can be written");
        assert_eq!(again.len(), packet.wire_len());
        let read = Packet::parse_unchecked(&again).expect("what was written can be read");
        assert_eq!(
            (read.payload, read.bth, read.grh),
            (packet.payload, packet.bth, packet.grh)
        );
        let mut fresh = Vec::new();
        Packet {
            icrc: None,
            ..packet
        }
        .emit_into(&mut fresh)
        .expect("as above");
        Packet::parse_strict(&fresh).expect("right CRCs");
        let once = reemit(&fresh).expect("a right packet");
        // Reserved bits may be lost once, never twice.
        assert_eq!(reemit(&once).as_deref(), Ok(&once[..]));
    }
}

/// All of `wire` that reads MADs.
pub fn mad_parse(data: &[u8]) {
    let mad = mad_of(data);
    let _ = wire::mad::describe::describe(&mad);
    if let Some(once) = wire::mad::describe::reemit(&mad) {
        let twice = wire::mad::describe::reemit(&once).expect("what was written can be read");
        assert_eq!(once, twice);
    }
}

/// The subnet manager, with a subnet to manage, gets MADs.
pub fn sm(data: &[u8]) {
    let (mut sim, sm) = subnet(HOSTS, true);
    for (kind, argument, bytes) in records(data) {
        match kind {
            0xff => sim.run_for(Duration::from_millis(10 * u64::from(argument))),
            _ => sim
                .net
                .put(sm, Input::Mad(received(&sim, kind, argument, bytes)))
                .then_some(())
                .expect("no bound there"),
        }
        sim.poke(0);
    }
    survives(&mut sim);
}

/// An interface gets MADs, ARP and ND packets, and packets of its host; the agents of the nodes get MADs.
pub fn interface(data: &[u8]) {
    let (mut sim, _) = subnet(HOSTS, true);
    for (kind, argument, bytes) in records(data) {
        let interface = sim.alive(0).interface;
        let source = || Source {
            lid: sim.alive(1).hca.attributes().lid,
            qpn: Qpn::new(u32::from(argument) << 2 | 2),
            gid: (argument & 1 != 0).then(|| sim.gid(1)),
            multicast: argument & 2 != 0,
        };
        let (machine, input) = match kind & 7 {
            0 => (
                interface,
                Input::Interface(datapath::Input::Mad(received(&sim, kind, argument, bytes))),
            ),
            1 => (
                interface,
                Input::Interface(datapath::Input::Upcall(Upcall::Arp(
                    source(),
                    bytes.to_vec(),
                ))),
            ),
            2 => (
                interface,
                Input::Interface(datapath::Input::Upcall(Upcall::Nd(
                    source(),
                    bytes.to_vec(),
                ))),
            ),
            3 => (
                interface,
                Input::Interface(datapath::Input::Upcall(Upcall::Miss(
                    [&[8, 0, 0, 0], bytes].concat(),
                ))),
            ),
            4 => (
                interface,
                Input::Interface(datapath::Input::Upcall(Upcall::TooBig(
                    bytes.to_vec(),
                    usize::from(argument) << 4,
                ))),
            ),
            5 => (
                SWITCH,
                Input::Node(NodeInput::Mad {
                    mad: received(&sim, kind, argument, bytes),
                    ingress: argument & 3,
                }),
            ),
            6 => (
                hca_control(&sim, 0),
                Input::Node(NodeInput::Mad {
                    mad: received(&sim, kind, argument, bytes),
                    ingress: argument & 1,
                }),
            ),
            _ => {
                sim.run_for(Duration::from_millis(10 * u64::from(argument)));
                continue;
            }
        };
        sim.net.put(machine, input);
        sim.poke(0);
    }
    survives(&mut sim);
}

/// What comes in by a UDP link, from its parser on: a host that is part of the subnet sends it.
pub fn datagram(data: &[u8]) {
    let (mut sim, _) = subnet(HOSTS, true);
    for (kind, argument, bytes) in records(data) {
        let mut bytes = bytes.to_vec();
        if kind & 1 != 0 {
            crate::mutate::repair(&mut bytes);
        }
        deliver(&mut sim, argument & 3, &bytes);
        if kind & 2 != 0 {
            sim.run_for(Duration::from_millis(u64::from(argument)));
        }
    }
    survives(&mut sim);
}

/// A datagram arrives at a port of the switch.
pub fn deliver(sim: &mut Sim, port: u8, bytes: &[u8]) {
    if bytes.len() == FlowControl::LEN {
        let _ = FlowControl::parse(bytes);
    } else if let Ok(packet) = Packet::parse(bytes) {
        sim.switches[0].switch.port(port.max(1)).receive(&[packet]);
        sim.poke(0);
    }
}

/// A switch with a subnet manager and hosts that are up. What is above the interfaces is either smoltcp, which takes any packets, or answers echo
/// requests and wants nothing but right packets.
pub fn subnet(hosts: usize, stacks: bool) -> (Sim, MachineId) {
    let mut sim = Sim::new(1);
    sim.add_switch(4);
    let sm = sim.start_sm(SmPlace::Switch(0), SmConfig::default());
    for h in 0..hosts {
        sim.add_host(0);
        sim.hosts[h].is_stack = stacks;
        sim.start(h);
    }
    assert!(sim.run_until(Duration::from_secs(10), |sim| {
        (0..hosts).all(|h| sim.is_up(h))
    }));
    (sim, sm)
}

/// The machine of an HCA's control: added just before its interface.
pub fn hca_control(sim: &Sim, h: usize) -> MachineId {
    sim.alive(h).interface - 1
}

/// Time goes on, and nobody talks without end.
pub fn survives(sim: &mut Sim) {
    sim.run_for(Duration::from_secs(5));
    let before = sim.events;
    sim.run_for(Duration::from_secs(10));
    let events = sim.events - before;
    assert!(events < STORM, "{events} events in ten quiet seconds");
}

fn records(mut data: &[u8]) -> impl Iterator<Item = (u8, u8, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = data.split_at_checked(4)?;
        let len = usize::from(u16::from_le_bytes([head[2], head[3]])).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        data = rest;
        Some((head[0], head[1], bytes))
    })
    // A fuzzer finds nothing new in the thousandth.
    .take(64)
}

/// A record for [`sm`], [`interface`] or [`datagram`].
pub fn record(kind: u8, argument: u8, bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u16).to_le_bytes();
    [&[kind, argument, len[0], len[1]], bytes].concat()
}

fn mad_of(data: &[u8]) -> MadBytes {
    let mut mad = [0; MAD_LEN];
    let len = data.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&data[..len]);
    mad
}

/// A MAD with addresses that are right or wrong by `kind` and `argument`.
fn received(sim: &Sim, kind: u8, argument: u8, bytes: &[u8]) -> MadReceived {
    let lid = |h: usize| sim.alive(h).hca.attributes().lid;
    let slid = match argument & 7 {
        0 => lid(0),
        1 => lid(1),
        2 => Lid(1),
        3 => Lid::PERMISSIVE,
        4 => Lid(0),
        5 => Lid(0xc000),
        _ => Lid(u16::from(argument)),
    };
    let grh = |gid: Gid| GrhInfo {
        sgid: gid,
        dgid: gid,
        hop_limit: 0xff,
        traffic_class: 0,
        flow_label: 0,
    };
    MadReceived {
        slid,
        dlid: Lid(1),
        src_qp: if argument & 8 == 0 {
            Qpn::GSI
        } else {
            Qpn::SMI
        },
        dest_qp: if kind & 8 == 0 { Qpn::GSI } else { Qpn::SMI },
        sl: ServiceLevel(0),
        p_key: PKey(if argument & 16 == 0 { 0xffff } else { 0x7fff }),
        grh: (argument & 32 != 0).then(|| grh(sim.gid(1))),
        mad: Box::new(mad_of(bytes)),
    }
}
