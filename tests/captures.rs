//! Captures: what Wireshark says of ours, and what `ipoib decode` says of ours and of others'.
#![allow(clippy::unwrap_used)]

mod processes;

use processes::{ended, succeed};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Generous: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

fn ipoib() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ipoib"))
}

fn there_is(program: &str) -> bool {
    Command::new(program)
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
        || Command::new(program)
            .arg("-V")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
}

/// A running `ipoib`, ended when dropped.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Nobody may be waiting for a line any more.
                let _ = sender.send(line);
            }
        });
        Running { child, lines }
    }

    fn line_with(&self, text: &str) -> String {
        loop {
            let line = self
                .lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|e| panic!("no line with {text:?}: {e}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// As by Ctrl-C.
    fn interrupt(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let status = ended(&mut self.child, PATIENCE);
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Hosts leave their groups and delete nothing that is not theirs: SIGTERM, then wait.
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&self.child),
                rustix::process::Signal::TERM,
            );
            if ended(&mut self.child, PATIENCE).is_none() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

/// A network namespace of this test.
struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Namespace {
        succeed(Command::new("ip").args(["netns", "add", &name]));
        Namespace(name)
    }
    fn run(&self, arguments: &[&str]) -> String {
        succeed(
            Command::new("ip")
                .args(["netns", "exec", &self.0])
                .args(arguments),
        )
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn wireshark_reads_a_bring_up() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        return eprintln!("SKIPPED: network namespaces and TUN devices need root");
    }
    if let Some(missing) = ["tshark", "ip", "ping"]
        .into_iter()
        .find(|program| !there_is(program))
    {
        return eprintln!("SKIPPED: there is no {missing}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (control, file) = (path("fabric.sock"), path("bring-up.pcap"));
    let id = std::process::id();
    let namespaces = [1, 2].map(|k| Namespace::new(format!("ipoib-capture-{id}-{k}")));

    let fabric = Running::start(ipoib().args([
        "fabric",
        "--listen",
        "udp://127.0.0.1:0",
        "--control",
        &control,
    ]));
    let line = fabric.line_with("udp://");
    let url = line
        .split_whitespace()
        .find(|word| word.starts_with("udp://"))
        .unwrap();
    let mut capture = Running::start(ipoib().args(["capture", &file, "--control", &control]));
    // The head of the file is written when the fabric has agreed to the capture, and frames come from before any host is there: the SM's own.
    let begin = Instant::now();
    while !std::fs::metadata(&file).is_ok_and(|file| file.len() >= 24) {
        assert!(begin.elapsed() < PATIENCE, "the capture did not begin");
        std::thread::sleep(Duration::from_millis(20));
    }

    let hosts: Vec<Running> = (1..=2)
        .zip(&namespaces)
        .map(|(k, namespace)| {
            let addresses = [format!("10.77.0.{k}/24"), format!("fd77::{k}/64")];
            Running::start(
                ipoib()
                    .args([
                        "up",
                        "ib0",
                        "--fabric",
                        url,
                        "--netns",
                        &namespace.0,
                        "--control",
                        &path(&format!("{k}.sock")),
                    ])
                    .args(addresses.iter().flat_map(|address| ["--address", address])),
            )
        })
        .collect();
    for host in &hosts {
        host.line_with(": up");
    }
    for destination in ["10.77.0.2", "fd77::2"] {
        // The first may be lost to duplicate address detection, which holds back the kernel's IPv6.
        let answers = namespaces[0].run(&["ping", "-c", "5", "-i", "0.2", "-w", "60", destination]);
        assert!(answers.contains("bytes from"), "{answers}");
    }
    drop(hosts);
    capture.interrupt();

    let tshark = |arguments: &[&str]| {
        succeed(
            Command::new("tshark")
                .args(["-n", "-r", &file])
                .args(arguments),
        )
    };
    let wrong = tshark(&["-Y", "_ws.malformed || _ws.expert.severity == error"]);
    assert!(wrong.is_empty(), "Wireshark does not like:\n{wrong}");
    let listing = tshark(&[]);
    let details = tshark(&["-V"]);
    let count = |text: &str, word: &str| text.lines().filter(|line| line.contains(word)).count();
    for word in [
        "ARP",
        "ICMPv6",
        "PathRecord",
        "MCMemberRecord",
        "SubnGet",
        "Neighbor Solicitation",
        "Echo (ping) reply",
    ] {
        assert!(count(&listing, word) > 0, "no {word} in:\n{listing}");
    }
    for word in [
        "Address Resolution Protocol (reply)",
        "Internet Control Message Protocol v6",
        "PathRecord",
        "MCMemberRecord",
        "PortInfo",
    ] {
        assert!(count(&details, word) > 0, "no {word} in the details");
    }

    let decoded = succeed(ipoib().args(["decode", &file]));
    let frames = listing
        .lines()
        .filter(|line| !line.trim().is_empty())
        .count();
    let summary = format!(
        "{frames} frames, {frames} with right ICRC and VCRC, {frames} re-emitted unchanged"
    );
    assert_eq!(decoded.lines().last(), Some(&*summary));
}

#[test]
fn captures_of_others_decode() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let mut files = vec![
        shared.join("captures/wiki-infiniband.pcap"),
        shared.join("captures/tcpdump-ipoib.pcap"),
    ];
    files.extend(
        std::fs::read_dir(shared.join("kernel-peer/captures"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path()),
    );
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "pcap"))
    {
        if !file.exists() {
            eprintln!("SKIPPED: {} is absent", file.display());
            continue;
        }
        let decoded = succeed(ipoib().arg("decode").arg(file));
        let summary = decoded.lines().last().unwrap();
        let frames: usize = summary.split_whitespace().next().unwrap().parse().unwrap();
        assert!(
            frames > 0 && decoded.lines().count() == frames + 1,
            "{}: {summary}",
            file.display()
        );
        match file.file_name().unwrap().to_str().unwrap() {
            "wiki-infiniband.pcap" => assert_eq!(
                summary,
                "43 frames, 43 with right ICRC and VCRC, 43 re-emitted unchanged"
            ),
            "tcpdump-ipoib.pcap" => assert_eq!(
                summary,
                "30 frames (IPoIB, without CRCs), 30 re-emitted unchanged"
            ),
            _ => assert!(
                summary.ends_with(&format!(
                    "{frames} with right ICRC and VCRC, {frames} re-emitted unchanged"
                )),
                "{summary}"
            ),
        }
    }
}
