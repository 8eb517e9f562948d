//! Against the kernel, each test in a network namespace of its own. They need CAP_SYS_ADMIN and
//! CAP_NET_ADMIN (root, or `unshare -Ur`) and /dev/net/tun, and say so where they lack them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::route::{
    RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use super::netlink::Requests;
use super::*;
use crate::netdev::tun::{self, Tun, TunError};
use crate::netdev::{Netdev, NetdevError, PacketBatch};

/// Only a hang takes so long.
const HANG: Duration = Duration::from_secs(120);

struct Host {
    netns: Netns,
    tun: Tun,
    link: HostLink,
    requests: Requests,
}

impl Host {
    /// An interface `ib0`, up, with carrier, 10.77.0.1/24 and fd77::1/64; `None` where that is
    /// refused here.
    fn up() -> Option<Self> {
        let host = Self::down()?;
        host.link.set_addr_gen_mode_none().unwrap();
        host.link.add_address(ip("10.77.0.1"), 24).unwrap();
        host.link.add_address(ip("fd77::1"), 64).unwrap();
        host.link.set_up(true).unwrap();
        host.tun.set_carrier(true).unwrap();
        // Until the kernel has noticed (linkwatch), it drops what is sent by the interface.
        eventually(|| host.link.state().unwrap().running);
        Some(host)
    }

    fn down() -> Option<Self> {
        let netns = Netns::new_anonymous()
            .inspect_err(|e| eprintln!("SKIPPED: {e}"))
            .ok()?;
        let by = NetnsRef::from(netns.clone());
        let tun = match tun::open_in(Some(&by), "ib0") {
            Err(e @ (TunError::NoDriver | TunError::OpenRefused | TunError::CreateRefused(_))) => {
                eprintln!("SKIPPED: {e}");
                return None;
            }
            other => other.unwrap(),
        };
        let link = HostLink::open(Some(&by), "ib0").unwrap();
        let requests = netns.run(Requests::new).unwrap().unwrap();
        Some(Self {
            netns,
            tun,
            link,
            requests,
        })
    }

    fn by(&self) -> NetnsRef {
        self.netns.clone().into()
    }

    /// Waits until the address can be used: an IPv6 address is tentative until the kernel has
    /// noticed the carrier, in its own time.
    fn bind(&self, address: &str) -> UdpSocket {
        let mut socket = None;
        eventually(|| {
            match self.netns.run(|| UdpSocket::bind(address)).unwrap() {
                Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {}
                bound => socket = Some(bound.unwrap()),
            }
            socket.is_some()
        });
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(HANG)).unwrap();
        socket
    }

    fn monitor(&self, netns: &NetnsRef) -> (HostMonitor, Receiver<HostEvent>) {
        let (tx, rx) = unbounded();
        let callback = Box::new(move |event| tx.send(event).unwrap_or_default());
        (
            HostMonitor::start(Some(netns), "ib0", callback).unwrap(),
            rx,
        )
    }

    fn delete_link(&self) {
        let mut message = LinkMessage::default();
        message.header.index = self.link.index();
        self.requests
            .change("delete the link", Message::DelLink(message), 0)
            .unwrap();
    }

    fn route(&self, destination: &str, len: u8, attributes: &[RouteAttribute]) -> Message {
        let mut message = RouteMessage::default();
        message.header.address_family = match ip(destination) {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.destination_prefix_length = len;
        // RT_TABLE_MAIN, where no RTA_TABLE says otherwise.
        message.header.table = 254;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes = attributes.to_vec();
        message
            .attributes
            .push(RouteAttribute::Oif(self.link.index()));
        if len > 0 {
            message
                .attributes
                .push(RouteAttribute::Destination(ip(destination).into()));
        }
        Message::NewRoute(message)
    }

    fn add_route(&self, destination: &str, len: u8, attributes: &[RouteAttribute]) {
        let route = self.route(destination, len, attributes);
        self.requests
            .change("add the route", route, NLM_F_CREATE)
            .unwrap();
    }

    fn next_hop(&self, destination: &str) -> NextHop {
        self.link.next_hop(ip(destination)).unwrap()
    }

    /// Reads until a packet from 10.77.0.1 or fd77::1 to a unicast address comes: the kernel also
    /// sends reports and solicitations of its own.
    fn read_unicast(&self) -> Vec<u8> {
        let mut batch = PacketBatch::for_mtu(4096);
        loop {
            assert!(self.tun.read_batch(&mut batch).unwrap() > 0);
            let found = batch.iter().find(|p| match p[0] >> 4 {
                4 => p[16] < 224,
                _ => p[24] != 0xff,
            });
            if let Some(packet) = found {
                return packet.to_vec();
            }
        }
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn wait_for(events: &Receiver<HostEvent>, wanted: HostEvent) {
    let mut seen = Vec::new();
    while seen.last() != Some(&wanted) {
        match events.recv_timeout(HANG) {
            Ok(event) => seen.push(event),
            Err(e) => panic!("{wanted:?}: {e} after {seen:?}"),
        }
    }
}

/// For what the kernel does in its own time and of which it notifies nobody.
fn eventually(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "it never came");
        std::thread::yield_now();
    }
}

#[test]
fn namespaces_are_named_as_ip_does() {
    let parse = |text: &str| text.parse::<NetnsRef>().unwrap();
    assert!(matches!(parse("blue"), NetnsRef::Name(n) if n == "blue"));
    assert!(matches!(parse("4000000000"), NetnsRef::Pid(4_000_000_000)));
    assert!(matches!(parse("/proc/12/ns/net"), NetnsRef::Pid(12)));
    assert!(matches!(parse("./ns"), NetnsRef::Path(_)));
    let missing = parse("no-such-namespace-here").open().unwrap_err();
    assert!(missing.to_string().contains("no-such-namespace-here"));
}

#[test]
fn name_in_use_and_no_such_interface() {
    let Some(host) = Host::down() else { return };
    let again = tun::open_in(Some(&host.by()), "ib0").unwrap_err();
    assert!(matches!(again, TunError::NameInUse(_)), "{again:?}");
    let loopback = tun::open_in(Some(&host.by()), "lo").unwrap_err();
    assert!(matches!(loopback, TunError::NameInUse(_)), "{loopback:?}");
    let none = HostLink::open(Some(&host.by()), "ib1").err().unwrap();
    assert!(matches!(none, HostError::NoSuchInterface(_)), "{none:?}");
}

#[test]
fn carrier_is_seen_by_the_host() {
    let Some(host) = Host::down() else { return };
    host.link.set_up(true).unwrap();
    assert!(
        !host.link.state().unwrap().running,
        "a new device has no carrier"
    );
    for up in [true, false] {
        host.tun.set_carrier(up).unwrap();
        eventually(|| host.link.state().unwrap().running == up);
    }
    assert!(host.link.state().unwrap().admin_up);
}

#[test]
fn addresses_and_link_local() {
    let Some(host) = Host::up() else { return };
    host.link
        .add_link_local(wire::Guid(0x0002_c903_0001_0002))
        .unwrap();
    // Twice is no error.
    host.link.add_address(ip("10.77.0.1"), 24).unwrap();
    let mut addresses = host.link.addresses().unwrap();
    addresses.sort();
    // Nothing else: the kernel made no fe80:: address by itself.
    assert_eq!(
        addresses,
        [
            (ip("10.77.0.1"), 24),
            (ip("fd77::1"), 64),
            (ip("fe80::202:c903:1:2"), 64)
        ]
    );
    let refused = host.link.set_mtu(67).unwrap_err().to_string();
    assert!(refused.starts_with("cannot set the MTU"), "{refused}");
}

#[test]
fn a_written_packet_reaches_a_socket() {
    let Some(host) = Host::up() else { return };
    for (from, to) in [("10.77.0.2", "10.77.0.1"), ("fd77::2", "fd77::1")] {
        let socket = host.bind(&std::net::SocketAddr::new(ip(to), 4000).to_string());
        let builder = match (ip(from), ip(to)) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                etherparse::PacketBuilder::ipv4(from.octets(), to.octets(), 9)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                etherparse::PacketBuilder::ipv6(from.octets(), to.octets(), 9)
            }
            _ => unreachable!(),
        };
        let mut packet = Vec::new();
        builder
            .udp(5000, 4000)
            .write(&mut packet, b"hello")
            .unwrap();
        host.tun.write(&packet).unwrap();
        let mut buffer = [0; 100];
        let (len, peer) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"hello");
        assert_eq!((peer.ip(), peer.port()), (ip(from), 5000));
    }
    assert!(matches!(
        host.tun.write(&[0; 20]),
        Err(NetdevError::Refused(20))
    ));
    host.link.set_up(false).unwrap();
    assert!(matches!(
        host.tun.write(&[0x45; 20]),
        Err(NetdevError::Down)
    ));
    let counters = host.tun.counters();
    assert_eq!(
        (counters.tx_packets, counters.tx_refused, counters.tx_down),
        (2, 1, 1)
    );
}

#[test]
fn a_sent_datagram_is_read_and_a_long_one_counted() {
    let Some(host) = Host::up() else { return };
    host.link.set_mtu(9000).unwrap();
    let socket = host.bind("10.77.0.1:4000");
    // IP and UDP headers are 28 bytes: one byte too long, then as long as the buffers allow.
    socket.send_to(&[1; 4069], "10.77.0.2:9").unwrap();
    socket.send_to(&[2; 4068], "10.77.0.2:9").unwrap();
    let packet = host.read_unicast();
    assert_eq!(packet.len(), 4096);
    assert_eq!(packet[12..20], [10, 77, 0, 1, 10, 77, 0, 2]);
    assert_eq!(packet[28..], [2; 4068]);
    assert_eq!(host.tun.counters().rx_oversize, 1);
}

#[test]
fn wake_ends_a_read_whenever_it_comes() {
    let Some(host) = Host::down() else { return };
    let mut batch = PacketBatch::new(4, 2044);
    host.tun.wake();
    assert_eq!(host.tun.read_batch(&mut batch).unwrap(), 0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| host.tun.read_batch(&mut PacketBatch::new(4, 2044)));
        host.tun.wake();
        assert_eq!(reader.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn next_hops_are_the_kernels() {
    let Some(host) = Host::up() else { return };
    let gateway = |text: &str| RouteAttribute::Gateway(ip(text).into());
    assert_eq!(host.next_hop("10.77.0.9"), NextHop::OnLink);
    assert_eq!(host.next_hop("10.77.0.255"), NextHop::Broadcast);
    assert_eq!(host.next_hop("255.255.255.255"), NextHop::Broadcast);
    assert_eq!(host.next_hop("10.77.0.1"), NextHop::Unreachable);
    assert_eq!(host.next_hop("fd77::9"), NextHop::OnLink);
    assert_eq!(host.next_hop("fe80::9"), NextHop::OnLink);
    assert_eq!(host.next_hop("2001:db8::1"), NextHop::Unreachable);

    host.add_route("192.0.2.0", 24, &[gateway("10.77.0.2")]);
    host.add_route("2001:db8::", 32, &[gateway("fd77::2")]);
    assert_eq!(
        host.next_hop("192.0.2.7"),
        NextHop::Gateway(ip("10.77.0.2"))
    );
    assert_eq!(
        host.next_hop("2001:db8::1"),
        NextHop::Gateway(ip("fd77::2"))
    );

    // IPv4 by an IPv6 router (RTA_VIA), and metrics: the smaller wins.
    let via = RouteAttribute::Via(RouteVia::Inet6("fd77::3".parse().unwrap()));
    host.add_route("198.51.100.0", 24, &[via]);
    assert_eq!(
        host.next_hop("198.51.100.1"),
        NextHop::Gateway(ip("fd77::3"))
    );
    for (router, metric) in [("10.77.0.4", 10), ("10.77.0.5", 5)] {
        let metric = RouteAttribute::Priority(metric);
        host.add_route("0.0.0.0", 0, &[gateway(router), metric]);
    }
    assert_eq!(
        host.next_hop("203.0.113.1"),
        NextHop::Gateway(ip("10.77.0.5"))
    );
}

#[test]
fn the_monitor_tells_the_start_and_the_changes() {
    let Some(host) = Host::up() else { return };
    let (monitor, events) = host.monitor(&host.by());
    let start: Vec<_> = (0..20)
        .map(|_| events.recv_timeout(HANG).unwrap())
        .take_while(|e| *e != HostEvent::RoutesChanged)
        .collect();
    for expect in [
        HostEvent::Link {
            admin_up: true,
            mtu: 1500,
        },
        HostEvent::AddressAdded(ip("10.77.0.1"), 24),
        HostEvent::AddressAdded(ip("fd77::1"), 64),
        HostEvent::GroupJoined(ip("224.0.0.1")),
        HostEvent::GroupJoined(ip("ff02::1")),
    ] {
        assert!(start.contains(&expect), "{expect:?} not in {start:?}");
    }

    host.link.set_mtu(2044).unwrap();
    let mtu = |admin_up| HostEvent::Link {
        admin_up,
        mtu: 2044,
    };
    wait_for(&events, mtu(true));
    host.link.add_address(ip("10.78.0.1"), 16).unwrap();
    wait_for(&events, HostEvent::AddressAdded(ip("10.78.0.1"), 16));
    host.add_route(
        "192.0.2.0",
        24,
        &[RouteAttribute::Gateway(ip("10.77.0.2").into())],
    );
    wait_for(&events, HostEvent::RoutesChanged);

    let socket = host.bind("[::]:0");
    let v4 = host.bind("0.0.0.0:0");
    let group4 = Ipv4Addr::new(239, 1, 2, 3);
    let group6: Ipv6Addr = "ff05::1234".parse().unwrap();
    v4.join_multicast_v4(&group4, &Ipv4Addr::new(10, 77, 0, 1))
        .unwrap();
    socket
        .join_multicast_v6(&group6, host.link.index())
        .unwrap();
    if !monitor.multicast_notified() {
        monitor.recheck_groups();
    }
    wait_for(&events, HostEvent::GroupJoined(group4.into()));
    wait_for(&events, HostEvent::GroupJoined(group6.into()));
    let now = host.link.groups_now().unwrap();
    assert!(
        now.contains(&group4.into()) && now.contains(&group6.into()),
        "{now:?}"
    );
    drop((v4, socket));
    if !monitor.multicast_notified() {
        monitor.recheck_groups();
    }
    wait_for(&events, HostEvent::GroupLeft(group4.into()));
    wait_for(&events, HostEvent::GroupLeft(group6.into()));

    host.link.set_up(false).unwrap();
    wait_for(&events, mtu(false));
    drop(monitor);
    assert!(
        events.iter().all(|e| e != HostEvent::Gone),
        "the callback is gone, so this ends"
    );
}

#[test]
fn rules_by_source_are_the_kernels_too() {
    let Some(host) = Host::up() else { return };
    host.link.add_address(ip("10.77.0.3"), 24).unwrap();
    host.link.add_address(ip("fd77::3"), 64).unwrap();
    for (source, router, wide, any) in [
        ("10.77.0.3", "10.77.0.9", "192.0.2.1", "0.0.0.0"),
        ("fd77::3", "fd77::9", "2001:db8::1", "::"),
    ] {
        let gateway = RouteAttribute::Gateway(ip(router).into());
        host.add_route(any, 0, &[gateway, RouteAttribute::Table(100)]);
        let mut rule = RuleMessage::default();
        rule.header.family = match ip(source) {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        rule.header.src_len = if ip(source).is_ipv4() { 32 } else { 128 };
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![RuleAttribute::Source(ip(source)), RuleAttribute::Table(100)];
        let rule = Message::NewRule(rule);
        host.requests
            .change("add the rule", rule, NLM_F_CREATE)
            .unwrap();
        let next_hop = host.link.next_hop_from(ip(source), ip(wide)).unwrap();
        assert_eq!(next_hop, NextHop::Gateway(ip(router)));
    }
    // A source of which the kernel is only a router: what the destination alone gives.
    let forwarded = host
        .link
        .next_hop_from(ip("198.51.100.1"), ip("10.77.0.4"))
        .unwrap();
    assert_eq!(forwarded, NextHop::OnLink);
}

/// The way of kernels before 6.14: nothing is notified, /proc is read when asked.
#[test]
fn groups_are_reread_when_asked() {
    let Some(host) = Host::up() else { return };
    let (monitor, events) = host.monitor(&host.by());
    wait_for(&events, HostEvent::RoutesChanged);
    monitor.recheck_groups();
    let socket = host.bind("0.0.0.0:0");
    let group = Ipv4Addr::new(239, 9, 9, 9);
    socket
        .join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, 1))
        .unwrap();
    monitor.recheck_groups();
    wait_for(&events, HostEvent::GroupJoined(group.into()));
    // Told once only, by whichever of the two ways was first.
    host.link.set_mtu(1400).unwrap();
    loop {
        match events.recv_timeout(HANG).unwrap() {
            HostEvent::Link { mtu: 1400, .. } => break,
            event => assert_ne!(event, HostEvent::GroupJoined(group.into())),
        }
    }
}

#[test]
fn a_deleted_device_is_gone_for_all() {
    let Some(host) = Host::up() else { return };
    let (_monitor, events) = host.monitor(&host.by());
    wait_for(&events, HostEvent::RoutesChanged);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut batch = PacketBatch::new(16, 2044);
            loop {
                if let Err(e) = host.tun.read_batch(&mut batch) {
                    return e;
                }
            }
        });
        host.delete_link();
        let error = reader.join().unwrap();
        assert!(matches!(error, NetdevError::DeviceGone), "{error:?}");
    });
    wait_for(&events, HostEvent::Gone);
    assert_eq!(events.recv_timeout(HANG).ok(), None, "Gone is the last");
    assert!(matches!(
        host.tun.write(&[0x45; 20]),
        Err(NetdevError::DeviceGone)
    ));
    assert!(matches!(
        host.tun.set_carrier(true),
        Err(NetdevError::DeviceGone)
    ));
    assert!(matches!(
        host.link.state(),
        Err(HostError::NoSuchInterface(_))
    ));
    assert_eq!(host.next_hop("10.77.0.2"), NextHop::Unreachable);
}

#[test]
fn lost_notifications_are_made_good() {
    let Some(host) = Host::up() else { return };
    let (hold, held) = unbounded::<()>();
    let (tx, events) = unbounded();
    // The callback stands still from the first route change on until `hold` is dropped.
    let callback = Box::new(move |event| {
        let _ = tx.send(event);
        if event == HostEvent::RoutesChanged {
            let _ = held.recv();
        }
    });
    let monitor = HostMonitor::start(Some(&host.by()), "ib0", callback).unwrap();
    wait_for(&events, HostEvent::RoutesChanged);
    // Far more than the socket's buffer holds; what comes last is lost for certain.
    let gateway = [RouteAttribute::Gateway(ip("10.77.0.2").into())];
    for n in 0..6000_u32 {
        let to = Ipv4Addr::from(0xC633_0000 + n).to_string();
        host.add_route(&to, 32, &gateway);
    }
    host.link.add_address(ip("10.99.0.1"), 24).unwrap();
    host.link.set_mtu(1234).unwrap();
    drop(hold);
    wait_for(
        &events,
        HostEvent::Link {
            admin_up: true,
            mtu: 1234,
        },
    );
    wait_for(&events, HostEvent::AddressAdded(ip("10.99.0.1"), 24));
    drop(monitor);
}

#[test]
fn the_end_of_the_namespaces_process_is_told() {
    let Some(host) = Host::up() else { return };
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1000").stdin(Stdio::null());
    let mut child = host.netns.run(|| sleeper.spawn()).unwrap().unwrap();
    let (_monitor, events) = host.monitor(&NetnsRef::Pid(child.id()));
    wait_for(&events, HostEvent::RoutesChanged);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for(&events, HostEvent::NamespaceDeleted);
}

#[test]
fn the_loss_of_the_namespaces_name_is_told() {
    use std::os::fd::{AsFd, AsRawFd};
    let Some(host) = Host::up() else { return };
    let dir = std::env::temp_dir().join(format!("ipoib-netns-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // A link instead of the bind mount that `ip netns` makes: that would be seen by the machine.
    let target = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        host.netns.as_fd().as_raw_fd()
    );
    std::os::unix::fs::symlink(target, dir.join("blue")).unwrap();
    let (_monitor, events) = host.monitor(&NetnsRef::Path(dir.join("blue")));
    wait_for(&events, HostEvent::RoutesChanged);
    // Another name's end means nothing.
    std::fs::write(dir.join("red"), "").unwrap();
    std::fs::remove_file(dir.join("red")).unwrap();
    host.link.set_mtu(1300).unwrap();
    wait_for(
        &events,
        HostEvent::Link {
            admin_up: true,
            mtu: 1300,
        },
    );
    std::fs::remove_dir_all(&dir).unwrap();
    wait_for(&events, HostEvent::NamespaceDeleted);
}
