//! Why a packet went nowhere: every drop has a reason and a counter.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$meta:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// Reasons to drop a packet in an HCA or a switch.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason { $($(#[$meta])* $name),* }

        impl DropReason {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name),*];
            /// Name for people and for metrics.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text),* }
            }
        }
    };
}

reasons! {
    /// The port the packet came from or had to leave by is not in a state that lets it pass.
    PortNotActive = "port-not-active",
    /// No link is attached where it had to leave.
    NoLink = "no-link",
    /// Not UD SEND ONLY, or without DETH.
    BadOpcode = "bad-opcode",
    /// QP0 off VL15, or VL15 for another queue pair.
    BadVl = "bad-vl",
    /// Destination LID is neither ours nor a multicast LID.
    NotOurLid = "not-our-lid",
    /// No such queue pair.
    NoQueuePair = "no-queue-pair",
    /// P_Key does not match.
    PKeyMismatch = "p-key-mismatch",
    /// Q_Key is not the queue pair's.
    QKeyMismatch = "q-key-mismatch",
    /// Multicast for a group that no queue pair is attached to.
    NoGroupMember = "no-group-member",
    /// Multicast without a GRH or with a unicast DGID.
    BadMulticast = "bad-multicast",
    /// Payload is larger than the MTU of the port.
    TooLong = "too-long",
    /// Send to a LID that is unset, or permissive without being a directed route.
    BadDestination = "bad-destination",
    /// P_Key of a MAD, or of the queue pair's index, is not in the table.
    NoPKey = "no-p-key",
    /// GID index beyond the table.
    NoSourceGid = "no-source-gid",
    /// Management packet of another length than 256 bytes.
    BadMad = "bad-mad",
    /// Directed route broken: hop pointer, port number or end of path (IBA 14.2.2).
    BadRoute = "bad-directed-route",
    /// MAD response that no agent waits for.
    NoAgent = "no-agent",
    /// MAD of a class that nobody serves.
    NoClassAgent = "no-class-agent",
    /// SMP for a subnet manager where none runs.
    NoSubnetManager = "no-subnet-manager",
    /// M_Key did not match.
    MKeyMismatch = "m-key-mismatch",
    /// Method that asks for no answer and means nothing here.
    BadMethod = "bad-method",
    /// Control's queue was full.
    ControlBusy = "control-queue-full",
    /// The service level has no virtual lane at the port it had to leave by.
    NoLane = "no-virtual-lane",
    /// The DGID of a unicast packet is none of the port's.
    NotOurGid = "not-our-gid",
    /// Connected queue pair: the packet's source is not its peer.
    WrongPeer = "wrong-peer",
    /// Switch: the forwarding tables know no way to the destination.
    NoRoute = "no-route",
    /// Switch: the only way out is the way in.
    WouldReturn = "would-return-to-ingress",
    /// Switch: passed more switches than a path may have.
    HopLimit = "hop-limit",
    /// A trap was given up: nobody repressed it, or no subnet manager is known.
    TrapUnanswered = "trap-unanswered",
}

/// One counter per [`DropReason`].
#[derive(Debug)]
pub struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Drops(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    /// Counts one.
    pub fn count(&self, reason: DropReason) {
        self.add(reason, 1)
    }
    /// Counts `n`.
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].fetch_add(n, Ordering::Relaxed);
    }
    /// How many so far.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
    /// Name and count of each reason, zeroes too.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        DropReason::ALL.iter().map(|r| (r.name(), self.get(*r)))
    }
    /// Sum over all reasons.
    pub fn total(&self) -> u64 {
        DropReason::ALL.iter().map(|r| self.get(*r)).sum()
    }
}
