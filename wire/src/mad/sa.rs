//! Subnet administration MADs (IBA 15.2.1): common header, RMPP header, SA header, 200 bytes of records.

use super::{AttrId, MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
use crate::bits::{newtype_field, record};
use std::fmt;
use std::ops::BitOr;

/// Which components of the record a request means (IBA 15.2.1.3); the bits are in `comp` beside each record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ComponentMask(pub u64);

newtype_field!(ComponentMask(u64));

impl ComponentMask {
    /// All bits of `other` set?
    pub const fn contains(self, other: ComponentMask) -> bool {
        self.0 & other.0 == other.0
    }
    /// Both masks, in constants.
    pub const fn and(self, other: ComponentMask) -> ComponentMask {
        ComponentMask(self.0 | other.0)
    }
}

impl BitOr for ComponentMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl fmt::Display for ComponentMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

impl fmt::Debug for ComponentMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

record! {
    /// Reliable multi-packet protocol header (IBA 13.6.2.1). All zero: the MAD is a single packet outside of RMPP.
    pub struct RmppHeader[12] {
        /// 1 while RMPP is active.
        version: u8 = 0:8,
        /// [`RmppHeader::DATA`], [`RmppHeader::ACK`], [`RmppHeader::STOP`] or [`RmppHeader::ABORT`].
        kind: u8 = 8:8,
        /// Response time the sender asks for, 4.096 us * 2^n; 31: none.
        resp_time: u8 = 16:5,
        /// Last segment.
        last: bool = 21:1,
        /// First segment.
        first: bool = 22:1,
        /// The MAD takes part in RMPP.
        active: bool = 23:1,
        /// 0, or why it stopped or aborted (IBA 13.6.2.2).
        status: u8 = 24:8,
        /// DATA: number of the segment from 1; ACK: last one received in order.
        segment: u32 = 32:32,
        /// DATA: payload length, bytes, see [`crate::mad::rmpp`]; ACK: last segment the receiver has room for.
        length: u32 = 64:32,
    }
}

record! {
    /// A subnet administration MAD.
    pub struct SaMad[256] {
        /// Common header.
        header: MadHeader = 0:192,
        /// RMPP header.
        rmpp: RmppHeader = 192:96,
        /// Key that authorises privileged requests.
        sm_key: u64 = 288:64,
        /// Pitch of records in a table, in units of 8 bytes.
        attr_offset: u16 = 352:16,
        /// What the requester filled in.
        component_mask: ComponentMask = 384:64,
        /// A record, or a segment of a table of records.
        data: [u8; 200] = 448:1600,
    }
}

impl RmppHeader {
    /// Segment of data.
    pub const DATA: u8 = 1;
    /// Acknowledgement.
    pub const ACK: u8 = 2;
    /// The sender gives up.
    pub const STOP: u8 = 3;
    /// The transfer is broken.
    pub const ABORT: u8 = 4;
}

/// Bytes of records in one MAD.
pub const DATA_LEN: usize = 200;
/// Bytes of the SA header (SM_Key to ComponentMask), which RMPP counts as payload of each segment (IBA 13.6.2.1).
pub const SA_HEADER_LEN: usize = 20;

/// The pitch of records of `len` bytes, in units of 8 bytes, rounded up (IBA 15.2.1.1, AttributeOffset).
pub const fn attr_offset(len: usize) -> u16 {
    len.div_ceil(8) as u16
}

impl SaMad {
    /// A request outside of RMPP.
    pub fn request(
        method: Method,
        attr_id: AttrId,
        component_mask: ComponentMask,
        record: &[u8],
        tid: u64,
    ) -> Self {
        SaMad {
            header: MadHeader::request(MgmtClass::SUBN_ADM, method, attr_id, 0, tid),
            component_mask,
            ..SaMad::default()
        }
        .with_data(record)
    }

    /// The answer to this request, still with its data.
    pub fn response(&self, status: MadStatus) -> Self {
        SaMad {
            header: self.header.response(status),
            ..*self
        }
    }

    /// The same with `record` at the front of the data; what does not fit is left out.
    pub fn with_data(mut self, record: &[u8]) -> Self {
        let n = record.len().min(DATA_LEN);
        self.data[..n].copy_from_slice(&record[..n]);
        self
    }
}

const _: () = assert!(SaMad::LEN == MAD_LEN);
