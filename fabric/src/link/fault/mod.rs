//! Faults on a link: packets get lost, come twice, change places, arrive broken or late; the link goes down.
//!
//! [`FaultCore`] decides what becomes of the packets of one direction, packet by packet, from a generator with a seed: the same packets meet the
//! same faults again. It is sans-IO. [`FaultLink`] stands at a port, around its link and its sink, and has a core for each direction.

mod core;
mod link;

pub use self::core::{CmLoss, FaultConfig, FaultCore, FaultCounters, Output, OwnedPacket, is_cm};
pub use link::{FaultLink, Wake};
