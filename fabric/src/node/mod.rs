//! What switches and channel adapters have in common: management.
//!
//! A node is two things. Its *data plane* ([`crate::hca::Hca`], [`crate::switch::Switch`]) is shared, takes `&self` and hands whatever needs a
//! state machine to control as a [`NodeInput`]. Its *control* ([`NodeControl`]) is owned by one thread, takes `(now, input)` and never
//! sleeps: directed routes ([`smi`], IBA 14.2.2), the subnet management agent (IBA 14.2.5), the port state machine (IBA 7.2.7), traps
//! (IBA 14.2.5.1, 13.4.9) and performance management (IBA 16.1). Control answers by sending into the node's links.

mod agents;
mod control;
mod counters;
mod drops;
mod gsi;
mod lanes;
mod notices;
mod plan;
mod pma;
mod port_info;
mod samples;
mod sma;
pub mod smi;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod traps;

pub use control::{NodeControl, NodeInput, NodePlane};
pub use counters::{CounterValues, Counters};
pub use drops::{DropReason, Drops};
pub use gsi::{AgentResource, smp_packet};
pub use notices::KeyViolation;
pub use smi::{Route, SmiNode};

pub(crate) use agents::{register_mad_agent, register_sm, register_umad};
pub(crate) use control::{Extra, NodeConfig};
pub(crate) use counters::{Enforcement, PortPlane, payload_len, saturating_count};
pub(crate) use gsi::{NodeCore, Plane, has_own_gid, is_own_lid, mad_received};
pub(crate) use lanes::{Lanes, lane};

use std::sync::Arc;
use verbs::{MadAgent, MadHandler, PortAttributes, VerbsError};
use wire::mad::{MadBytes, MgmtClass};

/// The management interfaces of an end port (the port of an HCA; port 0 of a switch): what a subnet manager needs.
pub trait ManagementPort: Send + Sync {
    /// A snapshot of the attributes.
    fn attributes(&self) -> Arc<PortAttributes>;
    /// Registers a user of QP1, as [`verbs::Port::register_mad_agent`]. Several agents may share a class: each gets every request, report and
    /// send of it. Responses go to the one agent whose number is in the TID.
    fn register_mad_agent(
        &self,
        classes: &[MgmtClass],
        handler: Arc<dyn MadHandler>,
    ) -> Result<Box<dyn MadAgent>, VerbsError>;
    /// Registers the subnet manager of this port: it gets SMP responses, traps, and SMInfo requests, and IsSM is set in the CapabilityMask while
    /// it lives. One at a time. Its `send` begins directed routes here; what is addressed to this very node goes to the agents here.
    fn register_sm(&self, handler: Arc<dyn MadHandler>) -> Result<Box<dyn MadAgent>, VerbsError>;
    /// Registers what `ib_umad` is to a kernel: an agent that sends MADs of every class from QP0 and QP1, gets the responses that carry its
    /// number, all requests of QP1's classes, and requests with QP1's Q_Key to queue pairs that are not there.
    fn register_umad(&self, handler: Arc<dyn MadHandler>) -> Result<Box<dyn MadAgent>, VerbsError>;
    /// Asks the SMA of the node as its driver does: a Get, for which no M_Key is needed, and whose answer shows none. The answer goes to the
    /// umad agent whose number is in the TID. What is no Get is dropped.
    fn query_sma(&self, mad: Box<MadBytes>);
}
