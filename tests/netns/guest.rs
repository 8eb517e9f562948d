//! A guest whose kernel's own ib_ipoib hangs on the fabric of a test: `../shared/kernel-peer`.

use crate::subnet::wait_until;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Under emulation on a busy machine everything takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

/// A booted guest, and a shell in it. Dropping it ends the guest.
pub(crate) struct Guest {
    child: Child,
    shell: BufReader<TcpStream>,
    place: TempDir,
    commands: u32,
}

/// The folder of the peer, where these tests can run. Says why not.
pub(crate) fn possible() -> Option<PathBuf> {
    let peer = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../shared/kernel-peer"
    ));
    let missing = ["qemu-system-x86_64", "cpio", "gcc"]
        .into_iter()
        .find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(program) = missing {
        eprintln!("SKIPPED: this test needs the program {program}; tests/run.sh installs it");
        None
    } else if !peer.join("run-guest.sh").exists() {
        eprintln!("SKIPPED: there is no {}", peer.display());
        None
    } else {
        Some(peer)
    }
}

impl Guest {
    /// Boots a guest on the fabric at this port of the loopback. `guid` is its node GUID. It calls back by the emulator's own network, which has
    /// nothing to do with the fabric, and takes commands from there.
    pub(crate) fn boot(peer: &Path, port: &str, guid: u64) -> Guest {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = tempfile::tempdir().unwrap();
        let log = File::create(place.path().join("log")).unwrap();
        // All that the script starts dies with it: the first process of a process namespace.
        let child = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child"])
            .arg(peer.join("run-guest.sh"))
            .arg(port)
            .arg(format!(
                "nc 10.0.2.2 {} -e sh",
                listener.local_addr().unwrap().port()
            ))
            .env("GUID", format!("{guid:016x}"))
            .env("TIMEOUT", "900")
            // What the script cannot remove goes with the rest.
            .env("TMPDIR", place.path())
            .env("KLOG", place.path().join("klog"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut guest = Waiting { child, place };
        listener.set_nonblocking(true).unwrap();
        let mut call = None;
        for _ in 0..PATIENCE.as_millis() / 50 {
            match listener.accept() {
                Ok((stream, _)) => {
                    call = Some(stream);
                    break;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
            if let Ok(Some(status)) = guest.child.try_wait() {
                panic!("the guest ended: {status}\n{}", guest.said());
            }
        }
        let shell = call.unwrap_or_else(|| panic!("the guest does not call\n{}", guest.said()));
        shell.set_nonblocking(false).unwrap();
        shell.set_read_timeout(Some(PATIENCE)).unwrap();
        Guest {
            child: guest.child,
            shell: BufReader::new(shell),
            place: guest.place,
            commands: 0,
        }
    }

    /// Runs a command by the guest's shell to its end; its exit status and all that it wrote.
    #[track_caller]
    pub(crate) fn run(&mut self, command: &str) -> (i32, String) {
        self.commands += 1;
        let mark = format!("end-of-command-{}", self.commands);
        // What is written may not end with a line feed.
        let line = format!("{{ {command}\n}} 2>&1; echo; echo {mark} $?\n");
        // The status is that of the command, not of the first echo.
        let line = line
            .replace("; echo; echo", "; rc=$?; echo; echo")
            .replace("$?\n", "$rc\n");
        self.shell.get_mut().write_all(line.as_bytes()).unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            match self.shell.read_line(&mut line) {
                Ok(n) if n > 0 => {}
                other => panic!("{command}: {other:?} after {said}\n{}", self.kernel_log()),
            }
            if let Some(status) = line.strip_prefix(&mark) {
                return (status.trim().parse().unwrap(), said.trim_end().to_owned());
            }
            said += &line;
        }
    }

    /// The command must succeed.
    #[track_caller]
    pub(crate) fn succeed(&mut self, command: &str) -> String {
        let (status, said) = self.run(command);
        assert_eq!(status, 0, "{command}:\n{said}\n{}", self.kernel_log());
        said
    }

    /// Asks until the command succeeds.
    #[track_caller]
    pub(crate) fn wait_succeeds(&mut self, command: &str) -> String {
        wait_until(command, || self.run(command), |(status, _)| *status == 0).1
    }

    /// One echo, until it is answered.
    #[track_caller]
    pub(crate) fn wait_reaches(&mut self, address: &str) {
        self.wait_succeeds(&format!("ping -c 1 -W 1 {address}"));
    }

    fn kernel_log(&self) -> String {
        let log = std::fs::read_to_string(self.place.path().join("klog")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Ends at once, as by a power failure.
    pub(crate) fn kill(&mut self) {
        end(&mut self.child);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A guest that has not called yet.
struct Waiting {
    child: Child,
    place: TempDir,
}

impl Waiting {
    fn said(&mut self) -> String {
        end(&mut self.child);
        let read = |name| std::fs::read_to_string(self.place.path().join(name)).unwrap_or_default();
        read("log") + &read("klog")
    }
}

/// At once, with the emulator.
fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}
