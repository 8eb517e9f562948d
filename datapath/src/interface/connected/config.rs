//! Modes and settings of connections.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use verbs::AckTimeout;

/// How an interface sends unicast IP packets. In words as in Linux's `/sys/class/net/ib0/mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By unreliable datagrams (RFC 4391). Connections of others are accepted nonetheless (RFC 4755 section 7).
    #[default]
    Datagram,
    /// By a reliable connection to each neighbour that takes one (RFC 4755); by datagrams to others.
    Connected,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Datagram => "datagram",
            Mode::Connected => "connected",
        })
    }
}

/// Text that is no mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a mode is `datagram` or `connected`")]
pub struct ParseModeError;

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "datagram" => Ok(Mode::Datagram),
            "connected" => Ok(Mode::Connected),
            _ => Err(ParseModeError),
        }
    }
}

/// The two forms of the service ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// That of Linux.
    Linux,
    /// That of RFC 4755 section 3.5, which Linux does not understand.
    Rfc,
}

/// Settings of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedConfig {
    /// Accept connections and say so: the RC flag of the link address. Without it the mode cannot be connected.
    pub offer: bool,
    /// Only the service ID of RFC 4755 is heard and asked for, as by peers that do not know Linux's. Else both are heard, and Linux's is asked
    /// for first.
    pub rfc_only: bool,
    /// Longest IP packet taken from a connection, bytes: what peers are told, and the MTU in connected mode.
    pub receive_mtu: u32,
    /// How often a packet is sent again without progress before the connection is given up, 0..=7. (Linux: 0.)
    pub retry_count: u8,
    /// How often a packet is sent again where the receiver was not ready, 0..=7; 7: as long as the connection is kept, 30 s without progress.
    pub rnr_retry: u8,
    /// How long to wait for an acknowledgement.
    pub ack_timeout: AckTimeout,
    /// Connections at once, both directions together, those that are being opened included.
    pub max_connections: usize,
    /// Connections at once that one peer may have asked for.
    pub max_from_peer: usize,
    /// An own connection that carried nothing for so long is closed; one of a peer's after twice that.
    pub idle: Duration,
    /// One that carried something so recently is not closed to make room.
    pub busy: Duration,
    /// After a connection could not be had, or failed, datagrams are used for so long ...
    pub hold_down_min: Duration,
    /// ... doubled with each failure in a row up to this.
    pub hold_down_max: Duration,
    /// Packets that wait for one connection to open; the oldest leaves first.
    pub queue_packets: usize,
    /// Bytes that wait for all connections together.
    pub total_queue_bytes: usize,
}

/// Longest IP packet over a connection in Linux, bytes: 64 KiB less 16 (`IPOIB_CM_MTU`).
pub(crate) const MAX_MTU: u32 = 65_520;

impl Default for ConnectedConfig {
    fn default() -> Self {
        ConnectedConfig {
            offer: true,
            rfc_only: false,
            receive_mtu: MAX_MTU,
            retry_count: 7,
            rnr_retry: 7,
            // 134 ms: given up after 1.1 s.
            ack_timeout: AckTimeout(15),
            max_connections: 2048,
            max_from_peer: 8,
            idle: Duration::from_secs(240),
            busy: Duration::from_secs(5),
            hold_down_min: Duration::from_secs(1),
            hold_down_max: Duration::from_secs(60),
            queue_packets: 64,
            total_queue_bytes: 16 << 20,
        }
    }
}
