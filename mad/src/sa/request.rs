//! What may be asked of the SA.

use std::fmt;
use wire::mad::attr::{
    InformInfo, JoinState, McMemberRecord, PathRecord, ServiceRecord, TrapNumber, mcmember,
    path_record,
};
use wire::mad::sa::{ComponentMask, DATA_LEN};
use wire::mad::{AttrId, Method, MgmtClass};
use wire::{Gid, PKey};

/// A request to the SA: a method, an attribute and the record with the components that are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaRequest {
    /// Get, Set, Delete or GetTable.
    pub method: Method,
    /// Attribute of the record.
    pub attr_id: AttrId,
    /// Which components of the record are meant.
    pub component_mask: ComponentMask,
    /// The record as it goes on the wire; what is beyond 200 bytes is not sent.
    pub record: Vec<u8>,
}

/// ServiceRecord components that identify it: ServiceID, ServiceGID, ServiceP_Key (IBA 15.2.5.14; Linux `ib_sa.h`).
const SERVICE_KEY: ComponentMask = ComponentMask(0b111);
/// Those, lease (bit 4), name (6) and all data (7 to 36).
const SERVICE_REGISTER: ComponentMask =
    ComponentMask(0x1f_ffff_ff80 | 1 << 6 | 1 << 4 | SERVICE_KEY.0);

impl SaRequest {
    /// Any request.
    pub fn raw(
        method: Method,
        attr_id: AttrId,
        component_mask: ComponentMask,
        record: &[u8],
    ) -> Self {
        let record = record[..record.len().min(DATA_LEN)].to_vec();
        SaRequest {
            method,
            attr_id,
            component_mask,
            record,
        }
    }

    /// The path from `sgid` to `dgid` within partition `p_key`, asked as Linux IPoIB does: mask 0x340C.
    pub fn path(sgid: Gid, dgid: Gid, p_key: PKey, tclass: u8) -> Self {
        let record = PathRecord {
            sgid,
            dgid,
            p_key,
            tclass,
            numb_path: 1,
            ..PathRecord::default()
        };
        Self::raw(
            Method::GET,
            AttrId::PATH_RECORD,
            path_record::IPOIB_QUERY,
            &record.emit(),
        )
    }

    /// Set(MCMemberRecord) as it is: the join machine makes the record and chooses the mask.
    pub fn join(record: &McMemberRecord, component_mask: ComponentMask) -> Self {
        Self::raw(
            Method::SET,
            AttrId::MC_MEMBER_RECORD,
            component_mask,
            &record.emit(),
        )
    }

    /// Joins a group with all of its parameters, and creates it if it does not exist: mask 0x173F7.
    pub fn join_or_create(record: &McMemberRecord) -> Self {
        Self::join(record, mcmember::CREATE)
    }

    /// Gives up the memberships in `join_state`: mask 0x10003.
    pub fn leave(mgid: Gid, port_gid: Gid, join_state: JoinState) -> Self {
        let record = McMemberRecord {
            mgid,
            port_gid,
            join_state,
            ..McMemberRecord::default()
        };
        let mask = mcmember::MGID | mcmember::PORT_GID | mcmember::JOIN_STATE;
        Self::raw(
            Method::DELETE,
            AttrId::MC_MEMBER_RECORD,
            mask,
            &record.emit(),
        )
    }

    /// Asks for Reports of a trap, to QP1 of this port.
    pub fn subscribe(trap: TrapNumber) -> Self {
        Self::inform_info(trap, true)
    }

    /// Ends [`Self::subscribe`].
    pub fn unsubscribe(trap: TrapNumber) -> Self {
        Self::inform_info(trap, false)
    }

    fn inform_info(trap: TrapNumber, subscribe: bool) -> Self {
        let record = InformInfo::generic(trap, subscribe);
        Self::raw(
            Method::SET,
            AttrId::INFORM_INFO,
            ComponentMask(0),
            &record.emit(),
        )
    }

    /// All records that agree with `record` in the components of the mask; the answer may come in many segments.
    pub fn get_table(attr_id: AttrId, component_mask: ComponentMask, record: &[u8]) -> Self {
        Self::raw(Method::GET_TABLE, attr_id, component_mask, record)
    }

    /// Registers a service for its lease.
    pub fn register_service(record: &ServiceRecord) -> Self {
        Self::raw(
            Method::SET,
            AttrId::SERVICE_RECORD,
            SERVICE_REGISTER,
            &record.emit(),
        )
    }
}

impl fmt::Display for SaRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attr_id.name(MgmtClass::SUBN_ADM) {
            Some(name) => write!(f, "{}({name})", self.method),
            None => write!(f, "{}({})", self.method, self.attr_id),
        }
    }
}
