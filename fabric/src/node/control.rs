//! Control of a node: the state machine behind its data plane. One implementation for switches and HCAs.

use super::gsi::{self, NodeCore, Plane, forward_smp, send_gsi, send_smp};
use super::plan::USUAL_LINK;
use super::pma::Pma;
use super::sma::{BOUNCE, Effect, Sma};
use super::traps::Traps;
use super::{DropReason, Enforcement, KeyViolation, Route};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use verbs::{MadReceived, PortEvent};
use wire::mad::attr::{CapabilityMask, PortPhysicalState, PortState};
use wire::mad::{AttrId, MadStatus, Method, MgmtClass, Smp};
use wire::{Guid, MtuCode, Qpn};

/// What a data plane hands to its control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeInput {
    /// A management packet for the agents of this node.
    Mad {
        /// The MAD and its addresses.
        mad: MadReceived,
        /// The port it came in by; 0: from this node.
        ingress: u8,
    },
    /// A Get for the agent of this node that needs no M_Key: see [`super::ManagementPort::query_sma`].
    Query(MadReceived),
    /// The physical link of some port changed.
    LinkChanged,
    /// The data plane waits for something earlier than before.
    TimerSet,
    /// Data came in by this port, which was Armed.
    DataOnArmed(u8),
    /// The node shall call itself this from now on (NodeDescription).
    Describe(String),
    /// A subnet manager registered or left.
    SmChanged,
    /// A packet with a wrong P_Key or Q_Key came.
    KeyViolation(KeyViolation),
}

/// What a node is made of.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub(crate) is_switch: bool,
    pub(crate) ports: u8,
    pub(crate) node_guid: Guid,
    pub(crate) port_guid: Guid,
    pub(crate) description: String,
    pub(crate) vendor_id: u32,
    pub(crate) device_id: u16,
    pub(crate) revision: u32,
    pub(crate) pkey_table_len: u16,
    pub(crate) mtu_cap: MtuCode,
    pub(crate) gid_prefix: u64,
}

/// What only some kind of node has: the tables of a switch.
pub(crate) trait Extra<P>: Send {
    /// Answers a Get or Set of an attribute that only this kind of node has.
    fn process(&mut self, plane: &P, smp: &Smp) -> Option<(MadStatus, [u8; 64])>;
    /// A port came up or went down by itself.
    fn link_state_changed(&mut self);
}

impl<P> Extra<P> for () {
    fn process(&mut self, _plane: &P, _smp: &Smp) -> Option<(MadStatus, [u8; 64])> {
        None
    }
    fn link_state_changed(&mut self) {}
}

/// The control side of a node. Feed it what the data plane's sink was given, and call it when its timeout has come.
pub struct NodeControl<P: NodePlane> {
    plane: Arc<P>,
    pub(super) extra: Box<dyn Extra<P>>,
    pub(super) sma: Sma,
    pma: Pma,
    pub(super) traps: Traps,
}

/// A data plane that has a [`NodeControl`]: [`crate::hca::Hca`] and [`crate::switch::Switch`].
#[allow(private_bounds)]
pub trait NodePlane: Plane {}
impl<P: Plane> NodePlane for P {}

impl<P: NodePlane> NodeControl<P> {
    pub(crate) fn new(plane: Arc<P>, config: &NodeConfig, extra: Box<dyn Extra<P>>) -> Self {
        let sma = Sma::new(config);
        let mut control = NodeControl {
            pma: Pma::new(sma.ports.len()),
            plane,
            extra,
            sma,
            traps: Traps::default(),
        };
        for n in 0..control.sma.ports.len() {
            control.plan_link(n, USUAL_LINK, USUAL_LINK);
            control.apply_port(n);
        }
        control.publish();
        control
    }

    /// The data plane.
    pub fn plane(&self) -> &Arc<P> {
        &self.plane
    }

    /// One input.
    pub fn handle(&mut self, now: Instant, input: NodeInput) {
        self.catch_up(now);
        match input {
            NodeInput::Mad { mad, .. } if mad.dest_qp == Qpn::GSI => self.performance(now, mad),
            NodeInput::Mad { mad, ingress } => self.smp(now, mad, ingress),
            NodeInput::Query(mad) => self.query(mad),
            NodeInput::KeyViolation(violation) => self.key_violation(now, violation),
            NodeInput::DataOnArmed(port) => self.data_on_armed(port),
            NodeInput::Describe(text) => {
                if self.sma.describe(&text) {
                    self.capability_changed(now, true);
                }
            }
            NodeInput::LinkChanged | NodeInput::TimerSet | NodeInput::SmChanged => {}
        }
        self.settle(now);
    }

    /// When [`NodeControl::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let training = self.sma.ports.iter().filter_map(|p| p.training_until);
        training
            .chain(self.traps.poll_timeout())
            .chain(self.sma.lease_until)
            .chain(self.pma.poll_timeout())
            .chain(self.plane.poll_timeout())
            .min()
    }

    /// Does what is due at `now`; harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.catch_up(now);
        for n in 0..self.sma.ports.len() {
            if self.sma.ports[n].training_until.is_some_and(|t| t <= now) {
                self.sma.ports[n].training_until = None;
                self.train(now, n);
            }
        }
        self.pma.handle_timeout(now, self.plane.core());
        self.plane.handle_timeout(now);
        if self.sma.lease_until.is_some_and(|t| t <= now) {
            // IBA 14.2.4.2: nobody who knows the key came; whoever comes may take over.
            self.sma.lease_until = None;
            self.sma.end_mut().info.m_key_protect_bits = 0;
        }
        self.settle(now);
    }

    pub(super) fn core(&self) -> &NodeCore {
        self.plane.core()
    }

    /// Takes in what the data plane knows: links and the presence of a subnet manager. Inputs only say that there is something, so a full
    /// queue loses nothing.
    fn catch_up(&mut self, now: Instant) {
        for n in 1..self.sma.ports.len() {
            let epoch = self.core().ports[n].link_epoch.load(Relaxed);
            if epoch == self.sma.ports[n].link_epoch {
                continue;
            }
            if self.sma.ports[n].link_up() {
                self.core().ports[n]
                    .counters
                    .link_downed
                    .fetch_add(1, Relaxed);
                self.sma.ports[n].training_until = None;
                if self.sma.ports[n].info.port_state != PortState::DOWN {
                    self.set_state(n, PortState::DOWN);
                    self.link_state_changed(now);
                }
            }
            self.sma.ports[n].link_epoch = epoch;
            self.train(now, n);
        }
        let (had, has) = (
            self.sma
                .end()
                .info
                .capability_mask
                .contains(CapabilityMask::IS_SM),
            self.core().has_sm(),
        );
        if had != has {
            self.sma.end_mut().info.capability_mask.0 ^= CapabilityMask::IS_SM.0;
            self.capability_changed(now, false);
        }
    }

    /// The physical link of port `n` may be usable: Down -> Init.
    fn train(&mut self, now: Instant, n: usize) {
        let port = &self.sma.ports[n];
        let disabled = port.info.port_physical_state == PortPhysicalState::DISABLED;
        if port.link_up()
            && !disabled
            && port.training_until.is_none()
            && port.info.port_state == PortState::DOWN
        {
            self.negotiate(n);
            self.set_state(n, PortState::INIT);
            self.link_state_changed(now);
        }
    }

    /// Armed -> Active, as the other side sends data already (IBA 7.2.7).
    fn data_on_armed(&mut self, port: u8) {
        let n = usize::from(port);
        let Some(plane) = self.core().ports.get(n) else {
            return;
        };
        plane.data_reported.store(false, Relaxed);
        if self.sma.ports[n].info.port_state == PortState::ARMED {
            self.set_state(n, PortState::ACTIVE);
        }
    }

    fn set_state(&mut self, n: usize, state: PortState) {
        let info = &mut self.sma.ports[n].info;
        info.port_state = state;
        if info.port_physical_state != PortPhysicalState::DISABLED {
            info.port_physical_state = if state == PortState::DOWN {
                PortPhysicalState::POLLING
            } else {
                PortPhysicalState::LINK_UP
            };
        }
        self.apply_port(n);
    }

    /// An SMP: on along its directed route, to the subnet manager, or to the agent here.
    fn smp(&mut self, now: Instant, mut mad: MadReceived, ingress: u8) {
        let directed = mad.mad[1] == MgmtClass::SUBN_DIRECTED.0;
        let route = if directed {
            self.core().smi.receive(&mut mad.mad, ingress)
        } else {
            Ok(Route::Here)
        };
        match route {
            Ok(Route::Back) => self.core().to_sm(mad),
            Ok(Route::Here) => self.smp_here(now, mad, ingress),
            Ok(route) => forward_smp(&*self.plane, &mad.mad, route),
            Err(reason) => self.core().drops.count(reason),
        }
    }

    fn smp_here(&mut self, now: Instant, mad: MadReceived, ingress: u8) {
        let Some(smp) = Smp::parse(&mad.mad[..]) else {
            return self.core().drops.count(DropReason::BadMad);
        };
        if !smp.header.mgmt_class.is_smp() {
            return self.core().drops.count(DropReason::NoClassAgent);
        }
        let method = smp.header.method;
        if method.is_response() || method == Method::TRAP || smp.header.attr_id == AttrId::SM_INFO {
            return self.core().to_sm(mad);
        }
        if let Err(reason) = self.sma.check_m_key(now, &smp) {
            self.core().drops.count(reason);
            return self.bad_m_key(now, &mad, &smp);
        }
        let mut effects = Vec::new();
        let (status, data) = match method {
            _ if smp.header.base_version != 1 || smp.header.class_version != 1 => {
                (MadStatus::BAD_VERSION, smp.data)
            }
            Method::GET | Method::SET => self.attribute(&smp, ingress, &mut effects),
            // A manager at this node may have told another one of itself (trap 144).
            Method::TRAP_REPRESS => {
                return match self.traps.repress(smp.header.tid) {
                    true => {}
                    false => self.core().to_sm(mad),
                };
            }
            // Report and Send ask for no answer.
            Method::REPORT | Method::SEND => return self.core().drops.count(DropReason::BadMethod),
            _ => (MadStatus::METHOD_UNSUPPORTED, smp.data),
        };
        if method == Method::SET {
            for n in 0..self.sma.ports.len() {
                self.apply_port(n);
            }
            self.publish();
        }
        let answer = Smp {
            data,
            ..smp.response(status)
        };
        let mut reply = mad.reply(Box::new(answer.emit()));
        // An SMP of this very node has no LID to go back to but its own.
        if !answer.is_directed() && ingress == 0 {
            self.core().to_sm(MadReceived {
                mad: reply.mad,
                ..mad
            });
        } else {
            reply.remote_qpn = Qpn::SMI;
            send_smp(&*self.plane, reply);
        }
        for effect in effects {
            self.take_effect(now, effect);
        }
    }

    /// Status and content of the answer to a Get or Set.
    fn attribute(
        &mut self,
        smp: &Smp,
        ingress: u8,
        effects: &mut Vec<Effect>,
    ) -> (MadStatus, [u8; 64]) {
        let ports = &self.plane.core().ports;
        self.extra
            .process(&self.plane, smp)
            .unwrap_or_else(|| self.sma.process(smp, ingress, ports, effects))
    }

    fn query(&mut self, mad: MadReceived) {
        let get = Smp::parse(&mad.mad[..]).filter(|smp| smp.header.method == Method::GET);
        let Some(smp) = get else {
            return self.core().drops.count(DropReason::BadMethod);
        };
        // A Get has no effects.
        let (status, data) = self.attribute(&smp, 0, &mut Vec::new());
        let answer = Smp {
            data,
            ..smp.response(status)
        };
        let mad = MadReceived {
            mad: Box::new(answer.emit()),
            ..mad
        };
        self.core().to_sm(mad);
    }

    fn take_effect(&mut self, now: Instant, effect: Effect) {
        match effect {
            Effect::Reregister => self.plane.event(PortEvent::ClientReregister),
            Effect::TakeDown(n) => {
                let n = usize::from(n);
                self.set_state(n, PortState::DOWN);
                let port = &mut self.sma.ports[n];
                let disabled = port.info.port_physical_state == PortPhysicalState::DISABLED;
                port.training_until = (port.link_up() && !disabled).then(|| now + BOUNCE);
            }
        }
    }

    fn performance(&mut self, now: Instant, mad: MadReceived) {
        if let Some(answer) = self.pma.answer(now, self.plane.core(), &mad.mad) {
            send_gsi(&*self.plane, mad.reply(Box::new(answer)));
        }
    }

    /// Shows the data plane and the link what PortInfo says of port `n`.
    fn apply_port(&self, n: usize) {
        let port = &self.sma.ports[n];
        let plane = &self.core().ports[n];
        if plane.state() != port.info.port_state {
            plane.set_state(port.info.port_state);
            if let Some(link) = plane.link().as_ref() {
                link.port_state(port.info.port_state);
            }
        }
        let bytes = |mtu: MtuCode| mtu.bytes().unwrap_or_default();
        let mtu_cap = bytes(port.info.mtu_cap);
        plane.mtu_cap.store(mtu_cap, Relaxed);
        let neighbor_mtu = mtu_cap.min(bytes(port.info.neighbor_mtu));
        plane.neighbor_mtu.store(neighbor_mtu, Relaxed);
        let lanes = self.sma.lanes(n);
        if plane.lanes.load().as_deref() != lanes.as_ref() {
            plane.lanes.store(lanes.map(Arc::new));
        }
        let (inbound, outbound) = (
            port.info.partition_enforcement_inbound,
            port.info.partition_enforcement_outbound,
        );
        let enforced = self.core().smi.is_switch && n != 0 && (inbound || outbound);
        let current = plane.enforcement.load();
        let same = match current.as_ref() {
            Some(e) => {
                enforced && e.inbound == inbound && e.outbound == outbound && e.pkeys == port.pkeys
            }
            None => !enforced,
        };
        if !same {
            plane.enforcement.store(enforced.then(|| {
                Arc::new(Enforcement {
                    inbound,
                    outbound,
                    pkeys: port.pkeys.clone(),
                })
            }));
        }
    }

    /// Swaps in the end port's attributes if they changed and tells who listens.
    pub(super) fn publish(&self) {
        let new = self.sma.attributes();
        let old = self.core().attributes.load_full();
        if *old == new {
            return;
        }
        let changes = [
            (
                old.lid != new.lid || old.lmc != new.lmc,
                PortEvent::LidChange,
            ),
            (
                old.sm_lid != new.sm_lid || old.sm_sl != new.sm_sl,
                PortEvent::SmChange,
            ),
            (old.pkeys != new.pkeys, PortEvent::PKeyChange),
            (old.gids != new.gids, PortEvent::GidChange),
            (
                old.state == PortState::ACTIVE && new.state != PortState::ACTIVE,
                PortEvent::Error,
            ),
            (
                old.state != PortState::ACTIVE && new.state == PortState::ACTIVE,
                PortEvent::Active,
            ),
        ];
        self.core().attributes.store(Arc::new(new));
        for (_, event) in changes.into_iter().filter(|(changed, _)| *changed) {
            self.plane.event(event);
        }
    }

    /// After every input: publish, then send the traps that are due.
    fn settle(&mut self, now: Instant) {
        self.publish();
        let info = self.sma.end().info;
        // 4.096 us * 2^n; the field has 5 bits.
        let interval = Duration::from_nanos(4096 << info.subnet_timeout.min(31));
        while let Some(trap) = self.traps.poll(now, info.lid, interval) {
            match trap {
                Ok(smp) => gsi::send_trap(&*self.plane, info.master_sm_lid, Box::new(smp.emit())),
                Err(()) => self.core().drops.count(DropReason::TrapUnanswered),
            }
        }
    }
}
