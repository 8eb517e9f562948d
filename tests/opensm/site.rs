//! A subnet in this process, with the umad server in front of it, and programs on its nodes.

use crate::processes::{self, Background};
use fabric::topology::{Cable, Node, NodeKind, PortId, Topology};
use fabric::umad::{UmadConfig, UmadServer};
use ipoib::opensm::{LIBRARY_PACKAGE, library, program};
use ipoib::subnet::Subnet;
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wire::{Guid, LinkRate};

/// How long something may take that becomes true in its own time, and how long it is waited for in between.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

/// Can these tests run here? Says why not.
pub(crate) fn possible() -> bool {
    let missing = [
        ("opensm", "opensm"),
        ("osmtest", "opensm"),
        ("saquery", "infiniband-diags"),
    ]
    .into_iter()
    .find(|(name, _)| program(name).is_none())
    .map(|(_, package)| package)
    .or(library().is_none().then_some(LIBRARY_PACKAGE));
    match missing {
        Some(package) => {
            eprintln!(
                "SKIPPED: this test needs the Debian package {package}; tests/run.sh installs it"
            );
            false
        }
        None => true,
    }
}

/// Asks until the answer satisfies `is_right`.
#[track_caller]
pub(crate) fn wait_until<T>(
    what: impl Fn() -> String,
    mut ask: impl FnMut() -> T,
    is_right: impl Fn(&T) -> bool,
) -> T {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if is_right(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "still not: {}", what());
        std::thread::sleep(PAUSE);
    }
}

/// One switch `S1` with HCAs `H1`, `H2`, ... at its ports 1, 2, ..., and eight free ports.
pub(crate) fn star(hcas: u8) -> Topology {
    let mut topology = Topology {
        nodes: vec![Node::switch("S1", Guid(0x20_0000), hcas + 8)],
        cables: Vec::new(),
    };
    for n in 1..=hcas {
        let guid = Guid(0x10_0000 + u64::from(n) * 0x10);
        topology.nodes.push(Node::ca(&format!("H{n}"), guid, 1));
        let ends = [
            PortId { node: 0, port: n },
            PortId {
                node: usize::from(n),
                port: 1,
            },
        ];
        let rates = [LinkRate::default(); 2];
        topology.cables.push(Cable { ends, rates });
    }
    topology
}

/// A subnet without a manager of its own. Dropping it ends all.
pub(crate) struct Site {
    pub(crate) server: UmadServer,
    pub(crate) subnet: Subnet,
    pub(crate) base: String,
    place: TempDir,
}

impl Site {
    pub(crate) fn new(topology: &Topology) -> Site {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = format!("ipoib-t{}-{number}", std::process::id());
        let subnet = Subnet::with_topology(topology, None).unwrap();
        let server = UmadServer::start(UmadConfig {
            base: base.clone(),
            udp: None,
            allow: Vec::new(),
            nodes: subnet.nodes(),
        })
        .unwrap();
        Site {
            server,
            subnet,
            base,
            place: tempfile::tempdir().unwrap(),
        }
    }

    /// One that OpenSM manages, at the first channel adapter.
    pub(crate) fn managed(topology: &Topology) -> (Site, Background) {
        let site = Site::new(topology);
        let is_ca = |node: &&Node| node.kind == NodeKind::Ca;
        let first = topology.nodes.iter().find(is_ca).unwrap();
        let opensm = site.opensm(&first.name);
        site.wait_up(1);
        (site, opensm)
    }

    pub(crate) fn place(&self) -> &Path {
        self.place.path()
    }

    /// A program on a node.
    pub(crate) fn command(&self, node: &str, name: &str) -> Command {
        let mut command = Command::new(program(name).unwrap());
        command
            .current_dir(self.place())
            .env("IBSIM_SOCKNAME", &self.base)
            .env("SIM_HOST", node)
            .env("LD_PRELOAD", library().unwrap())
            .env("OSM_CACHE_DIR", self.place())
            .env("OSM_TMP_DIR", self.place())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn opensm(&self, node: &str) -> Background {
        let mut command = self.command(node, "opensm");
        // On a busy machine answers take longer than the usual 200 ms, and it would tell of errors.
        command.args(["-d", "2", "-t", "10000", "-f"]);
        command.arg(self.log_path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Background(command.spawn().unwrap())
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.place().join("opensm.log")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Until OpenSM has said so for the n-th time.
    #[track_caller]
    pub(crate) fn wait_up(&self, n: usize) {
        let ups = || self.log().matches("SUBNET UP").count();
        let words = || format!("SUBNET UP, for the {n}. time:\n{}", self.log());
        wait_until(words, ups, |ups| *ups >= n);
    }

    /// What a tool says, standard output and errors; it must succeed. On a busy machine `ibqueryerrors` dies now and then of a segmentation fault
    /// of its own, without a word of a missing answer: then it is run again.
    #[track_caller]
    pub(crate) fn tool(&self, node: &str, line: &str) -> String {
        let (mut output, mut text) = self.run(node, line);
        for _ in 0..3 {
            if output.status.signal() == Some(Signal::SEGV.as_raw()) {
                eprintln!("{line} crashed; once more");
                (output, text) = self.run(node, line);
            }
        }
        assert!(output.status.success(), "{line}: {}\n{text}", output.status);
        text
    }

    pub(crate) fn run(&self, node: &str, line: &str) -> (Output, String) {
        let mut words = line.split_whitespace();
        let mut command = self.command(node, words.next().unwrap());
        let output = processes::run(command.args(words));
        let text = processes::words(&output);
        (output, text)
    }
}
