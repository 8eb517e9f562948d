//! A connected queue pair in an HCA: runs the [`Engine`], whichever thread brings it a packet, a work request or a timeout.
//!
//! The lock is held while the engine thinks, never while packets leave or the user's handler runs: both may lead back here within the same
//! call. Whoever finds that another is at it leaves the rest to that one, so packets, messages and completions keep their order.

use super::{Buffers, Engine, Message, Outgoing, Output};
use crate::hca::qp::{Address, address, check_pkey_index};
use crate::hca::{CHUNK, Hca};
use crate::node::{DropReason, NodeInput, is_own_lid};
use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use verbs::{
    Completion, ConnectedHandler, ConnectedInit, ConnectedQueuePair, ConnectedReceive,
    ConnectedSend, ConnectedService, ConnectedStatus, PortAttributes, PostError, QpModify,
    RtrAttributes, VerbsError,
};
use wire::Qpn;
use wire::mad::attr::PortState;
use wire::packet::{Bth, Packet};

/// When which queue pair wants to be called, of those that wait for something. Control looks at the first.
#[derive(Default)]
pub(in crate::hca) struct Timers(Mutex<BTreeSet<(Instant, Qpn)>>);

impl Timers {
    pub(in crate::hca) fn poll_timeout(&self) -> Option<Instant> {
        self.0.lock().first().map(|(at, _)| *at)
    }

    /// Those that are due.
    pub(in crate::hca) fn take(&self, now: Instant) -> Vec<Qpn> {
        let mut timers = self.0.lock();
        let mut due = Vec::new();
        while let Some((at, qpn)) = timers.pop_first() {
            if at > now {
                timers.insert((at, qpn));
                break;
            }
            due.push(qpn);
        }
        due
    }

    /// Moves a timer; true if it is the first of all now.
    fn set(&self, qpn: Qpn, old: Option<Instant>, new: Option<Instant>) -> bool {
        let mut timers = self.0.lock();
        if let Some(old) = old {
            timers.remove(&(old, qpn));
        }
        timers.extend(new.map(|at| (at, qpn)));
        new.is_some() && timers.first().map(|(at, _)| *at) == new
    }
}

/// The queue pair as the data path knows it.
pub(in crate::hca) struct ConnectedQp {
    qpn: Qpn,
    service: ConnectedService,
    handler: Arc<dyn ConnectedHandler>,
    inner: Mutex<Inner>,
}

struct Inner {
    engine: Engine,
    /// Some thread is sending packets and running handlers.
    pumping: bool,
    /// When control will call. The engine's own timeout may move on meanwhile.
    scheduled: Option<Instant>,
}

impl ConnectedQp {
    pub(in crate::hca) fn new(
        qpn: Qpn,
        init: ConnectedInit,
        handler: Arc<dyn ConnectedHandler>,
        buffers: Arc<Buffers>,
    ) -> Self {
        ConnectedQp {
            qpn,
            service: init.service,
            handler,
            inner: Mutex::new(Inner {
                engine: Engine::new(init, buffers),
                pumping: false,
                scheduled: None,
            }),
        }
    }

    pub(in crate::hca) fn status(&self) -> ConnectedStatus {
        self.inner.lock().engine.status()
    }

    /// Packets for this queue pair: from its peer, in its partition (IBA 9.6.1.5)?
    pub(in crate::hca) fn receive(
        &self,
        hca: &Hca,
        attributes: &PortAttributes,
        run: &[Packet<'_>],
    ) {
        let mut inner = self.inner.lock();
        let now = hca.now();
        let index = usize::from(inner.engine.attributes().pkey_index);
        let p_key = attributes.pkeys.get(index).copied().unwrap_or_default();
        let path = inner.engine.peer().map(|rtr| rtr.path);
        let service = match self.service {
            ConnectedService::Reliable => 0,
            ConnectedService::Unreliable => 1,
        };
        for packet in run {
            let sgid = packet.grh.map(|g| g.sgid);
            let is_peer = path.is_none_or(|path| {
                let dgid = path.grh.map(|g| g.dgid);
                packet.lrh.slid == path.dlid
                    && sgid
                        .zip(dgid)
                        .is_none_or(|(sgid, dgid)| sgid.guid() == dgid.guid())
            });
            if packet.bth.opcode.0 >> 5 != service || packet.bth.opcode.name().is_none() {
                hca.core.drops.count(DropReason::BadOpcode);
            } else if !p_key.matches(packet.bth.p_key) {
                hca.core.bad_key(packet, false);
            } else if !is_peer {
                hca.core.drops.count(DropReason::WrongPeer);
            } else {
                inner.engine.handle(now, packet, &hca.regions);
            }
        }
        inner.engine.finish_batch();
        self.pump(hca, inner);
    }

    /// The timer that was set is due.
    pub(in crate::hca) fn handle_timeout(&self, hca: &Hca, now: Instant) {
        let mut inner = self.inner.lock();
        inner.scheduled = None;
        inner.engine.handle_timeout(now);
        self.pump(hca, inner);
    }

    /// Carries out what the engine wants, until it wants nothing.
    fn pump<'a>(&'a self, hca: &Hca, mut inner: MutexGuard<'a, Inner>) {
        if std::mem::replace(&mut inner.pumping, true) {
            return;
        }
        loop {
            let now = hca.now();
            let mut packets = ArrayVec::<Outgoing, CHUNK>::new();
            while !packets.is_full()
                && let Some(packet) = inner.engine.poll_packet(now)
            {
                packets.push(packet);
            }
            let outputs = inner.engine.take_outputs();
            if packets.is_empty() && outputs.is_empty() {
                break;
            }
            let peer = inner.engine.peer().copied();
            let pkey_index = inner.engine.attributes().pkey_index;
            MutexGuard::unlocked(&mut inner, || {
                if let Some(peer) = peer
                    && !packets.is_empty()
                {
                    transmit(hca, &peer, pkey_index, &packets);
                }
                self.give(outputs);
            });
        }
        inner.pumping = false;
        let wanted = inner.engine.poll_timeout();
        let earlier = wanted.is_some_and(|at| inner.scheduled.is_none_or(|set| at < set));
        if earlier && hca.timers.set(self.qpn, inner.scheduled, wanted) {
            // If the queue is full control sees it with the next input.
            hca.core.to_control(NodeInput::TimerSet);
        }
        if earlier {
            inner.scheduled = wanted;
        }
    }

    /// Runs the handler.
    fn give(&self, outputs: VecDeque<Output>) {
        let mut messages = ArrayVec::<Message, CHUNK>::new();
        let mut completions = Vec::new();
        for output in outputs {
            if messages.is_full() || !matches!(output, Output::Message(_)) {
                self.give_messages(&mut messages);
            }
            if !matches!(output, Output::Completion(_)) {
                self.give_completions(&mut completions);
            }
            match output {
                Output::Message(message) => messages.push(message),
                Output::Completion(completion) => completions.push(completion),
                Output::Event(event) => self.handler.event(event),
            }
        }
        self.give_messages(&mut messages);
        self.give_completions(&mut completions);
    }

    fn give_messages(&self, messages: &mut ArrayVec<Message, CHUNK>) {
        if !messages.is_empty() {
            let batch: ArrayVec<ConnectedReceive<'_>, CHUNK> = messages
                .iter()
                .map(|message| ConnectedReceive {
                    payload: &message.bytes,
                    immediate: message.immediate,
                    solicited: message.solicited,
                    written: message.written,
                })
                .collect();
            self.handler.receive(&batch);
            drop(batch);
            messages.clear();
        }
    }

    fn give_completions(&self, completions: &mut Vec<Completion>) {
        if !completions.is_empty() {
            self.handler.complete(completions);
            completions.clear();
        }
    }
}

fn transmit(hca: &Hca, peer: &RtrAttributes, pkey_index: u16, outgoing: &[Outgoing]) {
    let core = &hca.core;
    let port = core.end();
    if port.state() != PortState::ACTIVE {
        return port.discard(outgoing.len(), DropReason::PortNotActive, &core.drops);
    }
    let attributes = core.attributes.load();
    let lanes = port.lanes.load();
    let Address { lrh, grh, p_key } =
        match address(&attributes, lanes.as_deref(), &peer.path, pkey_index) {
            Ok(address) => address,
            Err(reason) => return port.discard(outgoing.len(), reason, &core.drops),
        };
    let mtu = usize::from(attributes.active_mtu.bytes().unwrap_or_default());
    let fits = |out: &&Outgoing| out.payload.bytes().len() <= mtu;
    let packets: ArrayVec<Packet<'_>, CHUNK> = outgoing
        .iter()
        .filter(fits)
        .map(|out| Packet {
            lrh,
            grh,
            bth: Bth {
                opcode: out.opcode,
                solicited: out.solicited,
                // The only path there is is the primary one: migrated (IBA 17.2.8.1.1).
                mig_req: true,
                p_key,
                dest_qp: peer.dest_qpn,
                ack_req: out.ack_req,
                psn: out.psn,
                ..Bth::default()
            },
            ext: out.ext,
            payload: out.payload.bytes(),
            lso: None,
            icrc: None,
            hops: 0,
        })
        .collect();
    if packets.len() < outgoing.len() {
        let too_long = outgoing.len() - packets.len();
        port.discard(too_long, DropReason::TooLong, &core.drops);
    }
    if is_own_lid(&attributes, lrh.dlid) {
        hca.deliver(&attributes, &packets, None);
    } else {
        port.transmit(&packets, &core.drops);
    }
}

/// The user's handle. The data path's tables never point to it, so dropping it ends the queue pair.
pub(in crate::hca) struct ConnectedHandle {
    pub(in crate::hca) hca: Arc<Hca>,
    pub(in crate::hca) qp: Arc<ConnectedQp>,
}

impl ConnectedQueuePair for ConnectedHandle {
    fn qpn(&self) -> Qpn {
        self.qp.qpn
    }

    fn modify(&self, change: QpModify) -> Result<(), VerbsError> {
        match change {
            QpModify::Init(attributes) => check_pkey_index(&self.hca, attributes.pkey_index)?,
            QpModify::Rtr(rtr) if rtr.path_mtu > self.hca.core.attributes.load().max_mtu => {
                return Err(VerbsError::BadAttribute("path_mtu"));
            }
            _ => {}
        }
        let mut inner = self.qp.inner.lock();
        inner.engine.modify(change)?;
        self.qp.pump(&self.hca, inner);
        Ok(())
    }

    fn post_send(&self, batch: &[ConnectedSend<'_>]) -> Result<(), PostError> {
        let mut inner = self.qp.inner.lock();
        let refused = batch.iter().enumerate().find_map(|(posted, send)| {
            let error = inner.engine.post(send).err()?;
            Some(PostError { posted, error })
        });
        self.qp.pump(&self.hca, inner);
        refused.map_or(Ok(()), Err)
    }

    fn post_receives(&self, n: usize) {
        self.qp.inner.lock().engine.post_receives(n);
    }

    fn query(&self) -> ConnectedStatus {
        self.qp.status()
    }
}

impl Drop for ConnectedHandle {
    fn drop(&mut self) {
        self.hca.remove_qp(self.qp.qpn);
        let mut inner = self.qp.inner.lock();
        // Whatever is still on its way here finds a queue pair that does nothing.
        inner.engine.modify(QpModify::Reset).ok();
        let scheduled = inner.scheduled.take();
        self.hca.timers.set(self.qp.qpn, scheduled, None);
    }
}
