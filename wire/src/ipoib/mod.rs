//! What an IPoIB interface puts into packets: encapsulation, link addresses and multicast mapping (RFC 4391), ARP and Neighbor Discovery with
//! 20-byte addresses, flags of connected mode (RFC 4755).

pub mod address;
pub mod arp;
pub mod encap;
pub mod mgid;
pub mod nd;

pub use address::LinkAddress;
pub use arp::ArpPacket;
pub use encap::{ENCAP_LEN, EncapHeader, EtherType};
pub use mgid::{IpoibMgid, Scope, Signature};
