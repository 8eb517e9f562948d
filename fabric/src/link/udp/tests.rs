//! Both sides against each other, and against sockets that speak the contract by hand or break it. All on loopback; waits are for events, with
//! a limit far beyond what they take.

use super::*;
use crate::link::fault::OwnedPacket;
use crate::link::{Link, LinkSink};
use crossbeam_channel::{Receiver, Sender, unbounded};
use proptest::prelude::*;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use wire::mad::PortState;
use wire::packet::{Bth, Deth, Extended, Lrh, Lso, Opcode};
use wire::{Lid, QKey, Qpn};

const LIMIT: Duration = Duration::from_secs(120);
const LOOPBACK: &str = "127.0.0.1:0";

#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few and short-lived")]
enum Event {
    Up(bool),
    Packet(OwnedPacket),
    Closed(SocketAddr),
}

/// A port that tells all it hears.
struct Port(Sender<Event>);

impl LinkSink for Port {
    fn receive(&self, packets: &[Packet<'_>]) {
        for packet in packets {
            let _ = self.0.send(Event::Packet(packet.into()));
        }
    }
    fn link_changed(&self, up: bool) {
        let _ = self.0.send(Event::Up(up));
    }
}

fn port() -> (Arc<Port>, Receiver<Event>) {
    let (sender, receiver) = unbounded();
    (Arc::new(Port(sender)), receiver)
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(LIMIT).expect("an event in time")
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        thread::yield_now();
    }
}

struct Fabric {
    listener: UdpListener,
    /// Of all ports.
    events: Receiver<Event>,
    links: Receiver<(SocketAddr, Arc<dyn Link>)>,
}

fn fabric_with(config: ListenConfig, accepts: impl Fn() -> bool + Send + Sync + 'static) -> Fabric {
    let (port, events) = port();
    let (new, links) = unbounded();
    let closed = port.0.clone();
    let accept: Acceptor = Box::new(move |source, link| {
        accepts().then(|| {
            new.send((source, link)).expect("the test listens");
            port.clone() as Arc<dyn LinkSink>
        })
    });
    let closed: Closed = Box::new(move |source| {
        let _ = closed.send(Event::Closed(source));
    });
    Fabric {
        listener: UdpListener::bind(config, accept, closed).expect("bind"),
        events,
        links,
    }
}

fn fabric(address: &str) -> Fabric {
    fabric_with(ListenConfig::new(address.parse().expect("address")), || {
        true
    })
}

impl Fabric {
    fn link(&self) -> (SocketAddr, Arc<dyn Link>) {
        self.links.recv_timeout(LIMIT).expect("a link in time")
    }
    /// A socket that speaks to the listener by hand.
    fn raw(&self) -> UdpSocket {
        let mut to = self.listener.local_addr();
        let socket = UdpSocket::bind(LOOPBACK).expect("bind");
        to.set_ip(socket.local_addr().expect("address").ip());
        socket.connect(to).expect("connect");
        socket.set_read_timeout(Some(LIMIT)).expect("timeout");
        socket
    }
}

fn packet(n: u16, payload: &[u8]) -> Packet<'_> {
    Packet {
        lrh: Lrh {
            slid: Lid(n),
            dlid: Lid(7),
            ..Lrh::default()
        },
        grh: None,
        bth: Bth {
            opcode: Opcode(0x64),
            dest_qp: Qpn(0x48),
            ..Bth::default()
        },
        ext: Extended {
            deth: Some(Deth {
                q_key: QKey(0xb1b),
                src_qp: Qpn(0x49),
            }),
            ..Extended::default()
        },
        payload,
        lso: None,
        icrc: None,
        hops: 0,
    }
}

fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet(1, payload).emit_into(&mut bytes).expect("emit");
    bytes
}

fn hello() -> [u8; 6] {
    FlowControl::hello(FlowControl::INIT).emit()
}

/// Sends packets of all sizes in batches and checks that they arrive as they were.
fn exchange(from: &dyn Link, to: &Receiver<Event>) {
    let lengths = [
        100, 100, 100, 40, 2044, 2044, 2044, 2044, 0, 1, 2, 3, 4096, 9,
    ];
    let payloads: Vec<Vec<u8>> = lengths
        .iter()
        .cycle()
        .take(60)
        .chain(&[2044; 150])
        .enumerate()
        .map(|(n, &len)| vec![n as u8; len])
        .collect();
    let packets: Vec<_> = (0..).zip(&payloads).map(|(n, p)| packet(n, p)).collect();
    for batch in packets.chunks(70) {
        from.transmit(batch);
        for sent in batch {
            let Event::Packet(got) = next(to) else {
                panic!("the link stays up")
            };
            let got = got.as_packet();
            assert!(got.icrc.is_some());
            assert_eq!(Packet { icrc: None, ..got }, *sent);
        }
    }
}

fn interop(listen: &str, dial: &str) {
    let fabric = fabric(listen);
    let (sink, host_events) = port();
    let mut to: SocketAddr = dial.parse().expect("address");
    to.set_port(fabric.listener.local_addr().port());
    let host = UdpLink::connect(to, sink).expect("connect");
    assert_eq!(next(&host_events), Event::Up(true));
    assert_eq!(next(&fabric.events), Event::Up(true));
    let (source, link) = fabric.link();
    assert_eq!(source.port(), host.local_addr().port());
    exchange(&*host, &fabric.events);
    exchange(&*link, &host_events);

    let [(counted, counters)] = &fabric.listener.links()[..] else {
        panic!("one link")
    };
    assert_eq!(*counted, source);
    assert_eq!(counters.rx_packets.get(), 210);
    // A hello may come and go between two looks.
    until("all else that came is hellos", || {
        counters.rx_datagrams.get() == 210 + counters.rx_hellos.get()
    });
    let host_counters = host.counters();
    until("all else that went is hellos", || {
        host_counters.tx_datagrams.get() == 210 + host_counters.tx_hellos.get()
    });

    // The host goes: the listener's hellos are refused.
    drop(host);
    assert_eq!(next(&host_events), Event::Up(false));
    assert_eq!(next(&fabric.events), Event::Up(false));
    assert_eq!(next(&fabric.events), Event::Closed(source));
    let counters = fabric.listener.counters();
    assert_eq!(counters.closed_refused.get(), 1);
    assert_eq!(counters.closed_silent.get(), 0);
    assert!(fabric.listener.links().is_empty());
    link.transmit(&[packet(1, b"late")]);
}

#[test]
fn interop_ipv4() {
    interop("127.0.0.1:0", "127.0.0.1:0");
}

#[test]
fn interop_ipv6() {
    interop("[::1]:0", "[::1]:0");
}

#[test]
fn interop_wildcards() {
    interop("0.0.0.0:0", "127.0.0.1:0");
    // The answers come from the address that was dialled, or the host's connected socket would not take them.
    interop("0.0.0.0:0", "127.0.0.9:0");
    interop("[::]:0", "127.0.0.1:0");
    interop("[::]:0", "[::1]:0");
}

#[test]
fn host_survives_the_fabric() {
    let first = fabric(LOOPBACK);
    let address = first.listener.local_addr();
    let (sink, events) = port();
    let host = UdpLink::connect(address, sink).expect("connect");
    assert_eq!(next(&events), Event::Up(true));
    assert_eq!(next(&first.events), Event::Up(true));
    let (source, link) = first.link();
    drop(first.listener);
    assert_eq!(next(&first.events), Event::Up(false));
    assert_eq!(next(&first.events), Event::Closed(source));
    // The last holder of the socket.
    drop(link);
    assert_eq!(next(&events), Event::Up(false));
    assert!(host.counters().refused.get() > 0);
    assert!(!host.is_up());
    host.transmit(&[packet(1, b"nowhere")]);
    assert_eq!(host.counters().tx_link_down.get(), 1);

    let second = fabric(&address.to_string());
    assert_eq!(next(&events), Event::Up(true));
    assert_eq!(next(&second.events), Event::Up(true));
    let (again, link) = second.link();
    assert_eq!(again, source);
    exchange(&*host, &second.events);
    exchange(&*link, &events);
    host.close();
    assert_eq!(next(&events), Event::Up(false));
    assert!(
        events.recv_timeout(LIMIT).is_err(),
        "the sink is let go of: the channel ends"
    );
}

#[test]
fn silence_closes_a_link_and_the_source_may_come_again() {
    let fabric = fabric(LOOPBACK);
    let peer = fabric.raw();
    let source = peer.local_addr().expect("address");
    for round in 1..=2 {
        peer.send(&hello()).expect("send");
        assert_eq!(next(&fabric.events), Event::Up(true));
        if round == 1 {
            assert_eq!(next(&fabric.events), Event::Up(false));
            assert_eq!(next(&fabric.events), Event::Closed(source));
            assert_eq!(fabric.listener.counters().closed_silent.get(), 1);
            assert!(fabric.listener.links().is_empty());
        }
    }
    assert_eq!(fabric.listener.counters().opened.get(), 2);
}

#[test]
fn hellos_tell_the_state_of_the_port() {
    let fabric = fabric(LOOPBACK);
    let peer = fabric.raw();
    peer.send(&hello()).expect("send");
    let (_, link) = fabric.link();
    let op = || {
        let mut bytes = [0; 100];
        let len = peer.recv(&mut bytes).expect("a hello");
        FlowControl::parse(&bytes[..len]).expect("valid").op
    };
    assert_eq!(op(), FlowControl::INIT);
    link.port_state(PortState::ACTIVE);
    while op() != FlowControl::NORMAL {}
    link.port_state(PortState::DOWN);
    while op() != FlowControl::INIT {}
}

#[test]
fn the_acceptor_may_refuse() {
    let open = Arc::new(AtomicBool::new(false));
    let config = ListenConfig {
        max_links: 1,
        ..ListenConfig::new(LOOPBACK.parse().expect("address"))
    };
    let fabric = fabric_with(config, {
        let open = open.clone();
        move || open.load(Relaxed)
    });
    let counters = fabric.listener.counters();
    let peer = fabric.raw();
    peer.send(&hello()).expect("send");
    until("refused", || counters.no_free_port.get() == 1);
    assert!(fabric.listener.links().is_empty());

    open.store(true, Relaxed);
    peer.send(&hello()).expect("send");
    assert_eq!(next(&fabric.events), Event::Up(true));
    let second = fabric.raw();
    second.send(&hello()).expect("send");
    until("refused", || counters.too_many_links.get() == 1);
    assert_eq!(fabric.listener.links().len(), 1);
}

#[test]
fn sources_beyond_loopback_need_permission() {
    // The address that this machine would use: nothing is sent there.
    let outside = UdpSocket::bind("0.0.0.0:0").expect("bind");
    let own = match outside.connect("192.0.2.1:9").and(outside.local_addr()) {
        Ok(own) => own.ip(),
        Err(error) => return eprintln!("SKIPPED: no address besides loopback: {error}"),
    };
    let any: SocketAddr = "0.0.0.0:0".parse().expect("address");
    let network: Cidr = own.to_string().parse().expect("network");
    for allow in [vec![], vec![network]] {
        let allowed = !allow.is_empty();
        let fabric = fabric_with(
            ListenConfig {
                allow,
                ..ListenConfig::new(any)
            },
            || true,
        );
        let peer = UdpSocket::bind((own, 0)).expect("bind");
        peer.set_read_timeout(Some(LIMIT)).expect("timeout");
        peer.connect((own, fabric.listener.local_addr().port()))
            .expect("connect");
        peer.send(&hello()).expect("send");
        if allowed {
            assert_eq!(next(&fabric.events), Event::Up(true));
            peer.recv(&mut [0; 100])
                .expect("an answer from the address asked");
        } else {
            let counters = fabric.listener.counters();
            until("refused", || counters.refused_source.get() == 1);
            assert!(fabric.listener.links().is_empty());
        }
    }
}

#[test]
fn what_cannot_be_sent_is_counted() {
    let fabric = fabric(LOOPBACK);
    let peer = fabric.raw();
    peer.send(&hello()).expect("send");
    let (_, link) = fabric.link();
    assert_eq!(next(&fabric.events), Event::Up(true));
    let payload = vec![0; 60_000];
    let lso = Packet {
        lso: Some(Lso {
            header_len: 44,
            mss: 2000,
        }),
        ..packet(1, &payload)
    };
    link.transmit(&[packet(1, b"a"), lso, packet(2, &payload), packet(3, b"b")]);
    let counters = &fabric.listener.links()[0].1;
    assert_eq!(counters.tx_super_packet.get(), 1);
    assert_eq!(counters.tx_malformed.get(), 1);
    for expected in [1, 3] {
        let mut bytes = [0; 100];
        let len = loop {
            let len = peer.recv(&mut bytes).expect("a datagram");
            if len != FlowControl::LEN {
                break len;
            }
        };
        let got = Packet::parse_strict(&bytes[..len]).expect("both CRCs are right");
        assert_eq!(got.lrh.slid, Lid(expected));
    }
}

#[test]
fn a_flood_of_garbage_leaves_other_links_alone() {
    let fabric = fabric(LOOPBACK);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let flood = fabric.raw();
            let garbage = vec![0x5a; 1500];
            while !stop.load(Relaxed) {
                let _ = flood.send(&garbage);
            }
        });
        let counters = fabric.listener.counters();
        until("the flood runs", || {
            counters.rx_bad_header.get() + counters.rx_bad_length.get() > 1000
        });
        let (sink, events) = port();
        let host = UdpLink::connect(fabric.listener.local_addr(), sink).expect("connect");
        assert_eq!(next(&events), Event::Up(true));
        let host_counters = host.counters();
        until("hellos go on", || host_counters.rx_hellos.get() >= 8);
        stop.store(true, Relaxed);
        assert!(events.is_empty(), "the link stayed up");
        assert_eq!(fabric.listener.links().len(), 1);
    });
}

/// Bits of a packet without GRH that the ICRC covers: not VL, BTH byte 4 and the VCRC.
fn covered_bit(bytes: &[u8], random: usize) -> usize {
    let bit = random % ((bytes.len() - 2) * 8);
    if bit < 4 || bit / 8 == 12 { 8 } else { bit }
}

#[test]
fn hostile_datagrams_make_no_link() {
    const COUNT: u64 = 100_000;
    /// So many fit into any socket's buffer.
    const WINDOW: u64 = 32;
    let fabric = fabric(LOOPBACK);
    let peer = fabric.raw();
    let counters = fabric.listener.counters();
    let valid = datagram(&[0x42; 83]);
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    let mut buffer = vec![0; 300];
    for n in 1..=COUNT {
        let bytes = match n % 4 {
            0 => {
                let len = 7 + random() % 293;
                buffer[..len].fill_with(|| random() as u8);
                &buffer[..len]
            }
            1 => &valid[..random() % valid.len()],
            2 => {
                buffer[..valid.len()].copy_from_slice(&valid);
                let bit = covered_bit(&valid, random());
                buffer[bit / 8] ^= 0x80 >> (bit % 8);
                &buffer[..valid.len()]
            }
            _ => {
                buffer[..6].copy_from_slice(&hello());
                let bit = random() % 48;
                buffer[bit / 8] ^= 0x80 >> (bit % 8);
                &buffer[..6]
            }
        };
        // A datagram of no bytes is not seen at all.
        peer.send(if bytes.is_empty() { b"x" } else { bytes })
            .expect("send");
        if n % WINDOW == 0 {
            until("all are counted", || counters.rx_unknown.get() == n);
        }
    }
    let dropped = [
        &counters.rx_bad_length,
        &counters.rx_bad_header,
        &counters.rx_bad_icrc,
    ]
    .map(Counter::get);
    assert_eq!(dropped.iter().sum::<u64>(), COUNT);
    assert!(dropped.iter().all(|&n| n > 0), "{dropped:?}");
    assert_eq!(counters.opened.get(), 0);

    // The same source, on better behaviour; and garbage on a link does not end it.
    peer.send(&valid).expect("send");
    assert_eq!(next(&fabric.events), Event::Up(true));
    assert!(matches!(next(&fabric.events), Event::Packet(_)));
    peer.send(&valid[1..]).expect("send");
    let link = fabric.listener.links()[0].1.clone();
    until("counted", || link.rx_datagrams.get() == 2);
    assert_eq!(link.rx_packets.get(), 1);
    assert_eq!(fabric.listener.links().len(), 1);
}

#[test]
fn vectors_of_another_implementation() {
    let folder = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/kernel-peer/vectors"
    ));
    let Ok(files) = std::fs::read_dir(folder) else {
        return eprintln!("SKIPPED: no {}", folder.display());
    };
    let fabric = fabric(LOOPBACK);
    let peer = fabric.raw();
    peer.send(&hello()).expect("send");
    assert_eq!(next(&fabric.events), Event::Up(true));
    let mut count = 0;
    for file in files.map(|file| file.expect("entry").path()) {
        if file.extension().is_none_or(|e| e != "hex") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("text");
        let bytes: Vec<u8> = text
            .split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).expect("hex"))
            .collect();
        peer.send(&bytes).expect("send");
        let Event::Packet(packet) = next(&fabric.events) else {
            panic!("a packet: {}", file.display())
        };
        let mut again = Vec::new();
        packet.as_packet().emit_into(&mut again).expect("emit");
        assert_eq!(again, bytes, "{}", file.display());
        count += 1;
    }
    assert!(count > 30, "{count} vectors");
}

proptest! {
    #[test]
    fn parsing_survives_anything(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Datagram::parse(&bytes).is_err());
    }

    #[test]
    fn a_flipped_bit_is_found(payload in proptest::collection::vec(any::<u8>(), 0..200), random: usize) {
        let mut bytes = datagram(&payload);
        prop_assert!(matches!(Datagram::parse(&bytes), Ok(Datagram::Packet(p)) if p.payload == payload));
        let bit = covered_bit(&bytes, random);
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        prop_assert!(Datagram::parse(&bytes).is_err());
    }
}

/// Prints what a link carries: `cargo test --release -p ipoib-fabric throughput -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn throughput() {
    struct Count(std::sync::atomic::AtomicU64);
    impl LinkSink for Count {
        fn receive(&self, packets: &[Packet<'_>]) {
            self.0.fetch_add(packets.len() as u64, Relaxed);
        }
        fn link_changed(&self, _: bool) {}
    }
    for len in [64, 2044] {
        let count = Arc::new(Count(0.into()));
        let accept: Acceptor = {
            let count = count.clone();
            Box::new(move |_, _| Some(count.clone()))
        };
        let config = ListenConfig::new(LOOPBACK.parse().expect("address"));
        let listener = UdpListener::bind(config, accept, Box::new(|_| {})).expect("bind");
        let (sink, events) = port();
        let host = UdpLink::connect(listener.local_addr(), sink).expect("connect");
        assert_eq!(next(&events), Event::Up(true));
        let payload = vec![0; len];
        let batch = [packet(1, &payload); 32];
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < Duration::from_secs(2) {
            host.transmit(&batch);
            sent += batch.len() as u64;
        }
        let seconds = start.elapsed().as_secs_f64();
        let got = count.0.load(Relaxed);
        println!(
            "{len} bytes: sent {:.0}, received {:.0} packets/s, {:.2} Gbit/s",
            sent as f64 / seconds,
            got as f64 / seconds,
            got as f64 * len as f64 * 8e-9 / seconds
        );
    }
}
