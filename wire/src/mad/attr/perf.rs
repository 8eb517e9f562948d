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

record! {
    /// PortSamplesControl (IBA 16.1.3.2): counts some counters of a port over an interval.
    pub struct PortSamplesControl[80] {
        /// Not used by general sampling.
        op_code: u8 = 0:8,
        port_select: u8 = 8:8,
        /// Unit of the times.
        tick: u8 = 16:8,
        /// Widest of the counters: 0 is 16 bits, 4 is 32 bits.
        counter_width: u8 = 29:3,
        /// How counter 0 can be selected: 1 is among the mandatory ones.
        counter_mask0: u8 = 34:3,
        /// Counters 1 to 9, 3 bits each.
        counter_masks1to9: u32 = 37:27,
        /// Counters 10 to 14, 3 bits each.
        counter_masks10to14: u16 = 65:15,
        /// Number of mechanisms.
        sample_mechanisms: u8 = 80:8,
        /// 0: done, 1: waits for its start, 2: counting.
        sample_status: u8 = 94:2,
        option_mask: u64 = 96:64,
        vendor_mask: u64 = 160:64,
        /// Ticks from the Set to the first count.
        sample_start: u32 = 224:32,
        /// Ticks from the first count to the last.
        sample_interval: u32 = 256:32,
        /// Names the sample in its result.
        tag: u16 = 288:16,
        /// 1, 2: data sent and received, 3, 4: packets sent and received, 5: waits to send.
        counter_select: [u16; 15] = 304:240,
        samples_only_option_mask: u64 = 576:64,
    }
}

record! {
    /// PortSamplesResult (IBA 16.1.3.4).
    pub struct PortSamplesResult[64] {
        tag: u16 = 0:16,
        /// As in [`PortSamplesControl`].
        sample_status: u8 = 30:2,
        counter: [u32; 15] = 32:480,
    }
}

impl ClassPortInfo {
    /// CapabilityMask, all classes: traps are sent.
    pub const IS_TRAP_SUPPORTED: u16 = 1;
    /// CapabilityMask, SA: the optional records and methods are there.
    pub const SA_IS_OPTIONAL_RECORDS_SUPPORTED: u16 = 1 << 9;
    /// CapabilityMask, PerfMgt: PortSelect 0xFF means all ports together.
    pub const PERF_IS_ALL_PORT_SELECT_SUPPORTED: u16 = 1 << 8;
    /// CapabilityMask, PerfMgt: QP1Dropped of PortCounters counts.
    pub const PERF_IS_QP1_DROPPED_SUPPORTED: u16 = 1 << 15;
    /// CapabilityMask, PerfMgt: PortCountersExtended is there.
    pub const PERF_IS_EXTENDED_WIDTH_SUPPORTED: u16 = 1 << 9;
    /// CapabilityMask2, SA: SendOnlyFullMember joins (Linux `ipoib_verbs.c` and `sa_query.c` look for it).
    pub const SA_IS_SEND_ONLY_FULL_MEMBER_SUPPORTED: u32 = 1 << 12;
}
