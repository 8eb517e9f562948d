//! Formats of InfiniBand and of IP over InfiniBand. No IO, no allocation where it can be helped, no panic on any input.
//!
//! * [`id`]: the identifiers of the standards as types ([`Gid`], [`Lid`], [`Qpn`], ...)
//! * [`packet`]: an InfiniBand packet from LRH to VCRC (IBA vol. 1, chapters 5, 6, 7 and 9)
//! * [`ipoib`]: what an IPoIB interface puts into packets (RFC 4391, RFC 4755)
//! * [`describe`]: packets in words
//! * [`mad`]: management datagrams (IBA vol. 1, chapters 13 to 16)
//!
//! All multi-byte fields are big-endian on the wire and native in the types.
#![forbid(unsafe_code)]

mod bits;
pub mod describe;
pub mod id;
pub mod ipoib;
mod link_rate;
pub mod mad;
pub mod packet;

pub use id::{Gid, Guid, Lid, MtuCode, PKey, Psn, QKey, Qpn, RateCode, ServiceLevel};
pub use link_rate::{BadLinkRate, LinkRate, LinkSpeed};
