//! Each of the scripts, as a user runs them.

use crate::subnet::{Subnet, command, possible, run, runs, succeed, unique, words};
use std::path::Path;

#[test]
fn up_ping_multicast_down() {
    let Some(subnet) = Subnet::up(3) else { return };
    // Six pairs and two families, 200 packets each; it fails if one is lost.
    let pings = succeed(subnet.script("ping.sh").args(["200", "0.01"]));
    assert_eq!(pings.matches(": 200 of 200").count(), 12, "{pings}");
    // Both others answer ff02::1, and hear what is sent to an IPv4 group.
    let multicast = succeed(&mut subnet.script("multicast.sh"));
    assert_eq!(multicast.lines().count(), 6, "{multicast}");

    let pids = ["fabric", "host1", "host2", "host3"].map(|name| subnet.pid(name));
    assert!(pids.iter().all(|pid| runs(*pid)));
    succeed(&mut subnet.script("down.sh"));
    assert!(!pids.iter().any(|pid| runs(*pid)));
    assert!(!subnet.directory().exists());
    assert!(!succeed(&mut command("ip netns list")).contains(&subnet.prefix));
    let sockets = std::fs::read_dir("/run/ipoib")
        .into_iter()
        .flatten()
        .flatten();
    assert!(!sockets.into_iter().any(|socket| {
        socket
            .file_name()
            .to_string_lossy()
            .contains(&subnet.prefix)
    }));
    // Again: nothing to do.
    succeed(&mut subnet.script("down.sh"));
}

#[test]
fn iperf() {
    let Some(subnet) = Subnet::up(2) else { return };
    // TCP and UDP, IPv4 and IPv6, both ways.
    let results = succeed(subnet.script("iperf.sh").args(["1", "20M"]));
    assert_eq!(results.matches("bits/sec").count(), 8, "{results}");
    eprintln!("{results}");
}

#[test]
fn down_takes_what_was_killed_and_deleted_by_hand() {
    let Some(subnet) = Subnet::up(2) else { return };
    subnet.kill("host1");
    subnet.kill("fabric");
    succeed(&mut command(&format!(
        "ip netns delete {}",
        subnet.namespace(2)
    )));
    succeed(&mut subnet.script("down.sh"));
    assert!(!subnet.directory().exists());
    assert!(
        !Path::new("/run/ipoib")
            .join(format!("ib0@{}.sock", subnet.namespace(1)))
            .exists()
    );
    assert!(!succeed(&mut command("ip netns list")).contains(&subnet.prefix));
}

/// A second subnet in the same place is refused, and does not harm the first.
#[test]
fn up_twice() {
    let Some(subnet) = Subnet::up(1) else { return };
    let again = run(subnet.script("up.sh").arg("1"));
    assert!(
        !again.status.success()
            && words(&again).contains("run")
            && words(&again).contains("down.sh"),
        "{}",
        words(&again)
    );
    assert!(runs(subnet.pid("host1")));
    subnet.wait_reaches(1, "10.77.0.1");
}

/// What does not come up is taken down again: here the second namespace is somebody else's.
#[test]
fn up_fails_and_cleans_up() {
    if !possible() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (prefix, directory) = (unique(), place.path().join("state"));
    let taken = format!("{prefix}2");
    succeed(&mut command(&format!("ip netns add {taken}")));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("netns-scripts/up.sh");
    let mut up = command(&format!("{} 2", script.display()));
    let output = run(up
        .env("IPOIB", crate::subnet::IPOIB)
        .env("IPOIB_NETNS_DIR", &directory)
        .env("IPOIB_NETNS_PREFIX", &prefix));
    let namespaces = succeed(&mut command("ip netns list"));
    succeed(&mut command(&format!("ip netns delete {taken}")));
    assert!(!output.status.success(), "{}", words(&output));
    assert!(!directory.exists());
    assert!(!namespaces.contains(&format!("{prefix}1")), "{namespaces}");
    // What was there before stays.
    assert!(namespaces.contains(&taken), "{namespaces}");
}

/// With the arguments that its subnet was brought up with.
#[test]
fn a_host_started_again_is_as_it_was() {
    let Some(subnet) = Subnet::up_as(1, "--mode connected") else {
        return;
    };
    let mode = || subnet.show(1, "link")["mode"].clone();
    assert_eq!(mode(), "connected");
    subnet.kill("host1");
    succeed(subnet.script("start.sh").arg("1"));
    assert_eq!(mode(), "connected");
}
