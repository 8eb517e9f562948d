//! Bad news: requests that nobody answered, and traps (IBA 14.2.5.1, 14.4.9).

use super::smp::Purpose;
use super::topology::{NodeId, PortId};
use super::{Counter, SubnetManager};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use wire::mad::AttrId;
use wire::mad::attr::{Notice, SmState, TrapNumber};

/// Traps of strangers cause light sweeps at least this far apart.
const STRANGER_PAUSE: Duration = Duration::from_secs(1);

impl SubnetManager {
    /// A request failed for good.
    pub(super) fn failed(&mut self, now: Instant, purpose: Purpose) {
        self.counters.add(Counter::SmpTimeouts);
        match purpose {
            Purpose::Probe(from) => self.nobody_at(now, from),
            Purpose::Poll => self.master_silent(now),
            Purpose::AskSm(port) | Purpose::HandOver(port) => {
                if let Some(port) = self.topo.port_mut(port) {
                    port.is_sm = None;
                }
            }
            Purpose::NodeDescription(_) => {}
            other => {
                let Some(id) = other.node() else { return };
                self.drop_node(now, id);
            }
        }
    }

    /// A node stopped answering: its links count as silent, and what hangs on them only is gone.
    fn drop_node(&mut self, now: Instant, id: NodeId) {
        if self.topo.own.is_some_and(|own| own.0 == id) {
            if let Some(node) = self.topo.node_mut(id) {
                node.ports.iter_mut().for_each(|p| p.busy = false);
                node.switch
                    .iter_mut()
                    .for_each(|s| (s.busy, s.reading) = (false, false));
            }
            return;
        }
        let Some(node) = self.topo.node(id) else {
            return;
        };
        tracing::warn!(node = %node.guid(), name = %node.description, "node stopped answering");
        self.counters.add(Counter::NodesDropped);
        let peers: Vec<PortId> = node.ports.iter().filter_map(|p| p.link).collect();
        for peer in peers {
            self.nobody_at(now, Some(peer));
        }
        self.smps.retain_nodes(&BTreeSet::from([id]));
        self.dirty = true;
    }

    /// A trap of an SMA (IBA 14.2.5.1); it was repressed already.
    pub(super) fn trap(&mut self, now: Instant, source: wire::Lid, notice: &Notice) {
        self.counters.add(Counter::Traps);
        if self.state != SmState::MASTER {
            return;
        }
        let lid = if notice.issuer_lid.is_unicast() {
            notice.issuer_lid
        } else {
            source
        };
        let Some(port) = self.topo.by_lid(lid) else {
            // Someone that is not known has a LID of this manager's: look everywhere, but not at each trap of a stranger.
            let soon = self.last_sweep.map_or(now, |last| last + STRANGER_PAUSE);
            self.next_sweep = self.next_sweep.map(|at| at.min(soon.max(now)));
            return;
        };
        match notice.trap_number {
            _ if !notice.is_generic => {}
            TrapNumber::LINK_STATE_CHANGE => self.read_ports(port.0),
            TrapNumber::CAPABILITY_CHANGE | TrapNumber::SYSTEM_IMAGE_GUID_CHANGE => {
                self.get(
                    Purpose::NodeDescription(port.0),
                    AttrId::NODE_DESCRIPTION,
                    0,
                );
                self.get(
                    Purpose::PortInfo(port),
                    AttrId::PORT_INFO,
                    u32::from(port.1),
                );
            }
            // Nothing here that a manager could mend; people should know.
            TrapNumber::LINK_INTEGRITY
            | TrapNumber::BUFFER_OVERRUN
            | TrapNumber::FLOW_CONTROL_WATCHDOG => {
                self.counters.add(Counter::LinkErrorTraps);
                self.log_trap(lid, notice);
            }
            TrapNumber::BAD_M_KEY
            | TrapNumber::BAD_P_KEY
            | TrapNumber::BAD_Q_KEY
            | TrapNumber::SWITCH_BAD_P_KEY => {
                self.counters.add(Counter::KeyTraps);
                self.log_trap(lid, notice);
            }
            _ => {}
        }
    }

    fn log_trap(&self, lid: wire::Lid, notice: &Notice) {
        let name = self.topo.by_lid(lid).and_then(|p| self.topo.node(p.0));
        let name = name.map(|n| n.description.to_string()).unwrap_or_default();
        tracing::warn!(%lid, name, trap = %notice.trap_number, "trap");
    }
}
