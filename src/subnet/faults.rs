//! Breaking things on purpose, and mending them.

use super::site::SwitchPort;
use super::{Managed, Subnet, start_manager};
use crate::cli::{CmKind, FaultWhat, LinkAction, LinkFault, SaFaultArgs, SmAction, parse_guid};
use crate::machines::Manager;
use anyhow::{Context, bail};
use clap::ValueEnum;
use fabric::link::fault::{CmLoss, FaultConfig, FaultCounters, FaultLink};
use fabric::sm::{NodeView, PortView, SaFault, SmConfig, SubnetManager};
use serde_json::{Value, json};
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::mad::attr::SmState;
use wire::mad::{AttrId, MadStatus};
use wire::{Gid, Guid, Lid, PKey};

/// Names in an error message.
const MAX_NAMES: usize = 20;
/// How long a handover may take: less than the one who asked waits for the answer.
const HANDOVER: Duration = Duration::from_secs(10);
/// How often is looked whether it is done.
const LOOK: Duration = Duration::from_millis(20);

impl Subnet {
    /// Breaks something, mends it, or tells what is broken. The answer is null, or the list.
    ///
    /// # Errors
    /// There is no such thing; the message names what there is.
    pub fn fault(&self, what: FaultWhat) -> anyhow::Result<Value> {
        match what {
            FaultWhat::Link(fault) => self.break_link(&fault)?,
            FaultWhat::Sm { action } => match action {
                SmAction::Stop => self.managed()?.lock().stop()?,
                SmAction::Start => self.managed()?.lock().start()?,
                SmAction::Handover => self.hand_over()?,
                SmAction::Takeover => self.take_over()?,
            },
            FaultWhat::Sa { fault } => {
                let (fault, count) = sa_fault(fault);
                self.with_manager(move |sm, _| {
                    sm.set_sa_fault(fault, count);
                    Ok(())
                })?;
            }
            FaultWhat::Pkey { node, port, keys } => {
                let node = self.known_as(node);
                self.with_manager(move |sm, now| {
                    let guid = end_port(&sm.nodes(), &node, port)?.guid;
                    let mut config = sm.config().clone();
                    match keys.is_empty() {
                        true => config.pkey_tables.remove(&guid),
                        false => {
                            let keys = keys.into_iter().map(PKey).collect();
                            config.pkey_tables.insert(guid, keys)
                        }
                    };
                    sm.reconfigure(now, config);
                    Ok(())
                })?;
            }
            FaultWhat::Lid { node, lid, port } => {
                let node = self.known_as(node);
                let lid = Lid(lid);
                let (guid, old) = self.with_manager(move |sm, now| {
                    let nodes = sm.nodes();
                    let port = end_port(&nodes, &node, port)?;
                    sm.move_lid(now, port.guid, lid)?;
                    Ok((port.guid, port.lid))
                })?;
                let mut moved = self.moved.lock();
                let (first, last) = moved.entry(guid).or_insert((old, lid));
                *last = lid;
                if *first == lid {
                    moved.remove(&guid);
                }
            }
            FaultWhat::Prefix { prefix } => self.with_manager(move |sm, now| {
                let config = SmConfig {
                    subnet_prefix: prefix,
                    ..sm.config().clone()
                };
                sm.reconfigure(now, config);
                Ok(())
            })?,
            FaultWhat::List => return Ok(self.faults()),
        }
        Ok(Value::Null)
    }

    fn managed(&self) -> anyhow::Result<&parking_lot::Mutex<Managed>> {
        let sm = self.sm.as_ref();
        sm.context("this fabric has no embedded subnet manager (--sm embedded), only links can be broken here")
    }

    /// A name of the topology as the manager knows it.
    fn known_as(&self, name: String) -> String {
        let mut nodes = self.site.nodes.iter();
        let node = nodes.find(|node| node.name == name);
        node.map_or(name, |node| node.guid.to_string())
    }

    /// Does something to the manager, on its thread.
    fn with_manager<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut SubnetManager, Instant) -> anyhow::Result<R> + Send + 'static,
    ) -> anyhow::Result<R> {
        self.managed()?;
        let manager = self
            .manager()
            .context("the subnet manager is stopped; `ipoib fault sm start` starts it")?;
        let done = manager.call(|manager, now| {
            let done = f(&mut manager.sm, now);
            manager.port.pump(&mut manager.sm);
            done
        });
        done.context("the fabric is about to end")?
    }

    fn hand_over(&self) -> anyhow::Result<()> {
        let heir = self.with_manager(|sm, now| Ok(sm.step_down(now)?))?;
        if self.becomes(|state| state != SmState::MASTER)? {
            return Ok(());
        }
        self.with_manager(|sm, now| Ok(sm.step_up(now)?))?;
        bail!(
            "the standby with the GUID {heir} did not take the subnet within {HANDOVER:?}; it stays here"
        );
    }

    fn take_over(&self) -> anyhow::Result<()> {
        self.with_manager(|sm, now| Ok(sm.step_up(now)?))?;
        match self.becomes(|state| state == SmState::MASTER)? {
            true => Ok(()),
            false => bail!(
                "the master has not handed the subnet over within {HANDOVER:?}; it may do so when it sweeps"
            ),
        }
    }

    /// Waits for a state of the manager.
    fn becomes(&self, is_right: impl Fn(SmState) -> bool) -> anyhow::Result<bool> {
        let until = Instant::now() + HANDOVER;
        while Instant::now() < until {
            if is_right(self.with_manager(|sm, _| Ok(sm.state()))?) {
                return Ok(true);
            }
            std::thread::sleep(LOOK);
        }
        Ok(false)
    }

    fn break_link(&self, fault: &LinkFault) -> anyhow::Result<()> {
        let at = self.find_link(&fault.node, fault.port)?;
        let link = self.fault_link(at).context("no such port")?;
        if fault.action == Some(LinkAction::Clear) {
            link.set(FaultConfig::NONE, None);
            link.lose_cm(None);
        }
        let ms = |ms: u32| Duration::from_millis(ms.into());
        let old = link.config();
        let config = FaultConfig {
            loss: fault.loss.unwrap_or(old.loss),
            duplicate: fault.duplicate.unwrap_or(old.duplicate),
            reorder: fault.reorder.unwrap_or(old.reorder),
            corrupt: fault.corrupt.unwrap_or(old.corrupt),
            delay: fault.delay.map_or(old.delay, ms),
        };
        let nothing = fault.action.is_none() && fault.seed.is_none() && fault.lose.is_none();
        if nothing && config == old {
            bail!(
                "say what to do to the link: down, up, clear, --loss, --duplicate, --reorder, --corrupt, --delay, --lose or --seed"
            );
        }
        link.set(config, fault.seed);
        if let Some(kind) = fault.lose {
            link.lose_cm(Some(CmLoss {
                message: message(kind),
                left: fault.count,
            }));
        }
        match fault.action {
            Some(LinkAction::Down) => link.set_down(true),
            Some(LinkAction::Up | LinkAction::Clear) => link.set_down(false),
            None => {}
        }
        Ok(())
    }

    fn fault_link(&self, at: SwitchPort) -> Option<&Arc<FaultLink>> {
        let port = self.site.nodes.get(at.node)?.switch_port(at.port)?;
        Some(&port.faults)
    }

    /// The port of a switch at which a link can be broken, by either of its ends.
    fn find_link(&self, name: &str, port: u8) -> anyhow::Result<SwitchPort> {
        let guid = parse_guid(name).ok();
        let nodes = &self.site.nodes;
        let is = |node: Guid| guid == Some(node);
        if let Some(node) = nodes.iter().position(|n| n.name == name || is(n.guid)) {
            let (found, ports) = match nodes[node].switch() {
                Some(switch) => (Some(SwitchPort { node, port }), switch.ports()),
                None => (self.site.across(node, port), u8::MAX),
            };
            let found = found.filter(|at| self.fault_link(*at).is_some());
            return found.with_context(|| match nodes[node].switch() {
                Some(_) => format!("{name} has the ports 1 to {ports}"),
                None => format!("{name} has no port {port} with a link to a switch"),
            });
        }
        let at_host = || self.site.host(name).filter(|_| port == 1);
        let known = || self.named.lock().get(&(name.to_owned(), port)).copied();
        let views = self.manager().and_then(|m| m.call(|m, _| m.sm.nodes()));
        let views = views.unwrap_or_default();
        let seen = || {
            let view = views.iter().find(|view| is_named(view, name))?;
            let end = view.ports.iter().find(|p| p.number == port)?.link?;
            let node = nodes.iter().position(|n| n.guid == end.guid)?;
            let port = end.port;
            Some(SwitchPort { node, port })
        };
        let Some(at) = at_host().or_else(seen).or_else(known) else {
            if let Some(view) = views.iter().find(|view| is_named(view, name)) {
                let ports = view.ports.iter().filter(|port| port.link.is_some());
                let ports: Vec<String> = ports.map(|port| port.number.to_string()).collect();
                bail!(
                    "{name} has no link at port {port}; ports with links: {}",
                    list(ports)
                );
            }
            let own = nodes.iter().map(|node| node.name.clone());
            let foreign = views
                .iter()
                .filter(|v| !nodes.iter().any(|n| n.guid == v.guid));
            let hosts = self.attached().into_iter().map(|(_, _, who)| who);
            let names = own
                .chain(foreign.map(|view| view.description.clone()))
                .chain(hosts);
            bail!("no node {name:?}; there are: {}", list(names));
        };
        // While the link is down nobody can tell who is at its other end.
        self.named.lock().insert((name.to_owned(), port), at);
        Ok(at)
    }

    /// What is broken now.
    fn faults(&self) -> Value {
        let nodes = self.site.nodes.iter().enumerate();
        let ports = nodes.flat_map(|(node, n)| {
            let ports = n.switch().map_or(0, |switch| switch.ports());
            (1..=ports).map(move |port| SwitchPort { node, port })
        });
        let links: Vec<Value> = ports
            .filter_map(|at| {
                let link = self.fault_link(at)?;
                let config = link.config();
                let cm = link.cm_loss();
                let broken = link.is_down() || config != FaultConfig::NONE || cm.is_some();
                broken.then(|| {
                    let counts = |c: &FaultCounters| {
                        let met = c.values().into_iter().filter(|(_, n)| *n > 0);
                        met.map(|(name, n)| (name.to_owned(), n.into()))
                            .collect::<serde_json::Map<_, _>>()
                    };
                    let [sent, received] = link.with_counters(|ways| ways.map(counts));
                    json!({
                        "node": self.site.name(at), "port": at.port, "down": link.is_down(),
                        "loss": config.loss, "duplicate": config.duplicate, "reorder": config.reorder,
                        "corrupt": config.corrupt, "delay_ms": config.delay.as_millis() as u64,
                        "lose": cm.map(|cm| kind(cm.message)), "left": cm.and_then(|cm| cm.left),
                        "sent": sent, "received": received,
                    })
                })
            })
            .collect();
        let moved = self.moved.lock().clone();
        let more = self.manager().and_then(|manager| {
            manager.call(move |Manager { sm, .. }, _| {
                let tables = sm.config().pkey_tables.iter();
                let tables = tables.map(|(guid, keys)| {
                    let keys: Vec<String> = keys.iter().map(PKey::to_string).collect();
                    json!({ "guid": guid.to_string(), "pkeys": keys })
                });
                let sa = sm.sa_fault().map(|(fault, left)| {
                    let fault = match fault {
                        SaFault::Drop => "drop".into(),
                        SaFault::Delay(delay) => format!("delay {} ms", delay.as_millis()),
                        SaFault::Status(status) => format!("status 0x{:04x}", status.0),
                    };
                    json!({ "fault": fault, "left": left })
                });
                let nodes = sm.nodes();
                let lid_of = |guid: Guid| {
                    let mut ports = nodes.iter().flat_map(|node| &node.ports);
                    ports.find(|port| port.guid == guid).map(|port| port.lid)
                };
                // Not what another manager has changed since; a port that is away gets it when it comes back.
                let lids = moved.into_iter();
                let lids = lids.filter(|(guid, (_, now))| lid_of(*guid).is_none_or(|l| l == *now));
                let lids = lids.map(|(guid, (was, now))| {
                    json!({ "guid": guid.to_string(), "lid": now.0, "was": was.0 })
                });
                let prefix = sm.config().subnet_prefix;
                let prefix = (prefix != Gid::DEFAULT_PREFIX)
                    .then(|| Ipv6Addr::from(u128::from(prefix) << 64).to_string());
                json!({
                    "sa": sa, "pkey_tables": tables.collect::<Vec<_>>(), "resigned": sm.has_resigned(),
                    "lids": lids.collect::<Vec<_>>(), "prefix": prefix,
                })
            })
        });
        let more = more.unwrap_or_else(
            || json!({ "sa": null, "pkey_tables": [], "lids": [], "prefix": null }),
        );
        let resigned = more["resigned"] == true;
        let sm = match &self.sm {
            None => "not embedded",
            Some(_) if resigned => "handed over",
            Some(sm) if sm.lock().running.is_some() => "running",
            Some(_) => "stopped",
        };
        json!({
            "links": links, "sm": sm, "sa": more["sa"], "pkey_tables": more["pkey_tables"],
            "lids": more["lids"], "prefix": more["prefix"],
        })
    }
}

impl Managed {
    fn stop(&mut self) -> anyhow::Result<()> {
        let running = self.running.take();
        let running = running.context("the subnet manager is stopped already")?;
        let config = running.inbox().call(|Manager { sm, .. }, _| SmConfig {
            lid_map: sm.lid_map(),
            ..sm.config().clone()
        });
        self.config = config.context("the subnet manager has ended")?;
        Ok(())
    }

    fn start(&mut self) -> anyhow::Result<()> {
        if self.running.is_some() {
            bail!("the subnet manager runs already");
        }
        self.running = Some(start_manager(&*self.at, self.config.clone())?);
        Ok(())
    }
}

fn message(kind: CmKind) -> AttrId {
    match kind {
        CmKind::Req => AttrId::CM_REQ,
        CmKind::Mra => AttrId::CM_MRA,
        CmKind::Rej => AttrId::CM_REJ,
        CmKind::Rep => AttrId::CM_REP,
        CmKind::Rtu => AttrId::CM_RTU,
        CmKind::Dreq => AttrId::CM_DREQ,
        CmKind::Drep => AttrId::CM_DREP,
    }
}

fn kind(of: AttrId) -> Option<CmKind> {
    let mut kinds = CmKind::value_variants().iter().copied();
    kinds.find(|kind| message(*kind) == of)
}

fn sa_fault(args: SaFaultArgs) -> (Option<SaFault>, Option<u32>) {
    match args {
        SaFaultArgs::Drop { count } => (Some(SaFault::Drop), count),
        SaFaultArgs::Delay { ms, count } => {
            let delay = Duration::from_millis(ms.into());
            (Some(SaFault::Delay(delay)), count)
        }
        SaFaultArgs::Status { code, count } => (Some(SaFault::Status(MadStatus(code))), count),
        SaFaultArgs::Clear => (None, None),
    }
}

fn list(names: impl IntoIterator<Item = String>) -> String {
    let mut names: Vec<String> = names.into_iter().take(MAX_NAMES + 1).collect();
    if names.len() > MAX_NAMES {
        names[MAX_NAMES] = "...".into();
    }
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

fn is_named(view: &NodeView, name: &str) -> bool {
    let guid = parse_guid(name).ok();
    view.description == name
        || guid.is_some_and(|guid| guid == view.guid || view.ports.iter().any(|p| p.guid == guid))
}

/// The end port that a name and perhaps a number mean.
fn end_port<'a>(
    views: &'a [NodeView],
    name: &str,
    number: Option<u8>,
) -> anyhow::Result<&'a PortView> {
    let mut named = views.iter().filter(|view| is_named(view, name));
    let Some(view) = named.next() else {
        let names = views.iter().map(|view| view.description.clone());
        bail!("no node {name:?}; there are: {}", list(names));
    };
    if named.next().is_some() {
        bail!("several nodes are called {name:?}; give the GUID of one");
    }
    let guid = parse_guid(name).ok();
    let ports: Vec<&PortView> = view.ports.iter().filter(|port| port.guid.0 != 0).collect();
    let is_meant = |port: &&&PortView| match number {
        Some(number) => port.number == number,
        None => ports.len() == 1 || Some(port.guid) == guid,
    };
    ports.iter().find(is_meant).copied().with_context(|| {
        let numbers = ports.iter().map(|port| port.number.to_string());
        format!(
            "{name} has the end ports {}; choose one with --port",
            list(numbers)
        )
    })
}
