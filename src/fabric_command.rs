//! `ipoib fabric`: a software subnet in the foreground.

use crate::cli::{FabricArgs, ShowWhat, UdpUrl};
use crate::config::{self, FabricFile};
use crate::control::{self, FABRIC_PREFIX, Handler};
use crate::show;
use crate::signals::Signals;
use crate::subnet::Subnet;
use anyhow::{Context, bail};
use fabric::link::capture::Tap;
use fabric::link::udp::{ListenConfig, UdpListener};
use serde_json::Value;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
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
    let socket = args.control.map_or_else(|| control::socket_path(&format!("{FABRIC_PREFIX}{}", local.port())), Ok)?;
    let subnet = Arc::new(subnet);
    let listener = Arc::new(listener);
    let server = control::Server::start(&socket, Arc::new(Asked { subnet: subnet.clone(), listener: listener.clone() }))?;
    println!("fabric: a switch with {} ports and a subnet manager; hosts connect to {}", file.ports, UdpUrl(local));
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    signals.wait();
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    drop(server);
    listener.close();
    Ok(ExitCode::SUCCESS)
}

/// Answers of a running fabric.
struct Asked {
    subnet: Arc<Subnet>,
    listener: Arc<UdpListener>,
}

impl Handler for Asked {
    fn show(&self, what: ShowWhat) -> Result<Value, String> {
        match what {
            ShowWhat::Fabric => {
                let answer = self.subnet.manager().call(|manager, _| show::fabric_value(&manager.sm));
                answer.ok_or_else(|| "the fabric is about to end".into())
            }
            ShowWhat::Stats => {
                let switch = self.subnet.switch();
                let mut list: Vec<(String, u64)> = Vec::new();
                list.extend(switch.drops().iter().map(|(name, value)| (format!("switch_drop_{name}"), value)));
                for number in 0..=switch.ports() {
                    let counters = switch.counters(number).into_iter().flat_map(|c| c.iter().collect::<Vec<_>>());
                    // A switch has many ports, most of them unused.
                    let counters = counters.filter(|(_, value)| *value > 0);
                    list.extend(counters.map(|(name, value)| (format!("port_{number}_{name}"), value)));
                }
                list.extend(self.listener.counters().values().into_iter().map(|(name, value)| (format!("listen_{name}"), value)));
                for (source, counters) in self.listener.links() {
                    list.extend(counters.values().into_iter().map(|(name, value)| (format!("link_{source}_{name}"), value)));
                }
                Ok(show::counters(list))
            }
            _ => Err("this is a fabric; ask an interface (`ipoib show` lists what runs)".into()),
        }
    }

    fn resolve(&self, _ip: IpAddr) -> Result<Value, String> {
        Err("this is a fabric; ask an interface (`ipoib show` lists what runs)".into())
    }

    fn tap(&self) -> Option<Arc<Tap>> {
        Some(self.subnet.tap().clone())
    }
}
