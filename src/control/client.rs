//! The side of `ipoib show`, `capture` and `resolve`.

use super::connect::{connect, listens};
use super::{FABRIC_PREFIX, Request, Response, check_directory, directories, others_in_words};
use crate::cli::{ShowWhat, Target};
use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the answer may take. A resolution waits for ARP and the subnet administration.
const PATIENCE: Duration = Duration::from_secs(15);
/// No answer is as long.
const MAX_ANSWER: u64 = 64 << 20;

/// A running interface or fabric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// `ib0`, `ib0@netns`, `fabric@PORT`; or what --control gave.
    pub name: String,
    /// Its control socket.
    pub path: PathBuf,
}

impl Instance {
    /// Is it a fabric, not an interface?
    pub fn is_fabric(&self) -> bool {
        self.name.starts_with(FABRIC_PREFIX)
    }

    pub(super) fn of(path: &Path) -> Self {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        Instance {
            name: name.to_string_lossy().into_owned(),
            path: path.to_owned(),
        }
    }
}

/// What an [`Instance`] answered, and the stream that follows the answer.
pub struct Answer {
    /// What it said.
    pub value: Value,
    /// What follows.
    pub stream: BufReader<UnixStream>,
}

/// All that run and are this user's, by name.
pub fn running() -> Vec<Instance> {
    running_in(&directories())
}

pub(super) fn running_in(directories: &[PathBuf]) -> Vec<Instance> {
    let ours = directories
        .iter()
        .filter(|directory| check_directory(directory).is_ok());
    let entries = ours
        .filter_map(|directory| std::fs::read_dir(directory).ok())
        .flatten()
        .flatten();
    let paths = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "sock"));
    // The sockets of programs that died refuse.
    let mut list: Vec<_> = paths
        .filter(|path| listens(path).is_ok())
        .map(|path| Instance::of(&path))
        .collect();
    list.sort();
    list
}

/// What to say where nothing runs that this user could ask.
pub fn nothing() -> String {
    let whose = match rustix::process::geteuid() {
        root if root.is_root() => String::new(),
        user => format!(" as user {}", user.as_raw()),
    };
    format!(
        "nothing runs here{whose}; start a fabric with `ipoib fabric`, an interface with `ipoib up`"
    )
}

/// The instance that `target` names, or the only one that `what` can be asked (`None`: anything).
///
/// # Errors
/// There is none, or there are several.
pub fn find(target: &Target, what: Option<ShowWhat>) -> anyhow::Result<Instance> {
    match (&target.control, &target.on) {
        (Some(_), Some(_)) => bail!("say whom to ask by --on or by --control, not by both"),
        (Some(path), None) => Ok(Instance::of(path)),
        (None, on) => choose(running(), on.as_deref(), what, others_in_words),
    }
}

pub(super) fn choose(
    all: Vec<Instance>,
    on: Option<&str>,
    what: Option<ShowWhat>,
    others: impl FnOnce() -> String,
) -> anyhow::Result<Instance> {
    let names = |list: &[Instance]| {
        list.iter()
            .map(|i| i.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    if all.is_empty() {
        bail!("{}{}", nothing(), others());
    }
    let (matching, kind): (Vec<Instance>, _) = match (on, what) {
        (Some(name), _) => (
            all.iter().filter(|i| i.name == name).cloned().collect(),
            name,
        ),
        (None, Some(ShowWhat::Fabric)) => (
            all.iter().filter(|i| i.is_fabric()).cloned().collect(),
            "fabric",
        ),
        (None, Some(ShowWhat::Stats) | None) => (all.clone(), ""),
        (None, Some(_)) => (
            all.iter().filter(|i| !i.is_fabric()).cloned().collect(),
            "interface",
        ),
    };
    match matching.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "no {kind} runs here; what runs: {}{}",
            names(&all),
            others()
        ),
        several => bail!("several run here; choose one with --on: {}", names(several)),
    }
}

/// Asks, and takes the answer.
///
/// # Errors
/// It is not there or does not answer; or what it said is wrong.
pub fn ask(instance: &Instance, request: &Request) -> anyhow::Result<Value> {
    open(instance, request).map(|answer| answer.value)
}

/// As [`ask`], and keeps the connection.
///
/// # Errors
/// As those of [`ask`].
pub fn open(instance: &Instance, request: &Request) -> anyhow::Result<Answer> {
    let Instance { name, path } = instance;
    let mut stream = connect(path, PATIENCE).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("{name} does not run: there is no {}", path.display()),
        ErrorKind::ConnectionRefused => anyhow!(
            "{name} does not run any more; it left {} behind",
            path.display()
        ),
        ErrorKind::PermissionDenied => {
            anyhow!("{} belongs to another user: {error}", path.display())
        }
        ErrorKind::WouldBlock => anyhow!("{name} does not answer"),
        _ => anyhow!("cannot connect to {}: {error}", path.display()),
    })?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    // One that has no room for another client says so at once and closes.
    let sent = stream.write_all(&line);
    let mut stream = BufReader::new(stream);
    let mut answer = Vec::new();
    let received = stream
        .by_ref()
        .take(MAX_ANSWER)
        .read_until(b'\n', &mut answer);
    match received {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            bail!("{name} does not answer")
        }
        Err(error) => return Err(error).with_context(|| format!("{name} went away")),
        Ok(0) => {
            sent.with_context(|| format!("{name} went away"))?;
            bail!("{name} closed the connection without an answer")
        }
        Ok(_) => {}
    }
    match serde_json::from_slice(&answer)
        .with_context(|| format!("{name} answered something else than JSON"))?
    {
        Response::Ok(value) => Ok(Answer { value, stream }),
        Response::Error(error) => bail!("{name}: {error}"),
    }
}
