//! `ipoib fault` where no packet is needed: what there is no such thing of, and wrong use.

mod processes;

use processes::Background;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ipoib");
const PATIENCE: Duration = Duration::from_secs(120);

/// A fabric on a free port, killed at the end of the test.
struct Fabric {
    _child: Background,
    folder: tempfile::TempDir,
}

impl Fabric {
    fn start(arguments: &[&str]) -> Fabric {
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new(PROGRAM)
            .args(["fabric", "--listen", "udp://127.0.0.1:0", "--control"])
            .arg(folder.path().join("control"))
            .args(arguments)
            .stdout(Stdio::null())
            .spawn();
        let _child = Background(child.expect("the program starts"));
        let fabric = Fabric { _child, folder };
        let until = Instant::now() + PATIENCE;
        while !fabric.fault("list").status.success() {
            assert!(Instant::now() < until, "the fabric does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        fabric
    }

    /// `ipoib fault LINE`.
    fn fault(&self, line: &str) -> Output {
        let mut command = Command::new(PROGRAM);
        command
            .args(["fault", "--control"])
            .arg(self.folder.path().join("control"))
            .args(line.split_whitespace());
        processes::run(&mut command)
    }

    /// It fails and says why, in these words.
    #[track_caller]
    fn refuses(&self, line: &str, words: &str) {
        let output = self.fault(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{line} succeeded");
        assert!(said.contains(words), "{line}: {said}");
        assert!(!said.contains("panicked"), "{line}: {said}");
    }

    #[track_caller]
    fn does(&self, line: &str) -> String {
        let output = self.fault(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn wrong_use_is_explained() {
    let fabric = Fabric::start(&[]);
    // Its manager has looked at the subnet, which takes a moment.
    let until = Instant::now() + PATIENCE;
    while !String::from_utf8_lossy(&fabric.fault("sm takeover").stderr).contains("already") {
        assert!(Instant::now() < until, "no master");
        std::thread::sleep(Duration::from_millis(20));
    }
    for (line, words) in [
        ("link nobody 1 down", "there are: switch"),
        ("link switch 0 down", "ports 1 to 128"),
        ("link switch 129 down", "ports 1 to 128"),
        ("link switch 1", "say what to do to the link"),
        ("link switch 1 --loss 2", "2"),
        ("link switch 1 --loss 101%", "101%"),
        ("link switch 1 --delay 60001", "60000"),
        ("link switch 1 sideways", "down, up, clear"),
        ("link switch", "<PORT>"),
        ("sm up", "stop, start, handover, takeover"),
        ("sm start", "runs already"),
        ("sm takeover", "is the master already"),
        ("sm handover", "no standby"),
        ("sa status nonsense", "nonsense"),
        ("sa delay 60001", "60000"),
        ("sa", "drop"),
        ("pkey nobody 0xffff", "no node \"nobody\""),
        ("pkey switch 0x12345", "0x12345"),
        ("lid switch 0", "from 1 to 49151"),
        ("lid switch 49152", "from 1 to 49151"),
        ("lid nobody 7", "no node \"nobody\""),
        ("prefix fe80", "fe80"),
    ] {
        fabric.refuses(line, words);
    }
    let nothing = fabric.does("list");
    assert_eq!(nothing, "no link is broken\n");
    // All that is broken is listed, and mended ones are not.
    for (fault, listed, mend) in [
        ("lid switch 77", ": 77 (was 1)", "lid switch 1"),
        ("prefix fec0:0:0:1::", "fec0:0:0:1::", "prefix fe80::"),
    ] {
        fabric.does(fault);
        let list = fabric.does("list");
        assert!(list.contains(listed), "{fault}: {list}");
        fabric.does(mend);
        assert_eq!(fabric.does("list"), nothing, "{mend}");
    }
    fabric.does("sm stop");
    for line in ["sm handover", "sm takeover", "lid switch 7", "sa drop"] {
        fabric.refuses(line, "`ipoib fault sm start` starts it");
    }
    fabric.refuses("sm stop", "stopped already");
    assert!(fabric.does("list").contains("stopped"));
    fabric.does("sm start");
    assert_eq!(fabric.does("list"), nothing);
}

#[test]
fn without_an_embedded_manager_only_links_break() {
    let fabric = Fabric::start(&["--sm", "none"]);
    for line in [
        "sm stop",
        "sm handover",
        "sa drop",
        "lid switch 7",
        "pkey switch",
    ] {
        fabric.refuses(line, "no embedded subnet manager");
    }
    fabric.does("link switch 3 down");
    assert!(fabric.does("list").contains("down"));
    fabric.does("link switch 3 clear");
    assert!(fabric.does("list").starts_with("no link is broken"));
}
