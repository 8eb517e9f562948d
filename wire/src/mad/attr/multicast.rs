//! MCMemberRecord (IBA 15.2.5.17).

use super::Selector;
use crate::bits::{newtype_field, record};
use crate::id::{Gid, Lid, MtuCode, PKey, QKey, RateCode, ServiceLevel};
use std::fmt;

/// Kinds of membership, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct JoinState(pub u8);

newtype_field!(JoinState(u8));

impl JoinState {
    /// Sends and receives; the group lives as long as it has one.
    pub const FULL: JoinState = JoinState(1);
    /// Sends and receives, without keeping the group.
    pub const NON: JoinState = JoinState(2);
    /// Sends only, without keeping the group.
    pub const SEND_ONLY_NON: JoinState = JoinState(4);
    /// Sends only and keeps the group; the SA must have it (ClassPortInfo, CapabilityMask2 bit 12).
    pub const SEND_ONLY_FULL: JoinState = JoinState(8);

    /// All bits of `other` set?
    pub const fn contains(self, other: JoinState) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for JoinState {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        JoinState(self.0 | other.0)
    }
}

impl fmt::Display for JoinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            "FullMember",
            "NonMember",
            "SendOnlyNonMember",
            "SendOnlyFullMember",
        ];
        let mut separator = "";
        for (bit, kind) in kinds.into_iter().enumerate() {
            if self.0 >> bit & 1 != 0 {
                write!(f, "{separator}{kind}")?;
                separator = "+";
            }
        }
        if separator.is_empty() {
            f.write_str("none")
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for JoinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

record! {
    /// MCMemberRecord: a group, and one port's membership in it.
    pub struct McMemberRecord[52] {
        mgid: Gid = 0:128,
        port_gid: Gid = 128:128,
        q_key: QKey = 256:32,
        mlid: Lid = 288:16,
        mtu_selector: Selector = 304:2,
        mtu: MtuCode = 306:6,
        tclass: u8 = 312:8,
        p_key: PKey = 320:16,
        rate_selector: Selector = 336:2,
        rate: RateCode = 338:6,
        packet_life_time_selector: Selector = 344:2,
        /// 4.096 us * 2^n.
        packet_life_time: u8 = 346:6,
        sl: ServiceLevel = 352:4,
        flow_label: u32 = 356:20,
        hop_limit: u8 = 376:8,
        scope: u8 = 384:4,
        join_state: JoinState = 388:4,
        /// Joined for another port.
        proxy_join: bool = 392:1,
    }
}

/// Component mask bits of MCMemberRecord.
pub mod comp {
    use crate::mad::sa::ComponentMask;

    pub const MGID: ComponentMask = ComponentMask(1);
    pub const PORT_GID: ComponentMask = ComponentMask(1 << 1);
    pub const Q_KEY: ComponentMask = ComponentMask(1 << 2);
    pub const MLID: ComponentMask = ComponentMask(1 << 3);
    pub const MTU_SELECTOR: ComponentMask = ComponentMask(1 << 4);
    pub const MTU: ComponentMask = ComponentMask(1 << 5);
    pub const TCLASS: ComponentMask = ComponentMask(1 << 6);
    pub const P_KEY: ComponentMask = ComponentMask(1 << 7);
    pub const RATE_SELECTOR: ComponentMask = ComponentMask(1 << 8);
    pub const RATE: ComponentMask = ComponentMask(1 << 9);
    pub const PACKET_LIFE_TIME_SELECTOR: ComponentMask = ComponentMask(1 << 10);
    pub const PACKET_LIFE_TIME: ComponentMask = ComponentMask(1 << 11);
    pub const SL: ComponentMask = ComponentMask(1 << 12);
    pub const FLOW_LABEL: ComponentMask = ComponentMask(1 << 13);
    pub const HOP_LIMIT: ComponentMask = ComponentMask(1 << 14);
    pub const SCOPE: ComponentMask = ComponentMask(1 << 15);
    pub const JOIN_STATE: ComponentMask = ComponentMask(1 << 16);
    pub const PROXY_JOIN: ComponentMask = ComponentMask(1 << 17);

    /// Joins a group that exists, 0x10083: the broadcast group, whose parameters the answer tells (Linux `ipoib_multicast.c`,
    /// `ipoib_mcast_join`).
    pub const JOIN: ComponentMask = MGID.and(PORT_GID).and(P_KEY).and(JOIN_STATE);
    /// Joins and, where it does not exist, creates a group, 0x173F7: the parameters are the broadcast group's (same function).
    pub const CREATE: ComponentMask = JOIN
        .and(Q_KEY)
        .and(MTU_SELECTOR)
        .and(MTU)
        .and(TCLASS)
        .and(RATE_SELECTOR)
        .and(RATE)
        .and(SL)
        .and(FLOW_LABEL)
        .and(HOP_LIMIT);
    const _: () = assert!(JOIN.0 == 0x1_0083 && CREATE.0 == 0x1_73f7);
}
