//! OpenSM as a child of the fabric: started, listened to, started again when it dies.

use super::config;
use super::find::{LIBRARY_PACKAGE, library, preload, program};
use anyhow::Context;
use crossbeam_channel::{Receiver, Sender, bounded};
use fabric::sm::SmConfig;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wire::{Guid, Lid};

/// Before it is started again; doubles each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Having run for so long it counts as healthy.
const HEALTHY: Duration = Duration::from_secs(60);
/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A supervised OpenSM. Dropping it ends it.
pub struct OpenSm {
    lids: PathBuf,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Supervisor {
    program: PathBuf,
    library: PathBuf,
    base: String,
    node: String,
    place: TempDir,
    stop: Receiver<()>,
}

impl OpenSm {
    /// Starts OpenSM at a node of the fabric whose umad server has this base name.
    ///
    /// # Errors
    /// It is not installed; no scratch directory to be had.
    pub fn start(base: &str, node: &str, sm: &SmConfig) -> anyhow::Result<OpenSm> {
        let program = program("opensm")
            .context("opensm is not installed: apt-get install opensm (Debian package opensm)")?;
        let library = library().with_context(|| {
            format!("libumad2sim.so is not installed: apt-get install {LIBRARY_PACKAGE} (Debian package {LIBRARY_PACKAGE})")
        })?;
        let place = tempfile::Builder::new()
            .prefix("ipoib-opensm-")
            .tempdir()
            .context("no scratch directory for opensm")?;
        config::write(place.path(), sm).context("cannot write the configuration of opensm")?;
        let lids = place.path().join(config::LIDS);
        let (stop, stopped) = bounded(0);
        let supervisor = Supervisor {
            program,
            library,
            base: base.into(),
            node: node.into(),
            place,
            stop: stopped,
        };
        let thread = std::thread::Builder::new().name("ipoib-opensm".into());
        let thread = thread.spawn(move || supervisor.run())?;
        Ok(OpenSm {
            lids,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The LIDs that it gave, as of its last sweep. None while it writes its file.
    pub fn lid_map(&self) -> Option<Vec<(Guid, Lid)>> {
        let lids = config::lids(&std::fs::read_to_string(&self.lids).ok()?);
        (!lids.is_empty()).then_some(lids)
    }
}

impl Drop for OpenSm {
    fn drop(&mut self) {
        // Disconnects the channel.
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of opensm panicked");
        }
    }
}

impl Supervisor {
    fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let started = Instant::now();
            match self.spawn() {
                Ok(mut child) => {
                    tracing::info!(pid = child.id(), node = self.node, "opensm started");
                    let output = child.stdout.take().map(|out| listen(out, log_line));
                    let errors = child.stderr.take().map(|out| {
                        listen(out, |line| {
                            tracing::warn!(target: "opensm", "{line}");
                        })
                    });
                    let (Some(output), Some(_errors)) = (output, errors) else {
                        return end(child, &self.stop);
                    };
                    crossbeam_channel::select! {
                        recv(self.stop) -> _ => return end(child, &output),
                        // Its output closed: it has ended.
                        recv(output) -> _ => {}
                    }
                    match child.wait() {
                        Ok(status) => tracing::error!(%status, "opensm ended"),
                        Err(error) => tracing::error!(%error, "opensm ended"),
                    }
                    // What libumad2sim could not remove.
                    let _ = std::fs::remove_dir_all(
                        self.place.path().join(format!("sys-{}", child.id())),
                    );
                }
                Err(error) => tracing::error!(%error, "opensm cannot be started"),
            }
            if started.elapsed() >= HEALTHY {
                pause = FIRST_PAUSE;
            }
            tracing::warn!(?pause, "opensm is started again after a pause");
            if self.stop.recv_timeout(pause) != Err(crossbeam_channel::RecvTimeoutError::Timeout) {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        let place = self.place.path();
        command
            .args(["-F", config::CONFIG, "-f", "stdout"])
            .current_dir(place)
            .env("LD_PRELOAD", preload(&self.library))
            .env("IBSIM_SOCKNAME", &self.base)
            .env("SIM_HOST", &self.node)
            .env("OSM_CACHE_DIR", place)
            .env("OSM_TMP_DIR", place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A group of its own: a terminal's ctrl-C is for this program, which then ends OpenSM in order.
        command.process_group(0);
        // SAFETY: between fork and exec it makes one system call and nothing else: no allocation, no lock.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        command.spawn()
    }
}

/// Gives each line to `log`, on a thread; the channel disconnects at the end.
fn listen(from: impl Read + Send + 'static, log: fn(&str)) -> Receiver<()> {
    let (ended, receiver) = bounded(0);
    let thread = std::thread::Builder::new().name("ipoib-opensm-log".into());
    let spawned = thread.spawn(move || {
        let _ended: Sender<()> = ended;
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            log(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for the output of opensm");
    }
    receiver
}

fn end(mut child: Child, output: &Receiver<()>) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may be about to end by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
    // Disconnects when its output closes.
    let _ = output.recv_timeout(PATIENCE);
    let _ = child.kill();
    let _ = child.wait();
}

/// `Nov 30 07:59:53 700659 [C7EBD400] 0x01 -> text`, the number being the level (`osm_log.h`).
fn log_line(line: &str) {
    let parsed = line.split_once(" -> ").and_then(|(head, text)| {
        let level = head.rsplit_once(" 0x")?.1;
        Some((u8::from_str_radix(level, 16).ok()?, text))
    });
    match parsed {
        Some((0x01, text)) if text.contains("ERR ") => tracing::error!(target: "opensm", "{text}"),
        // It tells of traps at the level of errors.
        Some((0x01, text)) => tracing::warn!(target: "opensm", "{text}"),
        Some((0x02 | 0x03 | 0x80, text)) => tracing::info!(target: "opensm", "{text}"),
        Some((_, text)) => tracing::debug!(target: "opensm", "{text}"),
        None if line.is_empty() || line.starts_with('-') => {}
        None => tracing::debug!(target: "opensm", "{line}"),
    }
}
