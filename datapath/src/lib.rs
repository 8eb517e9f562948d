//! Not yet written.

pub mod host;
pub mod netdev;
