//! Receive MTUs of peers, from none to more than there can be.

use super::*;

/// A host in connected mode whose peer takes packets up to `receive_mtu` by connections.
fn peer_taking(seed: u64, receive_mtu: u32) -> Sim {
    let (sim, _) = one_switch(seed, 2, |sim| {
        Kind::Connected.set(&mut sim.hosts[0].config);
        Kind::Datagram.set(&mut sim.hosts[1].config);
        sim.hosts[1].config.connected.receive_mtu = receive_mtu;
    });
    sim
}

#[test]
fn what_a_peer_takes_by_no_connection_goes_as_a_datagram() {
    let taken = [1, 24, 100, 1280, GROUP_MTU - 1, GROUP_MTU, 2048, 9000, MTU];
    for (seed, receive_mtu) in taken.into_iter().enumerate() {
        let mut sim = peer_taking(200 + seed as u64, receive_mtu);
        let mtu = receive_mtu.max(GROUP_MTU);
        for to in addresses(1) {
            // Answers are as long, and go as datagrams.
            let around = [receive_mtu, GROUP_MTU, 1280].into_iter().flat_map(|edge| {
                let edge = edge.saturating_sub(headers(to)) as usize;
                edge.saturating_sub(2)..edge + 3
            });
            for size in around.filter(|size| *size as u32 + headers(to) <= MTU) {
                let token = sim.ping_sized(0, to, size);
                let len = size as u32 + headers(to);
                let limit = 10 * SECOND;
                let refused = |sim: &Sim| sim.hosts[0].log.refused.get(&token).copied();
                match len <= mtu {
                    true => {
                        let before = sim.hosts[1].log.requests;
                        assert!(sim.run_until(limit, |sim| sim.answered(0, token)
                            || sim.hosts[1].log.requests > before
                            || refused(sim).is_some()));
                        assert_eq!(refused(&sim), None, "{len} bytes to {to}, {receive_mtu}");
                    }
                    false => {
                        assert!(sim.run_until(limit, |sim| refused(sim).is_some()));
                        assert_eq!(refused(&sim), Some(mtu), "{len} bytes to {to}");
                    }
                }
            }
        }
        assert_eq!(open(&sim, 0).0, 1, "{receive_mtu}");
    }
}
