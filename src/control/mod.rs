//! The control socket: how `ipoib show`, `capture` and `resolve` ask a running interface or fabric.
//!
//! A Unix stream socket with mode 0600, `NAME.sock` in a directory of the user's own. A client sends one line of JSON, a [`Request`], and gets
//! one line back: `{"ok": ...}` or `{"error": "..."}`. After the answer to [`Request::Capture`] follows a pcap stream, which ends at the count
//! asked for, when the client shuts down its sending side, or when the program ends.

mod client;
mod connect;
mod others;
mod server;
#[cfg(test)]
mod tests;

pub use client::{Answer, Instance, ask, find, nothing, open, running};
pub use others::others_in_words;
pub use server::{Handler, Server};

use crate::cli::{FaultWhat, SetWhat, ShowWhat};
use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags, fstat, open as open_file};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What may be asked: `{"show":"link"}`, `{"resolve":"10.77.0.2"}`, `{"capture":{"count":10}}`, `"captured"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// A topic of `ipoib show`.
    Show(ShowWhat),
    /// Where an IP address leads.
    Resolve(IpAddr),
    /// How programs on libumad2sim reach a fabric: [`Umad`](crate::opensm::Umad).
    Umad,
    /// A fault of a fabric.
    Fault(FaultWhat),
    /// A setting of an interface.
    Set(SetWhat),
    /// What passes the link, from now on.
    Capture {
        /// Frames after which it ends.
        count: Option<u64>,
    },
    /// How many frames the last capture wrote and lost: [`Captured`].
    Captured,
}

/// What became of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// Frames written.
    pub frames: u64,
    /// Frames lost because the client, or the file behind it, was too slow, or because they have no form on the wire.
    pub dropped: u64,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Response {
    Ok(serde_json::Value),
    Error(String),
}

/// Begins the names of fabrics; what follows is their port. Other names are those of interfaces.
pub const FABRIC_PREFIX: &str = "fabric@";

/// The control socket of `name` (`ib0`, `ib0@netns`, `fabric@PORT`), in a directory that is made if need be.
///
/// # Errors
/// A name that is no file name; a directory that is not ours alone.
pub fn socket_path(name: &str) -> anyhow::Result<PathBuf> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        bail!("{name:?} cannot be the name of a control socket; give a path: --control PATH");
    }
    let mut refused = None;
    for directory in directories() {
        match make_directory(&directory) {
            Ok(()) => return Ok(directory.join(format!("{name}.sock"))),
            // Root of a user namespace may not write to /run.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| anyhow::anyhow!("no directory for control sockets")))
        .context("there is no place for the control socket; give one: --control PATH")
}

/// Where control sockets may be, the preferred place first.
fn directories() -> Vec<PathBuf> {
    let user = geteuid();
    let mut list = Vec::new();
    if user.is_root() {
        list.push(PathBuf::from("/run/ipoib"));
    }
    // XDG base directory specification: a relative path is to be ignored.
    if let Some(path) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
        && path.is_absolute()
    {
        list.push(path.join("ipoib"));
    }
    list.push(PathBuf::from(format!("/tmp/ipoib-{}", user.as_raw())));
    list
}

fn make_directory(path: &Path) -> anyhow::Result<()> {
    let mode = if path.starts_with("/run/ipoib") {
        0o755
    } else {
        0o700
    };
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make {}", path.display()))
        }
        _ => check_directory(path),
    }
}

/// Is it a directory, not a link to one, in which nobody else can put sockets?
fn check_directory(path: &Path) -> anyhow::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stat = open_file(path, flags, Mode::empty()).and_then(fstat);
    let stat = stat.with_context(|| format!("{} is not a directory to be used", path.display()))?;
    if stat.st_uid != geteuid().as_raw() {
        bail!("{} belongs to user {}", path.display(), stat.st_uid);
    }
    if stat.st_mode & 0o022 != 0 {
        bail!("others may write to {}; chmod 700 it", path.display());
    }
    Ok(())
}
