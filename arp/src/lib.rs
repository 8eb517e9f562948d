//! The neighbours of one IPoIB interface: one machine for ARP (RFC 826, RFC 4391 section 9) and IPv6 Neighbor Discovery (RFC 4861
//! section 7), and the paths to their GIDs.
//!
//! [`Neighbours`] owns who is at which link address, which way leads there, and the packets that wait for either. It is fed the ARP and ND
//! packets received, the SA's answers, traps 64 and 65, and packets whose next hop the forwarding table does not know. It promises that
//! every packet given to [`Neighbours::send`] comes back once, in order, as [`Output::Flush`] or [`Output::Unreachable`] (those that a full
//! queue drops are counted instead), and that nothing a stranger sends makes it grow beyond the bounds of [`NeighbourConfig`] or pushes out
//! a neighbour in use.
//!
//! It is sans-IO: time and packets come in as arguments, everything to be done comes out of [`Neighbours::poll_output`].
#![forbid(unsafe_code)]

mod announce;
mod config;
mod neighbours;
mod output;
mod paths;
mod receive;
mod show;
mod table;

pub use config::NeighbourConfig;
pub use neighbours::Neighbours;
pub use output::{Destination, Output, Path, PathError, Resolved, Source};
pub use show::{Counters, Failure, NeighbourInfo, PathInfo, State};
