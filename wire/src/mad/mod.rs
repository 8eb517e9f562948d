//! Management datagrams (IBA vol. 1, chapters 13 to 16): 256 bytes in a UD packet to QP0 (SMPs) or QP1 (all other classes).
//!
//! * [`Smp`]: subnet management packets, LID-routed and directed route; their attributes are in [`attr`]
//! * [`sa`]: subnet administration; its records are in [`attr`] as well, long answers in [`rmpp`]
//! * [`cm`]: communication management
//! * [`describe`]: a MAD as one line for people, and the proof that it was understood
//!
//! Every layout is a table of the bit offsets the standard prints. Parsing ignores reserved bits and emitting zeroes them.

pub mod attr;
pub mod cm;
pub mod describe;
mod names;
pub mod rmpp;
pub mod sa;
mod smp;

use crate::bits::record;
pub use attr::PortState;
pub use names::{AttrId, MadStatus, Method, MgmtClass};
pub use sa::SaMad;
pub use smp::{MAX_HOPS, Smp};

/// Length of every MAD, bytes.
pub const MAD_LEN: usize = 256;
/// One whole MAD as it is on the wire.
pub type MadBytes = [u8; MAD_LEN];

/// Where the attribute of a performance management MAD begins (IBA 16.1.1).
pub const PERF_DATA_OFFSET: usize = 64;
/// Where the message of a communication management MAD begins (IBA 16.7.1).
pub const CM_DATA_OFFSET: usize = MadHeader::LEN;

record! {
    /// What all MADs begin with (IBA 13.4.3).
    pub struct MadHeader[24] {
        /// 1.
        base_version: u8 = 0:8,
        /// Management class.
        mgmt_class: MgmtClass = 8:8,
        /// 1 for SMPs and performance management, 2 for SA and CM.
        class_version: u8 = 16:8,
        /// Method; bit 7 marks responses.
        method: Method = 24:8,
        /// Outcome, in responses. Directed-route SMPs use bit 15 as the direction.
        status: MadStatus = 32:16,
        /// Directed-route SMPs: hop pointer and hop count; otherwise 0.
        class_specific: u16 = 48:16,
        /// Transaction ID; pairs requests and responses.
        tid: u64 = 64:64,
        /// Attribute the method works on; its meaning depends on the class.
        attr_id: AttrId = 128:16,
        /// Attribute modifier: port number, block number, ...
        attr_mod: u32 = 160:32,
    }
}

impl MadHeader {
    /// The header of a request of `class`, with the class version that class has (IBA 13.4.4, 14, 15, 16).
    pub fn request(
        mgmt_class: MgmtClass,
        method: Method,
        attr_id: AttrId,
        attr_mod: u32,
        tid: u64,
    ) -> Self {
        let class_version = match mgmt_class {
            MgmtClass::SUBN_ADM | MgmtClass::COM_MGT => 2,
            _ => 1,
        };
        MadHeader {
            base_version: 1,
            mgmt_class,
            class_version,
            method,
            tid,
            attr_id,
            attr_mod,
            ..MadHeader::default()
        }
    }

    /// The header of the answer: response method, same transaction, attribute and modifier.
    pub fn response(&self, status: MadStatus) -> Self {
        MadHeader {
            method: self.method.response(),
            status,
            ..*self
        }
    }
}

/// Writes `record` at `offset` of a MAD; what does not fit is left out.
pub fn put(mad: &mut MadBytes, offset: usize, record: &[u8]) {
    let end = MAD_LEN.min(offset.saturating_add(record.len()));
    if let Some(room) = mad.get_mut(offset..end) {
        room.copy_from_slice(&record[..room.len()]);
    }
}
