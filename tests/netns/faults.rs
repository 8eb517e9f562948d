//! `ipoib fault`: each command once, on a running subnet.

use crate::echoes::Echoes;
use crate::failover::Traffic;
use crate::subnet::{IPOIB, Subnet, run, succeed, wait_until, words};
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Instant;

impl Subnet {
    /// `ipoib fault LINE`.
    pub(crate) fn try_fault(&self, line: &str) -> Output {
        let fabric = format!("fabric@{}", self.port());
        run(Command::new(IPOIB)
            .args(["fault", "--json", "--on", &fabric])
            .args(line.split_whitespace()))
    }

    #[track_caller]
    pub(crate) fn fault(&self, line: &str) {
        let output = self.try_fault(line);
        assert!(output.status.success(), "{line}: {}", words(&output));
    }

    pub(crate) fn faults(&self) -> Value {
        serde_json::from_slice(&self.try_fault("list").stdout).unwrap()
    }

    pub(crate) fn guid(&self, host: u32) -> String {
        let gid: std::net::Ipv6Addr = self.gid(host).parse().unwrap();
        format!("{:016x}", gid.to_bits() as u64)
    }
}

#[test]
fn link_down_and_up() {
    let Some(subnet) = Subnet::up(2) else { return };
    subnet.wait_reaches(1, "10.77.0.2");
    let (gid, guid) = (subnet.gid(2), subnet.guid(2));
    assert!(subnet.is_member(&gid));
    subnet.fault(&format!("link {guid} 1 down"));
    let faults = subnet.faults();
    assert_eq!(faults["links"][0]["down"], true, "{faults}");
    assert_eq!(faults["links"][0]["node"], "switch");
    let carrier = || subnet.ip(2, "-o link show dev ib0");
    wait_until("no carrier", carrier, |link| !link.contains("LOWER_UP"));
    let member = || subnet.is_member(&gid);
    wait_until("the manager forgets it", member, |member| !member);
    // By the same name, though nobody sees any more who is there.
    subnet.fault(&format!("link {guid} 1 up"));
    wait_until("carrier", carrier, |link| link.contains("LOWER_UP"));
    subnet.wait_reaches(1, "10.77.0.2");
    subnet.wait_reaches(2, "fd77::1");
    assert_eq!(subnet.faults()["links"], Value::Array(vec![]));
}

#[test]
fn another_lid_while_two_hosts_ping() {
    let Some(subnet) = Subnet::up(2) else { return };
    subnet.wait_reaches(1, "10.77.0.2");
    for (host, lid) in [(2, 77), (1, 4711)] {
        let line = format!("lid {} {lid}", subnet.guid(host));
        let mut echoes = Echoes::start(&subnet, 1, "-i 0.02 10.77.0.2");
        subnet.fault(&line);
        let now = || subnet.show(host, "link")["lid"].clone();
        wait_until("the new LID", now, |now| *now == lid);
        // None is lost any more.
        echoes.settle(50);
        let (lost, _) = echoes.end(50);
        eprintln!("host {host} moved to LID {lid}: echoes {lost:?} were lost");
        subnet.wait_reaches(2, "fd77::1");
    }
    let paths = subnet.show(1, "path").to_string();
    assert!(paths.contains("77"), "{paths}");
    let taken = words(&subnet.try_fault(&format!("lid {} 4711", subnet.guid(2))));
    assert!(
        taken.contains("4711") && taken.contains(&subnet.guid(1)),
        "{taken}"
    );
}

#[test]
fn no_packet_is_lost_while_the_manager_is_away() {
    let Some(subnet) = Subnet::up(3) else { return };
    subnet.wait_reaches(1, "10.77.0.2");
    subnet.wait_reaches(1, "fd77::2");
    let lids = [1, 2].map(|host| subnet.show(host, "link")["lid"].clone());
    let traffic = Traffic::start(&subnet);
    subnet.fault("sm stop");
    assert_eq!(subnet.faults()["sm"], "stopped");
    let again = words(&subnet.try_fault("sm stop"));
    assert!(again.contains("stopped already"), "{again}");
    // Two hosts talk as before. There is no path to one that nobody has talked to.
    subnet.all_come_back(1, 150, "-i 0.02 fd77::2");
    assert!(!subnet.reaches(1, "10.77.0.3"));
    subnet.fault("sm start");
    let begin = Instant::now();
    subnet.wait_reaches(1, "10.77.0.3");
    eprintln!(
        "a new neighbour {:?} after the manager's return",
        begin.elapsed()
    );
    traffic.all_arrived(&subnet);
    let gid = subnet.gid(2);
    wait_until("memberships", || subnet.is_member(&gid), |member| *member);
    assert_eq!(
        lids,
        [1, 2].map(|host| subnet.show(host, "link")["lid"].clone())
    );
    subnet.all_come_back(1, 20, "-i 0.02 10.77.0.2");
}

/// The commands that have no test of their own.
#[test]
fn each_other_command_once() {
    let Some(subnet) = Subnet::up(2) else { return };
    let both = || {
        subnet.wait_reaches(1, "10.77.0.2");
        subnet.wait_reaches(2, "fd77::1");
    };
    both();
    let guid = subnet.guid(2);
    // Of a hundred echoes some are lost, and all come back later.
    subnet.fault(&format!("link {guid} 1 --loss 20% --seed 7"));
    let mut echoes = Echoes::start(&subnet, 1, "-i 0.01 10.77.0.2");
    echoes.more(100);
    let (lost, _) = echoes.end(1);
    assert!(lost.len() > 10, "{lost:?}");
    let late = "--loss 0 --delay 50 --corrupt 0 --duplicate 5% --reorder 0";
    subnet.fault(&format!("link {guid} 1 {late}"));
    let ping = succeed(&mut subnet.on(1, "ping -n -c 5 -i 0.01 -w 60 10.77.0.2"));
    let first = ping
        .split("time=")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    assert!(first.parse::<f64>().unwrap() >= 100.0, "{ping}");
    subnet.fault(&format!("link {guid} 1 clear"));
    subnet.fault(&format!("link {guid} 1 --corrupt 1"));
    assert!(!subnet.reaches(1, "10.77.0.2"));
    let errors = || subnet.show(2, "stats").to_string();
    wait_until("bad packets are counted", errors, |errors| {
        errors.contains("bad_icrc")
    });
    subnet.fault(&format!("link {guid} 1 clear"));
    both();

    subnet.fault("sa drop --count 3");
    // Somebody may have asked in between.
    let left = subnet.faults()["sa"]["left"].as_u64();
    assert!(left.is_some_and(|left| left <= 3), "{left:?}");
    subnet.fault("sa delay 200");
    subnet.fault("sa status 0x0200");
    both();
    subnet.fault("sa clear");
    assert_eq!(subnet.faults()["sa"], Value::Null);

    subnet.fault(&format!("pkey {guid} 0x8001"));
    wait_until(
        "host 2 is down",
        || subnet.show(2, "link"),
        |link| link["up"] == false,
    );
    subnet.fault(&format!("pkey {guid}"));
    both();

    subnet.fault("prefix fec0:0:0:7::");
    wait_until(
        "the prefix",
        || subnet.gid(2),
        |gid| gid.starts_with("fec0::7:"),
    );
    both();

    for (line, part) in [
        ("link nobody 1 down", "switch"),
        ("link switch 200 down", "1 to 128"),
        ("pkey nobody 0xffff", "there are: "),
        (&format!("lid {guid} 49152"), "49151"),
    ] {
        let output = subnet.try_fault(line);
        assert!(
            !output.status.success() && words(&output).contains(part),
            "{}",
            words(&output)
        );
    }
}
