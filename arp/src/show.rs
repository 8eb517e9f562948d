//! What an operator sees: `ipoib show neigh`, `ipoib show path`, counters.

use crate::output::{Path, PathError};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use wire::Gid;
use wire::ipoib::LinkAddress;

/// State of a neighbour (RFC 4861 section 7.3.2), the same for IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Address asked for, not yet known.
    Incomplete,
    /// Confirmed within the reachable time.
    Reachable,
    /// Not confirmed lately; not checked before it is used.
    Stale,
    /// Used while stale; hoping for a confirmation before probing.
    Delay,
    /// Being probed at its known address.
    Probe,
    /// Resolution failed; not tried again before the back-off is over.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Incomplete => "incomplete",
            State::Reachable => "reachable",
            State::Stale => "stale",
            State::Delay => "delay",
            State::Probe => "probe",
            State::Failed => "failed",
        })
    }
}

/// Why a neighbour could not be reached the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody answered ARP or Neighbor Solicitation.
    #[error("no answer to {0} requests for its link address")]
    NoAnswer(u8),
    /// The address is known, the way is not.
    #[error("{1} ({0})")]
    Path(Gid, PathError),
}

/// One neighbour.
#[derive(Clone, Debug)]
pub struct NeighbourInfo {
    /// Next hop.
    pub ip: IpAddr,
    /// State.
    pub state: State,
    /// Link address, once known.
    pub address: Option<LinkAddress>,
    /// Path to its GID, once known.
    pub path: Option<Path>,
    /// Packets that wait.
    pub queued: usize,
    /// Requests sent in this state.
    pub probes: u8,
    /// It is a router (IPv6).
    pub router: bool,
    /// Time in this state.
    pub age: Duration,
    /// Why it failed the last time, if it did since it was created.
    pub last_failure: Option<Failure>,
    /// How long ago that was.
    pub failed_ago: Option<Duration>,
    /// In state Failed: for so long no packet makes it try again.
    pub retry_in: Option<Duration>,
}

/// One path.
#[derive(Clone, Debug)]
pub struct PathInfo {
    /// Destination.
    pub gid: Gid,
    /// The way, once known.
    pub path: Option<Path>,
    /// A query is outstanding or about to be sent.
    pub querying: bool,
    /// Neighbours with this GID.
    pub neighbours: usize,
    /// Since the SA last answered with a path, or since it was first asked.
    pub age: Duration,
    /// The last query's error, if it failed.
    pub last_error: Option<PathError>,
}

/// Events counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// ARP requests and solicitations sent.
    pub requests_sent: u64,
    /// ARP replies and solicited advertisements sent.
    pub replies_sent: u64,
    /// Gratuitous ARP packets and unsolicited advertisements sent.
    pub announcements_sent: u64,
    /// ARP and ND packets received.
    pub received: u64,
    /// Neighbours that became reachable.
    pub confirmed: u64,
    /// Neighbours whose link address changed.
    pub address_changed: u64,
    /// Resolutions that failed for want of an answer.
    pub resolution_failed: u64,
    /// Neighbours given up after unanswered probes.
    pub probe_failed: u64,
    /// Path queries made.
    pub path_queries: u64,
    /// Path queries that failed.
    pub path_failed: u64,
    /// Refreshed paths that differed from before.
    pub path_changed: u64,
    /// Packets that used one of our addresses as their own.
    pub conflicts: u64,
    /// Packets dropped because a queue was full.
    pub dropped_queue_full: u64,
    /// Packets given back as unreachable, whatever the reason.
    pub unreachable: u64,
    /// Packets given back because all neighbour entries were in use.
    pub table_full: u64,
    /// Entries removed to make room for others.
    pub evicted: u64,
    /// Neighbours not learned from requests for want of room.
    pub not_learned: u64,
    /// Entries removed because they were unused.
    pub expired: u64,
    /// Replies dropped: too many waited for a path.
    pub dropped_reply_full: u64,
    /// Replies dropped: no path to whoever asked.
    pub dropped_reply_no_path: u64,
    /// Requests not sent because no address of this interface could be their source.
    pub dropped_no_source: u64,
    /// Received: our own packets, looped back.
    pub dropped_own: u64,
    /// Received: operation, link address or IP address that no valid packet has.
    pub dropped_invalid: u64,
    /// Received: not about an address or a neighbour of ours.
    pub ignored: u64,
    /// Received or to be sent while the link was down.
    pub dropped_link_down: u64,
}
