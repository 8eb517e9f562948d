//! What is there, by what the nodes answered to `sweep`.
//!
//! Each answer changes the topology at once; nothing waits for a sweep to end. When no request is on the way for the first time,
//! [`SubnetManager::settle`] puts to use what was found, and late answers of slow nodes are put to use when they come. So a dead node delays
//! nobody.

use super::smp::Purpose;
use super::topology::{NodeId, PortId};
use super::{Counter, SubnetManager};
use std::time::Instant;
use wire::mad::attr::{
    CapabilityMask, GuidInfo, NodeDescription, NodeInfo, NodeType, PKeyTable, PortInfo, PortState,
    SmInfo, SwitchInfo,
};
use wire::mad::{AttrId, Smp};

impl SubnetManager {
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
                let Some(info) = SmInfo::parse(&smp.data) else {
                    return;
                };
                let is_ours = self.is_ours(&info);
                if !is_ours {
                    self.counters.add(Counter::SmBadKey);
                    tracing::warn!(guid = %info.guid, "another subnet manager has another SM_Key; it is ignored");
                }
                if let Some(port) = self.topo.port_mut(port) {
                    port.is_sm = Some(info).filter(|_| is_ours);
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
        let old = port.said(info);
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
}
