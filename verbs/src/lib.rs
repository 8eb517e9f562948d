//! The verbs interface (IBA vol. 1, chapter 11; the shape of `struct ib_device_ops` in Linux): what an upper-layer protocol may ask of a port.
//!
//! Two implementations keep this contract: the software HCA (`fabric::hca`) and, later, libibverbs. Receiving is by push: the thread that
//! delivers a packet runs the queue pair's handler, which must never block.
#![forbid(unsafe_code)]

mod mad;
mod port;
mod rc;
mod ud;

pub use mad::{GrhInfo, MadAgent, MadHandler, MadReceived, MadSend};
pub use port::{Port, PortAttributes, PortEvent, PortEventHandler, VerbsError};
pub use rc::{
    Access, AckTimeout, Completion, CompletionData, CompletionStatus, ConnectedCounters,
    ConnectedHandler, ConnectedInit, ConnectedQueuePair, ConnectedReceive, ConnectedSend,
    ConnectedService, ConnectedStatus, InitAttributes, MemoryRegion, Operation, PostError, QpEvent,
    QpModify, QpState, ReceiveQueue, RemoteAddress, RnrTimer, RtrAttributes, RtsAttributes,
};
pub use ud::{
    AddressHandle, AhAttributes, GrhAttributes, ReceiveHandler, UdInit, UdQueuePair, UdReceive,
    UdSend,
};
