//! The kernel's own IPoIB in connected mode as a peer (RFC 4755): between its connections and ours.

use crate::connected::{connection, mtu, python, serve, set_mode, stat, wait_mtu, wait_traffic};
use crate::kernel::{By, GUEST_GUID, Pair};
use crate::subnet::{Background, IPOIB, LONGEST, Subnet, command, run, succeed, wait_until, words};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Longest echoes of 65,520 bytes.
const LONGEST_V4: u32 = 65_492;
const LONGEST_V6: u32 = 65_472;
/// In the guest: takes streams at this port and answers the digest of each, as `talk.py` does.
const TAKE_STREAMS: &str = "printf '#!/bin/sh\\nsha256sum | cut -c 1-64 | busybox xxd -r -p\\n' > /tmp/digest; chmod +x /tmp/digest; nc -ll -p 9100 -e /tmp/digest > /dev/null 2>&1 &";

impl Pair {
    fn connected() -> Option<Pair> {
        let mut pair = Pair::up(By::Embedded)?;
        pair.guest.succeed(TAKE_STREAMS);
        pair.guest
            .succeed("dd if=/dev/urandom of=/tmp/file bs=64k count=16 2> /dev/null");
        pair.modes("connected", "connected");
        Some(pair)
    }

    /// Of our interface and the guest's.
    fn modes(&mut self, ours: &str, guests: &str) {
        set_mode(&self.subnet, 1, ours);
        self.guest_mode(guests);
        wait_mtu(&self.subnet, 1, mtu(ours));
    }

    fn guest_mode(&mut self, mode: &str) {
        // Connected, the kernel leaves the MTU to the administrator.
        self.guest.succeed(&format!(
            "echo {mode} > /sys/class/net/ib0/mode && ip link set ib0 mtu {}",
            mtu(mode)
        ));
    }

    /// Echoes longer than any datagram, until one is answered each way.
    #[track_caller]
    fn both_reach_far(&mut self) {
        for (host, guest) in [("10.77.0.1", "10.77.0.9"), ("fd77::1", "fd77::9")] {
            let there = format!("ping -n -c 1 -W 1 -M do -s 60000 {guest}");
            let ping = || run(&mut self.subnet.on(1, &there));
            wait_until(&there, ping, |output| output.status.success());
            self.guest
                .wait_succeeds(&format!("ping -c 1 -W 1 -s 60000 {host}"));
        }
    }

    fn counter(&mut self, name: &str) -> u64 {
        let file = format!("cat /sys/class/net/ib0/statistics/{name}");
        self.guest.succeed(&file).parse().unwrap()
    }

    /// A stream from the host to the guest, of which the digest is compared.
    fn stream_to_guest(&self, address: &str, megabytes_and_pace: &str) -> Background {
        let line = format!("talk.py stream {address} {megabytes_and_pace}");
        let mut stream = python(&self.subnet, 1, &line);
        Background::start(stream.stdin(Stdio::piped()))
    }

    /// The same from the guest: a file again and again while `more` succeeds, of which `$i` is how often it has been.
    fn stream_from_guest(&mut self, address: &str, more: &str) {
        let stream = format!(
            "i=0; while {more}; do cat /tmp/file; i=$((i + 1)); done; echo $i > /tmp/times"
        );
        self.guest.succeed(&format!(
            "rm -f /tmp/answer /tmp/times; (({stream}) | timeout 600 nc {address} 9100 | xxd -p -c 64 > /tmp/coming; mv /tmp/coming /tmp/answer) > /dev/null 2>&1 &"
        ));
    }

    /// Waits until it has ended; the digest that came back is the right one.
    #[track_caller]
    fn stream_from_guest_is_right(&mut self) {
        self.guest.wait_succeeds("[ -e /tmp/answer ]");
        let sum = self.guest.succeed(
            "for i in $(seq $(cat /tmp/times)); do cat /tmp/file; done | sha256sum | cut -c 1-64",
        );
        assert_eq!(self.guest.succeed("cat /tmp/answer"), sum);
    }

    fn connection_to_guest(&self) -> serde_json::Value {
        connection(&self.subnet, 1, "10.77.0.9")
    }

    /// Own connections, those of peers, those that open or close, and queue pairs.
    fn held(&self) -> [u64; 4] {
        [
            "connections_own",
            "connections_of_peers",
            "connections_changing",
            "held_queue_pairs",
        ]
        .map(|name| stat(&self.subnet, 1, name))
    }
}

/// What programs say to each other, whichever mode each side is in and while that changes, and what becomes of it when packets, the host or the
/// guest are lost.
#[test]
fn a_linux_peer_over_connections() {
    let Some(mut pair) = Pair::connected() else {
        return;
    };
    longest_packets(&mut pair);
    streams_and_datagrams(&mut pair);
    different_modes(&mut pair);
    modes_change_under_tcp(&mut pair);
    packets_lost(&mut pair);
    silence(&mut pair);
    host_killed(&mut pair);
    guest_killed(&mut pair);
}

fn longest_packets(pair: &mut Pair) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("all.pcap");
    let on = format!("fabric@{}", pair.subnet.port());
    let mut capture = Command::new(IPOIB);
    capture.arg("capture").arg(&file).args(["--on", &on]);
    let capture = capture.stdout(Stdio::null()).stderr(Stdio::null());
    let mut capture = Background(capture.spawn().unwrap());
    let begun = || std::fs::metadata(&file).map_or(0, |file| file.len());
    wait_until("the capture begins", begun, |len| *len >= 24);

    let before = ["rx_packets", "tx_packets"].map(|name| pair.counter(name));
    for (size, host, guest) in [
        (LONGEST_V4, "10.77.0.1", "10.77.0.9"),
        (LONGEST_V6, "fd77::1", "fd77::9"),
    ] {
        let there = format!("ping -n -c 3 -i 0.2 -w 120 -M do -s {size} {guest}");
        succeed(&mut pair.subnet.on(1, &there));
        let back = format!("ping -c 3 -i 0.2 -W 60 -s {size} {host}");
        pair.guest.succeed(&back);
        let too_long = format!("ping -n -c 1 -W 1 -M do -s {} {guest}", size + 1);
        let too_long = run(&mut pair.subnet.on(1, &too_long));
        assert!(!too_long.status.success(), "{}", words(&too_long));
    }
    assert_eq!(pair.connection_to_guest(), "connected");
    let after = ["rx_packets", "tx_packets"].map(|name| pair.counter(name));
    for (before, after) in before.into_iter().zip(after) {
        assert!(after >= before + 12, "{before} {after}");
    }
    assert_eq!(pair.held()[..2], [1, 1]);

    interrupt(&mut capture.0);
    let decoded = succeed(Command::new(IPOIB).arg("decode").arg(&file));
    let count = decoded.lines().last().unwrap();
    let frames = count.split(' ').next().unwrap();
    let all_right = format!(
        "{frames} frames, {frames} with right ICRC and VCRC, {frames} re-emitted unchanged"
    );
    assert_eq!(count, all_right);
    let [ours, guests] = [1, 9].map(|n| lid_of(&decoded, n));
    for (from, to) in [(&ours, &guests), (&guests, &ours)] {
        for what in [
            "ComMgtSend(ConnectRequest)",
            "ComMgtSend(ConnectReply)",
            "ComMgtSend(ReadyToUse)",
            "RC_SEND_FIRST",
            "RC_SEND_MIDDLE",
            "RC_SEND_LAST",
            "RC_ACKNOWLEDGE",
        ] {
            let from_to = format!(" LID {from} -> {to} ");
            let mut lines = decoded.lines();
            let found = lines.any(|line| line.contains(&from_to) && line.contains(what));
            assert!(found, "no {what} from {from} to {to}");
        }
    }
    wireshark(&file);
}

/// By SIGINT, which it obeys.
fn interrupt(child: &mut Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
    let ended = || child.try_wait().unwrap();
    let status = wait_until("the capture ends", ended, Option::is_some);
    assert!(status.unwrap().success());
}

/// The LID that sends the echoes of 10.77.0.`n`.
fn lid_of(decoded: &str, n: u32) -> String {
    let from = format!(" IPv4 10.77.0.{n} -> ");
    let mut lines = decoded.lines();
    let line = lines.find(|line| line.contains("RC_SEND_FIRST") && line.contains(&from));
    let words = line.expect("an echo in several packets").split(" LID ");
    words.last().unwrap().split(' ').next().unwrap().to_owned()
}

fn wireshark(file: &Path) {
    let here = Command::new("tshark").arg("-v").output();
    if here.is_err() {
        return println!("SKIPPED: there is no tshark");
    }
    // It takes the first packet of several for the whole IP packet, and guesses at what is in the others.
    let wrong = "_ws.malformed || (_ws.expert.severity == error && infiniband.bth.opcode != 0)";
    let mut tshark = command(
        "tshark -n --disable-protocol infiniband_sdp --disable-protocol rpcordma --disable-protocol smb_direct --disable-protocol nvme-rdma --disable-protocol iser -r",
    );
    let said = succeed(tshark.arg(file).args(["-Y", wrong]));
    assert!(said.is_empty(), "Wireshark does not like:\n{said}");
}

fn streams_and_datagrams(pair: &mut Pair) {
    let _server = serve(&pair.subnet, 1);
    for (host, guest) in [("10.77.0.1", "10.77.0.9"), ("fd77::1", "fd77::9")] {
        let stream = pair.stream_to_guest(guest, "4");
        stream.succeeds("a stream to the guest");
        pair.stream_from_guest(host, "[ $i -lt 2 ]");
        pair.stream_from_guest_is_right();
    }
    let server = pair.subnet.on(1, "iperf3 -s").stdout(Stdio::null()).spawn();
    let _server = Background(server.unwrap());
    for direction in ["", "-R"] {
        // Slower than the guest, that none is lost in its sockets; should one be, again.
        pair.guest.wait_succeeds(&format!(
            "{LONGEST} iperf3 -c 10.77.0.1 -u -l 60000 -b 4M -n 360000 {direction} | grep -F '0/6 (0%)'"
        ));
    }
}

/// Echoes of all kinds of sizes, around all limits, from the host to the guest: what `sweep.py` says of them.
fn sweep(pair: &Pair, address: &str, ranges: &[&str]) -> Vec<String> {
    let sweep = |range: &&str| {
        let line = format!("sweep.py {address} {range}");
        succeed(&mut python(&pair.subnet, 1, &line))
            .trim()
            .to_owned()
    };
    ranges.iter().map(sweep).collect()
}

/// One side sends by connections and the other does not: each takes what the other sends.
fn different_modes(pair: &mut Pair) {
    const RANGES: [&str; 4] = [
        "1 65492 2339",
        "2013 2020 1",
        "4090 4094 1",
        "16383 16385 1",
    ];
    pair.modes("connected", "datagram");
    let said = sweep(pair, "10.77.0.9", &RANGES);
    assert_eq!(said, ["28 0 65520", "8 0 65520", "5 0 65520", "3 0 65520"]);
    let said = sweep(pair, "fd77::9", &["1 65472 5951"]);
    assert_eq!(said, ["12 0 65520"]);
    assert_eq!(pair.connection_to_guest(), "connected");
    guest_pings_all_sizes(pair);
    wait_until(
        "only ours is left",
        || pair.held(),
        |held| held[..2] == [1, 0],
    );

    pair.modes("datagram", "connected");
    let said = sweep(pair, "10.77.0.9", &RANGES);
    // The host's own device says no to what is longer than its MTU.
    assert_eq!(said, ["1 27 2044", "4 4 2044", "0 5 2044", "0 3 2044"]);
    let said = sweep(pair, "fd77::9", &["1 65472 5951"]);
    assert_eq!(said, ["1 11 2044"]);
    guest_pings_all_sizes(pair);
    wait_until(
        "only the guest's is left",
        || pair.held(),
        |held| held[..2] == [0, 1],
    );
}

fn guest_pings_all_sizes(pair: &mut Pair) {
    pair.guest.succeed(
        "for size in 1 56 1999 2015 2016 2017 4091 4092 4093 16384 40000 65491 65492; do ping -c 1 -W 60 -s $size 10.77.0.1 > /dev/null || { echo $size bytes; false; break; }; done",
    );
    pair.guest.succeed(
        "for size in 1 1996 1997 16384 65472; do ping -c 1 -W 60 -s $size fd77::1 > /dev/null || { echo $size bytes; false; break; }; done",
    );
}

fn modes_change_under_tcp(pair: &mut Pair) {
    pair.modes("connected", "connected");
    let _server = serve(&pair.subnet, 1);
    // Not as fast as it can be: the guest has other things to do.
    let mut to_guest = pair.stream_to_guest("10.77.0.9", "on 4");
    pair.stream_from_guest("10.77.0.1", "[ ! -e /tmp/enough ]");
    // Both sides in both modes, in all four ways; connected in the end.
    for change in 0..12 {
        let mode = ["datagram", "connected"][change / 2 % 2];
        if change % 2 == 0 {
            set_mode(&pair.subnet, 1, mode);
            wait_mtu(&pair.subnet, 1, mtu(mode));
        } else {
            pair.guest_mode(mode);
        }
        wait_traffic(&pair.subnet, 1);
    }
    drop(to_guest.0.stdin.take());
    pair.guest.succeed("touch /tmp/enough");
    to_guest.succeeds("the stream to the guest");
    pair.stream_from_guest_is_right();
    pair.modes("connected", "connected");
    pair.both_reach_far();
}

/// Of each 100 packets one is lost. The kernel gives its connection up at each loss of its own; ours lasts.
fn packets_lost(pair: &mut Pair) {
    let _server = serve(&pair.subnet, 1);
    let counts = |subnet: &Subnet| {
        [
            "connection_opened",
            "connection_accepted",
            "connection_failed",
        ]
        .map(|name| stat(subnet, 1, name))
    };
    let before = counts(&pair.subnet);
    let guid = format!("{GUEST_GUID:#018x}");
    pair.subnet
        .fault(&format!("link {guid} 1 --loss 1% --seed 7"));
    let stream = pair.stream_to_guest("10.77.0.9", "8");
    stream.succeeds("a stream to the guest");
    pair.stream_from_guest("10.77.0.1", "[ $i -lt 2 ]");
    pair.stream_from_guest_is_right();
    let after = counts(&pair.subnet);
    pair.subnet.fault(&format!("link {guid} 1 clear"));
    println!(
        "the guest connected {} times while packets were lost",
        after[1] - before[1]
    );
    assert_eq!([after[0], after[2]], [before[0], before[2]]);
    assert!(after[1] > before[1]);
}

/// The link is up, but nothing comes through: a connection fails that is not acknowledged any more, and a new one is had afterwards.
fn silence(pair: &mut Pair) {
    let failed = |pair: &Pair| stat(&pair.subnet, 1, "connection_failed");
    let before = failed(pair);
    let guid = format!("{GUEST_GUID:#018x}");
    pair.subnet.fault(&format!("link {guid} 1 --loss 100%"));
    assert!(!pair.subnet.reaches(1, "10.77.0.9"));
    let failed = || failed(pair);
    wait_until("the connection fails", failed, |now| *now > before);
    pair.subnet.fault(&format!("link {guid} 1 clear"));
    pair.both_reach_far();
    assert_eq!(pair.connection_to_guest(), "connected");
}

/// With other queue pair numbers: what the guest has of it is worthless.
fn host_killed(pair: &mut Pair) {
    pair.subnet.kill("host1");
    let mut start = pair.subnet.script("start.sh");
    succeed(start.arg("1").env("IPOIB_NETNS_UP", "--mode connected"));
    pair.both_reach_far();
    assert_eq!(pair.connection_to_guest(), "connected");
    wait_until("one each way", || pair.held(), |held| *held == [1, 1, 0, 3]);
}

/// Without a word. Nothing of it is kept; and the next with its address is another.
fn guest_killed(pair: &mut Pair) {
    pair.guest.kill();
    // What is on the way is sent again in vain.
    assert!(!pair.subnet.reaches(1, "10.77.0.9"));
    wait_until(
        "nothing is held",
        || pair.held(),
        |held| *held == [0, 0, 0, 1],
    );
    pair.boot_again();
    pair.guest_mode("connected");
    pair.both_reach_far();
    assert_eq!(pair.connection_to_guest(), "connected");
    wait_until("one each way", || pair.held(), |held| *held == [1, 1, 0, 3]);
}
