//! What is broken on purpose: answers of the SA, LIDs, the subnet prefix.

use super::topology::PortId;
use super::{Counter, SubnetManager};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use verbs::MadReceived;
use wire::mad::attr::SmState;
use wire::mad::{MadStatus, Method, SaMad};
use wire::{Guid, Lid};

/// What becomes of requests to the SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaFault {
    /// They are not answered.
    Drop,
    /// They are looked at so much later.
    Delay(Duration),
    /// They are refused with this status.
    Status(MadStatus),
}

/// Why a port keeps its LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// Only a master decides on LIDs.
    #[error("the subnet manager is not the master")]
    NotMaster,
    /// No end port has this GUID.
    #[error("no port of the subnet has the GUID {0}")]
    NoPort(Guid),
    /// Not a unicast LID, or not a multiple of 2^LMC.
    #[error("{lid} cannot be a port's base LID: from 1 to 49151, a multiple of {step}")]
    NotALid {
        /// The LID.
        lid: Lid,
        /// 2^LMC.
        step: u16,
    },
    /// Another port has it.
    #[error("{0} is the LID of port GUID {1}")]
    Taken(Lid, Guid),
}

/// Requests that wait at once.
const MAX_LATE: usize = 4096;

/// The fault of the SA, if it has one.
#[derive(Debug, Default)]
pub(super) struct SaFaults {
    fault: Option<SaFault>,
    /// For so many more requests.
    left: Option<u32>,
    late: VecDeque<(Instant, MadReceived)>,
}

impl SaFaults {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.late.front().map(|(at, _)| *at)
    }
}

impl SubnetManager {
    /// What becomes of requests to the SA from now on, of all or of the next `count`.
    pub fn set_sa_fault(&mut self, fault: Option<SaFault>, count: Option<u32>) {
        (self.sa_faults.fault, self.sa_faults.left) = (fault, count);
    }

    /// The fault of the SA and how many more requests will meet it, if not all.
    pub fn sa_fault(&self) -> Option<(SaFault, Option<u32>)> {
        let faults = &self.sa_faults;
        Some((faults.fault?, faults.left)).filter(|(_, left)| *left != Some(0))
    }

    /// A MAD for QP1, unless a fault keeps it from the SA.
    pub(super) fn meet_fault(&mut self, now: Instant, mad: MadReceived) {
        let is_request = matches!(
            Method(mad.mad[3]),
            Method::GET | Method::SET | Method::GET_TABLE | Method::DELETE
        );
        // One that was made late holds up those behind it: a leave must not be looked at after the join that followed it.
        let last = self.sa_faults.late.back().map(|(at, _)| *at);
        let Some((fault, left)) = self.sa_fault().filter(|_| is_request) else {
            return match last.filter(|_| is_request) {
                Some(last) => self.late(last, mad),
                None => self.serve(now, &mad),
            };
        };
        self.sa_faults.left = left.map(|left| left - 1);
        self.counters.add(Counter::SaFaults);
        match fault {
            SaFault::Drop => {}
            SaFault::Status(status) => {
                if let Some(request) = SaMad::parse(&mad.mad[..]) {
                    self.sa.refuse(&mad, &request, status);
                }
            }
            SaFault::Delay(delay) => {
                let at = last.map_or(now + delay, |last| last.max(now + delay));
                self.late(at, mad);
            }
        }
    }

    fn late(&mut self, at: Instant, mad: MadReceived) {
        match self.sa_faults.late.len() {
            ..MAX_LATE => self.sa_faults.late.push_back((at, mad)),
            // More than that wait for nothing: their senders have asked again.
            _ => self.counters.add(Counter::SaBusy),
        }
    }

    /// Requests whose delay is over.
    pub(super) fn serve_late(&mut self, now: Instant) {
        while let Some((_, mad)) = self.sa_faults.late.pop_front_if(|(at, _)| *at <= now) {
            match self.state {
                SmState::MASTER => self.serve(now, &mad),
                _ => self.counters.add(Counter::Ignored),
            }
        }
    }

    /// Gives an end port another LID. All ports are told to register again, as after any change of LIDs: their paths lead to the old one.
    ///
    /// # Errors
    /// There is no such port, or the LID cannot be had.
    pub fn move_lid(&mut self, now: Instant, guid: Guid, lid: Lid) -> Result<(), MoveError> {
        self.now = Some(now);
        if self.state != SmState::MASTER {
            return Err(MoveError::NotMaster);
        }
        let topo = &self.topo;
        let known = topo
            .by_port_guid(guid)
            .filter(|id| topo.port(*id).is_some_and(|port| port.lid.is_unicast()));
        let id = known.ok_or(MoveError::NoPort(guid))?;
        let present = |guid| topo.by_port_guid(guid).is_some();
        self.lids.move_to(guid, lid, present)?;
        let old = topo.port(id).map(|port| port.lid);
        self.topo.set_lid(id, lid);
        if let Some(old) = old.filter(|old| *old != lid) {
            // Reports to the old LID reach nobody.
            self.sa.drop_subscriptions(old, guid);
        }
        self.reregister_all();
        self.dirty = true;
        self.after(now);
        Ok(())
    }

    /// All ports are to register again.
    pub(super) fn reregister_all(&mut self) {
        for id in self.end_port_ids() {
            if let Some(port) = self.topo.port_mut(id) {
                port.reregister = true;
                port.fruitless = 0;
            }
        }
    }

    /// The subnet prefix is about to change: what ports registered is under GIDs that are no more.
    pub(super) fn forget_gids(&mut self, now: Instant) {
        for id in self.end_port_ids() {
            self.port_reset(now, id);
        }
    }

    fn end_port_ids(&self) -> Vec<PortId> {
        let known = self.topo.end_ports();
        known
            .filter(|(_, port)| port.guid.0 != 0)
            .map(|(id, _)| id)
            .collect()
    }
}
