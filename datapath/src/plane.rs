//! The data path of one interface: device to queue pair and back, on the thread that brings the packets, without locks or allocation.
//!
//! What needs a state machine (a destination that is not in the table, ARP, ND) is copied and handed to control.

use crate::counters::Counters;
use crate::forwarding::{Course, Destination, Forwarding, Identity, Key, destination};
use crate::fragment;
use crate::netdev::{HEADROOM, Netdev, PacketBatch};
use arc_swap::ArcSwap;
use arp::Source;
use arrayvec::ArrayVec;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use verbs::{
    ConnectedQueuePair, ConnectedReceive, ConnectedSend, ReceiveHandler, UdReceive, UdSend,
};
use wire::ipoib::nd::is_neighbor_discovery;
use wire::ipoib::{ENCAP_LEN, EncapHeader, EtherType};
use wire::{Gid, Qpn};

const _: () = assert!(
    HEADROOM == ENCAP_LEN,
    "the encapsulation header is written into the headroom"
);

/// Sends posted at once.
const BATCH: usize = 64;

/// What the data path hands to control. Packets are copies.
#[derive(Clone, Debug)]
pub enum Upcall {
    /// From the device: no entry for its destination. Encapsulated.
    Miss(Vec<u8>),
    /// From the device: larger than `mtu`, the most that goes to its destination. A bare IP packet, cut to what an ICMP error quotes.
    TooBig(Vec<u8>, usize),
    /// First use of a destination that control asked about.
    Used(Key),
    /// A packet for a peer (GID, UD queue pair) that may have a connection and has none.
    Connect((Gid, Qpn)),
    /// Something at the queue pair of a connection: control finds it where that was put.
    Connection,
    /// ARP from the fabric, without encapsulation.
    Arp(Source, Vec<u8>),
    /// A neighbour discovery message from the fabric: the whole IPv6 packet.
    Nd(Source, Vec<u8>),
}

/// Takes an upcall to control; false if its queue is full.
pub type UpcallSink = Box<dyn Fn(Upcall) -> bool + Send + Sync>;

/// Shared by the thread that reads the device, the threads that deliver packets, and control.
pub struct Plane {
    table: ArcSwap<Forwarding>,
    netdev: Arc<dyn Netdev>,
    control: UpcallSink,
    /// Called when the host reports a change of its groups.
    reported: OnceLock<Box<dyn Fn() + Send + Sync>>,
    counters: Counters,
    /// Identification of the next packet that is sent as fragments.
    fragment_id: AtomicU32,
}

impl Plane {
    /// A plane that drops everything until control brings it up.
    pub(crate) fn new(netdev: Arc<dyn Netdev>, control: UpcallSink, seed: u64) -> Self {
        Plane {
            table: ArcSwap::from_pointee(Forwarding::default()),
            netdev,
            control,
            reported: OnceLock::new(),
            counters: Counters::default(),
            // RFC 7739: nobody outside is to guess it.
            fragment_id: AtomicU32::new(seed as u32),
        }
    }

    pub(crate) fn publish(&self, table: Forwarding) {
        self.table.store(Arc::new(table));
    }

    /// Calls `reported` at each IGMP or MLD report that the host sends, for hosts that tell of their groups in no other way. Only once.
    pub fn on_group_report(&self, reported: Box<dyn Fn() + Send + Sync>) {
        // The first stays.
        let _ = self.reported.set(reported);
    }

    /// The device below the host.
    pub fn netdev(&self) -> &Arc<dyn Netdev> {
        &self.netdev
    }

    /// Counters of both directions.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tells control; false if it has no room for more, and counted if that loses something.
    pub(crate) fn upcall(&self, upcall: Upcall) -> bool {
        let only_wakes = matches!(upcall, Upcall::Connection);
        let taken = (self.control)(upcall);
        if !taken && !only_wakes {
            Counters::bump(&self.counters.drop_control_full);
        }
        taken
    }

    /// Sends encapsulated packets by a connection.
    pub(crate) fn post_connected(&self, qp: &dyn ConnectedQueuePair, batch: &[ConnectedSend<'_>]) {
        let c = &self.counters;
        let posted = qp
            .post_send(batch)
            .map_or_else(|e| e.posted, |()| batch.len());
        Counters::add(&c.tx_packets, posted as u64);
        Counters::add(&c.tx_connected, posted as u64);
        let bytes = |send: &ConnectedSend<'_>| send.operation.payload().len() - ENCAP_LEN;
        Counters::add(
            &c.tx_bytes,
            batch[..posted].iter().map(bytes).sum::<usize>() as u64,
        );
        Counters::add(&c.tx_drop_connection_full, (batch.len() - posted) as u64);
    }

    /// Device to fabric: sends what was read.
    pub fn transmit(&self, batch: &mut PacketBatch) {
        let c = &self.counters;
        if let Some(reported) = self.reported.get()
            && batch.iter().any(is_group_report)
        {
            reported();
        }
        let table = self.table.load();
        let Some(identity) = &table.identity else {
            Counters::add(&c.tx_drop_down, batch.len() as u64);
            return;
        };
        let mut sends: ArrayVec<UdSend<'_>, BATCH> = ArrayVec::new();
        let mut run = Run::default();
        let mut last: Option<(IpAddr, (Key, &Arc<Destination>))> = None;
        let (mut packets, mut bytes, mut multicast) = (0, 0, 0);
        for packet in batch.iter_mut() {
            let Some(ip) = destination(packet.packet()) else {
                Counters::bump(&c.tx_drop_not_ip);
                continue;
            };
            let ether_type = if ip.is_ipv4() {
                EtherType::IPV4
            } else {
                EtherType::IPV6
            };
            let frame = packet.into_with_headroom();
            frame[..ENCAP_LEN].copy_from_slice(&EncapHeader { ether_type }.emit());
            let frame: &[u8] = frame;
            let packet = &frame[HEADROOM..];
            let found = match last {
                Some((seen, found)) if seen == ip => Some(found),
                _ => table.find(identity, ip),
            };
            let Some((key, to)) = found else {
                Counters::bump(&c.tx_miss);
                self.upcall(Upcall::Miss(frame.to_vec()));
                continue;
            };
            last = Some((ip, (key, to)));
            let way = to.way();
            let course = to.course(&way, packet.len());
            if let Course::Wait(_) = course {
                Counters::bump(&c.tx_miss);
                self.upcall(Upcall::Miss(frame.to_vec()));
                continue;
            }
            if to.first_use() && !self.upcall(Upcall::Used(key)) {
                to.ask_use();
            }
            if let Some(lane) = &to.lane
                && lane.first_use()
                && !self.upcall(Upcall::Connect(lane.peer))
            {
                lane.ask_again();
            }
            match course {
                Course::Connection(qp) => {
                    to.count(packet.len());
                    run.push(self, qp, frame);
                }
                Course::Datagram => {
                    to.count(packet.len());
                    packets += 1;
                    bytes += packet.len() as u64;
                    multicast += u64::from(matches!(key, Key::Group(_)));
                    if sends.is_full() {
                        identity.qp.post_send(&sends);
                        sends.clear();
                    }
                    sends.push(identity.send(to, frame));
                }
                Course::TooBig(mtu) => {
                    // In the order in which they came.
                    identity.qp.post_send(&sends);
                    sends.clear();
                    if !self.send_fragments(&table, to, frame) {
                        Counters::bump(&c.tx_drop_too_big);
                        self.upcall(Upcall::TooBig(crate::icmp::quote(packet).to_vec(), mtu));
                    }
                }
                // Done above.
                Course::Wait(_) => {}
            }
        }
        if !sends.is_empty() {
            identity.qp.post_send(&sends);
        }
        run.post(self);
        Counters::add(&c.tx_packets, packets);
        Counters::add(&c.tx_bytes, bytes);
        Counters::add(&c.tx_multicast, multicast);
    }

    /// Sends a packet larger than `to` takes, as fragments; false if that is not allowed.
    pub(crate) fn send_fragments(
        &self,
        table: &Forwarding,
        to: &Destination,
        frame: &[u8],
    ) -> bool {
        let Some(identity) = &table.identity else {
            return false;
        };
        let id = self.fragment_id.fetch_add(1, Relaxed);
        let Some(frames) = fragment::cut(frame, to, &table.own, id) else {
            return false;
        };
        let sends: Vec<_> = frames
            .iter()
            .map(|frame| identity.send(to, frame))
            .collect();
        identity.qp.post_send(&sends);
        let packets = frames.len() as u64;
        let bytes = frames
            .iter()
            .map(|frame| frame.len() - ENCAP_LEN)
            .sum::<usize>() as u64;
        to.packets.fetch_add(packets, Relaxed);
        to.bytes.fetch_add(bytes, Relaxed);
        let c = &self.counters;
        Counters::bump(&c.tx_fragmented);
        Counters::add(&c.tx_packets, packets);
        Counters::add(&c.tx_bytes, bytes);
        Counters::add(&c.tx_multicast, packets * u64::from(to.is_group()));
        true
    }

    /// Writes an IP packet that control made (an ICMP error) to the device.
    pub(crate) fn to_host(&self, packet: &[u8]) {
        if self.netdev.write(packet).is_err() {
            Counters::bump(&self.counters.rx_drop_device);
        }
    }

    fn receive_ip(&self, packet: &[u8], multicast: bool) {
        let c = &self.counters;
        if self.netdev.write(packet).is_err() {
            return Counters::bump(&c.rx_drop_device);
        }
        Counters::bump(&c.rx_packets);
        Counters::add(&c.rx_bytes, packet.len() as u64);
        Counters::add(&c.rx_multicast, u64::from(multicast));
    }

    /// Messages of a peer's connection, or of ours.
    pub(crate) fn receive_connected(&self, source: Source, batch: &[ConnectedReceive<'_>]) {
        let c = &self.counters;
        if self.table.load().identity.is_none() {
            return Counters::add(&c.rx_drop_down, batch.len() as u64);
        }
        Counters::add(&c.rx_connected, batch.len() as u64);
        for message in batch {
            self.receive_encapsulated(source, message.payload);
        }
    }

    fn receive_one(&self, identity: &Identity, datagram: &UdReceive<'_>) {
        let c = &self.counters;
        // The adapter loops own multicast back to other queue pairs and switches may return it: ib_ipoib drops by the same three.
        let own = datagram.slid == identity.lid && datagram.src_qp == identity.qp.qpn();
        if own
            && datagram
                .grh
                .is_none_or(|(sgid, _)| sgid.guid() == identity.gid.guid())
        {
            return Counters::bump(&c.rx_drop_own);
        }
        let source = Source {
            lid: datagram.slid,
            qpn: datagram.src_qp,
            gid: datagram.grh.map(|(sgid, _)| sgid),
            multicast: datagram.grh.is_some_and(|(_, dgid)| dgid.is_multicast()),
        };
        self.receive_encapsulated(source, datagram.payload);
    }

    fn receive_encapsulated(&self, source: Source, payload: &[u8]) {
        let c = &self.counters;
        let Some((ether_type, packet)) = EncapHeader::split(payload) else {
            return Counters::bump(&c.rx_drop_short);
        };
        match ether_type {
            EtherType::IPV4 if packet.len() >= 20 && packet[0] >> 4 == 4 => {
                self.receive_ip(packet, source.multicast)
            }
            EtherType::IPV6 if packet.len() >= 40 && packet[0] >> 4 == 6 => {
                if is_neighbor_discovery(packet) {
                    Counters::bump(&c.rx_nd);
                    self.upcall(Upcall::Nd(source, packet.to_vec()));
                } else {
                    self.receive_ip(packet, source.multicast);
                }
            }
            EtherType::IPV4 | EtherType::IPV6 => Counters::bump(&c.rx_drop_short),
            EtherType::ARP => {
                Counters::bump(&c.rx_arp);
                self.upcall(Upcall::Arp(source, packet.to_vec()));
            }
            _ => Counters::bump(&c.rx_drop_ethertype),
        }
    }
}

/// Packets on their way to one connection.
#[derive(Default)]
struct Run<'a> {
    qp: Option<Arc<dyn ConnectedQueuePair>>,
    sends: ArrayVec<ConnectedSend<'a>, BATCH>,
}

impl<'a> Run<'a> {
    fn push(&mut self, plane: &Plane, qp: &Arc<dyn ConnectedQueuePair>, frame: &'a [u8]) {
        let same = self.qp.as_ref().is_some_and(|last| Arc::ptr_eq(last, qp));
        if !same || self.sends.is_full() {
            self.post(plane);
            self.qp = Some(qp.clone());
        }
        self.sends.push(ConnectedSend::message(frame));
    }

    fn post(&mut self, plane: &Plane) {
        if let Some(qp) = self.qp.take()
            && !self.sends.is_empty()
        {
            plane.post_connected(&*qp, &self.sends);
        }
        self.sends.clear();
    }
}

/// An IGMP message (RFC 3376) or, behind its hop-by-hop header, an MLD report or done (RFC 3810, RFC 2710)?
fn is_group_report(packet: &[u8]) -> bool {
    const IGMP: u8 = 2;
    const HOP_BY_HOP: u8 = 0;
    const ICMPV6: u8 = 58;
    match packet {
        [0x45..=0x4f, ..] => packet.get(9) == Some(&IGMP),
        [0x60..=0x6f, ..]
            if packet.get(6) == Some(&HOP_BY_HOP) && packet.get(40) == Some(&ICMPV6) =>
        {
            // The header with the router alert option has 8 bytes.
            matches!(packet.get(48), Some(131 | 132 | 143))
        }
        _ => false,
    }
}

impl ReceiveHandler for Plane {
    fn receive(&self, batch: &[UdReceive<'_>]) {
        let table = self.table.load();
        let Some(identity) = &table.identity else {
            return Counters::add(&self.counters.rx_drop_down, batch.len() as u64);
        };
        for datagram in batch {
            self.receive_one(identity, datagram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_group_report;

    #[test]
    fn group_reports_are_known() {
        let mut igmp = [0u8; 32];
        (igmp[0], igmp[9]) = (0x46, 2);
        assert!(is_group_report(&igmp));
        igmp[9] = 17;
        assert!(!is_group_report(&igmp));
        let mut mld = [0u8; 76];
        (mld[0], mld[6], mld[40], mld[48]) = (0x60, 0, 58, 143);
        assert!(is_group_report(&mld));
        mld[48] = 128;
        assert!(!is_group_report(&mld));
        assert!(!is_group_report(&[]) && !is_group_report(&[0x60]) && !is_group_report(&[0x45]));
    }
}
