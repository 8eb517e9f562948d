//! A host channel adapter with one port, behind the `verbs` traits (IBA chapters 9 to 11, 17).
//!
//! [`Hca`] is the data plane: any thread sends and receives through it, reading snapshots of the port's attributes and of the tables of queue
//! pairs and groups, and takes no lock. [`HcaControl`] is its state machine; see [`crate::node`].

mod qp;
mod rc;
#[cfg(test)]
mod tests;

pub use qp::QpResource;

use crate::link::{ControlSink, Link, LinkSink};
use crate::node::{
    AgentResource, CounterValues, DropReason, Drops, ManagementPort, NodeConfig, NodeControl,
    NodeCore, NodeInput, Plane, SmiNode, has_own_gid, is_own_lid, mad_received, register_mad_agent,
    register_sm, register_umad,
};
use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use parking_lot::Mutex;
use qp::{Allocator, AnyQp, Qp, QpTable, UdQp};
use rc::{Buffers, ConnectedHandle, ConnectedQp, Regions, Timers};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use verbs::{
    Access, AddressHandle, AhAttributes, ConnectedHandler, ConnectedInit, ConnectedQueuePair,
    MadAgent, MadHandler, MemoryRegion, Port, PortAttributes, PortEvent, PortEventHandler,
    ReceiveHandler, UdInit, UdQueuePair, UdReceive, VerbsError,
};
use wire::mad::attr::PortState;
use wire::mad::{MadBytes, MgmtClass};
use wire::packet::Packet;
use wire::{Gid, Guid, MtuCode, Qpn};

/// Packets or receives that are handled at a time, on the stack.
pub(crate) const CHUNK: usize = 32;
/// The only port.
const PORT: u8 = 1;

/// What an HCA is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaConfig {
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of its port.
    pub port_guid: Guid,
    /// NodeDescription.
    pub description: String,
    /// IEEE company number.
    pub vendor_id: u32,
    /// Device ID of the vendor.
    pub device_id: u16,
    /// Hardware revision.
    pub revision: u32,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
    /// Largest MTU of the port.
    pub mtu_cap: MtuCode,
    /// Subnet prefix until the subnet manager sets one.
    pub gid_prefix: u64,
    /// Where allocation of queue pair numbers begins: an engine that restarts gives another number, so that late packets of its former life
    /// hit nothing.
    pub first_qpn: Qpn,
}

impl HcaConfig {
    /// The usual HCA: 64 P_Keys, MTU 4096, node GUID is `guid` and port GUID the next.
    pub fn new(guid: Guid, description: &str) -> Self {
        HcaConfig {
            node_guid: guid,
            port_guid: Guid(guid.0.wrapping_add(1)),
            description: description.into(),
            vendor_id: 0,
            device_id: 0,
            revision: 1,
            pkey_table_len: 64,
            mtu_cap: MtuCode::MTU_4096,
            gid_prefix: Gid::DEFAULT_PREFIX,
            first_qpn: Qpn(0x48),
        }
    }
}

/// What the data plane of an HCA hands to its control.
pub type HcaInput = NodeInput;
/// The control side of an HCA.
pub type HcaControl = NodeControl<Hca>;

/// What an HCA holds for its users (`show`, leak checks).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HcaResources {
    /// Live queue pairs in the order of their numbers.
    pub queue_pairs: Vec<QpResource>,
    /// Registered memory regions.
    pub memory_regions: usize,
    /// Agents of QP1.
    pub agents: Vec<AgentResource>,
    /// Is a subnet manager registered?
    pub subnet_manager: bool,
    /// Address handles, each as long as the last of its clones lives.
    pub address_handles: usize,
}

impl HcaResources {
    /// How many of each, by name.
    pub fn counts(&self) -> [(&'static str, u64); 5] {
        let groups = self.queue_pairs.iter().map(|qp| qp.groups.len()).sum();
        let counts = [
            ("queue_pairs", self.queue_pairs.len()),
            ("attached_groups", groups),
            ("memory_regions", self.memory_regions),
            ("mad_agents", self.agents.len()),
            ("address_handles", self.address_handles),
        ];
        counts.map(|(name, n)| (name, n as u64))
    }
}

/// The data plane of an HCA.
pub struct Hca {
    me: Weak<Hca>,
    core: NodeCore,
    table: ArcSwap<QpTable>,
    /// Held while `table` is replaced; never by the data path.
    allocator: Mutex<Allocator>,
    subscribers: ArcSwap<Vec<Arc<dyn PortEventHandler>>>,
    /// Each address handle has a clone.
    handles: Arc<()>,
    gone: AtomicBool,
    regions: Arc<Regions>,
    buffers: Arc<Buffers>,
    timers: Timers,
    clock: OnceLock<Clock>,
}

type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

impl Hca {
    /// An HCA whose port has no link yet. `sink` gets what control must be fed with.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(config: HcaConfig, sink: ControlSink<HcaInput>) -> (Arc<Hca>, HcaControl) {
        let node = NodeConfig {
            is_switch: false,
            ports: 1,
            node_guid: config.node_guid,
            port_guid: config.port_guid,
            description: config.description,
            vendor_id: config.vendor_id,
            device_id: config.device_id,
            revision: config.revision,
            pkey_table_len: config.pkey_table_len,
            mtu_cap: config.mtu_cap,
            gid_prefix: config.gid_prefix,
        };
        // A restarted engine gets other TIDs as well, so that late answers to its former life find no one.
        let first_tid_high = config.first_qpn.0 << 8 | 1;
        let hca = Arc::new_cyclic(|me| Hca {
            me: me.clone(),
            core: NodeCore::new(
                SmiNode {
                    is_switch: false,
                    ports: 1,
                },
                first_tid_high,
                sink,
            ),
            table: ArcSwap::default(),
            allocator: Mutex::new(Allocator::new(config.first_qpn)),
            subscribers: ArcSwap::default(),
            handles: Arc::default(),
            gone: AtomicBool::new(false),
            regions: Arc::default(),
            buffers: Arc::default(),
            timers: Timers::default(),
            clock: OnceLock::new(),
        });
        let control = NodeControl::new(hca.clone(), &node, Box::new(()));
        (hca, control)
    }

    /// Connected queue pairs take the time from `clock`, for simulations in virtual time. Only once.
    pub fn set_clock(&self, clock: impl Fn() -> Instant + Send + Sync + 'static) {
        // The first stays.
        let _ = self.clock.set(Box::new(clock));
    }

    fn now(&self) -> Instant {
        self.clock.get().map_or_else(Instant::now, |clock| clock())
    }

    /// Gives the port its link. The link then reports its state by [`LinkSink::link_changed`].
    pub fn attach_link(&self, link: Arc<dyn Link>) {
        link.port_state(self.core.end().state());
        self.core.end().set_link(Some(link));
    }

    /// Takes the link away; the port goes down.
    pub fn detach_link(&self) {
        self.core.end().set_link(None);
        self.link_changed(false);
    }

    /// Ends the adapter: tells all users, refuses new ones.
    pub fn shut_down(&self) {
        if !self.gone.swap(true, Relaxed) {
            self.event(PortEvent::DeviceFatal);
        }
    }

    /// Counters of the port.
    pub fn counters(&self) -> CounterValues {
        self.core.end().counters.values()
    }

    /// Dropped packets by reason.
    pub fn drops(&self) -> &Drops {
        &self.core.drops
    }

    /// What is alive.
    pub fn resources(&self) -> HcaResources {
        HcaResources {
            queue_pairs: self.table.load().resources(),
            memory_regions: self.regions.len(),
            agents: self.core.agents(),
            subnet_manager: self.core.has_sm(),
            address_handles: Arc::strong_count(&self.handles) - 1,
        }
    }

    fn arc(&self) -> Result<Arc<Hca>, VerbsError> {
        match self.gone.load(Relaxed) {
            false => self.me.upgrade().ok_or(VerbsError::DeviceGone),
            true => Err(VerbsError::DeviceGone),
        }
    }

    /// Packets of one destination that may come in: to their queue pair or queue pairs, but not to `sender`.
    fn deliver(&self, attributes: &PortAttributes, run: &[Packet<'_>], sender: Option<Qpn>) {
        let Some(first) = run.first() else { return };
        let table = self.table.load();
        if first.lrh.dlid.is_multicast() {
            let Some(grh) = first
                .grh
                .filter(|g| g.dgid.is_multicast() && first.bth.dest_qp == Qpn::MULTICAST)
            else {
                return self
                    .core
                    .drops
                    .add(DropReason::BadMulticast, run.len() as u64);
            };
            match table.groups.get(&grh.dgid) {
                Some(members) => members
                    .iter()
                    .filter(|m| Some(m.qpn) != sender)
                    .for_each(|m| self.deliver_to(m, attributes, run)),
                // What loops back inside this HCA is a copy: it went out as well.
                None if sender.is_some() => {}
                None => self
                    .core
                    .drops
                    .add(DropReason::NoGroupMember, run.len() as u64),
            }
        } else {
            match first.bth.dest_qp {
                Qpn::GSI => run.iter().for_each(|p| self.core.receive_gsi(p)),
                _ if !has_own_gid(attributes, first) => {
                    self.core.drops.add(DropReason::NotOurGid, run.len() as u64)
                }
                qpn => match table.qps.get(&qpn) {
                    Some(AnyQp::Ud(qp)) => self.deliver_to(qp, attributes, run),
                    Some(AnyQp::Connected(qp)) => qp.receive(self, attributes, run),
                    None => run.iter().for_each(|p| self.core.receive_absent_qp(p)),
                },
            }
        }
    }

    /// Checks each packet against the queue pair (IBA 9.6.1, 10.9.4, 10.2.4) and runs its handler.
    fn deliver_to(&self, qp: &Qp, attributes: &PortAttributes, run: &[Packet<'_>]) {
        let q_key = qp.q_key();
        let p_key = attributes
            .pkeys
            .get(usize::from(qp.pkey_index()))
            .copied()
            .unwrap_or_default();
        let mut batch = ArrayVec::<UdReceive<'_>, CHUNK>::new();
        for packet in run {
            // UD_SEND_ONLY with immediate is none of IPoIB's business, and there is nowhere to put the immediate.
            let Some(deth) = packet
                .ext
                .deth
                .filter(|_| packet.bth.opcode == wire::packet::Opcode::UD_SEND_ONLY)
            else {
                self.core.drops.count(DropReason::BadOpcode);
                continue;
            };
            if !p_key.matches(packet.bth.p_key) {
                self.core.bad_key(packet, false);
                continue;
            }
            if deth.q_key != q_key {
                self.core.bad_key(packet, true);
                continue;
            }
            batch.push(UdReceive {
                slid: packet.lrh.slid,
                src_qp: deth.src_qp,
                sl: packet.lrh.sl,
                grh: packet.grh.map(|g| (g.sgid, g.dgid)),
                payload: packet.payload,
                lso: packet.lso,
            });
            if batch.is_full() {
                qp.receive(&batch);
                batch.clear();
            }
        }
        if !batch.is_empty() {
            qp.receive(&batch);
        }
    }

    /// A packet on VL15: QP0, to control.
    fn receive_smp(&self, attributes: &PortAttributes, packet: &Packet<'_>) {
        if packet.lrh.vl != 15 || packet.bth.dest_qp != Qpn::SMI {
            return self.core.drops.count(DropReason::BadVl);
        }
        let Some(mad) = mad_received(packet) else {
            return self.core.drops.count(DropReason::BadMad);
        };
        if packet.lrh.dlid != wire::Lid::PERMISSIVE && !is_own_lid(attributes, packet.lrh.dlid) {
            return self.core.drops.count(DropReason::NotOurLid);
        }
        self.core.smp_to_control(mad, PORT);
    }
}

/// Same queue pair or group, same lane: may be handled together.
pub(crate) fn same_destination(a: &Packet<'_>, b: &Packet<'_>) -> bool {
    a.lrh.dlid == b.lrh.dlid
        && a.bth.dest_qp == b.bth.dest_qp
        && a.lrh.vl == b.lrh.vl
        && a.grh.map(|g| g.dgid) == b.grh.map(|g| g.dgid)
}

impl LinkSink for Hca {
    fn receive(&self, packets: &[Packet<'_>]) {
        let port = self.core.end();
        let state = port.state();
        if state <= PortState::DOWN {
            return self
                .core
                .drops
                .add(DropReason::PortNotActive, packets.len() as u64);
        }
        if port.sort_out_oversize(packets, &self.core.drops, |p| self.receive(p)) {
            return;
        }
        port.count_received(packets);
        if state == PortState::ARMED && packets.iter().any(|p| p.lrh.vl != 15) {
            self.core.data_on_armed(PORT);
        }
        let attributes = self.core.attributes.load();
        for run in packets.chunk_by(same_destination) {
            let first = &run[0];
            if first.lrh.vl == 15 || first.bth.dest_qp == Qpn::SMI {
                run.iter().for_each(|p| self.receive_smp(&attributes, p));
            } else if state < PortState::ARMED {
                self.core
                    .drops
                    .add(DropReason::PortNotActive, run.len() as u64);
            } else if !(first.lrh.dlid.is_multicast() || is_own_lid(&attributes, first.lrh.dlid)) {
                self.core.drops.add(DropReason::NotOurLid, run.len() as u64);
            } else {
                self.deliver(&attributes, run, None);
            }
        }
    }

    fn link_changed(&self, up: bool) {
        self.core.link_changed(PORT, up);
    }

    fn receive_errors(&self, n: usize) {
        self.core.end().count_errors(n);
    }
}

impl Plane for Hca {
    fn core(&self) -> &NodeCore {
        &self.core
    }

    fn send_by_lid(&self, packet: &Packet<'_>) {
        let attributes = self.core.attributes.load();
        if packet.lrh.vl != 15 && is_own_lid(&attributes, packet.lrh.dlid) {
            return self.deliver(&attributes, std::slice::from_ref(packet), None);
        }
        let port = self.core.end();
        if port.state() <= PortState::DOWN {
            return port.discard(1, DropReason::PortNotActive, &self.core.drops);
        }
        port.transmit(std::slice::from_ref(packet), &self.core.drops);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timers.poll_timeout()
    }

    fn handle_timeout(&self, now: Instant) {
        for qpn in self.timers.take(now) {
            let qp = self.table.load().qps.get(&qpn).cloned();
            if let Some(AnyQp::Connected(qp)) = qp {
                qp.handle_timeout(self, now);
            }
        }
    }

    fn event(&self, event: PortEvent) {
        self.subscribers
            .load()
            .iter()
            .for_each(|s| s.port_event(event));
    }
}

impl ManagementPort for Hca {
    fn attributes(&self) -> Arc<PortAttributes> {
        self.core.attributes.load_full()
    }
    fn register_mad_agent(
        &self,
        classes: &[MgmtClass],
        handler: Arc<dyn MadHandler>,
    ) -> Result<Box<dyn MadAgent>, VerbsError> {
        Ok(register_mad_agent(self.arc()?, classes, handler))
    }
    fn register_sm(&self, handler: Arc<dyn MadHandler>) -> Result<Box<dyn MadAgent>, VerbsError> {
        register_sm(self.arc()?, handler)
    }
    fn register_umad(&self, handler: Arc<dyn MadHandler>) -> Result<Box<dyn MadAgent>, VerbsError> {
        Ok(register_umad(self.arc()?, handler))
    }
    fn query_sma(&self, mad: Box<MadBytes>) {
        self.core.query_sma(mad);
    }
}

impl Port for Hca {
    fn attributes(&self) -> Arc<PortAttributes> {
        self.core.attributes.load_full()
    }
    fn subscribe(&self, handler: Arc<dyn PortEventHandler>) {
        self.subscribers.rcu(|all| {
            all.iter()
                .cloned()
                .chain([handler.clone()])
                .collect::<Vec<_>>()
        });
    }
    fn create_ud_qp(
        &self,
        init: UdInit,
        handler: Arc<dyn ReceiveHandler>,
    ) -> Result<Arc<dyn UdQueuePair>, VerbsError> {
        Ok(Arc::new(UdQp::create(self.arc()?, init, handler)?))
    }
    fn create_connected_qp(
        &self,
        init: ConnectedInit,
        handler: Arc<dyn ConnectedHandler>,
    ) -> Result<Arc<dyn ConnectedQueuePair>, VerbsError> {
        let hca = self.arc()?;
        let qp = hca.add_qp(init.qpn, |qpn| {
            let qp = Arc::new(ConnectedQp::new(qpn, init, handler, hca.buffers.clone()));
            (AnyQp::Connected(qp.clone()), qp)
        })?;
        Ok(Arc::new(ConnectedHandle { hca, qp }))
    }
    fn register_memory(
        &self,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.arc()?;
        Ok(Arc::new(self.regions.register(bytes, access)?))
    }
    fn create_ah(&self, attributes: AhAttributes) -> Result<AddressHandle, VerbsError> {
        self.arc()?;
        Ok(AddressHandle::new(
            attributes,
            Some(Box::new(self.handles.clone())),
        ))
    }
    fn register_mad_agent(
        &self,
        classes: &[MgmtClass],
        handler: Arc<dyn MadHandler>,
    ) -> Result<Box<dyn MadAgent>, VerbsError> {
        Ok(register_mad_agent(self.arc()?, classes, handler))
    }
}
