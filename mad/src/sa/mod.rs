//! Client of subnet administration (IBA chapter 15): sends requests to the SA through QP1, matches and assembles answers, acknowledges Reports.
//!
//! Requests are sent in the order they were made, at most a window of them at a time, so that a subnet manager that has just started is not
//! flooded. While it is not known where the SA is, they wait and cost no tries. When the SA moves, what is outstanding goes to the new place.

mod redirect;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use request::SaRequest;
pub use response::{SaError, SaResponse};

use self::redirect::{MAX_REDIRECTS, Place, is_redirect};
use crate::rmpp::{Receiver, Step};
use crate::transaction::{Expired, RetryPolicy, Transactions};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use verbs::{MadReceived, MadSend};
use wire::mad::attr::Notice;
use wire::mad::rmpp::ack;
use wire::mad::sa::RmppHeader;
use wire::mad::{AttrId, MadBytes, MadHeader, MadStatus, Method, MgmtClass, SaMad};
use wire::{Gid, Lid, PKey, ServiceLevel};

/// Reports remembered, to tell repetitions.
const REPORTS_REMEMBERED: usize = 64;
/// Finished transfers remembered, to acknowledge their last segment again.
const TRANSFERS_REMEMBERED: usize = 16;

/// Limits and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaClientConfig {
    /// Requests outstanding at the SA at a time.
    pub window: usize,
    /// Requests that may wait for their turn.
    pub queue: usize,
    /// Waits and tries of requests.
    pub retry: RetryPolicy,
    /// Longest table taken, bytes.
    pub max_table: usize,
}

impl Default for SaClientConfig {
    fn default() -> Self {
        SaClientConfig {
            window: 32,
            queue: 16_384,
            retry: RetryPolicy::default(),
            max_table: 16 << 20,
        }
    }
}

/// Where the SA is: with the master subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmAddress {
    /// Its LID (SMLID of PortInfo).
    pub lid: Lid,
    /// Service level towards it.
    pub sl: ServiceLevel,
    /// Own P_Key of the default partition, full or limited.
    pub p_key: PKey,
}

/// Names a request of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// News for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaEvent {
    /// A request is over.
    Response {
        /// Which.
        id: RequestId,
        /// How it went.
        result: Result<SaResponse, SaError>,
    },
    /// A Report came; it has been acknowledged. Reports may be reordered: ask the SA before acting on one.
    Notice(Notice),
}

/// What happened to MADs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaClientCounters {
    /// Requests sent for the first time.
    pub sent: u64,
    /// Requests sent again.
    pub resent: u64,
    /// Answers taken.
    pub responses: u64,
    /// Answers that said BUSY.
    pub busy: u64,
    /// Answers that named another port for the SA.
    pub redirected: u64,
    /// Requests given up.
    pub timeouts: u64,
    /// Answers to nothing outstanding: late or repeated. Dropped.
    pub unmatched: u64,
    /// Requests refused since too many waited.
    pub overload: u64,
    /// MADs that are no SA MADs for a client, or answer another question. Dropped.
    pub malformed: u64,
    /// Dropped: not from the LID where the SA is.
    pub foreign: u64,
    /// RMPP segments taken.
    pub segments: u64,
    /// RMPP transfers that the SA stopped, or that broke.
    pub broken_transfers: u64,
    /// Reports passed on.
    pub reports: u64,
    /// Reports acknowledged again but not passed on again.
    pub repeated_reports: u64,
}

#[derive(Debug)]
struct Outstanding {
    id: RequestId,
    request: SaRequest,
    /// A table on its way, and the header of its last segment.
    transfer: Option<(Receiver, MadHeader)>,
    /// Redirections it has followed.
    redirects: u8,
}

/// The client. See the module's text for what it promises.
#[derive(Debug)]
pub struct SaClient {
    config: SaClientConfig,
    sm: Option<SmAddress>,
    /// Where the SA has redirected us.
    redirected: Option<Place>,
    next_id: u64,
    waiting: BTreeMap<RequestId, SaRequest>,
    outstanding: Transactions<Outstanding>,
    transmit: VecDeque<MadSend>,
    events: VecDeque<SaEvent>,
    reports: VecDeque<(u64, Lid, Gid)>,
    finished: VecDeque<(u64, u32)>,
    counters: SaClientCounters,
}

impl SaClient {
    /// A client that does not know yet where the SA is. `tid_high`: the MAD agent's number; `seed`: for TIDs and jitter.
    pub fn new(config: SaClientConfig, tid_high: u32, seed: u64) -> Self {
        SaClient {
            outstanding: Transactions::new(config.window.max(1), tid_high, seed),
            config,
            sm: None,
            redirected: None,
            next_id: 0,
            waiting: BTreeMap::new(),
            transmit: VecDeque::new(),
            events: VecDeque::new(),
            reports: VecDeque::new(),
            finished: VecDeque::new(),
            counters: SaClientCounters::default(),
        }
    }

    /// Where the SA is; `None`: nowhere, and requests wait without a time-out. At a change what is outstanding is asked again at the new place,
    /// with new TIDs, so that an answer of the old SA no longer counts.
    pub fn set_sm(&mut self, now: Instant, sm: Option<SmAddress>) {
        if self.sm == sm {
            return;
        }
        self.sm = sm;
        self.redirected = None;
        self.transmit.retain(|send| send.mad[3] & 0x80 != 0);
        self.waiting.extend(
            self.outstanding
                .drain()
                .into_iter()
                .map(|o| (o.id, o.request)),
        );
        self.pump(now);
    }

    /// Asks. The answer comes as an event.
    pub fn request(&mut self, now: Instant, request: SaRequest) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        if self.waiting.len() >= self.config.queue {
            self.counters.overload += 1;
            self.finish(id, Err(SaError::Overload(self.waiting.len())));
            return id;
        }
        self.waiting.insert(id, request);
        self.pump(now);
        id
    }

    /// The answer is of no interest any more: no event will come, unless it waits to be polled already. The SA may have done what was asked.
    pub fn cancel(&mut self, now: Instant, id: RequestId) {
        self.waiting.remove(&id);
        let tid = self
            .outstanding
            .iter()
            .find(|(_, o)| o.id == id)
            .map(|(tid, _)| tid);
        if let Some(tid) = tid {
            self.outstanding.finish(tid);
        }
        self.pump(now);
    }

    /// Takes a MAD that came for this agent.
    pub fn handle_mad(&mut self, now: Instant, received: &MadReceived) {
        let Some(mad) = SaMad::parse(&received.mad[..]) else {
            return;
        };
        if mad.header.mgmt_class != MgmtClass::SUBN_ADM || mad.header.base_version != 1 {
            self.counters.malformed += 1;
        } else if !self.is_from_sa(received.slid) {
            self.counters.foreign += 1;
        } else if mad.header.method == Method::REPORT {
            self.report(received, &mad);
        } else if !mad.header.method.is_response() {
            // ACKs of transfers we do not send, and requests: this is no SA.
            self.counters.malformed += 1;
        } else if mad.rmpp.active && mad.rmpp.version == 1 {
            self.segment(now, received, mad);
        } else {
            self.answer(now, mad, None);
        }
        self.pump(now);
    }

    /// What was asked before a redirection is still answered by who was asked.
    fn is_from_sa(&self, slid: Lid) -> bool {
        self.sm.is_some_and(|sm| sm.lid == slid) || self.redirected.is_some_and(|to| to.lid == slid)
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<MadSend> {
        self.transmit.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SaEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.outstanding.poll_timeout()
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(expired) = self.outstanding.expire(now) {
            match expired {
                Expired::Resend(tid) => {
                    self.counters.resent += 1;
                    self.send(tid);
                }
                Expired::GaveUp { tries, token, .. } => {
                    self.counters.timeouts += 1;
                    // If nobody is where we were sent, the next request finds out where to go.
                    self.redirected = None;
                    let sm_lid = self.sm.map_or(Lid::UNSET, |sm| sm.lid);
                    self.finish(token.id, Err(SaError::Timeout { tries, sm_lid }));
                }
            }
        }
        self.pump(now);
    }

    /// What happened so far.
    pub fn counters(&self) -> SaClientCounters {
        self.counters
    }

    /// Requests at the SA, and requests that wait.
    pub fn pending(&self) -> (usize, usize) {
        (self.outstanding.len(), self.waiting.len())
    }

    /// Sends waiting requests as far as the window allows.
    fn pump(&mut self, now: Instant) {
        if self.sm.is_none() {
            return;
        }
        while !self.outstanding.is_full()
            && let Some((id, request)) = self.waiting.pop_first()
        {
            if let Ok(tid) = self.outstanding.begin(
                now,
                self.config.retry,
                Outstanding {
                    id,
                    request,
                    transfer: None,
                    redirects: 0,
                },
            ) {
                self.counters.sent += 1;
                self.send(tid);
            }
        }
    }

    /// Sends the request with this TID; if its answer is already on the way, an ACK to remind the SA where it stands.
    fn send(&mut self, tid: u64) {
        let (Some(sm), Some(outstanding)) = (self.sm, self.outstanding.get_mut(tid)) else {
            return;
        };
        let mad = match &mut outstanding.transfer {
            Some((receiver, header)) if receiver.started() => receiver.ack(header),
            _ => {
                let r = &outstanding.request;
                SaMad::request(r.method, r.attr_id, r.component_mask, &r.record, tid)
            }
        };
        let place = self.redirected.unwrap_or(sm.into());
        self.transmit.push_back(place.send(&mad));
    }

    fn finish(&mut self, id: RequestId, result: Result<SaResponse, SaError>) {
        self.events.push_back(SaEvent::Response { id, result });
    }

    /// Is this an answer to the outstanding request with its TID?
    fn matches(&mut self, header: &MadHeader) -> bool {
        let Some(outstanding) = self.outstanding.get(header.tid) else {
            self.counters.unmatched += 1;
            return false;
        };
        let same = (outstanding.request.attr_id == header.attr_id
            && outstanding.request.method.response() == header.method)
            || (header.status.is_redirect() && header.attr_id == AttrId::CLASS_PORT_INFO);
        self.counters.malformed += u64::from(!same);
        same
    }

    /// A whole answer: one MAD, or the `table` that its last segment completed.
    fn answer(&mut self, now: Instant, mad: SaMad, table: Option<Vec<u8>>) {
        if !self.matches(&mad.header) || (is_redirect(&mad) && self.follow(now, &mad)) {
            return;
        }
        let SaMad {
            header,
            attr_offset,
            component_mask,
            data,
            ..
        } = mad;
        if header.status.is_busy() {
            self.counters.busy += 1;
            self.outstanding.busy(now, header.tid);
            return;
        }
        let Some(outstanding) = self.outstanding.finish(header.tid) else {
            return;
        };
        self.counters.responses += 1;
        let result = if header.status.is_ok() {
            Ok(SaResponse {
                method: header.method,
                attr_id: header.attr_id,
                pitch: usize::from(attr_offset) * 8,
                component_mask,
                data: table.unwrap_or_else(|| data.to_vec()),
            })
        } else {
            Err(SaError::Status {
                request: outstanding.request.to_string(),
                status: header.status,
            })
        };
        self.finish(outstanding.id, result);
    }

    /// Turns to where `mad` redirects; true if its request is asked again there.
    fn follow(&mut self, now: Instant, mad: &SaMad) -> bool {
        let (tid, required) = (mad.header.tid, mad.header.status.is_redirect());
        let Some(place) = Place::redirected(mad) else {
            return false;
        };
        let Some(outstanding) = self.outstanding.get_mut(tid) else {
            return false;
        };
        if required && outstanding.redirects >= MAX_REDIRECTS {
            return false;
        }
        outstanding.redirects += u8::from(required);
        self.counters.redirected += 1;
        self.redirected = Some(place);
        if required {
            self.outstanding.progress(now, tid);
            self.send(tid);
        }
        required
    }

    /// An RMPP packet of an answer.
    fn segment(&mut self, now: Instant, received: &MadReceived, mad: SaMad) {
        let tid = mad.header.tid;
        if let Some(&(_, last)) = self.finished.iter().find(|(finished, _)| *finished == tid) {
            // Our last ACK was lost.
            self.counters.unmatched += 1;
            if mad.rmpp.kind == RmppHeader::DATA {
                self.reply(received, ack(&mad.header, last, last));
            }
            return;
        }
        if !self.matches(&mad.header) {
            return;
        }
        if mad.rmpp.kind != RmppHeader::DATA {
            let reason = if mad.rmpp.kind == RmppHeader::STOP {
                "it stopped the transfer"
            } else {
                "it broke the transfer off"
            };
            return self.broken(tid, reason);
        }
        if !mad.header.status.is_ok() {
            return self.answer(now, mad, None);
        }
        self.counters.segments += 1;
        let limit = self.config.max_table;
        let Some(outstanding) = self.outstanding.get_mut(tid) else {
            return;
        };
        let (receiver, header) = outstanding
            .transfer
            .get_or_insert_with(|| (Receiver::new(limit), mad.header));
        *header = mad.header;
        match receiver.segment(&mad) {
            Step::Quiet => {
                self.outstanding.progress(now, tid);
            }
            Step::Ack => {
                let ack = receiver.ack(&mad.header);
                self.outstanding.progress(now, tid);
                self.reply(received, ack);
            }
            Step::Done(table) => {
                let last = mad.rmpp.segment;
                self.reply(received, ack(&mad.header, last, last));
                if self.finished.len() >= TRANSFERS_REMEMBERED {
                    self.finished.pop_front();
                }
                self.finished.push_back((tid, last));
                self.answer(now, mad, Some(table));
            }
            Step::Broken(reason) => self.broken(tid, reason),
        }
    }

    fn broken(&mut self, tid: u64, reason: &'static str) {
        self.counters.broken_transfers += 1;
        if let Some(outstanding) = self.outstanding.finish(tid) {
            let request = outstanding.request.to_string();
            self.finish(outstanding.id, Err(SaError::Malformed { request, reason }));
        }
    }

    /// A Report: acknowledged each time, passed on the first time (IBA 13.4.8.2, 13.4.11).
    fn report(&mut self, received: &MadReceived, mad: &SaMad) {
        let Some(notice) =
            Notice::parse(&mad.data).filter(|_| mad.header.attr_id == AttrId::NOTICE)
        else {
            self.counters.malformed += 1;
            return;
        };
        self.reply(received, mad.response(MadStatus::OK));
        let key = (mad.header.tid, received.slid, notice.issuer_gid);
        if self.reports.contains(&key) {
            self.counters.repeated_reports += 1;
            return;
        }
        if self.reports.len() >= REPORTS_REMEMBERED {
            self.reports.pop_front();
        }
        self.reports.push_back(key);
        self.counters.reports += 1;
        self.events.push_back(SaEvent::Notice(notice));
    }

    fn reply(&mut self, received: &MadReceived, mad: SaMad) {
        let bytes: MadBytes = mad.emit();
        self.transmit.push_back(received.reply(Box::new(bytes)));
    }
}
