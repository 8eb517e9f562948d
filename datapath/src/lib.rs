//! One IPoIB interface: devices, forwarding, state machine.

pub mod host;
pub mod netdev;
