//! The fuzz targets' functions and what they need, by the same files as in the stable tests.

#![allow(dead_code)]

#[path = "../../tests/sim/host.rs"]
mod host;
#[path = "../../tests/hostile/mutate.rs"]
mod mutate;
#[path = "../../tests/sim/net.rs"]
mod net;
#[path = "../../tests/sim/sim.rs"]
mod sim;
#[path = "../../tests/sim/stack.rs"]
mod stack;
#[path = "../../tests/hostile/targets.rs"]
pub mod targets;
