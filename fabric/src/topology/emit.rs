//! Writes a topology as ibnetdiscover would, less what only a running subnet has (LIDs).

use super::{NodeKind, PortId, Topology};
use std::collections::BTreeMap;
use std::fmt;

/// A description ends at a quote.
fn quoted(text: &str) -> String {
    text.replace(['"', '\n', '\r'], "'")
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ends = BTreeMap::new();
        for cable in &self.cables {
            let [a, b] = cable.ends;
            ends.insert(a, (b, cable.rates[0]));
            ends.insert(b, (a, cable.rates[1]));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let guid = node.guid.0;
            writeln!(
                f,
                "vendid={:#x}\ndevid={:#x}\nsysimgguid={:#x}",
                node.vendor_id, node.device_id, node.system_image_guid.0
            )?;
            let kind = match node.kind {
                NodeKind::Switch => {
                    writeln!(f, "switchguid={guid:#x}({guid:x})")?;
                    "Switch"
                }
                NodeKind::Ca => {
                    writeln!(f, "caguid={guid:#x}")?;
                    "Ca"
                }
            };
            writeln!(
                f,
                "{kind}\t{} \"{}\"\t\t# \"{}\"",
                node.ports,
                quoted(&node.name),
                quoted(&node.description)
            )?;
            for port in 1..=node.ports {
                let Some((other, rate)) = ends.get(&PortId { node: index, port }) else {
                    continue;
                };
                let guid = |id: PortId| match self.nodes[id.node].kind {
                    NodeKind::Switch => String::new(),
                    NodeKind::Ca => format!("({:x})", self.nodes[id.node].port_guid(id.port).0),
                };
                let remote = &self.nodes[other.node];
                writeln!(
                    f,
                    "[{port}]{} \t\"{}\"[{}]{} \t\t# \"{}\" {rate}",
                    guid(PortId { node: index, port }),
                    quoted(&remote.name),
                    other.port,
                    guid(*other),
                    quoted(&remote.description)
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
