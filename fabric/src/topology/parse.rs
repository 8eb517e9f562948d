//! The file format of ibnetdiscover, as ibsim reads it.
//!
//! A record is a line `Switch|Ca|Hca PORTS "NAME" # "DESCRIPTION"`, before it lines such as `switchguid=0x1`, and after it a line for each
//! port with a cable: `[PORT](GUID) "NAME OF THE OTHER NODE"[ITS PORT] # ... 4xQDR`. A cable stands in the records of both its ends. Widths
//! and speeds also come as ibsim's codes, `w=` and `s=`, and with `width=` and `speed=` for all cables after. Nodes without a GUID are numbered
//! on from the last one of their kind.

use super::{Cable, Node, NodeKind, PortId, Topology};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use wire::{Guid, LinkRate, LinkSpeed};

/// What is wrong with a topology, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    /// From 1.
    pub line: usize,
    /// In words.
    pub reason: String,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for TopologyError {}

/// Where ibsim begins to number.
const FIRST_CA: u64 = 0x10_0000;
const FIRST_SWITCH: u64 = 0x20_0000;

/// One end of a cable as its record tells it.
struct End {
    line: usize,
    remote: String,
    remote_port: u8,
    rate: LinkRate,
}

struct Parser {
    topology: Topology,
    names: HashMap<String, usize>,
    ends: BTreeMap<PortId, End>,
    /// Lines of the nodes.
    lines: Vec<usize>,
    vendor_id: u32,
    device_id: u16,
    system_image_guid: Option<Guid>,
    next_ca: Guid,
    next_switch: Guid,
    /// What ports support that say nothing.
    rate: LinkRate,
    /// Port lines may come.
    in_record: bool,
}

impl Topology {
    /// Reads a topology.
    ///
    /// # Errors
    /// The first line that is not understood, or contradicts others.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        let mut parser = Parser {
            topology: Topology::default(),
            names: HashMap::new(),
            ends: BTreeMap::new(),
            lines: Vec::new(),
            vendor_id: 0,
            device_id: 0,
            system_image_guid: None,
            next_ca: Guid(FIRST_CA),
            next_switch: Guid(FIRST_SWITCH),
            rate: LinkRate::default(),
            in_record: false,
        };
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            parser
                .line(number, line.trim())
                .map_err(|reason| TopologyError {
                    line: number,
                    reason,
                })?;
        }
        parser.finish()
    }
}

impl Parser {
    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        if line.starts_with('#') {
            return Ok(());
        }
        if line.starts_with('[') {
            return match self.in_record {
                true => self.port(number, line),
                false => Err("a port, but of no node".into()),
            };
        }
        self.in_record = false;
        // What ibnetdiscover writes between the nodes where it groups them.
        if line.is_empty() || line.starts_with("Chassis ") || line.starts_with("Non-Chassis Nodes")
        {
            return Ok(());
        }
        if let Some((key, value)) = line.split_once('=')
            && key.chars().all(|c| c.is_ascii_lowercase())
        {
            return self.property(key, value);
        }
        self.node(number, line)
    }

    fn property(&mut self, key: &str, value: &str) -> Result<(), String> {
        // GUIDs of switches come with the one of port 0 in parentheses.
        let value = value.split(['(', '#']).next().unwrap_or_default().trim();
        let number = || integer(value).ok_or_else(|| format!("not a number: {value:?}"));
        let too_large = || format!("too large: {value}");
        match key {
            "vendid" => self.vendor_id = narrow(number()?).ok_or_else(too_large)?,
            "devid" => self.device_id = narrow(number()?).ok_or_else(too_large)?,
            "sysimgguid" => self.system_image_guid = Some(Guid(number()?)),
            "switchguid" => self.next_switch = Guid(number()?),
            "caguid" | "hcaguids" => self.next_ca = Guid(number()?),
            "width" => self.rate = with_width(self.rate, value)?,
            "speed" => self.rate = with_speed(self.rate, value)?,
            _ => {
                return Err(format!(
                    "{key}= is not known; there are vendid, devid, sysimgguid, switchguid, caguid, width and speed"
                ));
            }
        }
        Ok(())
    }

    fn node(&mut self, number: usize, line: &str) -> Result<(), String> {
        let (kind, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let kind = match kind {
            "Switch" => NodeKind::Switch,
            "Ca" | "Hca" => NodeKind::Ca,
            "Rt" => return Err("routers are not supported".into()),
            _ => {
                return Err(format!(
                    "not understood: {kind:?}; a node begins with Switch, Ca or Hca, a port with ["
                ));
            }
        };
        let (ports, rest) = rest.trim_start().split_once('"').unwrap_or((rest, ""));
        let ports: u8 = ports.trim().parse().unwrap_or(0);
        if !(1..=254).contains(&ports) {
            return Err("the number of ports, 1 to 254, must follow the kind of the node".into());
        }
        let (name, rest) = rest
            .split_once('"')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("a node has a name in quotes")?;
        let index = self.topology.nodes.len();
        if let Some(first) = self.names.insert(name.into(), index) {
            return Err(format!("{name:?} is on line {} already", self.lines[first]));
        }
        let guid = match kind {
            NodeKind::Switch => take(&mut self.next_switch, 1),
            NodeKind::Ca => take(&mut self.next_ca, u64::from(ports) + 1),
        };
        self.topology.nodes.push(Node {
            kind,
            name: name.into(),
            description: description(rest).unwrap_or(name).into(),
            vendor_id: self.vendor_id,
            device_id: self.device_id,
            system_image_guid: self.system_image_guid.take().unwrap_or(guid),
            guid,
            ports,
            port_guids: BTreeMap::new(),
        });
        self.lines.push(number);
        self.in_record = true;
        Ok(())
    }

    fn port(&mut self, line: usize, text: &str) -> Result<(), String> {
        let (own, rest) = text
            .split_once('"')
            .ok_or("a port without the name of a node in quotes")?;
        let (remote, rest) = rest.split_once('"').ok_or("the name has no end")?;
        let (own, guid) = port_number(own)?.ok_or("a port without a number")?;
        let (options, comment) = rest.split_once('#').unwrap_or((rest, ""));
        let words = options.split_whitespace();
        let (remote_port, options): (Vec<_>, Vec<_>) =
            words.partition(|word| !word.starts_with(['w', 's']));
        // ibsim: port 1 where none is said.
        let remote_port = port_number(&remote_port.concat())?.map_or(1, |(port, _)| port);
        let mut rate = self.rate;
        for option in options {
            rate = match option.split_once('=') {
                Some(("w", code)) => with_width(rate, code)?,
                Some(("s", code)) => with_speed(rate, code)?,
                _ => return Err(format!("not understood: {option:?}")),
            };
        }
        if let Some(Ok(stated)) = comment.split_whitespace().last().map(str::parse) {
            rate = stated;
        }
        let index = self.topology.nodes.len() - 1;
        let node = &mut self.topology.nodes[index];
        if !(1..=node.ports).contains(&own) {
            return Err(format!("{:?} has the ports 1 to {}", node.name, node.ports));
        }
        if let Some(guid) = guid
            && node.kind == NodeKind::Ca
            && guid != node.port_guid(own)
        {
            node.port_guids.insert(own, guid);
        }
        let id = PortId {
            node: index,
            port: own,
        };
        let end = End {
            line,
            remote: remote.into(),
            remote_port,
            rate,
        };
        match self.ends.insert(id, end) {
            Some(first) => Err(format!(
                "port {own} has a cable on line {} already",
                first.line
            )),
            None => Ok(()),
        }
    }

    /// Joins the ends of cables, and finds what contradicts each other.
    fn finish(mut self) -> Result<Topology, TopologyError> {
        let mut guids = HashMap::new();
        for (node, line) in self.topology.nodes.iter().zip(&self.lines) {
            let own = [node.guid].into_iter();
            let mut own: Vec<Guid> = own
                .chain((1..=node.ports).map(|n| node.port_guid(n)))
                .collect();
            own.sort_unstable();
            own.dedup();
            for guid in own {
                if let Some(first) = guids.insert(guid, node.name.clone()) {
                    return Err(TopologyError {
                        line: *line,
                        reason: format!("GUID {guid} is one of {first:?} already"),
                    });
                }
            }
        }
        for (id, end) in &self.ends {
            let cable = self.cable(*id, end).map_err(|reason| TopologyError {
                line: end.line,
                reason,
            })?;
            // Once for both ends.
            if id < &cable.ends[1] {
                self.topology.cables.push(cable);
            }
        }
        Ok(self.topology)
    }

    fn cable(&self, id: PortId, end: &End) -> Result<Cable, String> {
        let End {
            remote,
            remote_port,
            ..
        } = end;
        let node = *self
            .names
            .get(remote)
            .ok_or_else(|| format!("there is no node {remote:?}"))?;
        let ports = self.topology.nodes[node].ports;
        if !(1..=ports).contains(remote_port) {
            return Err(format!("{remote:?} has the ports 1 to {ports}"));
        }
        let other = PortId {
            node,
            port: *remote_port,
        };
        if other == id {
            return Err("a port cannot be wired to itself".into());
        }
        let back = self.ends.get(&other).ok_or_else(|| {
            format!("half a cable: {remote:?} does not name its port {remote_port}")
        })?;
        if self.names.get(&back.remote) != Some(&id.node) || back.remote_port != id.port {
            return Err(format!(
                "port {remote_port} of {remote:?} is wired to {:?}[{}] on line {}",
                back.remote, back.remote_port, back.line
            ));
        }
        Ok(Cable {
            ends: [id, other],
            rates: [end.rate, back.rate],
        })
    }
}

/// The next GUID; `count` are used up.
fn take(next: &mut Guid, count: u64) -> Guid {
    let guid = *next;
    next.0 = next.0.wrapping_add(count);
    guid
}

/// Decimal, or hexadecimal after `0x`.
fn integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn narrow<T: TryFrom<u64>>(value: u64) -> Option<T> {
    value.try_into().ok()
}

/// `[1]`, `[1](8f10403961355)`, `[1][ext 4]`; `None` for nothing at all.
fn port_number(text: &str) -> Result<Option<(u8, Option<Guid>)>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let parts = text.strip_prefix('[').and_then(|t| t.split_once(']'));
    let parts = parts.and_then(|(number, rest)| Some((number.trim().parse().ok()?, rest)));
    let (number, rest) = parts.ok_or_else(|| format!("not a port in brackets: {text:?}"))?;
    let guid = rest.split_once('(').and_then(|(_, g)| g.split_once(')'));
    match guid {
        None => Ok(Some((number, None))),
        Some((guid, _)) => match u64::from_str_radix(guid.trim_start_matches("0x"), 16) {
            Ok(guid) => Ok(Some((number, Some(Guid(guid))))),
            Err(_) => Err(format!("not a GUID: {guid:?}")),
        },
    }
}

/// The description in the comment of a node.
fn description(comment: &str) -> Option<&str> {
    let text = comment.split_once('#')?.1.trim();
    let text = match text.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => [" enhanced port ", " base port ", " lid ", " lmc "]
            .iter()
            .fold(text, |text, end| text.split(end).next().unwrap_or(text)),
    };
    (!text.trim().is_empty()).then_some(text)
}

/// The widest of a mask of PortInfo's codes: 1: 1x, 2: 4x, 4: 8x, 8: 12x, 16: 2x.
fn with_width(rate: LinkRate, code: &str) -> Result<LinkRate, String> {
    let lanes = match integer(code) {
        Some(mask @ 1..=31) if mask & 8 != 0 => 12,
        Some(mask @ 1..=31) if mask & 4 != 0 => 8,
        Some(mask @ 1..=31) if mask & 2 != 0 => 4,
        Some(mask @ 1..=31) if mask & 16 != 0 => 2,
        Some(1) => 1,
        _ => return Err(format!("not a mask of widths, 1 to 31: {code:?}")),
    };
    LinkRate::new(lanes, rate.speed()).ok_or_else(|| "no such width".into())
}

/// The fastest of a mask: 1: SDR, 2: DDR, 4: QDR.
fn with_speed(rate: LinkRate, code: &str) -> Result<LinkRate, String> {
    let speed = match integer(code) {
        Some(4..=7) => LinkSpeed::Qdr,
        Some(2..=3) => LinkSpeed::Ddr,
        Some(1) => LinkSpeed::Sdr,
        _ => return Err(format!("not a mask of speeds, 1 to 7: {code:?}")),
    };
    LinkRate::new(rate.lanes(), speed).ok_or_else(|| "no such speed".into())
}
