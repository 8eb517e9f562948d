//! The receiving half of a connection (IBA 9.7.4, 9.7.5.2, 9.8.2): takes requests in sequence, once each, and answers them.

use super::aeth::{Credits, Nak, Syndrome};
use super::answers::{Answer, Answers};
use super::buffers::{Buffer, Buffers};
use super::memory::{Need, Region};
use super::{MAX_MESSAGE, Message, OPERATION, Outgoing, Output, Regions, Report};
use std::collections::VecDeque;
use std::sync::Arc;
use verbs::{
    Access, CompletionStatus, ConnectedInit, ConnectedService, ReceiveQueue, RemoteAddress,
    RnrTimer, RtrAttributes,
};
use wire::Psn;
use wire::packet::{AtomicEth, Opcode, Packet};

/// Outputs that the user has not taken; beyond, the peer has to wait.
const MAX_UNTAKEN: usize = 256;
/// A message of several packets, so far.
enum Assembly {
    Send(Buffer),
    Write {
        region: Arc<Region>,
        /// Where the next byte goes, and how many are to come.
        offset: u64,
        left: u64,
        length: u32,
    },
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Middle,
    Last,
    Only,
}

impl Part {
    fn is_first(self) -> bool {
        matches!(self, Part::First | Part::Only)
    }
    fn is_last(self) -> bool {
        matches!(self, Part::Last | Part::Only)
    }
}

/// What a request packet is.
enum Kind {
    Send(Part),
    Write(Part),
    Read,
    CompareSwap,
    FetchAdd,
}

fn kind(operation: u8) -> Option<Kind> {
    Some(match Opcode(operation) {
        Opcode::RC_SEND_FIRST => Kind::Send(Part::First),
        Opcode::RC_SEND_MIDDLE => Kind::Send(Part::Middle),
        Opcode::RC_SEND_LAST | Opcode::RC_SEND_LAST_IMM => Kind::Send(Part::Last),
        Opcode::RC_SEND_ONLY | Opcode::RC_SEND_ONLY_IMM => Kind::Send(Part::Only),
        Opcode::RC_RDMA_WRITE_FIRST => Kind::Write(Part::First),
        Opcode::RC_RDMA_WRITE_MIDDLE => Kind::Write(Part::Middle),
        Opcode::RC_RDMA_WRITE_LAST | Opcode::RC_RDMA_WRITE_LAST_IMM => Kind::Write(Part::Last),
        Opcode::RC_RDMA_WRITE_ONLY | Opcode::RC_RDMA_WRITE_ONLY_IMM => Kind::Write(Part::Only),
        Opcode::RC_RDMA_READ_REQUEST => Kind::Read,
        Opcode::RC_COMPARE_SWAP => Kind::CompareSwap,
        Opcode::RC_FETCH_ADD => Kind::FetchAdd,
        _ => return None,
    })
}

/// Why a packet in sequence is not taken.
enum Refusal {
    NotReady,
    Nak(Nak),
}

const INVALID: Refusal = Refusal::Nak(Nak::InvalidRequest);
const NO_ACCESS: Refusal = Refusal::Nak(Nak::RemoteAccess);

/// The receiving half.
pub(super) struct Responder {
    init: ConnectedInit,
    access: Access,
    pmtu: usize,
    rnr_timer: RnrTimer,
    max_rd_atomic: usize,
    expected: Psn,
    msn: u32,
    /// A NAK for `expected` is sent: what comes after it is dropped in silence.
    nak_sent: bool,
    assembly: Option<Assembly>,
    /// Acknowledge up to here when the batch is over.
    ack_due: Option<Psn>,
    answers: Answers,
    /// The last ATOMIC operations, for the case that they come again.
    atomics: VecDeque<(Psn, u64)>,
    /// PSN of the last READ or ATOMIC: its response is its acknowledgement.
    last_response: Option<Psn>,
    places: usize,
    buffers: Arc<Buffers>,
}

impl Responder {
    pub(super) fn new(
        init: ConnectedInit,
        access: Access,
        pmtu: usize,
        rtr: &RtrAttributes,
        buffers: Arc<Buffers>,
    ) -> Self {
        Responder {
            init,
            access,
            pmtu,
            rnr_timer: rtr.min_rnr_timer,
            max_rd_atomic: rtr.max_dest_rd_atomic.into(),
            expected: rtr.rq_psn,
            msn: 0,
            nak_sent: false,
            assembly: None,
            ack_due: None,
            answers: Answers::default(),
            atomics: VecDeque::new(),
            last_response: None,
            places: 0,
            buffers,
        }
    }

    pub(super) fn post_receives(&mut self, n: usize) {
        self.places = self.places.saturating_add(n);
    }

    /// A request packet.
    ///
    /// # Errors
    /// It was refused for good: the connection is over.
    pub(super) fn handle(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        report: &mut Report,
    ) -> Result<(), CompletionStatus> {
        match self.init.service {
            ConnectedService::Reliable => self.reliable(packet, regions, report),
            ConnectedService::Unreliable => {
                self.unreliable(packet, regions, report);
                Ok(())
            }
        }
    }

    fn reliable(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        report: &mut Report,
    ) -> Result<(), CompletionStatus> {
        let after = packet.bth.psn.diff(self.expected);
        if after < 0 {
            report.counters.rx_duplicates += 1;
            self.duplicate(packet, regions);
            return Ok(());
        }
        if after > 0 {
            report.counters.rx_out_of_sequence += 1;
            if !self.nak_sent {
                self.nak(Syndrome::Nak(Nak::Sequence), report);
            }
            return Ok(());
        }
        match self.take(packet, regions, report) {
            Ok(()) => {
                report.counters.rx_packets += 1;
                self.nak_sent = false;
                if packet.bth.ack_req {
                    self.ack_due = Some(self.expected.add(0xff_ffff));
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                report.counters.rx_not_ready += 1;
                self.nak(Syndrome::Rnr(self.rnr_timer), report);
                Ok(())
            }
            Err(Refusal::Nak(nak)) => {
                report.counters.rx_invalid += 1;
                self.nak(Syndrome::Nak(nak), report);
                self.assembly = None;
                Err(nak.status().unwrap_or(CompletionStatus::RemoteOperation))
            }
        }
    }

    /// IBA 9.8.2: what follows a gap is dropped up to the next message.
    fn unreliable(&mut self, packet: &Packet<'_>, regions: &Regions, report: &mut Report) {
        let begins = match kind(packet.bth.opcode.0 & OPERATION) {
            Some(Kind::Send(part) | Kind::Write(part)) => part.is_first(),
            _ => return report.counters.rx_invalid += 1,
        };
        if packet.bth.psn != self.expected || begins {
            report.counters.rx_incomplete += u64::from(self.assembly.take().is_some());
            if !begins {
                report.counters.rx_out_of_sequence += 1;
                return;
            }
            self.expected = packet.bth.psn;
        }
        match self.take(packet, regions, report) {
            Ok(()) => return report.counters.rx_packets += 1,
            Err(Refusal::NotReady) => report.counters.rx_not_ready += 1,
            Err(Refusal::Nak(_)) => report.counters.rx_invalid += 1,
        }
        self.assembly = None;
        self.expected = self.expected.add(1);
    }

    /// A packet that has its turn.
    fn take(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        report: &mut Report,
    ) -> Result<(), Refusal> {
        let mut psns = 1;
        match kind(packet.bth.opcode.0 & OPERATION).ok_or(INVALID)? {
            Kind::Send(part) => self.send(part, packet, report)?,
            Kind::Write(part) => self.write(part, packet, regions, report)?,
            Kind::Read => psns = self.read(packet, regions)?,
            Kind::CompareSwap => {
                self.atomic(packet, regions, |eth, found| match found == eth.compare {
                    true => eth.swap_or_add,
                    false => found,
                })?
            }
            Kind::FetchAdd => self.atomic(packet, regions, |eth, found| {
                found.wrapping_add(eth.swap_or_add)
            })?,
        }
        self.expected = self.expected.add(psns);
        Ok(())
    }

    /// Payload of each packet but the last is the path MTU; and a message that begins must not be in the midst of another (IBA 9.7.4.1.2).
    fn check_part(&self, part: Part, len: usize) -> Result<(), Refusal> {
        let fits = match part {
            Part::First | Part::Middle => len == self.pmtu,
            Part::Last => (1..=self.pmtu).contains(&len),
            Part::Only => len <= self.pmtu,
        };
        match fits && part.is_first() == self.assembly.is_none() {
            true => Ok(()),
            false => Err(INVALID),
        }
    }

    /// Is there a place for one more message?
    fn check_place(&self, report: &Report) -> Result<(), Refusal> {
        let no_place = self.init.receives == ReceiveQueue::Posted && self.places == 0;
        match no_place || report.outputs.len() >= MAX_UNTAKEN {
            true => Err(Refusal::NotReady),
            false => Ok(()),
        }
    }

    fn send(
        &mut self,
        part: Part,
        packet: &Packet<'_>,
        report: &mut Report,
    ) -> Result<(), Refusal> {
        self.check_part(part, packet.payload.len())?;
        if part.is_first() {
            self.check_place(report)?;
        }
        let so_far = match &self.assembly {
            None => 0,
            Some(Assembly::Send(bytes)) => bytes.len(),
            Some(Assembly::Write { .. }) => return Err(INVALID),
        };
        if so_far + packet.payload.len() > self.init.max_message as usize {
            return Err(INVALID);
        }
        let mut bytes = match self.assembly.take() {
            Some(Assembly::Send(bytes)) => bytes,
            _ => self.buffers.take(),
        };
        bytes.extend_from_slice(packet.payload);
        match part.is_last() {
            true => self.deliver(bytes, None, packet, report),
            false => self.assembly = Some(Assembly::Send(bytes)),
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        bytes: Buffer,
        written: Option<u32>,
        packet: &Packet<'_>,
        report: &mut Report,
    ) {
        self.message_done();
        self.places = self.places.saturating_sub(1);
        report.counters.rx_messages += 1;
        report.outputs.push_back(Output::Message(Message {
            bytes,
            immediate: packet.ext.immediate,
            solicited: packet.bth.solicited,
            written,
        }));
    }

    fn message_done(&mut self) {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }

    fn write(
        &mut self,
        part: Part,
        packet: &Packet<'_>,
        regions: &Regions,
        report: &mut Report,
    ) -> Result<(), Refusal> {
        let len = packet.payload.len() as u64;
        self.check_part(part, packet.payload.len())?;
        if part.is_last() && packet.ext.immediate.is_some() {
            self.check_place(report)?;
        }
        let (region, offset, left, length) = match (&self.assembly, packet.ext.reth) {
            (None, Some(reth)) => {
                let length = u64::from(reth.dma_length);
                let at = RemoteAddress {
                    address: reth.virtual_address,
                    r_key: reth.r_key,
                };
                if length == 0 && len == 0 && part == Part::Only {
                    // Nothing is touched: key and address are not looked at (IBA 9.7.4.1.5).
                    self.written(0, packet, report);
                    return Ok(());
                }
                if length > MAX_MESSAGE as u64 {
                    return Err(INVALID);
                }
                let allowed = self.access.remote_write;
                let found = regions.find(at, length, Need::Write).filter(|_| allowed);
                let (region, offset) = found.ok_or(NO_ACCESS)?;
                (region, offset, length, reth.dma_length)
            }
            (
                Some(Assembly::Write {
                    region,
                    offset,
                    left,
                    length,
                }),
                None,
            ) => (region.clone(), *offset, *left, *length),
            _ => return Err(INVALID),
        };
        if part.is_last() && left != len || !part.is_last() && left <= len {
            return Err(INVALID);
        }
        if !region.write(offset, packet.payload) {
            return Err(NO_ACCESS);
        }
        if part.is_last() {
            self.assembly = None;
            self.written(length, packet, report);
        } else {
            self.assembly = Some(Assembly::Write {
                region,
                offset: offset + len,
                left: left - len,
                length,
            });
        }
        Ok(())
    }

    fn written(&mut self, length: u32, packet: &Packet<'_>, report: &mut Report) {
        match packet.ext.immediate {
            Some(_) => self.deliver(Buffer::default(), Some(length), packet, report),
            None => self.message_done(),
        }
    }

    /// The region and offset that a READ request names.
    fn readable(&self, packet: &Packet<'_>, regions: &Regions) -> Result<(Answer, u32), Refusal> {
        let reth = packet.ext.reth.ok_or(INVALID)?;
        let left = u64::from(reth.dma_length);
        if left > MAX_MESSAGE as u64 || !packet.payload.is_empty() {
            return Err(INVALID);
        }
        let at = RemoteAddress {
            address: reth.virtual_address,
            r_key: reth.r_key,
        };
        let allowed = self.access.remote_read;
        let found = regions.find(at, left, Need::Read).filter(|_| allowed);
        let (region, offset) = found.ok_or(NO_ACCESS)?;
        let psns = left.div_ceil(self.pmtu as u64).max(1) as u32;
        let answer = Answer::Read {
            psn: packet.bth.psn,
            msn: self.msn,
            region,
            offset,
            left,
            first: true,
        };
        Ok((answer, psns))
    }

    fn read(&mut self, packet: &Packet<'_>, regions: &Regions) -> Result<u32, Refusal> {
        if self.assembly.is_some() || self.answers.open() >= self.max_rd_atomic {
            return Err(INVALID);
        }
        let (mut answer, psns) = self.readable(packet, regions)?;
        self.message_done();
        if let Answer::Read { msn, .. } = &mut answer {
            *msn = self.msn;
        }
        self.flush_ack();
        self.answers.push(answer);
        self.last_response = Some(self.expected.add(psns - 1));
        Ok(psns)
    }

    fn atomic(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        change: fn(&AtomicEth, u64) -> u64,
    ) -> Result<(), Refusal> {
        let eth = packet.ext.atomic.ok_or(INVALID)?;
        if self.assembly.is_some()
            || self.answers.open() >= self.max_rd_atomic
            || !eth.virtual_address.is_multiple_of(8)
            || !packet.payload.is_empty()
        {
            return Err(INVALID);
        }
        let at = RemoteAddress {
            address: eth.virtual_address,
            r_key: eth.r_key,
        };
        let allowed = self.access.remote_atomic;
        let found = regions.find(at, 8, Need::Atomic).filter(|_| allowed);
        let (region, offset) = found.ok_or(NO_ACCESS)?;
        let original = region.atomic(offset, |found| change(&eth, found));
        let original = original.ok_or(NO_ACCESS)?;
        self.message_done();
        self.flush_ack();
        let (psn, msn) = (packet.bth.psn, self.msn);
        self.answers.push(Answer::Atomic { psn, msn, original });
        self.atomics.push_back((psn, original));
        while self.atomics.len() > self.max_rd_atomic {
            self.atomics.pop_front();
        }
        self.last_response = Some(psn);
        Ok(())
    }

    /// A packet that was taken before (IBA 9.7.5.1.4): answered again, never done again.
    fn duplicate(&mut self, packet: &Packet<'_>, regions: &Regions) {
        let psn = packet.bth.psn;
        match kind(packet.bth.opcode.0 & OPERATION) {
            Some(Kind::Send(_) | Kind::Write(_)) => {
                // Past a READ or ATOMIC only its response acknowledges.
                let before_response = self.last_response.is_some_and(|last| psn.diff(last) < 0);
                self.ack_due = Some(match before_response {
                    true => psn,
                    false => self.expected.add(0xff_ffff),
                });
            }
            Some(Kind::Read) if self.answers.open() < self.max_rd_atomic => {
                if let Ok((answer, psns)) = self.readable(packet, regions)
                    && psn.add(psns).diff(self.expected) <= 0
                {
                    self.flush_ack();
                    self.answers.push(answer);
                }
            }
            Some(Kind::CompareSwap | Kind::FetchAdd)
                if self.answers.open() < self.max_rd_atomic =>
            {
                if let Some((_, original)) = self.atomics.iter().rev().find(|a| a.0 == psn) {
                    let (msn, original) = (self.msn, *original);
                    self.flush_ack();
                    self.answers.push(Answer::Atomic { psn, msn, original });
                }
            }
            _ => {}
        }
    }

    fn nak(&mut self, syndrome: Syndrome, report: &mut Report) {
        report.counters.rx_naks += 1;
        // It acknowledges all before.
        self.ack_due = None;
        self.nak_sent = true;
        self.acknowledge(self.expected, syndrome);
    }

    fn credits(&self) -> Credits {
        match self.init.receives {
            ReceiveQueue::Unlimited => Credits::UNLIMITED,
            ReceiveQueue::Posted => Credits::at_most(self.places),
        }
    }

    /// The packets so far are acknowledged, if it is due: when no more come for now, and before another answer.
    pub(super) fn flush_ack(&mut self) {
        if let Some(psn) = self.ack_due.take() {
            self.acknowledge(psn, Syndrome::Ack(self.credits()));
        }
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        self.answers.acknowledge(psn, syndrome, self.msn);
    }

    /// The next answer to leave.
    pub(super) fn poll_packet(&mut self, report: &mut Report) -> Option<Outgoing> {
        let credits = self.credits();
        let packet = self
            .answers
            .poll_packet(self.pmtu, credits, &self.buffers)?;
        report.counters.rx_responses += 1;
        Some(packet)
    }
}
