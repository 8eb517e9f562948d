//! Subnets of many switches: management of all nodes, hosts in the places that the topology gives them, faulty routes. No privileges.

mod hosts;

use fabric::link::LinkSink;
use fabric::link::udp::{ListenConfig, UdpLink};
use fabric::node::DropReason;
use fabric::sm::SmConfig;
use fabric::topology::Topology;
use hosts::{fat_tree, guid, host, reaches, until};
use ipoib::cli::{FaultWhat, LinkAction, LinkFault};
use ipoib::stack::Stack;
use ipoib::subnet::Subnet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use verbs::{MadReceived, MadSend};
use wire::mad::attr::{LinearForwardingTable, PortState, SwitchInfo};
use wire::mad::{AttrId, Method, MgmtClass, Smp};
use wire::packet::Packet;
use wire::{Guid, Lid, PKey, QKey, Qpn, RateCode, ServiceLevel};

fn until_active(subnet: &Subnet) {
    let mut nodes = subnet.nodes();
    until("all nodes are Active", || {
        nodes.retain(|(_, port)| port.attributes().state != PortState::ACTIVE);
        nodes.is_empty().then_some(())
    });
}

fn start(topology: &Topology) -> Subnet {
    Subnet::with_topology(topology, Some(SmConfig::default())).expect("a subnet")
}

/// A host by UDP.
fn dial(stack: &Stack, to: SocketAddr) -> Arc<UdpLink> {
    let link = UdpLink::connect(to, stack.node().sink()).expect("a socket");
    stack.node().attach(link.clone());
    link
}

fn until_attached(subnet: &Subnet, link: &UdpLink, switch: &str, port: u8) {
    let who = SocketAddr::from(([127, 0, 0, 1], link.local_addr().port())).to_string();
    let at = until("the host is attached", || {
        let all = subnet.attached();
        all.into_iter().find(|(_, _, other)| *other == who)
    });
    assert_eq!((at.0.as_str(), at.1), (switch, port));
}

#[test]
fn a_fat_tree_of_24_switches_comes_up_and_its_hosts_talk() {
    let topology = fat_tree("fat-tree:8,16,4");
    let subnet = start(&topology);
    assert_eq!(subnet.nodes().len(), 24 + 64);
    until_active(&subnet);
    let nodes = subnet.nodes();
    let mut lids: Vec<u16> = nodes.iter().map(|(_, p)| p.attributes().lid.0).collect();
    lids.sort_unstable();
    lids.dedup();
    assert_eq!(lids.len(), 24 + 64, "LIDs are unique");
    let hosts = [(1, "host1"), (2, "host37"), (3, "host64")].map(|(n, name)| {
        let guid = guid(&topology, name);
        let stack = host(n, guid);
        let node = stack.node();
        let cable = subnet.connect(Some(guid), node.sink(), |link| node.attach(link));
        (stack, cable.expect("a place"))
    });
    assert_eq!(
        subnet
            .attached()
            .iter()
            .map(|at| (at.0.as_str(), at.1))
            .collect::<Vec<_>>(),
        [("leaf1", 1), ("leaf10", 1), ("leaf16", 4)]
    );
    for (from, to) in [(0, 2), (1, 3), (2, 1)] {
        reaches(&hosts[from].0, to);
    }
}

#[test]
fn hosts_by_udp_get_the_places_of_their_guids() {
    let topology = fat_tree("fat-tree:2,4,1");
    let subnet = start(&topology);
    let listener = subnet
        .listen(ListenConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))))
        .expect("a listener");
    let to = listener.local_addr();
    let first = host(1, guid(&topology, "host1"));
    let first_link = dial(&first, to);
    until_attached(&subnet, &first_link, "leaf1", 1);
    let last = host(2, guid(&topology, "host4"));
    let last_link = dial(&last, to);
    until_attached(&subnet, &last_link, "leaf4", 1);
    reaches(&first, 2);
    reaches(&last, 1);

    // A GUID that is there already, and one that the topology does not know, where no port is free: both were asked and answered before the
    // next host, which is attached, came.
    let wrong = [guid(&topology, "host1"), Guid(0xdead)].map(|guid| {
        let stack = host(3, guid);
        let link = dial(&stack, to);
        until("the question is answered", || {
            let sent = stack.node().hca().counters();
            sent.iter()
                .any(|(name, n)| name == "xmit_pkts" && n > 0)
                .then_some(())
        });
        (stack, link)
    });
    let next = host(4, guid(&topology, "host2"));
    let next_link = dial(&next, to);
    until_attached(&subnet, &next_link, "leaf2", 1);
    assert_eq!(subnet.attached().len(), 3, "{:?}", subnet.attached());
    reaches(&first, 4);

    // Where a host leaves, whoever waits for its place gets it.
    first_link.close();
    drop(first);
    until_attached(&subnet, &wrong[0].1, "leaf1", 1);
    reaches(&last, 3);

    // And the stand-in is back where nobody waits.
    next_link.close();
    drop(next);
    until("the place is free", || {
        (subnet.attached().len() == 2).then_some(())
    });
    let nodes = subnet.nodes();
    let (_, stand_in) = nodes.iter().find(|(name, _)| name == "host2").expect("it");
    until("the stand-in is Active", || {
        (stand_in.attributes().state == PortState::ACTIVE).then_some(())
    });
    for (stack, link) in wrong {
        link.close();
        drop(stack);
    }
    last_link.close();
    listener.close();
}

struct Nobody;

impl LinkSink for Nobody {
    fn receive(&self, _packets: &[Packet<'_>]) {}
    fn link_changed(&self, _up: bool) {}
}

#[test]
fn unknown_guids_spread_over_free_ports_of_leaves() {
    let topology = Topology::parse(
        "Switch 4 \"spine\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n\nSwitch 4 \"a\"\n[1] \"spine\"[1]\n[2] \"ca\"[1]\n\n\
         Switch 3 \"b\"\n[1] \"spine\"[2]\n[2] \"ca\"[2]\n\nHca 2 \"ca\"\n[1] \"a\"[2]\n[2] \"b\"[2]\n",
    )
    .expect("sound");
    let subnet = Subnet::with_topology(&topology, None).expect("a subnet");
    let sink: Arc<dyn LinkSink> = Arc::new(Nobody);
    let connect = |guid| subnet.connect(Some(Guid(guid)), sink.clone(), |_| {});
    for guid in 1..=5 {
        connect(guid).expect("a free port");
    }
    let error = connect(6).err().expect("all taken").to_string();
    assert!(
        error.contains("all ports of its switches are taken"),
        "{error}"
    );
    let error = connect(5).err().expect("taken").to_string();
    assert!(error.contains("attached already"), "{error}");
    let mut count = std::collections::BTreeMap::new();
    for (switch, ..) in subnet.attached() {
        *count.entry(switch).or_insert(0) += 1;
    }
    let count: Vec<_> = count.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(count, [("a", 2), ("b", 1), ("spine", 2)]);
}

/// Else it would not come up, and nobody could tell it why.
#[test]
fn a_new_host_gets_no_port_whose_link_is_cut() {
    let subnet = Subnet::start(Guid(0x5000), 3, SmConfig::default()).expect("a subnet");
    let set = |port, action| {
        let fault = LinkFault {
            node: "switch".into(),
            port,
            action: Some(action),
            loss: None,
            duplicate: None,
            reorder: None,
            corrupt: None,
            delay: None,
            lose: None,
            count: None,
            seed: None,
        };
        let done = subnet.fault(FaultWhat::Link(fault));
        done.expect("there is such a port");
    };
    set(1, LinkAction::Down);
    set(3, LinkAction::Down);
    let sink: Arc<dyn LinkSink> = Arc::new(Nobody);
    let connect = || subnet.connect(None, sink.clone(), |_| {});
    let ports = || subnet.attached().into_iter().map(|(_, port, _)| port);
    connect().expect("port 2");
    assert_eq!(ports().collect::<Vec<_>>(), [2]);
    let error = connect().err().expect("no port").to_string();
    assert!(error.contains("held down"), "{error}");
    set(3, LinkAction::Up);
    connect().expect("port 3");
    assert_eq!(ports().collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_channel_adapter_of_two_ports_is_one_node_and_its_links_have_their_rates() {
    let topology = Topology::parse(
        "Switch 4 \"s\"\n[1] \"ca\"[1] # 4xEDR\n[2] \"ca\"[2] # 1xHDR\n\nHca 2 \"ca\"\n[1] \"s\"[1] # 4xHDR\n[2] \"s\"[2] # 4xNDR\n",
    )
    .expect("sound");
    let subnet = start(&topology);
    until_active(&subnet);
    let (_, ca) = subnet.nodes().remove(1);
    assert_eq!(ca.attributes().rate, RateCode(16));
    assert_eq!(ca.attributes().node_guid, Guid(0x10_0000));
}

#[test]
fn examples_of_ibsim_come_up() {
    let folder = Path::new("/usr/share/doc/ibsim-utils/net-examples");
    let Ok(files) = folder.read_dir() else {
        return eprintln!("SKIPPED: package ibsim-utils is absent");
    };
    let mut seen = 0;
    for file in files {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("text");
        if !text.contains("Switch\t") {
            continue;
        }
        let topology = Topology::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(
            Topology::parse(&topology.to_string()).as_ref(),
            Ok(&topology)
        );
        until_active(&start(&topology));
        seen += 1;
    }
    assert!(seen >= 4, "{seen} examples");
}

#[test]
fn a_packet_in_a_circle_is_dropped_and_counted() {
    let topology = Topology::parse(
        "Switch 2 \"a\"\n[1] \"b\"[2]\n[2] \"c\"[1]\n\nSwitch 2 \"b\"\n[1] \"c\"[2]\n[2] \"a\"[1]\n\nSwitch 2 \"c\"\n[1] \"a\"[2]\n[2] \"b\"[1]\n",
    )
    .expect("sound");
    let subnet = start(&topology);
    until_active(&subnet);
    // Another manager, at "b", sends LID 1000 round the ring.
    let (_, at) = subnet.nodes().remove(1);
    let manager = at
        .register_sm(Arc::new(|_: MadReceived| {}))
        .expect("a manager");
    let mut block = LinearForwardingTable { port: [0xff; 64] };
    block.port[1000 % 64] = 1;
    let send = |agent: &dyn verbs::MadAgent, dlid, remote_qpn, mad| {
        agent.send(MadSend {
            dlid,
            sl: ServiceLevel(0),
            remote_qpn,
            q_key: QKey::GSI,
            p_key: PKey::DEFAULT_FULL,
            grh: None,
            mad: Box::new(mad),
        });
    };
    let info = SwitchInfo {
        linear_fdb_top: 1000,
        ..SwitchInfo::default()
    };
    for path in [&[][..], &[1], &[2]] {
        for (attribute, modifier, data) in [
            (AttrId::SWITCH_INFO, 0, &info.emit()[..]),
            (AttrId::LINEAR_FORWARDING_TABLE, 1000 / 64, &block.emit()),
        ] {
            let smp = Smp::directed(Method::SET, attribute, modifier, 1, path).with_data(data);
            send(&*manager, Lid::PERMISSIVE, Qpn::SMI, smp.emit());
        }
    }
    until("the tables have a circle", || {
        let mut switches = subnet.switches();
        switches
            .all(|(_, s)| s.route(Lid(1000)) == [1])
            .then_some(())
    });
    let agent = at
        .register_mad_agent(&[MgmtClass::COM_MGT], Arc::new(|_: MadReceived| {}))
        .expect("an agent");
    let dropped = |subnet: &Subnet| -> u64 {
        let switches = subnet.switches();
        switches
            .map(|(_, s)| s.drops().get(DropReason::HopLimit))
            .sum()
    };
    assert_eq!(dropped(&subnet), 0);
    send(&*agent, Lid(1000), Qpn::GSI, [0; 256]);
    assert_eq!(dropped(&subnet), 1, "counted once, on the sender's thread");
}
