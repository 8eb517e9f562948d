//! Unreliable datagrams: queue pairs, address handles, sends and receives.

use crate::port::VerbsError;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use wire::packet::Lso;
use wire::{Gid, Lid, QKey, Qpn, RateCode, ServiceLevel};

/// Parameters of a UD queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdInit {
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// Q_Key that incoming packets must carry.
    pub q_key: QKey,
    /// Set: this number and no other.
    pub qpn: Option<Qpn>,
}

/// Global routing of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrhAttributes {
    /// Destination.
    pub dgid: Gid,
    /// Index in the own GID table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// Where a datagram goes (IBA 11.2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AhAttributes {
    /// Destination LID; a multicast LID for groups.
    pub dlid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the source LID where LMC > 0.
    pub src_path_bits: u8,
    /// Static rate.
    pub rate: RateCode,
    /// Set: with a GRH.
    pub grh: Option<GrhAttributes>,
}

/// An address handle: cheap to clone, released with the last clone.
#[derive(Clone)]
pub struct AddressHandle(Arc<(AhAttributes, Option<Box<dyn Any + Send + Sync>>)>);

impl AddressHandle {
    /// `driver`: what an implementation needs to keep with it.
    pub fn new(attributes: AhAttributes, driver: Option<Box<dyn Any + Send + Sync>>) -> Self {
        AddressHandle(Arc::new((attributes, driver)))
    }
    /// What it was made from.
    pub fn attributes(&self) -> &AhAttributes {
        &self.0.0
    }
    /// The implementation's part.
    pub fn driver(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.1.as_deref()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.attributes().fmt(f)
    }
}

/// One datagram to send. The payload is only borrowed: when `post_send` returns it is free again.
#[derive(Clone, Copy, Debug)]
pub struct UdSend<'a> {
    /// Where to.
    pub ah: &'a AddressHandle,
    /// Destination queue pair; `Qpn::MULTICAST` for groups.
    pub remote_qpn: Qpn,
    /// Q_Key for the packet.
    pub remote_qkey: QKey,
    /// Bytes after the DETH.
    pub payload: &'a [u8],
    /// Set: a super-packet to be segmented on the way.
    pub lso: Option<Lso>,
}

/// One datagram that arrived, borrowed for the time of the call.
#[derive(Clone, Copy, Debug)]
pub struct UdReceive<'a> {
    /// Source LID.
    pub slid: Lid,
    /// Source queue pair.
    pub src_qp: Qpn,
    /// Service level.
    pub sl: ServiceLevel,
    /// Source and destination GID if it came with a GRH.
    pub grh: Option<(Gid, Gid)>,
    /// Bytes after the DETH.
    pub payload: &'a [u8],
    /// Set: a super-packet that came whole.
    pub lso: Option<Lso>,
}

/// Runs on the delivering thread with a batch of datagrams; never blocks.
pub trait ReceiveHandler: Send + Sync {
    /// Datagrams in order of arrival.
    fn receive(&self, batch: &[UdReceive<'_>]);
}

impl<F: Fn(&[UdReceive<'_>]) + Send + Sync> ReceiveHandler for F {
    fn receive(&self, batch: &[UdReceive<'_>]) {
        self(batch)
    }
}

/// A UD queue pair. Dropping the last reference destroys it: memberships of the queue pair end and its number is free again.
pub trait UdQueuePair: Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;
    /// Sends a batch in order. What cannot be sent is dropped and counted by the port. Any thread may call.
    fn post_send(&self, batch: &[UdSend<'_>]);
    /// From now on incoming packets must carry this Q_Key.
    fn set_qkey(&self, q_key: QKey);
    /// From now on the queue pair uses this P_Key table entry.
    fn set_pkey_index(&self, index: u16) -> Result<(), VerbsError>;
    /// Receive what is sent to the group (IBA 11.2.10.1).
    fn attach_multicast(&self, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
    /// The reverse.
    fn detach_multicast(&self, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
}
