//! Traps and subscriptions: Notice (IBA 13.4.8.2, details 14.2.5.1 and 15.2.5.1) and InformInfo (13.4.8.3).

use crate::bits::{newtype_field, record};
use crate::id::{Gid, Lid, PKey, Qpn, ServiceLevel};
use crate::mad::names::named;
use crate::mad::{AttrId, Method};
use std::fmt;

/// Number of a generic trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct TrapNumber(pub u16);

/// Urgency of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NoticeType(pub u8);

/// Kind of node a generic notice is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ProducerType(pub u32);

newtype_field!(TrapNumber(u16), NoticeType(u8), ProducerType(u32));

named!(TrapNumber(u16) {
    GID_IN_SERVICE = 64 "GID in service";
    GID_OUT_OF_SERVICE = 65 "GID out of service";
    MULTICAST_GROUP_CREATED = 66 "multicast group created";
    MULTICAST_GROUP_DELETED = 67 "multicast group deleted";
    LINK_STATE_CHANGE = 128 "link state change";
    LINK_INTEGRITY = 129 "local link integrity threshold";
    BUFFER_OVERRUN = 130 "excessive buffer overrun";
    FLOW_CONTROL_WATCHDOG = 131 "flow control update watchdog";
    CAPABILITY_CHANGE = 144 "capability change";
    SYSTEM_IMAGE_GUID_CHANGE = 145 "system image GUID change";
    BAD_M_KEY = 256 "bad M_Key";
    BAD_P_KEY = 257 "bad P_Key";
    BAD_Q_KEY = 258 "bad Q_Key";
    SWITCH_BAD_P_KEY = 259 "bad P_Key at a switch port";
    ALL = 0xffff "all traps";
});

named!(NoticeType(u8) {
    FATAL = 0 "fatal";
    URGENT = 1 "urgent";
    SECURITY = 2 "security";
    SUBNET_MANAGEMENT = 3 "subnet management";
    INFORMATIONAL = 4 "informational";
});

named!(ProducerType(u32) {
    CA = 1 "channel adapter";
    SWITCH = 2 "switch";
    ROUTER = 3 "router";
    CLASS_MANAGER = 4 "class manager";
    ALL = 0xff_ffff "all producers";
});

record! {
    /// Notice, as in Trap, Report and the answers to them.
    pub struct Notice[80] {
        is_generic: bool = 0:1,
        notice_type: NoticeType = 1:7,
        /// 24 bits; the vendor ID if not generic.
        producer_type: ProducerType = 8:24,
        /// The device ID if not generic.
        trap_number: TrapNumber = 32:16,
        issuer_lid: Lid = 48:16,
        notice_toggle: bool = 64:1,
        notice_count: u16 = 65:15,
        /// Meaning depends on the trap; see the accessors.
        data_details: [u8; 54] = 80:432,
        /// Zero in traps of SMAs; filled in by the SA in reports.
        issuer_gid: Gid = 512:128,
    }
}

record! {
    /// Details of traps 64 to 67.
    pub struct NoticeGid[54] {
        /// The port's GID, or the group's.
        gid: Gid = 48:128,
    }
}

record! {
    /// Details of trap 128, and with the port of 129 to 131.
    pub struct LinkStateChange[54] {
        /// Trap 128: the switch.
        lid: Lid = 0:16,
        /// Traps 129 to 131: the port's LID.
        port_lid: Lid = 16:16,
        /// Traps 129 to 131.
        port_num: u8 = 32:8,
    }
}

record! {
    /// Details of trap 144.
    pub struct CapabilityChange[54] {
        /// The port.
        lid: Lid = 16:16,
        /// Something other than the mask changed; see `change_flags`.
        local_changes: bool = 47:1,
        capability_mask: super::CapabilityMask = 48:32,
        /// Priority of a subnet manager changed, bit 3; link speed enabled, bit 2; link width enabled, bit 1; node description, bit 0.
        change_flags: u8 = 92:4,
        capability_mask2: u16 = 96:16,
    }
}

record! {
    /// Details of trap 256.
    pub struct BadMKey[54] {
        /// The port that refused.
        lid: Lid = 16:16,
        dr_slid: Lid = 32:16,
        method: Method = 48:8,
        attr_id: AttrId = 64:16,
        attr_mod: u32 = 80:32,
        m_key: u64 = 112:64,
        dr_notice: bool = 184:1,
        dr_path_truncated: bool = 185:1,
        dr_hop_count: u8 = 186:6,
        dr_return_path: [u8; 30] = 192:240,
    }
}

record! {
    /// Details of traps 257 (P_Key) and 258 (Q_Key).
    pub struct BadKey[54] {
        /// Source of the packet.
        lid1: Lid = 16:16,
        /// Destination of the packet.
        lid2: Lid = 32:16,
        /// The key; a P_Key is in the lower half.
        key: u32 = 48:32,
        sl: ServiceLevel = 80:4,
        qp1: Qpn = 88:24,
        qp2: Qpn = 120:24,
        gid1: Gid = 144:128,
        gid2: Gid = 272:128,
    }
}

record! {
    /// Details of trap 259.
    pub struct SwitchBadPKey[54] {
        /// Which of the fields are valid.
        data_valid: u16 = 0:16,
        lid1: Lid = 16:16,
        lid2: Lid = 32:16,
        p_key: PKey = 48:16,
        sl: ServiceLevel = 64:4,
        qp1: Qpn = 72:24,
        qp2: Qpn = 104:24,
        gid1: Gid = 128:128,
        gid2: Gid = 256:128,
        switch_lid: Lid = 384:16,
        port_num: u8 = 400:8,
    }
}

record! {
    /// InformInfo: subscribes to, or unsubscribes from, reports of notices.
    pub struct InformInfo[36] {
        /// One source; zero: see the range of LIDs.
        gid: Gid = 0:128,
        /// 0xFFFF: all.
        lid_range_begin: Lid = 128:16,
        lid_range_end: Lid = 144:16,
        is_generic: u8 = 176:8,
        /// 1: subscribe, 0: unsubscribe.
        subscribe: u8 = 184:8,
        /// 0xFFFF: all; otherwise a [`NoticeType`].
        notice_type: u16 = 192:16,
        /// The device ID if not generic.
        trap_number: TrapNumber = 208:16,
        /// Where reports go, in answers and SA records; 0: QP1.
        qpn: Qpn = 224:24,
        resp_time_value: u8 = 251:5,
        /// 24 bits; the vendor ID if not generic.
        producer_type: ProducerType = 264:24,
    }
}

impl Notice {
    fn generic(
        notice_type: NoticeType,
        producer_type: ProducerType,
        trap_number: TrapNumber,
        issuer_lid: Lid,
        data_details: [u8; 54],
    ) -> Self {
        Notice {
            is_generic: true,
            notice_type,
            producer_type,
            trap_number,
            issuer_lid,
            data_details,
            ..Notice::default()
        }
    }

    /// Traps 64 to 67: the SA's news of `gid` (IBA 15.2.5.1).
    pub fn gid_event(trap_number: TrapNumber, gid: Gid, issuer_lid: Lid, issuer_gid: Gid) -> Self {
        let details = NoticeGid { gid }.emit();
        Notice {
            issuer_gid,
            ..Self::generic(
                NoticeType::SUBNET_MANAGEMENT,
                ProducerType::CLASS_MANAGER,
                trap_number,
                issuer_lid,
                details,
            )
        }
    }

    /// Trap 128: a port of the switch at `lid` changed state.
    pub fn link_state_change(lid: Lid) -> Self {
        let details = LinkStateChange {
            lid,
            ..LinkStateChange::default()
        };
        Self::generic(
            NoticeType::URGENT,
            ProducerType::SWITCH,
            TrapNumber::LINK_STATE_CHANGE,
            lid,
            details.emit(),
        )
    }

    /// Trap 144: a channel adapter's port has other capabilities or another description.
    pub fn capability_change(change: CapabilityChange) -> Self {
        Self::generic(
            NoticeType::INFORMATIONAL,
            ProducerType::CA,
            TrapNumber::CAPABILITY_CHANGE,
            change.lid,
            change.emit(),
        )
    }

    /// Traps 257 and 258: a channel adapter's port at `lid` dropped a packet.
    pub fn bad_key(trap_number: TrapNumber, lid: Lid, details: BadKey) -> Self {
        Self::generic(
            NoticeType::SECURITY,
            ProducerType::CA,
            trap_number,
            lid,
            details.emit(),
        )
    }

    /// Trap 256: the node at `details.lid` refused an SMP.
    pub fn bad_m_key(producer_type: ProducerType, details: BadMKey) -> Self {
        Self::generic(
            NoticeType::SECURITY,
            producer_type,
            TrapNumber::BAD_M_KEY,
            details.lid,
            details.emit(),
        )
    }

    /// Trap 259: a switch's port dropped a packet.
    pub fn switch_bad_p_key(details: SwitchBadPKey) -> Self {
        Self::generic(
            NoticeType::SECURITY,
            ProducerType::SWITCH,
            TrapNumber::SWITCH_BAD_P_KEY,
            details.switch_lid,
            details.emit(),
        )
    }

    /// The notice of an SMP, whose 64 bytes end before the issuer GID.
    pub fn from_smp(data: &[u8; 64]) -> Self {
        let mut whole = [0; Notice::LEN];
        whole[..64].copy_from_slice(data);
        Notice::parse(&whole).unwrap_or_default()
    }

    /// The GID of traps 64 to 67.
    pub fn gid(&self) -> Option<Gid> {
        let known = self.is_generic && matches!(self.trap_number.0, 64..=67);
        known.then(|| NoticeGid::parse(&self.data_details).unwrap_or_default().gid)
    }
    /// The switch of trap 128.
    pub fn switch_lid(&self) -> Option<Lid> {
        let known = self.is_generic && self.trap_number == TrapNumber::LINK_STATE_CHANGE;
        known.then(|| {
            LinkStateChange::parse(&self.data_details)
                .unwrap_or_default()
                .lid
        })
    }
    /// The details of trap 144.
    pub fn capability(&self) -> Option<CapabilityChange> {
        let known = self.is_generic && self.trap_number == TrapNumber::CAPABILITY_CHANGE;
        known.then(|| CapabilityChange::parse(&self.data_details).unwrap_or_default())
    }
    /// The details of traps 257 and 258.
    pub fn key_violation(&self) -> Option<BadKey> {
        let known = self.is_generic && matches!(self.trap_number.0, 257 | 258);
        known.then(|| BadKey::parse(&self.data_details).unwrap_or_default())
    }
}

impl InformInfo {
    /// Subscribes to (or unsubscribes from) generic `trap_number` of any source, as Linux does.
    pub fn generic(trap_number: TrapNumber, subscribe: bool) -> Self {
        InformInfo {
            lid_range_begin: Lid(0xffff),
            is_generic: 1,
            subscribe: subscribe.into(),
            notice_type: 0xffff,
            trap_number,
            resp_time_value: 19,
            producer_type: ProducerType::ALL,
            ..InformInfo::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte offsets of the IBA's tables of data details.
    #[test]
    fn details_are_where_the_standard_has_them() {
        let change = CapabilityChange {
            lid: Lid(0x0102),
            local_changes: true,
            capability_mask: crate::mad::attr::CapabilityMask(0x0304_0506),
            change_flags: 1,
            capability_mask2: 0x0708,
        };
        let notice = Notice::capability_change(change);
        assert_eq!(
            notice.data_details[..14],
            [0, 0, 1, 2, 0, 1, 3, 4, 5, 6, 0, 1, 7, 8]
        );
        assert_eq!(notice.capability(), Some(change));

        let bad = BadKey {
            lid1: Lid(1),
            lid2: Lid(2),
            key: 0xb1b,
            sl: ServiceLevel(3),
            qp1: Qpn(4),
            qp2: Qpn(5),
            gid1: Gid([6; 16]),
            gid2: Gid([7; 16]),
        };
        let details = Notice::bad_key(TrapNumber(258), Lid(2), bad).data_details;
        let front = [
            0, 0, 0, 1, 0, 2, 0, 0, 0xb, 0x1b, 0x30, 0, 0, 4, 0, 0, 0, 5, 6,
        ];
        assert_eq!(details[..19], front);
        assert_eq!(
            (details[33], details[34], details[49], details[50]),
            (6, 7, 7, 0)
        );

        let details = Notice::link_state_change(Lid(0x0a0b)).data_details;
        assert_eq!(details[..3], [0x0a, 0x0b, 0]);
    }

    #[test]
    fn a_trap_in_an_smp_lacks_only_its_issuer_gid() {
        let notice = Notice::link_state_change(Lid(9));
        let mut data = [0; 64];
        data.copy_from_slice(&notice.emit()[..64]);
        assert_eq!(Notice::from_smp(&data), notice);
        assert_eq!(notice.switch_lid(), Some(Lid(9)));
    }
}
