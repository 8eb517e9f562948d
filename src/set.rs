//! `ipoib set`: changes a setting of a running interface.

use crate::cli::{self, ShowWhat, Target};
use crate::control::{self, Request};
use std::process::ExitCode;

/// Runs `ipoib set`.
///
/// # Errors
/// There is no such interface, or it cannot be set so.
pub fn run(args: &cli::Set) -> anyhow::Result<ExitCode> {
    let target = Target {
        on: args.name.clone().or(args.target.on.clone()),
        control: args.target.control.clone(),
    };
    // Whoever has neighbours is an interface.
    let instance = control::find(&target, Some(ShowWhat::Neigh))?;
    control::ask(&instance, &Request::Set(args.what))?;
    Ok(ExitCode::SUCCESS)
}
