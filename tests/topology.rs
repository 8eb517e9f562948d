//! Subnets of many switches: the management of all nodes, and hosts in the places that the topology gives them. No privileges.

use fabric::sm::SmConfig;
use fabric::topology::Shape;
use ipoib::subnet::Subnet;
use std::time::{Duration, Instant};
use wire::mad::attr::PortState;

/// Bounds every wait; a subnet of this size needs a hundredth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until all nodes are Active.
fn until_active(subnet: &Subnet) {
    let end = Instant::now() + PATIENCE;
    let mut nodes = subnet.nodes();
    while {
        nodes.retain(|(_, port)| port.attributes().state != PortState::ACTIVE);
        !nodes.is_empty()
    } {
        let names: Vec<_> = nodes.iter().map(|(name, _)| name).collect();
        assert!(Instant::now() < end, "not active: {names:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_fat_tree_of_24_switches_comes_up() {
    let shape: Shape = "fat-tree:8,16,4".parse().expect("a shape");
    let topology = shape.topology();
    let subnet = Subnet::with_topology(&topology, Some(SmConfig::default())).expect("a subnet");
    assert_eq!(subnet.nodes().len(), 24 + 64);
    until_active(&subnet);
    let mut lids: Vec<u16> = subnet
        .nodes()
        .iter()
        .map(|(_, port)| port.attributes().lid.0)
        .collect();
    lids.sort_unstable();
    lids.dedup();
    assert_eq!(lids.len(), 24 + 64, "LIDs are unique");
}
