//! Connections: reliable (RC) and unreliable (UC) connected queue pairs, their states, work requests and completions (IBA vol. 1, 9.7, 9.8,
//! 10.3, 11.2.4).
//!
//! As a user: [`crate::Port::create_connected_qp`] gives a queue pair in [`QpState::Reset`]. [`QpModify::Init`], then [`QpModify::Rtr`] with what
//! the peer said of itself (from here on it receives), then [`QpModify::Rts`] (from here on it sends). Received messages, completions and
//! events are pushed into a [`ConnectedHandler`].

use crate::port::VerbsError;
use crate::ud::AhAttributes;
use std::time::Duration;
use wire::{MtuCode, Psn, Qpn};

/// Service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ConnectedService {
    /// RC: each message arrives once and in order, or the connection fails.
    #[default]
    Reliable,
    /// UC: messages may be lost, each as a whole.
    Unreliable,
}

/// Whether messages always find a place at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ReceiveQueue {
    /// Always, as long as the handler keeps up.
    #[default]
    Unlimited,
    /// Each message takes one of the places given by [`ConnectedQueuePair::post_receives`]; where there is none the sender is told to wait (RNR).
    Posted,
}

/// Parameters of a connected queue pair that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedInit {
    /// Its service.
    pub service: ConnectedService,
    /// Set: this number and no other.
    pub qpn: Option<Qpn>,
    /// Work requests that may be posted and not complete at once.
    pub max_sends: usize,
    /// Bytes of payload in them; one request is taken whatever its length.
    pub max_send_bytes: usize,
    /// Longest message that may arrive, bytes; a longer one ends the connection.
    pub max_message: u32,
    /// Places for messages.
    pub receives: ReceiveQueue,
}

impl Default for ConnectedInit {
    /// RC for IPoIB: packets up to 65,535 bytes.
    fn default() -> Self {
        ConnectedInit {
            service: ConnectedService::Reliable,
            qpn: None,
            max_sends: 128,
            max_send_bytes: 4 << 20,
            max_message: 0xffff,
            receives: ReceiveQueue::Unlimited,
        }
    }
}

/// What a peer may do with memory: of the queue pair it comes by and of the region it names, both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access {
    /// RDMA READ.
    pub remote_read: bool,
    /// RDMA WRITE.
    pub remote_write: bool,
    /// ATOMIC operations.
    pub remote_atomic: bool,
}

/// State of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum QpState {
    /// Just made.
    #[default]
    Reset,
    /// Has a partition; takes no packets yet.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send, too.
    Rts,
    /// Send queue drained, or draining: what has begun is completed, nothing else begins.
    Sqd,
    /// Send queue error: sends are flushed, receiving goes on (UC only).
    Sqe,
    /// Nothing works; everything posted is flushed.
    Error,
}

/// Local ACK Timeout, 5 bits: 4.096 us * 2^n, 0 for never (IBA 9.7.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AckTimeout(pub u8);

impl AckTimeout {
    /// `None`: never.
    pub const fn duration(self) -> Option<Duration> {
        match self.0 & 0x1f {
            0 => None,
            n => Some(Duration::from_nanos(4096 << n)),
        }
    }
}

/// RNR NAK timer code, 5 bits (IBA 9.7.5.2.8, table 45): how long a sender shall wait before it tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RnrTimer(pub u8);

impl RnrTimer {
    /// From 10 us (code 1) to 491.52 ms (code 31) and 655.36 ms (code 0).
    pub const fn duration(self) -> Duration {
        let units = match self.0 & 0x1f {
            0 => 1 << 16,
            1 => 1,
            // 2, 3, 4, 6, 8, 12, 16, ...
            n => (2 + (n as u64 & 1)) << ((n as u32 >> 1) - 1),
        };
        Duration::from_micros(10 * units)
    }
}

/// Reset -> Init, or Init -> Init.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InitAttributes {
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// What the peer may do with registered memory.
    pub access: Access,
}

/// Init -> RTR: what the peer told, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttributes {
    /// The way to the peer. Packets that come from another LID are not taken.
    pub path: AhAttributes,
    /// Largest payload of a packet on the way.
    pub path_mtu: MtuCode,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// PSN of the first packet from the peer.
    pub rq_psn: Psn,
    /// RDMA READs and ATOMICs of the peer that may be open at once (responder resources).
    pub max_dest_rd_atomic: u8,
    /// What the peer is told to wait if there is no place for its message.
    pub min_rnr_timer: RnrTimer,
}

/// RTR -> RTS: how to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttributes {
    /// PSN of the first packet to the peer.
    pub sq_psn: Psn,
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to try again without progress, 0..=7.
    pub retry_count: u8,
    /// How often to try again where the receiver was not ready, 0..=7; 7: for ever.
    pub rnr_retry: u8,
    /// RDMA READs and ATOMICs that may be open at once (initiator depth); 0: none may be posted.
    pub max_rd_atomic: u8,
}

/// A change of state with the attributes that it takes (`ibv_modify_qp`, IBA 11.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpModify {
    /// From any state. What is posted goes without completion.
    Reset,
    /// From Reset or Init.
    Init(InitAttributes),
    /// From Init.
    Rtr(RtrAttributes),
    /// From RTR.
    Rts(RtsAttributes),
    /// RTS -> SQD. When what has begun is complete: [`QpEvent::SendQueueDrained`].
    Drain,
    /// SQD, once drained: another way to the same peer.
    Path(AhAttributes),
    /// SQD or SQE -> RTS.
    Resume,
    /// From any state but Reset.
    Error,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// Virtual address.
    pub address: u64,
    /// Its key.
    pub r_key: u32,
}

/// What to do (IBA 9.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// A message for the peer's handler, up to 2^31 bytes.
    Send {
        /// The message.
        payload: &'a [u8],
        /// Immediate data with it.
        immediate: Option<u32>,
    },
    /// RDMA WRITE, up to 2^31 bytes.
    Write {
        /// What to write.
        payload: &'a [u8],
        /// Where to.
        to: RemoteAddress,
        /// Set: the peer's handler is told when it is written.
        immediate: Option<u32>,
    },
    /// RDMA READ; the completion brings the bytes.
    Read {
        /// Where from.
        from: RemoteAddress,
        /// Bytes, up to 2^31.
        len: u32,
    },
    /// ATOMIC: stores `swap` if there is `compare`; the completion brings what was there.
    CompareSwap {
        /// Eight bytes, aligned.
        at: RemoteAddress,
        /// Expected.
        compare: u64,
        /// New.
        swap: u64,
    },
    /// ATOMIC: adds; the completion brings what was there.
    FetchAdd {
        /// Eight bytes, aligned.
        at: RemoteAddress,
        /// To add, modulo 2^64.
        add: u64,
    },
}

impl Operation<'_> {
    /// Bytes that the request carries.
    pub fn payload(&self) -> &[u8] {
        match self {
            Operation::Send { payload, .. } | Operation::Write { payload, .. } => payload,
            _ => &[],
        }
    }
}

/// A work request. The payload is only borrowed: when `post_send` returns it is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedSend<'a> {
    /// The user's own; comes back in the completion.
    pub id: u64,
    /// What to do.
    pub operation: Operation<'a>,
    /// Tell of its success as well. Failures are always told.
    pub signalled: bool,
    /// Raise a solicited event at the receiver.
    pub solicited: bool,
    /// Begin when all RDMA READs and ATOMICs before it are complete; else what a READ returns may be newer than this request (IBA 10.8.3.3).
    pub fence: bool,
}

impl<'a> ConnectedSend<'a> {
    /// A plain message, of which only failure is told.
    pub fn message(payload: &'a [u8]) -> Self {
        ConnectedSend {
            id: 0,
            operation: Operation::Send {
                payload,
                immediate: None,
            },
            signalled: false,
            solicited: false,
            fence: false,
        }
    }
}

/// Why a batch was not posted as a whole: those before `posted` are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {posted} of the batch was refused: {error}")]
pub struct PostError {
    /// How many were posted: the index of the refused one.
    pub posted: usize,
    /// Why it was refused.
    pub error: VerbsError,
}

/// A message that arrived, borrowed for the time of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedReceive<'a> {
    /// The message; empty for an RDMA WRITE.
    pub payload: &'a [u8],
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// Set: it tells the end of an RDMA WRITE with immediate of so many bytes.
    pub written: Option<u32>,
}

/// How a work request ended (IBA 11.6.2; `enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The queue pair was in Error, or went there before the request was done. It may have arrived.
    Flushed,
    /// The request cannot be made of this queue pair.
    LocalOperation,
    /// The peer does not take such a request: too long, or an operation it does not know.
    RemoteInvalidRequest,
    /// The peer does not allow the access to its memory.
    RemoteAccess,
    /// The peer failed.
    RemoteOperation,
    /// No acknowledgement after all retries.
    RetryExceeded,
    /// The receiver was not ready after all retries.
    RnrRetryExceeded,
}

/// What a completion brings.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum CompletionData {
    /// Nothing.
    #[default]
    None,
    /// What was read by RDMA.
    Read(Vec<u8>),
    /// What an ATOMIC operation found.
    Original(u64),
}

/// A work request came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the [`ConnectedSend`].
    pub id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// What it brought.
    pub data: CompletionData,
}

/// Asynchronous events of a queue pair (IBA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// The first packet of the peer came while the queue pair was in RTR: the peer has the REP, whatever becomes of its RTU.
    CommunicationEstablished,
    /// SQD: all that had begun is complete.
    SendQueueDrained,
    /// A request of this side ended with this status: the queue pair went to Error (UC: to SQE).
    SendFailed(CompletionStatus),
    /// A request of the peer could not be served and was refused with this status: the queue pair went to Error.
    ReceiveFailed(CompletionStatus),
}

/// What a queue pair pushes to its user: on the thread that delivers or posts, one call at a time, in order. Never blocks. It may post to the
/// same queue pair.
pub trait ConnectedHandler: Send + Sync {
    /// Messages in order.
    fn receive(&self, batch: &[ConnectedReceive<'_>]);
    /// Work requests that ended, in the order they were posted.
    fn complete(&self, _batch: &[Completion]) {}
    /// One event.
    fn event(&self, _event: QpEvent) {}
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {
        /// Counters of a connected queue pair since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ConnectedCounters { $($(#[$meta])* pub $name: u64),* }

        impl ConnectedCounters {
            /// Name and value of each.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Request packets sent, repeated ones too.
    tx_packets,
    /// Requests completed with success.
    tx_messages,
    /// Request packets sent again.
    tx_repeated,
    /// Times an acknowledgement did not come in time.
    tx_timeouts,
    /// NAKs for a PSN, and responses missing, that made packets be sent again.
    tx_sequence_naks,
    /// RNR NAKs received.
    tx_rnr_naks,
    /// NAKs received that ended the connection.
    tx_fatal_naks,
    /// Acknowledgements and responses sent.
    rx_responses,
    /// NAKs sent, RNR too.
    rx_naks,
    /// Messages received.
    rx_messages,
    /// Request packets in sequence.
    rx_packets,
    /// Request packets seen before; acknowledged and dropped.
    rx_duplicates,
    /// Request packets after a gap; dropped.
    rx_out_of_sequence,
    /// Packets dropped since there was no place for their message.
    rx_not_ready,
    /// UC: messages dropped since a packet of theirs was lost.
    rx_incomplete,
    /// Packets dropped in a state in which they are not taken.
    rx_wrong_state,
    /// Requests refused as invalid; each ends the connection.
    rx_invalid,
    /// Acknowledgements and responses dropped: old, or for nothing that was asked.
    rx_unexpected_responses,
}

/// What `query` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedStatus {
    /// State.
    pub state: QpState,
    /// Its service.
    pub service: ConnectedService,
    /// Since Init.
    pub init: InitAttributes,
    /// Since RTR.
    pub rtr: Option<RtrAttributes>,
    /// Since RTS.
    pub rts: Option<RtsAttributes>,
    /// Work requests posted and not complete.
    pub sends: usize,
    /// Counters.
    pub counters: ConnectedCounters,
}

/// A connected queue pair. Dropping the last reference destroys it: nothing is completed any more, and its number is free again.
pub trait ConnectedQueuePair: Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;
    /// Changes the state.
    ///
    /// # Errors
    /// [`VerbsError::BadState`] where the standard has no such transition, and for attributes that cannot be: the state stays.
    fn modify(&self, change: QpModify) -> Result<(), VerbsError>;
    /// Posts work requests in order. Any thread may call. Where the port cannot send now, packets are lost and the timeout decides.
    ///
    /// # Errors
    /// The first request that was refused: [`VerbsError::BadState`] before RTS, [`VerbsError::NoResources`] while the queue is full (try
    /// again after a completion), [`VerbsError::BadAttribute`] for what can never be done. In Error and SQE requests are taken and flushed.
    fn post_send(&self, batch: &[ConnectedSend<'_>]) -> Result<(), PostError>;
    /// Gives places for `n` more messages; nothing for [`ReceiveQueue::Unlimited`].
    fn post_receives(&self, n: usize);
    /// State, attributes and counters.
    fn query(&self) -> ConnectedStatus;
}

/// Memory that peers may read and write. Dropping the last reference ends the registration.
pub trait MemoryRegion: Send + Sync {
    /// Where it begins, as peers see it, and its key.
    fn address(&self) -> RemoteAddress;
    /// Copies bytes out from `offset`; false (and nothing is copied) if they are not all inside.
    fn read(&self, offset: u64, into: &mut [u8]) -> bool;
    /// Copies bytes in.
    fn write(&self, offset: u64, from: &[u8]) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_follow_the_tables() {
        let rnr = |code| RnrTimer(code).duration().as_micros();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 12, 30, 31].map(rnr),
            [655_360, 10, 20, 30, 40, 60, 80, 640, 327_680, 491_520]
        );
        let ack = |code| AckTimeout(code).duration().map(|d| d.as_nanos());
        assert_eq!(
            [0, 1, 14, 31].map(ack),
            [None, Some(8_192), Some(67_108_864), Some(4096 << 31)]
        );
    }
}
