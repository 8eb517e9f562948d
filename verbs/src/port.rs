//! A port of a channel adapter and its events.

use crate::mad::{MadAgent, MadHandler};
use crate::rc::{
    Access, ConnectedHandler, ConnectedInit, ConnectedQueuePair, MemoryRegion, QpState,
};
use crate::ud::{AddressHandle, AhAttributes, ReceiveHandler, UdInit, UdQueuePair};
use std::sync::Arc;
use wire::mad::{MgmtClass, PortState};
use wire::{Gid, Guid, Lid, MtuCode, PKey, Qpn, RateCode, ServiceLevel};

/// What `ibv_query_port`, `ibv_query_gid` and `ibv_query_pkey` tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Logical state.
    pub state: PortState,
    /// Own LID, `Lid::UNSET` until the subnet manager assigns one.
    pub lid: Lid,
    /// LID mask control: the port answers to 2^lmc LIDs from `lid`.
    pub lmc: u8,
    /// Where the master subnet manager is.
    pub sm_lid: Lid,
    /// Service level towards it.
    pub sm_sl: ServiceLevel,
    /// SubnetTimeOut of PortInfo: 4.096 us * 2^n.
    pub subnet_timeout: u8,
    /// Largest payload of this port (MTUCap).
    pub max_mtu: MtuCode,
    /// Active MTU (NeighborMTU).
    pub active_mtu: MtuCode,
    /// Rate of the link.
    pub rate: RateCode,
    /// GID table; index 0 is the port GUID with the subnet prefix.
    pub gids: Vec<Gid>,
    /// P_Key table, all entries, 0 where empty.
    pub pkeys: Vec<PKey>,
    /// GUID of the node.
    pub node_guid: Guid,
}

impl PortAttributes {
    /// GID 0: prefix and port GUID.
    pub fn gid(&self) -> Gid {
        self.gids.first().copied().unwrap_or_default()
    }
    /// Index of the entry of `key`'s partition; a full membership is preferred where both are there.
    pub fn pkey_index(&self, key: PKey) -> Option<u16> {
        let find = |full| {
            self.pkeys
                .iter()
                .position(|k| k.base() == key.base() && k.base() != 0 && k.is_full() == full)
        };
        find(true).or_else(|| find(false)).map(|i| i as u16)
    }
}

/// Asynchronous events of a port (IBA 11.6.3; `enum ib_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortEvent {
    /// The port became Active.
    Active,
    /// The port left Active.
    Error,
    /// LID or LMC changed.
    LidChange,
    /// The P_Key table changed.
    PKeyChange,
    /// The GID table or subnet prefix changed.
    GidChange,
    /// Another master subnet manager, or its LID or SL changed.
    SmChange,
    /// The subnet manager asks to register memberships and subscriptions again.
    ClientReregister,
    /// The port is gone for good; nothing works any more.
    DeviceFatal,
}

/// Runs on the thread that noticed the event; hands over and returns.
pub trait PortEventHandler: Send + Sync {
    /// One event.
    fn port_event(&self, event: PortEvent);
}

impl<F: Fn(PortEvent) + Send + Sync> PortEventHandler for F {
    fn port_event(&self, event: PortEvent) {
        self(event)
    }
}

/// A verb failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// The queue pair number that was asked for is taken or reserved.
    #[error("queue pair number {0} is taken or reserved")]
    QpnInUse(Qpn),
    /// No more of something.
    #[error("no more {0}: all {1} are in use")]
    NoResources(&'static str, usize),
    /// An index beyond the P_Key table, or an empty entry there.
    #[error("P_Key index {0} is not in the table")]
    BadPKeyIndex(u16),
    /// Attach or detach with a GID that is not multicast, or one that was not attached.
    #[error("{0} is not an attached multicast group")]
    BadGroup(Gid),
    /// The queue pair's state does not allow it.
    #[error("not possible while the queue pair is in {0:?}")]
    BadState(QpState),
    /// A value that cannot be.
    #[error("{0} has a value that is not possible here")]
    BadAttribute(&'static str),
    /// The adapter went away.
    #[error("the adapter is gone")]
    DeviceGone,
    /// The operating system or a driver refused.
    #[error("{0}")]
    System(String),
}

/// One port of a channel adapter: the only way down for an interface.
pub trait Port: Send + Sync {
    /// A snapshot of the attributes.
    fn attributes(&self) -> Arc<PortAttributes>;
    /// Calls `handler` at each event from now on; there may be several.
    fn subscribe(&self, handler: Arc<dyn PortEventHandler>);
    /// Makes a UD queue pair, ready to send and receive. It ends when the last reference is dropped.
    fn create_ud_qp(
        &self,
        init: UdInit,
        handler: Arc<dyn ReceiveHandler>,
    ) -> Result<Arc<dyn UdQueuePair>, VerbsError>;
    /// Makes an RC or UC queue pair in Reset. It ends when the last reference is dropped.
    fn create_connected_qp(
        &self,
        init: ConnectedInit,
        handler: Arc<dyn ConnectedHandler>,
    ) -> Result<Arc<dyn ConnectedQueuePair>, VerbsError>;
    /// Lets peers of connected queue pairs of this adapter reach `bytes`. All are in one protection domain.
    fn register_memory(
        &self,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError>;
    /// Makes an address handle.
    fn create_ah(&self, attributes: AhAttributes) -> Result<AddressHandle, VerbsError>;
    /// Registers a user of QP1: it gets responses to its own requests, and, for `classes`, everything that is not a response.
    fn register_mad_agent(
        &self,
        classes: &[MgmtClass],
        handler: Arc<dyn MadHandler>,
    ) -> Result<Box<dyn MadAgent>, VerbsError>;
}
