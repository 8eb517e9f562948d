//! PortInfo (IBA 14.2.5.6).

use crate::bits::{newtype_field, record};
use crate::id::{Lid, MtuCode, ServiceLevel};
use crate::mad::names::named;
use std::fmt;

/// Logical link state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortState(pub u8);

/// Physical link state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PortPhysicalState(pub u8);

/// Link widths, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct LinkWidth(pub u8);

/// CapabilityMask of PortInfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CapabilityMask(pub u32);

newtype_field!(
    PortState(u8),
    PortPhysicalState(u8),
    LinkWidth(u8),
    CapabilityMask(u32)
);

named!(PortState(u8) {
    NO_CHANGE = 0 "NoChange";
    DOWN = 1 "Down";
    INIT = 2 "Init";
    ARMED = 3 "Armed";
    ACTIVE = 4 "Active";
});

named!(PortPhysicalState(u8) {
    NO_CHANGE = 0 "NoChange";
    SLEEP = 1 "Sleep";
    POLLING = 2 "Polling";
    DISABLED = 3 "Disabled";
    PORT_CONFIGURATION_TRAINING = 4 "PortConfigurationTraining";
    LINK_UP = 5 "LinkUp";
    LINK_ERROR_RECOVERY = 6 "LinkErrorRecovery";
    PHY_TEST = 7 "PhyTest";
});

named!(LinkWidth(u8) {
    X1 = 1 "1x";
    X4 = 2 "4x";
    X1_OR_X4 = 3 "1x or 4x";
    X8 = 4 "8x";
    X12 = 8 "12x";
    X2 = 16 "2x";
});

macro_rules! capabilities {
    ($($name:ident = $bit:literal $text:literal;)*) => {
        impl CapabilityMask {
            $(#[doc = $text] pub const $name: CapabilityMask = CapabilityMask(1 << $bit);)*

            /// Names of the bits set, in their order.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$(($bit, $text)),*].into_iter().filter(move |(bit, _)| self.0 >> bit & 1 != 0).map(|(_, text)| text)
            }
        }
    };
}

capabilities! {
    IS_SM = 1 "IsSM";
    IS_NOTICE_SUPPORTED = 2 "IsNoticeSupported";
    IS_TRAP_SUPPORTED = 3 "IsTrapSupported";
    IS_OPTIONAL_IPD_SUPPORTED = 4 "IsOptionalIPDSupported";
    IS_AUTOMATIC_MIGRATION_SUPPORTED = 5 "IsAutomaticMigrationSupported";
    IS_SL_MAPPING_SUPPORTED = 6 "IsSLMappingSupported";
    IS_M_KEY_NVRAM = 7 "IsMKeyNVRAM";
    IS_P_KEY_NVRAM = 8 "IsPKeyNVRAM";
    IS_LED_INFO_SUPPORTED = 9 "IsLEDInfoSupported";
    IS_SM_DISABLED = 10 "IsSMdisabled";
    IS_SYSTEM_IMAGE_GUID_SUPPORTED = 11 "IsSystemImageGUIDsupported";
    IS_P_KEY_SWITCH_EXTERNAL_PORT_TRAP_SUPPORTED = 12 "IsPKeySwitchExternalPortTrapSupported";
    IS_EXTENDED_SPEEDS_SUPPORTED = 14 "IsExtendedSpeedsSupported";
    IS_CAPABILITY_MASK2_SUPPORTED = 15 "IsCapabilityMask2Supported";
    IS_COMMUNICATION_MANAGEMENT_SUPPORTED = 16 "IsCommunicationManagementSupported";
    IS_SNMP_TUNNELING_SUPPORTED = 17 "IsSNMPTunnelingSupported";
    IS_REINIT_SUPPORTED = 18 "IsReinitSupported";
    IS_DEVICE_MANAGEMENT_SUPPORTED = 19 "IsDeviceManagementSupported";
    IS_VENDOR_CLASS_SUPPORTED = 20 "IsVendorClassSupported";
    IS_DR_NOTICE_SUPPORTED = 21 "IsDRNoticeSupported";
    IS_CAPABILITY_MASK_NOTICE_SUPPORTED = 22 "IsCapabilityMaskNoticeSupported";
    IS_BOOT_MANAGEMENT_SUPPORTED = 23 "IsBootManagementSupported";
    IS_LINK_ROUND_TRIP_LATENCY_SUPPORTED = 24 "IsLinkRoundTripLatencySupported";
    IS_CLIENT_REREGISTRATION_SUPPORTED = 25 "IsClientReregistrationSupported";
    IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED = 26 "IsOtherLocalChangesNoticeSupported";
    IS_LINK_SPEED_WIDTH_PAIRS_TABLE_SUPPORTED = 27 "IsLinkSpeedWidthPairsTableSupported";
    IS_VENDOR_SPECIFIC_MADS_TABLE_SUPPORTED = 28 "IsVendorSpecificMadsTableSupported";
    IS_MCAST_P_KEY_TRAP_SUPPRESSION_SUPPORTED = 29 "IsMcastPkeyTrapSuppressionSupported";
    IS_MULTICAST_FDB_TOP_SUPPORTED = 30 "IsMulticastFDBTopSupported";
    IS_HIERARCHY_INFO_SUPPORTED = 31 "IsHierarchyInfoSupported";
}

impl CapabilityMask {
    /// All bits of `other` set?
    pub const fn contains(self, other: CapabilityMask) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for CapabilityMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        CapabilityMask(self.0 | other.0)
    }
}

record! {
    /// PortInfo. The attribute modifier is the port number; a CA answers for the port asked if it is 0.
    pub struct PortInfo[64] {
        m_key: u64 = 0:64,
        gid_prefix: u64 = 64:64,
        lid: Lid = 128:16,
        master_sm_lid: Lid = 144:16,
        capability_mask: CapabilityMask = 160:32,
        diag_code: u16 = 192:16,
        /// Seconds; 0: never expires.
        m_key_lease_period: u16 = 208:16,
        /// The port the request came in by.
        local_port_num: u8 = 224:8,
        link_width_enabled: LinkWidth = 232:8,
        link_width_supported: LinkWidth = 240:8,
        link_width_active: LinkWidth = 248:8,
        /// Bit 0: 2.5, bit 1: 5, bit 2: 10 Gbit/s per lane.
        link_speed_supported: u8 = 256:4,
        port_state: PortState = 260:4,
        port_physical_state: PortPhysicalState = 264:4,
        link_down_default_state: u8 = 268:4,
        m_key_protect_bits: u8 = 272:2,
        lmc: u8 = 277:3,
        link_speed_active: u8 = 280:4,
        link_speed_enabled: u8 = 284:4,
        neighbor_mtu: MtuCode = 288:4,
        master_sm_sl: ServiceLevel = 292:4,
        /// 1: VL0, 2: VL0-1, 3: VL0-3, 4: VL0-7, 5: VL0-14.
        vl_cap: u8 = 296:4,
        init_type: u8 = 300:4,
        vl_high_limit: u8 = 304:8,
        vl_arb_high_cap: u8 = 312:8,
        vl_arb_low_cap: u8 = 320:8,
        init_type_reply: u8 = 328:4,
        mtu_cap: MtuCode = 332:4,
        vl_stall_count: u8 = 336:3,
        hoq_life: u8 = 339:5,
        /// Coded as `vl_cap`.
        operational_vls: u8 = 344:4,
        partition_enforcement_inbound: bool = 348:1,
        partition_enforcement_outbound: bool = 349:1,
        filter_raw_inbound: bool = 350:1,
        filter_raw_outbound: bool = 351:1,
        m_key_violations: u16 = 352:16,
        p_key_violations: u16 = 368:16,
        q_key_violations: u16 = 384:16,
        /// Entries of GUIDInfo.
        guid_cap: u8 = 400:8,
        /// Set by the subnet manager: subscriptions and multicast joins must be made anew.
        client_reregister: bool = 408:1,
        multicast_pkey_trap_suppression_enabled: u8 = 409:2,
        /// 4.096 us * 2^n.
        subnet_timeout: u8 = 411:5,
        /// 4.096 us * 2^n.
        resp_time_value: u8 = 419:5,
        local_phy_errors: u8 = 424:4,
        overrun_errors: u8 = 428:4,
        max_credit_hint: u16 = 432:16,
        /// Of speeds beyond NDR; bit 0: 200 Gbit/s per lane.
        link_speed_ext_active2: u8 = 449:2,
        link_speed_ext_supported2: u8 = 451:2,
        link_speed_ext_enabled2: u8 = 453:3,
        link_round_trip_latency: u32 = 456:24,
        capability_mask2: u16 = 480:16,
        /// Bit 0: 14, bit 1: 25, bit 2: 50, bit 3: 100 Gbit/s per lane.
        link_speed_ext_active: u8 = 496:4,
        link_speed_ext_supported: u8 = 500:4,
        link_speed_ext_enabled: u8 = 507:5,
    }
}
