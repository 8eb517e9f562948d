//! Performance management (IBA 16.1): PortCounters and PortCountersExtended, each with its own zero.

use super::{CounterValues, NodeCore};
use wire::mad::attr::{ClassPortInfo, PortCounters, PortCountersExtended};
use wire::mad::{AttrId, MAD_LEN, MadBytes, MadHeader, MadStatus, Method, PERF_DATA_OFFSET, put};

/// PortSelect for all ports together (IBA 16.1.3.5).
const ALL_PORTS: u8 = 255;
/// ClassPortInfo of performance management: AllPortSelect works.
const IS_ALL_PORT_SELECT_SUPPORTED: u16 = 1 << 8;

/// What has been subtracted from the counters of a port since it was last set: the value at its zero.
#[derive(Clone, Copy, Default)]
struct Zero {
    short: CounterValues,
    extended: CounterValues,
}

/// The performance management agent.
pub(crate) struct Pma {
    zeros: Vec<Zero>,
}

fn cut8(n: u64) -> u8 {
    n.min(u64::from(u8::MAX)) as u8
}
fn cut16(n: u64) -> u16 {
    n.min(u64::from(u16::MAX)) as u16
}
fn cut32(n: u64) -> u32 {
    n.min(u64::from(u32::MAX)) as u32
}

impl Pma {
    pub(crate) fn new(ports: usize) -> Pma {
        Pma {
            zeros: vec![Zero::default(); ports],
        }
    }

    /// The answer to a request; `None` for a method that wants none.
    pub(crate) fn answer(&mut self, core: &NodeCore, mad: &MadBytes) -> Option<MadBytes> {
        let header = MadHeader::parse(mad)?;
        let set = match header.method {
            Method::GET => false,
            Method::SET => true,
            m if m.is_response() || m == Method::TRAP_REPRESS => return None,
            _ => return Some(finish(mad, &header, MadStatus::METHOD_UNSUPPORTED)),
        };
        if header.class_version != 1 || header.base_version != 1 {
            return Some(finish(mad, &header, MadStatus::BAD_VERSION));
        }
        let mut answer = [0; MAD_LEN];
        let status = match header.attr_id {
            AttrId::CLASS_PORT_INFO => {
                let info = ClassPortInfo {
                    base_version: 1,
                    class_version: 1,
                    capability_mask: ClassPortInfo::PERF_IS_EXTENDED_WIDTH_SUPPORTED
                        | IS_ALL_PORT_SELECT_SUPPORTED,
                    resp_time_value: 16,
                    ..ClassPortInfo::default()
                };
                put(&mut answer, PERF_DATA_OFFSET, &info.emit());
                MadStatus::OK
            }
            AttrId::PORT_COUNTERS => self.port_counters(core, mad, set, &mut answer),
            AttrId::PORT_COUNTERS_EXTENDED => {
                self.port_counters_extended(core, mad, set, &mut answer)
            }
            _ => {
                return Some(finish(
                    mad,
                    &header,
                    MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED,
                ));
            }
        };
        if !status.is_ok() {
            return Some(finish(mad, &header, status));
        }
        Some(finish(&answer, &header, status))
    }

    /// Indices of the ports selected.
    fn select(&self, core: &NodeCore, select: u8) -> Option<std::ops::Range<usize>> {
        let first = usize::from(core.end_port);
        match usize::from(select) {
            _ if select == ALL_PORTS => Some(first..self.zeros.len()),
            n if (first..self.zeros.len()).contains(&n) => Some(n..n + 1),
            _ => None,
        }
    }

    fn port_counters(
        &mut self,
        core: &NodeCore,
        mad: &MadBytes,
        set: bool,
        answer: &mut MadBytes,
    ) -> MadStatus {
        let Some(wanted) = PortCounters::parse(&mad[PERF_DATA_OFFSET..]) else {
            return MadStatus::INVALID_FIELD;
        };
        let Some(ports) = self.select(core, wanted.port_select) else {
            return MadStatus::INVALID_FIELD;
        };
        let mut sum = CounterValues::default();
        for n in ports {
            let values = core.ports[n].counters.values();
            let zero = &mut self.zeros[n].short;
            if set {
                let mask = wanted.counter_select;
                let reset = |bit: u8, zero: &mut u64, value: u64, to: u64| {
                    if mask >> bit & 1 != 0 {
                        *zero = value.wrapping_sub(to);
                    }
                };
                reset(
                    2,
                    &mut zero.link_downed,
                    values.link_downed,
                    wanted.link_downed_counter.into(),
                );
                reset(
                    3,
                    &mut zero.rcv_errors,
                    values.rcv_errors,
                    wanted.port_rcv_errors.into(),
                );
                let to = wanted.port_rcv_switch_relay_errors.into();
                reset(
                    5,
                    &mut zero.rcv_switch_relay_errors,
                    values.rcv_switch_relay_errors,
                    to,
                );
                reset(
                    6,
                    &mut zero.xmit_discards,
                    values.xmit_discards,
                    wanted.port_xmit_discards.into(),
                );
                reset(
                    7,
                    &mut zero.xmit_constraint_errors,
                    values.xmit_constraint_errors,
                    wanted.port_xmit_constraint_errors.into(),
                );
                reset(
                    8,
                    &mut zero.rcv_constraint_errors,
                    values.rcv_constraint_errors,
                    wanted.port_rcv_constraint_errors.into(),
                );
                reset(
                    11,
                    &mut zero.vl15_dropped,
                    values.vl15_dropped,
                    wanted.vl15_dropped.into(),
                );
                reset(
                    12,
                    &mut zero.xmit_data,
                    values.xmit_data,
                    wanted.port_xmit_data.into(),
                );
                reset(
                    13,
                    &mut zero.rcv_data,
                    values.rcv_data,
                    wanted.port_rcv_data.into(),
                );
                reset(
                    14,
                    &mut zero.xmit_pkts,
                    values.xmit_pkts,
                    wanted.port_xmit_pkts.into(),
                );
                reset(
                    15,
                    &mut zero.rcv_pkts,
                    values.rcv_pkts,
                    wanted.port_rcv_pkts.into(),
                );
                // CounterSelect2 bit 1 is QP1Dropped.
                if wanted.counter_select2 >> 1 & 1 != 0 {
                    zero.qp1_dropped = values.qp1_dropped.wrapping_sub(wanted.qp1_dropped.into());
                }
            }
            sum = sum.plus(&values.minus(zero));
        }
        let counters = PortCounters {
            port_select: wanted.port_select,
            counter_select: wanted.counter_select,
            link_downed_counter: cut8(sum.link_downed),
            port_rcv_errors: cut16(sum.rcv_errors),
            port_rcv_switch_relay_errors: cut16(sum.rcv_switch_relay_errors),
            port_xmit_discards: cut16(sum.xmit_discards),
            port_xmit_constraint_errors: cut8(sum.xmit_constraint_errors),
            port_rcv_constraint_errors: cut8(sum.rcv_constraint_errors),
            counter_select2: wanted.counter_select2,
            qp1_dropped: cut16(sum.qp1_dropped),
            vl15_dropped: cut16(sum.vl15_dropped),
            port_xmit_data: cut32(sum.xmit_data),
            port_rcv_data: cut32(sum.rcv_data),
            port_xmit_pkts: cut32(sum.xmit_pkts),
            port_rcv_pkts: cut32(sum.rcv_pkts),
            ..PortCounters::default()
        };
        put(answer, PERF_DATA_OFFSET, &counters.emit());
        MadStatus::OK
    }

    fn port_counters_extended(
        &mut self,
        core: &NodeCore,
        mad: &MadBytes,
        set: bool,
        answer: &mut MadBytes,
    ) -> MadStatus {
        let Some(wanted) = PortCountersExtended::parse(&mad[PERF_DATA_OFFSET..]) else {
            return MadStatus::INVALID_FIELD;
        };
        let Some(ports) = self.select(core, wanted.port_select) else {
            return MadStatus::INVALID_FIELD;
        };
        let mut sum = CounterValues::default();
        for n in ports {
            let values = core.ports[n].counters.values();
            let zero = &mut self.zeros[n].extended;
            if set {
                let reset = |bit: u8, zero: &mut u64, value: u64, to: u64| {
                    if wanted.counter_select >> bit & 1 != 0 {
                        *zero = value.wrapping_sub(to);
                    }
                };
                reset(
                    0,
                    &mut zero.xmit_data,
                    values.xmit_data,
                    wanted.port_xmit_data,
                );
                reset(1, &mut zero.rcv_data, values.rcv_data, wanted.port_rcv_data);
                reset(
                    2,
                    &mut zero.xmit_pkts,
                    values.xmit_pkts,
                    wanted.port_xmit_pkts,
                );
                reset(3, &mut zero.rcv_pkts, values.rcv_pkts, wanted.port_rcv_pkts);
                reset(
                    4,
                    &mut zero.unicast_xmit_pkts,
                    values.unicast_xmit_pkts,
                    wanted.port_unicast_xmit_pkts,
                );
                reset(
                    5,
                    &mut zero.unicast_rcv_pkts,
                    values.unicast_rcv_pkts,
                    wanted.port_unicast_rcv_pkts,
                );
                reset(
                    6,
                    &mut zero.multicast_xmit_pkts,
                    values.multicast_xmit_pkts,
                    wanted.port_multicast_xmit_pkts,
                );
                reset(
                    7,
                    &mut zero.multicast_rcv_pkts,
                    values.multicast_rcv_pkts,
                    wanted.port_multicast_rcv_pkts,
                );
            }
            sum = sum.plus(&values.minus(zero));
        }
        let counters = PortCountersExtended {
            port_select: wanted.port_select,
            counter_select: wanted.counter_select,
            port_xmit_data: sum.xmit_data,
            port_rcv_data: sum.rcv_data,
            port_xmit_pkts: sum.xmit_pkts,
            port_rcv_pkts: sum.rcv_pkts,
            port_unicast_xmit_pkts: sum.unicast_xmit_pkts,
            port_unicast_rcv_pkts: sum.unicast_rcv_pkts,
            port_multicast_xmit_pkts: sum.multicast_xmit_pkts,
            port_multicast_rcv_pkts: sum.multicast_rcv_pkts,
            ..PortCountersExtended::default()
        };
        put(answer, PERF_DATA_OFFSET, &counters.emit());
        MadStatus::OK
    }
}

fn finish(mad: &MadBytes, request: &MadHeader, status: MadStatus) -> MadBytes {
    let mut answer = *mad;
    put(&mut answer, 0, &request.response(status).emit());
    answer
}
