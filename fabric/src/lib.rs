//! The software subnet: links, switches, HCAs, subnet manager and SA.
//!
//! * [`link`]: what carries packets between two ports (in process; UDP), and middlewares on it
//! * [`node`]: what switches and HCAs have in common: directed routes, SMA, PMA, management queue pairs
//! * [`hca`]: a channel adapter with one port, behind the `verbs` traits
//! * [`switch`]: forwards by LFT and MFT
//! * [`umad`]: OpenSM and infiniband-diags on nodes of the fabric
//! * [`sm`]: subnet manager and subnet administration
//! * [`topology`]: which nodes there are, and how they are wired
pub mod hca;
pub mod link;
pub mod node;
pub mod sm;
pub mod switch;
pub mod topology;
pub mod umad;
