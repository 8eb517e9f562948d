//! Performance management (IBA 16.1): PortCounters and PortCountersExtended, each with its own zero, and sampling.
//!
//! Counters of the data plane are never reset: a Set keeps what is to be subtracted. The short counters stick at their highest value, as
//! 16.1.3.5 wants; the extended ones have 64 bits and wrap. What no software link can see (symbol errors, link integrity, buffer overruns, waits
//! for credit) reads as zero.

use super::samples::Samples;
use super::{CounterValues, NodeCore};
use std::time::Instant;
use wire::mad::attr::{ClassPortInfo, PortCounters, PortCountersExtended, PortSamplesControl};
use wire::mad::{AttrId, MAD_LEN, MadBytes, MadHeader, MadStatus, Method, PERF_DATA_OFFSET, put};

/// PortSelect for all ports together (IBA 16.1.3.5).
const ALL_PORTS: u8 = 255;

/// What is subtracted from the counters of a port: their values at the zero of each attribute.
#[derive(Clone, Copy, Default)]
struct Zero {
    short: CounterValues,
    extended: CounterValues,
}

/// The performance management agent.
pub(crate) struct Pma {
    zeros: Vec<Zero>,
    samples: Samples,
}

/// The counters of an attribute by select bit: how a Set moves their zero and how an answer is filled in. CounterSelect2 follows bit 15.
macro_rules! counter_attribute {
    ($record:ident, $zero:ident, $method:ident { $($bit:literal $counter:ident: $field:ident $int:ty;)* }) => {
        fn $method(&mut self, core: &NodeCore, mad: &MadBytes, set: bool, answer: &mut MadBytes) -> MadStatus {
            let Some(wanted) = $record::parse(&mad[PERF_DATA_OFFSET..]) else {
                return MadStatus::INVALID_FIELD;
            };
            let Some(ports) = self.select(core, wanted.port_select) else {
                return MadStatus::INVALID_FIELD;
            };
            let mask = u64::from(wanted.counter_select) | u64::from(wanted.counter_select2) << 16;
            let mut sum = CounterValues::default();
            for n in ports {
                let values = core.ports[n].counters.values();
                let zero = &mut self.zeros[n].$zero;
                $(if set && mask >> $bit & 1 != 0 {
                    zero.$counter = values.$counter.wrapping_sub(wanted.$field as u64);
                })*
                sum = sum.plus(&values.minus(zero));
            }
            let counters = $record {
                port_select: wanted.port_select,
                counter_select: wanted.counter_select,
                counter_select2: wanted.counter_select2,
                $($field: sum.$counter.min(<$int>::MAX as u64) as $int,)*
                ..$record::default()
            };
            put(answer, PERF_DATA_OFFSET, &counters.emit());
            MadStatus::OK
        }
    };
}

impl Pma {
    pub(crate) fn new(ports: usize) -> Pma {
        Pma {
            zeros: vec![Zero::default(); ports],
            samples: Samples::default(),
        }
    }

    /// The answer to a request; `None` for a method that wants none.
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        core: &NodeCore,
        mad: &MadBytes,
    ) -> Option<MadBytes> {
        let header = MadHeader::parse(mad)?;
        let set = match header.method {
            Method::GET => false,
            Method::SET => true,
            m if m.is_response() || matches!(m, Method::TRAP_REPRESS | Method::SEND) => {
                return None;
            }
            _ => return Some(finish(mad, &header, MadStatus::METHOD_UNSUPPORTED)),
        };
        if header.class_version != 1 || header.base_version != 1 {
            return Some(finish(mad, &header, MadStatus::BAD_VERSION));
        }
        let mut answer = [0; MAD_LEN];
        let status = match header.attr_id {
            AttrId::CLASS_PORT_INFO if !set => {
                let info = ClassPortInfo {
                    base_version: 1,
                    class_version: 1,
                    capability_mask: ClassPortInfo::PERF_IS_EXTENDED_WIDTH_SUPPORTED
                        | ClassPortInfo::PERF_IS_ALL_PORT_SELECT_SUPPORTED
                        | ClassPortInfo::PERF_IS_QP1_DROPPED_SUPPORTED,
                    // Not told: that the errors of PortCountersExtended count. libumad2sim loses the last 32 bytes of each MAD, and its tools
                    // would report what was there before.
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
            AttrId::PORT_SAMPLES_CONTROL => self.samples_control(now, core, mad, set, &mut answer),
            AttrId::PORT_SAMPLES_RESULT if !set => {
                put(&mut answer, PERF_DATA_OFFSET, &self.samples.result().emit());
                MadStatus::OK
            }
            _ => MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED,
        };
        let content = if status.is_ok() { &answer } else { mad };
        Some(finish(content, &header, status))
    }

    /// When [`Pma::handle_timeout`] is due: a sample begins or ends.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.samples.poll_timeout()
    }

    /// Takes what a sample needs of the counters.
    pub(crate) fn handle_timeout(&mut self, now: Instant, core: &NodeCore) {
        self.samples.handle_timeout(now, core);
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

    fn samples_control(
        &mut self,
        now: Instant,
        core: &NodeCore,
        mad: &MadBytes,
        set: bool,
        answer: &mut MadBytes,
    ) -> MadStatus {
        let wanted = PortSamplesControl::parse(&mad[PERF_DATA_OFFSET..])
            .filter(|w| w.port_select != ALL_PORTS && self.select(core, w.port_select).is_some());
        let Some(wanted) = wanted else {
            return MadStatus::INVALID_FIELD;
        };
        if set {
            self.samples.begin(now, &wanted);
            self.samples.handle_timeout(now, core);
        }
        put(answer, PERF_DATA_OFFSET, &self.samples.control().emit());
        MadStatus::OK
    }

    counter_attribute!(PortCounters, short, port_counters {
        2 link_downed: link_downed_counter u8;
        3 rcv_errors: port_rcv_errors u16;
        5 rcv_switch_relay_errors: port_rcv_switch_relay_errors u16;
        6 xmit_discards: port_xmit_discards u16;
        7 xmit_constraint_errors: port_xmit_constraint_errors u8;
        8 rcv_constraint_errors: port_rcv_constraint_errors u8;
        11 vl15_dropped: vl15_dropped u16;
        12 xmit_data: port_xmit_data u32;
        13 rcv_data: port_rcv_data u32;
        14 xmit_pkts: port_xmit_pkts u32;
        15 rcv_pkts: port_rcv_pkts u32;
        17 qp1_dropped: qp1_dropped u16;
    });

    counter_attribute!(PortCountersExtended, extended, port_counters_extended {
        0 xmit_data: port_xmit_data u64;
        1 rcv_data: port_rcv_data u64;
        2 xmit_pkts: port_xmit_pkts u64;
        3 rcv_pkts: port_rcv_pkts u64;
        4 unicast_xmit_pkts: port_unicast_xmit_pkts u64;
        5 unicast_rcv_pkts: port_unicast_rcv_pkts u64;
        6 multicast_xmit_pkts: port_multicast_xmit_pkts u64;
        7 multicast_rcv_pkts: port_multicast_rcv_pkts u64;
        18 link_downed: link_downed_counter u64;
        19 rcv_errors: port_rcv_errors u64;
        21 rcv_switch_relay_errors: port_rcv_switch_relay_errors u64;
        22 xmit_discards: port_xmit_discards u64;
        23 xmit_constraint_errors: port_xmit_constraint_errors u64;
        24 rcv_constraint_errors: port_rcv_constraint_errors u64;
        27 vl15_dropped: vl15_dropped u64;
        29 qp1_dropped: qp1_dropped u64;
    });
}

fn finish(mad: &MadBytes, request: &MadHeader, status: MadStatus) -> MadBytes {
    let mut answer = *mad;
    put(&mut answer, 0, &request.response(status).emit());
    answer
}
