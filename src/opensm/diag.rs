//! `ipoib diag`: a tool of the infiniband-diags, or any other program on libibumad, at a node of a running fabric.

use super::find::{LIBRARY_PACKAGE, library, preload, program};
use crate::cli::{Diag, ShowWhat, Target};
use crate::control::{self, Request};
use crate::signals::Signals;
use anyhow::{Context, bail};
use crossbeam_channel::{bounded, select};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

/// How a running fabric is reached through libumad2sim: its answer to [`Request::Umad`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Umad {
    /// `IBSIM_SOCKNAME` of its clients.
    pub base: String,
    /// Values of `SIM_HOST`.
    pub nodes: Vec<String>,
}

/// Runs the tool; its output and exit code are this program's.
///
/// # Errors
/// No such tool, node or fabric; the library is not installed.
pub fn run(args: &Diag) -> anyhow::Result<ExitCode> {
    let target = Target {
        on: args.fabric.clone(),
        control: args.control.clone(),
    };
    let instance = control::find(&target, Some(ShowWhat::Fabric))?;
    let umad: Umad = serde_json::from_value(control::ask(&instance, &Request::Umad)?)
        .with_context(|| format!("{} answered something else", instance.name))?;
    if let Some(node) = &args.on
        && !umad.nodes.contains(node)
        && u64::from_str_radix(node.trim_start_matches("0x"), 16).is_err()
    {
        bail!(
            "no node {node:?} in {}; there are: {}",
            instance.name,
            umad.nodes.join(", ")
        );
    }
    let tool = program(&args.tool).with_context(|| {
        format!(
            "{} is not installed: apt-get install infiniband-diags (Debian package infiniband-diags)",
            args.tool
        )
    })?;
    let library = library().with_context(|| {
        format!("libumad2sim.so is not installed: apt-get install {LIBRARY_PACKAGE} (Debian package {LIBRARY_PACKAGE})")
    })?;
    // The library makes a directory of its own in the current one. Elsewhere the tool would not find the files that its options name.
    let here = std::env::current_dir()?;
    let scratch = match access(&here, Access::WRITE_OK) {
        Ok(()) => None,
        Err(_) => Some(tempfile::tempdir()?),
    };
    let place = scratch.as_ref().map_or(here.as_path(), |dir| dir.path());
    let mut command = Command::new(tool);
    command
        .args(&args.args)
        .current_dir(place)
        .env("IBSIM_SOCKNAME", &umad.base)
        .env("LD_PRELOAD", preload(&library));
    if let Some(node) = args.on.as_ref().or(umad.nodes.first()) {
        command.env("SIM_HOST", node);
    }
    let signals = Signals::install()?;
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", args.tool))?;
    let id = child.id();
    let (ended, status) = bounded(1);
    std::thread::spawn(move || ended.send(child.wait()));
    let status = loop {
        select! {
            recv(status) -> status => break status??,
            // A terminal tells the tool itself; who kills this program means the tool.
            recv(signals.channel()) -> _ => {
                if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                    // It may have ended.
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
        }
    };
    // Left behind by a tool that was killed.
    let _ = std::fs::remove_dir_all(place.join(format!("sys-{id}")));
    let code = status
        .code()
        .unwrap_or(128 + status.signal().unwrap_or_default());
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
