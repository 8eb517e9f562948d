//! MCMemberRecord: multicast groups and who is in them (IBA 15.2.5.17, o15-0.1 and o15-0.2 ff.).
//!
//! A member is a port; each port has the union of the join states that it asked for, and leaves bit by bit. A group lives as long as it has a
//! full member (send-only or not), unless the configuration says that it exists from the start.

use super::super::config::{GroupParams, SmConfig};
use super::super::topology::{PortData, PortId, Topology};
use super::records::{Field, matches};
use super::{Records, Request, Subnet};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use wire::mad::MadStatus;
use wire::mad::attr::{JoinState, McMemberRecord, Selector, TrapNumber, mcmember as comp};
use wire::mad::sa::ComponentMask;
use wire::{Gid, Guid, Lid, MtuCode, PKey, QKey, RateCode, ServiceLevel};

/// What a request must say to create a group: 0x130C7 (OpenSM's `check_create_comp_mask`; IBA o15-0.1.11 wants no more).
const CREATE: ComponentMask = comp::MGID
    .and(comp::PORT_GID)
    .and(comp::Q_KEY)
    .and(comp::TCLASS)
    .and(comp::P_KEY)
    .and(comp::SL)
    .and(comp::FLOW_LABEL)
    .and(comp::JOIN_STATE);
/// Join states that keep a group.
const KEEPS: u8 = JoinState::FULL.0 | JoinState::SEND_ONLY_FULL.0;
/// Join states whose ports get what is sent to the group.
const RECEIVES: u8 = JoinState::FULL.0 | JoinState::NON.0;
/// Groups of one port that it created itself.
const MAX_PER_PORT: usize = 4096;

const COMPONENTS: &[Field] = &[
    (0, 0, 128),
    (1, 128, 128),
    (2, 256, 32),
    (3, 288, 16),
    (6, 312, 8),
    (12, 352, 4),
    (13, 356, 20),
    (14, 376, 8),
    (15, 384, 4),
    (17, 392, 1),
];

/// One group.
#[derive(Debug)]
pub(in super::super) struct Group {
    pub(in super::super) mlid: Lid,
    pub(in super::super) q_key: QKey,
    pub(in super::super) p_key: PKey,
    pub(in super::super) mtu: MtuCode,
    pub(in super::super) rate: RateCode,
    pub(in super::super) packet_life_time: u8,
    pub(in super::super) sl: ServiceLevel,
    pub(in super::super) flow_label: u32,
    pub(in super::super) hop_limit: u8,
    pub(in super::super) tclass: u8,
    /// Exists without members too.
    pub(in super::super) well_known: bool,
    /// How many members keep it.
    keepers: usize,
    /// By port GUID: GID and join state.
    pub(in super::super) members: BTreeMap<Guid, (Gid, JoinState)>,
}

impl Group {
    fn record(&self, mgid: Gid) -> McMemberRecord {
        McMemberRecord {
            mgid,
            q_key: self.q_key,
            mlid: self.mlid,
            mtu_selector: Selector::EXACTLY,
            mtu: self.mtu,
            tclass: self.tclass,
            p_key: self.p_key,
            rate_selector: Selector::EXACTLY,
            rate: self.rate,
            packet_life_time_selector: Selector::EXACTLY,
            packet_life_time: self.packet_life_time,
            sl: self.sl,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            scope: mgid.0[1] & 0xf,
            ..McMemberRecord::default()
        }
    }
    fn has_member(&self, guid: Guid) -> bool {
        self.members.contains_key(&guid)
    }

    /// Do the group's parameters satisfy what a join asks for? (IBA o15-0.2.4; OpenSM `validate_more_comp_fields`)
    fn suits(&self, request: &Request<'_>, asked: &McMemberRecord, scope: u8) -> bool {
        let says = |c| request.has(c);
        (!says(comp::Q_KEY) || asked.q_key == self.q_key)
            && (!says(comp::P_KEY)
                || (asked.p_key.base() == self.p_key.base()
                    && (asked.p_key.is_full() || self.p_key.is_full())))
            && (!says(comp::TCLASS) || asked.tclass == self.tclass)
            && (!says(comp::SL) || asked.sl == self.sl)
            && (!says(comp::FLOW_LABEL) || asked.flow_label == self.flow_label)
            && (!says(comp::SCOPE) || asked.scope == scope)
            && (!says(comp::MLID) || asked.mlid == self.mlid)
            && (!says(comp::MTU | comp::MTU_SELECTOR)
                || selected(asked.mtu_selector, asked.mtu.0, self.mtu.0))
            && (!says(comp::RATE | comp::RATE_SELECTOR)
                || selected(asked.rate_selector, asked.rate.mbps(), self.rate.mbps()))
            && (!says(comp::PACKET_LIFE_TIME | comp::PACKET_LIFE_TIME_SELECTOR)
                || selected(
                    asked.packet_life_time_selector,
                    asked.packet_life_time,
                    self.packet_life_time,
                ))
    }
}

fn selected<T: PartialOrd>(selector: Selector, asked: T, value: T) -> bool {
    match selector {
        Selector::GREATER_THAN => value > asked,
        Selector::LESS_THAN => value < asked,
        Selector::EXACTLY => value == asked,
        _ => true,
    }
}

/// The broadcast group that an IPoIB group goes with, if it is one (RFC 4391 section 4).
fn ipoib_broadcast_of(mgid: Gid) -> Option<Gid> {
    let g = &mgid.0;
    let is_ipoib = g[0] == 0xff && matches!([g[2], g[3]], [0x40 | 0x60, 0x1b]);
    is_ipoib.then(|| {
        Gid([
            0xff,
            0x10 | g[1] & 0xf,
            0x40,
            0x1b,
            g[4],
            g[5],
            0,
            0,
            0,
            0,
            0,
            0,
            0xff,
            0xff,
            0xff,
            0xff,
        ])
    })
}

/// Something for subscribers: trap, group, its partition.
type News = (TrapNumber, Gid, PKey);

/// All groups.
pub(in super::super) struct Groups {
    groups: BTreeMap<Gid, Group>,
    mlids: BTreeSet<Lid>,
    /// Groups whose trees changed; of those that are gone only the LID is left.
    dirty: BTreeMap<Lid, Option<Gid>>,
    news: Vec<News>,
    well_known: Vec<(Gid, PKey, GroupParams)>,
    packet_life_time: u8,
    /// How many multicast LIDs the switches can take.
    capacity: u16,
    next_own: u64,
}

impl Groups {
    pub(super) fn new(config: &SmConfig) -> Self {
        let mut groups = Groups {
            groups: BTreeMap::new(),
            mlids: BTreeSet::new(),
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
    pub(super) fn reconfigure(&mut self, subnet: &Subnet<'_>) {
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

    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.mlids.clear();
        self.dirty.clear();
        self.news.clear();
        self.insert_well_known();
    }

    pub(super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.groups.get(&mgid)
    }
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (&Gid, &Group)> {
        self.groups.iter()
    }

    pub(super) fn limit_mlids(&mut self, capacity: Option<u16>) {
        self.capacity = capacity
            .unwrap_or(u16::MAX)
            .min(u16::MAX - Lid::MULTICAST_BASE.0);
    }

    fn free_mlid(&self) -> Option<Lid> {
        // The set is in order: the first gap is where it differs from counting.
        let base = Lid::MULTICAST_BASE.0;
        let gap = (base..)
            .zip(&self.mlids)
            .find(|(n, lid)| lid.0 != *n)
            .map(|(n, _)| n);
        let free = gap.unwrap_or(base.checked_add(u16::try_from(self.mlids.len()).ok()?)?);
        (free - base < self.capacity).then_some(Lid(free))
    }

    fn insert(&mut self, mgid: Gid, group: Group) {
        self.mlids.insert(group.mlid);
        self.dirty.insert(group.mlid, Some(mgid));
        self.groups.insert(mgid, group);
    }

    fn delete(&mut self, mgid: Gid) {
        if let Some(group) = self.groups.remove(&mgid) {
            self.mlids.remove(&group.mlid);
            self.dirty.insert(group.mlid, None);
        }
    }

    /// Set(MCMemberRecord): joins, and creates the group where it must.
    pub(super) fn join(
        &mut self,
        subnet: &Subnet<'_>,
        request: &Request<'_>,
        asked: McMemberRecord,
    ) -> Result<McMemberRecord, MadStatus> {
        let joins = comp::MGID.and(comp::PORT_GID).and(comp::JOIN_STATE);
        // An MGID of zero asks the SA to choose one (IBA o15-0.1.12); then its bit may be missing.
        let wants_mgid = asked.mgid == Gid::default();
        if !(request.has(joins) || wants_mgid && request.has(comp::PORT_GID.and(comp::JOIN_STATE)))
            || asked.join_state.0 == 0
        {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        if asked.port_gid.prefix() != subnet.config.subnet_prefix {
            return Err(MadStatus::SA_REQ_INVALID_GID);
        }
        let id = subnet
            .by_gid(asked.port_gid)
            .ok_or(MadStatus::SA_REQ_INVALID)?;
        let port = subnet.topo.port(id).ok_or(MadStatus::SA_REQ_INVALID)?;
        // Only a port itself decides on its memberships.
        if id != request.port && !request.trusted {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        if let Some(group) = self.groups.get(&asked.mgid).filter(|_| !wants_mgid) {
            let fits = group.suits(request, &asked, asked.mgid.0[1] & 0xf);
            if !fits || !may_join(group, port) {
                return Err(MadStatus::SA_REQ_INVALID);
            }
        } else {
            return self.create(request, asked, port);
        }
        Ok(self.add(asked.mgid, port.guid, asked.port_gid, asked.join_state))
    }

    fn create(
        &mut self,
        request: &Request<'_>,
        asked: McMemberRecord,
        port: &PortData,
    ) -> Result<McMemberRecord, MadStatus> {
        if asked.join_state.0 & KEEPS == 0 {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let needed = if asked.mgid == Gid::default() {
            ComponentMask(CREATE.0 & !comp::MGID.0)
        } else {
            CREATE
        };
        if !request.has(needed) {
            return Err(MadStatus::SA_REQ_INSUFFICIENT_COMPONENTS);
        }
        let mgid = if asked.mgid == Gid::default() {
            self.own_mgid(request, &asked)
        } else {
            asked.mgid
        };
        let broadcast_missing =
            ipoib_broadcast_of(mgid).is_some_and(|b| b != mgid && !self.groups.contains_key(&b));
        // IBA o15-0.1.13: multicast, transient or permanent, of a scope that is not reserved.
        let bad_mgid =
            mgid.0[0] != 0xff || matches!(mgid.0[1] & 0xf, 0 | 0xf) || mgid.0[1] & 0xe0 != 0;
        if bad_mgid || broadcast_missing || asked.p_key.base() == 0 {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let mtu = realizable_mtu(request, &asked, port).ok_or(MadStatus::SA_REQ_INVALID)?;
        let rate = realizable_rate(request, &asked, port).ok_or(MadStatus::SA_REQ_INVALID)?;
        let group = Group {
            mlid: Lid::UNSET,
            q_key: asked.q_key,
            p_key: asked.p_key.full(),
            mtu,
            rate,
            packet_life_time: if request.has(comp::PACKET_LIFE_TIME) {
                asked.packet_life_time
            } else {
                0
            },
            sl: asked.sl,
            flow_label: asked.flow_label,
            hop_limit: if request.has(comp::HOP_LIMIT) {
                asked.hop_limit
            } else {
                0
            },
            tclass: asked.tclass,
            well_known: false,
            keepers: 0,
            members: BTreeMap::new(),
        };
        if !may_join(&group, port) {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let of_port = self
            .groups
            .values()
            .filter(|g| !g.well_known && g.has_member(port.guid))
            .count();
        let mlid = self
            .free_mlid()
            .filter(|_| of_port < MAX_PER_PORT)
            .ok_or(MadStatus::SA_NO_RESOURCES)?;
        self.insert(mgid, Group { mlid, ..group });
        Ok(self.add(mgid, port.guid, asked.port_gid, asked.join_state))
    }

    /// An MGID of the SA's own choice (IBA o15-0.1.12; the signature 0xA01B is OpenSM's).
    fn own_mgid(&mut self, request: &Request<'_>, asked: &McMemberRecord) -> Gid {
        let scope = if request.has(comp::SCOPE) && !matches!(asked.scope, 0 | 0xf) {
            asked.scope
        } else {
            2
        };
        loop {
            self.next_own += 1;
            let mut mgid = [0; 16];
            mgid[..4].copy_from_slice(&[0xff, 0x10 | scope, 0xa0, 0x1b]);
            mgid[8..].copy_from_slice(&self.next_own.to_be_bytes());
            if !self.groups.contains_key(&Gid(mgid)) {
                return Gid(mgid);
            }
        }
    }

    /// The port has this join state too; the answer tells all that it has.
    fn add(&mut self, mgid: Gid, guid: Guid, gid: Gid, state: JoinState) -> McMemberRecord {
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
        if before != record.join_state {
            self.dirty.insert(group.mlid, Some(mgid));
        }
        if first {
            self.news
                .push((TrapNumber::MULTICAST_GROUP_CREATED, mgid, group.p_key));
        }
        record
    }

    /// Takes join states from a port; what is left, or `None` if it was no such member.
    fn remove(&mut self, mgid: Gid, guid: Guid, states: u8) -> Option<JoinState> {
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
        self.dirty.insert(group.mlid, Some(mgid));
        group.keepers -= usize::from(kept_it);
        if kept_it && group.keepers == 0 {
            self.news
                .push((TrapNumber::MULTICAST_GROUP_DELETED, mgid, group.p_key));
            if !group.well_known {
                // Members that do not keep it go with it (IBA o15-0.2.14).
                self.delete(mgid);
            }
        }
        Some(left)
    }

    /// Delete(MCMemberRecord): leaves with the join states named.
    pub(super) fn leave(
        &mut self,
        subnet: &Subnet<'_>,
        request: &Request<'_>,
        asked: McMemberRecord,
    ) -> Result<McMemberRecord, MadStatus> {
        let needed = comp::MGID.and(comp::PORT_GID).and(comp::JOIN_STATE);
        let own = subnet.by_gid(asked.port_gid) == Some(request.port);
        if !request.has(needed) || !own && !request.trusted {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let left = self
            .remove(asked.mgid, asked.port_gid.guid(), asked.join_state.0)
            .ok_or(MadStatus::SA_REQ_INVALID)?;
        // The request with what the port is left with, as OpenSM answers.
        Ok(McMemberRecord {
            mtu_selector: Selector::EXACTLY,
            rate_selector: Selector::EXACTLY,
            packet_life_time_selector: Selector::EXACTLY,
            scope: asked.mgid.0[1] & 0xf,
            join_state: left,
            ..asked
        })
    }

    /// Get and GetTable: one record a group, or with the SM_Key one a member. Who is in a group is told to the member itself only.
    pub(super) fn query(&self, subnet: &Subnet<'_>, request: &Request<'_>) -> Records {
        let mut records = Records::new(McMemberRecord::LEN);
        let asked = McMemberRecord::parse(&request.sa.data).unwrap_or_default();
        let Some(own) = subnet.topo.port(request.port) else {
            return records;
        };
        let one = request.has(comp::MGID).then_some(asked.mgid);
        let range = self
            .groups
            .iter()
            .filter(|(mgid, _)| one.is_none_or(|one| **mgid == one));
        for (&mgid, group) in range {
            let visible = request.trusted || own.pkey_like(group.p_key).is_some();
            let mask = ComponentMask(
                request.sa.component_mask.0 & !(comp::PORT_GID.0 | comp::JOIN_STATE.0),
            );
            let record = group.record(mgid);
            if !visible
                || !group.suits(request, &asked, record.scope)
                || !matches(mask.0, &request.sa.data, &record.emit(), COMPONENTS)
            {
                continue;
            }
            let named = request.has(comp::PORT_GID);
            let members = group.members.iter().filter(|(guid, (gid, _))| {
                if named {
                    *gid == asked.port_gid && (request.trusted || **guid == own.guid)
                } else {
                    request.trusted
                }
            });
            let wanted = |state: JoinState| {
                !request.has(comp::JOIN_STATE) || state.0 & asked.join_state.0 == asked.join_state.0
            };
            let mut any = false;
            for (_, &(port_gid, join_state)) in members.filter(|(_, (_, state))| wanted(*state)) {
                any = true;
                records.push(
                    &McMemberRecord {
                        port_gid,
                        join_state,
                        ..record
                    }
                    .emit(),
                );
            }
            if !any
                && !named
                && (!request.trusted || group.members.is_empty())
                && !request.has(comp::JOIN_STATE)
            {
                records.push(&record.emit());
            }
        }
        records
    }

    /// A port that is gone leaves everything.
    pub(super) fn drop_port(&mut self, guid: Guid) {
        let of_port: Vec<Gid> = self
            .groups
            .iter()
            .filter(|(_, g)| g.has_member(guid))
            .map(|(mgid, _)| *mgid)
            .collect();
        for mgid in of_port {
            self.remove(mgid, guid, 0xf);
        }
    }

    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub(super) fn all_dirty(&mut self) {
        self.dirty
            .extend(self.groups.iter().map(|(mgid, g)| (g.mlid, Some(*mgid))));
    }
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }
    pub(super) fn take_dirty(&mut self, topo: &Topology) -> Vec<(Lid, Vec<PortId>, Vec<PortId>)> {
        let place = |guid: &Guid| topo.by_port_guid(*guid).and_then(|id| topo.attachment(id));
        let trees = std::mem::take(&mut self.dirty)
            .into_iter()
            .map(|(mlid, mgid)| {
                let group = mgid
                    .and_then(|m| self.groups.get(&m))
                    .filter(|g| g.mlid == mlid);
                let members = |receives: bool| {
                    let members = group
                        .into_iter()
                        .flat_map(|g| &g.members)
                        .filter(move |(_, (_, s))| (s.0 & RECEIVES != 0) == receives);
                    members.filter_map(|(guid, _)| place(guid)).collect()
                };
                (mlid, members(true), members(false))
            });
        trees.collect()
    }
}

/// Is the port in the group's partition, and can it take the group's packets? (OpenSM `validate_port_caps`, `osm_physp_has_pkey`)
fn may_join(group: &Group, port: &PortData) -> bool {
    let capable = port.info.is_some_and(|i| group.mtu <= i.mtu_cap)
        && group.rate.mbps() <= port.rate().mbps();
    capable && port.pkey_like(group.p_key).is_some()
}

/// The MTU of a group to be created: what the request asks for, if the port can do it.
fn realizable_mtu(
    request: &Request<'_>,
    asked: &McMemberRecord,
    port: &PortData,
) -> Option<MtuCode> {
    let most = port.info?.mtu_cap;
    let selector = request
        .has(comp::MTU | comp::MTU_SELECTOR)
        .then_some(asked.mtu_selector);
    let mtu = match selector {
        Some(Selector::GREATER_THAN) => MtuCode(asked.mtu.0.checked_add(1)?),
        Some(Selector::LESS_THAN) => MtuCode(asked.mtu.0.checked_sub(1)?).min(most),
        Some(Selector::EXACTLY) => asked.mtu,
        Some(_) => most,
        None => MtuCode::MTU_2048.min(most),
    };
    (mtu.bytes().is_some() && mtu <= most).then_some(mtu)
}

/// The same of the rate.
fn realizable_rate(
    request: &Request<'_>,
    asked: &McMemberRecord,
    port: &PortData,
) -> Option<RateCode> {
    let most = port.rate().mbps()?;
    let all = || {
        (2..=24)
            .map(RateCode)
            .filter(|r| r.mbps().is_some_and(|m| m <= most))
    };
    let limit = asked.rate.mbps();
    match request
        .has(comp::RATE | comp::RATE_SELECTOR)
        .then_some(asked.rate_selector)
    {
        Some(Selector::GREATER_THAN) => all().filter(|r| r.mbps() > limit).min_by_key(|r| r.mbps()),
        Some(Selector::LESS_THAN) => all().filter(|r| r.mbps() < limit).max_by_key(|r| r.mbps()),
        Some(Selector::EXACTLY) => all().find(|r| *r == asked.rate),
        Some(_) => Some(port.rate()),
        None => Some(RateCode::GBPS_10)
            .filter(|r| r.mbps() <= Some(most))
            .or(Some(port.rate())),
    }
}
