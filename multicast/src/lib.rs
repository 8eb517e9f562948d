//! Multicast groups of one IPoIB interface (RFC 4391 sections 5 and 10): joins and leaves at the SA, attaching of the queue pair, routes for
//! the data path, packets that wait for their group. Sans-IO.
//!
//! * [`Groups`]: the join machine
//! * [`Output`]: what it wants done
//! * [`GroupStatus`]: what it would tell a person about a group
#![forbid(unsafe_code)]

mod config;
mod error;
mod group;
mod groups;
mod output;
mod status;
#[cfg(test)]
mod tests;

pub use config::{BroadcastParameters, GroupsConfig};
pub use error::JoinError;
pub use groups::Groups;
pub use output::{GroupsCounters, Output, RequestTag};
pub use status::{GroupState, GroupStatus};
