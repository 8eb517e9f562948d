//! Counters: each thing that is dropped or done has one.

use std::cell::Cell;

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident $text:literal;)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $($(#[$meta])* $name,)* }

        impl Counter {
            /// All, in their order.
            pub const ALL: &'static [Counter] = &[$(Counter::$name),*];
            /// Name for people and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$name => $text,)* }
            }
        }
    };
}

counters! {
    /// Sweeps that read everything.
    HeavySweeps "heavy_sweeps";
    /// Sweeps that look for changes.
    LightSweeps "light_sweeps";
    /// SMPs sent, without retries.
    SmpsSent "smps_sent";
    /// Requests that failed after all retries.
    SmpTimeouts "smp_timeouts";
    /// Nodes dropped because they did not answer.
    NodesDropped "nodes_dropped";
    /// Traps received.
    Traps "traps";
    /// Of those, 129 to 131: errors of a link.
    LinkErrorTraps "link_error_traps";
    /// Of those, 256 to 259: wrong keys.
    KeyTraps "key_traps";
    /// Nodes and ports found to have started anew.
    Resets "resets";
    /// Blocks of linear forwarding tables sent.
    LftBlocks "lft_blocks";
    /// Blocks of multicast forwarding tables sent.
    MftBlocks "mft_blocks";
    /// Took over from a silent master.
    TakeOvers "take_overs";
    /// Answers that belong to no request.
    StrayAnswers "stray_answers";
    /// SMPs answered with a bad status.
    BadStatus "bad_status";
    /// SMPs that make no sense.
    BadSmps "bad_smps";
    /// MADs that are not for a subnet manager or SA in this state.
    Ignored "ignored";
    /// A GUID answered in two places; the newer one is left out.
    DuplicateGuids "duplicate_guids";
    /// Ports without a LID because all are in use.
    OutOfLids "out_of_lids";
    /// Keys that did not fit into a P_Key table.
    PKeyTablesFull "p_key_tables_full";
    /// SA requests answered.
    SaRequests "sa_requests";
    /// SA requests answered with an error.
    SaErrors "sa_errors";
    /// SA requests dropped, delayed or refused on purpose.
    SaFaults "sa_faults";
    /// SA MADs from a LID that no port of the subnet has.
    SaStrangers "sa_strangers";
    /// SA MADs that make no sense.
    SaBad "sa_bad";
    /// Other managers, and their requests, with another SM_Key.
    SmBadKey "sm_bad_key";
    /// SA MADs with a wrong SM_Key.
    SaBadKey "sa_bad_key";
    /// Requests dropped because too many long answers are on the way.
    SaBusy "sa_busy";
    /// Reports sent, without retries.
    Reports "reports";
    /// News that subscribers were not told because too much waits.
    NewsDropped "news_dropped";
    /// Reports that nobody answered.
    ReportsLost "reports_lost";
    /// Long answers that were not received to their end.
    RmppAborted "rmpp_aborted";
}

/// A value of each [`Counter`].
#[derive(Clone, Debug)]
pub struct Counters(Vec<Cell<u64>>);

impl Default for Counters {
    fn default() -> Self {
        Counters(vec![Cell::new(0); Counter::ALL.len()])
    }
}

impl Counters {
    pub(super) fn add(&self, counter: Counter) {
        if let Some(cell) = self.0.get(counter as usize) {
            cell.set(cell.get() + 1);
        }
    }
    /// The value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize).map_or(0, Cell::get)
    }
    /// All with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| (c.name(), self.get(*c)))
    }
}
