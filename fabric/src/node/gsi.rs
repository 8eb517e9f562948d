//! QP0 and QP1 of an end port: who gets a MAD that arrives, and how one that is sent becomes a packet (IBA 13.5; Linux `ib_mad`).

use super::{
    DropReason, Drops, KeyViolation, NodeInput, PortPlane, Route, SmiNode, lane, saturating_count,
};
use crate::link::ControlSink;
use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;
use verbs::{GrhInfo, MadHandler, MadReceived, MadSend, PortAttributes, PortEvent};
use wire::mad::attr::PortState;
use wire::mad::{MadBytes, Method, MgmtClass};
use wire::packet::{Bth, Deth, Extended, Grh, Lrh, Opcode, Packet};
use wire::{Gid, Guid, Lid, MtuCode, PKey, Psn, QKey, Qpn, RateCode, ServiceLevel};

/// An agent of QP1 as `show` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentResource {
    /// Upper half of its TIDs.
    pub tid_high: u32,
    /// Classes of which it gets requests.
    pub classes: Vec<MgmtClass>,
}

pub(super) struct AgentEntry {
    pub(super) resource: AgentResource,
    pub(super) handler: Arc<dyn MadHandler>,
    /// See [`super::ManagementPort::register_umad`].
    pub(super) is_umad: bool,
}

/// What the data planes of switch and HCA share.
pub(crate) struct NodeCore {
    pub(crate) smi: SmiNode,
    /// Number of the port that carries the node's own traffic: 1 of an HCA, 0 of a switch.
    pub(crate) end_port: u8,
    /// Index is the port number; an HCA's port 0 is a blank.
    pub(crate) ports: Vec<PortPlane>,
    /// Of the end port.
    pub(crate) attributes: ArcSwap<PortAttributes>,
    pub(crate) drops: Drops,
    sink: ControlSink<NodeInput>,
    pub(super) agents: ArcSwap<Vec<Arc<AgentEntry>>>,
    pub(super) sm: ArcSwapOption<AgentEntry>,
    /// Held while `agents` or `sm` is replaced; never by the data path.
    pub(super) registering: Mutex<()>,
    pub(super) next_tid_high: AtomicU32,
    psn: AtomicU32,
}

/// The data plane of a node, as management needs it.
pub(crate) trait Plane: Send + Sync + 'static {
    fn core(&self) -> &NodeCore;
    /// Sends a LID-routed packet of the end port into the subnet. Its DLID is not an own one.
    fn send_by_lid(&self, packet: &Packet<'_>);
    /// When [`Plane::handle_timeout`] wants to be called; looked at after each input.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    /// Does what is due at `now`.
    fn handle_timeout(&self, _now: Instant) {}
    /// Tells the users of the port.
    fn event(&self, _event: PortEvent) {}
}

impl NodeCore {
    pub(crate) fn new(smi: SmiNode, first_tid_high: u32, sink: ControlSink<NodeInput>) -> NodeCore {
        NodeCore {
            smi,
            end_port: u8::from(!smi.is_switch),
            ports: (0..=smi.ports).map(|_| PortPlane::default()).collect(),
            attributes: ArcSwap::from_pointee(blank_attributes()),
            drops: Drops::default(),
            sink,
            agents: ArcSwap::default(),
            sm: ArcSwapOption::empty(),
            registering: Mutex::new(()),
            next_tid_high: AtomicU32::new(first_tid_high.max(1)),
            psn: AtomicU32::new(0),
        }
    }

    pub(crate) fn end(&self) -> &PortPlane {
        &self.ports[usize::from(self.end_port)]
    }

    pub(crate) fn has_sm(&self) -> bool {
        self.sm.load().is_some()
    }

    pub(crate) fn agents(&self) -> Vec<AgentResource> {
        self.agents
            .load()
            .iter()
            .map(|a| a.resource.clone())
            .collect()
    }

    /// Hands over to control; a full queue is counted.
    pub(crate) fn to_control(&self, input: NodeInput) -> bool {
        let handed = (self.sink)(input);
        if !handed {
            self.drops.count(DropReason::ControlBusy);
        }
        handed
    }

    /// An SMP that arrived by `ingress` or starts here (0).
    pub(crate) fn smp_to_control(&self, mad: MadReceived, ingress: u8) {
        if !self.to_control(NodeInput::Mad { mad, ingress }) {
            self.end().counters.vl15_dropped.fetch_add(1, Relaxed);
        }
    }

    /// See [`super::ManagementPort::query_sma`].
    pub(crate) fn query_sma(&self, mad: Box<MadBytes>) {
        self.to_control(NodeInput::Query(own_smp(mad, Lid::PERMISSIVE)));
    }

    /// The physical link of a port came up or went down.
    pub(crate) fn link_changed(&self, port: u8, up: bool) {
        if self.ports[usize::from(port)].link_changed(up) {
            // If the queue is full control sees it with the next input: it compares the epochs.
            self.to_control(NodeInput::LinkChanged);
        }
    }

    /// Data came in by a port that is Armed: control makes it Active. Said once.
    pub(crate) fn data_on_armed(&self, port: u8) {
        let plane = &self.ports[usize::from(port)];
        if !plane.data_reported.swap(true, Relaxed)
            && !self.to_control(NodeInput::DataOnArmed(port))
        {
            plane.data_reported.store(false, Relaxed);
        }
    }

    /// Counts a bad P_Key or Q_Key of a packet to this end port and tells control, unless it is told already.
    pub(crate) fn bad_key(&self, packet: &Packet<'_>, is_q_key: bool) {
        let port = self.end();
        if is_q_key {
            saturating_count(&port.q_key_violations);
            self.drops.count(DropReason::QKeyMismatch);
        } else {
            saturating_count(&port.p_key_violations);
            port.counters.rcv_constraint_errors.fetch_add(1, Relaxed);
            self.drops.count(DropReason::PKeyMismatch);
        }
        self.report_violation(port, packet, self.end_port, is_q_key);
    }

    /// At most one violation of a port is on its way to control at a time.
    pub(crate) fn report_violation(
        &self,
        plane: &PortPlane,
        packet: &Packet<'_>,
        port: u8,
        is_q_key: bool,
    ) {
        if !plane.violation_reported.swap(true, Relaxed)
            && !self.to_control(NodeInput::KeyViolation(KeyViolation::new(
                packet, port, is_q_key,
            )))
        {
            plane.violation_reported.store(false, Relaxed);
        }
    }

    /// A packet for QP1 that is allowed in: state and DLID are checked.
    pub(crate) fn receive_gsi(&self, packet: &Packet<'_>) {
        let Some(deth) = packet
            .ext
            .deth
            .filter(|_| packet.bth.opcode == Opcode::UD_SEND_ONLY)
        else {
            return self.drops.count(DropReason::BadOpcode);
        };
        if deth.q_key != QKey::GSI {
            return self.bad_key(packet, true);
        }
        if !self
            .attributes
            .load()
            .pkeys
            .iter()
            .any(|k| k.matches(packet.bth.p_key))
        {
            return self.bad_key(packet, false);
        }
        if !has_own_gid(&self.attributes.load(), packet) {
            return self.drops.count(DropReason::NotOurGid);
        }
        match mad_received(packet) {
            Some(mad) => self.dispatch_gsi(mad),
            None => self.drops.count(DropReason::BadMad),
        }
    }

    /// A packet for a queue pair that does not exist: some umad agent's, if it is a MAD at all.
    pub(crate) fn receive_absent_qp(&self, packet: &Packet<'_>) {
        let is_mad = packet.ext.deth.is_some_and(|d| d.q_key == QKey::GSI)
            && packet.bth.opcode == Opcode::UD_SEND_ONLY;
        let agents = self.agents.load();
        let mut umads = agents.iter().filter(|a| is_mad && a.is_umad).peekable();
        if umads.peek().is_none() {
            return self.drops.count(DropReason::NoQueuePair);
        }
        match mad_received(packet) {
            Some(mad) => umads.for_each(|a| a.handler.mad_received(mad.clone())),
            None => self.drops.count(DropReason::BadMad),
        }
    }

    /// Gives a MAD of QP1 to performance management or to its agents.
    fn dispatch_gsi(&self, mad: MadReceived) {
        let class = MgmtClass(mad.mad[1]);
        let method = Method(mad.mad[3]);
        let agents = self.agents.load();
        if method.is_response() {
            let tid_high = u32::from_be_bytes([mad.mad[8], mad.mad[9], mad.mad[10], mad.mad[11]]);
            match agents.iter().find(|a| a.resource.tid_high == tid_high) {
                Some(agent) => agent.handler.mad_received(mad),
                None => self.drops.count(DropReason::NoAgent),
            }
        } else if class == MgmtClass::PERF_MGT {
            if !self.to_control(NodeInput::Mad {
                mad,
                ingress: self.end_port,
            }) {
                self.end().counters.qp1_dropped.fetch_add(1, Relaxed);
            }
        } else {
            let mut takers = agents
                .iter()
                .filter(|a| a.is_umad || a.resource.classes.contains(&class))
                .peekable();
            if takers.peek().is_none() {
                return self.drops.count(DropReason::NoClassAgent);
            }
            while let Some(agent) = takers.next() {
                if takers.peek().is_none() {
                    return agent.handler.mad_received(mad);
                }
                agent.handler.mad_received(mad.clone());
            }
        }
    }

    /// Gives an SMP to the agent that asked, or to the subnet manager of this node.
    pub(crate) fn to_sm(&self, mad: MadReceived) {
        if Method(mad.mad[3]).is_response() {
            let tid_high = u32::from_be_bytes([mad.mad[8], mad.mad[9], mad.mad[10], mad.mad[11]]);
            let agents = self.agents.load();
            let is_asker = |a: &&Arc<AgentEntry>| a.is_umad && a.resource.tid_high == tid_high;
            if let Some(agent) = agents.iter().find(is_asker) {
                return agent.handler.mad_received(mad);
            }
        }
        match self.sm.load().as_ref() {
            Some(sm) => sm.handler.mad_received(mad),
            None => self.drops.count(DropReason::NoSubnetManager),
        }
    }
}

/// Is `lid` one of the 2^lmc LIDs of this end port?
pub(crate) fn is_own_lid(attributes: &PortAttributes, lid: Lid) -> bool {
    attributes.lid != Lid::UNSET && lid.0 >> attributes.lmc == attributes.lid.0 >> attributes.lmc
}

/// Is the DGID of a unicast packet, if it has one, of this end port? GUIDInfo names the GIDs, and the default prefix always works (IBA 4.1.1).
pub(crate) fn has_own_gid(attributes: &PortAttributes, packet: &Packet<'_>) -> bool {
    packet.grh.is_none_or(|g| {
        g.dgid.guid() != Guid(0)
            && attributes.gids.iter().any(|own| {
                own.guid() == g.dgid.guid()
                    && [own.prefix(), Gid::DEFAULT_PREFIX].contains(&g.dgid.prefix())
            })
    })
}

/// A UD packet with 256 bytes of payload as a MAD; `None` if it is not that.
pub(crate) fn mad_received(packet: &Packet<'_>) -> Option<MadReceived> {
    let mad: &MadBytes = packet.payload.try_into().ok()?;
    let grh = packet.grh.map(|g| GrhInfo {
        sgid: g.sgid,
        dgid: g.dgid,
        hop_limit: g.hop_limit,
        traffic_class: g.traffic_class,
        flow_label: g.flow_label,
    });
    Some(MadReceived {
        slid: packet.lrh.slid,
        dlid: packet.lrh.dlid,
        src_qp: packet.ext.deth?.src_qp,
        dest_qp: packet.bth.dest_qp,
        sl: packet.lrh.sl,
        p_key: packet.bth.p_key,
        grh,
        mad: Box::new(*mad),
    })
}

fn mad_packet(
    lrh: Lrh,
    p_key: PKey,
    dest_qp: Qpn,
    psn: Psn,
    deth: Deth,
    mad: &MadBytes,
) -> Packet<'_> {
    Packet {
        lrh,
        grh: None,
        bth: Bth {
            opcode: Opcode::UD_SEND_ONLY,
            p_key,
            dest_qp,
            psn,
            ..Bth::default()
        },
        ext: Extended {
            deth: Some(deth),
            ..Extended::default()
        },
        payload: mad,
        lso: None,
        icrc: None,
        hops: 0,
    }
}

/// An SMP as a packet: VL15, SL 0, default P_Key (IBA 13.5.1.1, 10.9.2).
pub fn smp_packet(mad: &MadBytes, slid: Lid, dlid: Lid, psn: Psn) -> Packet<'_> {
    let lrh = Lrh {
        vl: 15,
        slid,
        dlid,
        ..Lrh::default()
    };
    mad_packet(lrh, PKey::DEFAULT_FULL, Qpn::SMI, psn, Deth::default(), mad)
}

/// An SMP of this very node as its control gets it.
fn own_smp(mad: Box<MadBytes>, lid: Lid) -> MadReceived {
    MadReceived {
        slid: lid,
        dlid: lid,
        src_qp: Qpn::SMI,
        dest_qp: Qpn::SMI,
        sl: ServiceLevel(0),
        p_key: PKey::DEFAULT_FULL,
        grh: None,
        mad,
    }
}

/// Sends an SMP of the subnet manager, of the SMA's answers or of traps: begins its directed route or routes it by LID. `mad.dlid` of a
/// directed-route response is the SLID of its request.
pub(crate) fn send_smp(plane: &impl Plane, mut mad: MadSend) {
    let core = plane.core();
    let attributes = core.attributes.load();
    let directed = mad.mad[1] == MgmtClass::SUBN_DIRECTED.0;
    let route = match directed {
        true => core.smi.send(&mut mad.mad, mad.dlid),
        false if is_own_lid(&attributes, mad.dlid) => Ok(Route::Here),
        false if mad.dlid.is_unicast() => Ok(Route::ByLid(mad.dlid)),
        false => Err(DropReason::BadDestination),
    };
    match route {
        Ok(Route::Here | Route::Back) => {
            let lid = if directed {
                Lid::PERMISSIVE
            } else {
                attributes.lid
            };
            core.smp_to_control(own_smp(mad.mad, lid), 0);
        }
        Ok(route) => forward_smp(plane, &mad.mad, route),
        Err(reason) => core.drops.count(reason),
    }
}

/// Sends a trap to the master subnet manager, which may be here.
pub(crate) fn send_trap(plane: &impl Plane, sm_lid: Lid, mad: Box<MadBytes>) {
    let (sl, q_key, p_key) = (Default::default(), QKey::default(), PKey::DEFAULT_FULL);
    send_smp(
        plane,
        MadSend {
            dlid: sm_lid,
            sl,
            remote_qpn: Qpn::SMI,
            q_key,
            p_key,
            grh: None,
            mad,
        },
    );
}

/// Sends an SMP on, to where its route says; [`Route::Here`] and [`Route::Back`] are not for this function.
pub(crate) fn forward_smp(plane: &impl Plane, mad: &MadBytes, route: Route) {
    let core = plane.core();
    let psn = Psn::new(core.psn.fetch_add(1, Relaxed));
    match route {
        Route::Out(port) => match core.ports.get(usize::from(port)) {
            Some(plane) if plane.state() <= PortState::DOWN => {
                plane.discard(1, DropReason::PortNotActive, &core.drops)
            }
            Some(plane) => plane.transmit(
                &[smp_packet(mad, Lid::PERMISSIVE, Lid::PERMISSIVE, psn)],
                &core.drops,
            ),
            None => core.drops.count(DropReason::BadRoute),
        },
        Route::ByLid(lid) => {
            plane.send_by_lid(&smp_packet(mad, core.attributes.load().lid, lid, psn))
        }
        Route::Here | Route::Back => core.drops.count(DropReason::BadRoute),
    }
}

/// Sends a MAD from QP1. The packet carries the table's own entry for the partition: a limited member that says it is a full one would be
/// refused by limited members, and one that answers with the other side's limited key would be refused by it.
pub(crate) fn send_gsi(plane: &impl Plane, mad: MadSend) {
    let core = plane.core();
    let attributes = core.attributes.load();
    let own = is_own_lid(&attributes, mad.dlid);
    if attributes.state != PortState::ACTIVE {
        return core
            .end()
            .discard(1, DropReason::PortNotActive, &core.drops);
    }
    if !(mad.dlid.is_unicast() || mad.dlid.is_multicast()) || mad.remote_qpn == Qpn::SMI {
        return core.drops.count(DropReason::BadDestination);
    }
    let Some(p_key) = attributes
        .pkey_index(mad.p_key)
        .and_then(|i| attributes.pkeys.get(usize::from(i)).copied())
    else {
        core.end()
            .counters
            .xmit_constraint_errors
            .fetch_add(1, Relaxed);
        return core.drops.count(DropReason::NoPKey);
    };
    let Some(vl) = lane(core.end().lanes.load().as_deref(), 0, mad.sl) else {
        return core.end().discard(1, DropReason::NoLane, &core.drops);
    };
    let lrh = Lrh {
        vl,
        sl: mad.sl,
        slid: attributes.lid,
        dlid: mad.dlid,
        ..Lrh::default()
    };
    let deth = Deth {
        q_key: mad.q_key,
        src_qp: Qpn::GSI,
    };
    let mut packet = mad_packet(
        lrh,
        p_key,
        mad.remote_qpn,
        Psn::new(core.psn.fetch_add(1, Relaxed)),
        deth,
        &mad.mad,
    );
    packet.grh = mad.grh.map(|g| Grh {
        traffic_class: g.traffic_class,
        flow_label: g.flow_label,
        hop_limit: g.hop_limit,
        sgid: g.sgid,
        dgid: g.dgid,
    });
    match own {
        true if mad.remote_qpn == Qpn::GSI => core.receive_gsi(&packet),
        _ => plane.send_by_lid(&packet),
    }
}

/// Until control, which is made after its data plane, publishes the real ones.
fn blank_attributes() -> PortAttributes {
    PortAttributes {
        state: PortState::DOWN,
        lid: Lid::UNSET,
        lmc: 0,
        sm_lid: Lid::UNSET,
        sm_sl: ServiceLevel(0),
        subnet_timeout: 0,
        max_mtu: MtuCode(0),
        active_mtu: MtuCode(0),
        rate: RateCode::GBPS_10,
        gids: Vec::new(),
        pkeys: Vec::new(),
        node_guid: Guid(0),
    }
}
