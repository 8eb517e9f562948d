//! Subnet management packets (IBA 14.2.1): LID-routed and directed route are one layout, of which the LID-routed class reserves parts.

use super::{AttrId, MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
use crate::bits::record;
use crate::id::Lid;

record! {
    /// A subnet management packet.
    ///
    /// In LID-routed SMPs the directed-route fields are reserved. They are kept as they came, since real senders leave old bytes there, and
    /// mean nothing.
    pub struct Smp[256] {
        /// Common header; status and class-specific word carry the direction, hop pointer and hop count of directed routes.
        header: MadHeader = 0:192,
        /// Key that authorises the request at the port.
        m_key: u64 = 192:64,
        /// Directed route: LID where the directed part begins, permissive if it begins at the sender.
        dr_slid: Lid = 256:16,
        /// Directed route: LID where the directed part ends, permissive if it ends at the receiver.
        dr_dlid: Lid = 272:16,
        /// The attribute.
        data: [u8; 64] = 512:512,
        /// Directed route: port to leave each hop by; entry 0 is unused.
        initial_path: [u8; 64] = 1024:512,
        /// Directed route: port each hop was entered by, filled in on the way.
        return_path: [u8; 64] = 1536:512,
    }
}

/// Most hops of a directed route (IBA 14.2.2).
pub const MAX_HOPS: usize = 63;

impl Smp {
    /// A LID-routed request without data.
    pub fn lid_routed(method: Method, attr_id: AttrId, attr_mod: u32, tid: u64) -> Self {
        Smp {
            header: MadHeader::request(MgmtClass::SUBN_LID, method, attr_id, attr_mod, tid),
            ..Smp::default()
        }
    }

    /// A request along `ports` (the port to leave by at each hop) without LID-routed parts; ports past [`MAX_HOPS`] are left out.
    pub fn directed(
        method: Method,
        attr_id: AttrId,
        attr_mod: u32,
        tid: u64,
        ports: &[u8],
    ) -> Self {
        let ports = &ports[..ports.len().min(MAX_HOPS)];
        let mut smp = Smp {
            header: MadHeader::request(MgmtClass::SUBN_DIRECTED, method, attr_id, attr_mod, tid),
            dr_slid: Lid::PERMISSIVE,
            dr_dlid: Lid::PERMISSIVE,
            ..Smp::default()
        };
        smp.header.class_specific = ports.len() as u16;
        smp.initial_path[1..=ports.len()].copy_from_slice(ports);
        smp
    }

    /// The same with `attribute` at the front of the data; what does not fit is left out.
    pub fn with_data(mut self, attribute: &[u8]) -> Self {
        let n = attribute.len().min(self.data.len());
        self.data[..n].copy_from_slice(&attribute[..n]);
        self
    }

    /// The answer to this request: response method, `status`, the direction turned for a directed route (IBA 14.2.2.3), same data.
    pub fn response(&self, status: MadStatus) -> Self {
        let mut smp = *self;
        smp.header = self.header.response(status);
        smp.set_returning(self.is_directed());
        smp
    }

    /// Directed route?
    pub const fn is_directed(&self) -> bool {
        self.header.mgmt_class.0 == MgmtClass::SUBN_DIRECTED.0
    }
    /// Direction bit of a directed route: on the way back.
    pub const fn is_returning(&self) -> bool {
        self.is_directed() && self.header.status.0 & MadStatus::DIRECTION != 0
    }
    /// Sets or clears the direction bit.
    pub fn set_returning(&mut self, returning: bool) {
        self.header.status.0 &= !MadStatus::DIRECTION;
        if returning {
            self.header.status.0 |= MadStatus::DIRECTION;
        }
    }
    /// The status without the direction bit.
    pub const fn status(&self) -> MadStatus {
        MadStatus(self.header.status.0 & !MadStatus::DIRECTION)
    }
    /// Hop pointer of a directed route.
    pub const fn hop_pointer(&self) -> u8 {
        (self.header.class_specific >> 8) as u8
    }
    /// Sets the hop pointer.
    pub fn set_hop_pointer(&mut self, hop: u8) {
        self.header.class_specific = self.header.class_specific & 0xff | u16::from(hop) << 8;
    }
    /// Hop count of a directed route.
    pub const fn hop_count(&self) -> u8 {
        self.header.class_specific as u8
    }
    /// The ports that the request leaves by, hop by hop, of a directed route; hops past [`MAX_HOPS`] are left out.
    pub fn path(&self) -> &[u8] {
        let hops = usize::from(self.hop_count()).min(MAX_HOPS);
        &self.initial_path[1..=hops]
    }
}

const _: () = assert!(Smp::LEN == MAD_LEN);
