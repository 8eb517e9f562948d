//! Hosts, fabrics, devices and namespaces that go away.

use crate::subnet::{Background, IPOIB, Subnet, command, run, succeed, wait_until};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Killed without a word and started again: the others reach the new instance, which has another QPN.
#[test]
fn host_killed_and_restarted() {
    let Some(subnet) = Subnet::up(3) else { return };
    for address in ["10.77.0.2", "fd77::2"] {
        // What is to be forgotten.
        subnet.wait_reaches(1, address);
        subnet.wait_reaches(3, address);
    }
    let before = subnet.show(2, "link");
    subnet.kill("host2");
    // The restart begins now; the interface's name is free once the kernel has closed the old device.
    let begin = Instant::now();
    succeed(subnet.script("start.sh").arg("2"));
    let up = begin.elapsed();
    for (host, address) in [
        (1, "10.77.0.2"),
        (3, "fd77::2"),
        (3, "10.77.0.2"),
        (1, "fd77::2"),
        (2, "10.77.0.1"),
        (2, "fd77::3"),
    ] {
        subnet.wait_reaches(host, address);
        eprintln!(
            "host {host} -> {address}: {:?} after the restart; up after {up:?}",
            begin.elapsed()
        );
    }
    let after = subnet.show(2, "link");
    assert_eq!(before["gid"], after["gid"]);
    assert_ne!(before["qpn"], after["qpn"]);
}

/// Killed and not started again: the fabric forgets it, and tells the others.
#[test]
fn host_killed() {
    let Some(subnet) = Subnet::up(2) else { return };
    subnet.wait_reaches(1, "10.77.0.2");
    let gid = subnet.gid(2);
    assert!(subnet.is_member(&gid));
    let neighbours = || subnet.show(1, "neigh").to_string();
    assert!(neighbours().contains(&gid), "{}", neighbours());
    subnet.kill("host2");
    wait_until("memberships", || subnet.is_member(&gid), |member| !member);
    wait_until(
        "host 1's path",
        || subnet.show(1, "path").to_string(),
        |paths| !paths.contains(&gid),
    );
}

/// The hosts find a new fabric in the place of the old one, which knows nothing of them, by themselves.
#[test]
fn fabric_killed_and_restarted() {
    let Some(subnet) = Subnet::up(2) else { return };
    subnet.wait_reaches(1, "10.77.0.2");
    subnet.kill("fabric");
    wait_until(
        "host 1 without a fabric",
        || subnet.show(1, "link"),
        |link| link["up"] == false,
    );
    wait_until(
        "its carrier",
        || subnet.ip(1, "-o link show dev ib0"),
        |link| !link.contains("LOWER_UP"),
    );
    succeed(subnet.script("start.sh").arg("fabric"));
    for (host, address) in [(1, "10.77.0.2"), (2, "10.77.0.1"), (1, "fd77::2")] {
        subnet.wait_reaches(host, address);
    }
    let answers = succeed(&mut subnet.script("multicast.sh"));
    assert_eq!(answers.lines().count(), 4, "{answers}");
}

/// One more interface, as a child of the test, so that the test learns how it ends.
fn extra_host(subnet: &Subnet, namespace: &str) -> (Child, String) {
    let mut up = Command::new(IPOIB);
    up.args([
        "up",
        "ib7",
        "--fabric",
        &subnet.url(),
        "--netns",
        namespace,
        "--address",
        "10.77.0.77/24",
    ]);
    let child = up
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let address = wait_until(
        "the extra interface is up",
        || {
            run(&mut command(&format!(
                "ip -n {namespace} -o -6 address show dev ib7 scope link"
            )))
            .stdout
        },
        |text| !text.is_empty(),
    );
    let text = String::from_utf8(address).unwrap();
    let gid = text
        .split_whitespace()
        .find(|word| word.starts_with("fe80"))
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    wait_until(
        "it is a member",
        || subnet.is_member(&gid),
        |member| *member,
    );
    (child, gid)
}

/// What it said to that.
fn ends_cleanly(subnet: &Subnet, child: Child, gid: &str) -> String {
    let mut child = Background(child);
    let status = wait_until(
        "the process ends",
        || child.0.try_wait().unwrap(),
        Option::is_some,
    );
    assert_eq!(status.unwrap().code(), Some(0));
    wait_until("memberships", || subnet.is_member(gid), |member| !member);
    let mut said = String::new();
    let errors = child.0.stderr.as_mut().unwrap();
    errors.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn device_deleted() {
    let Some(subnet) = Subnet::up(1) else { return };
    let (child, gid) = extra_host(&subnet, &subnet.namespace(1));
    subnet.wait_reaches(1, "10.77.0.1");
    subnet.ip(1, "link delete ib7");
    let said = ends_cleanly(&subnet, child, &gid);
    assert!(said.contains("was deleted"), "{said}");
}

#[test]
fn namespace_deleted() {
    let Some(subnet) = Subnet::up(1) else { return };
    // Once at once and then later and later after the device is up, so that all moments of the start are met.
    for pause in 0..10 {
        let namespace = format!("{}gone", subnet.prefix);
        succeed(&mut command(&format!("ip netns add {namespace}")));
        let (child, gid) = extra_host(&subnet, &namespace);
        std::thread::sleep(Duration::from_millis(7 * pause));
        succeed(&mut command(&format!("ip netns delete {namespace}")));
        let said = ends_cleanly(&subnet, child, &gid);
        assert!(said.contains("was deleted"), "{said}");
    }
}

/// SIGTERM and SIGINT are the ways to end it.
#[test]
fn signals() {
    let Some(subnet) = Subnet::up(1) else { return };
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let (child, gid) = extra_host(&subnet, &subnet.namespace(1));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        assert_eq!(ends_cleanly(&subnet, child, &gid), "");
        let device = run(&mut command(&format!(
            "ip -n {} link show dev ib7",
            subnet.namespace(1)
        )));
        assert!(!device.status.success(), "the device is gone");
    }
}

/// A host that is there before its fabric comes up when the fabric does.
#[test]
fn host_before_fabric() {
    let Some(subnet) = Subnet::up(1) else { return };
    let gid = subnet.gid(1);
    subnet.kill("fabric");
    subnet.kill("host1");
    let mut up = Command::new(IPOIB);
    up.args([
        "up",
        "ib0",
        "--fabric",
        &subnet.url(),
        "--netns",
        &subnet.namespace(1),
        "--address",
        "10.77.0.1/24",
    ]);
    let _host = Background(
        up.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    wait_until(
        "it tries",
        || subnet.show(1, "link"),
        |link| link["up"] == false,
    );
    // It has asked a few times in vain by then.
    std::thread::sleep(Duration::from_millis(500));
    succeed(subnet.script("start.sh").arg("fabric"));
    wait_until("member", || subnet.is_member(&gid), |member| *member);
    wait_until("up", || subnet.show(1, "link"), |link| link["up"] == true);
}
