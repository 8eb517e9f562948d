//! Subnet managers that die, come and take over while IP traffic crosses the subnet.

use crate::echoes::Echoes;
use crate::managers::{Manager, is_member, possible};
use crate::subnet::{Background, LONGEST, Subnet, run, succeed, wait_until, words};
use std::process::Stdio;
use std::time::Instant;

/// Two switches with two cables between them; a manager's place and a free port for a host at each.
pub(crate) const TWO_SWITCHES: &str = r#"
switchguid=0x200001
Switch 4 "S1"
[1] "S2"[1]
[2] "S2"[2]
[3] "M1"[1]

switchguid=0x200002
Switch 4 "S2"
[1] "S1"[1]
[2] "S1"[2]
[3] "M2"[1]

caguid=0x100010
Ca 1 "M1"
[1] "S1"[3]

caguid=0x100020
Ca 1 "M2"
[1] "S2"[3]
"#;

/// A hundred echoes a second and a TCP stream from host 1 to host 2, which know the way already. Both go on until they are told to end.
pub(crate) struct Traffic {
    echoes: Echoes,
    sender: Background,
    receiver: Background,
}

/// How many echoes must come back after what was done to the subnet.
const AFTER: usize = 100;

/// Receives one stream; says its SHA-256.
const RECEIVE: &str = "
import hashlib, socket
server = socket.create_server(('10.77.0.2', 7000))
stream, _ = server.accept()
sum = hashlib.sha256()
while data := stream.recv(1 << 16): sum.update(data)
print(sum.hexdigest())
";

/// Sends pieces of 8 KiB, up to 250 a second, no two alike, until its input ends; says the SHA-256 of all.
const SEND: &str = "
import hashlib, select, socket, sys
stream = socket.create_connection(('10.77.0.2', 7000))
sum = hashlib.sha256()
i = 0
while not select.select([sys.stdin], [], [], 0.004)[0]:
    data = i.to_bytes(8, 'big') * 1024
    sum.update(data)
    stream.sendall(data)
    i += 1
print(sum.hexdigest())
";

impl Traffic {
    /// Returns after the first echo came back.
    pub(crate) fn start(subnet: &Subnet) -> Traffic {
        subnet.wait_reaches(1, "10.77.0.2");
        let start = |host, program| {
            let mut command = subnet.on(host, &format!("{LONGEST} python3 -c"));
            let command = command.arg(program).stdin(Stdio::piped());
            Background::start(command.stdout(Stdio::piped()))
        };
        let receiver = start(2, RECEIVE);
        wait_until(
            "the receiver listens",
            || succeed(&mut subnet.on(2, "ss -Hltn")),
            |listening| listening.contains(":7000"),
        );
        Traffic {
            sender: start(1, SEND),
            receiver,
            echoes: Echoes::start(subnet, 1, "-i 0.01 10.77.0.2"),
        }
    }

    /// Ends it: not one echo was lost, and the stream came as it was sent.
    #[track_caller]
    pub(crate) fn all_arrived(mut self, subnet: &Subnet) {
        let (missing, twice) = self.echoes.end(AFTER);
        if !missing.is_empty() || !twice.is_empty() {
            for host in [1, 2] {
                eprintln!("host {host}: {:#}", subnet.show(host, "stats"));
                eprintln!("{}", subnet.ip(host, "-s -s link show dev ib0"));
            }
            let stats = subnet.show_fabric_stats();
            panic!("echoes {missing:?} were lost, {twice:?} came twice\n{stats:#}");
        }
        drop(self.sender.0.stdin.take());
        let sent = self.sender.succeeds("the sender");
        assert_eq!(sent, self.receiver.succeeds("the receiver"));
    }
}

/// Every group that a host is a full member of, with the host's GID. What it only sends to comes and goes.
fn memberships(subnet: &Subnet) -> Vec<(String, String)> {
    let of = |host| {
        let gid = subnet.gid(host);
        let full = |group: &&serde_json::Value| group["join_state"] == "FullMember";
        let groups = wait_until(
            "the groups are joined",
            || subnet.show(host, "mcast"),
            |groups| {
                let mut full = groups.as_array().unwrap().iter().filter(full);
                full.all(|group| group["state"] == "joined")
            },
        );
        let mgid = |group: &serde_json::Value| group["mgid"].as_str().unwrap().to_owned();
        let groups = groups.as_array().unwrap().iter().filter(full).map(mgid);
        groups.map(|mgid| (mgid, gid.clone())).collect::<Vec<_>>()
    };
    [of(1), of(2)].concat()
}

/// The SA of whoever is master now knows them all.
#[track_caller]
fn wait_restored(subnet: &Subnet, all: &[(String, String)]) {
    for (mgid, gid) in all {
        wait_until(
            &format!("the membership of {gid} in {mgid}"),
            || is_member(subnet, "M2", mgid, gid),
            |found| *found,
        );
    }
}

fn lids(subnet: &Subnet) -> [serde_json::Value; 2] {
    [1, 2].map(|host| subnet.show(host, "link")["lid"].clone())
}

/// A host of an IPv4 group, as long as it lives.
pub(crate) fn join(subnet: &Subnet, host: u32) -> Background {
    let join = format!(
        "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.setsockopt(socket.IPPROTO_IP,socket.IP_ADD_MEMBERSHIP,socket.inet_aton('239.1.2.3')+socket.inet_aton('10.77.0.{host}'))\ntime.sleep(600)"
    );
    succeed(&mut subnet.on(host, "sysctl -qw net.ipv4.icmp_echo_ignore_broadcasts=0"));
    Background(subnet.on(host, "python3 -c").arg(join).spawn().unwrap())
}

/// Host 1 sends to the group, host 2 answers.
#[track_caller]
fn wait_multicast(subnet: &Subnet) {
    wait_until(
        "an answer from the group",
        || words(&run(&mut subnet.on(1, "ping -n -c 1 -W 1 -I ib0 239.1.2.3"))),
        |said| said.contains("from 10.77.0.2"),
    );
}

fn topology() -> (tempfile::TempDir, String) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("topology");
    std::fs::write(&file, TWO_SWITCHES).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (place, file)
}

/// Two of OpenSM: the master is killed, the other one takes over, the first comes back and is given the subnet again.
#[test]
fn master_killed() {
    if !possible() {
        return;
    }
    let (_place, file) = topology();
    let fabric = ["--sm", "none", "--topology", &file];
    let subnet = Subnet::up_managed(2, &fabric, |subnet| {
        let first = Manager::start(subnet, "M1", 10);
        first.wait_master();
        let second = Manager::start(subnet, "M2", 5);
        second.wait_standby();
        (first, second)
    });
    let Some((subnet, (mut first, second))) = subnet else {
        return;
    };
    let _member = join(&subnet, 2);
    wait_multicast(&subnet);
    let (all, before) = (memberships(&subnet), lids(&subnet));
    wait_restored(&subnet, &all);

    let traffic = Traffic::start(&subnet);
    let begin = Instant::now();
    first.kill();
    second.wait_master();
    eprintln!(
        "another master {:?} after the first was killed",
        begin.elapsed()
    );
    wait_restored(&subnet, &all);
    eprintln!(
        "{} memberships restored after {:?}",
        all.len(),
        begin.elapsed()
    );
    traffic.all_arrived(&subnet);
    wait_multicast(&subnet);

    let traffic = Traffic::start(&subnet);
    let begin = Instant::now();
    let first = Manager::start(&subnet, "M1", 10);
    first.wait_master();
    second.wait_standby_again();
    eprintln!(
        "handed over {:?} after the start of a better one",
        begin.elapsed()
    );
    wait_restored(&subnet, &all);
    eprintln!(
        "{} memberships restored after {:?}",
        all.len(),
        begin.elapsed()
    );
    traffic.all_arrived(&subnet);
    wait_multicast(&subnet);
    subnet.wait_reaches(2, "fd77::1");
    assert_eq!(lids(&subnet), before);
    // The other one tells that the dead master did not answer.
    first.no_errors();
}

/// Ours gives the subnet to a better OpenSM, takes it when that dies, and keeps it from a worse one.
#[test]
fn ours_beside_opensm() {
    if !possible() {
        return;
    }
    let (place, file) = topology();
    let config = place.path().join("fabric.toml");
    std::fs::write(&config, "sm_priority = 5\n").unwrap();
    let config = config.to_str().unwrap();
    let fabric = ["--config", config, "--topology", &file];
    let Some((subnet, ())) = Subnet::up_managed(2, &fabric, |_| ()) else {
        return;
    };
    let wait_ours = |state: &str| {
        wait_until(
            "the state of our manager",
            || subnet.show_fabric()["sm"]["state"].clone(),
            |now| now == state,
        );
    };
    wait_ours("master");
    let _member = join(&subnet, 2);
    wait_multicast(&subnet);
    let (all, before) = (memberships(&subnet), lids(&subnet));
    wait_restored(&subnet, &all);

    let traffic = Traffic::start(&subnet);
    let begin = Instant::now();
    let mut better = Manager::start(&subnet, "M2", 10);
    better.wait_master();
    wait_ours("standby");
    wait_restored(&subnet, &all);
    eprintln!(
        "OpenSM is master and has {} memberships after {:?}",
        all.len(),
        begin.elapsed()
    );
    let begin = Instant::now();
    better.kill();
    wait_ours("master");
    wait_restored(&subnet, &all);
    eprintln!(
        "ours again, with all memberships, {:?} after OpenSM was killed",
        begin.elapsed()
    );
    let worse = Manager::start(&subnet, "M2", 1);
    worse.wait_standby();
    wait_ours("master");
    traffic.all_arrived(&subnet);
    wait_multicast(&subnet);
    subnet.wait_reaches(2, "fd77::1");
    assert_eq!(lids(&subnet), before);

    // Whoever is better, on command the other one gets the subnet and keeps it.
    let traffic = Traffic::start(&subnet);
    let begin = Instant::now();
    subnet.fault("sm handover");
    worse.wait_master();
    wait_ours("standby");
    wait_restored(&subnet, &all);
    let given = begin.elapsed();
    subnet.fault("sm takeover");
    wait_ours("master");
    worse.wait_standby_again();
    wait_restored(&subnet, &all);
    eprintln!(
        "handed over on command with all memberships after {given:?}, taken back {:?} later",
        begin.elapsed() - given
    );
    traffic.all_arrived(&subnet);
    wait_multicast(&subnet);
    assert_eq!(lids(&subnet), before);
    worse.no_errors();
}
