//! Multicast tables as they shall be (IBA 14.2.5.11).

use super::sa::Change;
use super::smp::Purpose;
use super::topology::NodeId;
use super::{Counter, SubnetManager};
use std::collections::BTreeSet;
use wire::Lid;
use wire::mad::AttrId;
use wire::mad::attr::{MulticastForwardingTable, SmState};

/// A block of the table of a switch, and the position of its port masks.
type Block = (NodeId, u16, u8);

impl SubnetManager {
    /// Programs the multicast tables of the groups that changed; each block once.
    pub(super) fn flush_groups(&mut self) {
        if self.state != SmState::MASTER || self.pruning && !self.smps.mft_settled() {
            return;
        }
        let prune = std::mem::take(&mut self.prune);
        let mut blocks: BTreeSet<Block> = BTreeSet::new();
        for (mlid, change) in self.sa.take_dirty_groups() {
            let members = self.sa.groups().members(&self.topo, mlid, &change);
            let anew = matches!(change, Change::All);
            for switch in self.routing.follow(mlid, anew, members) {
                self.enter(mlid, switch, prune, &mut blocks);
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

    /// Enters a group into the table of a switch, or takes from it only (`prune`); notes the blocks that changed.
    fn enter(&mut self, mlid: Lid, index: usize, prune: bool, blocks: &mut BTreeSet<Block>) {
        let mask = self.routing.mask(mlid, index);
        let id = self.routing.switches()[index];
        let Some(node) = self.topo.node_mut(id) else {
            return;
        };
        let positions = node.ports.len().div_ceil(16);
        let Some(switch) = &mut node.switch else {
            return;
        };
        let slot = mlid.0 - Lid::MULTICAST_BASE.0;
        for (position, mask) in (0u8..).zip(mask).take(positions) {
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
