//! One peer that takes connections.

use super::Mode;
use super::config::Dialect;
use super::lane::{Lane, PeerKey, Way};
use arp::Path;
use mad::ConnectionId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Where the connection that this side sends by stands.
#[derive(Debug)]
pub(super) enum State {
    /// There is none; the next packet asks for one.
    Idle,
    /// Asked for, or being opened by the peer.
    Connecting(ConnectionId),
    /// In use.
    Up(ConnectionId),
    /// None could be had.
    Held {
        /// Then the next packet asks again.
        until: Instant,
        /// In words.
        why: String,
    },
}

pub(super) struct Peer {
    pub(super) path: Path,
    /// IP addresses of neighbours there.
    pub(super) users: usize,
    pub(super) lane: Arc<Lane>,
    pub(super) state: State,
    /// What waits for the connection, from the encapsulation header on.
    pub(super) queue: VecDeque<Vec<u8>>,
    /// In a row.
    pub(super) failures: u32,
    /// Why there is no connection, or was none before the next packet.
    pub(super) last_failure: Option<(Instant, String)>,
    /// Longest IP packet that it took from the last connection, bytes.
    pub(super) mtu: Option<usize>,
    /// Which service ID it is asked by.
    pub(super) dialect: Dialect,
}

impl Peer {
    pub(super) fn new(key: PeerKey, path: Path, mode: Mode) -> Self {
        let (way, ask) = match mode {
            Mode::Connected => (Way::Waiting, true),
            Mode::Datagram => (Way::Datagram, false),
        };
        Peer {
            path,
            users: 0,
            lane: Lane::new(key, way, ask),
            state: State::Idle,
            queue: VecDeque::new(),
            failures: 0,
            last_failure: None,
            mtu: None,
            dialect: Dialect::Linux,
        }
    }

    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self.state {
            State::Connecting(id) | State::Up(id) => Some(id),
            State::Idle | State::Held { .. } => None,
        }
    }

    pub(super) fn held_until(&self) -> Option<Instant> {
        match self.state {
            State::Held { until, .. } => Some(until),
            _ => None,
        }
    }
}
