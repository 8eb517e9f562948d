//! Noticing that a network namespace was deleted.
//!
//! Our own descriptors keep the namespace alive, so its devices never go away by themselves: only
//! the loss of its name, or the end of its process, says that nobody else uses it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::netns::{Netns, NetnsRef};

/// Readable when something happened to the namespace's name or process.
pub(super) enum NetnsWatch {
    Name { fd: OwnedFd, path: PathBuf },
    Process(OwnedFd),
}

impl NetnsWatch {
    /// To be called before the namespace is opened, so that no deletion falls between. `None` where
    /// the namespace has neither name nor process.
    pub(super) fn new(netns: &NetnsRef) -> io::Result<Option<Self>> {
        Ok(match netns {
            NetnsRef::Open(_) => None,
            NetnsRef::Pid(pid) => {
                let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
                let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
                Some(Self::Process(pidfd_open(pid, PidfdFlags::empty())?))
            }
            NetnsRef::Name(_) | NetnsRef::Path(_) => {
                let path = netns.path();
                let fd =
                    inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
                let events = inotify::WatchFlags::DELETE
                    | inotify::WatchFlags::MOVED_FROM
                    | inotify::WatchFlags::CREATE
                    | inotify::WatchFlags::MOVED_TO
                    | inotify::WatchFlags::DELETE_SELF;
                let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
                inotify::add_watch(&fd, directory.unwrap_or(".".as_ref()), events)?;
                Some(Self::Name { fd, path })
            }
        })
    }

    /// Whether the namespace is deleted; forgets what made the descriptor readable.
    pub(super) fn is_deleted(&self, netns: &Netns) -> bool {
        match self {
            // A pidfd is readable from the end of its process on.
            Self::Process(fd) => {
                let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
                let now = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
            }
            Self::Name { fd, path } => {
                let mut events = [0u8; 4096];
                while matches!(rustix::io::read(fd, &mut events), Ok(1..)) {}
                !netns.is_at(path)
            }
        }
    }
}

impl AsFd for NetnsWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Name { fd, .. } | Self::Process(fd) => fd.as_fd(),
        }
    }
}
