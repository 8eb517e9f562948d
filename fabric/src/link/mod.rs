//! Links: what carries InfiniBand packets between two ports.
//!
//! A node sends into a [`Link`]; a link delivers to a [`LinkSink`]. In one process the two are the same call chain: a packet goes from HCA to
//! switch to HCA on the sender's thread, and nothing is copied or queued.

pub mod capture;
pub mod fault;
pub mod local;
pub mod pcap;
pub mod udp;

use wire::mad::PortState;
use wire::packet::Packet;

/// A port as its link sees it.
pub trait LinkSink: Send + Sync {
    /// Packets in order of arrival, borrowed for the time of the call. Never blocks: what needs state machines is handed to control.
    fn receive(&self, packets: &[Packet<'_>]);
    /// The physical link came up or went down.
    fn link_changed(&self, up: bool);
    /// So many packets came in broken (CRC, length, header) and were thrown away: PortRcvErrors of the port.
    fn receive_errors(&self, _n: usize) {}
}

/// A link as the port that sends into it sees it. Middlewares (capture, faults) are links around a link.
pub trait Link: Send + Sync {
    /// Sends packets in order. What cannot be sent is dropped and counted by the link.
    fn transmit(&self, packets: &[Packet<'_>]);
    /// Tells the link the logical state of its port: the flow-control packets of a link that leaves the process say it to the other side.
    fn port_state(&self, state: PortState);
    /// Takes the physical link down, or lets it come up again, for the sake of a fault: nothing leaves while it is down.
    fn enable(&self, _up: bool) {}
    /// Sends a packet whose bits get flipped on the way: its ICRC is wrong on arrival. A super-packet, which has no ICRC yet, is lost.
    fn transmit_broken(&self, packet: &Packet<'_>) {
        let mut bytes = Vec::with_capacity(packet.wire_len());
        if packet.emit_into(&mut bytes).is_ok()
            && let Ok(whole) = Packet::parse_unchecked(&bytes)
            && let [.., a, b, c, d, _, _] = bytes[..]
        {
            self.transmit(&[Packet {
                icrc: Some(!u32::from_le_bytes([a, b, c, d])),
                ..whole
            }]);
        }
    }
}

/// Hands an input to the control side of a node; false if it had to be dropped (the caller counts).
pub type ControlSink<T> = Box<dyn Fn(T) -> bool + Send + Sync>;
