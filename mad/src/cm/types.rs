//! What the user of a [`Cm`](super::Cm) gives and gets.

use std::time::Duration;
use verbs::{GrhInfo, MadReceived, MadSend};
use wire::mad::cm::{CmMessage, Rej, Rep, Req};
use wire::{Guid, Lid, PKey, QKey, Qpn, ServiceLevel};

/// Number of a connection on this side: the local communication ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// Where the communication manager of the other side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmAddress {
    /// Its LID.
    pub dlid: Lid,
    /// Service level towards it.
    pub sl: ServiceLevel,
    /// Its management queue pair, 1 unless redirected.
    pub qpn: Qpn,
    /// Partition.
    pub p_key: PKey,
    /// Set: with a GRH.
    pub grh: Option<GrhInfo>,
}

impl CmAddress {
    /// The one that an answer to `mad` goes to.
    pub fn of_sender(mad: &MadReceived) -> Self {
        let reply = mad.reply(mad.mad.clone());
        CmAddress {
            dlid: reply.dlid,
            sl: reply.sl,
            qpn: reply.remote_qpn,
            p_key: reply.p_key,
            grh: reply.grh,
        }
    }

    pub(super) fn send(&self, message: &CmMessage, tid: u64) -> MadSend {
        MadSend {
            dlid: self.dlid,
            sl: self.sl,
            remote_qpn: self.qpn,
            q_key: QKey::GSI,
            p_key: self.p_key,
            grh: self.grh,
            mad: Box::new(message.emit(tid)),
        }
    }
}

/// Settings of a communication manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// GUID of the node.
    pub node_guid: Guid,
    /// The agent's number: upper half of TIDs.
    pub tid_high: u32,
    /// How long to wait for an answer before asking again, and what peers are told: 4.096 us * 2^n.
    pub response_timeout: u8,
    /// How often to ask again, 0..=15.
    pub max_retries: u8,
    /// How long a connection that carried data rests, so that its late packets meet no other.
    pub time_wait: Duration,
    /// Connections at once, those that rest included.
    pub max_connections: usize,
    /// Those of them that were asked for from one port, told by its LIDs: one node must not take all.
    pub max_from_lid: usize,
}

impl CmConfig {
    /// 0.54 s and 7 retries: given up after 4.3 s. (IPoIB in Linux asks every 4.3 s, 15 times.)
    pub fn new(node_guid: Guid, tid_high: u32) -> Self {
        CmConfig {
            node_guid,
            tid_high,
            response_timeout: 17,
            max_retries: 7,
            time_wait: Duration::from_secs(1),
            max_connections: 4096,
            max_from_lid: 512,
        }
    }
}

/// What the user is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// Somebody asks for a connection: [`super::Cm::accept`] or [`super::Cm::reject`] it; [`super::Cm::delay`] if that takes long.
    Requested {
        /// Its number here.
        id: ConnectionId,
        /// What is asked for.
        req: Box<Req>,
        /// By whom.
        from: CmAddress,
    },
    /// The listener accepts: bring the queue pair to RTS, then [`super::Cm::confirm`]; or [`super::Cm::reject`].
    Replied {
        /// Its number here.
        id: ConnectionId,
        /// What it says.
        rep: Box<Rep>,
    },
    /// The requester is ready: the listener may send.
    Established {
        /// Its number here.
        id: ConnectionId,
    },
    /// The other side does not want it, or knows nothing of it.
    Rejected {
        /// Its number here.
        id: ConnectionId,
        /// Why.
        rej: Box<Rej>,
    },
    /// The other side, or the user of this one, did not answer in time.
    TimedOut {
        /// Its number here.
        id: ConnectionId,
    },
    /// The other side ended it.
    Disconnected {
        /// Its number here.
        id: ConnectionId,
    },
    /// All is over: the number of its queue pair may be used again.
    Released {
        /// Its number here, until now.
        id: ConnectionId,
    },
}

/// What comes out of a [`Cm`](super::Cm).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmOutput {
    /// To be sent from QP1.
    Send(MadSend),
    /// For the user.
    Event(CmEvent),
}

/// A wish that cannot be fulfilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// There is no such connection, or no more.
    #[error("there is no connection {0:?}")]
    NoConnection(ConnectionId),
    /// It is not at the point where this could be.
    #[error("not possible in this state of the connection")]
    WrongState,
    /// [`CmConfig::max_connections`].
    #[error("all {0} connections are in use")]
    TooMany(usize),
}

/// Messages of which nothing came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Sent, repeated ones too.
    pub sent: u64,
    /// Sent again as no answer came.
    pub repeated: u64,
    /// Received.
    pub received: u64,
    /// Received again and answered again.
    pub duplicates: u64,
    /// For no connection, or at the wrong time; REQ, REP, DREQ and LAP were answered nonetheless.
    pub unexpected: u64,
    /// No CM message at all.
    pub malformed: u64,
    /// REQs for a queue pair that another connection has (REJ 10).
    pub stale: u64,
    /// REQs refused without asking the user, stale ones among them.
    pub refused: u64,
}
