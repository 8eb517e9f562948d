//! Sweeps (IBA 14.4.2 to 14.4.4): finding out what is there.
//!
//! Each answer changes the topology at once; nothing waits for a sweep to end. When no request is on the way for the first time,
//! [`SubnetManager::settle`] puts to use what was found, and late answers of slow nodes are put to use when they come. So a dead node delays
//! nobody.

use super::smp::{Purpose, Transaction};
use super::topology::{NodeId, PortId};
use super::{Counter, SubnetManager};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use wire::mad::attr::{
    CapabilityMask, GuidInfo, NodeDescription, NodeInfo, NodeType, Notice, PKeyTable, PortInfo,
    PortState, SmState,
};
use wire::mad::attr::{SmInfo, SwitchInfo, TrapNumber};
use wire::mad::{AttrId, Smp};

/// Links behind which nobody answered are tried again this often, if light sweeps are rarer.
const SILENT_RETRY: Duration = Duration::from_secs(2);
/// Traps of strangers cause light sweeps at least this far apart.
const STRANGER_PAUSE: Duration = Duration::from_secs(1);
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

    fn schedule_sweep(&mut self, now: Instant) {
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

    fn probe(&mut self, port: PortId) {
        self.get(Purpose::Probe(Some(port)), AttrId::NODE_INFO, 0);
    }

    /// Reads all of a node.
    fn visit(&mut self, id: NodeId) {
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

    fn visit_end_port(&mut self, port: PortId) {
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

    fn clear_change(&mut self, id: NodeId) {
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

    /// One answer to a discovery request.
    pub(super) fn discovered(&mut self, now: Instant, purpose: Purpose, smp: &Smp) {
        match purpose {
            Purpose::Probe(from) => {
                if let Some(info) = NodeInfo::parse(&smp.data) {
                    self.probed(now, from, info);
                }
            }
            Purpose::NodeDescription(id) => {
                if let (Some(node), Some(text)) =
                    (self.topo.node_mut(id), NodeDescription::parse(&smp.data))
                {
                    node.description = text;
                }
            }
            Purpose::SwitchInfo(id) => self.switch_info(id, smp),
            Purpose::ClearChange(id) => {
                let Some(node) = self.topo.node_mut(id) else {
                    return;
                };
                let ports = node.info.num_ports;
                if let Some(switch) = &mut node.switch {
                    switch.reading = false;
                }
                for port in 0..=ports {
                    self.get(
                        Purpose::PortInfo((id, port)),
                        AttrId::PORT_INFO,
                        u32::from(port),
                    );
                }
                if let Some(switch) = self.topo.node_mut(id).and_then(|n| n.switch.as_mut())
                    && std::mem::take(&mut switch.again)
                {
                    self.read_ports(id);
                }
            }
            Purpose::PortInfo(port) => {
                if let Some(info) = PortInfo::parse(&smp.data) {
                    self.port_info(now, port, info);
                }
            }
            Purpose::PKeys(port, block) => self.pkeys_read(port, block, smp),
            Purpose::Guids(port) => {
                if let (Some(port), Some(guids)) =
                    (self.topo.port_mut(port), GuidInfo::parse(&smp.data))
                {
                    port.guids = guids.guid;
                }
            }
            Purpose::AskSm(port) => {
                if let (Some(port), Some(info)) =
                    (self.topo.port_mut(port), SmInfo::parse(&smp.data))
                {
                    port.is_sm = Some(info);
                    self.dirty = true;
                }
            }
            _ => {}
        }
    }

    fn probed(&mut self, now: Instant, from: Option<PortId>, info: NodeInfo) {
        let is_switch = info.node_type == NodeType::SWITCH;
        let peer_port = info.local_port_num;
        if info.node_guid.0 == 0
            || (!is_switch && !(1..=info.num_ports).contains(&peer_port))
            || peer_port > info.num_ports
        {
            self.counters.add(Counter::BadSmps);
            return self.nobody_at(now, from);
        }
        if let (Some(from), Some(id)) = (from, self.topo.by_node_guid(info.node_guid)) {
            // The other end seems to be in two places: a cable was moved, or two nodes have one GUID. The old place must fall silent first.
            let old = self.topo.port((id, peer_port)).and_then(|p| p.link);
            if let Some(old) =
                old.filter(|old| *old != from && self.topo.port(*old).is_some_and(|p| p.is_up()))
            {
                self.counters.add(Counter::DuplicateGuids);
                self.get(Purpose::PortInfo(old), AttrId::PORT_INFO, u32::from(old.1));
                return self.nobody_at(now, Some(from));
            }
        }
        let owner = self
            .topo
            .by_port_guid(info.port_guid)
            .filter(|&(id, port)| {
                let same = self
                    .topo
                    .node(id)
                    .is_some_and(|n| n.guid() == info.node_guid)
                    && port == if is_switch { 0 } else { peer_port };
                !same
                    && (self.topo.own == Some((id, port))
                        || self.topo.port((id, port)).is_some_and(|p| p.link.is_some()))
            });
        if owner.is_some() {
            self.counters.add(Counter::DuplicateGuids);
            return self.nobody_at(now, from);
        }
        let (id, is_new) = self.topo.add(info);
        let peer = (id, peer_port);
        let end_port = if is_switch { (id, 0) } else { peer };
        let first_look = self.topo.port(end_port).is_some_and(|p| p.info.is_none());
        let linked = match from {
            None => {
                let moved = self.topo.own != Some(end_port);
                self.topo.own = Some(end_port);
                moved
            }
            Some(from) => self.topo.connect(from, peer),
        };
        if linked {
            self.dirty = true;
            // Routes to what is behind the link.
            self.note_path(from, id);
        }
        match (is_switch, is_new || first_look) {
            (true, true) => self.visit(id),
            (true, false) if linked && from.is_some() => self.get(
                Purpose::PortInfo(peer),
                AttrId::PORT_INFO,
                u32::from(peer_port),
            ),
            (true, false) => {}
            (false, true) => self.visit_end_port(end_port),
            (false, false) => self.get(
                Purpose::PortInfo(end_port),
                AttrId::PORT_INFO,
                u32::from(peer_port),
            ),
        }
    }

    /// A route to a node that was just found, until the next walk finds the shortest.
    fn note_path(&mut self, from: Option<PortId>, id: NodeId) {
        let path = from.and_then(|from| Self::route(&self.topo, &Purpose::Probe(Some(from))));
        if let (Some(path), Some(node)) = (path, self.topo.node_mut(id))
            && node.path.is_empty()
        {
            node.path = path;
        }
    }

    /// Nobody, or nobody of use, answered behind a port.
    pub(super) fn nobody_at(&mut self, now: Instant, from: Option<PortId>) {
        let Some(from) = from else { return };
        self.dirty |= self.topo.disconnect(from);
        if let Some(port) = self.topo.port_mut(from) {
            port.silent = true;
        }
        self.schedule_retry(now);
    }

    fn switch_info(&mut self, id: NodeId, smp: &Smp) {
        let Some(info) = SwitchInfo::parse(&smp.data) else {
            return;
        };
        let Some(switch) = self.topo.node_mut(id).and_then(|n| n.switch.as_mut()) else {
            return;
        };
        let old = std::mem::replace(&mut switch.info, info);
        let first = old.linear_fdb_cap == 0;
        if !first && info.linear_fdb_top != old.linear_fdb_top && !switch.busy {
            self.counters.add(Counter::Resets);
            self.switch_reset(id);
        }
        let Some(switch) = self.topo.node_mut(id).and_then(|n| n.switch.as_mut()) else {
            return;
        };
        if info.linear_fdb_cap == 0 {
            // Without a linear table it cannot be routed through.
            self.counters.add(Counter::BadSmps);
        } else if first && switch.reading {
            self.clear_change(id);
        } else if info.port_state_change {
            self.read_ports(id);
        }
    }

    /// A switch lost its tables.
    fn switch_reset(&mut self, id: NodeId) {
        if let Some(switch) = self.topo.node_mut(id).and_then(|n| n.switch.as_mut()) {
            switch.lft_sent.clear();
            self.resend_mft.insert(id);
            self.dirty = true;
        }
        self.read_ports(id);
    }

    pub(super) fn port_info(&mut self, now: Instant, id: PortId, info: PortInfo) {
        let verify = self.verify.contains(&id.0);
        let Some(port) = self.topo.port_mut(id) else {
            return;
        };
        let old = port.info.replace(info);
        let (lid, link, announced) = (port.lid, port.link, port.announced);
        self.careful |= self.first_look && id.1 != 0 && info.port_state == PortState::ACTIVE;
        let is_end_port = port.guid.0 != 0;
        let changed = old.is_none_or(|o| {
            o.port_state != info.port_state || o.lid != info.lid || o.mtu_cap != info.mtu_cap
        });
        self.dirty |= changed || verify;
        let was = old.map_or(PortState::NO_CHANGE, |o| o.port_state);
        let fell = was >= PortState::ARMED && info.port_state < PortState::ARMED;
        let is_switch = self.topo.node(id.0).is_some_and(|n| n.switch.is_some());
        if is_end_port {
            let lost_lid = lid.is_unicast() && old.is_some_and(|o| o.lid == lid) && info.lid.0 == 0;
            if is_switch {
                if lost_lid {
                    self.counters.add(Counter::Resets);
                    self.switch_reset(id.0);
                }
            } else if announced && (info.port_state <= PortState::INIT || lost_lid) {
                // Found in Init though it was Active: the node started anew, and nothing that it registered is worth anything.
                self.counters.add(Counter::Resets);
                self.port_reset(now, id);
                self.visit_end_port(id);
            }
            let is_sm = info.capability_mask.contains(CapabilityMask::IS_SM);
            if let Some(port) = self.topo.port_mut(id).filter(|_| !is_sm) {
                port.is_sm = None;
            }
            if is_sm && self.topo.own != Some(id) {
                self.get(Purpose::AskSm(id), AttrId::SM_INFO, 0);
            }
        }
        // What is at the other end? Only switches and the own port are asked to look.
        if (is_switch && id.1 != 0) || self.topo.own == Some(id) && !is_switch {
            if info.port_state < PortState::INIT {
                if self.topo.disconnect(id) {
                    self.dirty = true;
                    // What is under way by that link goes another way at once.
                    self.topo.walk();
                    let topo = &self.topo;
                    self.smps
                        .reroute(&mut self.out_smp, |purpose| Self::route(topo, purpose));
                    // Whoever was here may be behind a link that was thought a double.
                    self.next_retry = Some(now);
                }
                if let Some(port) = self.topo.port_mut(id) {
                    port.silent = false;
                }
            } else if link.is_none() || verify || fell {
                self.probe(id);
            }
        }
    }

    fn pkeys_read(&mut self, port: PortId, block: u16, smp: &Smp) {
        let Some(table) = PKeyTable::parse(&smp.data) else {
            return;
        };
        let capacity = self
            .topo
            .node(port.0)
            .map_or(0, |n| usize::from(n.info.partition_cap));
        let Some(port) = self.topo.port_mut(port) else {
            return;
        };
        port.pkeys.resize(capacity, wire::PKey(0));
        let start = usize::from(block) * 32;
        for (slot, key) in port.pkeys.iter_mut().skip(start).zip(table.p_key) {
            if *slot != key {
                *slot = key;
                self.dirty = true;
            }
        }
    }

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
        self.smps.retain_nodes(&HashSet::from([id]));
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
