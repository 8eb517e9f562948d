//! Connected queue pairs (IBA 9.7, 9.8, 10.3).
//!
//! [`Engine`] is one of them without IO: it is fed packets, work requests, changes of state and time, and gives packets, outputs for the user,
//! and the next timeout. `qp` runs it in an HCA.

mod aeth;
mod answers;
mod buffers;
mod memory;
mod qp;
mod request;
mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub(super) use buffers::Buffers;
pub(super) use memory::Regions;
pub(super) use qp::{ConnectedHandle, ConnectedQp, Timers};

use buffers::Buffer;
use requester::Requester;
use responder::Responder;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use verbs::{
    AhAttributes, Completion, CompletionData, CompletionStatus, ConnectedCounters, ConnectedInit,
    ConnectedSend, ConnectedService, ConnectedStatus, InitAttributes, QpEvent, QpModify, QpState,
    ReceiveQueue, RtrAttributes, RtsAttributes, VerbsError,
};
use wire::Psn;
use wire::packet::{Extended, Opcode, Packet};

/// Longest message (IBA 9.7.2).
const MAX_MESSAGE: usize = 1 << 31;

/// Of an opcode: the operation without the service (IBA 9.2.1).
const OPERATION: u8 = 0x1f;
const UC: u8 = 1 << 5;

/// The opcode of an operation, given by its RC opcode.
fn opcode(service: ConnectedService, operation: u8) -> Opcode {
    match service {
        ConnectedService::Reliable => Opcode(operation),
        ConnectedService::Unreliable => Opcode(UC | operation),
    }
}

/// Bytes of a packet, shared with the request that may have to send them again.
#[derive(Clone, Debug, Default)]
pub(super) struct Payload {
    bytes: Option<Arc<Buffer>>,
    range: Range<usize>,
}

impl Payload {
    /// `range` is inside of `bytes`.
    fn new(bytes: Arc<Buffer>, range: Range<usize>) -> Self {
        Payload {
            bytes: Some(bytes),
            range,
        }
    }
    pub(super) fn bytes(&self) -> &[u8] {
        let bytes = self.bytes.as_ref();
        bytes
            .and_then(|b| b.get(self.range.clone()))
            .unwrap_or_default()
    }
}

/// A packet to the peer, without the headers that are the same for all.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) opcode: Opcode,
    pub(super) solicited: bool,
    pub(super) ack_req: bool,
    pub(super) psn: Psn,
    pub(super) ext: Extended,
    pub(super) payload: Payload,
}

/// A message that arrived.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) bytes: Buffer,
    pub(super) immediate: Option<u32>,
    pub(super) solicited: bool,
    pub(super) written: Option<u32>,
}

/// For the user, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    Message(Message),
    Completion(Completion),
    Event(QpEvent),
}

/// What both halves tell.
#[derive(Default)]
struct Report {
    counters: ConnectedCounters,
    outputs: VecDeque<Output>,
}

fn end(id: u64, status: CompletionStatus, report: &mut Report) {
    report.outputs.push_back(Output::Completion(Completion {
        id,
        status,
        data: CompletionData::None,
    }));
}

/// A connected queue pair.
pub(super) struct Engine {
    init: ConnectedInit,
    state: QpState,
    attributes: InitAttributes,
    /// Since RTR.
    peer: Option<(RtrAttributes, Responder)>,
    /// Since RTS.
    sender: Option<(RtsAttributes, Requester)>,
    /// SQD was, or is to be told of.
    drain_told: bool,
    established: bool,
    /// Places given before there was a responder.
    places: usize,
    buffers: Arc<Buffers>,
    report: Report,
}

impl Engine {
    pub(super) fn new(init: ConnectedInit, buffers: Arc<Buffers>) -> Self {
        Engine {
            init,
            state: QpState::Reset,
            attributes: InitAttributes::default(),
            peer: None,
            sender: None,
            drain_told: false,
            established: false,
            places: 0,
            buffers,
            report: Report::default(),
        }
    }

    pub(super) fn status(&self) -> ConnectedStatus {
        ConnectedStatus {
            state: self.state,
            service: self.init.service,
            init: self.attributes,
            rtr: self.peer.as_ref().map(|p| p.0),
            rts: self.sender.as_ref().map(|s| s.0),
            sends: self.sender.as_ref().map_or(0, |s| s.1.load().0),
            counters: self.report.counters,
        }
    }

    pub(super) fn attributes(&self) -> InitAttributes {
        self.attributes
    }

    /// What packets are addressed with; `None` before RTR.
    pub(super) fn peer(&self) -> Option<&RtrAttributes> {
        self.peer.as_ref().map(|p| &p.0)
    }

    /// See [`verbs::ConnectedQueuePair::modify`].
    pub(super) fn modify(&mut self, change: QpModify) -> Result<(), VerbsError> {
        use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
        match (change, self.state) {
            (QpModify::Reset, _) => {
                let counters = self.report.counters;
                *self = Engine::new(self.init, self.buffers.clone());
                self.report.counters = counters;
            }
            (QpModify::Init(attributes), Reset | Init) => {
                self.attributes = attributes;
                self.state = Init;
            }
            (QpModify::Rtr(rtr), Init) => {
                let pmtu = rtr.path_mtu.bytes();
                let pmtu = pmtu.ok_or(VerbsError::BadAttribute("path_mtu"))?;
                check_path(&rtr.path)?;
                let buffers = self.buffers.clone();
                let mut responder = Responder::new(
                    self.init,
                    self.attributes.access,
                    pmtu.into(),
                    &rtr,
                    buffers,
                );
                responder.post_receives(std::mem::take(&mut self.places));
                self.peer = Some((rtr, responder));
                self.state = Rtr;
            }
            (QpModify::Rts(rts), Rtr) => {
                if rts.retry_count > 7 || rts.rnr_retry > 7 {
                    return Err(VerbsError::BadAttribute("a retry count"));
                }
                let pmtu = self.peer().and_then(|rtr| rtr.path_mtu.bytes());
                // RTR had one.
                let pmtu = pmtu.ok_or(VerbsError::BadState(self.state))?;
                let requester =
                    Requester::new(self.init.service, pmtu.into(), rts, self.buffers.clone());
                self.sender = Some((rts, requester));
                self.state = Rts;
            }
            (QpModify::Drain, Rts) => {
                self.state = Sqd;
                self.drain_told = false;
                if let Some((_, requester)) = &mut self.sender {
                    requester.drain();
                }
                self.tell_drained();
            }
            (QpModify::Path(path), Sqd) if self.drain_told => {
                check_path(&path)?;
                if let Some((rtr, _)) = &mut self.peer {
                    rtr.path = path;
                }
            }
            (QpModify::Resume, Sqd | Sqe) => {
                self.state = Rts;
                if let Some((_, requester)) = &mut self.sender {
                    requester.resume();
                }
            }
            (QpModify::Error, state) if state != Reset => {
                self.fail(QpState::Error, CompletionStatus::Flushed)
            }
            (_, state) => return Err(VerbsError::BadState(state)),
        }
        Ok(())
    }

    /// See [`verbs::ConnectedQueuePair::post_send`].
    pub(super) fn post(&mut self, send: &ConnectedSend<'_>) -> Result<(), VerbsError> {
        let requester = match (self.state, &mut self.sender) {
            (QpState::Error | QpState::Sqe, _) => {
                end(send.id, CompletionStatus::Flushed, &mut self.report);
                return Ok(());
            }
            (QpState::Rts | QpState::Sqd, Some((_, requester))) => requester,
            (state, _) => return Err(VerbsError::BadState(state)),
        };
        let length = match send.operation {
            verbs::Operation::Read { len, .. } => len as usize,
            operation => operation.payload().len(),
        };
        if length > MAX_MESSAGE {
            return Err(VerbsError::BadAttribute("the length of a message"));
        }
        let ((requests, bytes), init) = (requester.load(), &self.init);
        if requests >= init.max_sends {
            return Err(VerbsError::NoResources("send requests", init.max_sends));
        }
        let payload = send.operation.payload().len();
        if requests > 0 && bytes + payload > init.max_send_bytes {
            return Err(VerbsError::NoResources(
                "bytes to send",
                init.max_send_bytes,
            ));
        }
        requester.post(send);
        Ok(())
    }

    pub(super) fn post_receives(&mut self, n: usize) {
        if self.init.receives == ReceiveQueue::Posted {
            match &mut self.peer {
                Some((_, responder)) => responder.post_receives(n),
                None => self.places = self.places.saturating_add(n),
            }
        }
    }

    /// A packet of the peer.
    pub(super) fn handle(&mut self, now: Instant, packet: &Packet<'_>, regions: &Regions) {
        use QpState::{Rtr, Rts, Sqd, Sqe};
        let operation = packet.bth.opcode.0 & OPERATION;
        let is_response =
            (Opcode::RC_RDMA_READ_RESPONSE_FIRST.0..=Opcode::RC_ATOMIC_ACK.0).contains(&operation);
        match (is_response, self.state, &mut self.sender, &mut self.peer) {
            (true, Rts | Sqd, Some((_, requester)), _)
                if self.init.service == ConnectedService::Reliable =>
            {
                let result = requester.handle(now, packet, &mut self.report);
                self.send_result(result);
                self.tell_drained();
            }
            (false, Rtr | Rts | Sqd | Sqe, _, Some((_, responder))) => {
                let taken = self.report.counters.rx_packets;
                let result = responder.handle(packet, regions, &mut self.report);
                let is_first = self.report.counters.rx_packets != taken && !self.established;
                if is_first {
                    self.established = true;
                    if self.state == Rtr {
                        // Before the message that the packet may have completed.
                        let event = Output::Event(QpEvent::CommunicationEstablished);
                        self.report.outputs.push_front(event);
                    }
                }
                if let Err(status) = result {
                    let event = Output::Event(QpEvent::ReceiveFailed(status));
                    self.report.outputs.push_back(event);
                    self.fail(QpState::Error, CompletionStatus::Flushed);
                }
            }
            _ => self.report.counters.rx_wrong_state += 1,
        }
    }

    /// No more packets for now: what was received is acknowledged.
    pub(super) fn finish_batch(&mut self) {
        if let Some((_, responder)) = &mut self.peer {
            responder.flush_ack();
        }
    }

    /// When [`Engine::handle_timeout`] wants to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.sender.as_ref().and_then(|s| s.1.poll_timeout())
    }

    /// Does what is due at `now`; harmless at any other time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Some((_, requester)) = &mut self.sender {
            let result = requester.handle_timeout(now, &mut self.report);
            self.send_result(result);
        }
    }

    /// The next packet to the peer: answers first.
    pub(super) fn poll_packet(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some((_, responder)) = &mut self.peer
            && let Some(packet) = responder.poll_packet(&mut self.report)
        {
            return Some(packet);
        }
        let (_, requester) = self.sender.as_mut()?;
        match requester.poll_packet(now, &mut self.report) {
            Ok(packet) => {
                // Nobody acknowledges what is unreliable: it is done when it is sent.
                self.tell_drained();
                packet
            }
            Err(status) => {
                self.send_result(Err(status));
                None
            }
        }
    }

    /// For the user: all there is.
    pub(super) fn take_outputs(&mut self) -> VecDeque<Output> {
        std::mem::take(&mut self.report.outputs)
    }

    fn send_result(&mut self, result: Result<(), CompletionStatus>) {
        if let Err(status) = result {
            let state = match self.init.service {
                ConnectedService::Reliable => QpState::Error,
                ConnectedService::Unreliable => QpState::Sqe,
            };
            self.fail(state, status);
            let event = Output::Event(QpEvent::SendFailed(status));
            self.report.outputs.push_back(event);
        }
    }

    /// Ends all requests, the oldest with `status`.
    fn fail(&mut self, state: QpState, status: CompletionStatus) {
        self.state = state;
        if let Some((_, requester)) = &mut self.sender {
            requester.flush(status, &mut self.report);
        }
    }

    fn tell_drained(&mut self) {
        let drained = self.sender.as_ref().is_some_and(|s| s.1.is_drained());
        if self.state == QpState::Sqd && drained && !self.drain_told {
            self.drain_told = true;
            let event = Output::Event(QpEvent::SendQueueDrained);
            self.report.outputs.push_back(event);
        }
    }
}

fn check_path(path: &AhAttributes) -> Result<(), VerbsError> {
    match path.dlid.is_unicast() {
        true => Ok(()),
        false => Err(VerbsError::BadAttribute("the destination LID")),
    }
}
