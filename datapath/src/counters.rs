//! What an interface counts. Every packet that is dropped is in exactly one drop counter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$fmeta])* pub $field: AtomicU64),* }

        impl $name {
            /// All counters with their names.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.load(Relaxed))),*]
            }
        }
    };
}

counters! {
    /// Counters of the data path and of what control does for it.
    pub struct Counters {
        /// IP packets sent into the fabric.
        tx_packets,
        /// Their bytes, without encapsulation.
        tx_bytes,
        /// IP packets sent to multicast groups.
        tx_multicast,
        /// IP packets sent by connections.
        tx_connected,
        /// IP packets sent as fragments: larger than the MTU of their group or, without DF, of their IPv4 neighbour.
        tx_fragmented,
        /// IP packets received from the fabric and written to the device.
        rx_packets,
        /// Their bytes, without encapsulation.
        rx_bytes,
        /// IP packets received from multicast groups.
        rx_multicast,
        /// Messages received by connections.
        rx_connected,
        /// Packets handed to control because the forwarding table had no entry, or their connection is not open yet.
        tx_miss,
        /// Drop: the interface is not up (no broadcast group).
        tx_drop_down,
        /// Drop: neither IPv4 nor IPv6, or cut short.
        tx_drop_not_ip,
        /// Drop: larger than the MTU towards its destination; answered with ICMP where allowed.
        tx_drop_too_big,
        /// Drop: no route to the destination on this interface.
        tx_drop_no_route,
        /// Drop: the neighbour could not be resolved; answered with ICMP where allowed.
        tx_drop_unreachable,
        /// Drop: a multicast group could not be joined, or its queue was full.
        tx_drop_multicast,
        /// Drop: the connection took no more, mostly as too much was on its way already.
        tx_drop_connection_full,
        /// Lost, or perhaps so: not acknowledged when their connection ended.
        tx_lost_connection,
        /// Drop: the queue to control was full. Reports without a packet count too; they are repeated.
        drop_control_full,
        /// Drop: the interface is not up (no broadcast group).
        rx_drop_down,
        /// Drop: own multicast came back.
        rx_drop_own,
        /// Drop: shorter than its headers.
        rx_drop_short,
        /// Drop: an ethertype that IPoIB does not carry.
        rx_drop_ethertype,
        /// Drop: an ARP packet that is not for InfiniBand, or malformed.
        rx_drop_bad_arp,
        /// Drop: a neighbour discovery packet that breaks the rules of RFC 4861.
        rx_drop_bad_nd,
        /// Drop: the device did not take the packet (down, full).
        rx_drop_device,
        /// ARP packets received.
        rx_arp,
        /// Neighbour discovery packets received.
        rx_nd,
        /// ICMP errors made for the host.
        icmp_errors,
        /// ICMP errors not made: rate limit, or not allowed for such a packet.
        icmp_suppressed,
    }
}

impl Counters {
    /// One more.
    pub(crate) fn bump(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
    /// `n` more.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}
