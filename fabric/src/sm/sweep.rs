//! Sweeps (IBA 14.4.2 to 14.4.4): what is asked, of whom and when. `discovery` is what the answers mean.

use super::smp::{Purpose, Transaction};
use super::topology::{NodeId, PortId};
use super::{Counter, SubnetManager};
use std::time::{Duration, Instant};
use wire::mad::AttrId;
use wire::mad::attr::{SmState, SwitchInfo};

/// Links behind which nobody answered are tried again this often, if light sweeps are rarer.
const SILENT_RETRY: Duration = Duration::from_secs(2);
/// While the own link is down nobody can tell that it came up.
const OWN_PORT_POLL: Duration = Duration::from_millis(250);

impl SubnetManager {
    /// Reads everything, new or known.
    pub(super) fn heavy_sweep(&mut self, now: Instant) {
        self.counters.add(Counter::HeavySweeps);
        self.schedule_sweep(now);
        self.smps.push(Transaction::get(
            Purpose::Probe(None),
            AttrId::NODE_INFO,
            0,
            Vec::new(),
        ));
        self.verify.clear();
        let ids: Vec<NodeId> = self.topo.nodes.keys().collect();
        for id in ids {
            self.verify.insert(id);
            self.visit(id);
        }
    }

    /// Looks for changes: PortStateChange of switches, state of all end ports, silent links.
    pub(super) fn light_sweep(&mut self, now: Instant) {
        self.counters.add(Counter::LightSweeps);
        self.schedule_sweep(now);
        let mut gets = Vec::new();
        for (id, node) in &mut self.topo.nodes {
            node.ports.iter_mut().for_each(|p| p.fruitless = 0);
            if node.switch.is_some() {
                gets.push((Purpose::SwitchInfo(id), AttrId::SWITCH_INFO, 0));
                // Another subnet manager may be there.
                gets.push((Purpose::PortInfo((id, 0)), AttrId::PORT_INFO, 0));
            } else {
                let known = node.end_ports().filter(|&p| {
                    node.ports
                        .get(usize::from(p))
                        .is_some_and(|p| p.info.is_some())
                });
                gets.extend(
                    known.map(|p| (Purpose::PortInfo((id, p)), AttrId::PORT_INFO, u32::from(p))),
                );
            }
        }
        for (purpose, attr, modifier) in gets {
            self.get(purpose, attr, modifier);
        }
        self.retry_silent(now);
        // What a node did not obey is tried again.
        self.dirty = true;
    }

    pub(super) fn schedule_sweep(&mut self, now: Instant) {
        self.last_sweep = Some(now);
        self.next_sweep = Some(now + self.config.sweep_interval);
    }

    pub(super) fn retry_silent(&mut self, now: Instant) {
        self.next_retry = None;
        let silent: Vec<PortId> = self
            .topo
            .nodes
            .iter()
            .flat_map(|(id, n)| {
                n.ports
                    .iter()
                    .enumerate()
                    .filter(|(_, p)| p.silent && p.link.is_none() && p.is_up())
                    .map(move |(p, _)| (id, p as u8))
            })
            .collect();
        for port in silent {
            self.probe(port);
        }
        if self.own_link_down() {
            self.next_retry = Some(now + OWN_PORT_POLL);
            if let Some((id, port)) = self.topo.own {
                self.get(
                    Purpose::PortInfo((id, port)),
                    AttrId::PORT_INFO,
                    u32::from(port),
                );
            }
        }
    }

    fn own_link_down(&self) -> bool {
        let Some(own) = self.topo.own else {
            return false;
        };
        own.1 != 0 && self.topo.port(own).is_some_and(|p| p.link.is_none())
    }

    /// Makes sure that silent links are not forgotten.
    pub(super) fn schedule_retry(&mut self, now: Instant) {
        if self.next_retry.is_some() {
            return;
        }
        if self.own_link_down() {
            self.next_retry = Some(now + OWN_PORT_POLL);
        } else if self
            .topo
            .nodes
            .values()
            .any(|n| n.ports.iter().any(|p| p.silent))
        {
            self.next_retry = Some(now + SILENT_RETRY.min(self.config.sweep_interval));
        }
    }

    /// The route of a request for `purpose` by what is known now.
    pub(super) fn route(topo: &super::topology::Topology, purpose: &Purpose) -> Option<Vec<u8>> {
        match purpose {
            Purpose::Probe(None) => Some(Vec::new()),
            Purpose::Probe(Some((id, port))) => {
                let mut path = topo.node(*id)?.path.clone();
                path.push(*port);
                Some(path)
            }
            Purpose::PortInfo(p)
            | Purpose::PKeys(p, _)
            | Purpose::Guids(p)
            | Purpose::AskSm(p)
            | Purpose::HandOver(p) => topo.path_to(*p),
            Purpose::SetPort(p, _) | Purpose::SetPKeys(p, _) => topo.path_to(*p),
            Purpose::Poll => None,
            other => Some(topo.node(other.node()?)?.path.clone()),
        }
    }

    pub(super) fn get(&mut self, purpose: Purpose, attr: AttrId, modifier: u32) {
        if let Some(path) = Self::route(&self.topo, &purpose) {
            self.smps
                .push(Transaction::get(purpose, attr, modifier, path));
        }
    }

    pub(super) fn set(&mut self, purpose: Purpose, attr: AttrId, modifier: u32, attribute: &[u8]) {
        if let Some(path) = Self::route(&self.topo, &purpose) {
            self.smps
                .push(Transaction::set(purpose, attr, modifier, path, attribute));
        }
    }

    pub(super) fn probe(&mut self, port: PortId) {
        self.get(Purpose::Probe(Some(port)), AttrId::NODE_INFO, 0);
    }

    /// Reads all of a node.
    pub(super) fn visit(&mut self, id: NodeId) {
        let Some(node) = self.topo.node(id) else {
            return;
        };
        if node.switch.is_some() {
            self.get(Purpose::NodeDescription(id), AttrId::NODE_DESCRIPTION, 0);
            self.get(Purpose::SwitchInfo(id), AttrId::SWITCH_INFO, 0);
            self.read_pkeys((id, 0));
            self.read_ports(id);
        } else {
            let ports: Vec<u8> = node
                .end_ports()
                .filter(|&p| self.topo.port((id, p)).is_some_and(|p| p.guid.0 != 0))
                .collect();
            for port in ports {
                self.visit_end_port((id, port));
            }
        }
    }

    pub(super) fn visit_end_port(&mut self, port: PortId) {
        self.get(
            Purpose::PortInfo(port),
            AttrId::PORT_INFO,
            u32::from(port.1),
        );
        self.get(
            Purpose::NodeDescription(port.0),
            AttrId::NODE_DESCRIPTION,
            0,
        );
        self.read_pkeys(port);
        self.get(Purpose::Guids(port), AttrId::GUID_INFO, 0);
    }

    fn read_pkeys(&mut self, port: PortId) {
        let Some(node) = self.topo.node(port.0) else {
            return;
        };
        for block in 0..node.info.partition_cap.div_ceil(32) {
            self.get(
                Purpose::PKeys(port, block),
                AttrId::P_KEY_TABLE,
                u32::from(block),
            );
        }
    }

    /// Reads all ports of a switch; PortStateChange is cleared first, so that a later change shows.
    pub(super) fn read_ports(&mut self, id: NodeId) {
        let Some(node) = self.topo.node_mut(id) else {
            return;
        };
        let Some(switch) = &mut node.switch else {
            self.visit(id);
            return;
        };
        if switch.reading {
            switch.again = true;
            return;
        }
        switch.reading = true;
        if switch.info.linear_fdb_cap == 0 {
            // The first answer tells what to write back.
            return;
        }
        self.clear_change(id);
    }

    pub(super) fn clear_change(&mut self, id: NodeId) {
        let Some(switch) = self.topo.node(id).and_then(|n| n.switch.as_ref()) else {
            return;
        };
        let info = SwitchInfo {
            port_state_change: true,
            ..switch.info
        };
        if self.state != SmState::MASTER {
            // Only the master may take the sign away.
            return self.get(Purpose::ClearChange(id), AttrId::SWITCH_INFO, 0);
        }
        self.set(
            Purpose::ClearChange(id),
            AttrId::SWITCH_INFO,
            0,
            &info.emit(),
        );
    }
}
