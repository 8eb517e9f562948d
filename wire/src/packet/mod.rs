//! One InfiniBand packet, from LRH to VCRC: IBA vol. 1, chapters 5 (overview), 7 (LRH, CRCs), 8 (GRH) and 9 (BTH and extended headers).
//!
//! [`Packet`] is both the parsed form of a datagram and what travels inside one process: headers by value, payload borrowed.
//! [`FlowControl`] is the other kind of thing on a link.

mod codec;
pub mod crc;
mod flow_control;
mod headers;
mod opcode;

pub use codec::{EmitError, MAX_WIRE_LEN, MIN_WIRE_LEN, PacketError, vcrc_ok};
pub use flow_control::{FlowControl, FlowControlError};
pub use headers::{Aeth, AtomicEth, Bth, Deth, Extended, Grh, Lrh, Reth};
pub use opcode::{HeaderSet, Opcode};

/// Large send offload: the payload is one IP super-packet that stands for several MTU-sized packets (as verbs' LSO work requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lso {
    /// Bytes of the payload (encapsulation, IP, TCP or UDP header) that begin each segment.
    pub header_len: u16,
    /// Bytes of data in each segment but the last.
    pub mss: u16,
}

/// One InfiniBand packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header.
    pub grh: Option<Grh>,
    /// Base transport header.
    pub bth: Bth,
    /// Extended transport headers.
    pub ext: Extended,
    /// What follows the transport headers, without pad.
    pub payload: &'a [u8],
    /// Set: the payload is a super-packet; only links inside a process carry it.
    pub lso: Option<Lso>,
    /// The invariant CRC as it came off a link, so that it stays end to end through switches; `None`: not computed yet.
    /// Whoever changes a field under the ICRC (anything but VL, LRH of routed packets, hop limit, FECN/BECN) sets it to `None`.
    pub icrc: Option<u32>,
    /// Switches passed. Not on the wire; bounds loops inside a process.
    pub hops: u8,
}
