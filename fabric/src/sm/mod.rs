//! Subnet manager and subnet administration (IBA vol. 1, chapters 14 and 15), sans-IO: they see and send MADs and nothing else.
//!
//! [`SubnetManager`] is fed with what arrives for QP0 and QP1 at its port, and drained of what to send. [`runner::SmPort`] binds it to a node.
//!
//! * `sweep`, `discovery`, `losses`, `topology`: what is asked, found and lost
//! * `configure`, `lids`, `routing`, `ports`, `multicast`: what the subnet shall be, and the Sets that make it so
//! * [`partitions`]: files that say who may talk to whom
//! * `election`: several managers
//! * `faults`: what is broken on purpose
//! * `smp`: requests on the way
//! * `sa`: answers on QP1

mod config;
mod configure;
mod counters;
mod discovery;
mod election;
mod faults;
mod lids;
mod losses;
mod multicast;
pub mod partitions;
mod ports;
mod routing;
pub mod runner;
mod sa;
mod smp;
mod sweep;
mod topology;
mod view;

pub use config::{EndPort, GroupParams, MKey, Membership, Partition, RoutingEngine, SmConfig, Who};
pub use counters::{Counter, Counters};
pub use election::HandOverError;
pub use faults::{MoveError, SaFault};
pub use view::{GroupView, LinkView, NodeView, PortView};

use lids::LidTable;
use routing::Routing;
use smp::{Purpose, SmpQueue};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::time::{Duration, Instant};
use topology::{NodeId, PortId, Topology};
use verbs::{MadReceived, MadSend};
use wire::mad::attr::{Notice, SmState};
use wire::mad::{AttrId, MadStatus, Method, MgmtClass, Smp};
use wire::{Guid, Lid, Qpn};

/// What was found is put to use when no request is on the way, or nothing was answered for so long: who is alive answers sooner.
const QUIET: Duration = Duration::from_millis(5);
/// More LIDs a port than these 2^n nobody needs, and others may lack for it.
const MAX_LMC: u8 = 3;
/// A master puts to use what was found after this time at the latest, however much is still being found: a burst of traps starves nobody.
const LATEST: Duration = Duration::from_millis(50);

/// Subnet manager and SA of one subnet.
///
/// After each call of a `handle_*` method, drain [`Self::poll_transmit`] and ask [`Self::poll_timeout`]. Several MADs may be handled before
/// draining: multicast tables are then programmed once for all of them.
pub struct SubnetManager {
    config: SmConfig,
    state: SmState,
    topo: Topology,
    lids: LidTable,
    routing: Routing,
    smps: SmpQueue,
    sa: sa::Sa,
    sa_faults: faults::SaFaults,
    counters: Counters,
    started: bool,
    /// Something was found that is not put to use yet.
    dirty: bool,
    /// Nodes whose links a heavy sweep verifies.
    verify: HashSet<NodeId>,
    /// Switches that lost their multicast tables.
    resend_mft: HashSet<NodeId>,
    /// The tree of multicast changed: what is no longer in it goes from all tables before anything new is entered, so that no circle exists
    /// in between.
    prune: bool,
    /// That is on the way.
    pruning: bool,
    /// Ports in Armed that wait for forwarding tables.
    armed: BTreeSet<PortId>,
    /// Counts up while this manager works; a standby may look at it.
    act_count: u32,
    /// Where the master is, if this is a standby.
    master: Option<PortId>,
    next_sweep: Option<Instant>,
    next_retry: Option<Instant>,
    next_poll: Option<Instant>,
    /// When to put to use what was found, though answers are missing.
    next_settle: Option<Instant>,
    /// Since when something waits to be put to use.
    dirty_since: Option<Instant>,
    /// Polls that a better manager may answer before it is master (it may sweep for long).
    patience: u8,
    /// The subnet was handed over on purpose, and another manager is to keep it.
    resigned: bool,
    /// How often the master is still told that this manager is better.
    reminders: u8,
    last_sweep: Option<Instant>,
    /// A discovery request was answered since.
    progress: bool,
    /// Nothing that was found since the start is put to use yet.
    first_look: bool,
    /// In it, links were found Active: packets cross what was not found yet, so nothing is put to use before all is found.
    careful: bool,
    now: Option<Instant>,
    out_smp: VecDeque<MadSend>,
}

impl SubnetManager {
    /// A manager that begins its first sweep at the first call of [`Self::handle_timeout`]. `seed` decides the
    /// transaction IDs: nobody else should know it.
    pub fn new(mut config: SmConfig, seed: u64) -> Self {
        config.lmc = config.lmc.min(MAX_LMC);
        let mut tids = fastrand::Rng::with_seed(seed);
        let first_report = tids.u32(..);
        SubnetManager {
            state: SmState::DISCOVERING,
            topo: Topology::new(config.lmc),
            lids: LidTable::new(&config.lid_map, config.lmc),
            routing: Routing::default(),
            smps: SmpQueue::new(&config, tids),
            sa: sa::Sa::new(&config, first_report),
            sa_faults: Default::default(),
            counters: Counters::default(),
            started: false,
            dirty: false,
            verify: HashSet::new(),
            resend_mft: HashSet::new(),
            prune: false,
            pruning: false,
            armed: BTreeSet::new(),
            act_count: 0,
            master: None,
            next_sweep: None,
            next_retry: None,
            next_poll: None,
            next_settle: None,
            dirty_since: None,
            patience: election::PATIENCE,
            resigned: false,
            reminders: 0,
            last_sweep: None,
            progress: false,
            first_look: true,
            careful: false,
            now: None,
            out_smp: VecDeque::new(),
            config,
        }
    }

    /// A MAD that arrived for QP0 or QP1.
    pub fn handle_mad(&mut self, now: Instant, mad: MadReceived) {
        self.now = Some(now);
        self.act_count = self.act_count.wrapping_add(1);
        match mad.dest_qp {
            Qpn::SMI => self.handle_smp(now, &mad),
            Qpn::GSI if self.state == SmState::MASTER => self.meet_fault(now, mad),
            _ => self.counters.add(Counter::Ignored),
        }
        self.after(now);
    }

    /// A MAD for the SA.
    fn serve(&mut self, now: Instant, mad: &MadReceived) {
        // Collecting them costs a walk over all ports.
        let wants_sms = mad.mad[16..18] == AttrId::SM_INFO_RECORD.0.to_be_bytes();
        let sm = if wants_sms {
            self.sm_infos()
        } else {
            Vec::new()
        };
        let view = sa::Subnet {
            sm,
            ..sa::Subnet::new(&self.topo, &self.config, &self.counters)
        };
        self.sa.handle(now, &view, mad);
    }

    /// Other partitions, routing, priority, timers or subnet prefix; LMC and M_Key stay. Ports that are no longer in a group's partition leave
    /// it, all ports if the prefix changes.
    pub fn reconfigure(&mut self, now: Instant, config: SmConfig) {
        self.now = Some(now);
        // What is on the way has the M_Key that the ports have.
        let (lmc, m_key) = (self.config.lmc, self.config.m_key);
        if config.routing != self.config.routing {
            self.routing = Routing::default();
        }
        if config.subnet_prefix != self.config.subnet_prefix {
            self.forget_gids(now);
        }
        self.config = SmConfig {
            lmc,
            m_key,
            ..config
        };
        let view = sa::Subnet::new(&self.topo, &self.config, &self.counters);
        self.sa.reconfigure(now, &view);
        self.dirty = true;
        self.after(now);
    }

    fn handle_smp(&mut self, now: Instant, mad: &MadReceived) {
        let Some(smp) = Smp::parse(&mad.mad[..])
            .filter(|s| s.header.mgmt_class.is_smp() && s.header.base_version == 1)
        else {
            return self.counters.add(Counter::BadSmps);
        };
        match smp.header.method {
            Method::GET_RESP => self.answered(now, &smp),
            Method::GET | Method::SET if smp.header.attr_id == AttrId::SM_INFO => {
                self.sm_info_request(now, mad.slid, &smp)
            }
            Method::TRAP if smp.header.mgmt_class == MgmtClass::SUBN_LID => {
                let notice = Notice::from_smp(&smp.data);
                let mut answer = smp;
                answer.header.method = Method::TRAP_REPRESS;
                answer.header.status = MadStatus::OK;
                if mad.slid.is_unicast() {
                    self.out_smp.push_back(smp::send_smp(answer, mad.slid));
                }
                self.trap(now, mad.slid, &notice);
            }
            _ => self.counters.add(Counter::Ignored),
        }
    }

    fn answered(&mut self, now: Instant, smp: &Smp) {
        let Some(transaction) = self.smps.complete(smp) else {
            return self.counters.add(Counter::StrayAnswers);
        };
        let purpose = transaction.purpose;
        if smp.status() != MadStatus::OK {
            self.counters.add(Counter::BadStatus);
            tracing::debug!(?purpose, status = %smp.status(), "SMP refused");
        }
        match purpose {
            Purpose::Poll => self.polled(now, smp),
            // The write-back of PortStateChange may be refused; the ports are read anyway.
            p @ Purpose::ClearChange(_) => self.discovered(now, p, smp),
            p if p.discovers() => {
                self.progress = true;
                if smp.status() == MadStatus::OK {
                    self.discovered(now, p, smp);
                } else if let Purpose::Probe(from) = p {
                    self.nobody_at(now, from);
                }
            }
            p => self.configured(now, p, smp),
        }
    }

    /// What follows from whatever was just handled.
    fn after(&mut self, now: Instant) {
        self.careful = self.careful && !self.smps.discovery_ended();
        let due = self.next_settle.is_some_and(|at| at <= now);
        if !self.dirty {
            (self.next_settle, self.dirty_since) = (None, None);
        } else if !self.careful && (due || self.smps.discovery_settled()) && !self.is_blind() {
            (self.next_settle, self.dirty_since) = (None, None);
            self.first_look = false;
            self.settle(now);
        } else if std::mem::take(&mut self.progress) || due || self.next_settle.is_none() {
            // The first sweep decides who is master: it is not cut short.
            let first = self.careful || self.first_look;
            let latest = match self.state {
                SmState::MASTER if !first => *self.dirty_since.get_or_insert(now) + LATEST,
                _ => now + QUIET,
            };
            self.next_settle = Some(latest.min(now + QUIET));
        }
        if !self.armed.is_empty() {
            self.advance_armed(now);
        }
        self.pump(now);
    }

    /// Is it not known yet whether the subnet is in use already? What is written to a switch whose ports answer late, as on a busy machine, would
    /// end what crosses it.
    fn is_blind(&self) -> bool {
        let unread = || {
            let switches = self.topo.nodes.values().filter(|n| n.switch.is_some());
            let mut ports = switches.flat_map(|n| &n.ports);
            let own = self.topo.own.and_then(|own| self.topo.port(own));
            own.is_none_or(|port| port.info.is_none()) || ports.any(|port| port.info.is_none())
        };
        self.first_look && !self.smps.discovery_ended() && unread()
    }

    fn pump(&mut self, now: Instant) {
        while let Some(mad) = self.smps.poll(now) {
            self.counters.add(Counter::SmpsSent);
            self.out_smp.push_back(mad);
        }
    }

    /// Next MAD to send: by the QP0 agent if `remote_qpn` is [`Qpn::SMI`], else by the QP1 agent. Forwarding entries go out before the answers of
    /// the SA that speak of them.
    pub fn poll_transmit(&mut self) -> Option<MadSend> {
        if let Some(mad) = self.out_smp.pop_front() {
            return Some(mad);
        }
        if self.sa.has_dirty_groups()
            && let Some(now) = self.now
        {
            self.flush_groups();
            self.pump(now);
        }
        self.out_smp.pop_front().or_else(|| self.sa.poll_transmit())
    }

    /// Must [`Self::handle_timeout`] be called at `now`?
    pub fn is_due(&self, now: Instant) -> bool {
        !self.started || self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// When to call [`Self::handle_timeout`]; `None` before its first call, which is due at once.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [
            self.smps.poll_timeout(),
            self.next_sweep,
            self.next_retry,
            self.next_poll,
            self.next_settle,
            self.sa.poll_timeout(),
            self.sa_faults.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due. The first call starts the manager.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = Some(now);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if !std::mem::replace(&mut self.started, true) {
            self.heavy_sweep(now);
        }
        let topo = &self.topo;
        let failed = self
            .smps
            .handle_timeout(now, &mut self.out_smp, |purpose| Self::route(topo, purpose));
        for transaction in failed {
            self.failed(now, transaction.purpose);
        }
        if due(self.next_poll) {
            self.poll_master(now);
        }
        if due(self.next_sweep) {
            match self.state {
                SmState::MASTER => self.light_sweep(now),
                // Who does not answer is still waited for.
                _ if self.careful || self.is_blind() => self.schedule_sweep(now),
                _ => self.rediscover(now),
            }
        }
        if due(self.next_retry) {
            self.retry_silent(now);
            self.schedule_retry(now);
        }
        self.serve_late(now);
        let view = sa::Subnet::new(&self.topo, &self.config, &self.counters);
        self.sa.handle_timeout(now, &view);
        self.after(now);
    }

    /// A port is of use to its peers.
    fn port_up(&mut self, now: Instant, id: PortId) {
        let view = sa::Subnet::new(&self.topo, &self.config, &self.counters);
        self.sa.port_up(now, &view, id);
    }

    /// A port is gone: everything that it had registered goes with it.
    fn port_gone(&mut self, now: Instant, id: PortId) {
        let view = sa::Subnet::new(&self.topo, &self.config, &self.counters);
        self.sa.port_gone(now, &view, id);
    }

    /// The same of a port that began anew.
    fn port_reset(&mut self, now: Instant, id: PortId) {
        self.port_gone(now, id);
        if let Some(port) = self.topo.port_mut(id) {
            port.announced = false;
            port.reregister = true;
            port.fruitless = 0;
        }
        self.dirty = true;
    }

    /// Own state.
    pub fn state(&self) -> SmState {
        self.state
    }
    /// LID of the own port, unset before the first sweep.
    pub fn lid(&self) -> Lid {
        self.topo.own_lid()
    }
    /// GUIDs and their LIDs, for [`SmConfig::lid_map`] of the next run.
    pub fn lid_map(&self) -> Vec<(Guid, Lid)> {
        self.lids.entries()
    }
    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Configuration in use.
    pub fn config(&self) -> &SmConfig {
        &self.config
    }
}
