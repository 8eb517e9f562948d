//! Policy: limits, waits and what may be created.

use std::time::Duration;
use wire::ipoib::Scope;
use wire::{MtuCode, QKey, RateCode, ServiceLevel};

/// Parameters for a broadcast group that this interface creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BroadcastParameters {
    /// Q_Key of the interface and of all of its groups.
    pub q_key: QKey,
    /// MTU of the groups.
    pub mtu: MtuCode,
    /// Rate of the groups.
    pub rate: RateCode,
    /// Service level.
    pub sl: ServiceLevel,
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Default for BroadcastParameters {
    /// OpenSM's: Q_Key 0x0b1b, MTU 2048, 10 Gbit/s, SL 0.
    fn default() -> Self {
        BroadcastParameters {
            q_key: QKey(0x0b1b),
            mtu: MtuCode::MTU_2048,
            rate: RateCode::GBPS_10,
            sl: ServiceLevel(0),
            tclass: 0,
            flow_label: 0,
            hop_limit: 0,
        }
    }
}

/// Policy of [`crate::Groups`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsConfig {
    /// Scope of the MGIDs.
    pub scope: Scope,
    /// Set: create the broadcast group if the SA says that it does not exist (RFC 4391 section 5: only where an administrator says so).
    pub create_broadcast: Option<BroadcastParameters>,
    /// Sending to a group creates it, by a SendOnlyFullMember join, as Linux does. Otherwise, and where the SA refuses that, only existing groups
    /// are joined for sending, as SendOnlyNonMember (RFC 4391 section 10).
    pub send_only_creates: bool,
    /// What cannot go to its group and is meant for more than the link goes to the all-routers group (RFC 4391 section 10).
    pub all_routers_fallback: bool,
    /// And where that does not exist either, to the broadcast group (RFC 4392 section 4.2.1).
    pub broadcast_fallback: bool,
    /// Packets that wait for one group.
    pub queue_packets: usize,
    /// Bytes that wait for all groups.
    pub queue_bytes: usize,
    /// A packet that waited longer is not sent any more.
    pub queue_age: Duration,
    /// At this number of groups no more are joined just for sending. The groups that the host's stack joins are never refused.
    pub max_groups: usize,
    /// First wait after a refused or unanswered join.
    pub backoff_min: Duration,
    /// First wait if something has just happened that makes success likely: port up, reregistration, a report.
    pub backoff_event: Duration,
    /// The wait doubles up to this.
    pub backoff_max: Duration,
    /// A group joined for sending is left when unused for this long.
    pub send_only_idle: Duration,
    /// After a reregistration the broadcast group is joined again at a random time within this, and the others within as much after it.
    pub rejoin_spread: Duration,
    /// A group is asked about at most this often because of reports.
    pub verify_interval: Duration,
}

impl Default for GroupsConfig {
    fn default() -> Self {
        GroupsConfig {
            scope: Scope::LINK_LOCAL,
            create_broadcast: None,
            send_only_creates: true,
            all_routers_fallback: true,
            broadcast_fallback: false,
            queue_packets: 64,
            queue_bytes: 1 << 20,
            queue_age: Duration::from_secs(3),
            max_groups: 4096,
            backoff_min: Duration::from_secs(1),
            backoff_event: Duration::from_millis(100),
            backoff_max: Duration::from_secs(16),
            send_only_idle: Duration::from_secs(60),
            rejoin_spread: Duration::from_millis(300),
            verify_interval: Duration::from_secs(1),
        }
    }
}
