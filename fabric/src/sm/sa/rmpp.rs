//! Sending long answers: the reliable multi-packet protocol (IBA 13.6), sender's side.
//!
//! One segment goes first; each ACK says how far the receiver has come and how far the sender may go.

use super::super::counters::{Counter, Counters};
use super::CLIENT_TIMEOUT;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use verbs::{MadReceived, MadSend};
use wire::mad::SaMad;
use wire::mad::rmpp::{ack, segment, segment_count};
use wire::mad::sa::RmppHeader;
use wire::{Lid, Qpn};

/// Long answers on the way at once; more requests than that are dropped, and come again.
const MAX_SENDERS: usize = 256;
/// Of those, to one requester.
const MAX_PER_PORT: usize = 16;
/// Segments on the way to one requester, whatever window it grants.
const MAX_WINDOW: u32 = 64;
const RETRIES: u8 = 5;

/// Who asked and which transaction it is.
type Key = (Lid, Qpn, u64);

struct Sender {
    to: MadReceived,
    header: SaMad,
    bytes: Vec<u8>,
    /// Last segment that the receiver has, with all before.
    acked: u32,
    /// Last one that it has room for.
    limit: u32,
    /// Last one sent.
    sent: u32,
    deadline: Instant,
    retries: u8,
}

impl Sender {
    fn segments(&self) -> u32 {
        segment_count(self.bytes.len())
    }

    /// Sends all that may go.
    fn advance(&mut self, now: Instant, out: &mut VecDeque<MadSend>) {
        let end = self
            .segments()
            .min(self.limit)
            .min(self.acked.saturating_add(MAX_WINDOW));
        while self.sent < end {
            self.sent += 1;
            let segment = segment(&self.header, &self.bytes, self.sent);
            out.extend(segment.map(|mad| self.to.reply(Box::new(mad.emit()))));
        }
        self.deadline = now + CLIENT_TIMEOUT;
    }
}

#[derive(Default)]
pub(super) struct Senders(BTreeMap<Key, Sender>);

impl Senders {
    /// Begins an answer to `to`; `header` is that of all segments.
    pub(super) fn start(
        &mut self,
        now: Instant,
        to: &MadReceived,
        header: SaMad,
        bytes: Vec<u8>,
        out: &mut VecDeque<MadSend>,
        counters: &Counters,
    ) {
        let key = (to.slid, to.src_qp, header.header.tid);
        let of_port = self.0.keys().filter(|k| k.0 == to.slid).count();
        if !self.0.contains_key(&key) && (self.0.len() >= MAX_SENDERS || of_port >= MAX_PER_PORT) {
            return counters.add(Counter::SaBusy);
        }
        let mut sender = Sender {
            to: to.clone(),
            header,
            bytes,
            acked: 0,
            limit: 1,
            sent: 0,
            deadline: now,
            retries: 0,
        };
        sender.advance(now, out);
        // A request that came twice begins its answer anew.
        self.0.insert(key, sender);
    }

    /// ACK, STOP or ABORT of a receiver.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        from: &MadReceived,
        sa: &SaMad,
        out: &mut VecDeque<MadSend>,
        counters: &Counters,
    ) {
        let key = (from.slid, from.src_qp, sa.header.tid);
        let Some(sender) = self.0.get_mut(&key) else {
            return;
        };
        if sa.rmpp.kind != RmppHeader::ACK {
            counters.add(Counter::RmppAborted);
            self.0.remove(&key);
            return;
        }
        let (segment, limit) = (sa.rmpp.segment, sa.rmpp.length);
        if segment > sender.sent || limit < segment {
            // An ACK of what was not sent, or a window that shrank to nothing, is no receiver's.
            counters.add(Counter::SaBad);
            return;
        }
        if segment < sender.acked {
            return;
        }
        if segment > sender.acked {
            sender.retries = 0;
        }
        sender.acked = segment;
        sender.limit = sender.limit.max(limit);
        if segment >= sender.segments() {
            self.0.remove(&key);
        } else {
            sender.advance(now, out);
        }
    }

    pub(super) fn drop_port(&mut self, lid: Lid) {
        self.0.retain(|key, _| key.0 != lid);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.values().map(|s| s.deadline).min()
    }

    /// Goes back to the first segment without an ACK.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        out: &mut VecDeque<MadSend>,
        counters: &Counters,
    ) {
        self.0.retain(|_, sender| {
            if sender.deadline > now {
                return true;
            }
            sender.retries += 1;
            if sender.retries > RETRIES {
                counters.add(Counter::RmppAborted);
                return false;
            }
            sender.sent = sender.acked;
            sender.advance(now, out);
            true
        });
    }
}

/// The ACK of a request that came as a single segment.
pub(super) fn acknowledge(mad: &MadReceived, sa: &SaMad) -> MadSend {
    mad.reply(Box::new(ack(&sa.header, 1, 1).emit()))
}
