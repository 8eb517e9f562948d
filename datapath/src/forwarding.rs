//! The forwarding table: what the data path knows. Control builds it, the data path reads an immutable snapshot.

use crate::interface::connected::lane::{Lane, PeerKey, Way};
use arc_swap::Guard;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use verbs::{AddressHandle, ConnectedQueuePair, UdQueuePair, UdSend};
use wire::ipoib::Scope;
use wire::ipoib::mgid::{ipv4_multicast_gid, ipv6_multicast_gid};
use wire::{Gid, Lid, PKey, QKey, Qpn};

/// Where packets of one neighbour or group go.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) ah: AddressHandle,
    pub(crate) qpn: Qpn,
    /// Largest IP packet that goes as a datagram, bytes.
    pub(crate) mtu: usize,
    /// Set where there may be a connection.
    pub(crate) lane: Option<Arc<Lane>>,
    /// Control wants to hear of the first use: a stale neighbour (RFC 4861 7.3.3), or a send-only group that is left when idle.
    pub(crate) report_use: AtomicBool,
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// What is to be done with a packet.
pub(crate) enum Course<'a> {
    /// Send it by this connection.
    Connection(&'a Arc<dyn ConnectedQueuePair>),
    /// Send it as a datagram.
    Datagram,
    /// It waits for the connection to this peer.
    Wait(PeerKey),
    /// No more than so many bytes go there.
    TooBig(usize),
}

impl Destination {
    pub(crate) fn new(ah: AddressHandle, qpn: Qpn, mtu: usize, report_use: bool) -> Self {
        let report_use = AtomicBool::new(report_use);
        Destination {
            ah,
            qpn,
            mtu,
            lane: None,
            report_use,
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// How packets go there now; none: as datagrams.
    pub(crate) fn way(&self) -> Option<Guard<Arc<Way>>> {
        self.lane.as_ref().map(|lane| lane.way())
    }

    /// What `way` means for an IP packet of `len` bytes.
    pub(crate) fn course<'a>(&self, way: &'a Option<Guard<Arc<Way>>>, len: usize) -> Course<'a> {
        match (&self.lane, way.as_deref().map(Arc::as_ref)) {
            (_, Some(Way::Connected { qp, mtu })) if len <= *mtu => Course::Connection(qp),
            // Also what the peer takes by no connection.
            _ if len <= self.mtu => Course::Datagram,
            (Some(lane), Some(Way::Waiting)) => Course::Wait(lane.peer),
            _ => Course::TooBig(self.mtu_now()),
        }
    }

    /// Largest IP packet that goes there now, bytes.
    pub(crate) fn mtu_now(&self) -> usize {
        match self.way().as_deref().map(Arc::as_ref) {
            Some(Way::Connected { mtu, .. }) => self.mtu.max(*mtu),
            _ => self.mtu,
        }
    }

    /// An IP packet of so many bytes was sent.
    pub(crate) fn count(&self, len: usize) {
        self.packets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(len as u64, Relaxed);
    }

    /// Is it a group, and no neighbour?
    pub(crate) fn is_group(&self) -> bool {
        self.qpn == Qpn::MULTICAST
    }

    /// Control wants to hear of the next use.
    pub(crate) fn ask_use(&self) {
        self.report_use.store(true, Relaxed);
    }

    /// True once after each time that control asked for it.
    pub(crate) fn first_use(&self) -> bool {
        self.report_use.load(Relaxed) && self.report_use.swap(false, Relaxed)
    }
}

/// Who this interface is: fixed while it is up.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) qp: Arc<dyn UdQueuePair>,
    pub(crate) lid: Lid,
    pub(crate) gid: Gid,
    /// The group's Q_Key, for every packet.
    pub(crate) q_key: QKey,
    /// Partition with the full-member bit, and scope: the fixed part of MGIDs.
    pub(crate) p_key: PKey,
    pub(crate) scope: Scope,
    /// IP MTU of the broadcast group, bytes.
    pub(crate) mtu: usize,
}

/// How to reach an IP destination: the route, without the neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// This neighbour.
    Neighbour(IpAddr),
    /// The broadcast group.
    Broadcast,
}

/// One immutable state of the table. Maps are shared between successive states unless they change.
#[derive(Clone, Default)]
pub(crate) struct Forwarding {
    /// `None` while the interface is down.
    pub(crate) identity: Option<Identity>,
    /// The interface's own addresses.
    pub(crate) own: Arc<HashSet<IpAddr>>,
    pub(crate) hops: Arc<HashMap<IpAddr, Hop>>,
    pub(crate) neighbours: Arc<HashMap<IpAddr, Arc<Destination>>>,
    /// By MGID, the broadcast group included.
    pub(crate) groups: Arc<HashMap<Gid, Arc<Destination>>>,
}

impl Forwarding {
    /// The destination of a packet to `ip`, if the table knows it, and the key under which control knows it.
    pub(crate) fn find(&self, identity: &Identity, ip: IpAddr) -> Option<(Key, &Arc<Destination>)> {
        let mgid = if is_group(ip) {
            identity.mgid(ip)
        } else {
            match *self.hops.get(&ip)? {
                Hop::Broadcast => identity.mgid(IpAddr::V4(Ipv4Addr::BROADCAST)),
                Hop::Neighbour(hop) => {
                    return self.neighbours.get(&hop).map(|d| (Key::Neighbour(hop), d));
                }
            }
        };
        self.groups.get(&mgid).map(|d| (Key::Group(mgid), d))
    }
}

/// Do packets to `ip` go to a group by their address alone: multicast and limited broadcast?
pub(crate) fn is_group(ip: IpAddr) -> bool {
    ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Names a [`Destination`] towards control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A neighbour by its IP address.
    Neighbour(IpAddr),
    /// A group by its MGID.
    Group(Gid),
}

impl Identity {
    /// An encapsulated packet to `to`, ready to be posted.
    pub(crate) fn send<'a>(&self, to: &'a Destination, frame: &'a [u8]) -> UdSend<'a> {
        UdSend {
            ah: &to.ah,
            remote_qpn: to.qpn,
            remote_qkey: self.q_key,
            payload: frame,
            lso: None,
        }
    }

    /// The MGID for a multicast or limited-broadcast address (RFC 4391 section 4).
    pub(crate) fn mgid(&self, ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(group) => ipv4_multicast_gid(group, self.p_key, self.scope),
            IpAddr::V6(group) => ipv6_multicast_gid(group, self.p_key, self.scope),
        }
    }
}

/// Destination address of an IP packet; `None` if it is not one.
pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(IpAddr::V4(Ipv4Addr::from(
            <[u8; 4]>::try_from(packet.get(..20)?.get(16..20)?).ok()?,
        ))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(
            <[u8; 16]>::try_from(packet.get(..40)?.get(24..40)?).ok()?,
        ))),
        _ => None,
    }
}
