//! `ipoib fabric --sm opensm` and `ipoib diag`.

use crate::diags::{contains, field};
use crate::processes::{Background, run, words};
use crate::site::{possible, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

const IPOIB: &str = env!("CARGO_BIN_EXE_ipoib");
/// For a fabric to start.
const PATIENCE: Duration = Duration::from_secs(120);

struct Fabric {
    running: Background,
    url: String,
    place: TempDir,
}

impl Fabric {
    fn start(sm: &str) -> Fabric {
        Fabric::with(sm, &[])
    }

    fn with(sm: &str, more: &[&str]) -> Fabric {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(IPOIB);
        command.args([
            "fabric",
            "--listen",
            "udp://127.0.0.1:0",
            "--sm",
            sm,
            "--control",
        ]);
        command
            .arg(place.path().join("control"))
            .args(more)
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let running = Background(child);
        let (said, heard) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            said.send(line)
        });
        let line = heard.recv_timeout(PATIENCE).expect("the fabric speaks");
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("udp://"));
        Fabric {
            url: url.unwrap_or_else(|| panic!("{line:?}")).to_owned(),
            running,
            place,
        }
    }

    fn control(&self) -> PathBuf {
        self.place.path().join("control")
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(IPOIB);
        command
            .arg("diag")
            .arg("--control")
            .arg(self.control())
            .args(line.split_whitespace())
            .current_dir(self.place.path());
        command
    }

    fn diag(&self, line: &str) -> (Output, String) {
        let output = run(&mut self.command(line));
        let text = words(&output);
        (output, text)
    }

    /// OpenSM's process: the only child.
    fn opensm(&self) -> Option<i32> {
        let pid = self.running.0.id();
        // Each thread has children of its own.
        std::fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
            .find_map(|children| children.split_whitespace().next()?.parse().ok())
    }

    fn wait_master(&self) {
        let words = || "a master subnet manager".into();
        wait_until(
            words,
            || self.diag("sminfo"),
            |(output, text)| output.status.success() && text.contains("SMINFO_MASTER"),
        );
    }

    /// In order.
    fn end(&self) {
        let pid = i32::try_from(self.running.0.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    }

    /// Two hosts, of which one pings the other.
    #[track_caller]
    fn hosts_talk(&self) {
        let ping = |target: &str, own: &str, count: &str| {
            let mut command = Command::new(IPOIB);
            command.args(["ping", target, "--fabric", &self.url, "--address", own]);
            command.args(["--count", count, "--interval", "50"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        let other = ping("10.77.0.254", "10.77.0.1/24", "100000")
            .spawn()
            .unwrap();
        let _other = Background(other);
        wait_until(
            || "the other host answers".into(),
            || run(&mut ping("10.77.0.1", "10.77.0.2/24", "3")),
            |output| output.status.success(),
        );
    }
}

#[test]
fn opensm_is_started_and_started_again() {
    if !possible() {
        return;
    }
    let fabric = Fabric::start("opensm");
    fabric.wait_master();
    fabric.hosts_talk();
    let first = fabric.opensm().expect("opensm runs");
    let pid = rustix::process::Pid::from_raw(first).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let words = || "another opensm".into();
    let is_new = |now: &Option<i32>| now.is_some_and(|pid| pid != first);
    let second = wait_until(words, || fabric.opensm(), is_new).unwrap();
    fabric.wait_master();
    fabric.hosts_talk();
    // It ends with the fabric.
    fabric.end();
    let runs = || std::path::Path::new(&format!("/proc/{second}")).exists();
    wait_until(|| "opensm ends".into(), runs, |runs| !runs);
}

/// A tool that serves until it is told to end.
struct Server(Background);

impl Drop for Server {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.0.id()).ok().and_then(Pid::from_raw);
        // The program passes it on to the tool; it may have ended.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let ended = || matches!(self.0.0.try_wait(), Ok(Some(_)));
        wait_until(|| "the tool ends".into(), ended, |ended| *ended);
    }
}

#[test]
fn ibping_both_ways_across_a_tree() {
    if !possible() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (config, lids) = (place.path().join("config"), place.path().join("lids"));
    std::fs::write(&config, format!("lid_file = {lids:?}\n")).unwrap();
    // The last channel adapter, by the GUID of its port.
    let kept = "0x0200000000200009 77\n";
    std::fs::write(&lids, kept).unwrap();
    let config = config.to_str().unwrap();
    let fabric = ["--topology", "fat-tree:2,2,2", "--config", config];
    let fabric = Fabric::with("opensm", &fabric);
    fabric.wait_master();
    let lid = |node: &str| {
        field(
            &fabric.diag(&format!("--on {node} smpquery -D PI 0")).1,
            "Lid",
        )
    };
    for (server, client) in [("host1", "host4"), ("host4", "host1")] {
        let mut serve = fabric.command(&format!("--on {server} ibping -S"));
        serve.stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Server(Background(serve.spawn().unwrap()));
        let lid = lid(server);
        let ping = format!("--on {client} ibping -c 3 {lid}");
        // It may not be there yet.
        let said = wait_until(
            || format!("{server} answers {client}"),
            || fabric.diag(&ping).1,
            |said| said.contains(" 0% packet loss"),
        );
        let from = format!("(Lid {lid})");
        contains(&said, &["3 packets transmitted, 3 received", &from]);
    }
    // LIDs are taken from the file, and written to it.
    let first = format!(" {}\n", lid("host1"));
    assert_eq!(lid("host4"), 77);
    fabric.end();
    let text = || std::fs::read_to_string(&lids).unwrap();
    let known = |text: &String| text.contains(&first) && text.contains(kept);
    wait_until(|| "the LIDs are saved".into(), text, known);
}

#[test]
fn diag_passes_output_and_exit_code() {
    if !possible() {
        return;
    }
    let fabric = Fabric::start("embedded");
    fabric.wait_master();
    let (output, text) = fabric.diag("--on switch smpquery ND -D 0");
    assert!(
        output.status.success() && text.contains("ipoib software switch"),
        "{text}"
    );
    // The embedded manager answers with RMPP, of which a tool gets what one MAD holds.
    let (output, text) = fabric.diag("saquery NR");
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("NodeRecord dump").count(), 1, "{text}");
    let (output, text) = fabric.diag("smpquery NI -D 0,99");
    assert_eq!(output.status.code(), Some(255), "{text}");
    for (line, why) in [
        ("--on nowhere sminfo", "there are: switch"),
        ("no-such-tool", "infiniband-diags"),
    ] {
        let (output, text) = fabric.diag(line);
        assert!(!output.status.success() && text.contains(why), "{text}");
    }
    let left = std::fs::read_dir(fabric.place.path()).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["control"]);
}
