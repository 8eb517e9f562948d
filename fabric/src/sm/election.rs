//! Which of several subnet managers is the master (IBA 14.4.1): the higher priority, then the lower GUID.

use super::smp::{Purpose, Transaction};
use super::topology::{PortId, Topology};
use super::{Counter, SubnetManager};
use std::time::Instant;
use wire::mad::attr::{CapabilityChange, Notice, SmInfo, SmState};
use wire::mad::{AttrId, MadStatus, Method, Smp};
use wire::{Guid, Lid};

/// Attribute modifier of Set(SMInfo): the master gives the subnet away (IBA 14.4.1).
const HANDOVER: u32 = 1;
/// The receiver of a HANDOVER took over.
const ACKNOWLEDGE: u32 = 2;
/// Polls that a better manager has to become master, once it was seen to sweep: a large subnet takes it seconds.
pub(super) const PATIENCE: u8 = 20;
/// Bit of trap 144's change flags: the priority of a subnet manager changed (IBA 14.4.1, table of notices).
const PRIORITY_CHANGED: u8 = 8;
/// How often the master is told so, once a poll, until it hands over.
const REMINDERS: u8 = 5;

/// Why the subnet is not handed over, or not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// There is nothing to hand over.
    #[error("the subnet manager is not the master but {0}")]
    NotMaster(SmState),
    /// Nobody to hand it to.
    #[error(
        "there is no standby subnet manager to hand the subnet to; start another one, e.g. `ipoib diag opensm`"
    )]
    NoStandby,
    /// There is nothing to take back.
    #[error("the subnet manager is the master already")]
    IsMaster,
    /// The master would keep the subnet.
    #[error("the master, with the GUID {}, has priority {}: it keeps the subnet; the subnet manager here has {own}", .master.guid, .master.priority)]
    Worse {
        /// The master.
        master: SmInfo,
        /// The own priority.
        own: u8,
    },
}

impl SubnetManager {
    fn own_guid(&self) -> Guid {
        self.topo.own_port().map_or(Guid::default(), |p| p.guid)
    }

    pub(super) fn sm_info(&self) -> SmInfo {
        SmInfo {
            guid: self.own_guid(),
            sm_key: self.config.sm_key,
            act_count: self.act_count,
            priority: self.config.sm_priority & 0xf,
            sm_state: match self.state {
                SmState::STANDBY if self.resigned => SmState::NOT_ACTIVE,
                state => state,
            },
        }
    }

    /// Does the other manager have the same SM_Key? Else it has no say here.
    pub(super) fn is_ours(&self, other: &SmInfo) -> bool {
        other.sm_key == self.config.sm_key
    }

    fn is_better(&self, other: &SmInfo) -> bool {
        let own = self.sm_info();
        (other.priority, std::cmp::Reverse(other.guid))
            > (own.priority, std::cmp::Reverse(own.guid))
    }

    /// The managers that were found.
    fn others(&self) -> Vec<(PortId, SmInfo)> {
        let others = self.topo.end_ports();
        let others = others.filter(|(id, _)| self.topo.own != Some(*id));
        others.filter_map(|(id, p)| Some((id, p.is_sm?))).collect()
    }

    /// Decides on the own state by the managers that were found.
    pub(super) fn elect(&mut self, now: Instant) {
        let others = self.others();
        let master = best(&others, SmState::MASTER);
        match (self.state, master) {
            (SmState::DISCOVERING, None) if self.topo.own.is_some() => {
                // Two that begin at once: the better one goes on (IBA 14.4.1.1), if it does.
                let better = others.iter().find(|(_, info)| {
                    info.sm_state == SmState::DISCOVERING && self.is_better(info)
                });
                match better.filter(|_| self.patience > 0) {
                    Some((port, _)) => self.become_standby(now, *port),
                    None => self.become_master(now),
                }
            }
            // A worse master hands over when it sees this one.
            (SmState::DISCOVERING, Some((port, _))) => self.become_standby(now, *port),
            // Two masters have written over each other's tables: the better one must start anew, so it is told.
            (SmState::MASTER, Some((port, info))) if self.is_better(info) => self.hand_over(*port),
            (SmState::MASTER, None) => {
                let heir = others
                    .iter()
                    .find(|(_, info)| info.sm_state == SmState::STANDBY && self.is_better(info));
                if let Some(&(port, _)) = heir {
                    self.hand_over(port);
                }
            }
            _ => {}
        }
    }

    /// Gives the subnet to the best of the standby managers, whose GUID is told; [`Self::state`] tells when it has it. From then on this one
    /// tells that it is not active, whatever its priority: no master hands over to such a one. It still takes the place of a silent master.
    ///
    /// # Errors
    /// This is not the master, or there is no standby.
    pub fn step_down(&mut self, now: Instant) -> Result<Guid, HandOverError> {
        self.now = Some(now);
        if self.state != SmState::MASTER {
            return Err(HandOverError::NotMaster(self.state));
        }
        let others = self.others();
        let (port, heir) = best(&others, SmState::STANDBY).ok_or(HandOverError::NoStandby)?;
        self.resigned = true;
        self.hand_over(*port);
        self.after(now);
        Ok(heir.guid)
    }

    /// Ends what [`Self::step_down`] did: as a standby, asks the master for the subnet.
    ///
    /// # Errors
    /// It has the subnet, or is not better than the master.
    pub fn step_up(&mut self, now: Instant) -> Result<(), HandOverError> {
        self.now = Some(now);
        if self.state == SmState::MASTER {
            let resigned = std::mem::take(&mut self.resigned);
            return resigned.then_some(()).ok_or(HandOverError::IsMaster);
        }
        let master = self.master.and_then(|m| self.topo.port(m)?.is_sm);
        if let Some(master) = master.filter(|master| self.is_better(master)) {
            let own = self.sm_info().priority;
            return Err(HandOverError::Worse { master, own });
        }
        self.resigned = false;
        self.reminders = REMINDERS;
        if self.state == SmState::STANDBY {
            self.poll_master(now);
        }
        self.after(now);
        Ok(())
    }

    /// Was the subnet handed over on purpose?
    pub fn has_resigned(&self) -> bool {
        self.resigned && self.state != SmState::MASTER
    }

    /// Trap 144 to the master: there is a better manager here, so that it looks and hands over.
    fn remind(&mut self, master: Lid) {
        let Some(own) = self.topo.own_port().map(|port| port.lid) else {
            return;
        };
        let notice = Notice::capability_change(CapabilityChange {
            lid: own,
            local_changes: true,
            change_flags: PRIORITY_CHANGED,
            ..CapabilityChange::default()
        });
        let tid = self.smps.tid();
        let trap = Smp::lid_routed(Method::TRAP, AttrId::NOTICE, 0, tid);
        let trap = trap.with_data(&notice.emit()[..64]);
        self.out_smp.push_back(super::smp::send_smp(trap, master));
    }

    /// Asks a better manager to take the subnet.
    fn hand_over(&mut self, heir: PortId) {
        if !self.smps.is_asking(&Purpose::HandOver(heir)) {
            let own = self.sm_info().emit();
            self.set(Purpose::HandOver(heir), AttrId::SM_INFO, HANDOVER, &own);
        }
    }

    fn become_master(&mut self, now: Instant) {
        tracing::info!(guid = %self.own_guid(), "subnet manager is master");
        self.state = SmState::MASTER;
        self.patience = PATIENCE;
        self.reminders = 0;
        self.resigned = false;
        self.master = None;
        self.next_poll = None;
        self.next_sweep = Some(now + self.config.sweep_interval);
        // PortStateChange was left set until now.
        let changed = self
            .topo
            .nodes
            .iter()
            .filter(|(_, n)| n.switch.as_ref().is_some_and(|s| s.info.port_state_change))
            .map(|(id, _)| id);
        for id in changed.collect::<Vec<_>>() {
            self.read_ports(id);
        }
    }

    fn become_standby(&mut self, now: Instant, master: PortId) {
        tracing::info!(guid = %self.own_guid(), "subnet manager is standby");
        self.state = SmState::STANDBY;
        self.master = Some(master);
        self.smps.clear(&self.config);
        self.sa.clear();
        self.next_sweep = None;
        self.next_retry = None;
        self.next_poll = Some(now + self.config.poll_interval);
    }

    pub(super) fn handed_over(&mut self, now: Instant, heir: PortId) {
        if self.state == SmState::MASTER {
            self.become_standby(now, heir);
        }
    }

    /// Starts from nothing.
    pub(super) fn rediscover(&mut self, now: Instant) {
        self.state = SmState::DISCOVERING;
        (self.first_look, self.careful) = (true, false);
        self.master = None;
        self.next_poll = None;
        self.topo = Topology::new(self.config.lmc);
        self.routing = Default::default();
        self.armed.clear();
        self.smps.clear(&self.config);
        self.sa.clear();
        self.heavy_sweep(now);
    }

    /// Standby: asks the master whether it lives.
    pub(super) fn poll_master(&mut self, now: Instant) {
        self.next_poll = Some(now + self.config.poll_interval);
        let path = self.master.and_then(|m| self.topo.path_to(m));
        match path {
            Some(path) if self.smps.is_idle() => {
                self.smps
                    .push(Transaction::get(Purpose::Poll, AttrId::SM_INFO, 0, path))
            }
            Some(_) => {}
            None => self.rediscover(now),
        }
    }

    pub(super) fn polled(&mut self, now: Instant, smp: &Smp) {
        let info = SmInfo::parse(&smp.data).filter(|info| self.is_ours(info));
        let master = self.master.and_then(|m| self.topo.port_mut(m));
        let lid = master.map(|port| {
            port.is_sm = info;
            port.lid
        });
        match info.map(|info| info.sm_state) {
            Some(SmState::MASTER) => {
                self.patience = PATIENCE;
                let worse = info.filter(|info| !self.is_better(info));
                if let (Some(lid), Some(_), 1..) = (lid, worse, self.reminders) {
                    self.reminders -= 1;
                    self.remind(lid);
                }
            }
            Some(SmState::DISCOVERING) if self.patience > 0 => self.patience -= 1,
            _ => self.master_silent(now),
        }
    }

    pub(super) fn master_silent(&mut self, now: Instant) {
        if self.state == SmState::STANDBY {
            self.counters.add(Counter::TakeOvers);
            self.rediscover(now);
        }
    }

    /// SMInfo asked for or set by another manager.
    pub(super) fn sm_info_request(&mut self, now: Instant, source: Lid, request: &Smp) {
        if self.topo.own.is_none() {
            return;
        }
        let knows_key = self.is_ours(&SmInfo::parse(&request.data).unwrap_or_default());
        let (status, hand_over) = match (request.header.method, request.header.attr_mod) {
            (Method::GET, _) => (MadStatus::OK, false),
            (Method::SET, _) if !knows_key => {
                self.counters.add(Counter::SmBadKey);
                (MadStatus::INVALID_FIELD, false)
            }
            (Method::SET, HANDOVER) if matches!(self.state, SmState::STANDBY | SmState::MASTER) => {
                (MadStatus::OK, true)
            }
            (Method::SET, ACKNOWLEDGE) => (MadStatus::OK, false),
            (Method::SET, _) => (MadStatus::INVALID_FIELD, false),
            _ => return,
        };
        let mut response = request.response(status);
        response.data = [0; 64];
        // Only who knows the M_Key may know this one (IBA 14.2.5.13).
        let hidden = request.m_key != self.config.m_key.key;
        let mut info = self.sm_info();
        info.sm_key = if hidden { 0 } else { info.sm_key };
        let response = response.with_data(&info.emit());
        self.out_smp
            .push_back(super::smp::send_smp(response, source));
        if hand_over {
            self.rediscover(now);
            // The giver says so itself, whatever its SMInfo still says.
            self.become_master(now);
            // Not repeated: the giver has the answer already, and sees the new state when it polls.
            let tid = request.header.tid;
            let acknowledge = Smp::lid_routed(Method::SET, AttrId::SM_INFO, ACKNOWLEDGE, tid);
            if source.is_unicast() {
                let acknowledge = acknowledge.with_data(&self.sm_info().emit());
                self.out_smp
                    .push_back(super::smp::send_smp(acknowledge, source));
            }
        }
    }
}

/// The best of those in this state.
fn best(managers: &[(PortId, SmInfo)], state: SmState) -> Option<&(PortId, SmInfo)> {
    let managers = managers.iter().filter(|(_, info)| info.sm_state == state);
    managers.max_by_key(|(_, info)| (info.priority, std::cmp::Reverse(info.guid)))
}
