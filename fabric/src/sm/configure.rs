//! Making the subnet as it shall be: LIDs, forwarding tables (IBA 14.4.3); `ports` and `multicast` have the rest.
//!
//! Everything is a comparison of what a node said last with what is wanted, so that it repeats until they agree, and costs nothing then.

use super::routing::NO_PORT;
use super::smp::Purpose;
use super::topology::{NodeId, PortId};
use super::{Counter, SubnetManager};
use std::collections::BTreeSet;
use std::time::Instant;
use wire::mad::attr::{LinearForwardingTable, PKeyTable, PortInfo, SmState, SwitchInfo};
use wire::mad::{AttrId, MadStatus, Smp};

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
        let empty: BTreeSet<NodeId> = gone
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
                let before = port.said(info);
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
                    port.fruitless = port.fruitless.saturating_add(1);
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
                    port.fruitless = port.fruitless.saturating_add(1);
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
