//! SwitchInfo and the forwarding tables: what only switches have among the attributes (IBA 14.2.5.4, 14.2.5.10, 14.2.5.12).

use super::Switch;
use crate::node::Extra;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use wire::Lid;
use wire::mad::attr::{LinearForwardingTable, MulticastForwardingTable, SwitchInfo};
use wire::mad::{AttrId, MadStatus, Method, Smp};

/// Entry of the linear table for a LID without a way.
pub(super) const NO_PORT: u8 = 255;
/// Unicast LIDs: all there are.
const LINEAR_FDB_CAP: u16 = 0xc000;
/// Multicast LIDs: all there are but the permissive one.
const MULTICAST_FDB_CAP: u16 = 0x3fff;
/// MLIDs in a block.
const BLOCK: usize = 32;

/// A set of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortMask([u64; 4]);

impl PortMask {
    pub(super) fn one(port: u8) -> Self {
        let mut mask = PortMask::default();
        mask.0[usize::from(port / 64)] = 1 << (port % 64);
        mask
    }
    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
    /// The ports in order.
    pub(super) fn ports(self) -> impl Iterator<Item = u8> {
        self.0.into_iter().enumerate().flat_map(|(i, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros();
                // `word & (word - 1)` clears the lowest bit.
                word &= word.checked_sub(1)?;
                Some((i as u32 * 64 + bit) as u8)
            })
        })
    }
    /// The 16 ports of a position, which is at most 15.
    pub(super) fn position(&self, position: usize) -> u16 {
        (self.0[position / 4] >> (position % 4 * 16)) as u16
    }
    pub(super) fn set_position(&mut self, position: usize, mask: u16) {
        let shift = position % 4 * 16;
        let word = &mut self.0[position / 4];
        *word = *word & !(0xffff << shift) | u64::from(mask) << shift;
    }
}

/// The multicast forwarding table: blocks of 32 MLIDs, shared between the snapshots that do not differ in them.
#[derive(Clone)]
pub(super) struct Mft {
    blocks: Vec<Option<Arc<[PortMask; BLOCK]>>>,
    /// MLIDs beyond are outside of the table; 0: none is.
    top: Lid,
    /// Where those go: to the first, and what comes from there to the second.
    default_ports: [u8; 2],
}

impl Default for Mft {
    fn default() -> Self {
        Mft {
            blocks: Vec::new(),
            top: Lid::UNSET,
            default_ports: [NO_PORT; 2],
        }
    }
}

impl Mft {
    /// Ports of a multicast LID for what came in by `ingress` (IBA 18.2.4.3.3).
    pub(super) fn get(&self, mlid: Lid, ingress: u8) -> PortMask {
        if self.top != Lid::UNSET && mlid > self.top {
            let [primary, other] = self.default_ports;
            return match if ingress == primary { other } else { primary } {
                NO_PORT => PortMask::default(),
                port => PortMask::one(port),
            };
        }
        let index = usize::from(mlid.0.wrapping_sub(Lid::MULTICAST_BASE.0));
        self.blocks
            .get(index / BLOCK)
            .and_then(|b| b.as_ref())
            .map(|b| b[index % BLOCK])
            .unwrap_or_default()
    }
}

/// The tables as management sees them; the data plane has snapshots.
pub(super) struct SwitchTables {
    info: SwitchInfo,
}

impl SwitchTables {
    pub(super) fn new() -> Self {
        let info = SwitchInfo {
            linear_fdb_cap: LINEAR_FDB_CAP,
            multicast_fdb_cap: MULTICAST_FDB_CAP,
            partition_enforcement_cap: 32,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: true,
            enhanced_port0: true,
            default_port: NO_PORT,
            default_multicast_primary_port: NO_PORT,
            default_multicast_not_primary_port: NO_PORT,
            ..SwitchInfo::default()
        };
        SwitchTables { info }
    }

    fn switch_info(&mut self, switch: &Switch, smp: &Smp) -> (MadStatus, [u8; 64]) {
        let mut status = MadStatus::OK;
        if smp.header.attr_mod != 0 {
            return (MadStatus::INVALID_FIELD, smp.data);
        }
        if smp.header.method == Method::SET
            && let Some(wanted) = SwitchInfo::parse(&smp.data)
        {
            let top = wanted.multicast_fdb_top;
            // One less than the first MLID: there is no entry at all (IBA 14.2.5.4).
            let is_top = top == 0
                || (Lid::MULTICAST_BASE.0 - 1..Lid::MULTICAST_BASE.0 + MULTICAST_FDB_CAP)
                    .contains(&top);
            if wanted.linear_fdb_top >= LINEAR_FDB_CAP || !is_top {
                status = MadStatus::INVALID_FIELD;
            } else {
                let info = &mut self.info;
                info.linear_fdb_top = wanted.linear_fdb_top;
                info.default_port = wanted.default_port;
                info.default_multicast_primary_port = wanted.default_multicast_primary_port;
                info.default_multicast_not_primary_port = wanted.default_multicast_not_primary_port;
                info.life_time_value = wanted.life_time_value;
                // Writing 1 clears.
                info.port_state_change &= !wanted.port_state_change;
                info.multicast_fdb_top = top;
                switch.linear_fdb_top.store(info.linear_fdb_top, Relaxed);
                switch.mft.store(Arc::new(Mft {
                    top: Lid(top),
                    default_ports: [
                        info.default_multicast_primary_port,
                        info.default_multicast_not_primary_port,
                    ],
                    ..Mft::clone(&switch.mft.load())
                }));
            }
        }
        let mut data = [0; 64];
        data[..SwitchInfo::LEN].copy_from_slice(&self.info.emit());
        (status, data)
    }
}

fn linear(switch: &Switch, smp: &Smp) -> (MadStatus, [u8; 64]) {
    let first = smp.header.attr_mod as usize * 64;
    if smp.header.attr_mod >= u32::from(LINEAR_FDB_CAP) / 64 {
        return (MadStatus::INVALID_FIELD, smp.data);
    }
    if smp.header.method == Method::SET {
        let mut table = Vec::clone(&switch.lft.load());
        if table.len() < first + 64 {
            table.resize(first + 64, NO_PORT);
        }
        table[first..first + 64].copy_from_slice(&smp.data);
        switch.lft.store(Arc::new(table));
    }
    let table = switch.lft.load();
    let port = std::array::from_fn(|i| table.get(first + i).copied().unwrap_or(NO_PORT));
    (MadStatus::OK, LinearForwardingTable { port }.emit())
}

fn multicast(switch: &Switch, smp: &Smp) -> (MadStatus, [u8; 64]) {
    let modifier = smp.header.attr_mod;
    let (block, position) = ((modifier & 0x1ff) as usize, (modifier >> 28) as usize);
    if modifier & 0x0fff_fe00 != 0 {
        return (MadStatus::INVALID_FIELD, smp.data);
    }
    if smp.header.method == Method::SET
        && let Some(wanted) = MulticastForwardingTable::parse(&smp.data)
    {
        let mut table = Mft::clone(&switch.mft.load());
        if table.blocks.len() <= block {
            table.blocks.resize(block + 1, None);
        }
        let masks = Arc::make_mut(table.blocks[block].get_or_insert_default());
        masks
            .iter_mut()
            .zip(wanted.port_mask)
            .for_each(|(m, w)| m.set_position(position, w));
        switch.mft.store(Arc::new(table));
    }
    let table = switch.mft.load();
    let masks = table.blocks.get(block).and_then(|b| b.as_ref());
    let port_mask = std::array::from_fn(|i| masks.map_or(0, |m| m[i].position(position)));
    (MadStatus::OK, MulticastForwardingTable { port_mask }.emit())
}

impl Extra<Switch> for SwitchTables {
    fn process(&mut self, switch: &Switch, smp: &Smp) -> Option<(MadStatus, [u8; 64])> {
        Some(match smp.header.attr_id {
            AttrId::SWITCH_INFO => self.switch_info(switch, smp),
            AttrId::LINEAR_FORWARDING_TABLE => linear(switch, smp),
            AttrId::MULTICAST_FORWARDING_TABLE => multicast(switch, smp),
            _ => return None,
        })
    }

    fn link_state_changed(&mut self) {
        self.info.port_state_change = true;
    }
}
