//! Receiving side of RMPP (IBA 13.6): puts the segments of a long answer together and says what to acknowledge.
//!
//! Segments are taken in order only; the sender repeats what comes after a gap (go-back-N, as its specification allows).

use wire::mad::rmpp::ack;
use wire::mad::sa::{DATA_LEN, RmppHeader, SA_HEADER_LEN};
use wire::mad::{MadHeader, SaMad};

/// How many segments beyond the last one in order a sender may have under way.
const WINDOW: u32 = 32;

/// What a segment did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to send yet.
    Quiet,
    /// Acknowledge up to the last segment in order.
    Ack,
    /// Acknowledge; the data is complete.
    Done(Vec<u8>),
    /// The transfer failed, for this reason.
    Broken(&'static str),
}

/// One transfer. Its size is bounded by the limit given.
#[derive(Debug)]
pub(crate) struct Receiver {
    data: Vec<u8>,
    last: u32,
    window_end: u32,
    limit: usize,
}

impl Receiver {
    pub(crate) fn new(limit: usize) -> Self {
        // IBA 13.6.6.2: the window is 1 until the first ACK.
        Receiver {
            data: Vec::new(),
            last: 0,
            window_end: 1,
            limit,
        }
    }

    /// Segments taken so far.
    pub(crate) fn started(&self) -> bool {
        self.last > 0
    }

    /// Takes a DATA segment.
    pub(crate) fn segment(&mut self, mad: &SaMad) -> Step {
        let RmppHeader {
            segment,
            length,
            first,
            last,
            ..
        } = mad.rmpp;
        if segment != self.last.wrapping_add(1) {
            // A repetition, or one after a gap.
            return Step::Ack;
        }
        if first != (segment == 1) {
            return Step::Broken("the FIRST flag is not on segment 1");
        }
        // The length counts in the last segment what it has; in the others it is at most a hint.
        let bytes = if last {
            (length as usize)
                .saturating_sub(SA_HEADER_LEN)
                .min(DATA_LEN)
        } else {
            DATA_LEN
        };
        // A single segment that is first and last has the total, which is the same number.
        if self.data.len() + bytes > self.limit {
            return Step::Broken("the answer is longer than this client takes");
        }
        self.data.extend_from_slice(&mad.data[..bytes]);
        self.last = segment;
        if last {
            return Step::Done(std::mem::take(&mut self.data));
        }
        if segment >= self.window_end {
            Step::Ack
        } else {
            Step::Quiet
        }
    }

    /// The ACK for what has come so far, in answer to `mad`, and opens the window further.
    pub(crate) fn ack(&mut self, mad: &MadHeader) -> SaMad {
        self.window_end = self.last.saturating_add(WINDOW);
        ack(mad, self.last, self.window_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::mad::rmpp::{segment, segment_count};

    /// The segments of `data`, as a sender makes them.
    fn segments(data: &[u8]) -> Vec<SaMad> {
        (1..=segment_count(data.len()))
            .map_while(|n| segment(&SaMad::default(), data, n))
            .collect()
    }

    proptest! {
        /// A go-back-N sender over a link that loses and repeats gets every byte through.
        #[test]
        fn transfer_completes(data in proptest::collection::vec(any::<u8>(), 0..30_000), luck in proptest::collection::vec(0u8..10, 1..50)) {
            let segments = segments(&data);
            let mut receiver = Receiver::new(1 << 20);
            let (mut acked, mut window, mut luck) = (0u32, 1u32, luck.into_iter().chain(std::iter::repeat(9)));
            let mut done = None;
            'transfer: for _round in 0..2000 {
                let end = window.min(segments.len() as u32);
                for segment in &segments[acked as usize..end as usize] {
                    for _copy in 0..match luck.next() { Some(0 | 1) => 0, Some(2) => 2, _ => 1 } {
                        match receiver.segment(segment) {
                            Step::Quiet => {}
                            Step::Ack => {
                                let ack = receiver.ack(&MadHeader::default());
                                acked = acked.max(ack.rmpp.segment);
                                window = window.max(ack.rmpp.length);
                            }
                            Step::Done(data) => { done = Some(data); break 'transfer; }
                            Step::Broken(why) => panic!("{why}"),
                        }
                    }
                }
            }
            prop_assert_eq!(done, Some(data));
        }

        #[test]
        fn any_segments_stay_within_the_limit(headers in proptest::collection::vec((any::<[u8; 12]>(), any::<bool>()), 1..12)) {
            let mut receiver = Receiver::new(900);
            for (n, (header, orderly)) in (1..).zip(headers) {
                let mut rmpp = RmppHeader::parse(&header).unwrap_or_default();
                if orderly {
                    (rmpp.segment, rmpp.first) = (n, n == 1);
                }
                let step = receiver.segment(&SaMad { rmpp, ..SaMad::default() });
                prop_assert!(receiver.data.len() <= 900);
                if let Step::Done(data) = step {
                    prop_assert!(data.len() <= 900);
                    break;
                }
            }
        }
    }

    #[test]
    fn too_long_an_answer_is_refused() {
        let mut receiver = Receiver::new(500);
        let all = segments(&[7; 900]);
        assert_eq!(receiver.segment(&all[0]), Step::Ack);
        receiver.ack(&MadHeader::default());
        assert_eq!(receiver.segment(&all[1]), Step::Quiet);
        assert!(matches!(receiver.segment(&all[2]), Step::Broken(_)));
    }
}
