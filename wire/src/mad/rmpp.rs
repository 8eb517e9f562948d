//! Packets of the reliable multi-packet protocol (IBA 13.6), by which the SA sends tables longer than 200 bytes: segments and
//! acknowledgements. Those who send and receive them are `mad`'s client and `fabric`'s SA.
//!
//! The PayloadLength field counts the SA header of each segment: the first segment has the sum over all, the last its own, those between 0.

use super::sa::{DATA_LEN, RmppHeader, SA_HEADER_LEN, SaMad};
use super::{MadHeader, Method};

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

/// The acknowledgement of all segments up to `segment`, to a packet of RMPP with this header; the sender may go on up to `window_last`. Its
/// method is that of the other direction (Linux `mad_rmpp.c`, `format_ack`).
pub fn ack(received: &MadHeader, segment: u32, window_last: u32) -> SaMad {
    SaMad {
        header: MadHeader {
            method: Method(received.method.0 ^ 0x80),
            status: Default::default(),
            ..*received
        },
        rmpp: RmppHeader {
            version: 1,
            kind: RmppHeader::ACK,
            resp_time: 31,
            active: true,
            segment,
            length: window_last,
            ..RmppHeader::default()
        },
        ..SaMad::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_lengths_count_the_sa_headers() {
        let (template, table) = (SaMad::default(), [7; 500]);
        let segments: Vec<SaMad> = (1..=segment_count(table.len()))
            .map(|n| segment(&template, &table, n).unwrap())
            .collect();
        let headers = segments
            .iter()
            .map(|s| (s.rmpp.segment, s.rmpp.length, s.rmpp.first, s.rmpp.last));
        assert!(headers.eq([
            (1, 560, true, false),
            (2, 0, false, false),
            (3, 120, false, true)
        ]));
        assert_eq!(segments[2].data[99..101], [7, 0]);
        assert_eq!(segment(&template, &table, 4), None);
        assert_eq!(segment(&template, &table, 0), None);
        let single = segment(&template, &table[..112], 1).unwrap().rmpp;
        assert!(single.first && single.last && single.length == 132);
        let empty = segment(&template, &[], 1).unwrap().rmpp;
        assert!(empty.first && empty.last && empty.length == 20);
    }

    #[test]
    fn acknowledgements_go_the_other_way() {
        let header = MadHeader {
            method: Method::GET_TABLE_RESP,
            tid: 9,
            ..MadHeader::default()
        };
        let mad = ack(&header, 4, 36);
        assert_eq!((mad.header.method, mad.header.tid), (Method::GET_TABLE, 9));
        assert_eq!(
            (mad.rmpp.segment, mad.rmpp.length, mad.rmpp.kind),
            (4, 36, RmppHeader::ACK)
        );
        assert_eq!(ack(&mad.header, 1, 1).header.method, Method::GET_TABLE_RESP);
    }
}
