//! The kernel's own IPoIB as a peer.

use crate::guest::{self, Guest};
use crate::managers;
use crate::subnet::{Background, IPOIB, Subnet, command, run, succeed, wait_until, words};
use std::path::Path;
use std::process::{Command, Stdio};

pub(crate) const GUEST_GUID: u64 = 0x0011_7500_0000_0a01;
const BROADCAST: &str = "ff12:401b:ffff::ffff:ffff";
const PARTITIONS: &str = "[[partition]]\nname = \"Default\"\npkey = \"0x7fff\"\n\n[[partition]]\nname = \"apart\"\npkey = \"0x8001\"\ndefault = \"full\"\n";

/// Who manages the subnet.
#[derive(Clone, Copy)]
pub(crate) enum By {
    Embedded,
    OpenSm,
}

/// A guest with an address on a subnet of one host, which is given the addresses of a host 1.
pub(crate) struct Pair {
    pub(crate) subnet: Subnet,
    pub(crate) guest: Guest,
    by: By,
}

impl Pair {
    pub(crate) fn up(by: By) -> Option<Pair> {
        let peer = guest::possible()?;
        let sm = match by {
            By::Embedded => "embedded",
            By::OpenSm if managers::possible() => "opensm",
            By::OpenSm => return None,
        };
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("fabric.toml");
        std::fs::write(&config, PARTITIONS).unwrap();
        let subnet = Subnet::up_with(1, &["--config", config.to_str().unwrap(), "--sm", sm])?;
        let guest = boot(&peer, &subnet);
        Some(Pair { subnet, guest, by })
    }

    /// After the guest's end: the same once more.
    pub(crate) fn boot_again(&mut self) {
        let peer = guest::possible().expect("it was possible");
        self.guest = boot(&peer, &self.subnet);
    }

    fn both_reach(&mut self) {
        for (host, guest) in [("10.77.0.1", "10.77.0.9"), ("fd77::1", "fd77::9")] {
            self.guest.wait_reaches(host);
            self.subnet.wait_reaches(1, guest);
        }
    }

    /// Does the manager know this GID as a member of the broadcast group?
    fn is_member(&self, gid: &str) -> bool {
        match self.by {
            By::Embedded => self.subnet.is_member(gid),
            By::OpenSm => managers::is_member(&self.subnet, "switch", BROADCAST, gid),
        }
    }
}

fn boot(peer: &Path, subnet: &Subnet) -> Guest {
    let mut guest = Guest::boot(peer, &subnet.port(), GUEST_GUID);
    guest.succeed("ibup 10.77.0.9/24 ib0 200 && ip addr add fd77::9/64 dev ib0");
    guest
}

/// All that two hosts say to each other, and all that may befall them.
#[test]
fn a_linux_peer() {
    whatever_befalls(By::Embedded);
}

/// The same where others' software is on both sides of ours.
#[test]
fn a_linux_peer_under_opensm() {
    whatever_befalls(By::OpenSm);
}

fn whatever_befalls(by: By) {
    let Some(mut pair) = Pair::up(by) else { return };
    pair.both_reach();
    every_size_that_fits(&mut pair);
    multicast(&mut pair);
    tcp(&mut pair);
    down_and_up(&mut pair);
    child_of_another_partition(&mut pair);
    host_restarted(&mut pair);
    lid_moved(&mut pair);
    guest_dies(pair);
}

fn every_size_that_fits(pair: &mut Pair) {
    for (size, headers) in [(2016, "-4 10.77.0."), (1996, "-6 fd77::")] {
        let (family, prefix) = headers.split_once(' ').unwrap();
        pair.guest
            .succeed(&format!("ping {family} -c 3 -i 0.2 -s {size} {prefix}1"));
        succeed(&mut pair.subnet.on(
            1,
            &format!("ping {family} -c 3 -i 0.2 -s {size} -M do {prefix}9"),
        ));
        let too_long = run(&mut pair.subnet.on(
            1,
            &format!("ping {family} -c 1 -W 1 -s {} -M do {prefix}9", size + 1),
        ));
        assert!(!too_long.status.success(), "{}", words(&too_long));
    }
}

fn multicast(pair: &mut Pair) {
    // The first answer is from the asking host itself.
    let answered = |said: &String| said.contains(" duplicates");
    wait_until(
        "the host's answer to all nodes",
        || pair.guest.run("ping -c 3 -i 0.2 -I ib0 ff02::1").1,
        answered,
    );
    wait_until(
        "the guest's answer to all nodes",
        || {
            words(&run(&mut pair
                .subnet
                .on(1, "ping -n -c 3 -i 0.2 -I ib0 ff02::1")))
        },
        answered,
    );
    // Members answer echo requests to the group if they are told to; a server of iperf makes the guest one.
    pair.guest.succeed("echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_broadcasts; iperf -s -u -B 239.1.2.3 > /dev/null 2>&1 &");
    pair.guest.succeed("ip route add 239.0.0.0/8 dev ib0");
    succeed(
        &mut pair
            .subnet
            .on(1, "sysctl -qw net.ipv4.icmp_echo_ignore_broadcasts=0"),
    );
    let join = "import socket,sys,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.setsockopt(socket.IPPROTO_IP,socket.IP_ADD_MEMBERSHIP,socket.inet_aton('239.1.2.3')+socket.inet_aton('10.77.0.1'))\ntime.sleep(600)";
    let mut python = pair.subnet.on(1, "python3 -c");
    let _member = Background(python.arg(join).spawn().unwrap());
    wait_until(
        "the guest's answer to a group",
        || {
            words(&run(&mut pair
                .subnet
                .on(1, "ping -n -c 2 -W 1 -i 0.2 -I ib0 239.1.2.3")))
        },
        |said| said.contains("from 10.77.0.9"),
    );
    wait_until(
        "the host's answer to a group",
        || pair.guest.run("ping -c 2 -W 1 -i 0.2 -I ib0 239.1.2.3").1,
        |said| said.contains("from 10.77.0.1"),
    );
}

fn tcp(pair: &mut Pair) {
    let _server = Background(
        pair.subnet
            .on(1, "iperf3 -s")
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    for (family, address) in [("-4", "10.77.0.1"), ("-6", "fd77::1")] {
        for direction in ["", "-R"] {
            // The server may still be busy with the end of the run before.
            pair.guest
                .wait_succeeds(&format!("iperf3 {family} -c {address} -n 4M {direction}"));
        }
    }
    // A file each way; the sums must be equal.
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    pair.guest
        .succeed("dd if=/dev/urandom of=/tmp/file bs=64k count=64 2> /dev/null");
    let sum = |line: &str| {
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let sent = sum(&pair.guest.succeed("sha256sum /tmp/file"));
    pair.guest
        .succeed("nc -l -p 9000 < /tmp/file > /dev/null 2>&1 &");
    let fetch = "import socket,sys\ns=socket.create_connection(('10.77.0.9',9000),60)\nf=open(sys.argv[1],'wb')\nwhile b:=s.recv(65536): f.write(b)";
    let mut python = pair.subnet.on(1, "python3 -c");
    python.arg(fetch).arg(&file);
    wait_until(
        "the file",
        || run(&mut python).status.success(),
        |done| *done,
    );
    assert_eq!(sum(&succeed(command("sha256sum").arg(&file))), sent);
    let serve = "import socket,sys\nl=socket.create_server(('10.77.0.1',9001))\nc,_=l.accept()\nc.sendall(open(sys.argv[1],'rb').read())\nc.close()";
    let mut python = pair.subnet.on(1, "python3 -c");
    let _server = Background(python.arg(serve).arg(&file).spawn().unwrap());
    pair.guest
        .wait_succeeds("nc -w 60 10.77.0.1 9001 < /dev/null > /tmp/copy && [ -s /tmp/copy ]");
    assert_eq!(sum(&pair.guest.succeed("sha256sum /tmp/copy")), sent);
}

fn down_and_up(pair: &mut Pair) {
    pair.guest.succeed("ip link set ib0 down");
    assert!(!pair.subnet.reaches(1, "10.77.0.9"));
    pair.guest
        .succeed("ip link set ib0 up; ip addr add fd77::9/64 dev ib0");
    pair.both_reach();
    pair.subnet.ip(1, "link set ib0 down");
    assert!(!pair.subnet.reaches(1, "10.77.0.9"));
    pair.subnet.ip(1, "link set ib0 up");
    pair.subnet.ip(1, "addr add fd77::1/64 dev ib0 nodad");
    pair.both_reach();
}

fn child_of_another_partition(pair: &mut Pair) {
    pair.guest.succeed(
        "echo 0x8001 > /sys/class/net/ib0/create_child && ip addr add 10.78.0.9/24 dev ib0.8001 && ip link set ib0.8001 up",
    );
    let mut up = Command::new(IPOIB);
    up.args(["up", "ib1", "--pkey", "0x8001", "--address", "10.78.0.1/24"])
        .args(["--fabric", &pair.subnet.url()])
        .args(["--netns", &pair.subnet.namespace(1)]);
    let _up = Background(up.stdout(Stdio::null()).spawn().unwrap());
    pair.guest.wait_reaches("10.78.0.1");
    pair.subnet.wait_reaches(1, "10.78.0.9");
    let isolated = pair.guest.run("ping -c 1 -W 1 -I ib0 10.78.0.1");
    assert_ne!(
        isolated.0, 0,
        "the partitions are not apart: {}",
        isolated.1
    );
    pair.guest
        .succeed("echo 0x8001 > /sys/class/net/ib0/delete_child");
}

/// With another queue pair number: the guest must find out.
fn host_restarted(pair: &mut Pair) {
    let qpn = |subnet: &Subnet| subnet.show(1, "link")["qpn"].clone();
    let before = qpn(&pair.subnet);
    pair.subnet.kill("host1");
    succeed(pair.subnet.script("start.sh").arg("1"));
    assert_ne!(before, qpn(&pair.subnet));
    pair.both_reach();
}

/// The guest keeps a path while only the peer's LID changes: it must be told.
fn lid_moved(pair: &mut Pair) {
    let lid = |subnet: &Subnet| subnet.show(1, "link")["lid"].clone();
    let guid = pair.subnet.guid(1);
    match pair.by {
        By::Embedded => pair.subnet.fault(&format!("lid {guid} 77")),
        By::OpenSm => managers::move_lid(&pair.subnet, &guid, 77),
    }
    wait_until("the new LID", || lid(&pair.subnet), |lid| *lid == 77);
    pair.both_reach();
}

/// Without a word: what the fabric held for it is released.
fn guest_dies(mut pair: Pair) {
    let gid = format!("fe80::{:x}:{:x}:{:x}:{:x}", 0x11, 0x7500, 0, 0x0a01);
    wait_until("it is a member", || pair.is_member(&gid), |member| *member);
    pair.guest.kill();
    wait_until("its memberships", || pair.is_member(&gid), |member| !member);
}

/// Through our switch, with only our subnet manager and SA between them.
#[test]
fn two_linux_peers() {
    let Some(peer) = guest::possible() else {
        return;
    };
    let Some(subnet) = Subnet::up(1) else { return };
    let mut guests = [1, 2].map(|n| Guest::boot(&peer, &subnet.port(), GUEST_GUID + 0x100 * n));
    for (n, guest) in guests.iter_mut().enumerate() {
        guest.succeed(&format!(
            "ibup 10.77.0.{0}/24 ib0 200 && ip addr add fd77::{0}/64 dev ib0",
            n + 11
        ));
    }
    let [a, b] = &mut guests;
    for (from, to) in [(&mut *a, 12), (&mut *b, 11)] {
        from.wait_reaches(&format!("10.77.0.{to}"));
        from.wait_reaches(&format!("fd77::{to}"));
        from.succeed(&format!("ping -c 3 -i 0.2 -s 2016 10.77.0.{to}"));
    }
    b.succeed("iperf3 -s > /dev/null 2>&1 &");
    a.wait_succeeds("iperf3 -c 10.77.0.12 -n 4M");
}
