//! One group: what is wanted of it, what the SA holds, what the data path uses.

use crate::output::RequestTag;
use crate::status::{GroupState, GroupStatus};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::Gid;
use wire::mad::attr::{JoinState, McMemberRecord};

/// A way to ask for a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) state: JoinState,
    /// With all parameters, so that the SA may create the group.
    pub(crate) create: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// With what was held before.
    Join(Ask, JoinState),
    Leave(JoinState),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Nothing,
    SendOnly,
    Full,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) ip: Option<IpAddr>,
    /// Of the present partition and port; otherwise it is only here to be left.
    pub(crate) current: bool,
    /// How often the host's stack joined it.
    pub(crate) users: u32,
    /// How many groups use it as their fallback.
    pub(crate) aliases: u32,
    pub(crate) last_used: Option<Instant>,

    /// Memberships the SA may hold: from the moment of asking until a leave is answered.
    pub(crate) held: JoinState,
    /// Leave one kind of membership at a time: the SA refused to end all at once.
    pub(crate) leave_singly: bool,
    /// The membership in use; the data path has a route for it.
    pub(crate) active: Option<McMemberRecord>,
    /// The queue pair is attached: the membership is a full one.
    pub(crate) attached: bool,
    /// Ask again although it is active.
    pub(crate) refresh: bool,
    pub(crate) request: Option<(RequestTag, Request)>,

    /// Which ask of the plan is next.
    pub(crate) step: usize,
    pub(crate) not_before: Option<Instant>,
    /// The next wait.
    pub(crate) backoff: Duration,
    /// All asks of the plan failed, and none succeeded since.
    pub(crate) failed: bool,
    pub(crate) last_ask: Option<Instant>,

    /// Its packets are to go to the fallback group.
    pub(crate) alias: bool,
    /// Where the data path was told to send them.
    pub(crate) via: Option<Gid>,
    pub(crate) queue: VecDeque<(Instant, Vec<u8>)>,
    pub(crate) attempts: u64,
    pub(crate) last_error: Option<String>,
    pub(crate) timer: Option<Instant>,
}

impl Group {
    pub(crate) fn new(ip: Option<IpAddr>, backoff: Duration) -> Self {
        Group {
            ip,
            current: true,
            users: 0,
            aliases: 0,
            last_used: None,
            held: JoinState(0),
            leave_singly: false,
            active: None,
            attached: false,
            refresh: false,
            request: None,
            step: 0,
            not_before: None,
            backoff,
            failed: false,
            last_ask: None,
            alias: false,
            via: None,
            queue: VecDeque::new(),
            attempts: 0,
            last_error: None,
            timer: None,
        }
    }

    pub(crate) fn want(&self, now: Instant, idle: Duration) -> Want {
        let recently = self.last_used.is_some_and(|used| now < used + idle);
        match self {
            Group { current: false, .. } => Want::Nothing,
            Group { users: 1.., .. } => Want::Full,
            _ if recently || self.aliases > 0 || !self.queue.is_empty() => Want::SendOnly,
            _ => Want::Nothing,
        }
    }

    /// Joined, and nothing is being asked or to be asked.
    pub(crate) fn is_settled(&self) -> bool {
        self.active.is_some() && !self.refresh && self.request.is_none()
    }

    pub(crate) fn in_backoff(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|at| now < at)
    }

    pub(crate) fn status(&self, mgid: Gid) -> GroupStatus {
        let state = match (&self.request, &self.active) {
            (Some((_, Request::Leave(_))), _) => GroupState::Leaving,
            (Some(_), Some(_)) => GroupState::Rejoining,
            (None, Some(_)) if self.refresh => GroupState::Rejoining,
            (None, Some(_)) => GroupState::Joined,
            _ if self.alias => GroupState::Fallback,
            (Some(_), None) => GroupState::Joining,
            (None, None) if !self.current => GroupState::Leaving,
            (None, None) if self.not_before.is_some() || self.failed => GroupState::BackOff,
            (None, None) => GroupState::Waiting,
        };
        GroupStatus {
            mgid,
            group: self.ip,
            state,
            join_state: self.held,
            mlid: self.active.map(|record| record.mlid),
            users: self.users,
            via: self.via,
            queued: self.queue.len(),
            attempts: self.attempts,
            last_error: self.last_error.clone(),
        }
    }
}
