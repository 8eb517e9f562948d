//! The program `ipoib`: command line, configuration, threads, control socket. The stack below it is in the crates of this workspace.

pub mod cli;
pub mod config;
pub mod capture;
pub mod control;
pub mod decode;
pub mod demo;
pub mod ping;
pub mod resolve;
pub mod show;
pub mod machines;
pub mod run;
pub mod fabric_command;
pub mod linux;
pub mod node;
pub mod signals;
pub mod stack;
pub mod subnet;
pub mod up;
