//! The reliable multi-packet protocol (IBA 13.6) that libumad2sim does not have.
//!
//! Where a kernel cuts a long answer into segments and puts it together again, the library passes the first 256 bytes, and the `length` of
//! what it passed tells how many records there are. So what comes from a client becomes a conformant single segment with the whole records that
//! are there, and what goes to a client is the first segment with a `length` that ends at its last whole record.

use wire::mad::sa::{DATA_LEN, RmppHeader, SA_HEADER_LEN};
use wire::mad::{MAD_LEN, MadBytes, Method, MgmtClass, SaMad};

const DATA: usize = MAD_LEN - DATA_LEN;

fn table(mad: &MadBytes) -> Option<SaMad> {
    let is_table = MgmtClass(mad[1]) == MgmtClass::SUBN_ADM
        && [Method::GET_TABLE, Method::GET_MULTI]
            .iter()
            .any(|m| m.response().0 == mad[3]);
    is_table.then(|| SaMad::parse(&mad[..])).flatten()
}

/// Bytes of whole records in `len` bytes.
fn whole(sa: &SaMad, len: usize) -> usize {
    match usize::from(sa.attr_offset) * 8 {
        0 => len,
        pitch => len - len % pitch,
    }
}

/// A table that a client answers with: one segment, first and last. True if records are missing.
pub(super) fn from_client(mad: &mut MadBytes, length: usize) -> bool {
    let Some(mut sa) = table(mad) else {
        return false;
    };
    let present = whole(&sa, length.clamp(DATA, MAD_LEN) - DATA);
    sa.rmpp = RmppHeader {
        version: 1,
        kind: RmppHeader::DATA,
        active: true,
        first: true,
        last: true,
        segment: 1,
        length: (SA_HEADER_LEN + present) as u32,
        ..RmppHeader::default()
    };
    *mad = sa.emit();
    length >= MAD_LEN && present < DATA_LEN
}

/// What to do with a MAD for a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToClient {
    /// Deliver, with this `length`.
    Deliver(u64),
    /// The same, and tell the sender that nobody wants the rest.
    DeliverFirst(u64, Box<MadBytes>),
    /// Part of the protocol, not for the client.
    Drop,
}

/// A response that came for a client.
pub(super) fn to_client(mad: &MadBytes) -> ToClient {
    let Some(sa) = table(mad).filter(|sa| sa.rmpp.active) else {
        return ToClient::Deliver(MAD_LEN as u64);
    };
    if sa.rmpp.kind != RmppHeader::DATA || sa.rmpp.segment != 1 {
        return ToClient::Drop;
    }
    let payload = (sa.rmpp.length as usize).clamp(SA_HEADER_LEN, SA_HEADER_LEN + DATA_LEN);
    if sa.rmpp.last {
        return ToClient::Deliver((DATA + whole(&sa, payload - SA_HEADER_LEN)) as u64);
    }
    // IBA 13.6.2.2: STOP for want of resources.
    let mut stop = wire::mad::rmpp::ack(&sa.header, 0, 0);
    (stop.rmpp.kind, stop.rmpp.status) = (RmppHeader::STOP, 1);
    ToClient::DeliverFirst((DATA + whole(&sa, DATA_LEN)) as u64, Box::new(stop.emit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::mad::AttrId;
    use wire::mad::sa::ComponentMask;

    /// An answer to a question for all records of so many bytes, whose data are 1, 2, 3, ...
    fn answer(method: Method, record: usize, rmpp: RmppHeader) -> SaMad {
        SaMad {
            attr_offset: wire::mad::sa::attr_offset(record),
            rmpp,
            data: std::array::from_fn(|n| n as u8 + 1),
            ..SaMad::request(
                method.response(),
                AttrId::NODE_RECORD,
                ComponentMask(0),
                &[],
                7,
            )
        }
    }

    /// What a client sends of it, and whether records are missing.
    fn sent(length: usize, record: usize) -> (SaMad, bool) {
        // As libumad2sim leaves it.
        let header = RmppHeader {
            version: 1,
            kind: RmppHeader::DATA,
            active: true,
            ..RmppHeader::default()
        };
        let answer = answer(Method::GET_TABLE, record, header);
        let mut mad = answer.emit();
        let cut = from_client(&mut mad, length);
        let sa = SaMad::parse(&mad[..]).expect("of the class");
        assert_eq!((sa.header, sa.data), (answer.header, answer.data));
        let single = RmppHeader {
            first: true,
            last: true,
            segment: 1,
            length: sa.rmpp.length,
            ..header
        };
        assert_eq!(sa.rmpp, single);
        (sa, cut)
    }

    #[test]
    fn a_client_answers_by_one_segment_of_whole_records() {
        // Two records of 56 bytes, nothing, one and a half; more than fits; more than there can be, and less.
        for (length, payload, cut) in [
            (56 + 112, 112, false),
            (56, 0, false),
            (56 + 84, 56, false),
            (256, 168, true),
            (usize::MAX, 168, true),
            (0, 0, false),
        ] {
            let (sa, is_cut) = sent(length, 56);
            let want = ((SA_HEADER_LEN + payload) as u32, cut);
            assert_eq!((sa.rmpp.length, is_cut), want, "{length}");
        }
        // Records that fill a MAD, and records of which nobody says how long they are.
        for record in [8, 40, 200, 0] {
            let (sa, cut) = sent(256, record);
            assert_eq!((sa.rmpp.length as usize, cut), (SA_HEADER_LEN + 200, false));
        }
    }

    #[test]
    fn what_is_no_table_passes_as_it_is() {
        let mut single = answer(Method::GET, 56, RmppHeader::default());
        let mut question = single;
        question.header.method = Method::GET_TABLE;
        let mut smp = single;
        smp.header.mgmt_class = MgmtClass::SUBN_LID;
        smp.header.method = Method::GET_TABLE.response();
        for sa in [&mut single, &mut question, &mut smp] {
            let mut mad = sa.emit();
            let before = mad;
            assert!(!from_client(&mut mad, 256));
            assert_eq!(mad, before);
            assert_eq!(to_client(&mad), ToClient::Deliver(256));
        }
    }

    #[test]
    fn a_client_gets_the_first_segment_up_to_its_last_whole_record() {
        let header = RmppHeader {
            version: 1,
            kind: RmppHeader::DATA,
            active: true,
            first: true,
            segment: 1,
            ..RmppHeader::default()
        };
        let to = |method, rmpp| to_client(&answer(method, 56, rmpp).emit());
        let last = |length: usize| RmppHeader {
            last: true,
            length: length as u32,
            ..header
        };
        for (length, records) in [(132, 112), (20, 0), (104, 56), (0, 0), (usize::MAX, 168)] {
            let want = ToClient::Deliver(56 + records);
            assert_eq!(to(Method::GET_TABLE, last(length)), want, "{length}");
            assert_eq!(to(Method::GET_MULTI, last(length)), want, "{length}");
        }
        let ToClient::DeliverFirst(length, stop) = to(Method::GET_TABLE, header) else {
            panic!("more segments are to come");
        };
        let stop = SaMad::parse(&stop[..]).expect("of the class");
        assert_eq!(length, 56 + 168);
        assert_eq!(stop.header.method, Method::GET_TABLE);
        assert_eq!((stop.rmpp.kind, stop.rmpp.status), (RmppHeader::STOP, 1));
        assert_eq!(stop.header.tid, 7);
        // What follows it, acknowledgements, and an answer in which nothing of the protocol is active.
        for (segment, kind) in [
            (2, RmppHeader::DATA),
            (0, RmppHeader::DATA),
            (1, RmppHeader::ACK),
            (1, RmppHeader::ABORT),
        ] {
            let other = RmppHeader {
                segment,
                kind,
                ..header
            };
            assert_eq!(to(Method::GET_TABLE, other), ToClient::Drop);
        }
        let inactive = RmppHeader {
            active: false,
            ..header
        };
        assert_eq!(to(Method::GET_TABLE, inactive), ToClient::Deliver(256));
    }
}
