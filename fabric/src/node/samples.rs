//! Sampling of a port's counters (IBA 16.1.3.2 and 16.1.3.4): one mechanism, the mandatory counters, without any IO.

use super::{CounterValues, NodeCore};
use std::time::{Duration, Instant};
use wire::mad::attr::{PortSamplesControl, PortSamplesResult};

/// A tick is `TICK + 1` times ten bit times of 2.5 Gbit/s, that is 1 us.
const TICK: u8 = 249;
/// CounterWidth: 32 bits.
const WIDTH_32: u8 = 4;

/// The sampling mechanism of a node.
#[derive(Default)]
pub(crate) struct Samples {
    wanted: PortSamplesControl,
    /// Waits for this moment.
    start: Option<Instant>,
    /// Counts from these values until this moment.
    end: Option<(Instant, CounterValues)>,
    counter: [u32; 15],
}

fn ticks(n: u32) -> Duration {
    Duration::from_micros(n.into())
}

impl Samples {
    fn status(&self) -> u8 {
        match (self.start, self.end) {
            (Some(_), _) => 1,
            (_, Some(_)) => 2,
            _ => 0,
        }
    }

    /// Begins a sample, unless one is under way: then nothing changes.
    pub(crate) fn begin(&mut self, now: Instant, wanted: &PortSamplesControl) {
        if self.status() == 0 {
            self.wanted = *wanted;
            self.counter = [0; 15];
            self.start = Some(now + ticks(wanted.sample_start));
        }
    }

    /// The attribute with what this mechanism can do.
    pub(crate) fn control(&self) -> PortSamplesControl {
        PortSamplesControl {
            op_code: 0,
            port_select: self.wanted.port_select,
            tick: TICK,
            counter_width: WIDTH_32,
            counter_mask0: 1,
            counter_masks1to9: 0o111_111_111,
            counter_masks10to14: 0o11_111,
            sample_mechanisms: 1,
            sample_status: self.status(),
            option_mask: 0,
            vendor_mask: 0,
            samples_only_option_mask: 0,
            ..self.wanted
        }
    }

    /// The counters; all zero until the sample is over.
    pub(crate) fn result(&self) -> PortSamplesResult {
        PortSamplesResult {
            tag: self.wanted.tag,
            sample_status: self.status(),
            counter: self.counter,
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.start.or(self.end.map(|(at, _)| at))
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, core: &NodeCore) {
        let Some(port) = core.ports.get(usize::from(self.wanted.port_select)) else {
            return;
        };
        let values = port.counters.values();
        if self.start.is_some_and(|t| t <= now) {
            self.start = None;
            self.end = Some((now + ticks(self.wanted.sample_interval), values));
        }
        if let Some((_, first)) = self.end.filter(|(t, _)| *t <= now) {
            self.end = None;
            let counted = values.minus(&first);
            self.counter = self.wanted.counter_select.map(|select| {
                let n = match select {
                    1 => counted.xmit_data,
                    2 => counted.rcv_data,
                    3 => counted.xmit_pkts,
                    4 => counted.rcv_pkts,
                    // PortXmitWait, which no software link has, and what is not selected.
                    _ => 0,
                };
                u32::try_from(n).unwrap_or(u32::MAX)
            });
        }
    }
}
