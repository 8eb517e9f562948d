//! LIDs: a port keeps the one it has, across sweeps, absence and runs.

use super::MoveError;
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

    /// Gives a port another LID; one of an absent port may be taken.
    pub(super) fn move_to(
        &mut self,
        guid: Guid,
        lid: Lid,
        present: impl Fn(Guid) -> bool,
    ) -> Result<(), MoveError> {
        let step = self.step;
        if !lid.is_unicast() || !lid.0.is_multiple_of(step) {
            return Err(MoveError::NotALid { lid, step });
        }
        match self.by_lid.get(&lid) {
            Some(owner) if *owner != guid && present(*owner) => {
                return Err(MoveError::Taken(lid, *owner));
            }
            Some(owner) => {
                self.by_guid.remove(owner);
                self.by_lid.remove(&lid);
            }
            None => {}
        }
        if let Some(old) = self.by_guid.remove(&guid) {
            self.by_lid.remove(&old);
        }
        self.take(guid, lid);
        Ok(())
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
    fn a_port_moves_to_a_lid_that_nobody_present_has() {
        let saved = [(Guid(7), Lid(4)), (Guid(8), Lid(8)), (Guid(9), Lid(12))];
        let mut table = LidTable::new(&saved, 2);
        let not_8 = |guid| guid != Guid(8);
        assert_eq!(
            table.move_to(Guid(7), Lid(12), not_8),
            Err(MoveError::Taken(Lid(12), Guid(9)))
        );
        for lid in [0, 5, 0xc000] {
            let (lid, step) = (Lid(lid), 4);
            let refused = Err(MoveError::NotALid { lid, step });
            assert_eq!(table.move_to(Guid(7), lid, not_8), refused);
        }
        assert_eq!(table.entries(), saved);
        assert_eq!(table.move_to(Guid(7), Lid(8), not_8), Ok(()));
        assert_eq!(table.move_to(Guid(9), Lid(12), not_8), Ok(()), "no move");
        assert_eq!(table.entries(), [(Guid(7), Lid(8)), (Guid(9), Lid(12))]);
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
