//! A TUN device of the kernel, in plain mode: no packet information, no virtio header.
//!
//! The device lives as long as this value (it is not persistent), in the network namespace in which
//! it was opened, whichever namespace its users are in.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{AtomicCounters, Netdev, NetdevCounters, NetdevError, PacketBatch};
use crate::host::{HostError, NetnsRef, run_in};

/// A device name has at most this many bytes (Linux `IFNAMSIZ` less the terminating zero).
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

const TUN_PATH: &str = "/dev/net/tun";

/// Why there is no TUN device.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The name is longer than the kernel takes.
    #[error("interface name {0:?} is too long: at most {NAME_MAX} bytes")]
    NameTooLong(String),
    /// The name is none for a network device.
    #[error("interface name {0:?} is not valid: no '/', ':', '%' or blanks, and not '.' or '..'")]
    NameInvalid(String),
    /// Another device, or another process, has the name.
    #[error(
        "interface name {0:?} is in use: choose another, or delete it with `ip link delete {0}`"
    )]
    NameInUse(String),
    /// No TUN driver.
    #[error("{TUN_PATH} does not exist: load the module `tun`, or give the container the device")]
    NoDriver,
    /// The file may not be opened.
    #[error("no permission to open {TUN_PATH}: run as root, or give the user the device")]
    OpenRefused,
    /// The device may not be made.
    #[error("no permission to create {0:?}: CAP_NET_ADMIN in its network namespace is needed")]
    CreateRefused(String),
    /// The network namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] HostError),
    /// Anything else.
    #[error("cannot create {0:?}: {1}")]
    Io(String, io::Error),
}

/// An open TUN device.
pub struct Tun {
    iface: tun_tap::Iface,
    name: String,
    wake: OwnedFd,
    woken: AtomicBool,
    counters: AtomicCounters,
}

/// Creates the TUN device `name`, without carrier, in `netns` or in the caller's network namespace.
///
/// # Errors
/// See [`TunError`].
pub fn open_in(netns: Option<&NetnsRef>, name: &str) -> Result<Tun, TunError> {
    run_in(netns, || open(name))?
}

/// Creates the TUN device `name`, without carrier, in the caller's network namespace.
///
/// # Errors
/// See [`TunError`].
pub fn open(name: &str) -> Result<Tun, TunError> {
    check_name(name)?;
    // Opened once on its own, because tun-tap does not say which of its two steps failed.
    match OpenOptions::new().read(true).write(true).open(TUN_PATH) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::PermissionDenied => return Err(TunError::OpenRefused),
        // ENODEV, ENXIO: the node is there, the driver is not.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)
            ) =>
        {
            return Err(TunError::NoDriver);
        }
        Err(e) => return Err(TunError::Io(name.to_owned(), e)),
    }
    let failed = |e: io::Error| match e.raw_os_error() {
        Some(libc::EPERM) => TunError::CreateRefused(name.to_owned()),
        // EINVAL: a device of another kind has the name (tun_set_iff).
        Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => TunError::NameInUse(name.to_owned()),
        _ => TunError::Io(name.to_owned(), e),
    };
    let iface = tun_tap::Iface::without_packet_info(name, tun_tap::Mode::Tun).map_err(failed)?;
    let prepared = sys::set_nonblocking(&iface)
        .and_then(|()| sys::set_carrier(&iface, false))
        .and_then(|()| Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
    Ok(Tun {
        name: iface.name().to_owned(),
        iface,
        wake: prepared.map_err(|e| TunError::Io(name.to_owned(), e))?,
        woken: AtomicBool::new(false),
        counters: AtomicCounters::default(),
    })
}

/// What Linux `dev_valid_name` says; `%` too, which would make the kernel choose a number.
fn check_name(name: &str) -> Result<(), TunError> {
    if name.len() > NAME_MAX {
        return Err(TunError::NameTooLong(name.to_owned()));
    }
    let bad =
        |c: char| matches!(c, '/' | ':' | '%' | '\0') || c.is_ascii_whitespace() || c == '\x0b';
    if name.is_empty() || name == "." || name == ".." || name.contains(bad) {
        return Err(TunError::NameInvalid(name.to_owned()));
    }
    Ok(())
}

impl Tun {
    fn drain_wake(&self) {
        // EAGAIN: the waker has set the flag but not yet written; the next read then ends early
        // once more with nothing, which is harmless.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Waits until the device or the wake-up descriptor is readable.
    fn wait(&self) -> Result<(), NetdevError> {
        let tun = sys::borrow(&self.iface);
        let mut fds = [
            PollFd::new(&tun, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) if fds[1].revents().contains(PollFlags::IN) => {
                self.woken.store(true, Ordering::Release);
                Ok(())
            }
            // POLLERR is a deleted device (tun_chr_poll): the next read says so by its own error.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(NetdevError::Io(e.into())),
        }
    }
}

impl Netdev for Tun {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_batch(&self, batch: &mut PacketBatch) -> Result<usize, NetdevError> {
        loop {
            batch.clear();
            if self.woken.swap(false, Ordering::AcqRel) {
                self.drain_wake();
                return Ok(0);
            }
            let mut error = None;
            while error.is_none() {
                match batch.push_with(|buffer| self.iface.recv(buffer)) {
                    Some(Ok(())) => {}
                    Some(Err(e)) => error = Some(e),
                    None => break,
                }
            }
            self.counters.read(batch);
            if !batch.is_empty() {
                return Ok(batch.len());
            }
            match error {
                Some(e) if e.kind() == ErrorKind::WouldBlock => self.wait()?,
                Some(e) if e.kind() == ErrorKind::Interrupted => {}
                Some(e) => return Err(read_error(e)),
                None => {}
            }
        }
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        // EAGAIN: the counter is at its limit, so the reader is being woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn write(&self, packet: &[u8]) -> Result<(), NetdevError> {
        let result = match self.iface.send(packet) {
            Ok(_) => Ok(()),
            Err(e) => Err(write_error(e, packet.len())),
        };
        self.counters.wrote(&result);
        result
    }

    fn set_carrier(&self, up: bool) -> Result<(), NetdevError> {
        sys::set_carrier(&self.iface, up).map_err(read_error)
    }

    fn counters(&self) -> NetdevCounters {
        self.counters.snapshot()
    }
}

fn read_error(e: io::Error) -> NetdevError {
    match e.raw_os_error() {
        // EBADFD: the descriptor has no device any more; EFAULT: deleted while reading
        // (tun_ring_recv, RCV_SHUTDOWN).
        Some(libc::EBADFD | libc::EFAULT | libc::ENODEV | libc::EIO) => NetdevError::DeviceGone,
        _ => NetdevError::Io(e),
    }
}

fn write_error(e: io::Error, len: usize) -> NetdevError {
    match e.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => NetdevError::Full,
        // tun_get_user: the device is not IFF_UP.
        Some(libc::EIO) => NetdevError::Down,
        Some(libc::EBADFD | libc::ENODEV) => NetdevError::DeviceGone,
        // EINVAL: the first nibble is neither 4 nor 6, or nothing there.
        Some(libc::EINVAL | libc::EMSGSIZE) => NetdevError::Refused(len),
        _ => NetdevError::Io(e),
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        sys::borrow(&self.iface)
    }
}

impl std::fmt::Debug for Tun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tun")
            .field("name", &self.name)
            .field("fd", &self.iface.as_raw_fd())
            .finish_non_exhaustive()
    }
}

/// The system calls that need `unsafe`.
mod sys {
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};

    /// `TUNSETCARRIER`: `_IOW('T', 226, int)` (Linux `include/uapi/linux/if_tun.h`).
    const TUNSETCARRIER: libc::Ioctl = 0x4004_54e2;

    pub(super) fn borrow(iface: &tun_tap::Iface) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `iface` lives, and the result borrows `iface`.
        unsafe { BorrowedFd::borrow_raw(iface.as_raw_fd()) }
    }

    pub(super) fn set_nonblocking(iface: &tun_tap::Iface) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(borrow(iface), true)?)
    }

    pub(super) fn set_carrier(iface: &tun_tap::Iface, up: bool) -> io::Result<()> {
        let value = libc::c_int::from(up);
        // SAFETY: TUNSETCARRIER reads one int through the pointer, which outlives the call.
        match unsafe { libc::ioctl(iface.as_raw_fd(), TUNSETCARRIER, &raw const value) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_cuts_them() {
        assert!(check_name("ib0").is_ok());
        assert!(check_name("ib0.8001").is_ok());
        assert!(check_name("exactly15bytes_").is_ok());
        assert!(matches!(
            open("exactly16bytes__"),
            Err(TunError::NameTooLong(_))
        ));
        for bad in ["", ".", "..", "a/b", "a b", "ib%d", "a:1", "a\0"] {
            assert!(
                matches!(open(bad), Err(TunError::NameInvalid(_))),
                "{bad:?}"
            );
        }
    }
}
