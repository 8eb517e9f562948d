//! Hosts in network namespaces, brought up by the scripts in `netns-scripts`, and what users and administrators do with them.
//!
//! Each test has a fabric, namespaces and a directory of its own, so that tests run side by side, and takes them down with `down.sh`.
//! Needs root, /dev/net/tun and the programs that `tests/run.sh` installs; says SKIPPED where it has not.

// Here every failure to do something is a failed test.
#![allow(clippy::unwrap_used)]

mod chaos;
mod connected;
mod connected_guest;
mod connected_mtu;
mod echoes;
mod failover;
mod failures;
mod faults;
mod guest;
mod interface;
mod kernel;
mod managers;
#[path = "../processes/mod.rs"]
mod processes;
mod scripts;
mod subnet;
mod traffic;
mod umad;
mod wrong_use;
