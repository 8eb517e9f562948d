//! Connected mode.

use crate::basic::one_switch;
use crate::host;
use crate::sim::Sim;
use datapath::Mode;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn set_modes(sim: &mut Sim, modes: &[Mode]) {
    for (host, mode) in sim.hosts.iter_mut().zip(modes) {
        host.config.mode = *mode;
    }
}

#[test]
fn long_packets_go_by_connections_of_both_sides() {
    let (mut sim, _) = one_switch(1, 2, |sim| set_modes(sim, &[Mode::Connected; 2]));
    for to in [host::v4(1), host::v6(1)] {
        let long = 65_520 - if to.is_ipv4() { 28 } else { 48 };
        for size in [56, long, long - 1, 3000] {
            let token = sim.ping_sized(0, to, size);
            sim.run_for(SECOND);
            assert!(sim.answered(0, token), "{size} bytes to {to}");
        }
    }
    for h in 0..2 {
        let interface = sim.interface(h);
        assert_eq!(interface.link_status().mtu, Some(65_520));
        let neighbours = interface.neighbour_status(sim.now());
        assert!(!neighbours.is_empty());
        for n in neighbours {
            assert_eq!(n.connection.as_deref(), Some("connected"), "{n:?}");
            assert_eq!(n.mtu, Some(65_520));
        }
        let stats: std::collections::BTreeMap<_, _> = interface.stats().into_iter().collect();
        assert_eq!(stats["connections_own"], 1, "{stats:?}");
        assert_eq!(stats["connections_of_peers"], 1, "{stats:?}");
        assert!(stats["rx_connected"] >= 7, "{stats:?}");
    }
}
