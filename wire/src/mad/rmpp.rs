//! Reliable multi-packet protocol (IBA 13.6): how the SA sends tables longer than 200 bytes.
//!
//! [`Transmission`] cuts a table into segments and follows the receiver's acknowledgements; [`Reassembly`] puts a table together. Both leave
//! time to their owner: who sends segments repeats from [`Transmission::rewind`] when no acknowledgement comes, who receives gives up when
//! nothing comes.
//!
//! The PayloadLength field counts the SA header of each segment: the first segment has the sum over all, the last its own, those between 0.

use super::sa::{DATA_LEN, RmppHeader, SA_HEADER_LEN, SaMad};
use crate::bits::newtype_field;
use crate::mad::names::named;
use std::fmt;

/// Why a transfer was stopped or aborted (IBA 13.6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RmppStatus(pub u8);

newtype_field!(RmppStatus(u8));

named!(RmppStatus(u8) {
    NORMAL = 0 "normal";
    RESOURCES_EXHAUSTED = 1 "resources exhausted";
    TIME_TOO_LONG = 118 "total time too long";
    INCONSISTENT_LAST = 119 "inconsistent last and payload length";
    INCONSISTENT_FIRST = 120 "inconsistent first and segment number";
    BAD_TYPE = 121 "bad RMPP type";
    NEW_WINDOW_TOO_SMALL = 122 "new window last too small";
    SEGMENT_TOO_BIG = 123 "segment number too big";
    ILLEGAL_STATUS = 124 "illegal status";
    UNSUPPORTED_VERSION = 125 "unsupported version";
    TOO_MANY_RETRIES = 126 "too many retries";
    UNSPECIFIED = 127 "unspecified";
});

/// Segments a receiver takes before it acknowledges.
pub const WINDOW: u32 = 64;

/// How many segments `len` bytes of records make; an empty table still makes one.
pub fn segment_count(len: usize) -> u32 {
    len.div_ceil(DATA_LEN).max(1).try_into().unwrap_or(u32::MAX)
}

/// Segment `number` (from 1) of `table` in the MAD `template`; `None` past the end.
pub fn segment(template: &SaMad, table: &[u8], number: u32) -> Option<SaMad> {
    let count = segment_count(table.len());
    if number == 0 || number > count {
        return None;
    }
    let start = (number as usize - 1) * DATA_LEN;
    let part = &table[start..table.len().min(start + DATA_LEN)];
    let length = match number {
        1 => table.len() + count as usize * SA_HEADER_LEN,
        n if n == count => part.len() + SA_HEADER_LEN,
        _ => 0,
    };
    let mut mad = *template;
    mad.data = [0; DATA_LEN];
    mad.rmpp = RmppHeader {
        version: 1,
        kind: RmppHeader::DATA,
        resp_time: 31,
        active: true,
        first: number == 1,
        last: number == count,
        status: 0,
        segment: number,
        length: length.try_into().unwrap_or(u32::MAX),
    };
    Some(mad.with_data(part))
}

/// A reply of protocol to a segment or acknowledgement: goes the other way, carries no data.
fn control(received: &SaMad, kind: u8, status: RmppStatus, segment: u32, length: u32) -> SaMad {
    let mut mad = *received;
    mad.header.method.0 ^= 0x80;
    mad.header.status = Default::default();
    mad.data = [0; DATA_LEN];
    mad.rmpp = RmppHeader {
        version: 1,
        kind,
        resp_time: 31,
        active: true,
        status: status.0,
        segment,
        length,
        ..RmppHeader::default()
    };
    mad
}

/// The acknowledgement of all segments up to `segment`; the sender may go on up to `new_window_last`.
pub fn ack(received: &SaMad, segment: u32, new_window_last: u32) -> SaMad {
    control(
        received,
        RmppHeader::ACK,
        RmppStatus::NORMAL,
        segment,
        new_window_last,
    )
}

/// Ends a transfer that cannot go on.
pub fn abort(received: &SaMad, status: RmppStatus) -> SaMad {
    control(received, RmppHeader::ABORT, status, 0, 0)
}

/// A table on its way out.
#[derive(Clone, Debug)]
pub struct Transmission {
    template: SaMad,
    table: Vec<u8>,
    next: u32,
    acked: u32,
    window_last: u32,
}

impl Transmission {
    /// Sends `table` in MADs like `template`, which has header, SM_Key, AttributeOffset and mask. The first window is one segment (IBA 13.6.6).
    pub fn new(template: SaMad, table: Vec<u8>) -> Self {
        Transmission {
            template,
            table,
            next: 1,
            acked: 0,
            window_last: 1,
        }
    }

    /// The next segment the window lets out.
    pub fn next_segment(&mut self) -> Option<SaMad> {
        if self.next > self.window_last {
            return None;
        }
        let mad = segment(&self.template, &self.table, self.next)?;
        self.next += 1;
        Some(mad)
    }

    /// Takes the receiver's answer. `Ok(true)`: all of the table has arrived.
    ///
    /// # Errors
    /// The transfer is over: the receiver stopped or aborted it, or acknowledged what was never sent.
    pub fn handle(&mut self, answer: &RmppHeader) -> Result<bool, RmppStatus> {
        match answer.kind {
            RmppHeader::ACK if answer.segment >= self.next => Err(RmppStatus::SEGMENT_TOO_BIG),
            RmppHeader::ACK if answer.length < answer.segment => {
                Err(RmppStatus::NEW_WINDOW_TOO_SMALL)
            }
            RmppHeader::ACK => {
                self.acked = self.acked.max(answer.segment);
                self.window_last = self.window_last.max(answer.length);
                Ok(self.is_complete())
            }
            RmppHeader::STOP | RmppHeader::ABORT => Err(RmppStatus(answer.status)),
            _ => Err(RmppStatus::BAD_TYPE),
        }
    }

    /// All acknowledged?
    pub fn is_complete(&self) -> bool {
        self.acked == segment_count(self.table.len())
    }

    /// Goes back to the first segment that is not acknowledged: the answer is overdue.
    pub fn rewind(&mut self) {
        self.next = self.acked + 1;
    }
}

/// What came of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The table is whole.
    pub complete: bool,
    /// To be sent back.
    pub ack: Option<SaMad>,
}

/// A table on its way in.
#[derive(Clone, Debug)]
pub struct Reassembly {
    table: Vec<u8>,
    limit: usize,
    /// Segments in order so far.
    received: u32,
    window_last: u32,
    complete: bool,
}

impl Reassembly {
    /// An empty table that may grow to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Reassembly {
            table: Vec::new(),
            limit,
            received: 0,
            window_last: 1,
            complete: false,
        }
    }

    /// Takes a DATA segment. One that came before, or too early, only repeats the acknowledgement.
    ///
    /// # Errors
    /// The transfer is over and the table worthless; send [`abort`] with the status (a MAD outside of RMPP has an unsupported version).
    pub fn push(&mut self, mad: &SaMad) -> Result<Received, RmppStatus> {
        let rmpp = &mad.rmpp;
        if !rmpp.active || rmpp.version != 1 {
            return Err(RmppStatus::UNSUPPORTED_VERSION);
        }
        match rmpp.kind {
            RmppHeader::DATA => {}
            RmppHeader::STOP | RmppHeader::ABORT => return Err(RmppStatus(rmpp.status)),
            _ => return Err(RmppStatus::BAD_TYPE),
        }
        if rmpp.first != (rmpp.segment == 1) {
            return Err(RmppStatus::INCONSISTENT_FIRST);
        }
        if self.complete || self.received.checked_add(1) != Some(rmpp.segment) {
            return Ok(Received {
                complete: self.complete,
                ack: Some(ack(mad, self.received, self.window_last.max(self.received))),
            });
        }
        let used = if rmpp.last {
            (rmpp.length as usize)
                .checked_sub(SA_HEADER_LEN)
                .filter(|&n| n <= DATA_LEN)
                .ok_or(RmppStatus::INCONSISTENT_LAST)?
        } else {
            DATA_LEN
        };
        if self.table.len() + used > self.limit {
            return Err(RmppStatus::RESOURCES_EXHAUSTED);
        }
        self.table.extend_from_slice(&mad.data[..used]);
        self.received = rmpp.segment;
        self.complete = rmpp.last;
        let due = self.complete || self.received >= self.window_last;
        if due {
            self.window_last = self.received.saturating_add(WINDOW);
        }
        Ok(Received {
            complete: self.complete,
            ack: due.then(|| ack(mad, self.received, self.window_last)),
        })
    }

    /// What has arrived.
    pub fn table(&self) -> &[u8] {
        &self.table
    }

    /// The records of `len` bytes at the pitch that the MADs' AttributeOffset says; none if the pitch is too small for them.
    pub fn records(&self, attr_offset: u16, len: usize) -> impl Iterator<Item = &[u8]> {
        let pitch = usize::from(attr_offset) * 8;
        let usable = if pitch >= len && pitch > 0 {
            self.table.as_slice()
        } else {
            &[]
        };
        usable
            .chunks(pitch.max(1))
            .filter(move |record| record.len() >= len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{AttrId, MadStatus, Method, sa};

    fn template() -> SaMad {
        let request = SaMad::request(
            Method::GET_TABLE,
            AttrId::NODE_RECORD,
            sa::ComponentMask(0),
            &[],
            7,
        );
        request.response(MadStatus::OK)
    }

    fn transfer(len: usize) {
        let table: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        let mut out = Transmission::new(template(), table.clone());
        let mut inn = Reassembly::new(len);
        let mut in_flight = Vec::new();
        for _ in 0..1000 {
            while let Some(mad) = out.next_segment() {
                in_flight.push(SaMad::parse(&mad.emit()).unwrap());
            }
            for mad in std::mem::take(&mut in_flight) {
                let received = inn.push(&mad).unwrap();
                if let Some(ack) = received.ack {
                    assert_eq!(ack.header.method, Method::GET_TABLE);
                    if out.handle(&ack.rmpp).unwrap() {
                        assert!(received.complete && inn.table() == table);
                        return;
                    }
                }
            }
        }
        panic!("{len} bytes never arrived");
    }

    #[test]
    fn tables_arrive_whole() {
        for len in [0, 1, 199, 200, 201, 400, 108 * 40, 200 * 200 + 3] {
            transfer(len);
        }
    }

    #[test]
    fn payload_lengths_count_the_sa_headers() {
        let table = [0; 500];
        let lengths: Vec<u32> = (1..=3)
            .map(|n| segment(&template(), &table, n).unwrap().rmpp.length)
            .collect();
        assert_eq!(lengths, [560, 0, 120]);
        assert_eq!(segment(&template(), &table, 4), None);
        assert_eq!(segment(&template(), &table, 0), None);
        let single = segment(&template(), &table[..112], 1).unwrap().rmpp;
        assert!(single.first && single.last && single.length == 132);
    }

    #[test]
    fn a_lost_segment_is_sent_again() {
        let table = [5; 1000];
        let mut out = Transmission::new(template(), table.to_vec());
        let mut inn = Reassembly::new(1000);
        let first = inn.push(&out.next_segment().unwrap()).unwrap();
        assert!(!out.handle(&first.ack.unwrap().rmpp).unwrap());
        let _lost = out.next_segment().unwrap();
        let early = inn.push(&out.next_segment().unwrap()).unwrap();
        assert_eq!(early.ack.unwrap().rmpp.segment, 1);
        out.rewind();
        let mut done = false;
        while let Some(mad) = out.next_segment() {
            done = inn.push(&mad).unwrap().complete;
        }
        assert!(done && inn.table() == table);
    }

    #[test]
    fn bad_segments_end_the_transfer() {
        let good = segment(&template(), &[1; 300], 1).unwrap();
        let with = |change: fn(&mut RmppHeader)| {
            let mut mad = good;
            change(&mut mad.rmpp);
            Reassembly::new(10_000).push(&mad)
        };
        assert!(with(|_| ()).is_ok());
        assert_eq!(
            with(|r| r.version = 2),
            Err(RmppStatus::UNSUPPORTED_VERSION)
        );
        assert_eq!(
            with(|r| r.active = false),
            Err(RmppStatus::UNSUPPORTED_VERSION)
        );
        assert_eq!(with(|r| r.kind = 9), Err(RmppStatus::BAD_TYPE));
        assert_eq!(
            with(|r| r.first = false),
            Err(RmppStatus::INCONSISTENT_FIRST)
        );
        assert_eq!(with(|r| r.last = true), Err(RmppStatus::INCONSISTENT_LAST));
        assert_eq!(
            with(|r| (r.kind, r.status) = (4, 126)),
            Err(RmppStatus::TOO_MANY_RETRIES)
        );
        let bounded = Reassembly::new(199).push(&good);
        assert_eq!(bounded, Err(RmppStatus::RESOURCES_EXHAUSTED));
    }

    #[test]
    fn acknowledgements_of_the_unsent_are_refused() {
        let mut out = Transmission::new(template(), vec![0; 1000]);
        let segment = out.next_segment().unwrap();
        assert_eq!(
            out.handle(&ack(&segment, 2, 9).rmpp),
            Err(RmppStatus::SEGMENT_TOO_BIG)
        );
        assert_eq!(
            out.handle(&ack(&segment, 1, 0).rmpp),
            Err(RmppStatus::NEW_WINDOW_TOO_SMALL)
        );
        let stop = abort(&segment, RmppStatus::RESOURCES_EXHAUSTED).rmpp;
        assert_eq!(out.handle(&stop), Err(RmppStatus::RESOURCES_EXHAUSTED));
    }
}
