//! `ipoib fabric`: a software subnet in the foreground.

use crate::cli::{FabricArgs, UdpUrl};
use crate::config::{self, FabricFile};
use crate::signals::Signals;
use crate::subnet::Subnet;
use anyhow::{Context, bail};
use fabric::link::udp::ListenConfig;
use std::process::ExitCode;
use wire::Guid;

/// Runs until a signal.
///
/// # Errors
/// A bad configuration, an address that cannot be listened on.
pub fn run(args: FabricArgs) -> anyhow::Result<ExitCode> {
    let file = match &args.config {
        Some(path) => config::read::<FabricFile>(path)?,
        None => FabricFile::default(),
    };
    let Some(UdpUrl(address)) = args.listen.or(file.listen) else {
        bail!("say where hosts connect to: --listen udp://127.0.0.1:7700 (or `listen` in the configuration)");
    };
    let allow = if args.allow.is_empty() { file.allow.clone() } else { args.allow };
    if !address.ip().is_loopback() && allow.is_empty() {
        bail!("--listen {address} is not a loopback address: say which hosts may connect, with --allow CIDR");
    }
    let sm = file.sm_config().with_context(|| args.config.as_ref().map_or(String::new(), |path| path.display().to_string()))?;
    let signals = Signals::install()?;
    let guid = file.guid.unwrap_or(Guid(0x0200_0000_0000_0000 | u64::from(address.port())));
    let subnet = Subnet::start(guid, file.ports, sm)?;
    let listener = subnet.listen(ListenConfig { allow, ..ListenConfig::new(address) }).with_context(|| format!("cannot listen on {address}"))?;
    let local = listener.local_addr();
    println!("fabric: a switch with {} ports and a subnet manager; hosts connect to {}", file.ports, UdpUrl(local));
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    signals.wait();
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    listener.close();
    Ok(ExitCode::SUCCESS)
}
