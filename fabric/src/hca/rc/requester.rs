//! The sending half of a connection (IBA 9.7.5.1, 9.7.6, 9.7.7): cuts requests into packets, keeps them until they are acknowledged, sends them
//! again.
//!
//! PSNs count on without end inside; 24 bits of them go on the wire. `una <= nxt <= max <= end`: oldest unacknowledged, next to send, next never
//! sent, next to be posted.

use super::aeth::{Credits, Syndrome};
use super::request::{Request, Work};
use super::{Buffers, Outgoing, Output, Report};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use verbs::{
    Completion, CompletionData, CompletionStatus, ConnectedSend, ConnectedService, RtsAttributes,
};
use wire::Psn;
use wire::packet::{Opcode, Packet};

/// Packets on the way at once: four IPoIB packets of connected mode at path MTU 2048. More gain nothing on a link without delay, and lose more
/// where a receiver's buffer is small.
const WINDOW: u64 = 128;
/// After losses it may shrink to this: what follows a lost packet is sent in vain.
const MIN_WINDOW: u64 = 16;
/// An acknowledgement is asked for at least that often, so that the window moves on before it is full.
const ACK_INTERVAL: u64 = 32;

/// The sending half.
pub(super) struct Requester {
    service: ConnectedService,
    pmtu: usize,
    rts: RtsAttributes,
    buffers: Arc<Buffers>,
    queue: VecDeque<Request>,
    bytes: usize,
    una: u64,
    nxt: u64,
    max: u64,
    end: u64,
    /// Packets on the way at once; half as many after each loss, one more after each acknowledgement.
    window: u64,
    /// Requests posted and completed so far.
    posted: u64,
    done: u64,
    /// Requests up to this number have a place at the receiver; `None`: not limited, or not known.
    limit: Option<u64>,
    /// When the acknowledgement is late.
    timer: Option<Instant>,
    /// The receiver was not ready: nothing leaves before.
    rnr_until: Option<Instant>,
    retries: u8,
    rnr_retries: u8,
    /// `una` for which packets were sent again already because of a gap: further reports of it tell nothing new.
    repaired: Option<u64>,
    /// SQD: nothing from here on is begun.
    drain_at: Option<u64>,
}

impl Requester {
    pub(super) fn new(
        service: ConnectedService,
        pmtu: usize,
        rts: RtsAttributes,
        buffers: Arc<Buffers>,
    ) -> Self {
        Requester {
            service,
            pmtu,
            retries: rts.retry_count,
            rnr_retries: rts.rnr_retry,
            rts,
            buffers,
            queue: VecDeque::new(),
            bytes: 0,
            una: 0,
            nxt: 0,
            max: 0,
            end: 0,
            window: WINDOW,
            posted: 0,
            done: 0,
            limit: None,
            timer: None,
            rnr_until: None,
            repaired: None,
            drain_at: None,
        }
    }

    /// Requests and bytes that wait.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.queue.len(), self.bytes)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timer.into_iter().chain(self.rnr_until).min()
    }

    pub(super) fn post(&mut self, send: &ConnectedSend<'_>) {
        self.posted += 1;
        let request = Request::new(send, &self.buffers, self.pmtu, self.posted, self.end);
        self.end = request.end;
        self.bytes += request.bytes();
        self.queue.push_back(request);
    }

    fn psn(&self, n: u64) -> Psn {
        // 24 bits are left of it.
        self.rts.sq_psn.add(n as u32)
    }

    /// The number that `psn` stands for: the nearest to `una`; `None` before the beginning.
    fn number(&self, psn: Psn) -> Option<u64> {
        self.una
            .checked_add_signed(psn.diff(self.psn(self.una)).into())
    }

    fn index_of(&self, n: u64) -> usize {
        self.queue.partition_point(|r| r.end <= n)
    }

    /// Where sending ends for now.
    fn sendable(&self) -> u64 {
        self.drain_at.map_or(self.end, |at| at.min(self.end))
    }

    /// SQD begins: what has begun goes on.
    pub(super) fn drain(&mut self) {
        let begun = self.queue.iter().rfind(|r| r.first < self.max);
        self.drain_at = Some(begun.map_or(self.una, |r| r.end));
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drain_at.is_some_and(|at| self.una >= at)
    }

    pub(super) fn resume(&mut self) {
        self.drain_at = None;
    }

    /// The next packet to leave.
    ///
    /// # Errors
    /// The request that would be next can never be done.
    pub(super) fn poll_packet(
        &mut self,
        now: Instant,
        report: &mut Report,
    ) -> Result<Option<Outgoing>, CompletionStatus> {
        let (at, reliable) = (self.nxt, self.service == ConnectedService::Reliable);
        if self.rnr_until.is_some() || at >= self.sendable() || at - self.una >= self.window {
            return Ok(None);
        }
        let index = self.index_of(at);
        let Some(request) = self.queue.get(index) else {
            return Ok(None);
        };
        let open = || {
            let before = self.queue.iter().take(index);
            before.filter(|r| r.wants_response()).count()
        };
        if request.fence && open() > 0 {
            return Ok(None);
        }
        if request.wants_response() {
            if !reliable || self.rts.max_rd_atomic == 0 {
                // Those before it are not concerned.
                return match index {
                    0 => Err(CompletionStatus::LocalOperation),
                    _ => Ok(None),
                };
            }
            if open() >= usize::from(self.rts.max_rd_atomic) {
                return Ok(None);
            }
        }
        // IBA 9.7.7.2.5: without a credit one packet at a time finds out whether there is a place.
        let limited = self.limit.is_some_and(|limit| request.ssn > limit);
        if limited && at != self.una {
            return Ok(None);
        }
        let after = match request.wants_response() {
            true => request.end,
            false => at + 1,
        };
        let next_waits = || {
            let next = self.queue.get(index + 1);
            next.is_none_or(|r| r.wants_response() || self.limit.is_some_and(|limit| r.ssn > limit))
        };
        let ack_req = reliable
            && (limited
                || after >= self.sendable()
                || after - self.una >= self.window
                || after.is_multiple_of(ACK_INTERVAL)
                || after == request.end && next_waits());
        let ack_req = ack_req && !request.wants_response();
        let mut packet = request.packet(self.service, self.pmtu, at);
        (packet.psn, packet.ack_req) = (self.psn(at), ack_req);
        report.counters.tx_packets += 1;
        report.counters.tx_repeated += u64::from(at < self.max);
        let finished = after == request.end;
        self.nxt = after;
        self.max = self.max.max(after);
        if !reliable {
            self.una = after;
            if finished {
                self.complete_front(CompletionData::None, report);
            }
        } else if self.timer.is_none() {
            self.start_timer(now);
        }
        Ok(Some(packet))
    }

    /// An acknowledgement or response.
    ///
    /// # Errors
    /// How the oldest request ends: the connection is over.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        report: &mut Report,
    ) -> Result<(), CompletionStatus> {
        let before = self.una;
        let result = self.response(now, packet, report);
        self.nxt = self.nxt.max(self.una);
        if self.una != before {
            self.window = (self.window + 1).min(WINDOW);
            if self.rnr_until.is_none() {
                self.start_timer(now);
            }
        }
        result
    }

    fn response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        report: &mut Report,
    ) -> Result<(), CompletionStatus> {
        let Some(at) = self.number(packet.bth.psn).filter(|at| *at < self.max) else {
            report.counters.rx_unexpected_responses += 1;
            return Ok(());
        };
        let aeth = packet.ext.aeth;
        let syndrome = aeth.and_then(|a| Syndrome::parse(a.syndrome));
        if let (Some(Syndrome::Ack(credits)), Some(aeth)) = (syndrome, aeth) {
            // The last acknowledgement once more may bring new credits.
            if at + 1 >= self.una {
                self.take_credits(credits, aeth.msn);
            }
        }
        if at < self.una {
            report.counters.rx_unexpected_responses += 1;
            return Ok(());
        }
        match packet.bth.opcode {
            Opcode::RC_ACKNOWLEDGE => match syndrome {
                Some(Syndrome::Ack(_)) => {
                    if !self.acknowledge(at + 1, report) {
                        // Something later is done, so the response was lost.
                        return self.repair(now, report);
                    }
                    Ok(())
                }
                Some(Syndrome::Rnr(timer)) => {
                    report.counters.tx_rnr_naks += 1;
                    if !self.acknowledge(at, report) {
                        return self.repair(now, report);
                    }
                    if self.rnr_until.is_some() {
                        return Ok(());
                    }
                    match self.rnr_retries {
                        0 => return Err(CompletionStatus::RnrRetryExceeded),
                        7 => {}
                        _ => self.rnr_retries -= 1,
                    }
                    self.rnr_until = Some(now + timer.duration());
                    self.timer = None;
                    self.nxt = self.una;
                    self.repaired = None;
                    Ok(())
                }
                Some(Syndrome::Nak(nak)) => {
                    // Stops at a response that did not come: then that request ends with the NAK of a later one, for nothing comes any more.
                    self.acknowledge(at, report);
                    match nak.status() {
                        None => self.repair(now, report),
                        Some(status) => {
                            report.counters.tx_fatal_naks += 1;
                            Err(status)
                        }
                    }
                }
                None => {
                    report.counters.rx_unexpected_responses += 1;
                    Ok(())
                }
            },
            Opcode::RC_ATOMIC_ACK => self.atomic_response(now, at, packet, report),
            _ => self.read_response(now, at, packet, report),
        }
    }

    /// All before number `to` arrived. False if that passes over a response that did not.
    fn acknowledge(&mut self, to: u64, report: &mut Report) -> bool {
        while let Some(front) = self.queue.front() {
            if to <= self.una {
                return true;
            }
            if front.wants_response() {
                return false;
            }
            if to < front.end {
                self.advance(to);
                return true;
            }
            let end = front.end;
            self.advance(end);
            self.complete_front(CompletionData::None, report);
        }
        true
    }

    /// What comes next may be tried as often as what is done now.
    fn advance(&mut self, to: u64) {
        self.una = to;
        self.retries = self.rts.retry_count;
        self.rnr_retries = self.rts.rnr_retry;
    }

    fn atomic_response(
        &mut self,
        now: Instant,
        at: u64,
        packet: &Packet<'_>,
        report: &mut Report,
    ) -> Result<(), CompletionStatus> {
        let asked = self
            .queue
            .get(self.index_of(at))
            .is_some_and(|r| matches!(r.work, Work::CompareSwap { .. } | Work::FetchAdd { .. }));
        let Some(original) = packet.ext.atomic_ack.filter(|_| asked) else {
            report.counters.rx_unexpected_responses += 1;
            return Ok(());
        };
        if !self.acknowledge(at, report) {
            return self.repair(now, report);
        }
        self.advance(at + 1);
        self.complete_front(CompletionData::Original(original), report);
        Ok(())
    }

    fn read_response(
        &mut self,
        now: Instant,
        at: u64,
        packet: &Packet<'_>,
        report: &mut Report,
    ) -> Result<(), CompletionStatus> {
        let asked = self
            .queue
            .get(self.index_of(at))
            .and_then(|r| match r.work {
                Work::Read { len, .. } => {
                    let offset = (at - r.first) as usize * self.pmtu;
                    let expected = (len as usize - offset).min(self.pmtu);
                    (packet.payload.len() == expected).then_some(r.first)
                }
                _ => None,
            });
        let Some(first) = asked else {
            report.counters.rx_unexpected_responses += 1;
            return Ok(());
        };
        if !self.acknowledge(first, report) || at != self.una {
            return self.repair(now, report);
        }
        let Some(front) = self.queue.front_mut() else {
            return Ok(());
        };
        if let Work::Read { data, .. } = &mut front.work {
            data.extend_from_slice(packet.payload);
            let whole = (at + 1 == front.end).then(|| std::mem::take(data));
            self.advance(at + 1);
            if let Some(data) = whole {
                self.complete_front(CompletionData::Read(data), report);
            }
        }
        Ok(())
    }

    /// Something is missing from `una` on: sends it again, once for each `una`.
    fn repair(&mut self, now: Instant, report: &mut Report) -> Result<(), CompletionStatus> {
        report.counters.tx_sequence_naks += 1;
        if self.repaired == Some(self.una) || self.rnr_until.is_some() {
            return Ok(());
        }
        self.go_back(now)?;
        self.repaired = Some(self.una);
        Ok(())
    }

    fn go_back(&mut self, now: Instant) -> Result<(), CompletionStatus> {
        self.retries = self
            .retries
            .checked_sub(1)
            .ok_or(CompletionStatus::RetryExceeded)?;
        self.nxt = self.una;
        self.window = (self.window / 2).max(MIN_WINDOW);
        self.start_timer(now);
        Ok(())
    }

    /// What is due.
    ///
    /// # Errors
    /// No retries are left.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        report: &mut Report,
    ) -> Result<(), CompletionStatus> {
        if self.rnr_until.take_if(|at| *at <= now).is_some() {
            self.nxt = self.una;
        }
        if self.timer.is_some_and(|at| at <= now) {
            report.counters.tx_timeouts += 1;
            self.repaired = None;
            self.go_back(now)?;
        }
        Ok(())
    }

    fn start_timer(&mut self, now: Instant) {
        let waits = self.una < self.max;
        let timeout = self.rts.timeout.duration().filter(|_| waits);
        self.timer = timeout.map(|timeout| now + timeout);
    }

    fn take_credits(&mut self, credits: Credits, msn: u32) {
        let done = Psn::new(msn).diff(Psn::new(self.done as u32));
        self.limit = credits
            .count()
            .and_then(|count| Some(self.done.checked_add_signed(done.into())? + count));
    }

    /// The oldest request is done.
    fn complete_front(&mut self, data: CompletionData, report: &mut Report) {
        report.counters.tx_messages += 1;
        if let Some(request) = self.pop()
            && (request.signalled || data != CompletionData::None)
        {
            report.outputs.push_back(Output::Completion(Completion {
                id: request.id,
                status: CompletionStatus::Success,
                data,
            }));
        }
    }

    fn pop(&mut self) -> Option<Request> {
        let request = self.queue.pop_front()?;
        self.done += 1;
        self.bytes -= request.bytes();
        Some(request)
    }

    /// Ends all requests: the oldest with `status`, the others flushed.
    pub(super) fn flush(&mut self, status: CompletionStatus, report: &mut Report) {
        let mut status = Some(status);
        while let Some(request) = self.pop() {
            let status = status.take().unwrap_or(CompletionStatus::Flushed);
            super::end(request.id, status, report);
        }
        (self.una, self.nxt, self.max) = (self.end, self.end, self.end);
        (self.timer, self.rnr_until) = (None, None);
    }
}
