//! Connected mode between hosts of ours.

use crate::subnet::{Background, IPOIB, Subnet, run, succeed, wait_until, words};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const LONGEST_V4: &str = "65492";
const LONGEST_V6: &str = "65472";

/// One of the programs in `programs/`, on a host.
pub(crate) fn python(subnet: &Subnet, host: u32, line: &str) -> Command {
    let mut words = line.split(' ');
    let program: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "tests/netns/programs",
        words.next().unwrap(),
    ]
    .iter()
    .collect();
    let mut python = subnet.on(host, "python3");
    python.arg(program).args(words);
    python
}

pub(crate) fn serve(subnet: &Subnet, host: u32) -> Background {
    let server = Background(python(subnet, host, "talk.py serve").spawn().unwrap());
    wait_until(
        "the server listens",
        || succeed(&mut subnet.on(host, "ss -Hlun")),
        |listening| listening.contains(":9100"),
    );
    server
}

pub(crate) fn set_mode(subnet: &Subnet, host: u32, mode: &str) {
    let name = format!("ib0@{}", subnet.namespace(host));
    let said = succeed(Command::new(IPOIB).args(["set", &name, "mode", mode]));
    assert!(
        said.starts_with(&format!("{name}: mode is {mode} ")),
        "{said}"
    );
}

/// The device of a host has this MTU, sooner or later.
pub(crate) fn wait_mtu(subnet: &Subnet, host: u32, mtu: u32) {
    wait_until(
        "the MTU",
        || subnet.ip(host, "link show ib0"),
        |said| said.contains(&format!(" mtu {mtu} ")),
    );
}

/// Of the device in a mode.
pub(crate) fn mtu(mode: &str) -> u32 {
    match mode {
        "connected" => 65_520,
        _ => 2044,
    }
}

/// A few packets more pass a host's device, each way.
pub(crate) fn wait_traffic(subnet: &Subnet, host: u32) {
    let passed = || {
        let said = subnet.ip(host, "-s -j link show dev ib0");
        let link: serde_json::Value = serde_json::from_str(&said).unwrap();
        ["rx", "tx"].map(|way| link[0]["stats64"][way]["packets"].as_u64().unwrap())
    };
    let before = passed();
    let more = |now: &[u64; 2]| {
        now.iter()
            .zip(before)
            .all(|(now, before)| *now > before + 20)
    };
    wait_until("packets both ways", passed, more);
}

/// Echoes of all sizes in steps; how many were answered and refused, and the MTU of the path.
#[track_caller]
fn sweep(subnet: &Subnet, host: u32, address: &str, step: u32) -> String {
    let last = if address.contains(':') {
        LONGEST_V6
    } else {
        LONGEST_V4
    };
    let line = format!("sweep.py {address} 1 {last} {step}");
    succeed(&mut python(subnet, host, &line)).trim().to_owned()
}

/// A counter of `ipoib show stats`.
pub(crate) fn stat(subnet: &Subnet, host: u32, name: &str) -> u64 {
    let stats = subnet.show(host, "stats");
    stats[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {stats}"))
}

pub(crate) fn connection(subnet: &Subnet, host: u32, address: &str) -> serde_json::Value {
    let neighbours = subnet.show(host, "neigh");
    let mut all = neighbours.as_array().unwrap().iter();
    let found = all.find(|n| n["ip"] == address);
    found.map_or(serde_json::Value::Null, |n| n["connection"].clone())
}

/// Programs that know nothing of it, and every size.
#[test]
fn all_sizes_between_connected_hosts() {
    let Some(subnet) = Subnet::up(2) else { return };
    for host in [1, 2] {
        set_mode(&subnet, host, "connected");
        wait_mtu(&subnet, host, 65_520);
    }
    for (address, size) in [("10.77.0.2", LONGEST_V4), ("fd77::2", LONGEST_V6)] {
        subnet.all_come_back(1, 3, &format!("-i 0.2 -M do -s {size} {address}"));
        assert_eq!(connection(&subnet, 1, address), "connected");
    }
    let _server = serve(&subnet, 2);
    for address in ["10.77.0.2", "fd77::2"] {
        succeed(&mut python(
            &subnet,
            1,
            &format!("talk.py stream {address} 64"),
        ));
        succeed(&mut python(
            &subnet,
            1,
            &format!("talk.py datagrams {address} 60000 20"),
        ));
    }
    assert_eq!(sweep(&subnet, 1, "10.77.0.2", 13), "5038 0 65520");
    assert_eq!(sweep(&subnet, 1, "fd77::2", 131), "500 0 65520");
    for host in [1, 2] {
        assert!(stat(&subnet, host, "rx_connected") > 5000);
        assert_eq!(stat(&subnet, host, "connections_own"), 1);
        assert_eq!(stat(&subnet, host, "connections_of_peers"), 1);
        assert_eq!(stat(&subnet, host, "tx_lost_connection"), 0);
    }
}

/// One message of the communication manager is lost while connections are opened: no size falls into a hole, and all are opened nevertheless.
#[test]
fn all_sizes_though_a_message_of_the_communication_manager_is_lost() {
    let Some(subnet) = Subnet::up(2) else { return };
    let (all, few) = ("5038 0 65520", "156 4882 2044");
    let pairings = [
        (["connected", "connected"], all),
        (["connected", "datagram"], all),
        (["datagram", "connected"], few),
    ];
    for message in ["req", "rep", "rtu"] {
        for (modes, answered) in pairings {
            let what = format!("{message} lost, {modes:?}");
            subnet.fault(&format!(
                "link {} 1 --lose {message} --count 1",
                subnet.guid(2)
            ));
            let hosts = || [1, 2].into_iter().zip(modes);
            hosts().for_each(|(host, mode)| set_mode(&subnet, host, mode));
            assert_eq!(sweep(&subnet, 1, "10.77.0.2", 13), answered, "{what}");
            let v6 = sweep(&subnet, 1, "fd77::2", 1310);
            assert!(
                v6.ends_with(answered.rsplit(' ').next().unwrap()),
                "{v6}, {what}"
            );
            assert_eq!(subnet.faults()["links"], serde_json::json!([]), "{what}");
            for (host, mode) in hosts() {
                let own = u64::from(mode == "connected");
                assert_eq!(stat(&subnet, host, "connections_own"), own, "{what}");
                // It ends with the mode.
                set_mode(&subnet, host, "datagram");
            }
            let left = || [1, 2].map(|host| stat(&subnet, host, "held_queue_pairs"));
            wait_until("all connections are closed", left, |left| *left == [1; 2]);
        }
    }
    for host in [1, 2] {
        assert_eq!(stat(&subnet, host, "connection_failed"), 0);
    }
}

/// A host in datagram mode takes connections and answers by datagrams; one that offers none gets datagrams, and nothing falls into a hole.
#[test]
fn all_sizes_between_hosts_of_different_modes() {
    let Some(subnet) = Subnet::up(2) else { return };
    set_mode(&subnet, 1, "connected");
    wait_mtu(&subnet, 1, 65_520);
    assert_eq!(sweep(&subnet, 1, "10.77.0.2", 13), "5038 0 65520");
    assert_eq!(connection(&subnet, 1, "10.77.0.2"), "connected");
    assert_eq!(stat(&subnet, 2, "connections_own"), 0);
    // Both sides see it, and each other's queue pair.
    let [one, two] = [1, 2].map(|host| subnet.show(host, "conn")[0].clone());
    for (seen, direction, address) in [(&one, "out", "10.77.0.2"), (&two, "in", "10.77.0.1")] {
        assert_eq!(seen["direction"], direction, "{seen}");
        assert_eq!(seen["state"], "open", "{seen}");
        assert_eq!(seen["mtu"], 65_520, "{seen}");
        let ips = seen["ips"].as_array().expect("a list");
        assert!(ips.iter().any(|ip| ip == address), "{seen}");
    }
    assert_eq!(one["qpn"], two["peer_qpn"]);
    assert_eq!(two["qpn"], one["peer_qpn"]);
    assert!(one["tx_messages"].as_u64() > Some(5000), "{one}");
    assert!(two["rx_messages"].as_u64() > Some(5000), "{two}");
    for (host, direction) in [(1, "out"), (2, "in")] {
        let neighbour = subnet.show(host, "neigh")[0].clone();
        assert_eq!(neighbour["direction"], direction, "{neighbour}");
        let name = format!("ib0@{}", subnet.namespace(host));
        let text = succeed(Command::new(IPOIB).args(["show", "neigh", "--on", &name]));
        assert!(text.contains(direction), "{text}");
        let mut set = Command::new(IPOIB);
        let said = succeed(set.args([
            "set",
            "mode",
            ["connected", "datagram"][host as usize - 1],
            "--on",
            &name,
        ]));
        assert!(said.contains("already"), "{said}");
    }
    // The host's own device says no to what is longer than its MTU.
    assert_eq!(sweep(&subnet, 2, "10.77.0.1", 13), "156 4882 2044");
    assert_eq!(sweep(&subnet, 2, "fd77::1", 131), "16 484 2044");

    subnet.kill("host2");
    let mut start = subnet.script("start.sh");
    succeed(start.arg("2").env("IPOIB_NETNS_UP", "--no-connections"));
    subnet.wait_reaches(1, "10.77.0.2");
    // Its sender allowed fragments, and so the first arrives already.
    let ping = "ping -n -c 1 -W 60 -M dont -s 60000 10.77.0.2";
    succeed(&mut subnet.on(1, ping));
    assert_eq!(stat(&subnet, 1, "tx_fragmented"), 1);
    assert_eq!(sweep(&subnet, 1, "10.77.0.2", 13), "156 4882 2044");
    assert_eq!(sweep(&subnet, 1, "fd77::2", 131), "16 484 2044");
    assert_eq!(
        connection(&subnet, 1, "10.77.0.2"),
        "none: it offers none (no RC flag)"
    );
    let refused = run(Command::new(IPOIB).args([
        "set",
        &format!("ib0@{}", subnet.namespace(2)),
        "mode",
        "connected",
    ]));
    assert!(
        !refused.status.success() && words(&refused).contains("takes no connections"),
        "{}",
        words(&refused)
    );
    let server = serve(&subnet, 2);
    for address in ["10.77.0.2", "fd77::2"] {
        succeed(&mut python(
            &subnet,
            1,
            &format!("talk.py stream {address} 16"),
        ));
        succeed(&mut python(
            &subnet,
            1,
            &format!("talk.py datagrams {address} 60000 5"),
        ));
    }

    // With connections again: what the kernel was told of a smaller MTU is taken back.
    drop(server);
    subnet.kill("host2");
    succeed(subnet.script("start.sh").arg("2"));
    for address in ["10.77.0.2", "fd77::2"] {
        subnet.wait_reaches(1, address);
        wait_until(
            "a connection",
            || {
                subnet.reaches(1, address);
                connection(&subnet, 1, address)
            },
            |is| is == "connected",
        );
        let step = if address.contains(':') { 1310 } else { 1300 };
        assert!(sweep(&subnet, 1, address, step).ends_with(" 0 65520"));
    }
}

/// Each datagram to a group or broadcast address arrives whole, the first already, of every size and from every kind of socket.
#[test]
fn groups_take_what_the_device_takes() {
    let Some(subnet) = Subnet::up_as(2, "--mode connected") else {
        return;
    };
    (1..=2).for_each(|host| wait_mtu(&subnet, host, 65_520));
    subnet.wait_reaches(1, "10.77.0.2");
    let _hear = Background(python(&subnet, 2, "groups.py hear").spawn().unwrap());
    let gid = subnet.gid(2);
    // IPv4 239.1.2.3 and IPv6 ff15::1 (RFC 4391 section 4).
    for mgid in ["ff12:401b:ffff::f01:203", "ff12:601b:ffff::1"] {
        let members = || {
            let fabric = subnet.show_fabric();
            let mut groups = fabric["groups"].as_array().unwrap().iter();
            let group = groups.find(|group| group["mgid"] == mgid);
            group.map_or(String::new(), |group| group["members"].to_string())
        };
        wait_until(mgid, members, |members| members.contains(&gid));
    }
    // 6 sizes to 6 destinations by 9 kinds of sockets, of which 3 forbid fragments: the largest does not fit the device.
    let said = succeed(&mut python(&subnet, 1, "groups.py send"));
    assert_eq!(said, "306 18\n");
    assert_eq!(stat(&subnet, 1, "tx_drop_too_big"), 0);
    // What is of more than 2044 bytes with its headers: of IPv4 from 2017 bytes on, of IPv6 from 2000. Of the largest the kernel makes two
    // packets, the second of them small.
    let fragmented = 4 * (3 * 9 + 6) + 2 * (4 * 9 + 6);
    assert_eq!(stat(&subnet, 1, "tx_fragmented"), fragmented);
}

/// Both modes and back on both sides, many times, under a stream each way.
#[test]
fn modes_change_under_tcp() {
    let Some(subnet) = Subnet::up(2) else { return };
    let _servers = [1, 2].map(|host| serve(&subnet, host));
    let streams = [(1, "10.77.0.2"), (2, "fd77::1")].map(|(host, address)| {
        let stream = format!("talk.py stream {address} on 10");
        Background::start(python(&subnet, host, &stream).stdin(Stdio::piped()))
    });
    for change in 0..24 {
        let host = 1 + change % 2;
        let mode = ["connected", "datagram"][(change / 2 % 2) as usize];
        set_mode(&subnet, host, mode);
        wait_mtu(&subnet, host, mtu(mode));
        if mode == "connected" {
            let address = ["10.77.0.2", "fd77::1"][host as usize - 1];
            let state = || connection(&subnet, host, address);
            wait_until("a connection", state, |state| state == "connected");
        }
        wait_traffic(&subnet, 1);
    }
    for mut stream in streams {
        drop(stream.0.stdin.take());
        stream.succeeds("the stream");
    }
    for host in [1, 2] {
        assert!(stat(&subnet, host, "rx_connected") > 0);
        assert!(stat(&subnet, host, "connection_opened") > 0);
    }
}

/// Thirty hosts that talk to each other in pairs; what is idle is closed, and there are never more connections than allowed.
#[test]
fn thirty_hosts_whose_connections_age() {
    if !crate::subnet::possible() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("up.toml");
    std::fs::write(
        &config,
        "mode = \"connected\"\n[connected]\nmax_connections = 24\nidle = 4\n",
    )
    .unwrap();
    let more = format!("--config {}", config.display());
    let Some(subnet) = Subnet::up_as(30, &more) else {
        return;
    };
    // Each to the next five, all at once.
    let pairs = (1..=30u32).flat_map(|a| (1..=5).map(move |d| (a, (a + d - 1) % 30 + 1)));
    let pings: Vec<(u32, u32, Background)> = pairs
        .map(|(a, b)| {
            let line = format!("ping -n -c 5 -i 0.3 -w 100 -M do -s 20000 10.77.0.{b}");
            let mut ping = subnet.on(a, &line);
            (a, b, Background::start(ping.stdout(Stdio::null())))
        })
        .collect();
    for (a, b, ping) in pings {
        ping.succeeds(&format!("{a} pings {b}"));
    }
    let sum = |name: &str| (1..=30).map(|h| stat(&subnet, h, name)).sum::<u64>();
    let opened = sum("connection_opened");
    assert!(opened >= 150, "{opened}");
    let left = || {
        let names = [
            "connections_own",
            "connections_of_peers",
            "connections_changing",
        ];
        names.map(sum)
    };
    wait_until("all connections are closed", left, |left| *left == [0; 3]);
    println!(
        "{opened} opened, {} closed as idle, {} for room",
        sum("connection_closed_idle"),
        sum("connection_closed_for_room")
    );
    assert!(sum("connection_closed_idle") > 0);
    for host in 1..=30 {
        // The interface's own.
        let held = || stat(&subnet, host, "held_queue_pairs");
        wait_until("one queue pair", held, |held| *held == 1);
    }
}
