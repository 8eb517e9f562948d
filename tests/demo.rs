//! `ipoib demo` as a user sees it: in the process, in network namespaces, and as a user who may have neither those nor a TUN device.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ipoib");

/// The report, after checking that all of it passed with `hosts` hosts.
fn report(output: &Output, hosts: usize) -> Value {
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    let report: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(report["passed"], true, "{text}");
    let rows = report["hosts"].as_array().expect("hosts");
    assert_eq!(rows.len(), hosts);
    let mut lids: Vec<u64> = rows
        .iter()
        .map(|row| row["lid"].as_u64().expect("a LID"))
        .collect();
    lids.sort_unstable();
    lids.dedup();
    assert!(
        lids.len() == hosts && lids.iter().all(|lid| (1..0xc000).contains(lid)),
        "{lids:?}"
    );
    for row in rows {
        let link_address = row["link_address"].as_str().expect("a link address");
        assert_eq!(link_address.split(':').count(), 20, "{link_address}");
        assert_eq!(row["mtu"], 2044);
    }
    // A ring both ways, IPv4 and IPv6; of two hosts each is the next and the last of the other.
    let pings = report["pings"].as_array().expect("pings");
    assert_eq!(pings.len(), if hosts == 2 { 4 } else { 4 * hosts });
    assert!(
        pings
            .iter()
            .all(|ping| ping["rtt_ms"].as_f64().is_some_and(|ms| ms > 0.0)
                && ping["error"].is_null()),
        "{text}"
    );
    assert_eq!(
        report["multicast"]["answers"].as_array().map(Vec::len),
        Some(hosts - 1)
    );
    assert_eq!(report["tcp"]["bytes"], 32 << 20);
    assert!(
        report["tcp"]["crc32"].is_string()
            && report["tcp"]["mbit_per_s"]
                .as_f64()
                .is_some_and(|rate| rate > 0.0)
    );
    assert_eq!(report["broadcast_group"], "ff12:401b:ffff::ffff:ffff");
    report
}

fn demo(args: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg("demo")
        .args(args)
        .output()
        .expect("the program starts")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says why the test cannot be, unless namespaces and TUN devices are to be had.
fn may_have_namespaces() -> bool {
    let tun = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    let netns = datapath::host::Netns::new_anonymous();
    match (tun, netns) {
        (Ok(_), Ok(_)) => true,
        (Err(error), _) => {
            eprintln!("SKIPPED: /dev/net/tun: {error}");
            false
        }
        (_, Err(error)) => {
            eprintln!("SKIPPED: {error}");
            false
        }
    }
}

#[test]
fn in_the_process() {
    let report = report(&demo(&["--json", "--in-process", "--hosts", "3"]), 3);
    assert_eq!(report["hosts_are"], "in-process stacks");
    assert!(report["note"].is_null());
}

#[test]
fn the_table_says_it_all() {
    let output = demo(&["--in-process"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    for needed in [
        "10.77.0.1",
        "fd77::2",
        "fe80::200:0:77:1",
        "4 of 4 passed",
        "1 of 1 others answered",
        "at both ends",
        "All passed.",
    ] {
        assert!(text.contains(needed), "{needed} is not in:\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );
}

#[test]
fn in_namespaces() {
    if !may_have_namespaces() {
        return;
    }
    for hosts in [2, 4] {
        let report = report(&demo(&["--json", "--hosts", &hosts.to_string()]), hosts);
        assert_eq!(report["hosts_are"], "network namespaces");
    }
}

/// The program where everyone can run it.
fn copy_for_all() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
        .expect("permissions");
    // By another process: a program that a child of this one's other threads still has open for writing cannot be run (ETXTBSY).
    let status = Command::new("install")
        .args(["-m", "755", PROGRAM])
        .arg(folder.path().join("ipoib"))
        .status();
    assert!(status.expect("install").success());
    folder
}

fn as_nobody(program: &std::path::Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--inh-caps=-all",
        ])
        .arg(program);
    command
}

#[test]
fn as_an_ordinary_user() {
    if !is_root() {
        eprintln!(
            "SKIPPED: only root can become another user; the other tests ran as an ordinary one"
        );
        return;
    }
    let folder = copy_for_all();
    let output = as_nobody(&folder.path().join("ipoib"))
        .args(["demo", "--json"])
        .output()
        .expect("setpriv");
    let report = report(&output, 2);
    // Where everyone may open the device, a user namespace is enough for the real thing.
    let mode =
        std::fs::metadata("/dev/net/tun").map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o006 != 0o006 {
        assert_eq!(report["hosts_are"], "in-process stacks");
        let note = report["note"].as_str().expect("a note");
        assert!(note.contains("/dev/net/tun"), "{note}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(note));
    }
}

/// In a mount namespace whose /dev/net/tun everyone may open, an ordinary user gets network namespaces.
#[test]
fn as_an_ordinary_user_with_the_device() {
    if !is_root() || !may_have_namespaces() {
        eprintln!("SKIPPED: needs root and a TUN device");
        return;
    }
    let folder = copy_for_all();
    let node = folder.path().join("tun");
    // The test's own node, over the system's only inside the mount namespace that `unshare` makes and that ends with it.
    let script = format!(
        "mknod -m 666 '{node}' c 10 200 && mount --bind '{node}' /dev/net/tun && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all '{program}' demo --json",
        node = node.display(),
        program = folder.path().join("ipoib").display(),
    );
    let output = Command::new("unshare")
        .args(["--mount", "--", "sh", "-c", &script])
        .output()
        .expect("unshare");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("mknod") || errors.contains("mount:") || errors.contains("unshare:") {
        eprintln!("SKIPPED: {errors}");
        return;
    }
    let report = report(&output, 2);
    if errors.contains("user namespaces") {
        eprintln!("SKIPPED: {errors}");
        return;
    }
    assert_eq!(report["hosts_are"], "network namespaces", "{errors}");
}

/// `ipoib demo | head -1`: nobody reads the end.
#[test]
fn to_a_closed_pipe() {
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_ipoib"))
        .args(["demo", "--in-process"])
        .stdout(writer)
        .output()
        .expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}
