//! The devices an interface reads IP packets from and writes them to.
//!
//! [`tun`] is a TUN device of the kernel, [`mem`] a pair of queues inside the process, [`smol`] a
//! smoltcp device on such a pair. All are layer 3: a packet is a bare IPv4 or IPv6 packet. They
//! know nothing of InfiniBand; they only keep [`HEADROOM`] bytes free before each packet, where
//! the IPoIB encapsulation header (RFC 4391 section 6) goes without a copy.

mod batch;
pub mod mem;
pub mod smol;
pub mod tun;

pub use batch::{HEADROOM, PacketBatch, PacketBuf};

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One IP packet network device. Layer 3: packets are bare IPv4 or IPv6.
///
/// One thread reads; any thread may write, wake and set the carrier.
pub trait Netdev: Send + Sync {
    /// The name of the device, such as `ib0`.
    fn name(&self) -> &str;

    /// Replaces the content of `batch`: waits until packets can be read or [`wake`](Self::wake) was
    /// called, then reads up to `batch.capacity()` packets without blocking.
    ///
    /// Returns the number of packets, where 0 means woken: a call of `wake` goes before packets and
    /// ends the running or the next `read_batch`; now and then the one after it too, so a reader
    /// looks at its own reason to stop. A packet longer than the batch's buffers is dropped and
    /// counted ([`NetdevCounters::rx_oversize`]).
    ///
    /// # Errors
    /// [`NetdevError::DeviceGone`] when the device was deleted; [`NetdevError::Io`] otherwise.
    fn read_batch(&self, batch: &mut PacketBatch) -> Result<usize, NetdevError>;

    /// Makes a blocked reader return (shutdown).
    fn wake(&self);

    /// Writes one IP packet. Never blocks.
    ///
    /// # Errors
    /// Every error is a dropped packet, and counted: [`Full`](NetdevError::Full),
    /// [`Down`](NetdevError::Down), [`Refused`](NetdevError::Refused),
    /// [`DeviceGone`](NetdevError::DeviceGone), [`Io`](NetdevError::Io).
    fn write(&self, packet: &[u8]) -> Result<(), NetdevError>;

    /// Tells the device's host whether the link below works (the broadcast group is joined).
    ///
    /// # Errors
    /// [`NetdevError::DeviceGone`], [`NetdevError::Io`].
    fn set_carrier(&self, up: bool) -> Result<(), NetdevError>;

    /// What was read, written and dropped so far.
    fn counters(&self) -> NetdevCounters;
}

/// Why a device did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NetdevError {
    /// The device was deleted; nothing will ever come from it again.
    #[error("the network device is gone")]
    DeviceGone,
    /// The device takes no packet now; the packet is dropped.
    #[error("the network device is full")]
    Full,
    /// The administrator set the device down; the packet is dropped.
    #[error("the network device is down")]
    Down,
    /// The device says that this is no packet for it: not IP, or too long.
    #[error("the network device refused a packet of {0} bytes")]
    Refused(usize),
    /// Anything else.
    #[error("network device: {0}")]
    Io(#[from] io::Error),
}

/// What a device read, wrote and dropped. Each packet is in exactly one of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetdevCounters {
    /// Packets handed to the reader.
    pub rx_packets: u64,
    /// Dropped in reading: longer than the batch's buffers.
    pub rx_oversize: u64,
    /// Packets written.
    pub tx_packets: u64,
    /// Dropped in writing: the device was full.
    pub tx_full: u64,
    /// Dropped in writing: the device was down or gone.
    pub tx_down: u64,
    /// Dropped in writing: the device refused the packet, or another error.
    pub tx_refused: u64,
}

#[derive(Default)]
struct AtomicCounters {
    rx_packets: AtomicU64,
    rx_oversize: AtomicU64,
    tx_packets: AtomicU64,
    tx_full: AtomicU64,
    tx_down: AtomicU64,
    tx_refused: AtomicU64,
}

impl AtomicCounters {
    fn wrote(&self, result: &Result<(), NetdevError>) {
        let counter = match result {
            Ok(()) => &self.tx_packets,
            Err(NetdevError::Full) => &self.tx_full,
            Err(NetdevError::Down | NetdevError::DeviceGone) => &self.tx_down,
            Err(NetdevError::Refused(_) | NetdevError::Io(_)) => &self.tx_refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn read(&self, batch: &PacketBatch) {
        self.rx_packets.fetch_add(batch.len() as u64, Relaxed);
        self.rx_oversize.fetch_add(batch.oversize(), Relaxed);
    }

    fn snapshot(&self) -> NetdevCounters {
        NetdevCounters {
            rx_packets: self.rx_packets.load(Relaxed),
            rx_oversize: self.rx_oversize.load(Relaxed),
            tx_packets: self.tx_packets.load(Relaxed),
            tx_full: self.tx_full.load(Relaxed),
            tx_down: self.tx_down.load(Relaxed),
            tx_refused: self.tx_refused.load(Relaxed),
        }
    }
}
