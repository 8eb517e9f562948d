//! The program `ipoib`: command line, configuration, threads, control socket. The stack below it is in the crates of this workspace.

pub mod cli;
pub mod config;
mod machines;
pub mod run;
