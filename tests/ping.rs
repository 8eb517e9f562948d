//! `ipoib ping` over `ipoib fabric`: processes that meet by UDP.

mod processes;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ipoib");
const PATIENCE: Duration = Duration::from_secs(120);

/// A running program, killed at the end of the test.
struct Running {
    child: Child,
    /// Of its control socket.
    _folder: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the program and returns it with its first line.
fn start(args: &[&str]) -> (Running, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(PROGRAM);
    command.args(args).stdout(Stdio::piped());
    if args[0] == "fabric" {
        command.arg("--control").arg(folder.path().join("control"));
    }
    let mut child = command.spawn().expect("the program starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    (
        Running {
            child,
            _folder: folder,
        },
        line,
    )
}

/// A fabric on a free port, and its URL.
fn fabric(extra: &[&str]) -> (Running, String) {
    let (running, line) = start(&[&["fabric", "--listen", "udp://127.0.0.1:0"], extra].concat());
    let url = line
        .split_whitespace()
        .find(|word| word.starts_with("udp://"))
        .unwrap_or_else(|| panic!("{line:?}"));
    (running, url.to_owned())
}

fn ping(args: &[&str]) -> Output {
    processes::run(Command::new(PROGRAM).arg("ping").args(args))
}

/// Pings until what it says is right: on a busy machine an interface may not be up in the time that the program gives it, or an answer be late.
#[track_caller]
fn ping_until(args: &[&str], is_right: impl Fn(&str) -> bool) -> String {
    let begin = Instant::now();
    loop {
        let output = ping(args);
        let said = processes::words(&output);
        if output.status.success() && is_right(&said) {
            return said;
        }
        assert!(begin.elapsed() < PATIENCE, "{said}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a ping that keeps on and so answers as `address`.
fn responder(url: &str, address: &str) -> Running {
    responder_as(url, address, "datagram")
}

/// The same in this mode.
fn responder_as(url: &str, address: &str, mode: &str) -> Running {
    let other = if address.contains(':') {
        "fd77::fe"
    } else {
        "10.77.0.254"
    };
    let begin = Instant::now();
    loop {
        let (running, line) = start(&[
            "ping",
            other,
            "--fabric",
            url,
            "--address",
            address,
            "--count",
            "100000",
            "--mode",
            mode,
        ]);
        if line.starts_with("PING") {
            return running;
        }
        assert!(begin.elapsed() < PATIENCE, "{line}");
    }
}

#[test]
fn two_pings_answer_each_other() {
    let (_fabric, url) = fabric(&[]);
    for (address, target, size) in [
        ("10.77.0.1/24", "10.77.0.1", "2016"),
        ("fd77::1/64", "fd77::1", "1996"),
    ] {
        let _other = responder(&url, address);
        let args = [
            target,
            "--fabric",
            &url,
            "--count",
            "3",
            "--interval",
            "50",
            "--size",
            size,
        ];
        let all = "3 packets transmitted, 3 received, 0% packet loss";
        let out = ping_until(&args, |said| said.contains(all));
        assert!(
            out.contains("(made up; --address chooses another)"),
            "{out}"
        );
        for sequence in 0..3 {
            assert!(
                out.contains(&format!("from {target}: seq={sequence} time=")),
                "{out}"
            );
        }
        assert!(out.contains("rtt min/avg/max = "), "{out}");
    }
}

/// What is too long for a datagram goes by a connection, and comes back if the other side is in connected mode; else it is said why not.
#[test]
fn the_longest_go_by_connections() {
    let (_fabric, url) = fabric(&[]);
    for (address, target, size) in [
        ("10.77.0.1/24", "10.77.0.1", "65492"),
        ("fd77::1/64", "fd77::1", "65472"),
    ] {
        let _other = responder_as(&url, address, "connected");
        let args = [target, "--fabric", &url, "--count", "2", "--size", size];
        let all = "2 packets transmitted, 2 received, 0% packet loss";
        ping_until(&args, |said| said.contains(all));
    }
    let _other = responder(&url, "10.77.0.2/24");
    let begin = Instant::now();
    loop {
        let args = [
            "10.77.0.2",
            "--fabric",
            &url,
            "--count",
            "1",
            "--size",
            "9000",
        ];
        let said = processes::words(&ping(&args));
        if said.contains("needs connected mode there, too") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{said}");
    }
}

#[test]
fn a_group_is_answered_by_all() {
    let (_fabric, url) = fabric(&[]);
    let _others = [
        responder(&url, "10.77.0.1/24"),
        responder(&url, "10.77.0.2/24"),
    ];
    let args = [
        "ff02::1",
        "--fabric",
        &url,
        "--count",
        "5",
        "--interval",
        "300",
    ];
    // The switch learns of a membership a moment after the member: the first may get only one answer.
    let out = ping_until(&args, |said| {
        let replies = said.lines().filter(|line| line.contains(" seq="));
        let who: BTreeSet<_> = replies.map(|line| line.split(' ').nth(3)).collect();
        who.len() == 2
    });
    assert!(out.contains(" duplicates, "), "{out}");
}

#[test]
fn nobody_there() {
    let (_fabric, url) = fabric(&[]);
    let output = ping(&[
        "10.77.0.9",
        "--fabric",
        &url,
        "--count",
        "2",
        "--interval",
        "10",
    ]);
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{errors}");
    assert!(
        out.contains("2 packets transmitted, 0 received, 100% packet loss"),
        "{out}{errors}"
    );
    assert!(errors.contains("no answer from 10.77.0.9"), "{errors}");
}

#[test]
fn errors_say_what_to_do() {
    // Bound to the end of the test: nobody else gets the port.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let silent = format!("udp://{}", socket.local_addr().expect("an address"));
    let output = ping(&["10.77.0.1", "--fabric", &silent]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(
        errors.contains(&format!("{silent} does not answer")) && errors.contains("ipoib fabric"),
        "{errors}"
    );

    let (_fabric, url) = fabric(&[]);
    let output = ping(&["10.77.0.1", "--fabric", &url, "--pkey", "0x8123"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(
        errors.contains("P_Key 0x8123 is not in the port's table (it has 0xffff)"),
        "{errors}"
    );

    let size = ["fd77::1", "--fabric", &url, "--size"];
    let output = ping(&[&size, ["2000", "--mode", "datagram"].as_slice()].concat());
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(
        errors.contains("at most 1996") && errors.contains("--mode connected takes more"),
        "{errors}"
    );
    let output = ping(&[&size, ["big"].as_slice()].concat());
    let errors = text(&output.stderr);
    assert!(errors.contains("from 0 to 65492 (bytes)"), "{errors}");
}

#[test]
fn a_signal_ends_it_with_the_summary() {
    let (_fabric, url) = fabric(&[]);
    let child = Command::new(PROGRAM)
        .args([
            "ping",
            "10.77.0.1",
            "--fabric",
            &url,
            "--count",
            "1000000",
            "--interval",
            "100",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut running = Running {
        child,
        _folder: tempfile::tempdir().expect("a folder"),
    };
    let mut lines = BufReader::new(running.child.stdout.take().expect("a pipe")).lines();
    assert!(
        lines
            .next()
            .is_some_and(|line| line.is_ok_and(|line| line.starts_with("PING")))
    );
    let pid = rustix::process::Pid::from_child(&running.child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
    let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
    assert!(
        rest.iter().any(|line| line.contains("100% packet loss")),
        "{rest:?}"
    );
    assert_eq!(running.child.wait().expect("an end").code(), Some(1));
}
