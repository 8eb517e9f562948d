//! Programs that a test starts. Each of them ends, one way or the other.

// Not every test uses all of it.
#![allow(dead_code, clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a command may take that ends by itself.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs to the end; the command must succeed.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        words(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
pub(crate) fn run(command: &mut Command) -> Output {
    let spawned = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    finish(spawned, LIMIT, &format!("{command:?}"))
}

/// Waits for the end of a child that leads a process group. If that takes too long the group is killed, and the test fails.
#[track_caller]
pub(crate) fn finish(child: Child, limit: Duration, what: &str) -> Output {
    let group = Pid::from_child(&child);
    let (ended, end) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = end.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        // It may end just now.
        late.then(|| kill_process_group(group, Signal::KILL))
            .is_some()
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    let killed = watchdog.join().unwrap();
    assert!(!killed, "{what}: no end in {limit:?}: {}", words(&output));
    output
}

/// How a child ended; none if it takes longer than `limit`.
pub(crate) fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        let status = child.try_wait().unwrap();
        if status.is_some() || begin.elapsed() > limit {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// All that a command said.
pub(crate) fn words(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|text| String::from_utf8_lossy(text))
        .concat()
}

/// A command from words between spaces.
pub(crate) fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

/// A child that is killed if the test ends before it does, with its process group if it leads one.
pub(crate) struct Background(pub(crate) Child);

impl Background {
    /// As the leader of a process group.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Background {
        let spawned = command.process_group(0).spawn();
        Background(spawned.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Waits for its end, which must be a success. What it wrote to a pipe: no more than fits into one.
    #[track_caller]
    pub(crate) fn succeeds(mut self, what: &str) -> String {
        let status = ended(&mut self.0, LIMIT);
        let status = status.unwrap_or_else(|| panic!("{what}: no end in {LIMIT:?}"));
        assert!(status.success(), "{what}: {status}");
        let mut said = String::new();
        if let Some(mut output) = self.0.stdout.take() {
            output.read_to_string(&mut said).unwrap();
        }
        said
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended, and the test may have waited for it: then its number is nobody's, or not that of a group of ours.
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
