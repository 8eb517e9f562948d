//! What goes in and out of [`Neighbours`](crate::Neighbours).

use std::net::{IpAddr, Ipv6Addr};
use wire::ipoib::LinkAddress;
use wire::mad::attr::PathRecord;
use wire::{Gid, Lid, MtuCode, Qpn, RateCode, ServiceLevel};

/// What the machine asks of its owner. To be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send an ARP or ND packet by unreliable datagram, never over a connection (RFC 4755 section 7).
    Transmit {
        /// Where to.
        to: Destination,
        /// From the encapsulation header on.
        payload: Vec<u8>,
    },
    /// Ask the SA for the path to this GID and answer with [`path_result`](crate::Neighbours::path_result), also when it timed out. At most
    /// one is outstanding per GID.
    QueryPath(Gid),
    /// Put into the forwarding table, or replace what is there.
    Install {
        /// Next hop.
        ip: IpAddr,
        /// Where its packets go.
        entry: Resolved,
    },
    /// Take out of the forwarding table.
    Remove {
        /// Next hop.
        ip: IpAddr,
    },
    /// Packets that waited, oldest first, to be sent with what is installed for `ip`.
    Flush {
        /// Next hop.
        ip: IpAddr,
        /// As given to [`send`](crate::Neighbours::send).
        packets: Vec<Vec<u8>>,
    },
    /// Packets that cannot be delivered, oldest first. None with a failed resolution that no packet waited for.
    Unreachable {
        /// Next hop.
        ip: IpAddr,
        /// As given to [`send`](crate::Neighbours::send).
        packets: Vec<Vec<u8>>,
    },
    /// Another interface claims an address of this one: worth a warning. As often as we defend it.
    Conflict {
        /// Our address.
        ip: IpAddr,
        /// Who claims it.
        by: LinkAddress,
    },
}

/// Where a packet of this machine goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The IPv4 broadcast group.
    Broadcast,
    /// The group of an IPv6 multicast address: all-nodes or a solicited-node address, by the way multicast packets take.
    Group(Ipv6Addr),
    /// One interface.
    Unicast(Resolved),
}

/// Link address and path of a neighbour: all a send needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Flags, QPN and GID.
    pub address: LinkAddress,
    /// How to get to the GID.
    pub path: Path,
    /// Nobody confirmed it lately: the table reports the first use after each such [`Install`](Output::Install) by
    /// [`used`](crate::Neighbours::used) and then stops reporting. False in [`Destination::Unicast`].
    pub stale: bool,
}

/// The way to a GID, from the SA's PathRecord (IBA 15.2.5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Destination LID.
    pub dlid: Lid,
    /// Source LID, one of this port's where LMC > 0: its low bits are the source path bits.
    pub slid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Largest packet on the way.
    pub mtu: MtuCode,
    /// Slowest link on the way.
    pub rate: RateCode,
    /// Packets carry a GRH only where this is greater than 0, as the kernel does.
    pub hop_limit: u8,
    /// Flow label of the GRH, 20 bits.
    pub flow_label: u32,
    /// Traffic class of the GRH.
    pub tclass: u8,
}

impl Path {
    /// The path of a record, if it leads to a port.
    pub fn from_record(record: &PathRecord) -> Result<Self, PathError> {
        if !record.dlid.is_unicast() {
            return Err(PathError::BadLid(record.dlid));
        }
        Ok(Path {
            dlid: record.dlid,
            slid: record.slid,
            sl: record.sl,
            mtu: record.mtu,
            rate: record.rate,
            hop_limit: record.hop_limit,
            flow_label: record.flow_label,
            tclass: record.tclass,
        })
    }
}

/// Why there is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The SA did not answer in time, whatever the number of attempts.
    #[error("the subnet administrator did not answer the path query")]
    TimedOut,
    /// The SA has no record (status 0x0300), or an empty table.
    #[error("the subnet administrator knows no path to this GID")]
    NotFound,
    /// Another status of the SA, as in the MAD.
    #[error("the subnet administrator refused the path query with status 0x{0:04x}")]
    Refused(u16),
    /// The record cannot be used: its destination is no unicast LID.
    #[error("the path record leads to LID {0}, which is no unicast LID")]
    BadLid(Lid),
}

/// Who sent a packet, from the work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Source LID.
    pub lid: Lid,
    /// Source queue pair.
    pub qpn: Qpn,
    /// Source GID, if there was a GRH.
    pub gid: Option<Gid>,
    /// It was sent to a group.
    pub multicast: bool,
}
