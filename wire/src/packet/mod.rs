//! One InfiniBand packet, from LRH to VCRC: IBA vol. 1, chapters 5 (overview), 7 (LRH, CRCs), 8 (GRH) and 9 (BTH and extended headers).
//!
//! [`Packet`] is both the parsed form of a datagram and what travels inside one process: headers by value, payload borrowed.

use crate::id::{Gid, Lid, PKey, Psn, QKey, Qpn, ServiceLevel};

/// Local route header without what follows from the rest of the packet (LNH and PktLen) (IBA 7.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Lrh {
    /// Virtual lane, 4 bits; 15 is the management lane of QP0.
    pub vl: u8,
    /// Link version, 4 bits, 0.
    pub lver: u8,
    /// Service level.
    pub sl: ServiceLevel,
    /// Destination.
    pub dlid: Lid,
    /// Source.
    pub slid: Lid,
}

/// Global route header without IPVer (6), PayLen and NxtHdr (0x1B), which follow from the packet (IBA 8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
}

/// Base transport header without PadCnt, which follows from the payload (IBA 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bth {
    /// Operation.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration request.
    pub mig_req: bool,
    /// Transport header version, 4 bits, 0.
    pub tver: u8,
    /// Partition key.
    pub p_key: PKey,
    /// FECN, BECN and six reserved bits; outside the ICRC.
    pub resv8a: u8,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Acknowledge request.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// BTH operation code: transport in the upper 3 bits, operation in the lower 5 (IBA 9.2.1, table 35).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Opcode(pub u8);

/// Datagram extended transport header (IBA 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deth {
    /// Queue key.
    pub q_key: QKey,
    /// Source queue pair.
    pub src_qp: Qpn,
}

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reth {
    /// Remote virtual address.
    pub virtual_address: u64,
    /// Remote key.
    pub r_key: u32,
    /// Length of the whole RDMA message, bytes.
    pub dma_length: u32,
}

/// ATOMIC extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// Remote virtual address.
    pub virtual_address: u64,
    /// Remote key.
    pub r_key: u32,
    /// Swap or add operand.
    pub swap_or_add: u64,
    /// Compare operand.
    pub compare: u64,
}

/// ACK extended transport header (IBA 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK with credit count, timer or code.
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// The extended headers that an opcode brings; those it does not bring are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extended {
    /// Unreliable datagrams.
    pub deth: Option<Deth>,
    /// RDMA requests.
    pub reth: Option<Reth>,
    /// ATOMIC requests.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgements and RDMA READ responses.
    pub aeth: Option<Aeth>,
    /// ATOMIC acknowledge: original remote data.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// SEND with invalidate.
    pub invalidate_r_key: Option<u32>,
}

/// Large send offload: the payload is one IP super-packet that stands for several MTU-sized packets (as verbs' LSO work requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lso {
    /// Bytes of the payload (encapsulation, IP, TCP or UDP header) that begin each segment.
    pub header_len: u16,
    /// Bytes of data in each segment but the last.
    pub mss: u16,
}

/// One InfiniBand packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header.
    pub grh: Option<Grh>,
    /// Base transport header.
    pub bth: Bth,
    /// Extended transport headers.
    pub ext: Extended,
    /// What follows the transport headers, without pad.
    pub payload: &'a [u8],
    /// Set: the payload is a super-packet; only links inside a process carry it.
    pub lso: Option<Lso>,
    /// The invariant CRC as it came off a link, so that it stays end to end through switches; `None`: not computed yet.
    pub icrc: Option<u32>,
    /// Switches passed. Not on the wire; bounds loops inside a process.
    pub hops: u8,
}
