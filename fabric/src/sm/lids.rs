//! LIDs: a port keeps the one it has, across sweeps, absence and runs.

use std::collections::HashMap;
use wire::{Guid, Lid};

/// Which port has which LID, also of ports that are not there now.
#[derive(Debug, Default)]
pub(super) struct LidTable {
    by_guid: HashMap<Guid, Lid>,
    by_lid: HashMap<Lid, Guid>,
    next: u16,
    /// Highest LID given.
    top: u16,
    /// Base LIDs are multiples of this (2^LMC).
    step: u16,
}

const LAST: u16 = 0xbfff;

impl LidTable {
    pub(super) fn new(saved: &[(Guid, Lid)], lmc: u8) -> Self {
        let mut table = LidTable {
            step: 1 << lmc,
            ..LidTable::default()
        };
        for &(guid, lid) in saved {
            table.take(guid, lid);
        }
        table
    }

    fn take(&mut self, guid: Guid, lid: Lid) -> bool {
        let free = lid.is_unicast()
            && lid.0.is_multiple_of(self.step)
            && !self.by_lid.contains_key(&lid)
            && !self.by_guid.contains_key(&guid);
        if free {
            self.by_guid.insert(guid, lid);
            self.by_lid.insert(lid, guid);
            self.top = self.top.max(lid.0 + self.step - 1);
        }
        free
    }

    /// The LID of a port: the one it had, else the one that it says it has, else a free one. `present` tells whether a port is there; LIDs of
    /// absent ones are given away when no other is left.
    pub(super) fn assign(
        &mut self,
        guid: Guid,
        current: Lid,
        present: impl Fn(Guid) -> bool,
    ) -> Option<Lid> {
        if let Some(&lid) = self.by_guid.get(&guid) {
            return Some(lid);
        }
        if self.take(guid, current) {
            return Some(current);
        }
        let places = LAST / self.step;
        for _ in 0..places {
            self.next = self.next % places + 1;
            let lid = Lid(self.next * self.step);
            if self.take(guid, lid) {
                return Some(lid);
            }
        }
        let absent = self
            .by_guid
            .keys()
            .copied()
            .filter(|g| !present(*g))
            .min()?;
        let lid = self.by_guid.remove(&absent)?;
        self.by_lid.remove(&lid);
        self.take(guid, lid).then_some(lid)
    }

    /// The highest LID ever given.
    pub(super) fn top(&self) -> u16 {
        self.top
    }

    pub(super) fn entries(&self) -> Vec<(Guid, Lid)> {
        let mut entries: Vec<_> = self.by_guid.iter().map(|(g, l)| (*g, *l)).collect();
        entries.sort_by_key(|(_, lid)| *lid);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_keeps_its_lid() {
        let mut table = LidTable::new(
            &[(Guid(7), Lid(5)), (Guid(8), Lid(5)), (Guid(9), Lid(0xc000))],
            0,
        );
        assert_eq!(
            table.assign(Guid(7), Lid(9), |_| true),
            Some(Lid(5)),
            "the saved one"
        );
        assert_eq!(
            table.assign(Guid(1), Lid(5), |_| true),
            Some(Lid(1)),
            "another's is not taken"
        );
        assert_eq!(
            table.assign(Guid(2), Lid(40), |_| true),
            Some(Lid(40)),
            "the one it has"
        );
        assert_eq!(table.assign(Guid(3), Lid(0), |_| true), Some(Lid(2)));
        assert_eq!(table.entries().len(), 4);
    }

    #[test]
    fn a_full_table_gives_away_only_what_is_absent() {
        let mut table = LidTable::new(&[], 0);
        for guid in 1..=u64::from(LAST) {
            assert!(table.assign(Guid(guid), Lid(0), |_| true).is_some());
        }
        assert_eq!(table.assign(Guid(0x10_0000), Lid(0), |_| true), None);
        assert_eq!(
            table.assign(Guid(0x10_0000), Lid(0), |g| g != Guid(77)),
            Some(Lid(77))
        );
    }
}
