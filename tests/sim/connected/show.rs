//! What an operator sees of connections.

use super::*;
use datapath::interface::ConnectionStatus;
use datapath::interface::status::NeighbourStatus;

fn neighbour(sim: &Sim, h: usize, ip: IpAddr) -> NeighbourStatus {
    let all = sim.interface(h).neighbour_status(sim.now());
    let found = all.into_iter().find(|neighbour| neighbour.ip == ip);
    found.expect("a neighbour")
}

fn connections(sim: &mut Sim, h: usize) -> Vec<ConnectionStatus> {
    sim.with_interface(h, |interface, now| interface.connection_status(now))
}

/// From a neighbour without a connection to one with a connection that was idle for too long: on both sides, and what a packet may have.
#[test]
fn a_connection_is_seen_from_both_sides_until_it_is_idle() {
    const IDLE: Duration = Duration::from_secs(8);
    let (mut sim, _) = one_switch(140, 2, |sim| {
        for host in &mut sim.hosts {
            host.config.connected.idle = IDLE;
        }
    });
    let [here, there] = [host::v4(0), host::v4(1)];
    assert_eq!(ask(&mut sim, 0, there, 56, 5 * SECOND), Outcome::Answered);
    let datagrams = neighbour(&sim, 0, there);
    assert_eq!(
        (datagrams.mtu, datagrams.connection),
        (Some(GROUP_MTU), None)
    );

    // Nobody can know yet what it will take.
    set_mode(&mut sim, 0, Mode::Connected);
    let idle = neighbour(&sim, 0, there);
    assert_eq!((idle.mtu, idle.datagram_mtu), (None, Some(GROUP_MTU)));
    assert_eq!(idle.connection.as_deref(), Some("idle"));
    assert_eq!(idle.direction, None);
    assert_eq!(connections(&mut sim, 0).len(), 0);

    for _ in 0..3 {
        let outcome = ask(&mut sim, 0, there, 10_000, 5 * SECOND);
        // The answers are too long for the other side's datagrams.
        assert_ne!(outcome, Outcome::TooBig(GROUP_MTU));
    }
    let up = neighbour(&sim, 0, there);
    assert_eq!((up.mtu, up.direction), (Some(MTU), Some("out")));
    let passive = neighbour(&sim, 1, here);
    assert_eq!(
        (passive.mtu, passive.direction),
        (Some(GROUP_MTU), Some("in"))
    );
    assert_eq!(passive.connection, None);

    let [own, of_peer] = [0, 1].map(|h| connections(&mut sim, h));
    let ([own], [of_peer]) = (own.as_slice(), of_peer.as_slice()) else {
        panic!("{own:?} {of_peer:?}")
    };
    assert_eq!((own.direction, own.opened_by), ("out", "this"));
    assert_eq!((of_peer.direction, of_peer.opened_by), ("in", "peer"));
    assert!(own.ips.contains(&there) && of_peer.ips.contains(&here));
    assert_eq!((own.state, of_peer.state), ("open", "open"));
    assert_eq!((own.mtu, of_peer.mtu), (Some(65_520), Some(65_520)));
    assert_eq!(own.peer_qpn, Some(of_peer.qpn));
    assert_eq!(of_peer.peer_qpn, Some(own.qpn));
    assert_eq!((own.tx_messages, of_peer.rx_messages), (3, 3));
    assert_eq!((own.rx_messages, of_peer.tx_messages), (0, 0));

    sim.run_for(IDLE / 2);
    let idle_ms = connections(&mut sim, 0)[0].idle_ms;
    assert!((3000..9000).contains(&idle_ms), "{idle_ms}");
    sim.run_for(3 * IDLE);
    let closed = neighbour(&sim, 0, there);
    assert_eq!(
        (closed.mtu, closed.direction),
        (Some(MTU), None),
        "as of the last one"
    );
    assert_eq!(closed.connection.as_deref(), Some("idle"));
    for h in [0, 1] {
        let left = connections(&mut sim, h);
        assert!(left.iter().all(|c| c.state == "closing"), "{left:?}");
    }
}

/// A connection that failed: why, how long ago, and what the next packet does.
#[test]
fn why_there_is_no_connection() {
    let (mut sim, _) = one_switch(141, 2, |sim| {
        sim.hosts[1].config.connected.max_connections = 0
    });
    let there = host::v4(1);
    assert_eq!(ask(&mut sim, 0, there, 56, 5 * SECOND), Outcome::Answered);
    set_mode(&mut sim, 0, Mode::Connected);
    let words = |sim: &Sim| neighbour(sim, 0, there).connection;
    sim.ping_sized(0, there, 10_000);
    let is_held = |sim: &Sim| words(sim).is_some_and(|said| said.starts_with("none: "));
    assert!(sim.run_until(60 * SECOND, is_held), "{:?}", words(&sim));
    let held = words(&sim).unwrap_or_default();
    assert!(held.contains("; next attempt in "), "{held}");
    let is_over = |sim: &Sim| words(sim).is_some_and(|said| said.starts_with("idle; "));
    assert!(sim.run_until(5 * SECOND, is_over), "{:?}", words(&sim));
    let over = words(&sim).unwrap_or_default();
    assert!(
        over.starts_with("idle; the last failed 1 s ago: refused: "),
        "{over}"
    );
}
