//! The program `ipoib`: command line, configuration, threads, control socket. The stack below it is in the crates of this workspace.

pub mod capture;
pub mod cli;
pub mod config;
pub mod control;
pub mod decode;
pub mod demo;
pub mod fabric_command;
pub mod fault;
pub mod linux;
pub mod machines;
pub mod node;
pub mod opensm;
pub mod ping;
pub mod resolve;
pub mod run;
pub mod set;
pub mod show;
pub mod signals;
pub mod stack;
pub mod subnet;
pub mod up;
