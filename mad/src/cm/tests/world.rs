//! Two nodes with their users, and messages between them.

use super::super::*;
use std::collections::BTreeMap;
use verbs::{MadReceived, MadSend};
use wire::{Guid, Lid, PKey, Qpn, ServiceLevel};

pub(super) const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0048);

/// A connection as its user sees it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) phase: Phase,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connect was called.
    Asked,
    /// Told of a request, and nothing done.
    Requested,
    /// Told of a reply, and nothing done.
    Replied,
    /// Accepted; may receive.
    Accepted,
    /// May send.
    Open,
    /// Ended, one way or the other.
    Closed,
}

pub(super) struct Node {
    pub(super) cm: Cm,
    pub(super) held: BTreeMap<ConnectionId, Held>,
    pub(super) events: Vec<CmEvent>,
    next_qpn: u32,
}

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) nodes: [Node; 2],
    /// On the way: to which node, and what.
    pub(super) flying: Vec<(usize, MadReceived)>,
    /// All that was sent: by which node.
    pub(super) sent: Vec<(usize, CmMessage)>,
    /// And its TID.
    pub(super) tids: Vec<u64>,
    seed: u64,
}

pub(super) fn config(side: usize) -> CmConfig {
    CmConfig {
        max_connections: 64,
        ..CmConfig::new(Guid(side as u64 + 1), side as u32 + 1)
    }
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let node = |side| Node {
            cm: World::manager(side, seed),
            held: BTreeMap::new(),
            events: Vec::new(),
            next_qpn: 0x100 * (side as u32 + 1),
        };
        World {
            now: Instant::now(),
            nodes: [node(0), node(1)],
            flying: Vec::new(),
            sent: Vec::new(),
            tids: Vec::new(),
            seed,
        }
    }

    fn manager(side: usize, seed: u64) -> Cm {
        let mut cm = Cm::new(config(side), seed ^ (side as u64) << 40);
        cm.listen(SERVICE);
        cm
    }

    /// All that a node knew is gone.
    pub(super) fn crash(&mut self, side: usize) {
        self.seed = self.seed.wrapping_add(0x1_0000_0001);
        let node = &mut self.nodes[side];
        node.cm = World::manager(side, self.seed);
        node.held.clear();
    }

    pub(super) fn qpn(&mut self, side: usize) -> Qpn {
        let node = &mut self.nodes[side];
        node.next_qpn += 1;
        Qpn(node.next_qpn)
    }

    pub(super) fn address(side: usize) -> CmAddress {
        CmAddress {
            dlid: Lid(side as u16 + 1),
            sl: ServiceLevel(0),
            qpn: Qpn::GSI,
            p_key: PKey::DEFAULT_FULL,
            grh: None,
        }
    }

    pub(super) fn connect(&mut self, side: usize) -> ConnectionId {
        let local_qpn = self.qpn(side);
        let req = Req {
            service_id: SERVICE,
            local_qpn,
            ..Req::default()
        };
        let to = World::address(1 - side);
        let id = self.nodes[side].cm.connect(self.now, to, req);
        let id = id.expect("there is room");
        self.hold(side, id, Phase::Asked, local_qpn, Qpn(0));
        self.collect();
        id
    }

    fn hold(
        &mut self,
        side: usize,
        id: ConnectionId,
        phase: Phase,
        local_qpn: Qpn,
        remote_qpn: Qpn,
    ) {
        let held = Held {
            phase,
            local_qpn,
            remote_qpn,
        };
        let old = self.nodes[side].held.insert(id, held);
        assert!(old.is_none(), "{id:?} is used twice");
    }

    pub(super) fn accept(&mut self, side: usize, id: ConnectionId) {
        let local_qpn = self.qpn(side);
        let rep = Rep {
            local_qpn,
            ..Rep::default()
        };
        let accepted = self.nodes[side].cm.accept(self.now, id, rep);
        accepted.expect("it waits for the user");
        if let Some(held) = self.nodes[side].held.get_mut(&id) {
            (held.phase, held.local_qpn) = (Phase::Accepted, local_qpn);
        }
        self.collect();
    }

    pub(super) fn confirm(&mut self, side: usize, id: ConnectionId) {
        let confirmed = self.nodes[side].cm.confirm(id, [0; 224]);
        confirmed.expect("it waits for the user");
        self.set_phase(side, id, Phase::Open);
        self.collect();
    }

    pub(super) fn disconnect(&mut self, side: usize, id: ConnectionId) {
        let ended = self.nodes[side].cm.disconnect(self.now, id);
        ended.expect("it has not ended yet");
        self.set_phase(side, id, Phase::Closed);
        self.collect();
    }

    pub(super) fn set_phase(&mut self, side: usize, id: ConnectionId, phase: Phase) {
        if let Some(held) = self.nodes[side].held.get_mut(&id) {
            held.phase = phase;
        }
    }

    /// What `side` sent, as it arrives.
    pub(super) fn received(side: usize, send: MadSend) -> MadReceived {
        MadReceived {
            slid: World::address(side).dlid,
            dlid: send.dlid,
            src_qp: Qpn::GSI,
            dest_qp: Qpn::GSI,
            sl: send.sl,
            p_key: send.p_key,
            grh: None,
            mad: send.mad,
        }
    }

    /// Side 0 asks for a connection, side 1 is to decide: the number of it at each.
    pub(super) fn requested(&mut self) -> (ConnectionId, ConnectionId) {
        let id = self.connect(0);
        self.settle();
        (id, self.in_phase(1, Phase::Requested)[0])
    }

    /// Takes what the managers have to say, and checks that events come in an order that makes sense.
    pub(super) fn collect(&mut self) {
        for side in 0..2 {
            while let Some(output) = self.nodes[side].cm.poll_output() {
                match output {
                    CmOutput::Send(send) => {
                        assert_eq!(send.dlid, World::address(1 - side).dlid);
                        let (header, message) = CmMessage::parse(&send.mad).expect("a CM message");
                        self.sent.push((side, message));
                        self.tids.push(header.tid);
                        self.flying.push((1 - side, World::received(side, send)));
                    }
                    CmOutput::Event(event) => self.event(side, event),
                }
            }
        }
    }

    fn event(&mut self, side: usize, event: CmEvent) {
        self.nodes[side].events.push(event.clone());
        let held = |world: &World, id| world.nodes[side].held.get(&id).map(|h| h.phase);
        match event {
            CmEvent::Requested { id, req, .. } => {
                self.hold(side, id, Phase::Requested, Qpn(0), req.local_qpn)
            }
            CmEvent::Replied { id, rep } => {
                assert_eq!(held(self, id), Some(Phase::Asked));
                self.set_phase(side, id, Phase::Replied);
                if let Some(held) = self.nodes[side].held.get_mut(&id) {
                    held.remote_qpn = rep.local_qpn;
                }
            }
            CmEvent::Established { id } => {
                assert_eq!(held(self, id), Some(Phase::Accepted));
                self.set_phase(side, id, Phase::Open);
            }
            CmEvent::Rejected { id, .. }
            | CmEvent::TimedOut { id }
            | CmEvent::Disconnected { id } => {
                let phase = held(self, id).expect("not released yet");
                assert_ne!(phase, Phase::Closed, "{id:?} ends twice");
                self.set_phase(side, id, Phase::Closed);
            }
            CmEvent::Released { id } => {
                assert_eq!(held(self, id), Some(Phase::Closed), "{id:?}");
                self.nodes[side].held.remove(&id);
            }
        }
    }

    pub(super) fn deliver(&mut self, index: usize) {
        let (to, mad) = self.flying.remove(index);
        self.nodes[to].cm.handle(self.now, &mad);
        self.collect();
    }

    /// To the next timeout; false if there is none.
    pub(super) fn advance(&mut self) -> bool {
        let timeouts = self.nodes.iter().filter_map(|n| n.cm.poll_timeout());
        let Some(next) = timeouts.min() else {
            return false;
        };
        self.now = self.now.max(next);
        for node in &mut self.nodes {
            node.cm.handle_timeout(self.now);
        }
        self.collect();
        true
    }

    /// Delivers all there is, in order, and lets no time pass.
    pub(super) fn settle(&mut self) {
        while !self.flying.is_empty() {
            self.deliver(0);
        }
    }

    /// Connections of a side in some phase.
    pub(super) fn in_phase(&self, side: usize, phase: Phase) -> Vec<ConnectionId> {
        let held = self.nodes[side].held.iter();
        let held = held.filter(|(_, h)| h.phase == phase);
        held.map(|(id, _)| *id).collect()
    }

    /// A packet by the queue pair of a connection: does one of the other side take it?
    pub(super) fn send_data(&mut self, side: usize, id: ConnectionId) -> bool {
        let own = self.nodes[side].held[&id].clone();
        let mut there = self.nodes[1 - side].held.iter();
        let peer = there.find(|(_, h)| {
            h.local_qpn == own.remote_qpn
                && h.remote_qpn == own.local_qpn
                && matches!(h.phase, Phase::Accepted | Phase::Open)
        });
        let Some((peer, _)) = peer.map(|(id, h)| (*id, h.phase)) else {
            return false;
        };
        let told = self.nodes[1 - side].cm.established(peer);
        told.expect("its user has it");
        self.collect();
        true
    }
}
