//! One IPoIB interface: devices, forwarding, state machine.
//!
//! * [`netdev`]: the devices that IP packets come from and go to
//! * [`host`]: what the Linux kernel knows about such a device
//! * [`plane`]: the data path, device to queue pair and back
//! * [`interface`]: the state machine that builds the forwarding table

pub mod counters;
mod forwarding;
mod fragment;
pub mod host;
mod icmp;
pub mod interface;
pub mod netdev;
pub mod plane;

pub use icmp::MIN_MTU_V6;
pub use interface::{ConnectedConfig, Host, Input, InputSink, Interface, InterfaceConfig, Mode};
pub use plane::Plane;
