//! Throughput and round-trip time of `ib0` in both modes beside a plain veth pair, in one run: `cargo bench --bench ib0`.
//!
//! Hosts are network namespaces of this process. Rounds are interleaved and medians are compared, so that a machine that is busy or slow
//! matters little; read the ratios. As root, or in a user namespace (`unshare -Urn cargo bench`); needs `ip` for the veth pair.

use datapath::host::{HostLink, Netns, NetnsRef};
use datapath::{InterfaceConfig, Mode};
use fabric::link::udp::{ListenConfig, UdpLink, UdpListener};
use fabric::sm::SmConfig;
use ipoib::cli::InterfaceAddress;
use ipoib::linux::LinuxNode;
use ipoib::node::NodeConfig;
use ipoib::subnet::Subnet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Guid;

const ROUNDS: usize = 5;
const TCP_TIME: Duration = Duration::from_secs(1);
const PINGS: usize = 2000;

/// Two namespaces with some network between them.
struct Pair {
    name: String,
    ends: [(Netns, IpAddr); 2],
    /// What keeps the network alive.
    _hold: Box<dyn std::any::Any>,
}

fn main() {
    if let Err(error) = Netns::new_anonymous() {
        println!("SKIPPED: {error}");
        return;
    }
    let pairs = [
        veth(),
        local(Mode::Datagram),
        local(Mode::Connected),
        udp(Mode::Datagram),
        udp(Mode::Connected),
    ];
    let pairs = match pairs.into_iter().collect::<anyhow::Result<Vec<Pair>>>() {
        Ok(pairs) => pairs,
        Err(error) => {
            println!("SKIPPED: {error:#}");
            return;
        }
    };
    let mut tcp = vec![Vec::new(); pairs.len()];
    let mut rtt = vec![Vec::new(); pairs.len()];
    for _ in 0..ROUNDS {
        for (index, pair) in pairs.iter().enumerate() {
            tcp[index].push(throughput(pair));
            rtt[index].push(round_trip(pair));
        }
    }
    let median = |list: &mut Vec<f64>| {
        list.sort_by(f64::total_cmp);
        list[list.len() / 2]
    };
    let tcp: Vec<f64> = tcp.iter_mut().map(median).collect();
    let rtt: Vec<f64> = rtt.iter_mut().map(median).collect();
    println!(
        "{:<28} {:>14} {:>7} {:>14} {:>7}",
        "", "TCP, 1 stream", "ratio", "UDP round trip", "ratio"
    );
    for (index, pair) in pairs.iter().enumerate() {
        println!(
            "{:<28} {:>7.2} Gbit/s {:>7.3} {:>11.1} us {:>7.2}",
            pair.name,
            tcp[index] / 1e9,
            tcp[index] / tcp[0],
            rtt[index] * 1e6,
            rtt[index] / rtt[0]
        );
    }
    for (what, datagram, connected) in [("one process", 1, 2), ("UDP links", 3, 4)] {
        println!(
            "connected to datagram, {what}: throughput {:.2}, round trip {:.2}",
            tcp[connected] / tcp[datagram],
            rtt[connected] / rtt[datagram]
        );
    }
}

/// The kernel's own: what the ratios refer to.
fn veth() -> anyhow::Result<Pair> {
    let namespaces = [Netns::new_anonymous()?, Netns::new_anonymous()?];
    let peer = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        std::os::fd::AsFd::as_fd(&namespaces[1]).as_raw_fd()
    );
    namespaces[0].run(|| {
        ip(&[
            "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", &peer,
        ])
    })??;
    let mut ends = Vec::new();
    for (netns, k) in namespaces.into_iter().zip(1u8..) {
        let link = HostLink::open(Some(&NetnsRef::Open(netns.clone())), "v0")?;
        let address = IpAddr::from([10, 78, 0, k]);
        link.add_address(address, 24)?;
        link.set_up(true)?;
        ends.push((netns, address));
    }
    pair("veth", ends, Box::new(()))
}

/// Two hosts and the switch in one process.
fn local(mode: Mode) -> anyhow::Result<Pair> {
    let subnet = Subnet::start(Guid(0x0200_0000_0000_0001), 4, SmConfig::default())?;
    let (nodes, ends) = hosts(mode, |node| {
        subnet
            .connect(None, node.node().sink(), |link| node.node().attach(link))
            .map(drop)
    })?;
    pair(
        &format!("ib0 {mode}, one process"),
        ends,
        Box::new((nodes, subnet)),
    )
}

/// Two hosts on UDP links of a fabric, all on loopback.
fn udp(mode: Mode) -> anyhow::Result<Pair> {
    let subnet = Subnet::start(Guid(0x0200_0000_0000_0002), 4, SmConfig::default())?;
    let listener: UdpListener =
        subnet.listen(ListenConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))))?;
    let mut links = Vec::new();
    let (nodes, ends) = hosts(mode, |node| {
        let link = UdpLink::connect(listener.local_addr(), node.node().sink())?;
        node.node().attach(link.clone());
        links.push(Closing(link));
        Ok(())
    })?;
    pair(
        &format!("ib0 {mode}, UDP links"),
        ends,
        Box::new((nodes, links, listener, subnet)),
    )
}

/// A UDP link and its sink hold each other until it is closed.
struct Closing(Arc<UdpLink>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

type Ends = Vec<(Netns, IpAddr)>;

fn hosts(
    mode: Mode,
    mut connect: impl FnMut(&LinuxNode) -> anyhow::Result<()>,
) -> anyhow::Result<(Vec<LinuxNode>, Ends)> {
    let (mut nodes, mut ends) = (Vec::new(), Vec::new());
    for k in 1..=2u8 {
        let netns = Netns::new_anonymous()?;
        let at = NetnsRef::Open(netns.clone());
        let address = IpAddr::from([10, 77, 0, k]);
        let config = NodeConfig {
            port_guid: Guid(0x0200_0000_0000_0100 + u64::from(k)),
            description: format!("bench {k}"),
            interface: InterfaceConfig {
                mode,
                ..InterfaceConfig::default()
            },
            max_packet: 0,
        };
        let node = LinuxNode::start(
            config,
            Some(&at),
            &[InterfaceAddress {
                ip: address,
                prefix: 24,
            }],
        )?;
        connect(&node)?;
        let link = HostLink::open(Some(&at), "ib0")?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !link.state()?.running {
            anyhow::ensure!(Instant::now() < deadline, "ib0 does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
        nodes.push(node);
        ends.push((netns, address));
    }
    Ok((nodes, ends))
}

fn pair(name: &str, ends: Ends, hold: Box<dyn std::any::Any>) -> anyhow::Result<Pair> {
    let ends = ends
        .try_into()
        .map_err(|_| anyhow::anyhow!("a pair has two ends"))?;
    Ok(Pair {
        name: name.to_owned(),
        ends,
        _hold: hold,
    })
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("ip")
        .args(args)
        .status()
        .map_err(|error| anyhow::anyhow!("ip: {error}"))?;
    anyhow::ensure!(status.success(), "ip {} failed", args.join(" "));
    Ok(())
}

/// Bits per second of one TCP stream.
fn throughput(pair: &Pair) -> f64 {
    let [(sender, _), (receiver, address)] = &pair.ends;
    let listener = receiver
        .run(|| TcpListener::bind((*address, 0)).expect("bind"))
        .expect("namespace");
    let to = listener.local_addr().expect("bound");
    // BBR paces below what the path can do; cubic is in every kernel.
    let mut stream = sender
        .run(|| {
            let socket = socket2::Socket::new(
                socket2::Domain::for_address(to),
                socket2::Type::STREAM,
                None,
            )
            .expect("socket");
            if let Err(error) = socket.set_tcp_congestion(b"cubic") {
                println!("cubic is not to be had: {error}");
            }
            socket.connect(&to.into()).expect("connect");
            std::net::TcpStream::from(socket)
        })
        .expect("namespace");
    let (mut accepted, _) = listener.accept().expect("accept");
    let received = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        let (start, mut total) = (Instant::now(), 0u64);
        loop {
            match accepted.read(&mut buffer) {
                Ok(0) | Err(_) => return total as f64 * 8.0 / start.elapsed().as_secs_f64(),
                Ok(n) => total += n as u64,
            }
        }
    });
    let chunk = vec![0x5a; 1 << 18];
    let end = Instant::now() + TCP_TIME;
    while Instant::now() < end {
        stream.write_all(&chunk).expect("send");
    }
    drop(stream);
    received.join().expect("receiver")
}

/// Median seconds of a UDP datagram of 64 bytes there and back.
fn round_trip(pair: &Pair) -> f64 {
    let [(client, from), (server, to)] = &pair.ends;
    let echo = server
        .run(|| UdpSocket::bind((*to, 0)).expect("bind"))
        .expect("namespace");
    let socket = client
        .run(|| UdpSocket::bind((*from, 0)).expect("bind"))
        .expect("namespace");
    let timeout = Some(Duration::from_secs(1));
    echo.set_read_timeout(timeout).expect("time-out");
    socket.set_read_timeout(timeout).expect("time-out");
    socket
        .connect(echo.local_addr().expect("bound"))
        .expect("connect");
    let echoing = std::thread::spawn(move || {
        let mut buffer = [0; 128];
        while let Ok((n, source)) = echo.recv_from(&mut buffer) {
            if n == 1 || echo.send_to(&buffer[..n], source).is_err() {
                return;
            }
        }
    });
    let mut times = Vec::with_capacity(PINGS);
    let mut buffer = [0; 128];
    for _ in 0..PINGS {
        let start = Instant::now();
        socket.send(&[7; 64]).expect("send");
        if socket.recv(&mut buffer).is_ok() {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    socket.send(&[0]).expect("send");
    echoing.join().expect("echo");
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
