//! What the program says when it is used wrongly: what was wrong, and what to do.

use crate::subnet::{IPOIB, Subnet, possible, run, succeed, words};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Exit code and what it said.
fn up(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(Command::new(IPOIB).arg("up").args(arguments));
    (output.status.code(), words(&output))
}

#[test]
fn arguments() {
    for (arguments, expected) in [
        (
            [
                "ib0",
                "--fabric",
                "udp://127.0.0.1:1",
                "--address",
                "10.77.0.1",
            ]
            .as_slice(),
            "10.77.0.1/24",
        ),
        (
            &[
                "ib0",
                "--fabric",
                "udp://127.0.0.1:1",
                "--address",
                "10.77.0.1/33",
            ],
            "bad prefix length",
        ),
        (
            &[
                "ib0",
                "--fabric",
                "udp://127.0.0.1:1",
                "--address",
                "10.77.0/24",
            ],
            "is not an IP address",
        ),
        (&["ib0", "--fabric", "127.0.0.1:1"], "udp://127.0.0.1:7700"),
        (
            &["ib0", "--fabric", "udp://127.0.0.1:1", "--mtu", "20"],
            "72",
        ),
        (
            &["ib0", "--fabric", "udp://127.0.0.1:1", "--pkey", "0x8000"],
            "P_Key",
        ),
        (
            &["ib0", "--fabric", "udp://127.0.0.1:1", "--guid", "0"],
            "GUID",
        ),
        (
            &["ib0", "--fabric", "udp://127.0.0.1:1", "--qpn", "1"],
            "queue pair number",
        ),
        (
            &["ib0", "--fabric", "udp://127.0.0.1:1", "--log", "loud"],
            "error, warn, info",
        ),
    ] {
        let (code, text) = up(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    let (code, text) = up(&["ib0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--fabric udp://ADDR:PORT"), "{text}");
}

#[test]
fn fabric_arguments() {
    for (arguments, expected) in [
        (["fabric"].as_slice(), "--listen udp://127.0.0.1:7700"),
        (&["fabric", "--listen", "udp://0.0.0.0:0"], "--allow CIDR"),
        (
            &["fabric", "--config", "/nonexistent.toml"],
            "/nonexistent.toml",
        ),
    ] {
        let output = run(Command::new(IPOIB).args(arguments));
        assert_eq!(
            output.status.code(),
            Some(1),
            "{arguments:?}: {}",
            words(&output)
        );
        assert!(
            words(&output).contains(expected),
            "{arguments:?}: {}",
            words(&output)
        );
    }
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = format!("udp://{}", socket.local_addr().unwrap());
    let output = run(Command::new(IPOIB).args(["fabric", "--listen", &listen]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        words(&output).contains(&socket.local_addr().unwrap().to_string()),
        "{}",
        words(&output)
    );
}

#[test]
fn unknown_namespace() {
    if !possible() {
        return;
    }
    let (code, text) = up(&[
        "ib0",
        "--fabric",
        "udp://127.0.0.1:1",
        "--netns",
        "ipoib-no-such-namespace",
    ]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("ipoib-no-such-namespace") && text.contains("ip netns"),
        "{text}"
    );
}

/// A name that a device has already; and a host on whose running interface nothing changes by that.
#[test]
fn name_in_use() {
    let Some(subnet) = Subnet::up(2) else { return };
    for (name, namespace) in [("ib0", subnet.namespace(1)), ("lo", subnet.namespace(1))] {
        let (code, text) = up(&[name, "--fabric", &subnet.url(), "--netns", &namespace]);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains(name) && text.contains("choose another"),
            "{text}"
        );
    }
    for name in ["a-name-that-is-too-long", "a/b", ""] {
        let (code, text) = up(&[
            name,
            "--fabric",
            &subnet.url(),
            "--netns",
            &subnet.namespace(1),
        ]);
        assert!(matches!(code, Some(1 | 2)), "{text}");
        assert!(text.contains("name"), "{text}");
    }
    subnet.wait_reaches(1, "10.77.0.2");
    assert_eq!(subnet.show(1, "link")["up"], true);
}

/// The program as nobody runs it, in a folder that lives as long.
fn as_nobody() -> (tempfile::TempDir, Command) {
    // The program itself may lie where nobody may go.
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("ipoib");
    // By another process: no child that another test forks meanwhile inherits the open file, which would make it "busy".
    succeed(Command::new("cp").arg(IPOIB).arg(&program));
    let readable = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(place.path(), readable).unwrap();
    let mut command = Command::new(program);
    command.uid(65534).gid(65534).env_remove("XDG_RUNTIME_DIR");
    (place, command)
}

/// Who may not ask is told what there is, and why.
#[test]
fn what_runs_as_another_user() {
    let Some(subnet) = Subnet::up(1) else { return };
    let name = format!("ib0@{}", subnet.namespace(1));
    for arguments in [
        ["show"].as_slice(),
        &["show", "link", "--on", &name],
        &["set", &name, "mode", "connected"],
    ] {
        let (_place, mut command) = as_nobody();
        let text = words(&run(command.args(arguments)));
        assert!(text.contains("runs here as user 65534"), "{text}");
        // Other tests' interfaces run at the same time, and no more than some are named.
        let line = text.lines().find(|line| line.starts_with("root may run "));
        let line = line.unwrap_or_else(|| panic!("nothing of root's in {text}"));
        assert!(line.contains("only root may ask"), "{text}");
        assert!(line.contains(&name) || line.contains("..."), "{text}");
    }
}

#[test]
fn no_permission() {
    if !possible() {
        return;
    }
    let (_place, mut up) = as_nobody();
    let output = run(up.args(["up", "ib0", "--fabric", "udp://127.0.0.1:1"]));
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let text = words(&output);
    assert!(
        text.contains("CAP_NET_ADMIN") || text.contains("root"),
        "{text}"
    );
}
