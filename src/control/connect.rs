//! Connecting to a control socket. A program that is stopped, or whose clients are too many, takes nobody: without a limit one would wait for ever.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Connects within this time, which also bounds each write and read from then on.
///
/// # Errors
/// [`ErrorKind::WouldBlock`]: it takes nobody.
pub(super) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    for of in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, of, Some(patience))?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Does a program listen there? Does not wait for it.
///
/// # Errors
/// Those of connect(2): [`ErrorKind::ConnectionRefused`] where a program has died, [`ErrorKind::PermissionDenied`].
pub(super) fn listens(path: &Path) -> io::Result<()> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
    match connected.map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        connected => connected,
    }
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}
