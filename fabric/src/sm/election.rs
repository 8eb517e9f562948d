//! Which of several subnet managers is the master (IBA 14.4.1): the higher priority, then the lower GUID.

use super::smp::{Purpose, Transaction};
use super::topology::{PortId, Topology};
use super::{Counter, SubnetManager};
use std::time::Instant;
use wire::mad::attr::{SmInfo, SmState};
use wire::mad::{AttrId, MadStatus, Method, Smp};
use wire::{Guid, Lid};

/// Attribute modifier of Set(SMInfo): the master gives the subnet away (IBA 14.4.1).
const HANDOVER: u32 = 1;
/// The receiver of a HANDOVER took over.
const ACKNOWLEDGE: u32 = 2;
/// Polls that a better manager has to become master, once it was seen to sweep: a large subnet takes it seconds.
pub(super) const PATIENCE: u8 = 20;

impl SubnetManager {
    fn own_guid(&self) -> Guid {
        self.topo.own_port().map_or(Guid::default(), |p| p.guid)
    }

    pub(super) fn sm_info(&self) -> SmInfo {
        SmInfo {
            guid: self.own_guid(),
            sm_key: 0,
            act_count: self.act_count,
            priority: self.config.sm_priority & 0xf,
            sm_state: self.state,
        }
    }

    fn is_better(&self, other: &SmInfo) -> bool {
        let own = self.sm_info();
        (other.priority, std::cmp::Reverse(other.guid))
            > (own.priority, std::cmp::Reverse(own.guid))
    }

    /// Decides on the own state by the managers that were found.
    pub(super) fn elect(&mut self, now: Instant) {
        let others: Vec<(PortId, SmInfo)> = self
            .topo
            .end_ports()
            .filter(|(id, _)| self.topo.own != Some(*id))
            .filter_map(|(id, p)| Some((id, p.is_sm?)))
            .collect();
        let master = others
            .iter()
            .filter(|(_, info)| info.sm_state == SmState::MASTER)
            .max_by_key(|(_, info)| (info.priority, std::cmp::Reverse(info.guid)));
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
        match SmInfo::parse(&smp.data).map(|info| info.sm_state) {
            Some(SmState::MASTER) => self.patience = PATIENCE,
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
        let (status, hand_over) = match (request.header.method, request.header.attr_mod) {
            (Method::GET, _) => (MadStatus::OK, false),
            (Method::SET, HANDOVER) if matches!(self.state, SmState::STANDBY | SmState::MASTER) => {
                (MadStatus::OK, true)
            }
            (Method::SET, ACKNOWLEDGE) => (MadStatus::OK, false),
            (Method::SET, _) => (MadStatus::INVALID_FIELD, false),
            _ => return,
        };
        let mut response = request.response(status);
        response.data = [0; 64];
        let response = response.with_data(&self.sm_info().emit());
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
