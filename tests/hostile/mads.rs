//! Mutated MADs straight into managers and agents, and mutated ARP, ND and IP packets into interfaces, in virtual time.

use crate::corpus::{bring_up, mads};
use crate::mutate::{self, mutate};
use crate::net::Random;
use crate::sim::{Input, MachineId, Sim};
use crate::targets::{HOSTS, SWITCH, hca_control, subnet, survives};
use crate::{host, watch};
use arp::Source;
use datapath::plane::Upcall;
use fabric::node::NodeInput;
use mad::{SaClient, SaClientConfig, SaRequest, SmAddress};
use std::path::Path;
use std::time::{Duration, Instant};
use verbs::{GrhInfo, MadReceived, Port};
use wire::ipoib::ENCAP_LEN;
use wire::mad::attr::{JoinState, McMemberRecord, ServiceRecord, TrapNumber};
use wire::mad::sa::ComponentMask;
use wire::mad::{AttrId, MadBytes, Method};
use wire::packet::Packet;
use wire::{Gid, Lid, PKey, QKey, Qpn, ServiceLevel};

/// Growth of memory that the tables of a subnet manager explain, when they are as full as one port may make them.
const GROWTH: u64 = 200 << 20;
/// MADs between two looks at the tables.
const LOOK: u64 = 5000;
/// MADs that a subnet gets in which they may do anything.
const LIFE: u64 = 10_000;

fn total() -> u64 {
    watch::count("IPOIB_HOSTILE_MADS", 100_000)
}

/// MADs to begin with: those of a bring-up, and those of others.
pub struct Seeds {
    mads: Vec<(Box<MadBytes>, bool)>,
    ip: Vec<Vec<u8>>,
}

impl Seeds {
    pub fn new() -> Seeds {
        let frames = bring_up();
        let mut list = mads(&frames);
        assert!(list.len() > 200, "{}", list.len());
        for folder in ["mads", "kernel-peer/vectors"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../shared")
                .join(folder);
            let Ok(entries) = std::fs::read_dir(&path) else {
                eprintln!("SKIPPED: {} is absent", path.display());
                continue;
            };
            let mut files: Vec<_> = entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|e| e == "hex"))
                .collect();
            files.sort();
            for file in files {
                let text = std::fs::read_to_string(file).unwrap();
                let words = text.split_whitespace().filter(|word| !word.ends_with(':'));
                let bytes: Vec<u8> = words
                    .map(|word| u8::from_str_radix(word, 16).unwrap())
                    .collect();
                match bytes.len() {
                    256 => list.push((bytes.clone(), matches!(bytes[1], 1 | 0x81))),
                    _ => list.extend(mads(&[bytes])),
                }
            }
        }
        list.extend(requests());
        // Each kind as often as any other, not as often as it was sent.
        let mut kinds = std::collections::BTreeMap::<_, Vec<_>>::new();
        for (bytes, smp) in list {
            let kind = (bytes[1], bytes[3], bytes[16], bytes[17]);
            let mad: Box<MadBytes> = bytes.try_into().unwrap();
            kinds.entry(kind).or_default().push((mad, smp));
        }
        let mads = kinds
            .into_values()
            .flat_map(|list| {
                let step = list.len().div_ceil(4);
                list.into_iter().step_by(step)
            })
            .collect();
        let ip = frames
            .iter()
            .filter_map(|frame| {
                Packet::parse(frame)
                    .ok()
                    .filter(|p| p.bth.dest_qp.0 > 1)
                    .map(|p| p.payload.to_vec())
            })
            .collect();
        Seeds { mads, ip }
    }

    pub fn mad(&self, random: &mut Random) -> (Box<MadBytes>, bool) {
        let (seed, smp) = &self.mads[random.below(self.mads.len())];
        let (other, _) = &self.mads[random.below(self.mads.len())];
        (mutate::mad(random, seed, other), *smp)
    }

    /// Without encapsulation header.
    fn bare(&self, random: &mut Random) -> Vec<u8> {
        let mut packet = self.ip(random);
        packet.split_off(ENCAP_LEN.min(packet.len()))
    }

    /// With it.
    fn ip(&self, random: &mut Random) -> Vec<u8> {
        let mut packet = self.ip[random.below(self.ip.len())].clone();
        let other = &self.ip[random.below(self.ip.len())];
        mutate(random, &mut packet, other);
        packet
    }
}

/// What a bring-up does not ask of the SA: new groups, services, reports, tables. By the third host.
fn requests() -> Vec<(Vec<u8>, bool)> {
    let port_gid = Gid::new(Gid::DEFAULT_PREFIX, wire::Guid(0x0002_c903_0000_0003));
    let group = |n: u8| McMemberRecord {
        mgid: Gid([
            0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 2, 3, n,
        ]),
        port_gid,
        q_key: QKey(0xb1b),
        p_key: PKey(0xffff),
        join_state: JoinState::FULL,
        ..McMemberRecord::default()
    };
    let service = ServiceRecord {
        service_gid: port_gid,
        service_p_key: PKey(0xffff),
        ..ServiceRecord::default()
    };
    let now = Instant::now();
    let mut client = SaClient::new(SaClientConfig::default(), 7, 1);
    client.set_sm(
        now,
        Some(SmAddress {
            lid: Lid(1),
            sl: ServiceLevel(0),
            p_key: PKey(0xffff),
        }),
    );
    let tables = [
        AttrId::NODE_RECORD,
        AttrId::PORT_INFO_RECORD,
        AttrId::PATH_RECORD,
        AttrId::MC_MEMBER_RECORD,
        AttrId::SERVICE_RECORD,
        AttrId::INFORM_INFO_RECORD,
    ];
    let requests = [
        SaRequest::join_or_create(&group(1)),
        SaRequest::join_or_create(&group(2)),
        SaRequest::register_service(&service),
        SaRequest::subscribe(TrapNumber(65)),
        SaRequest::unsubscribe(TrapNumber(65)),
    ];
    for request in requests
        .into_iter()
        .chain(tables.map(|table| SaRequest::get_table(table, ComponentMask(0), &[0; 200])))
    {
        client.request(now, request);
    }
    let mut list = Vec::new();
    for n in 0..100 {
        list.extend(
            std::iter::from_fn(|| client.poll_transmit()).map(|send| (send.mad.to_vec(), false)),
        );
        // Those that wait for room in the window.
        client.handle_timeout(now + Duration::from_secs(n));
    }
    list
}

fn received(
    random: &mut Random,
    mad: Box<MadBytes>,
    smp: bool,
    slid: Lid,
    gids: &[Gid],
) -> MadReceived {
    let grh = |random: &mut Random| GrhInfo {
        sgid: gids[random.below(gids.len())],
        dgid: gids[random.below(gids.len())],
        hop_limit: random.next() as u8,
        traffic_class: 0,
        flow_label: 0,
    };
    // One in sixteen comes to the wrong queue pair.
    let to_smi = smp != (random.below(16) == 0);
    MadReceived {
        slid,
        dlid: Lid([1, 0xffff, random.next() as u16][random.below(3)]),
        src_qp: Qpn::new(if random.below(16) == 0 {
            random.next() as u32
        } else {
            u32::from(!smp)
        }),
        dest_qp: if to_smi { Qpn::SMI } else { Qpn::GSI },
        sl: ServiceLevel(random.below(16) as u8),
        p_key: PKey([0xffff, 0xffff, 0x7fff, random.next() as u16][random.below(4)]),
        grh: (random.below(4) == 0).then(|| grh(random)),
        mad,
    }
}

/// Tables stay within what their limits say; nobody counts on these numbers but this test.
fn look(sim: &Sim, sm: MachineId, hosts: usize) {
    let manager = sim.sm(sm);
    assert!(
        manager.nodes().len() <= 64,
        "{} nodes",
        manager.nodes().len()
    );
    let groups = manager.groups();
    assert!(
        groups.len() <= 4096 * (hosts + 1) + 8,
        "{} groups",
        groups.len()
    );
    for h in 0..hosts {
        let interface = sim.interface(h);
        let lengths = [
            interface.neighbour_status(sim.now()).len(),
            interface.path_status(sim.now()).len(),
            interface.group_status().len(),
        ];
        assert!(
            lengths.iter().all(|len| *len <= 20_000),
            "neighbours, paths, groups: {lengths:?}"
        );
    }
}

fn members(sim: &Sim, sm: MachineId, h: usize) -> Vec<Gid> {
    let gid = sim.gid(h);
    let groups = sim.sm(sm).groups();
    groups
        .iter()
        .filter(|group| group.members.iter().any(|(member, _)| *member == gid))
        .map(|group| group.mgid)
        .collect()
}

/// One host sends whatever it likes to the subnet manager and the SA: the others keep what they joined, and talk to each other.
#[test]
fn the_manager_under_attack_of_one_host() {
    let panics = watch::panics();
    let seeds = Seeds::new();
    let mut random = Random(2);
    let attacker = HOSTS;
    let (mut sim, sm) = subnet(HOSTS + 1, false);
    sim.run_for(Duration::from_secs(2));
    assert!(
        sim.ping_until_answered(
            &[(0, host::v4(1)), (1, host::v6(0))],
            Duration::from_secs(5)
        )
        .is_empty()
    );
    let joined: Vec<Vec<Gid>> = (0..HOSTS).map(|h| members(&sim, sm, h)).collect();
    assert!(joined.iter().all(|groups| groups.len() >= 3), "{joined:?}");
    let gids: Vec<Gid> = (0..=HOSTS).map(|h| sim.gid(h)).collect();
    let (mut pings, mut memory) = (Vec::new(), 0);
    for n in 0..total() {
        let (mad, smp) = seeds.mad(&mut random);
        // It cannot take another's LID: who can is able to speak for it. LIDs of nobody are not excluded.
        let own = sim.alive(attacker).hca.attributes().lid;
        let slid = match random.below(8) {
            0 => [Lid(0), Lid(0xbfff), Lid(0xc000), Lid::PERMISSIVE][random.below(4)],
            _ => own,
        };
        let mad = received(&mut random, mad, smp, slid, &gids);
        sim.net.put(sm, Input::Mad(mad));
        if n % 16 == 0 {
            sim.poke(0);
            sim.run_for(Duration::from_micros(500));
        }
        if n % 2000 == 0 {
            let to = [host::v4(1), host::v6(1)][random.below(2)];
            pings.push(sim.ping(0, to));
        }
        if n % LOOK == 0 {
            look(&sim, sm, HOSTS + 1);
        }
        if n == total() / 4 {
            memory = watch::resident();
        }
    }
    let grown = watch::resident().saturating_sub(memory);
    sim.run_for(Duration::from_secs(2));
    let lost = pings
        .iter()
        .filter(|token| !sim.answered(0, **token))
        .count();
    eprintln!(
        "{} MADs into the manager: {} groups, {} pings, {lost} lost, memory grew by {} KiB; {:?}",
        total(),
        sim.sm(sm).groups().len(),
        pings.len(),
        grown >> 10,
        sim.sm(sm).counters()
    );
    for (h, before) in joined.iter().enumerate() {
        let after = members(&sim, sm, h);
        assert!(
            before.iter().all(|mgid| after.contains(mgid)),
            "host {h}: {before:?}, {after:?}"
        );
    }
    assert_eq!((lost, watch::panics()), (0, panics));
    assert!(grown < GROWTH, "{grown}");
    survives(&mut sim);
    look(&sim, sm, HOSTS + 1);
}

/// Everybody gets everything, under any name: no panic, no growth, no storm; what it does to the subnet is another matter, as SMPs rule it.
#[test]
fn agents_and_interfaces_survive_anything() {
    let panics = watch::panics();
    let seeds = Seeds::new();
    let mut random = Random(3);
    let hosts = HOSTS + 1;
    let fresh = || {
        let (mut sim, sm) = subnet(hosts, true);
        sim.run_for(Duration::from_secs(2));
        (sim, sm)
    };
    let (mut sim, sm) = fresh();
    let gids: Vec<Gid> = (0..hosts).map(|h| sim.gid(h)).collect();
    let mut memory = 0;
    for n in 0..total() {
        if n % LIFE == LIFE - 1 {
            // Sooner or later somebody's M_Key makes it a subnet without a manager, of which there is nothing more to learn.
            survives(&mut sim);
            sim = fresh().0;
        }
        let h = random.below(hosts);
        let lids: Vec<Lid> = (0..hosts)
            .map(|h| sim.alive(h).hca.attributes().lid)
            .collect();
        let slid = match random.below(4) {
            0 => Lid(random.next() as u16),
            1 => [Lid(0), Lid(1), Lid(0xc000), Lid::PERMISSIVE][random.below(4)],
            _ => lids[random.below(hosts)],
        };
        let interface = sim.alive(h).interface;
        let source = |random: &mut Random| Source {
            lid: slid,
            qpn: Qpn::new(random.next() as u32),
            gid: (random.below(2) == 0).then(|| gids[random.below(hosts)]),
            multicast: random.below(2) == 0,
        };
        let (machine, input) = match random.below(10) {
            kind @ 0..6 => {
                let (mad, smp) = seeds.mad(&mut random);
                let ingress = random.below(5) as u8;
                let mad = received(&mut random, mad, smp, slid, &gids);
                match kind {
                    0 | 1 => (sm, Input::Mad(mad)),
                    2 => (SWITCH, Input::Node(NodeInput::Mad { mad, ingress })),
                    3 | 4 => (
                        hca_control(&sim, h),
                        Input::Node(NodeInput::Mad {
                            mad,
                            ingress: ingress & 1,
                        }),
                    ),
                    _ => (interface, Input::Interface(datapath::Input::Mad(mad))),
                }
            }
            6 => (
                interface,
                Input::Interface(datapath::Input::Upcall(Upcall::Miss(seeds.ip(&mut random)))),
            ),
            7 => (
                interface,
                Input::Interface(datapath::Input::Upcall(Upcall::TooBig(
                    seeds.bare(&mut random),
                    random.below(9000),
                ))),
            ),
            kind => {
                let packet = seeds.bare(&mut random);
                let source = source(&mut random);
                let upcall = if kind == 8 {
                    Upcall::Arp(source, packet)
                } else {
                    Upcall::Nd(source, packet)
                };
                (interface, Input::Interface(datapath::Input::Upcall(upcall)))
            }
        };
        sim.net.put(machine, input);
        if n % 16 == 0 {
            sim.poke(0);
            sim.run_for(Duration::from_micros(500));
        }
        if n % LOOK == 0 {
            look(&sim, sm, hosts);
        }
        if n == total() / 4 {
            memory = watch::resident();
        }
    }
    let grown = watch::resident().saturating_sub(memory);
    eprintln!(
        "{} inputs of all kinds: {} groups, memory grew by {} KiB",
        total(),
        sim.sm(sm).groups().len(),
        grown >> 10
    );
    assert_eq!(watch::panics(), panics);
    assert!(grown < GROWTH, "{grown}");
    survives(&mut sim);
    look(&sim, sm, hosts);
}

/// The SA client with requests under way: answers to them are mutated too, so that transaction IDs are right.
#[test]
fn the_sa_client_survives_answers() {
    let panics = watch::panics();
    let seeds = Seeds::new();
    let mut random = Random(4);
    let mut now = Instant::now();
    let mut client = SaClient::new(SaClientConfig::default(), 7, 1);
    client.set_sm(
        now,
        Some(SmAddress {
            lid: Lid(1),
            sl: ServiceLevel(0),
            p_key: PKey(0xffff),
        }),
    );
    let gids = [Gid::new(Gid::DEFAULT_PREFIX, wire::Guid(1)), Gid::default()];
    let (mut answered, mut sent) = (0u64, 0u64);
    let mut last: Vec<Box<MadBytes>> = Vec::new();
    for n in 0..total() {
        if n % 4 == 0 {
            let attribute = [
                AttrId::PATH_RECORD,
                AttrId::MC_MEMBER_RECORD,
                AttrId::NODE_RECORD,
            ][random.below(3)];
            client.request(now, request(&mut random, attribute));
        }
        while let Some(mad) = client.poll_transmit() {
            sent += 1;
            last.push(mad.mad);
            let excess = last.len().saturating_sub(64);
            last.drain(..excess);
        }
        let (mut mad, smp) = seeds.mad(&mut random);
        if random.below(2) == 0 && !last.is_empty() {
            let asked = &last[random.below(last.len())];
            mad[..4].copy_from_slice(&[1, 3, 2, [0x81, 0x92, 0x95][random.below(3)]]);
            mad[8..16].copy_from_slice(&asked[8..16]);
            mad[16..18].copy_from_slice(&asked[16..18]);
            // In half of them, RMPP: version 1, a kind, active, and perhaps the last segment.
            if random.below(2) == 0 {
                mad[24..28].copy_from_slice(&[
                    1,
                    random.below(5) as u8,
                    [1, 3, 5, 7][random.below(4)],
                    0,
                ]);
                mad[28..32].copy_from_slice(&(random.below(4) as u32).to_be_bytes());
            }
        }
        let slid = Lid([1, 1, 1, random.next() as u16][random.below(4)]);
        client.handle_mad(now, &received(&mut random, mad, smp, slid, &gids));
        now += Duration::from_micros(100 * random.below(100) as u64);
        client.handle_timeout(now);
        while client.poll_event().is_some() {
            answered += 1;
        }
        let (waiting, queued) = client.pending();
        assert!(
            waiting <= SaClientConfig::default().window
                && queued <= SaClientConfig::default().queue,
            "{waiting} {queued}"
        );
    }
    eprintln!(
        "{} answers to a client that sent {sent}: {answered} events; {:?}",
        total(),
        client.counters()
    );
    assert!(answered > total() / 20);
    assert_eq!(watch::panics(), panics);
}

fn request(random: &mut Random, attribute: AttrId) -> SaRequest {
    let record: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
    match random.below(2) {
        0 => SaRequest::get_table(attribute, ComponentMask(0), &record),
        _ => SaRequest::raw(
            Method::GET,
            attribute,
            ComponentMask(random.next()),
            &record,
        ),
    }
}
