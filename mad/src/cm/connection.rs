//! One connection.

use super::CmAddress;
use std::time::Instant;
use wire::mad::cm::{AboutMessage, CmMessage};
use wire::{Guid, Lid, Qpn};

/// Where a connection stands (IBA 12.9.5 to 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Requester: waits for REP.
    ReqSent,
    /// Requester: the user brings its queue pair up.
    RepReceived,
    /// Listener: the user decides.
    ReqReceived,
    /// Listener: waits for RTU.
    RepSent,
    /// Open.
    Established,
    /// Waits for DREP.
    DreqSent,
    /// Rests.
    TimeWait,
}

pub(super) struct Connection {
    pub(super) state: State,
    pub(super) address: CmAddress,
    /// Of the REQ, and of all that answers it; then of the DREQ.
    pub(super) tid: u64,
    /// This side sent the REQ.
    pub(super) is_requester: bool,
    /// The other side's communication ID; 0: not known yet.
    pub(super) remote_id: u32,
    pub(super) remote_guid: Guid,
    /// Where its REQ or REP came from, which with LMC need not be where messages to it go; unset: none came yet.
    pub(super) remote_lid: Lid,
    pub(super) local_qpn: Qpn,
    /// 0: not known yet.
    pub(super) remote_qpn: Qpn,
    /// What is sent again: after the deadline, or when the other side repeats its own.
    pub(super) sent: Option<CmMessage>,
    pub(super) tries_left: u8,
    /// The other side has asked for more time to answer it.
    pub(super) is_delayed: bool,
    pub(super) deadline: Option<Instant>,
}

impl Connection {
    pub(super) fn new(state: State, address: CmAddress, tid: u64) -> Self {
        Connection {
            state,
            address,
            tid,
            is_requester: state == State::ReqSent,
            remote_id: 0,
            remote_guid: Guid(0),
            remote_lid: Lid::UNSET,
            local_qpn: Qpn(0),
            remote_qpn: Qpn(0),
            sent: None,
            tries_left: 0,
            is_delayed: false,
            deadline: None,
        }
    }

    /// Which message a REJ or MRA of this side is about.
    pub(super) fn about(&self) -> AboutMessage {
        match self.state {
            State::ReqReceived => AboutMessage::REQ,
            State::RepReceived => AboutMessage::REP,
            // Given up (IBA 12.6.7.2, reason 4): about the message that was not answered, which is none of the other side's.
            _ => AboutMessage::OTHER,
        }
    }

    /// Does a message with this sender's ID belong to it?
    pub(super) fn is_peer(&self, id: u32) -> bool {
        self.remote_id == id && id != 0
    }
}
