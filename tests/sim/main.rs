//! Whole subnets in virtual time, on one thread, from a seed: the real switches, channel adapters, subnet managers and interfaces, on links
//! that lose, double, delay and reorder packets, and on hosts that vanish. Nothing here looks at a clock.

#![allow(unreachable_pub)]

mod basic;
mod chaos;
mod connected;
mod failures;
mod faults;
mod host;
mod net;
mod partitions;
mod reliable;
mod scale;
mod sim;
mod sm_away;
mod stack;
