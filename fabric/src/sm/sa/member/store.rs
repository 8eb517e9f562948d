//! All groups: their multicast LIDs, who is in which, and what is to be told and programmed of it.

use super::super::super::config::{GroupParams, SmConfig};
use super::super::super::topology::{PortId, Topology};
use super::super::Subnet;
use super::group::{Group, KEEPS};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use wire::mad::attr::{JoinState, McMemberRecord, TrapNumber};
use wire::{Gid, Guid, Lid, PKey};

/// Join states whose ports get what is sent to the group.
const RECEIVES: u8 = JoinState::FULL.0 | JoinState::NON.0;

/// Something for subscribers: trap, group, its partition.
type News = (TrapNumber, Gid, PKey);

/// What is to be made anew of the tree of a multicast LID.
#[derive(Debug)]
pub(in super::super::super) enum Change {
    All,
    /// These members came, went, or have other join states.
    Members(BTreeSet<Guid>),
}

/// A member and where it is, if it is one and somewhere: switch and port there, and whether it receives.
pub(in super::super::super) type Member = (Guid, Option<(PortId, bool)>);

/// All groups.
pub(in super::super::super) struct Groups {
    pub(super) groups: BTreeMap<Gid, Group>,
    by_mlid: BTreeMap<Lid, Gid>,
    /// Multicast LIDs that are free though higher ones are not.
    gaps: BTreeSet<Lid>,
    by_port: HashMap<Guid, BTreeSet<Gid>>,
    dirty: BTreeMap<Lid, Change>,
    news: Vec<News>,
    well_known: Vec<(Gid, PKey, GroupParams)>,
    packet_life_time: u8,
    /// How many multicast LIDs the switches can take.
    capacity: u16,
    pub(super) next_own: u64,
}

impl Groups {
    pub(in super::super) fn new(config: &SmConfig) -> Self {
        let mut groups = Groups {
            groups: BTreeMap::new(),
            by_mlid: BTreeMap::new(),
            gaps: BTreeSet::new(),
            by_port: HashMap::new(),
            dirty: BTreeMap::new(),
            news: Vec::new(),
            well_known: Vec::new(),
            packet_life_time: config.packet_life_time,
            capacity: u16::MAX - Lid::MULTICAST_BASE.0,
            next_own: 0,
        };
        groups.configure(config);
        groups
    }

    fn configure(&mut self, config: &SmConfig) {
        self.packet_life_time = config.packet_life_time;
        self.well_known = config
            .partitions
            .iter()
            .flat_map(|p| {
                p.well_known_groups()
                    .map(|(mgid, params)| (mgid, p.pkey.full(), params))
            })
            .collect();
        self.insert_well_known();
    }

    fn insert_well_known(&mut self) {
        for (mgid, p_key, params) in self.well_known.clone() {
            if let Some(group) = self.groups.get_mut(&mgid) {
                group.well_known = true;
                continue;
            }
            let Some(mlid) = self.free_mlid() else {
                continue;
            };
            let group = Group {
                mlid,
                q_key: params.q_key,
                p_key,
                mtu: params.mtu,
                rate: params.rate,
                packet_life_time: self.packet_life_time,
                sl: params.sl,
                flow_label: params.flow_label,
                // What may leave the subnet may go far (as OpenSM has it).
                hop_limit: if params.hop_limit == 0 && mgid.0[1] & 0xf > 2 {
                    0xff
                } else {
                    params.hop_limit
                },
                tclass: params.tclass,
                well_known: true,
                keepers: 0,
                members: BTreeMap::new(),
            };
            self.insert(mgid, group);
        }
    }

    /// Groups as the configuration has them now; ports that are no longer in a partition leave its groups.
    pub(in super::super) fn reconfigure(&mut self, subnet: &Subnet<'_>) {
        let config = subnet.config;
        self.configure(config);
        let keep: HashSet<Gid> = self.well_known.iter().map(|(mgid, ..)| *mgid).collect();
        let allowed = |p_key: PKey, guid: Guid| {
            let port = subnet.topo.by_port_guid(guid);
            let port = port.and_then(|id| subnet.topo.end_port(id));
            let of_group = config
                .partitions
                .iter()
                .filter(|p| p.pkey.base() == p_key.base());
            port.is_some_and(|port| of_group.flat_map(|p| p.keys_of(&port)).next().is_some())
        };
        let mut leaving = Vec::new();
        for (&mgid, group) in &mut self.groups {
            group.well_known = keep.contains(&mgid);
            leaving.extend(
                group
                    .members
                    .keys()
                    .filter(|g| !allowed(group.p_key, **g))
                    .map(|g| (mgid, *g)),
            );
        }
        for (mgid, guid) in leaving {
            self.remove(mgid, guid, 0xf);
        }
        let empty: Vec<Gid> = self
            .groups
            .iter()
            .filter(|(_, g)| !g.well_known && g.members.is_empty())
            .map(|(m, _)| *m)
            .collect();
        empty.into_iter().for_each(|mgid| self.delete(mgid));
    }

    pub(in super::super) fn clear(&mut self) {
        self.groups.clear();
        self.by_mlid.clear();
        self.gaps.clear();
        self.by_port.clear();
        self.dirty.clear();
        self.news.clear();
        self.insert_well_known();
    }

    pub(in super::super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.groups.get(&mgid)
    }
    pub(in super::super::super) fn iter(&self) -> impl Iterator<Item = (&Gid, &Group)> {
        self.groups.iter()
    }

    pub(in super::super) fn limit_mlids(&mut self, capacity: Option<u16>) {
        self.capacity = capacity
            .unwrap_or(u16::MAX)
            .min(u16::MAX - Lid::MULTICAST_BASE.0);
    }

    /// The lowest free one.
    pub(super) fn free_mlid(&self) -> Option<Lid> {
        let base = Lid::MULTICAST_BASE.0;
        let next = || base.checked_add(u16::try_from(self.by_mlid.len() + self.gaps.len()).ok()?);
        let free = self.gaps.first().map(|lid| lid.0).or_else(next)?;
        (free - base < self.capacity).then_some(Lid(free))
    }

    pub(super) fn insert(&mut self, mgid: Gid, group: Group) {
        self.gaps.remove(&group.mlid);
        self.by_mlid.insert(group.mlid, mgid);
        self.dirty.insert(group.mlid, Change::All);
        self.groups.insert(mgid, group);
    }

    fn delete(&mut self, mgid: Gid) {
        let Some(group) = self.groups.remove(&mgid) else {
            return;
        };
        self.by_mlid.remove(&group.mlid);
        self.gaps.insert(group.mlid);
        self.dirty.insert(group.mlid, Change::All);
        for guid in group.members.keys() {
            self.left(mgid, *guid);
        }
    }

    fn left(&mut self, mgid: Gid, guid: Guid) {
        if let Some(groups) = self.by_port.get_mut(&guid) {
            groups.remove(&mgid);
            if groups.is_empty() {
                self.by_port.remove(&guid);
            }
        }
    }

    fn member_changed(&mut self, mlid: Lid, guid: Guid) {
        let change = self.dirty.entry(mlid);
        if let Change::Members(members) = change.or_insert(Change::Members(BTreeSet::new())) {
            members.insert(guid);
        }
    }

    /// In how many groups a port is.
    pub(super) fn count_of(&self, guid: Guid) -> usize {
        self.by_port.get(&guid).map_or(0, BTreeSet::len)
    }

    /// The port has this join state too; the answer tells all that it has.
    pub(super) fn add(
        &mut self,
        mgid: Gid,
        guid: Guid,
        gid: Gid,
        state: JoinState,
    ) -> McMemberRecord {
        let Some(group) = self.groups.get_mut(&mgid) else {
            return McMemberRecord::default();
        };
        let member = group.members.entry(guid).or_insert((gid, JoinState(0)));
        let before = member.1;
        member.1 = member.1 | state;
        let keeps_now = before.0 & KEEPS == 0 && state.0 & KEEPS != 0;
        group.keepers += usize::from(keeps_now);
        let first = keeps_now && group.keepers == 1;
        let join_state = before | state;
        let record = McMemberRecord {
            port_gid: gid,
            join_state,
            ..group.record(mgid)
        };
        if first {
            self.news
                .push((TrapNumber::MULTICAST_GROUP_CREATED, mgid, group.p_key));
        }
        if before != record.join_state {
            self.member_changed(record.mlid, guid);
            self.by_port.entry(guid).or_default().insert(mgid);
        }
        record
    }

    /// Takes join states from a port; what is left, or `None` if it was no such member.
    pub(super) fn remove(&mut self, mgid: Gid, guid: Guid, states: u8) -> Option<JoinState> {
        let group = self.groups.get_mut(&mgid)?;
        let (_, state) = group.members.get_mut(&guid)?;
        if state.0 & states == 0 {
            return None;
        }
        let left = JoinState(state.0 & !states);
        let kept_it = state.0 & KEEPS != 0 && left.0 & KEEPS == 0;
        *state = left;
        if left.0 == 0 {
            group.members.remove(&guid);
        }
        group.keepers -= usize::from(kept_it);
        let deleted = kept_it && group.keepers == 0;
        if deleted {
            self.news
                .push((TrapNumber::MULTICAST_GROUP_DELETED, mgid, group.p_key));
        }
        let (mlid, well_known) = (group.mlid, group.well_known);
        self.member_changed(mlid, guid);
        if left.0 == 0 {
            self.left(mgid, guid);
        }
        if deleted && !well_known {
            // Members that do not keep it go with it (IBA o15-0.2.14).
            self.delete(mgid);
        }
        Some(left)
    }

    /// A port that is gone leaves everything.
    pub(in super::super) fn drop_port(&mut self, guid: Guid) {
        for mgid in self.by_port.get(&guid).cloned().unwrap_or_default() {
            self.remove(mgid, guid, 0xf);
        }
    }

    pub(in super::super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub(in super::super) fn all_dirty(&mut self) {
        self.dirty
            .extend(self.by_mlid.keys().map(|mlid| (*mlid, Change::All)));
    }
    pub(in super::super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }
    pub(in super::super) fn take_dirty(&mut self) -> BTreeMap<Lid, Change> {
        std::mem::take(&mut self.dirty)
    }

    /// Where the members are that changed.
    pub(in super::super::super) fn members(
        &self,
        topo: &Topology,
        mlid: Lid,
        change: &Change,
    ) -> Vec<Member> {
        let group = self.by_mlid.get(&mlid).and_then(|m| self.groups.get(m));
        let member = |guid: Guid| {
            let (_, state) = group?.members.get(&guid)?;
            let at = topo.attachment(topo.by_port_guid(guid)?)?;
            Some((at, state.0 & RECEIVES != 0))
        };
        let with_place = |guid: &Guid| (*guid, member(*guid));
        match change {
            Change::Members(guids) => guids.iter().map(with_place).collect(),
            Change::All => {
                let all = group.into_iter().flat_map(|g| g.members.keys());
                all.map(with_place).collect()
            }
        }
    }
}
