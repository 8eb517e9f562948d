//! Debian's OpenSM and infiniband-diags on a fabric of ours, through libumad2sim.

mod config;
mod diag;
mod find;
mod supervisor;

pub use diag::{Umad, run as diag};
pub use find::{LIBRARY_PACKAGE, library, program};
pub use supervisor::OpenSm;
