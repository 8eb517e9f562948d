//! A group as people see it (`ipoib show mcast`).

use std::fmt;
use std::net::IpAddr;
use wire::mad::attr::JoinState;
use wire::{Gid, Lid};

/// Where a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupState {
    /// Waits for the port or the broadcast group.
    Waiting,
    /// The SA was asked.
    Joining,
    /// Joined, and attached if it is to be received.
    Joined,
    /// Joined; the SA is or will be asked again.
    Rejoining,
    /// Refused; the next try comes later.
    BackOff,
    /// Refused; its packets go to another group.
    Fallback,
    /// Not wanted any more; the SA is being told.
    Leaving,
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupState::Waiting => "waiting",
            GroupState::Joining => "joining",
            GroupState::Joined => "joined",
            GroupState::Rejoining => "rejoining",
            GroupState::BackOff => "back-off",
            GroupState::Fallback => "fallback",
            GroupState::Leaving => "leaving",
        })
    }
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group.
    pub mgid: Gid,
    /// An IP group that maps to it; `None` for the broadcast group.
    pub group: Option<IpAddr>,
    /// Where it stands.
    pub state: GroupState,
    /// Memberships that the SA may hold for this port.
    pub join_state: JoinState,
    /// Its LID, if joined.
    pub mlid: Option<Lid>,
    /// How often the host's stack joined it; 0: only sent to.
    pub users: u32,
    /// Packets go to this group instead.
    pub via: Option<Gid>,
    /// Packets that wait.
    pub queued: usize,
    /// Joins asked for.
    pub attempts: u64,
    /// Why the last join failed, or what is odd about it.
    pub last_error: Option<String>,
}
