//! `ipoib up`: one host with its interface.

use crate::cli::{InterfaceAddress, SetWhat, ShowWhat, UdpUrl, Up};
use crate::config::{self, UpFile};
use crate::control::{self, Handler};
use crate::linux::LinuxNode;
use crate::node::NodeConfig;
use crate::run::Inbox;
use crate::show;
use crate::signals::Signals;
use anyhow::{Context, bail};
use crossbeam_channel::{bounded, select, tick};
use datapath::host::NetnsRef;
use datapath::{ConnectedConfig, Interface, InterfaceConfig, Mode};
use fabric::hca::Hca;
use fabric::link::capture::Tap;
use fabric::link::udp::{UdpCounters, UdpLink};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Guid;

/// How often the interface is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a bring-up may take before the program says what it waits for.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a resolution may take: path queries and ARP with their repetitions are through by then.
const RESOLVE: Duration = Duration::from_secs(12);

/// Runs until a signal, or until the device or its namespace is deleted.
///
/// # Errors
/// A bad configuration; whatever stands in the way of the device; no socket.
pub fn run(args: Up) -> anyhow::Result<ExitCode> {
    let file = match &args.config {
        Some(path) => config::read::<UpFile>(path)?,
        None => UpFile::default(),
    };
    let Some(fabric) = args.fabric.or(file.fabric) else {
        bail!(
            "say which fabric to connect to: --fabric udp://ADDR:PORT (or `fabric` in the configuration); `ipoib fabric` starts one"
        );
    };
    let netns = args.netns.or(file.netns);
    let addresses: Vec<InterfaceAddress> = if args.address.is_empty() {
        file.address
    } else {
        args.address
    };
    let guid = args
        .guid
        .or(file.guid)
        .unwrap_or_else(|| made_up_guid(&args.name, netns.as_deref()));
    let mtu = args.mtu.or(file.mtu);
    let mode = args.mode.or(file.mode).unwrap_or_default();
    let settings = file.connected.settings();
    let connected = ConnectedConfig {
        offer: settings.offer && !args.no_connections,
        retry_count: args.retry_count.unwrap_or(settings.retry_count),
        rnr_retry: args.rnr_retry.unwrap_or(settings.rnr_retry),
        ..settings
    };
    if mode == Mode::Connected && !connected.offer {
        bail!(
            "connected mode is not possible without connections (--no-connections, or `connected.offer = false`)"
        );
    }
    let instance = match &netns {
        Some(netns) => format!(
            "{}@{}",
            args.name,
            netns.rsplit('/').next().unwrap_or(netns)
        ),
        None => args.name.clone(),
    };
    let netns: Option<NetnsRef> = match netns {
        Some(text) => Some(text.parse().with_context(|| format!("--netns {text}"))?),
        None => None,
    };
    let config = NodeConfig {
        port_guid: guid,
        description: format!("{} {instance}", hostname()),
        interface: InterfaceConfig {
            name: args.name.clone(),
            p_key: args.pkey.or(file.pkey),
            qpn: args.qpn.or(file.qpn),
            mtu,
            mode,
            connected,
            ..InterfaceConfig::default()
        },
        max_packet: 0,
    };
    let signals = Signals::install()?;
    let host = LinuxNode::start(config, netns.as_ref(), &addresses)?;
    let node = host.node();
    if let Some(rate) = args.link_rate.or(file.link_rate) {
        node.set_link_rate(rate);
    }
    let UdpUrl(address) = fabric;
    let link = UdpLink::connect(address, node.sink())
        .with_context(|| format!("cannot connect to {fabric}"))?;
    node.attach(link.clone());
    let socket = args
        .control
        .map_or_else(|| control::socket_path(&instance), Ok)?;
    let handler = Asked {
        inbox: node.inbox().clone(),
        hca: node.hca().clone(),
        tap: node.tap().clone(),
        link: link.counters(),
    };
    let server = control::Server::start(&socket, Arc::new(handler))?;
    show::say(format_args!("{instance}: GUID {guid}, fabric {fabric}"));

    let look = tick(LOOK);
    let (mut up, mut waited) = (false, Duration::ZERO);
    loop {
        select! {
            recv(signals.channel()) -> _ => break,
            recv(node.interface().ended()) -> _ => {
                eprintln!("{instance}: the device or its namespace was deleted; ending");
                break;
            }
            recv(look) -> _ => {
                // When it ends, the branch above says so.
                let Some((now_up, state)) = node.inbox().call(|interface, _| (interface.is_up(), interface.state_in_words())) else { continue };
                if now_up != up {
                    (up, waited) = (now_up, Duration::ZERO);
                    if up {
                        show::say(format_args!("{instance}: up"));
                        // Without a service manager there is nobody to tell.
                        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
                    } else {
                        eprintln!("{instance}: down: {state}");
                    }
                } else if !up {
                    waited += LOOK;
                    if waited == PATIENCE {
                        let hint = match link.is_up() {
                            false => " (is `ipoib fabric` running there, and does it allow this host?)",
                            true if state.contains("waiting for a subnet manager") => " (does one run there, and has the fabric a free port for this host? It logs if not)",
                            true => "",
                        };
                        eprintln!("{instance}: not up yet, still trying: {state}{hint}");
                    }
                }
            }
        }
    }
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    drop(server);
    drop(host);
    link.close();
    Ok(ExitCode::SUCCESS)
}

/// Answers of a running interface.
struct Asked {
    inbox: Inbox<Interface>,
    hca: Arc<Hca>,
    tap: Arc<Tap>,
    link: Arc<UdpCounters>,
}

impl Asked {
    fn ask<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Interface, Instant) -> R + Send + 'static,
    ) -> Result<R, String> {
        self.inbox
            .call(f)
            .ok_or_else(|| "the interface is about to end".into())
    }
}

impl Handler for Asked {
    fn show(&self, what: ShowWhat) -> Result<Value, String> {
        match what {
            ShowWhat::Link => Ok(json!(self.ask(|interface, _| interface.link_status())?)),
            ShowWhat::Neigh => Ok(json!(
                self.ask(|interface, now| interface.neighbour_status(now))?
            )),
            ShowWhat::Connections => Ok(json!(
                self.ask(|interface, now| interface.connection_status(now))?
            )),
            ShowWhat::Path => Ok(json!(
                self.ask(|interface, now| interface.path_status(now))?
            )),
            ShowWhat::Mcast => Ok(json!(self.ask(|interface, _| interface.group_status())?)),
            ShowWhat::Stats => {
                let mut list = self.ask(|interface, _| interface.stats())?;
                let held = self.hca.resources().counts().into_iter();
                list.extend(held.map(|(name, count)| (format!("held_{name}"), count)));
                list.extend(
                    self.hca
                        .counters()
                        .iter()
                        .map(|(name, value)| (format!("port_{name}"), value)),
                );
                list.extend(
                    self.hca
                        .drops()
                        .iter()
                        .map(|(name, value)| (format!("port_drop_{name}"), value)),
                );
                list.extend(
                    self.link
                        .values()
                        .into_iter()
                        .map(|(name, value)| (format!("link_{name}"), value)),
                );
                Ok(show::counters(list))
            }
            ShowWhat::Fabric => {
                Err("this is an interface; ask a fabric (`ipoib show` lists what runs)".into())
            }
        }
    }

    fn resolve(&self, ip: IpAddr) -> Result<Value, String> {
        let (answer, result) = bounded(1);
        self.ask(move |interface, now| {
            let answer = Box::new(move |result| {
                // Whoever asked may have gone.
                let _ = answer.send(result);
            });
            interface.resolve(now, ip, answer);
        })?;
        match result.recv_timeout(RESOLVE) {
            Ok(result) => result.map(|neighbour| json!(neighbour)),
            Err(_) => Err(format!("{ip}: no answer in {} s", RESOLVE.as_secs())),
        }
    }

    fn set(&self, what: SetWhat) -> Result<Value, String> {
        match what {
            SetWhat::Mode { mode } => {
                let from = self.ask(move |interface, now| {
                    let from = interface.mode();
                    interface.set_mode(now, mode).map(|()| from)
                })??;
                Ok(json!({ "mode": { "from": from, "to": mode } }))
            }
        }
    }

    fn tap(&self) -> Option<Arc<Tap>> {
        Some(self.tap.clone())
    }
}

/// A GUID that stays the same for this name on this host (an EUI-64 with the local bit): FNV-1a of the machine's identity and the names.
fn made_up_guid(name: &str, netns: Option<&str>) -> Guid {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_else(|_| hostname());
    let text = format!("{machine}\0{}\0{name}", netns.unwrap_or_default());
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Guid(hash & !(0xff << 56) | 0x02 << 56)
}

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_guids_differ_by_name_and_namespace_and_stay() {
        let all = [
            made_up_guid("ib0", None),
            made_up_guid("ib1", None),
            made_up_guid("ib0", Some("h1")),
        ];
        assert_eq!(all[0], made_up_guid("ib0", None));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert!(all.iter().all(|guid| guid.0 >> 56 == 2));
    }
}
