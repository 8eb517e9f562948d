//! Links over UDP: one datagram is one InfiniBand packet from LRH through VCRC, or a hello.
//!
//! The contract, which other programs implement too:
//! * A packet leaves with both CRCs right. On arrival its ICRC is checked; the datagram's own checksum stands in for the VCRC.
//! * A datagram of 6 bytes is a flow-control packet (IBA 7.9.4), the hello: at least four a second and one at each change of the port's state,
//!   with operation 1 while the port is Down or Init and 0 when it is Armed or Active.
//! * A link is up from its first valid datagram. It goes down at once when the other side's address refuses datagrams, else after 3 s of silence.
//!
//! [`UdpLink`] is the side of a host: it dials one fabric, and goes on saying hello while nobody answers. [`UdpListener`] is the side of the
//! fabric: one socket, on which each new source becomes a link. Trains of packets of one size leave in one system call (GSO), and come in
//! so (GRO); datagrams are never fragmented, so the network below must carry them whole: 2,044 bytes of IP take 2,120 bytes at most.

mod cidr;
pub(crate) mod counters;
mod dial;
mod errqueue;
mod listen;
mod port;
mod socket;
mod state;
#[cfg(test)]
mod tests;

pub use cidr::{Cidr, CidrError};
pub use counters::{Counter, ListenCounters, UdpCounters};
pub use dial::UdpLink;
pub use listen::{Acceptor, Closed, ListenConfig, UdpListener};
pub use state::{HELLO_INTERVAL, LinkState, Output, SILENCE};

use wire::packet::{FlowControl, FlowControlError, Packet, PacketError};

/// What a valid datagram is.
#[expect(
    clippy::large_enum_variant,
    reason = "on its way from the parser into a batch"
)]
enum Datagram<'a> {
    Hello,
    Packet(Packet<'a>),
}

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Malformed {
    Length,
    Header,
    Icrc,
}

impl<'a> Datagram<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() == FlowControl::LEN {
            return match FlowControl::parse(bytes) {
                Ok(hello) if hello.op <= FlowControl::INIT => Ok(Datagram::Hello),
                Err(FlowControlError::Length(_)) => Err(Malformed::Length),
                Ok(_) | Err(FlowControlError::BadLpcrc { .. }) => Err(Malformed::Header),
            };
        }
        Packet::parse(bytes)
            .map(Datagram::Packet)
            .map_err(|error| match error {
                PacketError::Truncated { .. }
                | PacketError::Length { .. }
                | PacketError::GrhLength { .. } => Malformed::Length,
                PacketError::BadIcrc { .. } => Malformed::Icrc,
                _ => Malformed::Header,
            })
    }
}
