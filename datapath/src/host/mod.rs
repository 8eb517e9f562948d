//! What the Linux kernel knows about our network interface, asked and followed by rtnetlink.
//!
//! A TUN device shows neither which next hop the kernel chose for a packet nor which groups its
//! programs joined. [`HostLink`] sets up the interface and answers such questions once;
//! [`HostMonitor`] tells of changes. Both stay in one network namespace ([`NetnsRef`]), whichever
//! namespace their users are in. Nothing here knows InfiniBand, but for link-local addresses.

mod groups;
mod link;
mod monitor;
mod netlink;
mod netns;
mod watch;

#[cfg(test)]
mod tests;

pub use link::{HostLink, LinkState, NextHop};
pub use monitor::{HostEvent, HostMonitor};
pub use netns::{Netns, NetnsRef, run_in};

use std::io;

/// Why the kernel could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A network namespace cannot be found, entered or made.
    #[error("network namespace {netns}: {cause}{}", what_to_do(cause))]
    Namespace {
        /// Which, as the user named it.
        netns: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// No interface has that name (or index) in the namespace.
    #[error("no network interface {0:?} in this network namespace")]
    NoSuchInterface(String),
    /// The kernel refused a request.
    #[error("cannot {what}: {cause}")]
    Request {
        /// What was asked.
        what: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The kernel's answer could not be understood.
    #[error("unexpected answer of the kernel to {what}: {detail}")]
    Answer {
        /// What was asked.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },
}

impl HostError {
    /// The error number of the kernel, if it gave one.
    fn errno(&self) -> Option<i32> {
        match self {
            HostError::Namespace { cause, .. } | HostError::Request { cause, .. } => {
                cause.raw_os_error()
            }
            HostError::NoSuchInterface(_) | HostError::Answer { .. } => None,
        }
    }
}

/// Ends the message about a namespace.
fn what_to_do(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound => {
            "; `ip netns list` shows those that have names, `ip netns add NAME` makes one"
        }
        io::ErrorKind::PermissionDenied => "; run as root",
        _ => "",
    }
}
