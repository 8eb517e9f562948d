//! A link inside one process: what one side transmits, the other side's port receives on the same thread.

use super::{Link, LinkSink};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use wire::mad::PortState;
use wire::packet::Packet;

/// What both ends share.
#[derive(Default)]
struct Wire {
    joined: AtomicBool,
    /// Packets that were sent while the cable was cut.
    lost: AtomicU64,
}

/// One end: what a port transmits into.
pub struct LocalLink {
    wire: Arc<Wire>,
    /// The other side's port. Weak: a node owns its links, never its neighbours.
    peer: Weak<dyn LinkSink>,
}

impl Link for LocalLink {
    fn transmit(&self, packets: &[Packet<'_>]) {
        match self
            .wire
            .joined
            .load(Ordering::Acquire)
            .then(|| self.peer.upgrade())
            .flatten()
        {
            Some(peer) => peer.receive(packets),
            None => {
                self.wire
                    .lost
                    .fetch_add(packets.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// The other side is not told: in one process a port learns of its neighbour's state from the subnet manager alone.
    fn port_state(&self, _state: PortState) {}
}

/// The cable between two ports. Dropping it leaves the link as it is.
pub struct LocalCable {
    wire: Arc<Wire>,
    ends: [Arc<LocalLink>; 2],
    /// Keeps `cut` and `join` of two threads apart, so that both ports see the changes in one order.
    changing: Mutex<()>,
}

impl LocalCable {
    /// A cable that is still cut: attach [`LocalCable::end`] 0 to the port `a` and end 1 to `b`, then [`LocalCable::join`].
    pub fn new(a: &Arc<dyn LinkSink>, b: &Arc<dyn LinkSink>) -> LocalCable {
        let wire = Arc::new(Wire::default());
        let end = |peer: &Arc<dyn LinkSink>| {
            Arc::new(LocalLink {
                wire: wire.clone(),
                peer: Arc::downgrade(peer),
            })
        };
        let ends = [end(b), end(a)];
        LocalCable {
            wire,
            ends,
            changing: Mutex::new(()),
        }
    }

    /// The link that side `index` (0 or 1) sends into.
    pub fn end(&self, index: usize) -> Arc<dyn Link> {
        self.ends[index & 1].clone()
    }

    /// Takes the link down: both ports are told, packets are lost from now on.
    pub fn cut(&self) {
        self.set(false)
    }

    /// Takes the link up; both ports are told.
    pub fn join(&self) {
        self.set(true)
    }

    /// Packets lost because the cable was cut or a node was gone.
    pub fn lost(&self) -> u64 {
        self.wire.lost.load(Ordering::Relaxed)
    }

    fn set(&self, up: bool) {
        let _changing = self.changing.lock();
        if self.wire.joined.swap(up, Ordering::AcqRel) == up {
            return;
        }
        for end in &self.ends {
            if let Some(port) = end.peer.upgrade() {
                port.link_changed(up);
            }
        }
    }
}

/// Connects two ports: hands each side its link, then takes the link up.
pub fn connect(
    a: (Arc<dyn LinkSink>, impl FnOnce(Arc<dyn Link>)),
    b: (Arc<dyn LinkSink>, impl FnOnce(Arc<dyn Link>)),
) -> LocalCable {
    let cable = LocalCable::new(&a.0, &b.0);
    (a.1)(cable.end(0));
    (b.1)(cable.end(1));
    cable.join();
    cable
}
