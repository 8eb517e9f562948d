//! Hosts with IP stacks of their own at the ends of a subnet in this process.

// Not every test uses all of it.
#![allow(dead_code)]

use datapath::InterfaceConfig;
use fabric::topology::{Shape, Topology};
use ipoib::cli::InterfaceAddress;
use ipoib::node::NodeConfig;
use ipoib::stack::Stack;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use wire::Guid;

/// Bounds every wait; a subnet of this size needs a hundredth of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until there is an answer.
pub(crate) fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A fat tree by its shape in words.
pub(crate) fn fat_tree(shape: &str) -> Topology {
    shape.parse::<Shape>().expect("a shape").topology()
}

/// Port GUID of a channel adapter.
pub(crate) fn guid(topology: &Topology, name: &str) -> Guid {
    let node = topology.nodes.iter().find(|node| node.name == name);
    node.expect("the node").port_guid(1)
}

/// Of host `n`.
pub(crate) fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, n).into()
}

/// A host with an IP stack of its own.
pub(crate) fn host(n: u8, port_guid: Guid) -> Stack {
    let config = NodeConfig {
        port_guid,
        description: format!("host {n}"),
        interface: InterfaceConfig::default(),
        max_packet: 0,
    };
    let own = InterfaceAddress {
        ip: address(n),
        prefix: 24,
    };
    Stack::start(config, &[own]).expect("a stack")
}

/// Waits for an answer to a ping.
pub(crate) fn reaches(from: &Stack, to: u8) {
    echoes(from, to, 1);
}

/// Waits for so many answers, one after the other.
pub(crate) fn echoes(from: &Stack, to: u8, count: u16) {
    until("the interface has joined", || {
        (from.has_joined() == Some(true)).then_some(())
    });
    let pinger = from.pinger(7);
    let mut sequence = 0;
    for _ in 0..count {
        until("an answer to a ping", || {
            sequence += 1;
            let sent = pinger.send(address(to), sequence, 56).expect("sent");
            pinger.receive(sent + Duration::from_millis(500)).map(drop)
        });
    }
}
