//! A server of the libumad2sim protocol: OpenSM, the infiniband-diags and all else that uses libibumad run on nodes of this fabric, unmodified.
//!
//! Debian's libumad2sim.so, preloaded, plays `/dev/infiniband/umad*` and passes MADs in datagrams to a server ([`protocol`]). This server puts
//! each on the wire at the client's node, from QP0 along its directed route or by LID, or from QP1, and brings what comes for the node's
//! clients. Transaction IDs are replaced on the way out, so that clients need not know of each other, and restored on the way in.
//!
//! The state machine takes `(now, input)`; one thread gives it sockets and time: abstract Unix sockets `BASE:ctl` and `BASE:out<client>`, for
//! this user and root alone, and, if asked for, UDP ports P and P+1+client.

mod core;
pub mod protocol;
mod rmpp;
mod server;

pub use server::{UmadConfig, UmadServer};

crate::link::udp::counters::counters! {
    /// Counts of a [`UmadServer`].
    UmadCounters {
        /// Clients that connected.
        connected,
        /// Clients that left or died.
        disconnected,
        /// Of them, found dead.
        died,
        /// MADs of clients that went into the fabric.
        rx_mads,
        /// MADs given to clients.
        tx_mads,
        /// Requests sent again because nobody answered.
        sent_again,
        /// Requests that went back to their client with status 110.
        timed_out,
        /// Control requests answered with an error.
        control_refused,
        /// Tables of records that were cut: to what a MAD holds.
        tables_cut,
        /// Dropped: not a control datagram.
        rx_bad_control,
        /// Dropped: a data datagram of a wrong length, or with a wrong length in it.
        rx_bad_length,
        /// Dropped: an SMP for another queue pair than 0, or something else for it.
        rx_bad_address,
        /// Dropped: from no client, or from another one than it says.
        rx_unknown_client,
        /// Dropped: the sender is another user, or its address is not allowed.
        rx_refused_source,
        /// Dropped: an answer that nobody waits for.
        rx_unexpected,
        /// Dropped: a request or report for which there is no client.
        nobody,
        /// Dropped: more MADs came than the server could take.
        queue_full,
        /// Dropped: the client does not read.
        tx_full,
        /// Dropped: could not be sent to the client.
        tx_errors,
        /// Receive calls that failed.
        rx_errors,
        /// Clients refused: as many as there may be.
        too_many_clients,
        /// Clients refused: no socket to be had for them.
        no_socket,
        /// Requests given back at once: as many under way as there may be.
        too_many_requests,
    }
}
