//! Network namespaces: naming them, making them, running code in them.
//!
//! A thread, not the process, is in a network namespace. Sockets and TUN devices stay in the one
//! where they were made. So code that must be elsewhere runs on a fresh thread that enters the
//! namespace and ends; no other thread ever changes its namespace.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::HostError;

/// Where `ip netns` keeps its names.
const NETNS_DIR: &str = "/run/netns";

/// The namespace of the thread that looks.
const THREAD_NETNS: &str = "/proc/thread-self/ns/net";

/// Which network namespace.
#[derive(Debug, Clone)]
pub enum NetnsRef {
    /// A name given by `ip netns add`.
    Name(String),
    /// A path to a bind-mounted namespace.
    Path(PathBuf),
    /// The namespace of a process.
    Pid(u32),
    /// One that is already open.
    Open(Netns),
}

impl NetnsRef {
    /// Opens the namespace; it lives on as long as the result does, whatever becomes of its name.
    ///
    /// # Errors
    /// [`HostError::Namespace`]: no such namespace, or no permission.
    pub fn open(&self) -> Result<Netns, HostError> {
        if let NetnsRef::Open(netns) = self {
            return Ok(netns.clone());
        }
        let file = File::open(self.path()).map_err(|cause| self.error(cause))?;
        Ok(Netns(Arc::new(file.into())))
    }

    /// The file that stands for the namespace.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            NetnsRef::Name(name) => PathBuf::from(NETNS_DIR).join(name),
            NetnsRef::Path(path) => path.clone(),
            NetnsRef::Pid(pid) => PathBuf::from(format!("/proc/{pid}/ns/net")),
            NetnsRef::Open(_) => PathBuf::new(),
        }
    }

    pub(super) fn error(&self, cause: io::Error) -> HostError {
        HostError::Namespace {
            netns: self.to_string(),
            cause,
        }
    }
}

/// A text with a slash is a path (`/proc/PID/ns/net` is that process); a number that is no name of
/// `ip netns` is a process; all else is a name.
impl FromStr for NetnsRef {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let of_process = text
            .strip_prefix("/proc/")
            .and_then(|rest| rest.strip_suffix("/ns/net"))
            .and_then(|pid| pid.parse().ok());
        if let Some(pid) = of_process {
            return Ok(NetnsRef::Pid(pid));
        }
        if text.contains('/') {
            return Ok(NetnsRef::Path(text.into()));
        }
        let name = NetnsRef::Name(text.to_owned());
        Ok(match text.parse() {
            Ok(pid) if !name.path().exists() => NetnsRef::Pid(pid),
            _ => name,
        })
    }
}

impl fmt::Display for NetnsRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetnsRef::Name(name) => write!(f, "{name:?}"),
            NetnsRef::Path(path) => write!(f, "{}", path.display()),
            NetnsRef::Pid(pid) => write!(f, "of process {pid}"),
            NetnsRef::Open(_) => f.write_str("(without a name)"),
        }
    }
}

impl From<Netns> for NetnsRef {
    fn from(netns: Netns) -> Self {
        NetnsRef::Open(netns)
    }
}

/// An open network namespace. Clones share one descriptor.
#[derive(Debug, Clone)]
pub struct Netns(Arc<OwnedFd>);

impl Netns {
    /// The calling thread's.
    ///
    /// # Errors
    /// [`HostError::Namespace`] where /proc is not mounted.
    pub fn current() -> Result<Self, HostError> {
        NetnsRef::Path(THREAD_NETNS.into()).open()
    }

    /// Makes a new namespace without a name: it is gone when the last descriptor, socket and device
    /// in it is closed.
    ///
    /// # Errors
    /// [`HostError::Namespace`]: needs CAP_SYS_ADMIN in the user namespace.
    pub fn new_anonymous() -> Result<Self, HostError> {
        on_thread(|| {
            // SAFETY: NEWNET changes only in which network namespace this thread is; the descriptor
            // table stays shared, and that is what the function's contract is about.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| HostError::Namespace {
                netns: "(a new one)".to_owned(),
                cause: e.into(),
            })?;
            Self::current()
        })
    }

    /// Runs `f` inside the namespace and returns its value: on a fresh thread that enters it, or right
    /// here where the caller is inside already, which needs no privilege.
    ///
    /// # Errors
    /// [`HostError::Namespace`]: entering needs CAP_SYS_ADMIN in the namespace's user namespace.
    ///
    /// # Panics
    /// Where `f` does.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, HostError> {
        if self.is_at(Path::new(THREAD_NETNS)) {
            return Ok(f());
        }
        on_thread(|| {
            move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|e| NetnsRef::Open(self.clone()).error(e.into()))?;
            Ok(f())
        })
    }

    /// Whether the file at `path` stands for this namespace.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let (Ok(named), Ok(ours)) = (rustix::fs::stat(path), rustix::fs::fstat(self)) else {
            return false;
        };
        (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Runs `f` in `netns` as [`Netns::run`] does, or right here without one, and returns its value.
///
/// # Errors
/// [`HostError::Namespace`]: not found, or may not be entered.
///
/// # Panics
/// Where `f` does.
pub fn run_in<T: Send>(
    netns: Option<&NetnsRef>,
    f: impl FnOnce() -> T + Send,
) -> Result<T, HostError> {
    match netns {
        None => Ok(f()),
        Some(netns) => {
            let open = netns.open()?;
            open.run(f).map_err(|error| match error {
                HostError::Namespace { cause, .. } => netns.error(cause),
                other => other,
            })
        }
    }
}

fn on_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(f).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
