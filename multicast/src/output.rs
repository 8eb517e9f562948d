//! What the join machine wants done, and what it counts.

use wire::mad::attr::{JoinState, McMemberRecord};
use wire::mad::sa::ComponentMask;
use wire::{Gid, Lid};

/// Names a request to the SA, for its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTag(pub(crate) u64);

/// Something to do. The order is that of their polling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Set(MCMemberRecord); the result goes to [`crate::Groups::join_result`].
    Join {
        /// Names the request.
        tag: RequestTag,
        /// What to ask.
        record: McMemberRecord,
        /// Which components of it.
        component_mask: ComponentMask,
    },
    /// Delete(MCMemberRecord); the result goes to [`crate::Groups::leave_result`].
    Leave {
        /// Names the request.
        tag: RequestTag,
        /// The group.
        mgid: Gid,
        /// The port as it joined.
        port_gid: Gid,
        /// The memberships to give up.
        join_state: JoinState,
    },
    /// Stop asking: the result is of no interest, and repeating the request would do harm.
    Cancel {
        /// The request.
        tag: RequestTag,
    },
    /// Attach the queue pair; where that fails, say so by [`crate::Groups::attach_failed`].
    Attach {
        /// The group.
        mgid: Gid,
        /// Its LID.
        mlid: Lid,
    },
    /// Detach the queue pair.
    Detach {
        /// The group.
        mgid: Gid,
        /// The LID it was attached with.
        mlid: Lid,
    },
    /// The broadcast group is joined and attached: set the queue pair's Q_Key and the MTU, then the carrier on. Comes again when its parameters
    /// changed.
    BroadcastUp(McMemberRecord),
    /// The broadcast group is gone: carrier off.
    BroadcastDown,
    /// The group may be sent to, by these parameters. Replaces whatever route it has.
    Route {
        /// The group.
        mgid: Gid,
        /// MLID, Q_Key, SL and so on.
        record: McMemberRecord,
    },
    /// Packets for `mgid` are sent to the group `via`. Replaces whatever route it has.
    RouteAlias {
        /// The group that is meant.
        mgid: Gid,
        /// The group that has a route.
        via: Gid,
    },
    /// The group cannot be sent to any more.
    Unroute {
        /// The group.
        mgid: Gid,
    },
    /// Send these packets to this group, which has a route.
    Send {
        /// The group to send to.
        mgid: Gid,
        /// IP packets in their order.
        packets: Vec<Vec<u8>>,
    },
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupsCounters {
    /// Joins asked for.
    pub joins: u64,
    /// Joins granted.
    pub joined: u64,
    /// Joins the SA refused.
    pub refused: u64,
    /// Joins not answered, or answered unusably.
    pub unanswered: u64,
    /// Leaves asked for.
    pub leaves: u64,
    /// Results of requests that were cancelled.
    pub late_results: u64,
    /// Packets dropped: the broadcast group is not joined.
    pub dropped_no_broadcast: u64,
    /// Packets dropped: the group cannot be joined, and nothing stands in for it.
    pub dropped_no_group: u64,
    /// Packets dropped: too many or too many bytes wait.
    pub dropped_queue_full: u64,
    /// Packets dropped: they waited too long.
    pub dropped_stale: u64,
    /// Packets dropped: there are too many groups.
    pub dropped_too_many_groups: u64,
    /// Packets dropped: their address is no multicast address.
    pub dropped_not_multicast: u64,
}
