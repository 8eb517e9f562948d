//! Ports as they shall be: P_Key tables, PortInfo, and the steps from Init to Active (IBA 14.4.3).

use super::smp::Purpose;
use super::topology::PortId;
use super::{Counter, SubnetManager};
use std::time::Instant;
use wire::mad::AttrId;
use wire::mad::attr::{
    CapabilityMask, LinkWidth, PKeyTable, PortInfo, PortPhysicalState, PortState, SmState,
};
use wire::{PKey, ServiceLevel};

/// Sets without effect on one port between two sweeps.
const MAX_FRUITLESS: u8 = 4;

impl SubnetManager {
    /// The P_Key table that a port shall have: keys stay where they are, if index 0 is not empty then.
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
        let place = |base| table.iter().position(|k| k.base() == base);
        // Users of one partition take what is at index 0 (Linux does): it is not left empty.
        let empty = table.first() == Some(&PKey(0));
        let default = empty.then(|| place(PKey::DEFAULT_FULL.base())).flatten();
        if let Some(first) = index0.and_then(place).or(default) {
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
}
