//! `ipoib fabric`: a software subnet in the foreground.

use crate::cli::{FabricArgs, FaultWhat, ShowWhat, SmChoice, UdpUrl, parse_guid};
use crate::config::{self, FabricFile};
use crate::control::{self, FABRIC_PREFIX, Handler};
use crate::opensm::{OpenSm, Umad};
use crate::show;
use crate::signals::Signals;
use crate::subnet::Subnet;
use anyhow::{Context, bail};
use crossbeam_channel::{select, tick};
use fabric::link::capture::Tap;
use fabric::link::udp::{ListenConfig, UdpListener};
use fabric::sm::SmConfig;
use fabric::topology::{self, NodeKind, Shape, Topology};
use fabric::umad::{UmadConfig, UmadServer};
use serde_json::{Value, json};
use signal_hook::consts::SIGHUP;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use wire::{Guid, Lid};

/// Runs until a signal.
///
/// # Errors
/// A bad configuration, an address that cannot be listened on.
pub fn run(args: FabricArgs) -> anyhow::Result<ExitCode> {
    let mut file = match &args.config {
        Some(path) => config::read::<FabricFile>(path)?,
        None => FabricFile::default(),
    };
    let Some(UdpUrl(address)) = args.listen.or(file.listen) else {
        bail!(
            "say where hosts connect to: --listen udp://127.0.0.1:7700 (or `listen` in the configuration)"
        );
    };
    let allow = if args.allow.is_empty() {
        file.allow.clone()
    } else {
        args.allow
    };
    let umad = args.umad.map(|UdpUrl(address)| ("--umad", address));
    for (option, address) in [("--listen", address)].into_iter().chain(umad) {
        if !address.ip().is_loopback() && allow.is_empty() {
            bail!(
                "{option} {address} is not a loopback address: say who may connect, with --allow CIDR"
            );
        }
    }
    if args.partitions.is_some() {
        file.partitions = args.partitions;
    }
    let mut sm = file.sm_config().with_context(|| {
        args.config
            .as_ref()
            .map_or(String::new(), |path| path.display().to_string())
    })?;
    let mut lids = LidFile::read(file.lid_file.as_deref())?;
    sm.lid_map.clone_from(&lids.saved);
    let signals = Signals::install()?;
    // The same at each start of a fabric with a port of its own, another one where the system chooses the port.
    let number = match address.port() {
        0 => crate::node::random() & 0xff_ffff_ffff,
        port => u64::from(port),
    };
    let guid = file.guid.unwrap_or(Guid(0x0200_0000_0000_0000 | number));
    let topology = match args.topology.or(file.topology) {
        Some(text) => read_topology(&text)?,
        None => Topology::single_switch(guid, file.ports),
    };
    let embedded = (args.sm == SmChoice::Embedded).then(|| sm.clone());
    let subnet = Subnet::with_topology(&topology, embedded)?;
    let listener = subnet.listen(ListenConfig {
        allow: allow.clone(),
        ..ListenConfig::new(address)
    })?;
    let local = listener.local_addr();
    let socket = args.control.map_or_else(
        || control::socket_path(&format!("{FABRIC_PREFIX}{}", local.port())),
        Ok,
    )?;
    let nodes = subnet.nodes();
    let umad = Umad {
        base: format!("ipoib-{local}"),
        nodes: nodes.iter().map(|(name, _)| name.clone()).collect(),
    };
    let server = UmadServer::start(UmadConfig {
        base: umad.base.clone(),
        udp: args.umad.map(|url| url.0),
        allow,
        nodes,
    });
    let umad_server = Arc::new(server.context("cannot serve libumad2sim")?);
    let opensm = match args.sm {
        SmChoice::Opensm => {
            let node = umad.nodes.first().map_or("", String::as_str);
            Some(OpenSm::start(&umad.base, node, &sm)?)
        }
        SmChoice::None | SmChoice::Embedded => None,
    };
    let subnet = Arc::new(subnet);
    let listener = Arc::new(listener);
    let server = control::Server::start(
        &socket,
        Arc::new(Asked {
            subnet: subnet.clone(),
            listener: listener.clone(),
            umad,
            umad_server: umad_server.clone(),
        }),
    )?;
    let nodes = match &topology.nodes[..] {
        [switch] => format!("a switch with {} ports", switch.ports),
        nodes => {
            let is_switch = |node: &&topology::Node| node.kind == NodeKind::Switch;
            let switches = nodes.iter().filter(is_switch).count();
            let adapters = nodes.len() - switches;
            format!("switches {switches}, channel adapters {adapters}")
        }
    };
    show::say(format_args!(
        "fabric: {nodes} and {}; hosts connect to {}",
        match args.sm {
            SmChoice::None => "no subnet manager of its own",
            SmChoice::Embedded => "a subnet manager",
            SmChoice::Opensm => "OpenSM",
        },
        UdpUrl(local)
    ));
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    let save = tick(SAVE_LIDS);
    let given = || match &opensm {
        Some(opensm) => opensm.lid_map(),
        None => subnet.manager()?.call(|manager, _| manager.sm.lid_map()),
    };
    loop {
        select! {
            recv(signals.channel()) -> signal => match &file.partitions {
                Some(path) if signal == Ok(SIGHUP) => reread(path, &subnet),
                _ => break,
            },
            recv(save) -> _ => lids.save(given()),
        }
    }
    lids.save(given());
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    drop(server);
    drop(opensm);
    listener.close();
    Ok(ExitCode::SUCCESS)
}

/// The topology that `--topology` names: a shape or a file.
fn read_topology(text: &str) -> anyhow::Result<Topology> {
    if text.starts_with("fat-tree:") {
        let shape = text.parse::<Shape>();
        return Ok(shape.with_context(|| text.to_owned())?.topology());
    }
    let file = std::fs::read_to_string(text)
        .with_context(|| format!("cannot read the topology {text}"))?;
    let topology = Topology::parse(&file).with_context(|| text.to_owned())?;
    if topology.nodes.is_empty() {
        bail!("{text}: no nodes");
    }
    Ok(topology)
}

/// Puts to use what is in the partition file now; one with an error changes nothing.
fn reread(path: &Path, subnet: &Subnet) {
    match config::read_partitions(path) {
        Ok(partitions) => {
            let Some(manager) = subnet.manager() else {
                return;
            };
            manager.call(move |manager, now| {
                let config = SmConfig {
                    partitions,
                    ..manager.sm.config().clone()
                };
                manager.sm.reconfigure(now, config);
                manager.port.pump(&mut manager.sm);
            });
            tracing::info!(file = %path.display(), "partitions read again");
        }
        Err(error) => tracing::error!(%error, "the partitions stay as they were"),
    }
}

/// How often LIDs are saved if they changed.
const SAVE_LIDS: Duration = Duration::from_secs(5);

/// LIDs over restarts: a line each, `GUID LID`.
struct LidFile<'a> {
    path: Option<&'a Path>,
    saved: Vec<(Guid, Lid)>,
}

impl<'a> LidFile<'a> {
    fn read(path: Option<&'a Path>) -> anyhow::Result<LidFile<'a>> {
        let Some(file) = path else {
            return Ok(LidFile {
                path,
                saved: Vec::new(),
            });
        };
        let text = match std::fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            other => {
                other.with_context(|| format!("cannot read the LIDs in {}", file.display()))?
            }
        };
        let saved = text.lines().enumerate().map(|(number, line)| {
            let fields = line
                .split_once(' ')
                .and_then(|(guid, lid)| Some((parse_guid(guid).ok()?, Lid(lid.parse().ok()?))));
            let fields = fields.filter(|(_, lid)| lid.is_unicast());
            fields.with_context(|| {
                format!(
                    "{}, line {}: not a GUID and a LID: {line:?}",
                    file.display(),
                    number + 1
                )
            })
        });
        Ok(LidFile {
            path,
            saved: saved.collect::<anyhow::Result<_>>()?,
        })
    }

    /// A failure is logged; the next change tries again.
    fn save(&mut self, lids: Option<Vec<(Guid, Lid)>>) {
        let (Some(path), Some(lids)) = (self.path, lids) else {
            return;
        };
        if lids == self.saved {
            return;
        }
        let text: String = lids
            .iter()
            .map(|(guid, lid)| format!("{guid} {}\n", lid.0))
            .collect();
        let new = path.with_extension("new");
        match std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)) {
            Ok(()) => self.saved = lids,
            Err(error) => tracing::error!(file = %path.display(), %error, "cannot save the LIDs"),
        }
    }
}

/// Answers of a running fabric.
struct Asked {
    subnet: Arc<Subnet>,
    listener: Arc<UdpListener>,
    umad: Umad,
    umad_server: Arc<UmadServer>,
}

impl Handler for Asked {
    fn show(&self, what: ShowWhat) -> Result<Value, String> {
        match what {
            ShowWhat::Fabric => {
                let manager = self.subnet.manager();
                let manager = manager.ok_or("no subnet manager runs in this fabric")?;
                let answer = manager.call(|manager, _| show::fabric_value(&manager.sm));
                let mut answer = answer.ok_or("the fabric is about to end")?;
                let attached = self.subnet.attached().into_iter();
                answer["attached"] = attached
                    .map(|(switch, port, host)| json!({ "switch": switch, "port": port, "host": host }))
                    .collect();
                Ok(answer)
            }
            ShowWhat::Stats => {
                let mut list: Vec<(String, u64)> = Vec::new();
                let switches: Vec<_> = self.subnet.switches().collect();
                for (name, switch) in &switches {
                    // One switch needs no name.
                    let name = match switches.len() {
                        1 => String::new(),
                        _ => format!("{name}_"),
                    };
                    let drops = switch.drops().iter();
                    list.extend(
                        drops.map(|(drop, value)| (format!("{name}switch_drop_{drop}"), value)),
                    );
                    for number in 0..=switch.ports() {
                        let counters = switch.counters(number).into_iter();
                        let counters = counters.flat_map(|c| c.iter().collect::<Vec<_>>());
                        // A switch has many ports, most of them unused.
                        let counters = counters.filter(|(_, value)| *value > 0);
                        list.extend(counters.map(|(counter, value)| {
                            (format!("{name}port_{number}_{counter}"), value)
                        }));
                    }
                }
                list.extend(
                    self.listener
                        .counters()
                        .values()
                        .into_iter()
                        .map(|(name, value)| (format!("listen_{name}"), value)),
                );
                let umad = self.umad_server.counters().values().into_iter();
                list.extend(umad.map(|(name, value)| (format!("umad_{name}"), value)));
                for (source, counters) in self.listener.links() {
                    list.extend(
                        counters
                            .values()
                            .into_iter()
                            .map(|(name, value)| (format!("link_{source}_{name}"), value)),
                    );
                }
                Ok(show::counters(list))
            }
            _ => Err("this is a fabric; ask an interface (`ipoib show` lists what runs)".into()),
        }
    }

    fn resolve(&self, _ip: IpAddr) -> Result<Value, String> {
        Err("this is a fabric; ask an interface (`ipoib show` lists what runs)".into())
    }

    fn fault(&self, what: FaultWhat) -> Result<Value, String> {
        self.subnet
            .fault(what)
            .map_err(|error| format!("{error:#}"))
    }

    fn umad(&self) -> Result<Umad, String> {
        Ok(self.umad.clone())
    }

    fn tap(&self) -> Option<Arc<Tap>> {
        Some(self.subnet.tap().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_are_read_and_errors_name_the_line() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lids");
        assert!(
            LidFile::read(Some(&path))
                .expect("absent is empty")
                .saved
                .is_empty()
        );
        std::fs::write(&path, "0x0000000000000005 7\n0x00000000000000ff 8\n").expect("write");
        assert_eq!(
            LidFile::read(Some(&path)).expect("valid").saved,
            [(Guid(5), Lid(7)), (Guid(0xff), Lid(8))]
        );
        std::fs::write(&path, "0x0000000000000005 7\n0x06 49152\n").expect("write");
        let error = LidFile::read(Some(&path))
            .err()
            .expect("multicast LID")
            .to_string();
        assert!(error.contains("lids, line 2"), "{error}");
    }
}
