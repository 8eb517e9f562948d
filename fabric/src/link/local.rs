//! A link inside one process: what one side transmits, the other side's port receives on the same thread.

use super::{Link, LinkSink};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use wire::mad::PortState;
use wire::packet::Packet;

/// What both ends share.
struct Wire {
    /// Packets pass: it is joined, and neither end is taken down.
    carries: AtomicBool,
    /// Packets that were sent while the cable was cut.
    lost: AtomicU64,
    /// The ports. Weak: a node owns its links, never its neighbours.
    ports: [Weak<dyn LinkSink>; 2],
    /// Held while ports are told, so that both see the changes in one order.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    joined: bool,
    disabled: [bool; 2],
}

impl Wire {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let up = state.joined && state.disabled == [false; 2];
        if self.carries.swap(up, Ordering::AcqRel) != up {
            for port in self.ports.iter().filter_map(Weak::upgrade) {
                port.link_changed(up);
            }
        }
    }
}

/// One end: what a port transmits into.
struct LocalLink {
    wire: Arc<Wire>,
    /// Index of this end.
    side: usize,
}

impl LocalLink {
    /// The other side's port, if it can be reached.
    fn peer(&self, packets: usize) -> Option<Arc<dyn LinkSink>> {
        let wire = &self.wire;
        let carries = wire.carries.load(Ordering::Acquire);
        let peer = carries.then(|| wire.ports[1 - self.side].upgrade());
        if peer.as_ref().is_none_or(Option::is_none) {
            wire.lost.fetch_add(packets as u64, Ordering::Relaxed);
        }
        peer.flatten()
    }
}

impl Link for LocalLink {
    fn transmit(&self, packets: &[Packet<'_>]) {
        if let Some(peer) = self.peer(packets.len()) {
            peer.receive(packets);
        }
    }

    /// The other side is not told: in one process a port learns of its neighbour's state from the subnet manager alone.
    fn port_state(&self, _state: PortState) {}

    fn enable(&self, up: bool) {
        self.wire.change(|state| state.disabled[self.side] = !up);
    }

    /// No CRC is looked at in one process: the receiver is told what it would find.
    fn transmit_broken(&self, _packet: &Packet<'_>) {
        if let Some(peer) = self.peer(1) {
            peer.receive_errors(1);
        }
    }
}

/// The cable between two ports. Dropping it leaves the link as it is.
pub struct LocalCable {
    wire: Arc<Wire>,
}

impl LocalCable {
    /// A cable that is still cut: attach [`LocalCable::end`] 0 to the port `a` and end 1 to `b`, then [`LocalCable::join`].
    pub fn new(a: &Arc<dyn LinkSink>, b: &Arc<dyn LinkSink>) -> LocalCable {
        LocalCable {
            wire: Arc::new(Wire {
                carries: AtomicBool::new(false),
                lost: AtomicU64::new(0),
                ports: [a, b].map(Arc::downgrade),
                state: Mutex::default(),
            }),
        }
    }

    /// The link that side `index` (0 or 1) sends into.
    pub fn end(&self, index: usize) -> Arc<dyn Link> {
        Arc::new(LocalLink {
            wire: self.wire.clone(),
            side: index & 1,
        })
    }

    /// Takes the link down: both ports are told, packets are lost from now on.
    pub fn cut(&self) {
        self.wire.change(|state| state.joined = false);
    }

    /// Takes the link up; both ports are told.
    pub fn join(&self) {
        self.wire.change(|state| state.joined = true);
    }

    /// Packets lost because the cable was cut or a node was gone.
    pub fn lost(&self) -> u64 {
        self.wire.lost.load(Ordering::Relaxed)
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
