//! The way to one peer, as the data path sees it.

use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use verbs::ConnectedQueuePair;
use wire::{Gid, Qpn};

/// GID and UD queue pair: a link address without its flags.
pub(crate) type PeerKey = (Gid, Qpn);

/// How IP packets to a peer go now.
pub(crate) enum Way {
    /// All by datagrams.
    Datagram,
    /// A connection may be had: what does not fit into a datagram waits for it.
    Waiting,
    /// By this connection.
    Connected {
        qp: Arc<dyn ConnectedQueuePair>,
        /// Largest IP packet, bytes.
        mtu: usize,
    },
}

/// Set by control, read by the data path. All addresses of a peer share it.
pub(crate) struct Lane {
    pub(crate) peer: PeerKey,
    way: ArcSwap<Way>,
    /// Control wants to hear of the next use.
    ask: AtomicBool,
}

impl Lane {
    pub(super) fn new(peer: PeerKey, way: Way, ask: bool) -> Arc<Self> {
        Arc::new(Lane {
            peer,
            way: ArcSwap::from_pointee(way),
            ask: AtomicBool::new(ask),
        })
    }

    pub(crate) fn way(&self) -> Guard<Arc<Way>> {
        self.way.load()
    }

    pub(super) fn set(&self, way: Way, ask: bool) {
        self.way.store(Arc::new(way));
        self.ask.store(ask, Relaxed);
    }

    /// True once after each time that control asked for it.
    pub(crate) fn first_use(&self) -> bool {
        self.ask.load(Relaxed) && self.ask.swap(false, Relaxed)
    }

    /// The report of a use was lost: with the next one, then.
    pub(crate) fn ask_again(&self) {
        self.ask.store(true, Relaxed);
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
