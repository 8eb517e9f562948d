//! Others' software on our fabric: OpenSM as its subnet manager, the infiniband-diags, osmtest; and hostile clients of the umad server.
//!
//! Needs the Debian packages opensm, infiniband-diags and libumad2sim0, which `tests/run.sh` installs; says SKIPPED where they are not.

// Here every failure to do something is a failed test.
#![allow(clippy::unwrap_used)]

#[path = "../hosts/mod.rs"]
mod hosts;
#[path = "../processes/mod.rs"]
mod processes;
mod site;

mod clients;
mod diags;
mod fat_tree;
mod program;
