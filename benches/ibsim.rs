//! Debian's OpenSM on this fabric and on ibsim, the same fat trees, in interleaved rounds, of which the medians are printed:
//! `cargo bench --bench ibsim [LEAVES...]`, with 18 HCAs at each leaf (the default is 56 leaves: 1,008 HCAs).
//!
//! The time is that from the start of OpenSM's process until its log says SUBNET UP.
#![allow(clippy::unwrap_used)]

use fabric::topology::{Shape, Topology};
use fabric::umad::{UmadConfig, UmadServer};
use ipoib::opensm::{library, program};
use ipoib::subnet::Subnet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const SPINES: u8 = 18;
const HOSTS: u8 = 18;
/// For ibsim to listen, and for a subnet to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with its owner.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// OpenSM's time on the server of this name.
fn subnet_up(place: &Path, base: &str) -> Duration {
    let log = place.join(format!("{base}.log"));
    let started = Instant::now();
    let mut opensm = Command::new(program("opensm").unwrap());
    opensm
        .args(["-d", "2", "-f"])
        .arg(&log)
        .current_dir(place)
        .env("IBSIM_SOCKNAME", base)
        .env("SIM_HOST", "host1")
        .env("LD_PRELOAD", library().unwrap())
        .env("OSM_CACHE_DIR", place)
        .env("OSM_TMP_DIR", place)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _opensm = Background(opensm.spawn().unwrap());
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    until("SUBNET UP", || said().contains("SUBNET UP"));
    let took = started.elapsed();
    let errors = said().lines().filter(|line| line.contains("ERR ")).count();
    if errors > 0 {
        println!("{base}: {errors} errors in the log of OpenSM");
    }
    took
}

fn on_ours(topology: &Topology, place: &Path, base: &str) -> Duration {
    let subnet = Subnet::with_topology(topology, None).unwrap();
    let _server = UmadServer::start(UmadConfig {
        base: base.into(),
        udp: None,
        allow: Vec::new(),
        nodes: subnet.nodes(),
    })
    .unwrap();
    subnet_up(place, base)
}

fn on_ibsim(topology: &Topology, place: &Path, base: &str) -> Duration {
    let file = place.join("netlist");
    std::fs::write(&file, topology.to_string()).unwrap();
    // Its own limits are 2,048 nodes and 256 switches.
    let nodes = topology.nodes.len();
    let ports: usize = topology
        .nodes
        .iter()
        .map(|n| 1 + usize::from(n.ports))
        .sum();
    let mut ibsim = Command::new(program("ibsim").unwrap());
    ibsim
        .args([
            "-s",
            "-n",
            "-N",
            &nodes.to_string(),
            "-S",
            &nodes.to_string(),
        ])
        .args(["-P", &ports.to_string()])
        .arg(&file)
        .env("IBSIM_SOCKNAME", base)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _ibsim = Background(ibsim.spawn().unwrap());
    let socket = format!("@{base}:ctl");
    let sockets = || std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    until("ibsim listens", || sockets().contains(&socket));
    subnet_up(place, base)
}

fn main() {
    let sizes: Vec<u8> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![56] } else { sizes };
    let missing = [
        ("opensm", program("opensm")),
        ("ibsim-utils", program("ibsim")),
        ("libumad2sim0", library()),
    ];
    if let Some((package, _)) = missing.iter().find(|(_, path)| path.is_none()) {
        return println!("SKIPPED: the Debian package {package} is not installed");
    }
    println!("HCAs  this fabric ms  ibsim ms  ratio");
    for leaves in sizes {
        let topology = Shape::FatTree {
            spines: SPINES,
            leaves,
            hosts: HOSTS,
        }
        .topology();
        let place = tempfile::tempdir().unwrap();
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            let base = format!("ipoib-s{}-{leaves}-{round}", std::process::id());
            let place = place.path();
            rounds[0].push(on_ours(&topology, place, &format!("{base}a")));
            rounds[1].push(on_ibsim(&topology, place, &format!("{base}b")));
        }
        let [ours, ibsim] = rounds.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 2].as_secs_f64() * 1e3
        });
        let hcas = usize::from(leaves) * usize::from(HOSTS);
        println!("{hcas:4}  {ours:14.0}  {ibsim:8.0}  {:5.2}", ours / ibsim);
    }
}
