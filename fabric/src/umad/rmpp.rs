//! The reliable multi-packet protocol (IBA 13.6) that libumad2sim does not have.
//!
//! Where a kernel cuts a long answer into segments and puts it together again, the library passes the first 256 bytes, and the `length` of
//! what it passed tells how many records there are. So what comes from a client becomes a conformant single segment with the whole records that
//! are there, and what goes to a client is the first segment with a `length` that ends at its last whole record.

use verbs::MadReceived;
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
pub(super) fn to_client(mad: &MadReceived) -> ToClient {
    let Some(sa) = table(&mad.mad).filter(|sa| sa.rmpp.active) else {
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
