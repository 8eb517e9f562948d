//! Counters that any thread may add to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }
    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($(#[$struct:meta])* $name:ident { $($(#[$meta:meta])* $field:ident,)* }) => {
        $(#[$struct])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$meta])* pub $field: $crate::link::udp::counters::Counter,)* }

        impl $name {
            /// Every counter with its name.
            pub fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.get())),*]
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// Counts of one link, datagrams unless it says bytes.
    UdpCounters {
        /// Came in, valid or not.
        rx_datagrams,
        /// Bytes of them.
        rx_bytes,
        /// Of them, packets given to the port.
        rx_packets,
        /// Of them, hellos.
        rx_hellos,
        /// Dropped: length is that of no packet, or not the one that the headers state.
        rx_bad_length,
        /// Dropped: a header that is none (raw packet, GRH, pad count), or a hello with a wrong CRC or operation.
        rx_bad_header,
        /// Dropped: wrong ICRC.
        rx_bad_icrc,
        /// Receive calls that failed other than by refusal.
        rx_errors,
        /// Handed to the kernel.
        tx_datagrams,
        /// Bytes of them.
        tx_bytes,
        /// Of them, hellos.
        tx_hellos,
        /// Dropped: the link is down.
        tx_link_down,
        /// Dropped: the socket's buffer is full.
        tx_full,
        /// Dropped: larger than what the network under the link takes in one piece.
        tx_too_big,
        /// Dropped: a super-packet, which this link does not cut yet.
        tx_super_packet,
        /// Dropped: a packet that has no form on the wire (too long, extended headers of another opcode).
        tx_malformed,
        /// Dropped: the kernel refused for another reason.
        tx_errors,
        /// Times the other side's address refused datagrams.
        refused,
    }
}

counters! {
    /// Counts of a listening socket. Datagrams that belong to a link count there.
    ListenCounters {
        /// Datagrams from sources without a link.
        rx_unknown,
        /// Of them dropped: bad length.
        rx_bad_length,
        /// Of them dropped: bad header or hello.
        rx_bad_header,
        /// Of them dropped: wrong ICRC.
        rx_bad_icrc,
        /// Of them dropped: the source is neither loopback nor allowed.
        refused_source,
        /// Of them dropped: the acceptor had no free port.
        no_free_port,
        /// Of them dropped: as many links as may be.
        too_many_links,
        /// Links made.
        opened,
        /// Links closed by silence.
        closed_silent,
        /// Links closed by a connection-refused error.
        closed_refused,
        /// Receive calls that failed.
        rx_errors,
    }
}
