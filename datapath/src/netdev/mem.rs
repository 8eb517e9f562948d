//! An in-memory network device: two bounded queues between an interface and whatever plays its host.
//!
//! One end, [`MemNetdev`], is the interface's [`Netdev`]. The other, [`MemPeer`], stands where the
//! kernel's IP stack stands for a TUN device: tests, smoltcp ([`super::smol`]), `ipoib ping`. Both
//! ends work from threads that wait, and from one thread that only pushes and pops (a simulation in
//! virtual time uses [`MemNetdev::try_read_batch`]). Buffers go round: nothing is allocated for a
//! packet once the queues have seen their longest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, TrySendError, bounded};
use parking_lot::Mutex;

use super::{AtomicCounters, Netdev, NetdevCounters, NetdevError, PacketBatch};

/// One direction: packets, and the emptied buffers on their way back.
struct QueueTx {
    full: Sender<Vec<u8>>,
    free: Receiver<Vec<u8>>,
}

struct QueueRx {
    full: Receiver<Vec<u8>>,
    free: Sender<Vec<u8>>,
}

fn queue(capacity: usize) -> (QueueTx, QueueRx) {
    let (full_tx, full_rx) = bounded(capacity.max(1));
    // One more than the queue holds: a reader may hold a buffer while the queue is full.
    let (free_tx, free_rx) = bounded(capacity.max(1) + 1);
    (
        QueueTx {
            full: full_tx,
            free: free_rx,
        },
        QueueRx {
            full: full_rx,
            free: free_tx,
        },
    )
}

impl QueueTx {
    fn push_with<R>(
        &self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> (R, Result<(), NetdevError>) {
        let mut buffer = self.free.try_recv().unwrap_or_default();
        buffer.clear();
        buffer.resize(len, 0);
        let value = fill(&mut buffer);
        let result = self.full.try_send(buffer).map_err(|error| match error {
            TrySendError::Full(_) => NetdevError::Full,
            TrySendError::Disconnected(_) => NetdevError::DeviceGone,
        });
        (value, result)
    }

    fn push(&self, packet: &[u8]) -> Result<(), NetdevError> {
        self.push_with(packet.len(), |buffer| buffer.copy_from_slice(packet))
            .1
    }
}

impl QueueRx {
    fn recycle(&self, buffer: Vec<u8>) {
        // Full or the other end gone: the buffer is simply freed.
        let _ = self.free.try_send(buffer);
    }
}

/// What both ends look at.
#[derive(Default)]
struct Shared {
    carrier: AtomicBool,
    on_ready: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

/// Makes a device named `name` whose queues hold `capacity` packets in each direction.
pub fn pair(name: &str, capacity: usize) -> (MemNetdev, MemPeer) {
    let (to_peer, from_netdev) = queue(capacity);
    let (to_netdev, from_peer) = queue(capacity);
    let (wake_tx, wake_rx) = bounded(1);
    let shared = Arc::new(Shared::default());
    let netdev = MemNetdev {
        name: name.to_owned(),
        tx: to_peer,
        rx: from_peer,
        wake_tx,
        wake_rx,
        shared: Arc::clone(&shared),
        counters: AtomicCounters::default(),
    };
    let peer = MemPeer {
        tx: to_netdev,
        rx: from_netdev,
        shared,
        dropped: AtomicU64::new(0),
    };
    (netdev, peer)
}

/// The interface's end.
pub struct MemNetdev {
    name: String,
    tx: QueueTx,
    rx: QueueRx,
    wake_tx: Sender<()>,
    wake_rx: Receiver<()>,
    shared: Arc<Shared>,
    counters: AtomicCounters,
}

impl MemNetdev {
    /// [`Netdev::read_batch`] without waiting: 0 means that there was nothing.
    ///
    /// # Errors
    /// [`NetdevError::DeviceGone`] when the peer is gone and all its packets have been read.
    pub fn try_read_batch(&self, batch: &mut PacketBatch) -> Result<usize, NetdevError> {
        batch.clear();
        let mut gone = false;
        while !batch.is_full() {
            match self.rx.full.try_recv() {
                Ok(packet) => {
                    batch.push(&packet);
                    self.rx.recycle(packet);
                }
                Err(error) => {
                    gone = error == TryRecvError::Disconnected;
                    break;
                }
            }
        }
        self.counters.read(batch);
        if gone && batch.is_empty() {
            return Err(NetdevError::DeviceGone);
        }
        Ok(batch.len())
    }
}

impl Netdev for MemNetdev {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_batch(&self, batch: &mut PacketBatch) -> Result<usize, NetdevError> {
        loop {
            if self.wake_rx.try_recv().is_ok() {
                batch.clear();
                return Ok(0);
            }
            let count = self.try_read_batch(batch)?;
            if count > 0 {
                return Ok(count);
            }
            let mut select = Select::new();
            select.recv(&self.rx.full);
            select.recv(&self.wake_rx);
            select.ready();
        }
    }

    fn wake(&self) {
        // Full: it is being woken already.
        let _ = self.wake_tx.try_send(());
    }

    fn write(&self, packet: &[u8]) -> Result<(), NetdevError> {
        let result = self.tx.push(packet);
        self.counters.wrote(&result);
        if result.is_ok() {
            // Called without the lock: it may end in another write to this device.
            let on_ready = self.shared.on_ready.lock().clone();
            if let Some(on_ready) = on_ready {
                on_ready();
            }
        }
        result
    }

    fn set_carrier(&self, up: bool) -> Result<(), NetdevError> {
        self.shared.carrier.store(up, Ordering::Release);
        Ok(())
    }

    fn counters(&self) -> NetdevCounters {
        self.counters.snapshot()
    }
}

/// The end where the device's host stands. Dropping it deletes the device.
pub struct MemPeer {
    tx: QueueTx,
    rx: QueueRx,
    shared: Arc<Shared>,
    dropped: AtomicU64,
}

impl MemPeer {
    /// Gives the interface a packet to transmit. Never blocks.
    ///
    /// # Errors
    /// [`NetdevError::Full`] (the packet is dropped and counted), [`NetdevError::DeviceGone`].
    pub fn send(&self, packet: &[u8]) -> Result<(), NetdevError> {
        self.count(self.tx.push(packet))
    }

    /// Like [`send`](Self::send), but `fill` writes the `len` bytes in place; its value is returned
    /// even where the packet was dropped.
    pub fn send_with<R>(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let (value, result) = self.tx.push_with(len, fill);
        // A drop, and counted; the caller promised bytes and cannot do anything about it.
        let _ = self.count(result);
        value
    }

    fn count(&self, result: Result<(), NetdevError>) -> Result<(), NetdevError> {
        if result.is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Takes the next packet the interface received, if there is one.
    pub fn try_recv(&self) -> Option<Vec<u8>> {
        self.rx.full.try_recv().ok()
    }

    /// Gives an emptied buffer back for reuse.
    pub fn recycle(&self, buffer: Vec<u8>) {
        self.rx.recycle(buffer);
    }

    /// Waits until a packet can be received, for `timeout` at most. True also when the interface is
    /// gone, because waiting longer is of no use.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut select = Select::new();
        select.recv(&self.rx.full);
        select.ready_timeout(timeout).is_ok()
    }

    /// Calls `callback` after each packet the interface has written, on the thread that wrote it.
    pub fn on_ready(&self, callback: impl Fn() + Send + Sync + 'static) {
        *self.shared.on_ready.lock() = Some(Arc::new(callback));
    }

    /// What the interface said last by [`Netdev::set_carrier`]; false before.
    pub fn carrier(&self) -> bool {
        self.shared.carrier.load(Ordering::Acquire)
    }

    /// Packets that [`send`](Self::send) dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_pass_both_ways_in_order() {
        let (netdev, peer) = pair("mem0", 4);
        peer.send(b"one").unwrap();
        peer.send(b"two").unwrap();
        let mut batch = PacketBatch::new(8, 100);
        assert_eq!(netdev.read_batch(&mut batch).unwrap(), 2);
        assert_eq!(batch.iter().collect::<Vec<_>>(), [b"one", b"two"]);
        netdev.write(b"three").unwrap();
        assert!(peer.wait(Duration::ZERO));
        assert_eq!(peer.try_recv().unwrap(), b"three");
        assert!(peer.try_recv().is_none());
        assert!(!peer.wait(Duration::ZERO));
    }

    #[test]
    fn full_queues_drop_and_count() {
        let (netdev, peer) = pair("mem0", 2);
        for _ in 0..3 {
            let _ = netdev.write(b"x");
            let _ = peer.send(b"y");
        }
        assert!(matches!(netdev.write(b"x"), Err(NetdevError::Full)));
        assert_eq!(peer.dropped(), 1);
        let counters = netdev.counters();
        assert_eq!((counters.tx_packets, counters.tx_full), (2, 2));
        let mut batch = PacketBatch::new(1, 10);
        assert_eq!(netdev.try_read_batch(&mut batch).unwrap(), 1);
        assert_eq!(netdev.try_read_batch(&mut batch).unwrap(), 1);
        assert_eq!(netdev.try_read_batch(&mut batch).unwrap(), 0);
        assert!(batch.is_empty());
    }

    #[test]
    fn oversize_is_counted_and_the_rest_read() {
        let (netdev, peer) = pair("mem0", 4);
        peer.send(&[1; 11]).unwrap();
        peer.send(&[2; 10]).unwrap();
        let mut batch = PacketBatch::new(4, 10);
        assert_eq!(netdev.read_batch(&mut batch).unwrap(), 1);
        assert_eq!(batch.get(0), Some(&[2; 10][..]));
        assert_eq!(netdev.counters().rx_oversize, 1);
    }

    #[test]
    fn wake_goes_before_packets_and_ends_a_blocked_read() {
        let (netdev, peer) = pair("mem0", 4);
        let mut batch = PacketBatch::new(4, 10);
        netdev.wake();
        netdev.wake();
        peer.send(b"a").unwrap();
        assert_eq!(netdev.read_batch(&mut batch).unwrap(), 0);
        assert_eq!(netdev.read_batch(&mut batch).unwrap(), 1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| netdev.read_batch(&mut PacketBatch::new(1, 1)));
            netdev.wake();
            assert_eq!(reader.join().unwrap().unwrap(), 0);
        });
    }

    #[test]
    fn a_dropped_peer_is_a_gone_device_after_its_last_packet() {
        let (netdev, peer) = pair("mem0", 4);
        peer.send(b"last").unwrap();
        drop(peer);
        let mut batch = PacketBatch::new(4, 10);
        assert_eq!(netdev.read_batch(&mut batch).unwrap(), 1);
        assert!(matches!(
            netdev.read_batch(&mut batch),
            Err(NetdevError::DeviceGone)
        ));
        assert!(matches!(netdev.write(b"x"), Err(NetdevError::DeviceGone)));
        assert_eq!(netdev.counters().tx_down, 1);
    }

    #[test]
    fn readiness_callback_and_carrier() {
        let (netdev, peer) = pair("mem0", 1);
        let (tx, rx) = crossbeam_channel::unbounded();
        peer.on_ready(move || tx.send(()).unwrap());
        assert!(!peer.carrier());
        netdev.set_carrier(true).unwrap();
        assert!(peer.carrier());
        netdev.write(b"a").unwrap();
        assert!(netdev.write(b"b").is_err());
        assert_eq!(rx.len(), 1);
    }

    #[test]
    fn buffers_are_used_again() {
        let (netdev, peer) = pair("mem0", 1);
        let mut batch = PacketBatch::new(1, 100);
        peer.send(&[1; 100]).unwrap();
        netdev.try_read_batch(&mut batch).unwrap();
        assert_eq!(peer.tx.free.len(), 1);
        peer.send(b"short").unwrap();
        assert_eq!(peer.tx.free.len(), 0);
        netdev.try_read_batch(&mut batch).unwrap();
        assert_eq!(batch.get(0), Some(&b"short"[..]));
    }
}
