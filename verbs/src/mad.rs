//! Management datagrams through QP0 and QP1: what Linux's `ib_mad` gives its agents.

use std::sync::Arc;
use wire::mad::MadBytes;
use wire::{Gid, Lid, PKey, QKey, Qpn, ServiceLevel};

/// Global routing of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrhInfo {
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// A MAD to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadSend {
    /// Destination; `Lid::PERMISSIVE` for a directed route that starts here.
    pub dlid: Lid,
    /// Service level; ignored for SMPs, which take VL15.
    pub sl: ServiceLevel,
    /// `Qpn::SMI` for SMPs, `Qpn::GSI` or a redirected QP else.
    pub remote_qpn: Qpn,
    /// Q_Key: `QKey::GSI` for QP1. Ignored for SMPs.
    pub q_key: QKey,
    /// Partition, as it is to stand in the packet; ignored for SMPs.
    pub p_key: PKey,
    /// Set: send with a GRH.
    pub grh: Option<GrhInfo>,
    /// The datagram. The sender's agent puts its number into the upper half of a request's TID.
    pub mad: Box<MadBytes>,
}

/// A MAD that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadReceived {
    /// Source LID.
    pub slid: Lid,
    /// Destination LID as it stood in the packet.
    pub dlid: Lid,
    /// Source queue pair.
    pub src_qp: Qpn,
    /// Destination queue pair: 0 or 1.
    pub dest_qp: Qpn,
    /// Service level it came on.
    pub sl: ServiceLevel,
    /// Partition key of the packet.
    pub p_key: PKey,
    /// Global routing, if the packet had a GRH.
    pub grh: Option<GrhInfo>,
    /// The datagram.
    pub mad: Box<MadBytes>,
}

impl MadReceived {
    /// Addressing for a response: back to the sender's LID, queue pair, service level and partition, with GRH if it came with one
    /// (IBA 13.5.4).
    pub fn reply(&self, mad: Box<MadBytes>) -> MadSend {
        MadSend {
            dlid: self.slid,
            sl: self.sl,
            remote_qpn: self.src_qp,
            q_key: QKey::GSI,
            p_key: self.p_key,
            grh: self.grh.map(|g| GrhInfo {
                sgid: g.dgid,
                dgid: g.sgid,
                hop_limit: 0xff,
                ..g
            }),
            mad,
        }
    }
}

/// Runs on the delivering thread for each MAD meant for its agent; hands over to its control thread and returns.
pub trait MadHandler: Send + Sync {
    /// One MAD arrived.
    fn mad_received(&self, mad: MadReceived);
}

impl<F: Fn(MadReceived) + Send + Sync> MadHandler for F {
    fn mad_received(&self, mad: MadReceived) {
        self(mad)
    }
}

/// A registered user of QP1 (or QP0, for a subnet manager); dropping it ends the registration.
pub trait MadAgent: Send + Sync {
    /// Upper 32 bits of the TIDs of this agent's requests; responses come back by them.
    fn tid_high(&self) -> u32;
    /// Sends; a MAD that cannot be sent now (port down, no such partition) is dropped and counted, as on any datagram service.
    fn send(&self, mad: MadSend);
}

/// Shared agents are agents.
impl<T: MadAgent + ?Sized> MadAgent for Arc<T> {
    fn tid_high(&self) -> u32 {
        (**self).tid_high()
    }
    fn send(&self, mad: MadSend) {
        (**self).send(mad)
    }
}
