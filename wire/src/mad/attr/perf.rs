//! ClassPortInfo (IBA 13.4.8.1) and the counters of performance management (16.1.3.5, 16.1.4.11).

use crate::bits::record;
use crate::id::{Gid, Lid, PKey, QKey, Qpn, ServiceLevel};

record! {
    /// ClassPortInfo.
    pub struct ClassPortInfo[72] {
        base_version: u8 = 0:8,
        class_version: u8 = 8:8,
        capability_mask: u16 = 16:16,
        /// 27 bits; SA bit 12: SendOnlyFullMember joins.
        capability_mask2: u32 = 32:27,
        /// 4.096 us * 2^n.
        resp_time_value: u8 = 59:5,
        redirect_gid: Gid = 64:128,
        redirect_tclass: u8 = 192:8,
        redirect_sl: ServiceLevel = 200:4,
        redirect_flow_label: u32 = 204:20,
        redirect_lid: Lid = 224:16,
        redirect_p_key: PKey = 240:16,
        redirect_qp: Qpn = 264:24,
        redirect_q_key: QKey = 288:32,
        trap_gid: Gid = 320:128,
        trap_tclass: u8 = 448:8,
        trap_sl: ServiceLevel = 456:4,
        trap_flow_label: u32 = 460:20,
        trap_lid: Lid = 480:16,
        trap_p_key: PKey = 496:16,
        trap_hop_limit: u8 = 512:8,
        trap_qp: Qpn = 520:24,
        trap_q_key: QKey = 544:32,
    }
}

record! {
    /// PortCounters: the counters stick at their highest value.
    pub struct PortCounters[44] {
        port_select: u8 = 8:8,
        /// Set: which counters to write.
        counter_select: u16 = 16:16,
        symbol_error_counter: u16 = 32:16,
        link_error_recovery_counter: u8 = 48:8,
        link_downed_counter: u8 = 56:8,
        port_rcv_errors: u16 = 64:16,
        port_rcv_remote_physical_errors: u16 = 80:16,
        port_rcv_switch_relay_errors: u16 = 96:16,
        port_xmit_discards: u16 = 112:16,
        port_xmit_constraint_errors: u8 = 128:8,
        port_rcv_constraint_errors: u8 = 136:8,
        counter_select2: u8 = 144:8,
        local_link_integrity_errors: u8 = 152:4,
        excessive_buffer_overrun_errors: u8 = 156:4,
        qp1_dropped: u16 = 160:16,
        vl15_dropped: u16 = 176:16,
        /// Units of 4 bytes.
        port_xmit_data: u32 = 192:32,
        /// Units of 4 bytes.
        port_rcv_data: u32 = 224:32,
        port_xmit_pkts: u32 = 256:32,
        port_rcv_pkts: u32 = 288:32,
        /// Ticks with data to send and no credit.
        port_xmit_wait: u32 = 320:32,
    }
}

record! {
    /// PortCountersExtended.
    pub struct PortCountersExtended[184] {
        port_select: u8 = 8:8,
        counter_select: u16 = 16:16,
        counter_select2: u32 = 32:32,
        /// Units of 4 bytes.
        port_xmit_data: u64 = 64:64,
        /// Units of 4 bytes.
        port_rcv_data: u64 = 128:64,
        port_xmit_pkts: u64 = 192:64,
        port_rcv_pkts: u64 = 256:64,
        port_unicast_xmit_pkts: u64 = 320:64,
        port_unicast_rcv_pkts: u64 = 384:64,
        port_multicast_xmit_pkts: u64 = 448:64,
        port_multicast_rcv_pkts: u64 = 512:64,
        symbol_error_counter: u64 = 576:64,
        link_error_recovery_counter: u64 = 640:64,
        link_downed_counter: u64 = 704:64,
        port_rcv_errors: u64 = 768:64,
        port_rcv_remote_physical_errors: u64 = 832:64,
        port_rcv_switch_relay_errors: u64 = 896:64,
        port_xmit_discards: u64 = 960:64,
        port_xmit_constraint_errors: u64 = 1024:64,
        port_rcv_constraint_errors: u64 = 1088:64,
        local_link_integrity_errors: u64 = 1152:64,
        excessive_buffer_overrun_errors: u64 = 1216:64,
        vl15_dropped: u64 = 1280:64,
        port_xmit_wait: u64 = 1344:64,
        qp1_dropped: u64 = 1408:64,
    }
}

impl ClassPortInfo {
    /// CapabilityMask, all classes: traps are sent.
    pub const IS_TRAP_SUPPORTED: u16 = 1;
    /// CapabilityMask, SA: the optional records and methods are there.
    pub const SA_IS_OPTIONAL_RECORDS_SUPPORTED: u16 = 1 << 9;
    /// CapabilityMask, PerfMgt: PortCountersExtended is there.
    pub const PERF_IS_EXTENDED_WIDTH_SUPPORTED: u16 = 1 << 9;
    /// CapabilityMask2, SA: SendOnlyFullMember joins (Linux `ipoib_verbs.c` and `sa_query.c` look for it).
    pub const SA_IS_SEND_ONLY_FULL_MEMBER_SUPPORTED: u32 = 1 << 12;
}
