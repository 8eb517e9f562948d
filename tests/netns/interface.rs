//! `ib0` as administrators treat it.

use crate::subnet::{Background, IPOIB, Subnet, run, succeed, wait_until, words};
use std::fs::File;
use std::process::{Command, Stdio};

const MTU: &str = "mtu 2044 ";

#[test]
fn down_and_up() {
    let Some(subnet) = Subnet::up(2) else { return };
    let gid = subnet.gid(2);
    let link_local = |subnet: &Subnet| subnet.ip(2, "-o -6 address show dev ib0 scope link");
    let before = link_local(&subnet);
    assert!(
        before.contains(&gid),
        "the link-local address is that of the port's GID {gid}: {before}"
    );
    subnet.wait_reaches(1, "10.77.0.2");
    subnet.wait_reaches(1, &format!("{gid}%ib0"));
    assert!(subnet.is_member(&gid));

    subnet.ip(2, "link set ib0 down");
    wait_until(
        "memberships after `link set down`",
        || subnet.is_member(&gid),
        |member| !member,
    );
    assert!(!subnet.reaches(1, "10.77.0.2"));
    let link = subnet.ip(2, "-o link show dev ib0");
    assert!(
        !link.contains("LOWER_UP") && link.contains("state DOWN"),
        "{link}"
    );
    assert_eq!(subnet.show(2, "link")["up"], false);

    subnet.ip(2, "link set ib0 up");
    subnet.wait_reaches(1, "10.77.0.2");
    // The kernel has deleted all IPv6 addresses; the one that every interface has comes back by itself.
    let after = wait_until(
        "link-local address",
        || link_local(&subnet),
        |text| text.contains(&gid),
    );
    assert_eq!(before, after);
    subnet.wait_reaches(1, &format!("{gid}%ib0"));
    subnet.ip(2, "address add fd77::2/64 dev ib0");
    subnet.wait_reaches(1, "fd77::2");
    wait_until(
        "carrier",
        || subnet.ip(2, "-o link show dev ib0"),
        |link| link.contains("LOWER_UP"),
    );

    // Faster than anybody can follow.
    for _ in 0..10 {
        subnet.ip(2, "link set ib0 down");
        subnet.ip(2, "link set ib0 up");
    }
    subnet.wait_reaches(1, "10.77.0.2");
    wait_until(
        "link-local address",
        || link_local(&subnet),
        |text| text.contains(&gid),
    );
    subnet.wait_reaches(1, &format!("{gid}%ib0"));
}

#[test]
fn mtu_down_and_up() {
    let Some(subnet) = Subnet::up(2) else { return };
    let link = || subnet.ip(1, "-o link show dev ib0");
    let ping =
        |size: u32| run(&mut subnet.on(1, &format!("ping -n -c 1 -M do -s {size} 10.77.0.2")));
    assert!(link().contains(MTU));
    // 28 bytes of IPv4 and ICMP header.
    subnet.all_come_back(1, 3, "-i 0.05 -M do -s 2016 10.77.0.2");
    assert!(words(&ping(2044 - 27)).contains("message too long"));

    subnet.ip(1, "link set ib0 mtu 1500");
    wait_until(
        "the program knows",
        || subnet.show(1, "link"),
        |link| link["mtu"] == 1500,
    );
    assert!(link().contains("mtu 1500 "));
    subnet.all_come_back(1, 3, "-i 0.05 -M do -s 1472 10.77.0.2");
    assert!(words(&ping(1500 - 27)).contains("message too long, mtu=1500"));
    // The other host's is what it was, and longer packets are still received.
    succeed(&mut subnet.on(2, "ping -n -c 1 -W 60 -M do -s 2016 10.77.0.1"));
    assert!(link().contains("mtu 1500 "), "it stays");

    // More than the broadcast group allows: back to what it allows.
    subnet.ip(1, "link set ib0 mtu 9000");
    wait_until("MTU", link, |link| link.contains(MTU));
    subnet.all_come_back(1, 3, "-i 0.05 -M do -s 2016 10.77.0.2");
}

/// Tools show a normal interface whose counters move.
#[test]
fn counters() {
    let Some(subnet) = Subnet::up(2) else { return };
    subnet.wait_reaches(1, "10.77.0.2");
    let counters = || {
        let text = subnet.ip(1, "-s -j link show dev ib0");
        let link: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(link[0]["operstate"], "UP", "{text}");
        ["rx", "tx"].map(|way| {
            (
                link[0]["stats64"][way]["packets"].as_u64().unwrap(),
                link[0]["stats64"][way]["bytes"].as_u64().unwrap(),
            )
        })
    };
    let before = counters();
    subnet.all_come_back(1, 20, "-i 0.01 -s 1000 10.77.0.2");
    let after = counters();
    for (before, after) in before.iter().zip(&after) {
        assert!(
            after.0 >= before.0 + 20 && after.1 >= before.1 + 20 * 1028,
            "{before:?} {after:?}"
        );
    }
    let ifconfig = succeed(&mut subnet.on(1, "ifconfig ib0"));
    for expected in [
        "RUNNING",
        "mtu 2044",
        "inet 10.77.0.1 ",
        "inet6 fd77::1 ",
        "RX packets",
        "TX packets",
    ] {
        assert!(ifconfig.contains(expected), "{expected}: {ifconfig}");
    }
}

/// Containers often have no IPv6: the interface works without.
#[test]
fn without_ipv6() {
    let Some(subnet) = Subnet::up(1) else { return };
    succeed(&mut subnet.on(1, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1"));
    let namespace = subnet.namespace(1);
    let mut up = Command::new(IPOIB);
    up.args([
        "up",
        "ib1",
        "--fabric",
        &subnet.url(),
        "--netns",
        &namespace,
    ]);
    up.args(["--address", "10.88.0.1/24"]);
    let said = subnet.directory().join("ib1.log");
    let child = up.stdin(Stdio::null()).stdout(File::create(&said).unwrap());
    let _host = Background(child.spawn().unwrap());
    let up = format!("ib1@{namespace}: up\n");
    let read = || std::fs::read_to_string(&said).unwrap();
    wait_until("ib1 is up", read, |said| said.contains(&up));
}
