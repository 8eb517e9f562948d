//! Counters of a port (IBA 16.1.3.5 and 16.1.4.11), and what of a port the data path looks at.

use super::lanes::Lanes;
use super::{DropReason, Drops};
use crate::link::Link;
use arc_swap::{ArcSwapOption, Guard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use wire::mad::PortState;
use wire::packet::Packet;
use wire::{PKey, packet::Lso};

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {
        /// Counters of a port; any thread counts, nobody resets (performance management keeps what it subtracts).
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$meta])* pub $name: AtomicU64),* }

        /// The values of [`Counters`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues { $($(#[$meta])* pub $name: u64),* }

        impl Counters {
            /// Reads all.
            pub fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.load(Relaxed)),* }
            }
        }

        impl CounterValues {
            /// Name and value of each, for `show` and metrics.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
            /// Each value minus, modulo 2^64, that of `other`.
            pub fn minus(&self, other: &CounterValues) -> CounterValues {
                CounterValues { $($name: self.$name.wrapping_sub(other.$name)),* }
            }
            /// Each value plus, modulo 2^64, that of `other`.
            pub fn plus(&self, other: &CounterValues) -> CounterValues {
                CounterValues { $($name: self.$name.wrapping_add(other.$name)),* }
            }
        }
    };
}

counters! {
    /// Sent, LRH to ICRC, units of 4 bytes.
    xmit_data,
    /// Received, LRH to ICRC, units of 4 bytes.
    rcv_data,
    /// Packets sent.
    xmit_pkts,
    /// Packets received.
    rcv_pkts,
    /// Of these with unicast LID.
    unicast_xmit_pkts,
    /// Of these with unicast LID.
    unicast_rcv_pkts,
    /// Of these with multicast LID.
    multicast_xmit_pkts,
    /// Of these with multicast LID.
    multicast_rcv_pkts,
    /// Received packets that were malformed.
    rcv_errors,
    /// Received packets that a switch had no way for.
    rcv_switch_relay_errors,
    /// Packets that could not leave: port down, too long, no link.
    xmit_discards,
    /// Not sent because of the partition.
    xmit_constraint_errors,
    /// Not accepted because of the partition.
    rcv_constraint_errors,
    /// Management packets of QP0 lost because control was busy.
    vl15_dropped,
    /// Management packets of QP1 lost because control was busy.
    qp1_dropped,
    /// Times the link went down.
    link_downed,
}

/// The partition filter of a switch port (IBA 10.9.8); present only while enforcement is on.
#[derive(Debug)]
pub(crate) struct Enforcement {
    pub(crate) inbound: bool,
    pub(crate) outbound: bool,
    pub(crate) pkeys: Vec<PKey>,
}

impl Enforcement {
    /// Does the table let a packet of `key` pass? (One full member is enough.)
    pub(crate) fn admits(&self, key: PKey) -> bool {
        self.pkeys.iter().any(|k| k.matches(key))
    }
}

/// The part of a port that data threads use.
#[derive(Default)]
pub(crate) struct PortPlane {
    link: ArcSwapOption<Arc<dyn Link>>,
    state: AtomicU8,
    /// Changes of the physical link so far: odd while it is up. Control compares it with what it has seen, so that no change is ever lost.
    pub(crate) link_epoch: AtomicU32,
    pub(crate) counters: Counters,
    /// PKey_Violations of PortInfo.
    pub(crate) p_key_violations: AtomicU16,
    /// QKey_Violations of PortInfo.
    pub(crate) q_key_violations: AtomicU16,
    /// A violation is on its way to control: further ones are only counted.
    pub(crate) violation_reported: AtomicBool,
    pub(crate) enforcement: ArcSwapOption<Enforcement>,
    /// Absent while all service levels leave by VL0.
    pub(crate) lanes: ArcSwapOption<Lanes>,
    /// NeighborMTU, bytes: what may leave.
    pub(crate) neighbor_mtu: AtomicU16,
    /// MTUCap, bytes: what may come in.
    pub(crate) mtu_cap: AtomicU16,
    /// Control knows, or is told, that data came in by a port that is Armed.
    pub(crate) data_reported: AtomicBool,
}

/// The longest payload of the packets that `packet` stands for, bytes.
pub(crate) fn payload_len(packet: &Packet<'_>) -> usize {
    let len = packet.payload.len();
    packet.lso.map_or(len, |lso| {
        len.min(usize::from(lso.header_len) + usize::from(lso.mss))
    })
}

/// How many MTU-sized packets a packet stands for, and their bytes from LRH to ICRC: counters always count what a wire would carry.
fn wire_size(packet: &Packet<'_>) -> (u64, u64) {
    // wire_len ends with the VCRC, which is not counted.
    let len = packet.wire_len().saturating_sub(2) as u64;
    match packet.lso {
        Some(Lso { header_len, mss }) if mss > 0 => {
            let data = packet.payload.len().saturating_sub(usize::from(header_len)) as u64;
            let segments = data.div_ceil(u64::from(mss)).max(1);
            let overhead =
                len - packet.payload.len().next_multiple_of(4) as u64 + u64::from(header_len);
            (segments, len + (segments - 1) * overhead)
        }
        _ => (1, len),
    }
}

impl PortPlane {
    pub(crate) fn state(&self) -> PortState {
        PortState(self.state.load(Relaxed))
    }
    pub(crate) fn set_state(&self, state: PortState) {
        self.state.store(state.0, Relaxed);
    }
    pub(crate) fn set_link(&self, link: Option<Arc<dyn Link>>) {
        self.link.store(link.map(Arc::new));
    }
    pub(crate) fn link(&self) -> Guard<Option<Arc<Arc<dyn Link>>>> {
        self.link.load()
    }

    /// Are there packets longer than MTUCap? Then drops these as errors of the link (IBA 7.8.2) and gives the others to `receive`, one by one.
    pub(crate) fn sort_out_oversize(
        &self,
        packets: &[Packet<'_>],
        drops: &Drops,
        receive: impl Fn(&[Packet<'_>]),
    ) -> bool {
        let mtu_cap = usize::from(self.mtu_cap.load(Relaxed));
        let is_oversize = |packet: &Packet<'_>| payload_len(packet) > mtu_cap;
        if !packets.iter().any(is_oversize) {
            return false;
        }
        for packet in packets {
            if is_oversize(packet) {
                self.counters.rcv_errors.fetch_add(1, Relaxed);
                drops.count(DropReason::TooLong);
            } else {
                receive(std::slice::from_ref(packet));
            }
        }
        true
    }

    /// The link came up or went down; false if that was known.
    pub(crate) fn link_changed(&self, up: bool) -> bool {
        self.link_epoch
            .fetch_update(Relaxed, Relaxed, |epoch| {
                ((epoch % 2 == 1) != up).then(|| epoch.wrapping_add(1))
            })
            .is_ok()
    }

    /// Sends out of this port, whatever its state, and counts.
    pub(crate) fn transmit(&self, packets: &[Packet<'_>], drops: &Drops) {
        match self.link().as_ref() {
            Some(link) => {
                let c = &self.counters;
                self.count(
                    packets,
                    &c.xmit_data,
                    &c.xmit_pkts,
                    &c.unicast_xmit_pkts,
                    &c.multicast_xmit_pkts,
                );
                link.transmit(packets);
            }
            None => self.discard(packets.len(), DropReason::NoLink, drops),
        }
    }

    pub(crate) fn count_received(&self, packets: &[Packet<'_>]) {
        let c = &self.counters;
        self.count(
            packets,
            &c.rcv_data,
            &c.rcv_pkts,
            &c.unicast_rcv_pkts,
            &c.multicast_rcv_pkts,
        );
    }

    /// Packets that the link threw away: a CRC or a length was wrong.
    pub(crate) fn count_errors(&self, n: usize) {
        self.counters.rcv_errors.fetch_add(n as u64, Relaxed);
    }

    /// Packets that should have left here.
    pub(crate) fn discard(&self, n: usize, reason: DropReason, drops: &Drops) {
        self.counters.xmit_discards.fetch_add(n as u64, Relaxed);
        drops.add(reason, n as u64);
    }

    fn count(
        &self,
        packets: &[Packet<'_>],
        data: &AtomicU64,
        all: &AtomicU64,
        unicast: &AtomicU64,
        multicast: &AtomicU64,
    ) {
        let (mut pkts, mut bytes, mut to_groups) = (0, 0, 0);
        for packet in packets {
            let (n, len) = wire_size(packet);
            pkts += n;
            bytes += len;
            if packet.lrh.dlid.is_multicast() {
                to_groups += n;
            }
        }
        data.fetch_add(bytes / 4, Relaxed);
        all.fetch_add(pkts, Relaxed);
        if to_groups > 0 {
            multicast.fetch_add(to_groups, Relaxed);
        }
        if pkts > to_groups {
            unicast.fetch_add(pkts - to_groups, Relaxed);
        }
    }
}

/// One more, sticking at the highest value.
pub(crate) fn saturating_count(counter: &AtomicU16) {
    let _ = counter.fetch_update(Relaxed, Relaxed, |n| n.checked_add(1));
}
