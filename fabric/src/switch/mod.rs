//! A switch with an enhanced port 0 (IBA chapter 18): forwards by LFT and MFT and floods nothing that it was not told to.
//!
//! [`Switch`] is the data plane: packets are forwarded on the thread that brought them, by snapshots of the tables. [`SwitchControl`] is its
//! state machine; see [`crate::node`]. Directed-route SMPs go through control at each hop.

mod tables;
#[cfg(test)]
mod tests;

use crate::link::{ControlSink, Link, LinkSink};
use crate::node::{
    AgentResource, CounterValues, DropReason, Drops, Lanes, ManagementPort, NodeConfig,
    NodeControl, NodeCore, NodeInput, Plane, PortPlane, SmiNode, is_own_lid, lane, mad_received,
    payload_len, register_mad_agent, register_sm, register_umad,
};
use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use tables::{Mft, NO_PORT, PortMask, SwitchTables};
use verbs::{MadAgent, MadHandler, PortAttributes, VerbsError};
use wire::mad::attr::PortState;
use wire::mad::{MadBytes, MgmtClass};
use wire::packet::Packet;
use wire::{Gid, Guid, Lid, MtuCode, Qpn};

/// Packets that are forwarded at a time, on the stack.
const CHUNK: usize = 32;
/// A packet that has passed so many switches goes in circles: no path is longer (IBA 14.2.2).
const MAX_HOPS: u8 = 64;
/// The same of multicast. While tables of several switches change, a tree may have a circle for a moment, and at each round there are more copies:
/// a tree over a few tiers must be enough.
const MAX_MULTICAST_HOPS: u8 = 12;

/// What a switch is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// GUID of the node and of port 0.
    pub guid: Guid,
    /// NodeDescription.
    pub description: String,
    /// Number of external ports, 1 to 254.
    pub ports: u8,
}

/// What the data plane of a switch hands to its control.
pub type SwitchInput = NodeInput;
/// The control side of a switch.
pub type SwitchControl = NodeControl<Switch>;

/// The data plane of a switch.
pub struct Switch {
    me: Weak<Switch>,
    core: NodeCore,
    sinks: Vec<Arc<SwitchPort>>,
    /// Port by LID; what is beyond the end has none.
    lft: ArcSwap<Vec<u8>>,
    /// LIDs beyond have no port whatever the table says (IBA 18.2.4.3.1).
    linear_fdb_top: AtomicU16,
    mft: ArcSwap<Mft>,
    /// Held while links are attached and free ports looked for; never by the data path.
    attaching: Mutex<()>,
}

/// An external port as its link holds it; it lives with the switch but does not keep it alive.
struct SwitchPort {
    switch: Weak<Switch>,
    number: u8,
}

impl LinkSink for SwitchPort {
    fn receive(&self, packets: &[Packet<'_>]) {
        if let Some(switch) = self.switch.upgrade() {
            switch.receive(self.number, packets);
        }
    }
    fn link_changed(&self, up: bool) {
        if let Some(switch) = self.switch.upgrade() {
            switch.core.link_changed(self.number, up);
        }
    }
    fn receive_errors(&self, n: usize) {
        if let Some(port) = self.switch.upgrade() {
            port.core.ports[usize::from(self.number)].count_errors(n);
        }
    }
}

impl Switch {
    /// A switch without links. `sink` gets what control must be fed with.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(
        config: SwitchConfig,
        sink: ControlSink<SwitchInput>,
    ) -> (Arc<Switch>, SwitchControl) {
        let ports = config.ports.clamp(1, 254);
        let node = NodeConfig {
            is_switch: true,
            ports,
            node_guid: config.guid,
            port_guid: config.guid,
            description: config.description,
            vendor_id: 0,
            device_id: 0,
            revision: 1,
            pkey_table_len: 32,
            mtu_cap: MtuCode::MTU_4096,
            gid_prefix: Gid::DEFAULT_PREFIX,
        };
        let switch = Arc::new_cyclic(|me| Switch {
            me: me.clone(),
            core: NodeCore::new(
                SmiNode {
                    is_switch: true,
                    ports,
                },
                1,
                sink,
            ),
            sinks: (1..=ports)
                .map(|number| {
                    Arc::new(SwitchPort {
                        switch: me.clone(),
                        number,
                    })
                })
                .collect(),
            lft: ArcSwap::default(),
            linear_fdb_top: AtomicU16::new(0),
            mft: ArcSwap::default(),
            attaching: Mutex::new(()),
        });
        let control = NodeControl::new(switch.clone(), &node, Box::new(SwitchTables::new()));
        (switch, control)
    }

    /// Number of external ports.
    pub fn ports(&self) -> u8 {
        self.core.smi.ports
    }

    /// The external port `number` (from 1) as its link sees it; a number out of range gives the last port.
    pub fn port(&self, number: u8) -> Arc<dyn LinkSink> {
        self.sinks[usize::from(number.clamp(1, self.ports())) - 1].clone()
    }

    /// Gives a port its link. The link then reports its state to [`Switch::port`].
    pub fn attach_link(&self, number: u8, link: Arc<dyn Link>) {
        let _attaching = self.attaching.lock();
        if let Some(port) = self.external(number) {
            link.port_state(port.state());
            port.set_link(Some(link));
        }
    }

    /// Takes the link of a port away; the port goes down.
    pub fn detach_link(&self, number: u8) {
        let _attaching = self.attaching.lock();
        if let Some(port) = self.external(number) {
            port.set_link(None);
            self.core.link_changed(number, false);
        }
    }

    /// The external ports without a link, lowest first.
    pub fn free_ports(&self) -> impl Iterator<Item = u8> {
        let _attaching = self.attaching.lock();
        (1..=self.ports()).filter(|n| self.core.ports[usize::from(*n)].link().is_none())
    }

    /// Logical state of a port, `None` if there is no such port.
    pub fn port_state(&self, number: u8) -> Option<PortState> {
        self.core
            .ports
            .get(usize::from(number))
            .map(PortPlane::state)
    }

    /// Counters of a port, `None` if there is no such port.
    pub fn counters(&self, number: u8) -> Option<CounterValues> {
        self.core
            .ports
            .get(usize::from(number))
            .map(|p| p.counters.values())
    }

    /// Dropped packets by reason.
    pub fn drops(&self) -> &Drops {
        &self.core.drops
    }

    /// Agents of QP1 of port 0.
    pub fn agents(&self) -> Vec<AgentResource> {
        self.core.agents()
    }

    /// Ports a unicast or multicast LID leads to, for `show` and tests.
    pub fn route(&self, lid: Lid) -> Vec<u8> {
        if lid.is_multicast() {
            return self.mft.load().get(lid, 0).ports().collect();
        }
        self.unicast_port(lid).into_iter().collect()
    }

    fn unicast_port(&self, lid: Lid) -> Option<u8> {
        let port = self.lft.load().get(usize::from(lid.0)).copied();
        port.filter(|p| *p != NO_PORT && lid.0 <= self.linear_fdb_top.load(Relaxed))
    }

    fn external(&self, number: u8) -> Option<&PortPlane> {
        if number == 0 {
            None
        } else {
            self.core.ports.get(usize::from(number))
        }
    }

    /// Packets that came in by an external port.
    fn receive(&self, ingress: u8, packets: &[Packet<'_>]) {
        let port = &self.core.ports[usize::from(ingress)];
        let state = port.state();
        if state <= PortState::DOWN {
            return self
                .core
                .drops
                .add(DropReason::PortNotActive, packets.len() as u64);
        }
        if port.sort_out_oversize(packets, &self.core.drops, |p| self.receive(ingress, p)) {
            return;
        }
        port.count_received(packets);
        if state == PortState::ARMED && packets.iter().any(|p| p.lrh.vl != 15) {
            self.core.data_on_armed(ingress);
        }
        for run in packets.chunk_by(|a, b| a.lrh.dlid == b.lrh.dlid && a.lrh.vl == b.lrh.vl) {
            if run[0].lrh.vl != 15 && state < PortState::ARMED {
                self.core
                    .drops
                    .add(DropReason::PortNotActive, run.len() as u64);
            } else {
                self.forward(ingress, run);
            }
        }
    }

    /// Packets of one DLID and lane on their way, from port `ingress` (0: of this switch itself).
    fn forward(&self, ingress: u8, run: &[Packet<'_>]) {
        let lrh = run[0].lrh;
        let attributes = self.core.attributes.load();
        if is_own_lid(&attributes, lrh.dlid) || (lrh.dlid == Lid::PERMISSIVE && lrh.vl == 15) {
            return self.deliver(ingress, run);
        }
        if lrh.dlid.is_multicast() && lrh.vl != 15 {
            let ports = self.mft.load().get(lrh.dlid, ingress);
            if ports.is_empty() {
                return self.unroutable(ingress, run, DropReason::NoRoute);
            }
            return self.send(ingress, run, ports);
        }
        match self.unicast_port(lrh.dlid) {
            Some(0) => self.deliver(ingress, run),
            Some(port) if port == ingress => self.unroutable(ingress, run, DropReason::WouldReturn),
            Some(port) if port <= self.ports() && lrh.dlid.is_unicast() => {
                self.send(ingress, run, PortMask::one(port))
            }
            _ => self.unroutable(ingress, run, DropReason::NoRoute),
        }
    }

    fn unroutable(&self, ingress: u8, run: &[Packet<'_>], reason: DropReason) {
        self.core.ports[usize::from(ingress)]
            .counters
            .rcv_switch_relay_errors
            .fetch_add(run.len() as u64, Relaxed);
        self.core.drops.add(reason, run.len() as u64);
    }

    /// Out of each of `ports` but the one they came in by. Headers are copied once for all ports, payloads never.
    fn send(&self, ingress: u8, run: &[Packet<'_>], ports: PortMask) {
        let most = match run.first() {
            Some(packet) if packet.lrh.dlid.is_multicast() => MAX_MULTICAST_HOPS,
            _ => MAX_HOPS,
        };
        for packets in run.chunks(CHUNK) {
            let mut out = ArrayVec::<Packet<'_>, CHUNK>::new();
            for packet in packets {
                let hops = packet.hops.saturating_add(1);
                if hops > most {
                    self.unroutable(ingress, std::slice::from_ref(packet), DropReason::HopLimit);
                } else if self.passes(ingress, packet, true) {
                    out.push(Packet { hops, ..*packet });
                }
            }
            if out.is_empty() {
                continue;
            }
            let needed = if out[0].lrh.vl == 15 {
                PortState::INIT
            } else {
                PortState::ARMED
            };
            // All of a run are of one lane.
            let vl = out[0].lrh.vl;
            let longest = out.iter().map(payload_len).max().unwrap_or_default();
            for number in ports.ports().filter(|n| *n != ingress) {
                let Some(port) = self.external(number) else {
                    // Port 0 of a multicast: no queue pair of the switch is in a group.
                    self.core.drops.add(
                        DropReason::NoGroupMember,
                        if number == 0 { 0 } else { out.len() as u64 },
                    );
                    continue;
                };
                if port.state() < needed {
                    port.discard(out.len(), DropReason::PortNotActive, &self.core.drops);
                    continue;
                }
                let lanes = port.lanes.load();
                if port.enforcement.load().is_some()
                    || (vl != 15 && (vl != 0 || lanes.is_some()))
                    || longest > usize::from(port.neighbor_mtu.load(Relaxed))
                {
                    let admitted: ArrayVec<_, CHUNK> = out
                        .iter()
                        .filter_map(|p| self.admit(ingress, number, lanes.as_deref(), p))
                        .collect();
                    if !admitted.is_empty() {
                        port.transmit(&admitted, &self.core.drops);
                    }
                } else {
                    port.transmit(&out, &self.core.drops);
                }
            }
        }
    }

    /// `packet` as it leaves by port `number`, on the lane that its service level has there; `None` if it may not.
    fn admit<'a>(
        &self,
        ingress: u8,
        number: u8,
        lanes: Option<&Lanes>,
        packet: &Packet<'a>,
    ) -> Option<Packet<'a>> {
        let port = &self.core.ports[usize::from(number)];
        if !self.passes(number, packet, false) {
            return None;
        }
        if payload_len(packet) > usize::from(port.neighbor_mtu.load(Relaxed)) {
            port.discard(1, DropReason::TooLong, &self.core.drops);
            return None;
        }
        if packet.lrh.vl == 15 {
            return Some(*packet);
        }
        let Some(vl) = lane(lanes, ingress, packet.lrh.sl) else {
            port.discard(1, DropReason::NoLane, &self.core.drops);
            return None;
        };
        let lrh = wire::packet::Lrh { vl, ..packet.lrh };
        Some(Packet { lrh, ..*packet })
    }

    /// Partition enforcement of an external port (IBA 10.9.8); SMPs are exempt.
    fn passes(&self, number: u8, packet: &Packet<'_>, inbound: bool) -> bool {
        let port = &self.core.ports[usize::from(number)];
        let enforcement = port.enforcement.load();
        let Some(e) = enforcement
            .as_ref()
            .filter(|e| packet.lrh.vl != 15 && if inbound { e.inbound } else { e.outbound })
        else {
            return true;
        };
        if e.admits(packet.bth.p_key) {
            return true;
        }
        let counter = if inbound {
            &port.counters.rcv_constraint_errors
        } else {
            &port.counters.xmit_constraint_errors
        };
        counter.fetch_add(1, Relaxed);
        self.core.drops.count(DropReason::PKeyMismatch);
        self.core.report_violation(port, packet, number, false);
        false
    }

    /// Packets for port 0.
    fn deliver(&self, ingress: u8, run: &[Packet<'_>]) {
        for packet in run {
            match (packet.lrh.vl, packet.bth.dest_qp) {
                (15, Qpn::SMI) => match mad_received(packet) {
                    Some(mad) => self.core.smp_to_control(mad, ingress),
                    None => self.core.drops.count(DropReason::BadMad),
                },
                (15, _) | (_, Qpn::SMI) => self.core.drops.count(DropReason::BadVl),
                (_, Qpn::GSI) if self.core.end().state() >= PortState::ARMED => {
                    self.core.receive_gsi(packet)
                }
                (_, Qpn::GSI) => self.core.drops.count(DropReason::PortNotActive),
                _ => self.core.receive_absent_qp(packet),
            }
        }
    }

    fn arc(&self) -> Result<Arc<Switch>, VerbsError> {
        self.me.upgrade().ok_or(VerbsError::DeviceGone)
    }
}

impl Plane for Switch {
    fn core(&self) -> &NodeCore {
        &self.core
    }
    fn send_by_lid(&self, packet: &Packet<'_>) {
        self.forward(0, std::slice::from_ref(packet));
    }
}

impl ManagementPort for Switch {
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
