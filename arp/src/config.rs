//! Times and bounds of the neighbour machine.

use std::time::Duration;

/// Times (RFC 4861 section 10 unless said otherwise) and bounds. The defaults suit a host.
#[derive(Clone, Debug)]
pub struct NeighbourConfig {
    /// BaseReachableTime; each use is randomized to 0.5 ..= 1.5 of it.
    pub reachable: Duration,
    /// RetransTimer: between solicitations, and between announcements.
    pub retrans: Duration,
    /// MAX_MULTICAST_SOLICIT: requests to the broadcast or solicited-node group before resolution fails.
    pub multicast_probes: u8,
    /// MAX_UNICAST_SOLICIT: requests to the known address before it is given up.
    pub unicast_probes: u8,
    /// DELAY_FIRST_PROBE_TIME.
    pub delay_first_probe: Duration,
    /// MAX_NEIGHBOR_ADVERTISEMENT: gratuitous ARP packets or unsolicited advertisements an address gets when it or the link comes up. Linux
    /// ignores those within a second of its last update of the entry, so that one alone may be lost without loss.
    pub announcements: u8,
    /// Between two defences of an address that another host claims (RFC 5227: DEFEND_INTERVAL).
    pub defend_interval: Duration,
    /// A stale entry that nobody used for this long is removed; so is a failed one.
    pub gc_stale: Duration,
    /// After a failed resolution or path query the next attempt waits this long, doubled with each failure in a row ...
    pub backoff_min: Duration,
    /// ... up to this.
    pub backoff_max: Duration,
    /// Packets that wait for one neighbour; the oldest leaves first (RFC 4861 section 7.2.2).
    pub queue_packets: usize,
    /// Bytes that wait for one neighbour.
    pub queue_bytes: usize,
    /// Bytes that wait for all neighbours together.
    pub total_queue_bytes: usize,
    /// Packets that waited this long for an address and a path come back as unreachable.
    pub queue_age: Duration,
    /// Neighbours at most. Above it the longest unused gives way; none that is in use does.
    pub max_entries: usize,
    /// Of these, neighbours at most that only asked us something and were never sent to.
    pub max_learned: usize,
    /// ARP replies and advertisements at most that wait for the path to whoever asked.
    pub max_waiting_replies: usize,
    /// Path queries outstanding at most; half of them at most for what no packet waits for.
    pub max_path_queries: usize,
    /// [`refresh_paths`](crate::Neighbours::refresh_paths) takes so long for each path ...
    pub refresh_pace: Duration,
    /// ... and this at most for all of them, at random times in it; ...
    pub refresh_spread: Duration,
    /// ... a path whose refresh the SA refused this often in a row is dropped. A new SM may need some
    /// sweeps to know all ports again; time-outs do not count, since they say nothing about the path.
    pub refresh_attempts: u32,
    /// We forward packets: the router flag of our advertisements.
    pub router: bool,
}

impl Default for NeighbourConfig {
    fn default() -> Self {
        NeighbourConfig {
            reachable: Duration::from_secs(30),
            retrans: Duration::from_secs(1),
            multicast_probes: 3,
            unicast_probes: 3,
            delay_first_probe: Duration::from_secs(5),
            announcements: 3,
            defend_interval: Duration::from_secs(10),
            gc_stale: Duration::from_secs(60),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(16),
            queue_packets: 64,
            queue_bytes: 256 << 10,
            total_queue_bytes: 8 << 20,
            queue_age: Duration::from_secs(5),
            max_entries: 4096,
            max_learned: 1024,
            max_waiting_replies: 256,
            max_path_queries: 32,
            refresh_pace: Duration::from_millis(50),
            refresh_spread: Duration::from_secs(1),
            refresh_attempts: 5,
            router: false,
        }
    }
}
