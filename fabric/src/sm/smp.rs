//! SMPs on the way: a window of requests, time-outs and retries.
//!
//! A node that does not answer keeps one slot of the window at most: after its first time-out its other requests wait until that one is
//! answered, or fail with it.

use super::config::SmConfig;
use super::topology::{NodeId, PortId};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};
use verbs::MadSend;
use wire::mad::attr::PortInfo;
use wire::mad::{AttrId, Method, MgmtClass, Smp};
use wire::{Lid, PKey, QKey, Qpn, ServiceLevel};

/// What a request is for; decides what its answer means.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// NodeInfo of whatever is at the other end of this port; `None`: of the own node.
    Probe(Option<PortId>),
    NodeDescription(NodeId),
    SwitchInfo(NodeId),
    /// Set(SwitchInfo) that clears PortStateChange; then the ports are read.
    ClearChange(NodeId),
    PortInfo(PortId),
    PKeys(PortId, u16),
    Guids(PortId),
    /// Is there another subnet manager at the port?
    AskSm(PortId),
    SetSwitchInfo(NodeId),
    SetPort(PortId, Box<PortInfo>),
    SetPKeys(PortId, u16),
    SetLft(NodeId, u16),
    SetMft(NodeId, u16, u8),
    /// Standby: does the master live?
    Poll,
    /// Gives the subnet to a better manager.
    HandOver(PortId),
}

impl Purpose {
    /// The node that shall answer, if it is known.
    pub(super) fn node(&self) -> Option<NodeId> {
        match self {
            Purpose::Probe(_) | Purpose::Poll => None,
            Purpose::NodeDescription(n)
            | Purpose::SwitchInfo(n)
            | Purpose::ClearChange(n)
            | Purpose::SetSwitchInfo(n) => Some(*n),
            Purpose::SetLft(n, _) | Purpose::SetMft(n, ..) => Some(*n),
            Purpose::PortInfo(p)
            | Purpose::PKeys(p, _)
            | Purpose::Guids(p)
            | Purpose::AskSm(p)
            | Purpose::HandOver(p) => Some(p.0),
            Purpose::SetPort(p, _) | Purpose::SetPKeys(p, _) => Some(p.0),
        }
    }
    /// Reads the topology: what is found is put to use when these are done.
    pub(super) fn discovers(&self) -> bool {
        matches!(
            self,
            Purpose::Probe(_)
                | Purpose::NodeDescription(_)
                | Purpose::SwitchInfo(_)
                | Purpose::ClearChange(_)
                | Purpose::AskSm(_)
        ) || matches!(
            self,
            Purpose::PortInfo(_) | Purpose::PKeys(..) | Purpose::Guids(_)
        )
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) purpose: Purpose,
    method: Method,
    attr_id: AttrId,
    attr_mod: u32,
    data: [u8; 64],
    /// Ports to leave by.
    route: Vec<u8>,
    attempts: u8,
}

impl Transaction {
    pub(super) fn get(purpose: Purpose, attr_id: AttrId, attr_mod: u32, route: Vec<u8>) -> Self {
        Transaction {
            purpose,
            method: Method::GET,
            attr_id,
            attr_mod,
            data: [0; 64],
            route,
            attempts: 0,
        }
    }
    pub(super) fn set(
        purpose: Purpose,
        attr_id: AttrId,
        attr_mod: u32,
        route: Vec<u8>,
        attribute: &[u8],
    ) -> Self {
        let mut data = [0; 64];
        let n = attribute.len().min(64);
        data[..n].copy_from_slice(&attribute[..n]);
        Transaction {
            purpose,
            method: Method::SET,
            attr_id,
            attr_mod,
            data,
            route,
            attempts: 0,
        }
    }

    /// The block of a forwarding table that it sets.
    fn block(&self) -> Option<Block> {
        match self.purpose {
            Purpose::SetLft(n, _) | Purpose::SetMft(n, ..) => {
                Some((n, self.attr_id.0, self.attr_mod))
            }
            _ => None,
        }
    }

    fn emit(&self, tid: u32, m_key: u64) -> MadSend {
        let mut smp = Smp::directed(
            self.method,
            self.attr_id,
            self.attr_mod,
            tid.into(),
            &self.route,
        );
        smp.m_key = m_key;
        send_smp(smp.with_data(&self.data), Lid::PERMISSIVE)
    }
}

/// A block of a forwarding table: switch, attribute and its modifier.
type Block = (NodeId, u16, u32);

/// Addressing of an SMP.
pub(super) fn send_smp(smp: Smp, dlid: Lid) -> MadSend {
    MadSend {
        dlid,
        sl: ServiceLevel(0),
        remote_qpn: Qpn::SMI,
        q_key: QKey(0),
        p_key: PKey::DEFAULT_FULL,
        grh: None,
        mad: Box::new(smp.emit()),
    }
}

/// All requests that are not answered yet.
#[derive(Debug)]
pub(super) struct SmpQueue {
    waiting: VecDeque<Transaction>,
    in_flight: BTreeMap<u32, (Instant, Transaction)>,
    deadlines: BTreeSet<(Instant, u32)>,
    /// Nodes with a time-out, and what waits for their sign of life.
    suspects: BTreeMap<NodeId, Vec<Transaction>>,
    /// Blocks with a Set that is not answered yet, and what shall be in them by now: one Set at a time, because a repeated one with old content
    /// must not come after a newer one.
    blocks: HashMap<Block, Option<Transaction>>,
    /// Discovery requests that have not timed out once.
    fresh: usize,
    /// Set(LinearForwardingTable) that have not timed out once.
    fresh_lft: usize,
    /// The same of multicast tables.
    fresh_mft: usize,
    /// Goes with each request.
    m_key: u64,
    /// Transaction IDs: whoever cannot see the request shall not be able to answer it.
    tids: fastrand::Rng,
    window: usize,
    timeout: Duration,
    retries: u8,
}

impl SmpQueue {
    /// Of a MAD that is not answered.
    pub(super) fn tid(&mut self) -> u64 {
        self.tids.u32(..).into()
    }

    pub(super) fn new(config: &SmConfig, tids: fastrand::Rng) -> Self {
        SmpQueue {
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            suspects: BTreeMap::new(),
            blocks: HashMap::new(),
            fresh: 0,
            fresh_lft: 0,
            fresh_mft: 0,
            m_key: config.m_key.key,
            tids,
            window: config.smp_window.max(1),
            timeout: config.smp_timeout,
            retries: config.smp_retries,
        }
    }

    fn count(&mut self, transaction: &Transaction, up: bool) {
        let add = |n: &mut usize| *n = if up { *n + 1 } else { n.saturating_sub(1) };
        if transaction.purpose.discovers() {
            add(&mut self.fresh);
        } else if matches!(transaction.purpose, Purpose::SetLft(..)) {
            add(&mut self.fresh_lft);
        } else if matches!(transaction.purpose, Purpose::SetMft(..)) {
            add(&mut self.fresh_mft);
        }
    }

    pub(super) fn push(&mut self, transaction: Transaction) {
        if let Some(block) = transaction.block() {
            match self.blocks.entry(block) {
                Entry::Occupied(mut later) => {
                    later.insert(Some(transaction));
                    return;
                }
                Entry::Vacant(free) => {
                    free.insert(None);
                }
            }
        }
        self.enqueue(transaction);
    }

    fn enqueue(&mut self, transaction: Transaction) {
        self.count(&transaction, true);
        self.waiting.push_back(transaction);
    }

    /// No discovery request is on the way for the first time: what is missing may be missing for long.
    pub(super) fn discovery_settled(&self) -> bool {
        self.fresh == 0
    }
    /// No discovery request is on the way at all, but to ask other managers.
    pub(super) fn discovery_ended(&self) -> bool {
        let parked = self.suspects.values().flatten();
        let mut in_flight = self.in_flight.values().map(|(_, t)| t).chain(parked);
        let looks = |p: &Purpose| p.discovers() && !matches!(p, Purpose::AskSm(_));
        self.fresh == 0 && !in_flight.any(|t| looks(&t.purpose))
    }
    /// [`Self::discovery_settled`] of forwarding tables.
    pub(super) fn lft_settled(&self) -> bool {
        self.fresh_lft == 0
    }
    /// And of multicast tables.
    pub(super) fn mft_settled(&self) -> bool {
        self.fresh_mft == 0
    }
    /// Is such a request not answered yet?
    pub(super) fn is_asking(&self, purpose: &Purpose) -> bool {
        let parked = self.suspects.values().flatten();
        let in_flight = self.in_flight.values().map(|(_, t)| t);
        in_flight
            .chain(&self.waiting)
            .chain(parked)
            .any(|t| t.purpose == *purpose)
    }
    /// Nothing at all is on the way.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty()
    }

    /// The next request that may go out now.
    pub(super) fn poll(&mut self, now: Instant) -> Option<MadSend> {
        while self.in_flight.len() < self.window {
            let transaction = self.waiting.pop_front()?;
            if transaction.attempts == 0
                && let Some(parked) = transaction
                    .purpose
                    .node()
                    .and_then(|n| self.suspects.get_mut(&n))
            {
                parked.push(transaction.clone());
                self.count(&transaction, false);
                continue;
            }
            // What was never sent can still be made new.
            let later = transaction
                .block()
                .filter(|_| transaction.attempts == 0)
                .and_then(|b| self.blocks.get_mut(&b)?.take());
            let transaction = later.unwrap_or(transaction);
            let tid = loop {
                let tid = self.tids.u32(..);
                if !self.in_flight.contains_key(&tid) {
                    break tid;
                }
            };
            return Some(self.launch(now, tid, transaction));
        }
        None
    }

    fn launch(&mut self, now: Instant, tid: u32, transaction: Transaction) -> MadSend {
        let mad = transaction.emit(tid, self.m_key);
        // Retries wait longer, so that a slow node is not flooded.
        let deadline = now + self.timeout * (1 + u32::from(transaction.attempts > 0));
        self.deadlines.insert((deadline, tid));
        self.in_flight.insert(tid, (deadline, transaction));
        mad
    }

    /// The request that an answer belongs to, if the answer is for it.
    pub(super) fn complete(&mut self, smp: &Smp) -> Option<Transaction> {
        let tid = smp.header.tid as u32;
        let (_, t) = self.in_flight.get(&tid)?;
        if t.attr_id != smp.header.attr_id
            || t.attr_mod != smp.header.attr_mod
            || smp.header.mgmt_class != MgmtClass::SUBN_DIRECTED
            || smp.dr_slid != Lid::PERMISSIVE
            || smp.path() != t.route
        {
            return None;
        }
        let (deadline, transaction) = self.in_flight.remove(&tid)?;
        self.deadlines.remove(&(deadline, tid));
        if transaction.attempts == 0 {
            self.count(&transaction, false);
        }
        if let Some(parked) = transaction
            .purpose
            .node()
            .and_then(|n| self.suspects.remove(&n))
        {
            self.unpark(parked);
        }
        if let Some(later) = transaction
            .block()
            .and_then(|b| self.blocks.remove(&b))
            .flatten()
        {
            self.push(later);
        }
        Some(transaction)
    }

    /// Lets go on what waited for a sign of life.
    fn unpark(&mut self, parked: Vec<Transaction>) {
        for mut t in parked {
            t.attempts = 0;
            self.enqueue(t);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Repeats what timed out; gives back what failed for good.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        out: &mut VecDeque<MadSend>,
        route: impl Fn(&Purpose) -> Option<Vec<u8>>,
    ) -> Vec<Transaction> {
        let mut failed = Vec::new();
        while let Some(&(at, tid)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.remove(&(at, tid));
            let Some((_, mut transaction)) = self.in_flight.remove(&tid) else {
                continue;
            };
            if transaction.attempts == 0 {
                self.count(&transaction, false);
            }
            transaction.attempts += 1;
            if transaction.attempts > self.retries {
                if let Some(block) = transaction.block() {
                    self.blocks.remove(&block);
                }
                // Whoever takes the failure for the node's end forgets these as well.
                let node = transaction.purpose.node();
                if let Some(parked) = node.and_then(|n| self.suspects.remove(&n)) {
                    self.unpark(parked);
                }
                failed.push(transaction);
                continue;
            }
            if let Some(node) = transaction.purpose.node() {
                match self.suspects.get_mut(&node) {
                    Some(parked) if transaction.attempts == 1 => {
                        parked.push(transaction);
                        continue;
                    }
                    Some(_) => {}
                    None => {
                        self.suspects.insert(node, Vec::new());
                    }
                }
            }
            // The way may have changed since.
            if let Some(route) = route(&transaction.purpose) {
                transaction.route = route;
            }
            let mad = self.launch(now, tid, transaction);
            out.push_back(mad);
        }
        failed
    }

    /// Sends again at once what is on a way that is no longer right.
    pub(super) fn reroute(
        &mut self,
        out: &mut VecDeque<MadSend>,
        route: impl Fn(&Purpose) -> Option<Vec<u8>>,
    ) {
        let m_key = self.m_key;
        let in_flight = self
            .in_flight
            .iter_mut()
            .map(|(tid, (_, t))| (Some(*tid), t));
        for (tid, transaction) in in_flight.chain(self.waiting.iter_mut().map(|t| (None, t))) {
            if let Some(now) = route(&transaction.purpose)
                && transaction.route != now
            {
                transaction.route = now;
                out.extend(tid.map(|tid| transaction.emit(tid, m_key)));
            }
        }
    }

    /// Forgets all requests to nodes that are gone.
    pub(super) fn retain_nodes(&mut self, gone: &BTreeSet<NodeId>) {
        let keep = |t: &Transaction| t.purpose.node().is_none_or(|n| !gone.contains(&n));
        self.suspects.retain(|n, _| !gone.contains(n));
        self.blocks.retain(|(n, ..), _| !gone.contains(n));
        let (kept, dropped): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(keep);
        self.waiting = kept;
        for t in dropped {
            self.count(&t, false);
        }
        let tids: Vec<u32> = self
            .in_flight
            .iter()
            .filter(|(_, (_, t))| !keep(t))
            .map(|(tid, _)| *tid)
            .collect();
        for tid in tids {
            if let Some((at, t)) = self.in_flight.remove(&tid) {
                self.deadlines.remove(&(at, tid));
                if t.attempts == 0 {
                    self.count(&t, false);
                }
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, config: &SmConfig) {
        *self = SmpQueue::new(config, self.tids.fork());
    }
}

#[cfg(test)]
mod tests;
