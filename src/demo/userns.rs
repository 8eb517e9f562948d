//! A user namespace of the process's own, in which an ordinary user may make network namespaces.

use anyhow::{Context, anyhow};
use rustix::thread::{CapabilitySet, UnshareFlags, unshare_unsafe};

/// Sees to it that this process may make network namespaces: an ordinary user becomes root of a new user namespace (user_namespaces(7)).
/// Only the calling thread changes, so no other may exist yet.
///
/// # Errors
/// User namespaces are switched off, or a sandbox forbids them.
pub(super) fn enter_if_needed() -> anyhow::Result<()> {
    let sets = rustix::thread::capabilities(None)?;
    if sets
        .effective
        .contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW)
    {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: the contract is about UnshareFlags::FILES alone: the descriptor table stays as it is.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
        .map_err(|error| anyhow!("user namespaces: {}", std::io::Error::from(error)))?;
    // Without CAP_SETGID outside, the kernel takes a gid_map only once setgroups is off.
    write("setgroups", "deny")?;
    write("uid_map", &format!("0 {} 1", uid.as_raw()))?;
    write("gid_map", &format!("0 {} 1", gid.as_raw()))
}

fn write(file: &str, text: &str) -> anyhow::Result<()> {
    let path = format!("/proc/self/{file}");
    std::fs::write(&path, text).with_context(|| format!("user namespaces: {path}"))
}
