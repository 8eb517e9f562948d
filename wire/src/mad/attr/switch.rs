//! Switches: SwitchInfo and forwarding tables (IBA 14.2.5.4, 14.2.5.10, 14.2.5.12).

use crate::bits::record;

record! {
    /// SwitchInfo.
    pub struct SwitchInfo[20] {
        linear_fdb_cap: u16 = 0:16,
        random_fdb_cap: u16 = 16:16,
        multicast_fdb_cap: u16 = 32:16,
        linear_fdb_top: u16 = 48:16,
        default_port: u8 = 64:8,
        default_multicast_primary_port: u8 = 72:8,
        default_multicast_not_primary_port: u8 = 80:8,
        life_time_value: u8 = 88:5,
        /// Set by the switch when a port changed state; the manager clears it by writing 1.
        port_state_change: bool = 93:1,
        optimized_sl_to_vl_mapping_programming: u8 = 94:2,
        lids_per_port: u16 = 96:16,
        partition_enforcement_cap: u16 = 112:16,
        inbound_enforcement_cap: bool = 128:1,
        outbound_enforcement_cap: bool = 129:1,
        filter_raw_inbound_cap: bool = 130:1,
        filter_raw_outbound_cap: bool = 131:1,
        enhanced_port0: bool = 132:1,
        multicast_fdb_top: u16 = 144:16,
    }
}

record! {
    /// A block of the linear forwarding table: ports for LIDs `64 * modifier ..`; 255: none.
    pub struct LinearForwardingTable[64] {
        port: [u8; 64] = 0:512,
    }
}

record! {
    /// A block of the multicast forwarding table: port masks for 32 MLIDs from `0xC000 + 32 * block`. The modifier has the block in bits 8-0 and in
    /// bits 31-28 which 16 ports the masks are of.
    pub struct MulticastForwardingTable[64] {
        port_mask: [u16; 32] = 0:512,
    }
}
