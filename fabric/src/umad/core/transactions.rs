//! Requests of clients that wait for their answer: sent again, answered, or given back.

use super::{Core, Node, Sockets, answer_to, control, request, send_for};
use crate::umad::protocol::{Ctl, Request, TIMED_OUT};
use crate::umad::rmpp::{self, ToClient};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use verbs::MadReceived;
use wire::mad::{MadBytes, Method, MgmtClass};

/// Requests under way, of all clients and of one.
pub(super) const MAX_PENDING: usize = 1 << 16;
pub(super) const MAX_PENDING_OF_CLIENT: usize = 2048;
/// SMPs are sent again like this, as kernels do for OpenSM: unacknowledged datagrams get lost.
pub(super) const SMP_TIMEOUT: Duration = Duration::from_millis(200);
pub(super) const SMP_SENDS: u32 = 4;
/// For all else: the infiniband-diags wait a second and then send again themselves.
pub(super) const GSI_TIMEOUT: Duration = Duration::from_secs(1);

/// What a client sent and is to get back.
pub(super) enum Asked {
    Mad(Request),
    Control(Ctl),
}

struct Transaction {
    client: u32,
    node: usize,
    asked: Asked,
    /// With the TID that it has in the fabric.
    mad: Box<MadBytes>,
    sends_left: u32,
    deadline: Instant,
}

impl Transaction {
    fn send(&self, node: &Node) {
        match (&self.asked, &node.agent) {
            (Asked::Control(_), _) => node.port.query_sma(self.mad.clone()),
            (Asked::Mad(request), Some(agent)) => {
                agent.send(send_for(node, request, self.mad.clone()))
            }
            (Asked::Mad(_), None) => {}
        }
    }
}

/// By the lower half of the TID that they have in the fabric.
#[derive(Default)]
pub(super) struct Transactions {
    pending: HashMap<u32, Transaction>,
    deadlines: BTreeSet<(Instant, u32)>,
    last_tid: u32,
}

impl Core {
    /// Sends a request and keeps it until it is answered.
    pub(super) fn transact(
        &mut self,
        now: Instant,
        id: u32,
        asked: Asked,
        mut mad: Box<MadBytes>,
        sockets: &mut dyn Sockets,
    ) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let node = &self.nodes[client.node];
        let Transactions {
            pending,
            deadlines,
            last_tid,
        } = &mut self.transactions;
        let full = client.pending >= MAX_PENDING_OF_CLIENT || pending.len() >= MAX_PENDING;
        // There is an agent wherever there is a client.
        let Some(agent) = node.agent.as_ref().filter(|_| !full) else {
            self.counters.too_many_requests.add(1);
            return self.unanswered(id, &asked, sockets);
        };
        client.pending += 1;
        *last_tid = last_tid.wrapping_add(1);
        while pending.contains_key(last_tid) {
            *last_tid = last_tid.wrapping_add(1);
        }
        mad[8..12].copy_from_slice(&agent.tid_high().to_be_bytes());
        mad[12..16].copy_from_slice(&last_tid.to_be_bytes());
        let (timeout, sends) = timing(&mad);
        let transaction = Transaction {
            client: id,
            node: client.node,
            asked,
            mad,
            sends_left: sends - 1,
            deadline: now + timeout,
        };
        transaction.send(node);
        deadlines.insert((transaction.deadline, *last_tid));
        pending.insert(*last_tid, transaction);
    }

    /// A request comes back to its client without an answer.
    fn unanswered(&self, id: u32, asked: &Asked, sockets: &mut dyn Sockets) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        self.counters.timed_out.add(1);
        match asked {
            Asked::Mad(request) => {
                let back = Request {
                    status: TIMED_OUT,
                    ..request.clone()
                };
                sockets.send_data(id, &back.emit());
            }
            Asked::Control(ctl) => self.answer(&client.peer, ctl, None, sockets),
        }
    }

    /// Forgets all of a client that has gone.
    pub(super) fn abandon(&mut self, id: u32) {
        let pending = &mut self.transactions.pending;
        let of_client = pending.extract_if(|_, t| t.client == id);
        for (tid, transaction) in of_client {
            let deadline = (transaction.deadline, tid);
            self.transactions.deadlines.remove(&deadline);
        }
    }

    fn take(&mut self, tid: u32) -> Option<Transaction> {
        let transaction = self.transactions.pending.remove(&tid)?;
        let deadline = (transaction.deadline, tid);
        self.transactions.deadlines.remove(&deadline);
        if let Some(client) = self.clients.get_mut(&transaction.client) {
            client.pending -= 1;
        }
        Some(transaction)
    }

    /// A response came for a node.
    pub(super) fn response(&mut self, node: usize, mad: MadReceived, sockets: &mut dyn Sockets) {
        let tid = u32::from_be_bytes([mad.mad[12], mad.mad[13], mad.mad[14], mad.mad[15]]);
        let fits = self.transactions.pending.get(&tid).is_some_and(|t| {
            let asked = &t.mad;
            t.node == node
                && asked[8..12] == mad.mad[8..12]
                && asked[1] == mad.mad[1]
                && answer_to(Method(asked[3])) == Method(mad.mad[3])
        });
        let (length, stop) = match rmpp::to_client(&mad.mad) {
            ToClient::Deliver(length) if fits => (length, None),
            ToClient::DeliverFirst(length, stop) if fits => (length, Some(stop)),
            _ => return self.counters.rx_unexpected.add(1),
        };
        if let Some(stop) = stop {
            self.counters.tables_cut.add(1);
            if let Some(agent) = &self.nodes[node].agent {
                agent.send(mad.reply(stop));
            }
        }
        let Some(transaction) = self.take(tid) else {
            return;
        };
        match transaction.asked {
            Asked::Mad(asked) => {
                let mut answer = request(&mad, length);
                answer.mad[8..16].copy_from_slice(&asked.mad[8..16]);
                self.counters.tx_mads.add(1);
                sockets.send_data(transaction.client, &answer.emit());
            }
            Asked::Control(ctl) => {
                if let Some(client) = self.clients.get(&transaction.client) {
                    let data = control::content(&ctl, &mad.mad);
                    self.answer(&client.peer, &ctl, data, sockets);
                }
            }
        }
    }

    /// When [`Core::handle_timeout`] wants to be called.
    pub(in crate::umad) fn poll_timeout(&self) -> Option<Instant> {
        self.transactions.deadlines.first().map(|(at, _)| *at)
    }

    /// Sends again, or gives up, what is due.
    pub(in crate::umad) fn handle_timeout(&mut self, now: Instant, sockets: &mut dyn Sockets) {
        while let Some(&(at, tid)) = self.transactions.deadlines.first()
            && at <= now
        {
            self.transactions.deadlines.pop_first();
            let Some(transaction) = self.transactions.pending.get_mut(&tid) else {
                continue;
            };
            if transaction.sends_left == 0 {
                if let Some(transaction) = self.take(tid) {
                    self.unanswered(transaction.client, &transaction.asked, sockets);
                }
                continue;
            }
            transaction.sends_left -= 1;
            transaction.deadline = now + timing(&transaction.mad).0;
            let deadline = (transaction.deadline, tid);
            self.transactions.deadlines.insert(deadline);
            self.counters.sent_again.add(1);
            let node = &self.nodes[transaction.node];
            let mad = wire::mad::describe::describe(&transaction.mad);
            tracing::debug!(node = node.name, "umad: nobody answers, sent again: {mad}");
            transaction.send(node);
        }
    }
}

/// How long an answer is waited for, and how often the request is sent.
fn timing(mad: &MadBytes) -> (Duration, u32) {
    match MgmtClass(mad[1]).is_smp() {
        true => (SMP_TIMEOUT, SMP_SENDS),
        false => (GSI_TIMEOUT, 1),
    }
}
