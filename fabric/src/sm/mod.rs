//! Subnet manager and subnet administration (IBA vol. 1, chapters 14 and 15), sans-IO: they see and send MADs and nothing else.
//!
//! [`SubnetManager`] is fed with what arrives for QP0 and QP1 at its port, and drained of what to send. [`runner::SmPort`] binds it to a node.

mod config;

pub use config::{GroupParams, Membership, Partition, SmConfig, broadcast_mgid};

use std::time::Instant;
use verbs::{MadReceived, MadSend};
use wire::mad::attr::SmState;
use wire::{Gid, Guid, Lid};

/// Subnet manager and SA of one subnet.
pub struct SubnetManager {
    config: SmConfig,
}

impl SubnetManager {
    /// A manager that begins its first sweep at the first call of [`Self::handle_timeout`].
    pub fn new(config: SmConfig, seed: u64) -> Self {
        let _ = seed;
        SubnetManager { config }
    }
    /// A MAD that arrived for QP0 or QP1.
    pub fn handle_mad(&mut self, now: Instant, mad: MadReceived) {
        let _ = (now, mad);
    }
    /// The own port changed its state or link: looks at once.
    pub fn handle_port_event(&mut self, now: Instant) {
        let _ = now;
    }
    /// Next MAD to send: by the QP0 agent if `remote_qpn` is `Qpn::SMI`, else by the QP1 agent.
    pub fn poll_transmit(&mut self) -> Option<MadSend> {
        None
    }
    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }
    /// Own state.
    pub fn state(&self) -> SmState {
        SmState::DISCOVERING
    }
    /// GUIDs and their LIDs, for [`SmConfig::lid_map`] of the next run.
    pub fn lid_map(&self) -> Vec<(Guid, Lid)> {
        self.config.lid_map.clone()
    }
    /// Members of a group, as `(PortGID, join state)`; `None` if there is no such group.
    pub fn group_members(&self, mgid: Gid) -> Option<Vec<(Gid, wire::mad::attr::JoinState)>> {
        let _ = mgid;
        None
    }
}
