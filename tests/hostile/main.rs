//! Hostile input: mutated datagrams and MADs against a running subnet. Nothing may panic, grow, stop, or disturb those who do not take part.
//!
//! How much is sent: `IPOIB_HOSTILE` datagrams into the UDP link, `IPOIB_HOSTILE_MADS` MADs into the managers and agents, and
//! `IPOIB_HOSTILE_KEYS` each through the umad socket and the UDP link where an M_Key and an SM_Key guard the subnet.

#![allow(unreachable_pub, clippy::unwrap_used)]

mod connections;
mod corpus;
mod datagrams;
#[allow(dead_code)]
#[path = "../sim/host.rs"]
mod host;
mod keys;
mod mads;
mod mutate;
#[allow(dead_code)]
#[path = "../sim/net.rs"]
mod net;
mod races;
#[allow(dead_code)]
#[path = "../sim/sim.rs"]
mod sim;
#[allow(dead_code)]
#[path = "../sim/stack.rs"]
mod stack;
mod targets;
mod watch;
mod world;
