//! MCMemberRecord: multicast groups and who is in them (IBA 15.2.5.17, o15-0.1 and o15-0.2 ff.).
//!
//! A member is a port; each port has the union of the join states that it asked for, and leaves bit by bit. A group lives as long as it has a
//! full member (send-only or not), unless the configuration says that it exists from the start.

mod group;
mod store;

pub(in super::super) use group::Group;
pub(in super::super) use store::{Change, Groups, Member};

use super::super::topology::PortData;
use super::records::{Field, matches};
use super::{Records, Request, Subnet};
use group::{KEEPS, ipoib_broadcast_of, may_join, realizable_mtu, realizable_rate};
use std::collections::BTreeMap;
use wire::mad::MadStatus;
use wire::mad::attr::{JoinState, McMemberRecord, Selector, mcmember as comp};
use wire::mad::sa::ComponentMask;
use wire::{Gid, Lid};

/// What a request must say to create a group: 0x130C7 (OpenSM's `check_create_comp_mask`; IBA o15-0.1.11 wants no more).
const CREATE: ComponentMask = comp::MGID
    .and(comp::PORT_GID)
    .and(comp::Q_KEY)
    .and(comp::TCLASS)
    .and(comp::P_KEY)
    .and(comp::SL)
    .and(comp::FLOW_LABEL)
    .and(comp::JOIN_STATE);
/// A port in so many groups creates no more.
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

impl Groups {
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
        let mlid = self
            .free_mlid()
            .filter(|_| self.count_of(port.guid) < MAX_PER_PORT)
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
}
