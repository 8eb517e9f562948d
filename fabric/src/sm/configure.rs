//! Making the subnet as it shall be: LIDs, P_Key tables, forwarding tables, port states (IBA 14.4.3).
//!
//! Everything is a comparison of what a node said last with what is wanted, so that it repeats until they agree, and costs nothing then.

use super::routing::NO_PORT;
use super::smp::Purpose;
use super::topology::{NodeId, PortId};
use super::{Counter, SubnetManager};
use std::collections::{BTreeSet, HashSet};
use std::time::Instant;
use wire::mad::attr::{
    CapabilityMask, LinearForwardingTable, LinkWidth, MulticastForwardingTable, PKeyTable,
    PortInfo, PortPhysicalState,
};
use wire::mad::attr::{PortState, SmState, SwitchInfo};
use wire::mad::{AttrId, MadStatus, Smp};
use wire::{Lid, PKey, ServiceLevel};

/// Sets without effect on one port between two sweeps.
const MAX_FRUITLESS: u8 = 4;

impl SubnetManager {
    /// Puts to use what was found.
    pub(super) fn settle(&mut self, now: Instant) {
        self.dirty = false;
        self.verify.clear();
        self.remove_unreachable(now);
        self.elect(now);
        self.schedule_retry(now);
        if self.state != SmState::MASTER {
            return;
        }
        self.assign_lids();
        if self.routing.update(&mut self.topo, &self.config.routing) {
            self.sa.all_groups_dirty();
            self.prune = true;
        }
        let caps = self
            .topo
            .nodes
            .values()
            .filter_map(|n| Some(n.switch.as_ref()?.info.multicast_fdb_cap))
            .filter(|cap| *cap > 0);
        self.sa.limit_mlids(caps.min());
        let switches: Vec<NodeId> = self
            .topo
            .nodes
            .iter()
            .filter(|(_, n)| n.switch.is_some())
            .map(|(id, _)| id)
            .collect();
        for id in switches {
            self.program_switch(id);
        }
        let ports: Vec<PortId> = self
            .topo
            .nodes
            .iter()
            .flat_map(|(id, n)| (0..n.ports.len()).map(move |p| (id, p as u8)))
            .collect();
        for port in ports {
            self.advance(now, port);
        }
    }

    fn remove_unreachable(&mut self, now: Instant) {
        let gone = self.topo.walk();
        if gone.is_empty() {
            return;
        }
        for &port in &gone {
            self.port_gone(now, port);
            self.topo.forget_port(port);
        }
        let empty: HashSet<NodeId> = gone
            .iter()
            .map(|p| p.0)
            .filter(|id| {
                self.topo.node(*id).is_some_and(|n| {
                    n.end_ports()
                        .all(|p| self.topo.port((*id, p)).is_none_or(|p| p.guid.0 == 0))
                })
            })
            .collect();
        for &id in &empty {
            self.topo.forget_node(id);
        }
        self.smps.retain_nodes(&empty);
        // Switches that are gone may have been on the way to others.
        self.topo.walk();
    }

    fn assign_lids(&mut self) {
        let mut moved = false;
        let mut ports: Vec<PortId> = self
            .topo
            .end_ports()
            .filter(|(_, p)| p.info.is_some() && !p.lid.is_unicast())
            .map(|(id, _)| id)
            .collect();
        // The own port first, so that a fresh subnet has its manager at LID 1.
        ports.sort_by_key(|id| self.topo.own != Some(*id));
        for id in ports {
            let Some((guid, current)) =
                self.topo.port(id).and_then(|p| Some((p.guid, p.info?.lid)))
            else {
                continue;
            };
            let topo = &self.topo;
            let Some(lid) = self
                .lids
                .assign(guid, current, |g| topo.by_port_guid(g).is_some())
            else {
                self.counters.add(Counter::OutOfLids);
                continue;
            };
            moved |= current.is_unicast() && current != lid;
            self.topo.set_lid(id, lid);
            if let Some(port) = self.topo.port_mut(id) {
                port.reregister = true;
            }
        }
        if moved {
            // Peers keep paths to the old LID until they are told.
            self.reregister_all();
        }
    }

    /// The P_Key table that a port shall have: keys stay where they are.
    fn wanted_pkeys(&self, id: PortId) -> Option<Vec<PKey>> {
        let port = self.topo.port(id)?;
        let end_port = self.topo.end_port(id)?;
        if let Some(keys) = self.config.pkey_tables.get(&end_port.guid) {
            if keys.len() > port.pkeys.len() {
                self.counters.add(Counter::PKeyTablesFull);
            }
            let gap = std::iter::repeat(&PKey(0));
            return Some(
                keys.iter()
                    .chain(gap)
                    .take(port.pkeys.len())
                    .copied()
                    .collect(),
            );
        }
        let partitions = &self.config.partitions;
        let mut keys: Vec<PKey> = partitions
            .iter()
            .flat_map(|p| p.keys_of(&end_port))
            .collect();
        match keys.iter_mut().find(|k| k.base() == 0x7fff) {
            Some(key) if end_port.own => *key = PKey::DEFAULT_FULL,
            Some(_) => {}
            None => keys.push(if end_port.own {
                PKey::DEFAULT_FULL
            } else {
                PKey::DEFAULT_LIMITED
            }),
        }
        let index0 = partitions.iter().find(|p| p.index0).map(|p| p.pkey.base());
        let mut table = port.pkeys.clone();
        for slot in &mut table {
            let place = keys.iter().position(|k| *k == *slot);
            let place = place.or_else(|| keys.iter().position(|k| k.base() == slot.base()));
            *slot = place.map_or(PKey(0), |at| keys.remove(at));
        }
        for key in keys {
            match table.iter_mut().find(|k| **k == PKey(0)) {
                Some(slot) => *slot = key,
                None => self.counters.add(Counter::PKeyTablesFull),
            }
        }
        if let Some(first) = table.iter().position(|k| Some(k.base()) == index0)
            && Some(table[0].base()) != index0
        {
            table.swap(0, first);
        }
        Some(table)
    }

    /// Sets the blocks of the P_Key table that differ; true if none does.
    fn set_pkeys(&mut self, id: PortId) -> bool {
        let (Some(wanted), Some(port)) = (self.wanted_pkeys(id), self.topo.port(id)) else {
            return false;
        };
        if port.pkeys.is_empty() || wanted == port.pkeys {
            return !port.pkeys.is_empty()
                || self
                    .topo
                    .node(id.0)
                    .is_none_or(|n| n.info.partition_cap == 0);
        }
        let blocks: Vec<(u16, PKeyTable)> = (0u16..)
            .zip(wanted.chunks(32).zip(port.pkeys.chunks(32)))
            .filter(|(_, (new, old))| new != old)
            .map(|(block, (new, _))| {
                let mut table = PKeyTable::default();
                table.p_key[..new.len()].copy_from_slice(new);
                (block, table)
            })
            .collect();
        if let Some(port) = self.topo.port_mut(id) {
            port.busy = true;
        }
        for (block, table) in blocks {
            self.set(
                Purpose::SetPKeys(id, block),
                AttrId::P_KEY_TABLE,
                u32::from(block),
                &table.emit(),
            );
        }
        false
    }

    /// Takes a port one step nearer to what it shall be, if it is not there.
    pub(super) fn advance(&mut self, now: Instant, id: PortId) {
        if self.state != SmState::MASTER {
            return;
        }
        let Some(port) = self.topo.port(id) else {
            return;
        };
        let Some(actual) = port.info.filter(|_| !port.busy) else {
            return;
        };
        let is_end_port = port.guid.0 != 0;
        if port.fruitless >= MAX_FRUITLESS || (is_end_port && !port.lid.is_unicast()) {
            return;
        }
        let pkeys_ready = !is_end_port || self.set_pkeys(id);
        let Some(port) = self.topo.port(id).filter(|p| !p.busy) else {
            return;
        };
        let peer = port.link.and_then(|l| self.topo.port(l));
        let is_management = is_end_port && self.topo.node(id.0).is_some_and(|n| n.switch.is_some());
        let mut wanted = actual;
        wanted.port_state = PortState::NO_CHANGE;
        if is_end_port {
            wanted.lid = port.lid;
            wanted.lmc = self.topo.lmc_of(id);
            wanted.master_sm_lid = self.topo.own_lid();
            wanted.master_sm_sl = ServiceLevel(0);
            wanted.gid_prefix = self.config.subnet_prefix;
            wanted.subnet_timeout = self.config.subnet_timeout;
            wanted.m_key = self.config.m_key.key;
            wanted.m_key_protect_bits = self.config.m_key.protect;
            wanted.m_key_lease_period = self.config.m_key.lease;
        }
        if let Some(peer) = peer
            .and_then(|p| p.info)
            .filter(|_| actual.port_state == PortState::INIT)
        {
            wanted.neighbor_mtu = actual.mtu_cap.min(peer.mtu_cap);
            wanted.operational_vls = actual.vl_cap.min(peer.vl_cap).max(1);
            wanted.port_state = PortState::ARMED;
        }
        if is_management && actual.port_state == PortState::INIT {
            // An enhanced port 0 has states too, but no link to wait for (IBA 18.2.4.1).
            wanted.port_state = PortState::ARMED;
        }
        let routed = self.smps.lft_settled();
        let mut waits = false;
        if actual.port_state == PortState::ARMED {
            let both = is_management || peer.is_some_and(|p| p.state() >= PortState::ARMED);
            if both && pkeys_ready && routed {
                wanted.port_state = PortState::ACTIVE;
            }
            waits = both && !routed;
        }
        if waits {
            self.armed.insert(id);
        }
        let becomes_active = is_management
            || actual.port_state == PortState::ACTIVE
            || wanted.port_state == PortState::ACTIVE;
        // Clients that know another SM must come to this one.
        let new_sm = is_end_port
            && actual.master_sm_lid.is_unicast()
            && actual.master_sm_lid != self.topo.own_lid();
        let reregister = (port.reregister || new_sm)
            && becomes_active
            && pkeys_ready
            && port.has(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED);
        let settled = PortInfo {
            port_state: PortState::NO_CHANGE,
            client_reregister: false,
            ..actual
        };
        wanted.client_reregister = reregister;
        if wanted == settled {
            let announce = is_end_port
                && !port.announced
                && pkeys_ready
                && (is_management || actual.port_state == PortState::ACTIVE);
            if announce && let Some(port) = self.topo.port_mut(id) {
                port.announced = true;
                port.reregister = false;
                self.port_up(now, id);
            }
            return;
        }
        // No change of what a manager sets only on purpose (IBA 14.2.5.6: zero is "no change").
        wanted.port_physical_state = PortPhysicalState::NO_CHANGE;
        wanted.link_down_default_state = 0;
        wanted.link_width_enabled = LinkWidth(0);
        wanted.link_speed_enabled = 0;
        wanted.link_speed_ext_enabled = 0;
        if let Some(port) = self.topo.port_mut(id) {
            port.busy = true;
        }
        self.set(
            Purpose::SetPort(id, Box::new(wanted)),
            AttrId::PORT_INFO,
            u32::from(id.1),
            &wanted.emit(),
        );
    }

    /// Ports that waited for the forwarding tables.
    pub(super) fn advance_armed(&mut self, now: Instant) {
        if self.smps.lft_settled() {
            for id in std::mem::take(&mut self.armed) {
                self.advance(now, id);
            }
        }
    }

    /// Sends what differs of a switch's own data and forwarding table.
    fn program_switch(&mut self, id: NodeId) {
        let top = self.lids.top();
        let Some(switch) = self
            .topo
            .node_mut(id)
            .and_then(|n| n.switch.as_mut())
            .filter(|s| s.info.linear_fdb_cap > 0)
        else {
            return;
        };
        if self.resend_mft.remove(&id) {
            switch.mft.clear();
            self.sa.all_groups_dirty();
        }
        let top = top.min(switch.info.linear_fdb_cap.saturating_sub(1));
        let wanted = SwitchInfo {
            linear_fdb_top: top,
            life_time_value: self.config.packet_life_time,
            port_state_change: false,
            ..switch.info
        };
        let program = (!switch.busy
            && wanted
                != SwitchInfo {
                    port_state_change: false,
                    ..switch.info
                })
        .then_some(wanted);
        switch.busy |= program.is_some();
        let blocks = usize::from(top) / 64 + 1;
        switch
            .lft
            .resize(switch.lft.len().max(blocks * 64), NO_PORT);
        switch
            .lft_sent
            .resize(switch.lft_sent.len().max(blocks), None);
        let mut changed = Vec::new();
        for (block, (wanted, sent)) in (0u16..).zip(
            switch
                .lft
                .as_chunks::<64>()
                .0
                .iter()
                .zip(&mut switch.lft_sent),
        ) {
            if sent.as_ref() != Some(wanted) {
                *sent = Some(*wanted);
                changed.push((block, *wanted));
            }
        }
        if let Some(info) = program {
            self.set(
                Purpose::SetSwitchInfo(id),
                AttrId::SWITCH_INFO,
                0,
                &info.emit(),
            );
        }
        for (block, port) in changed {
            self.counters.add(Counter::LftBlocks);
            self.set(
                Purpose::SetLft(id, block),
                AttrId::LINEAR_FORWARDING_TABLE,
                u32::from(block),
                &LinearForwardingTable { port }.emit(),
            );
        }
    }

    /// Programs the multicast tables of the groups that changed; each block once.
    pub(super) fn flush_groups(&mut self) {
        if self.state != SmState::MASTER || self.pruning && !self.smps.mft_settled() {
            return;
        }
        let prune = std::mem::take(&mut self.prune);
        let mut blocks: BTreeSet<(NodeId, u16, u8)> = BTreeSet::new();
        for (mlid, receivers, senders) in self.sa.take_dirty_groups(&self.topo) {
            let tree = self.routing.tree(&receivers, &senders);
            let slot = mlid.0 - Lid::MULTICAST_BASE.0;
            for (ix, &id) in self.routing.switches().iter().enumerate() {
                let Some(node) = self.topo.node_mut(id) else {
                    continue;
                };
                let ports = node.ports.len();
                let Some(switch) = &mut node.switch else {
                    continue;
                };
                let mask = tree.get(&ix).copied().unwrap_or_default();
                for (position, mask) in (0u8..).zip(mask).take(ports.div_ceil(16)) {
                    let key = (slot / 32, position);
                    let entry = usize::from(slot % 32);
                    let old = switch.mft.get(&key).map(|b| b[entry]);
                    let kept = old.unwrap_or(0);
                    let mask = if prune { mask & kept } else { mask };
                    if mask == kept && (prune || old.is_some()) {
                        continue;
                    }
                    switch.mft.entry(key).or_insert([0; 32])[entry] = mask;
                    blocks.insert((id, key.0, position));
                }
            }
        }
        self.pruning = prune && !blocks.is_empty();
        if prune {
            self.sa.all_groups_dirty();
            if blocks.is_empty() {
                return self.flush_groups();
            }
        }
        for (id, block, position) in blocks {
            let Some(port_mask) = self
                .topo
                .node(id)
                .and_then(|n| n.switch.as_ref()?.mft.get(&(block, position)))
                .copied()
            else {
                continue;
            };
            self.counters.add(Counter::MftBlocks);
            let modifier = u32::from(position) << 28 | u32::from(block);
            let table = MulticastForwardingTable { port_mask }.emit();
            self.set(
                Purpose::SetMft(id, block, position),
                AttrId::MULTICAST_FORWARDING_TABLE,
                modifier,
                &table,
            );
        }
    }

    /// The answer to a Set.
    pub(super) fn configured(&mut self, now: Instant, purpose: Purpose, smp: &Smp) {
        let ok = smp.status() == MadStatus::OK;
        match purpose {
            Purpose::SetPort(id, asked) => {
                let Some(port) = self.topo.port_mut(id) else {
                    return;
                };
                port.busy = false;
                let Some(info) = PortInfo::parse(&smp.data) else {
                    return;
                };
                let before = port.info.replace(info);
                let progress = before.is_none_or(|b| {
                    PortInfo {
                        client_reregister: false,
                        ..b
                    } != PortInfo {
                        client_reregister: false,
                        ..info
                    }
                });
                if ok && asked.client_reregister {
                    port.reregister = false;
                    port.fruitless = 0;
                } else if ok && progress {
                    port.fruitless = 0;
                } else {
                    port.fruitless += 1;
                }
                let link = port.link;
                let old = before.map(|b| b.lid).filter(|lid| lid.is_unicast());
                if let Some(old) = old.filter(|lid| *lid != info.lid)
                    && let Some(owner) = self.topo.by_lid(old).filter(|owner| owner.1 == 0)
                    && let Some(switch) = self.topo.port(owner)
                {
                    // Under the LID that another manager gave it, the port may have subscribed in the name of the switch that has it here.
                    self.sa.drop_subscriptions(old, switch.guid);
                }
                let manager = |i: PortInfo| (i.lid, i.master_sm_lid);
                if id.1 == 0 && before.is_some_and(|b| manager(b) != manager(info)) {
                    // From now on the switch can send traps here. Of what changed since its ports were read it could tell nobody.
                    self.get(Purpose::SwitchInfo(id.0), AttrId::SWITCH_INFO, 0);
                }
                self.advance(now, id);
                if let Some(peer) = link {
                    self.advance(now, peer);
                }
            }
            Purpose::SetPKeys(id, block) => {
                let Some(port) = self.topo.port_mut(id) else {
                    return;
                };
                port.busy = false;
                if let Some(table) = PKeyTable::parse(&smp.data).filter(|_| ok) {
                    let start = usize::from(block) * 32;
                    port.pkeys
                        .iter_mut()
                        .skip(start)
                        .zip(table.p_key)
                        .for_each(|(slot, key)| *slot = key);
                } else {
                    port.fruitless += 1;
                }
                self.advance(now, id);
            }
            Purpose::SetSwitchInfo(id) => {
                let Some(switch) = self.topo.node_mut(id).and_then(|n| n.switch.as_mut()) else {
                    return;
                };
                switch.busy = false;
                if let Some(info) = SwitchInfo::parse(&smp.data).filter(|_| ok) {
                    let top = std::mem::replace(&mut switch.info, info).linear_fdb_top;
                    // LIDs were assigned meanwhile.
                    self.dirty |=
                        info.linear_fdb_top != top && self.lids.top() != info.linear_fdb_top;
                }
            }
            Purpose::SetLft(id, block) => {
                if let Some(switch) = self
                    .topo
                    .node_mut(id)
                    .and_then(|n| n.switch.as_mut())
                    .filter(|_| !ok)
                    && let Some(sent) = switch.lft_sent.get_mut(usize::from(block))
                {
                    // Again with the next sweep.
                    *sent = None;
                }
            }
            Purpose::SetMft(id, ..) if !ok => {
                self.resend_mft.insert(id);
            }
            Purpose::HandOver(port) if ok => self.handed_over(now, port),
            _ => {}
        }
    }
}
