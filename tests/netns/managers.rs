//! OpenSM at nodes of a test's fabric, by `ipoib diag`.

use crate::subnet::{Background, IPOIB, Subnet, runs, wait_until};
use ipoib::opensm::{LIBRARY_PACKAGE, library, program};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Can these tests run here? Says why not.
pub(crate) fn possible() -> bool {
    let programs = [("opensm", "opensm"), ("saquery", "infiniband-diags")];
    let missing = programs
        .into_iter()
        .find(|(name, _)| program(name).is_none());
    let missing = missing.map(|(_, package)| package);
    let missing = missing.or(library().is_none().then_some(LIBRARY_PACKAGE));
    if let Some(package) = missing {
        eprintln!(
            "SKIPPED: this test needs the Debian package {package}; tests/run.sh installs it"
        );
    }
    missing.is_none() && crate::subnet::possible()
}

/// The child of a process. Each of its threads has children of its own.
pub(crate) fn child_of(pid: u32) -> Option<i32> {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .ok()?
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .find_map(|children| children.split_whitespace().next()?.parse().ok())
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Does the SA know this member of a group? OpenSM tells members only to those who know its key, which is 1.
pub(crate) fn is_member(subnet: &Subnet, node: &str, mgid: &str, gid: &str) -> bool {
    let query = format!("saquery --smkey 1 MCMR --mgid {mgid} --gid {gid}");
    let (found, said) = subnet.diag(node, &query);
    found && said.contains(gid)
}

/// Gives a port another LID, where the fabric started OpenSM itself: it takes LIDs from its file when it starts, and is killed and started again.
#[track_caller]
pub(crate) fn move_lid(subnet: &Subnet, guid: &str, lid: u16) {
    let opensm = child_of(subnet.pid("fabric") as u32).expect("opensm runs");
    let file = Path::new(&format!("/proc/{opensm}/cwd"))
        .read_link()
        .unwrap()
        .join("guid2lid");
    let lids = std::fs::read_to_string(&file).unwrap();
    let port = format!("0x{guid} ");
    let moved = lids.lines().map(|line| match line.starts_with(&port) {
        true => format!("{port}{lid:#06x} {lid:#06x}\n"),
        false => format!("{line}\n"),
    });
    let moved: String = moved.collect();
    assert_ne!(moved.trim_end(), lids.trim_end(), "no {guid}");
    std::fs::write(file, moved).unwrap();
    signal(opensm, Signal::KILL);
}

/// An OpenSM. Dropping it ends it.
pub(crate) struct Manager {
    diag: Background,
    opensm: i32,
    place: TempDir,
}

impl Manager {
    pub(crate) fn start(subnet: &Subnet, node: &str, priority: u8) -> Manager {
        let place = tempfile::tempdir().unwrap();
        let config = format!(
            "sm_priority {priority}\nsminfo_polling_timeout 500\npolling_retry_number 4\nforce_log_flush TRUE\nlog_flags 0x03\n"
        );
        std::fs::write(place.path().join("conf"), config).unwrap();
        let mut command = Command::new(IPOIB);
        command
            .args(["diag", "--on", node, "--fabric"])
            .arg(format!("fabric@{}", subnet.port()))
            .args(["opensm", "-F", "conf", "-f", "log"])
            .current_dir(place.path())
            .env("OSM_CACHE_DIR", place.path())
            .env("OSM_TMP_DIR", place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let diag = Background(command.spawn().unwrap());
        let opensm = wait_until("opensm starts", || child_of(diag.0.id()), Option::is_some);
        Manager {
            opensm: opensm.unwrap(),
            diag,
            place,
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.place.path().join("log")).unwrap_or_default()
    }

    /// Until its log has these words so many times.
    #[track_caller]
    fn wait_says(&self, words: &str, times: usize) {
        wait_until(
            &format!("opensm says {words:?}, {times} times"),
            || self.log(),
            |log| log.matches(words).count() >= times,
        );
    }

    /// Until it is master and the subnet up.
    #[track_caller]
    pub(crate) fn wait_master(&self) {
        self.wait_says("Entering MASTER state", 1);
        self.wait_says("SUBNET UP", 1);
    }

    #[track_caller]
    pub(crate) fn wait_standby(&self) {
        self.wait_says("Entering STANDBY state", 1);
    }

    /// Having been master in between.
    #[track_caller]
    pub(crate) fn wait_standby_again(&self) {
        self.wait_says("Entering STANDBY state", 2);
    }

    /// Without a word.
    pub(crate) fn kill(&mut self) {
        signal(self.opensm, Signal::KILL);
        wait_until(
            "diag ends with opensm",
            || self.diag.0.try_wait().unwrap(),
            Option::is_some,
        );
    }

    #[track_caller]
    pub(crate) fn no_errors(&self) {
        let log = self.log();
        // 1B10: a send-only join does not create a group. Hosts ask for the group of all routers that way, and nobody is in it.
        // IB_TIMEOUT: whom it asked or told has just been killed, or was not master any more.
        let expected = |line: &str| line.contains("ERR 1B10") || line.contains("IB_TIMEOUT");
        let error = |line: &&str| line.contains("ERR ") && !expected(line);
        assert_eq!(log.lines().find(error), None, "{log}");
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("opensm:\n{}", self.log());
        }
        // The program passes it on; it has ended already where the test killed OpenSM.
        if let Ok(None) = self.diag.0.try_wait() {
            signal(self.diag.0.id() as i32, Signal::TERM);
            wait_until("opensm ends", || runs(self.opensm), |runs| !runs);
        }
    }
}
