//! OpenSM on a fat tree of 24 switches: what the tools say is there is what was given, and traffic goes where they say, as counters and a
//! capture have it.

use crate::diags::{contains, field};
use crate::hosts::{echoes, fat_tree, guid, host, reaches};
use crate::site::{Site, possible};
use fabric::link::capture::Frame;
use fabric::node::ManagementPort;
use fabric::topology::{NodeKind, Topology};
use ipoib::subnet::Subnet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;
use wire::mad::attr::PortState;
use wire::packet::Packet;
use wire::{Guid, Lid, Qpn};

/// Echoes in each direction.
const ECHOES: u16 = 200;

/// A port of a switch.
type At = (Guid, u8);

/// What does not depend on names and order: nodes, and cables with their rates.
#[derive(Debug, PartialEq)]
struct Wiring {
    nodes: BTreeSet<(Guid, bool, u8, String)>,
    cables: BTreeSet<([At; 2], String)>,
}

impl Wiring {
    fn of(topology: &Topology) -> Wiring {
        let nodes = topology.nodes.iter().map(|node| {
            let is_switch = node.kind == NodeKind::Switch;
            (node.guid, is_switch, node.ports, node.description.clone())
        });
        let cables = topology.cables.iter().map(|cable| {
            let mut ends = cable
                .ends
                .map(|end| (topology.nodes[end.node].guid, end.port));
            ends.sort_unstable();
            (ends, cable.rate().to_string())
        });
        Wiring {
            nodes: nodes.collect(),
            cables: cables.collect(),
        }
    }
}

/// The ports of switches through which `ibtracert` says that packets leave.
fn hops(said: &str) -> Vec<At> {
    let guid = |text: &str| {
        let digits = text.split_once("{0x")?.1.split_once('}')?.0;
        u64::from_str_radix(digits, 16).ok().map(Guid)
    };
    let mut at = None;
    let mut hops = Vec::new();
    for line in said.lines() {
        if let Some((out, _)) = line.split_once("] -> ") {
            let port = out.trim_start_matches('[').parse().unwrap();
            hops.extend(at.map(|at| (at, port)));
            at = guid(line);
        }
    }
    hops
}

/// Unicast packets that left each port of each switch.
fn sent(topology: &Topology, subnet: &Subnet) -> BTreeMap<At, u64> {
    let guid = |name: &str| topology.nodes.iter().find(|n| n.name == name).unwrap().guid;
    let switches = subnet.switches();
    let ports = switches.flat_map(|(name, switch)| {
        let guid = guid(name);
        (1..=switch.ports()).map(move |port| {
            let counters = switch.counters(port).unwrap();
            ((guid, port), counters.unicast_xmit_pkts)
        })
    });
    ports.collect()
}

#[test]
fn a_fat_tree_is_what_the_tools_say() {
    if !possible() {
        return;
    }
    let topology = fat_tree("fat-tree:8,16,2");
    let (site, _opensm) = Site::managed(&topology);
    let say = |line: &str| site.tool("host3", line);
    let found = Topology::parse(&say("ibnetdiscover")).unwrap();
    assert_eq!(Wiring::of(&found), Wiring::of(&topology));
    contains(&say("ibqueryerrors"), &["56 nodes checked, 0 bad"]);
    let log = site.log();
    assert!(!log.contains("ERR "), "{log}");

    // Two hosts at leaves far from each other, in the places of channel adapters.
    let hosts = [(1, "host2"), (2, "host32")].map(|(n, name)| {
        let guid = guid(&topology, name);
        let stack = host(n, guid);
        let node = stack.node();
        let cable = site
            .subnet
            .connect(Some(guid), node.sink(), |link| node.attach(link));
        (stack, guid, cable.unwrap())
    });
    reaches(&hosts[0].0, 2);
    reaches(&hosts[1].0, 1);
    let port = |n: usize| hosts[n].0.node().hca().attributes();
    let [a, b] = [0, 1].map(|n| port(n).lid.0);
    let (there, back) = (
        hops(&say(&format!("ibtracert {a} {b}"))),
        hops(&say(&format!("ibtracert {b} {a}"))),
    );
    assert_eq!((there.len(), back.len()), (3, 3), "{there:?} {back:?}");

    // The records of what lies between them.
    let path = say(&format!("saquery PR --src-to-dst {a}:{b}"));
    let lids = [field(&path, "slid"), field(&path, "dlid")];
    assert_eq!(lids, [a, b].map(u64::from));
    contains(
        &say(&format!("saquery NR {b}")),
        &[&format!("port_guid...............0x{:016x}", hosts[1].1.0)],
    );
    let record = say(&format!("saquery PIR {b}"));
    contains(&record, &["LinkState:.......................Active"]);
    let (mgid, gid) = ("ff12:401b:ffff::ffff:ffff", port(1).gid());
    let member = format!("saquery --smkey 1 MCMR --mgid {mgid} --gid {gid}");
    contains(&say(&member), &[mgid, &gid.to_string()]);

    // A capture has each packet once for each link of the way.
    let frames = site.subnet.tap().start(1 << 14);
    echoes(&hosts[0].0, 2, 1);
    site.subnet.tap().stop();
    let frames: Vec<Frame> = frames.try_iter().collect();
    for (from, to, links) in [(a, b, there.len() + 1), (b, a, back.len() + 1)] {
        let packets = captured(&frames, Lid(from), Lid(to));
        assert!(!packets.is_empty() && packets.values().all(|n| *n == links));
    }

    // What crosses: on the links that ibtracert names, and on no other.
    let before = sent(&topology, &site.subnet);
    let spine = there[1];
    let first = counts(&site, &topology, spine);
    echoes(&hosts[0].0, 2, ECHOES);
    echoes(&hosts[1].0, 1, ECHOES);
    let second = counts(&site, &topology, spine);
    let after = sent(&topology, &site.subnet);
    let crossed = 2 * u64::from(ECHOES);
    let busy = after
        .iter()
        .filter(|(at, packets)| **packets - before[at] >= crossed);
    let busy: BTreeSet<At> = busy.map(|(at, _)| *at).collect();
    let path: BTreeSet<At> = there.into_iter().chain(back).collect();
    assert_eq!(busy, path);
    let told = second.1 - first.1;
    assert!(
        (second.0 - first.2..=second.2 - first.0).contains(&told),
        "{first:?} {second:?}"
    );
    assert!(told >= crossed, "{told}");
}

/// How often a capture has each packet of two queue pairs of interfaces.
fn captured(frames: &[Frame], from: Lid, to: Lid) -> HashMap<&[u8], usize> {
    let mut times = HashMap::new();
    for frame in frames {
        let packet = Packet::parse(&frame.bytes).expect("a packet");
        let ends = (packet.lrh.slid, packet.lrh.dlid) == (from, to);
        if ends && packet.bth.dest_qp.0 > Qpn::GSI.0 {
            *times.entry(&frame.bytes[..]).or_default() += 1;
        }
    }
    times
}

/// Packets sent by a port of a switch: before, by, and after a `perfquery` at that switch.
fn counts(site: &Site, topology: &Topology, at: At) -> (u64, u64, u64) {
    let name = &topology.nodes.iter().find(|n| n.guid == at.0).unwrap().name;
    let real = || {
        let (_, switch) = site.subnet.switches().find(|(n, _)| n == name).unwrap();
        switch.counters(at.1).unwrap().xmit_pkts
    };
    let lid = field(&site.tool(name, "smpquery -D PI 0"), "Lid");
    let before = real();
    let said = site.tool(name, &format!("perfquery {lid} {}", at.1));
    (before, field(&said, "PortXmitPkts"), real())
}

#[test]
fn a_thousand_channel_adapters() {
    if !possible() {
        return;
    }
    let topology = fat_tree("fat-tree:18,56,18");
    let begin = Instant::now();
    let (site, _opensm) = Site::managed(&topology);
    eprintln!(
        "74 switches and 1,008 HCAs up {:?} after the start of all",
        begin.elapsed()
    );
    let nodes = site.subnet.nodes();
    assert_eq!(nodes.len(), 74 + 1008);
    let state = |port: &dyn ManagementPort| port.attributes().state;
    let idle = nodes
        .iter()
        .find(|(_, port)| state(&**port) != PortState::ACTIVE);
    assert_eq!(idle.map(|(name, _)| name), None, "not Active");
    let lid = |node: &str| field(&site.tool(node, "smpquery -D PI 0"), "Lid");
    let (from, to) = (lid("host1"), lid("host1008"));
    let way = hops(&site.tool("host500", &format!("ibtracert {from} {to}")));
    assert_eq!(way.len(), 3, "{way:?}");
    let log = site.log();
    assert!(!log.contains("ERR "), "{log}");
}
