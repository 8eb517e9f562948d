//! OpenSM and the diagnostics in another network namespace than the fabric: the protocol of libumad2sim over UDP.

use crate::managers::possible;
use crate::subnet::{Background, IPOIB, command, run, succeed, unique, wait_until, words};
use ipoib::opensm::{library, program};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const FABRIC: &str = "10.78.0.1";
/// One that the fabric allows, and one that it does not.
const CLIENTS: [&str; 2] = ["10.78.0.2", "10.78.0.3"];
const PORT: &str = "7070";

/// A namespace for the fabric and one for its clients, with a cable between them.
struct Namespaces {
    names: [String; 2],
    place: TempDir,
}

impl Namespaces {
    fn new() -> Namespaces {
        let prefix = unique();
        let names = ["a", "b"].map(|end| format!("{prefix}{end}"));
        for name in &names {
            succeed(&mut command(&format!("ip netns add {name}")));
        }
        let place = tempfile::tempdir().unwrap();
        let both = Namespaces { names, place };
        let [a, b] = &both.names;
        for line in [
            format!("-n {a} link set lo up"),
            format!("-n {a} link add v type veth peer name v netns {b}"),
            format!("-n {a} addr add {FABRIC}/24 dev v"),
            format!("-n {b} addr add {}/24 dev v", CLIENTS[0]),
            format!("-n {b} addr add {}/24 dev v", CLIENTS[1]),
            format!("-n {a} link set v up"),
            format!("-n {b} link set v up"),
        ] {
            succeed(&mut command(&format!("ip {line}")));
        }
        both
    }

    fn place(&self) -> &Path {
        self.place.path()
    }

    /// A program on libumad2sim at a node, beside the fabric.
    fn client(&self, node: &str, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let mut command = command(&format!("ip netns exec {}", self.names[1]));
        command
            .arg(program(words.next().unwrap()).unwrap())
            .args(words)
            .current_dir(self.place())
            .env("IBSIM_SERVER_NAME", FABRIC)
            .env("IBSIM_SERVER_PORT", PORT)
            .env("SIM_HOST", node)
            .env("LD_PRELOAD", library().unwrap())
            .env("OSM_CACHE_DIR", self.place())
            .env("OSM_TMP_DIR", self.place())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// A counter of the fabric.
    fn counter(&self, name: &str) -> u64 {
        let mut show = Command::new(IPOIB);
        show.args(["show", "stats", "--json", "--control"])
            .arg(self.place().join("control"));
        let said = run(&mut show);
        let stats: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        stats[name].as_u64().unwrap_or_default()
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let output = run(&mut command(&format!("ip netns delete {name}")));
            if !output.status.success() {
                eprintln!("{name}: {}", words(&output));
            }
        }
    }
}

#[test]
fn opensm_beyond_udp() {
    if !possible() {
        return;
    }
    let both = Namespaces::new();
    let url = format!("udp://{FABRIC}:{PORT}");
    let fabric = |more: &[&str]| {
        let mut fabric = command(&format!("ip netns exec {} {IPOIB} fabric", both.names[0]));
        fabric
            .args(["--listen", "udp://127.0.0.1:7700", "--sm", "none"])
            .args(["--topology", "fat-tree:2,2,2", "--umad", &url, "--control"])
            .arg(both.place().join("control"))
            .args(more);
        fabric
    };
    let open = run(&mut fabric(&[]));
    assert!(!open.status.success());
    let said = words(&open);
    assert!(
        said.contains("--umad") && said.contains("--allow"),
        "{said}"
    );
    let allow = format!("{}/32", CLIENTS[0]);
    let mut fabric = fabric(&["--allow", &allow]);
    let _fabric = Background(fabric.stdout(Stdio::null()).spawn().unwrap());
    let control = both.place().join("control");
    wait_until("the fabric runs", || control.exists(), |there| *there);

    let log = both.place().join("log");
    let opensm = both
        .client("host1", "opensm -d 2 -t 10000 -f log")
        .spawn()
        .unwrap();
    let _opensm = Background(opensm);
    let log = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("the subnet is up", log, |log| log.contains("SUBNET UP"));
    assert!(!log().contains("ERR "), "{}", log());
    let say = |line: &str| succeed(both.client("host4", line).stdout(Stdio::piped()));
    let net = say("ibnetdiscover");
    for node in ["spine1", "spine2", "leaf1", "leaf2", "host1", "host4"] {
        assert!(net.contains(&format!("\"{node}\"")), "no {node} in {net}");
    }
    assert!(say("sminfo").contains("SMINFO_MASTER"));
    assert!(say("saquery PR --src-to-dst 1:2").contains("dlid....................2"));

    // Another address of theirs is none of those allowed. The tool waits for an answer for ever.
    let [allowed, other] = CLIENTS;
    assert_eq!(both.counter("umad_rx_refused_source"), 0);
    let route = |source| {
        format!(
            "ip -n {} route replace 10.78.0.0/24 dev v src {source}",
            both.names[1]
        )
    };
    succeed(&mut command(&route(other)));
    let _refused = Background(both.client("host4", "sminfo").spawn().unwrap());
    let refused = || both.counter("umad_rx_refused_source");
    wait_until("it is refused", refused, |times| *times > 0);
    succeed(&mut command(&route(allowed)));
    assert!(say("sminfo").contains("SMINFO_MASTER"));
}
