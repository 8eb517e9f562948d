//! The headers of a packet. Reading and writing is by hand, not by the bit tables of `bits`: every packet of the data path comes here.

use super::opcode::{HeaderSet, Opcode};
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

impl Grh {
    /// Length on the wire, bytes.
    pub const LEN: usize = 40;

    /// The GRH as receive buffers of UD queue pairs begin with it (IBA 11.4.1.2); `pay_len` counts BTH..ICRC.
    pub fn emit(&self, pay_len: u16) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(
            &(6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff)
                .to_be_bytes(),
        );
        b[4..6].copy_from_slice(&pay_len.to_be_bytes());
        b[6] = super::codec::NXT_HDR_IBA;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.sgid.0);
        b[24..].copy_from_slice(&self.dgid.0);
        b
    }

    pub(super) fn parse(b: &[u8; Self::LEN]) -> Self {
        let first = be32(b, 0);
        Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: b[7],
            sgid: Gid(array(b, 8)),
            dgid: Gid(array(b, 24)),
        }
    }
}

impl Lrh {
    pub(super) const LEN: usize = 8;

    pub(super) fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            vl: b[0] >> 4,
            lver: b[0] & 0xf,
            sl: ServiceLevel(b[1] >> 4),
            dlid: Lid(be16(b, 2)),
            slid: Lid(be16(b, 6)),
        }
    }

    pub(super) fn emit(&self, lnh: u8, words: u16) -> [u8; Self::LEN] {
        let [d0, d1] = self.dlid.0.to_be_bytes();
        let [s0, s1] = self.slid.0.to_be_bytes();
        let [l0, l1] = words.to_be_bytes();
        [
            self.vl << 4 | self.lver & 0xf,
            self.sl.0 << 4 | lnh,
            d0,
            d1,
            l0,
            l1,
            s0,
            s1,
        ]
    }
}

impl Bth {
    pub(super) const LEN: usize = 12;

    pub(super) fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            tver: b[1] & 0xf,
            p_key: PKey(be16(b, 2)),
            resv8a: b[4],
            dest_qp: Qpn::new(be32(b, 4)),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(be32(b, 8)),
        }
    }

    pub(super) fn emit(&self, pad: u8) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = self.opcode.0;
        b[1] = u8::from(self.solicited) << 7
            | u8::from(self.mig_req) << 6
            | pad << 4
            | self.tver & 0xf;
        b[2..4].copy_from_slice(&self.p_key.0.to_be_bytes());
        b[4..8].copy_from_slice(
            &(u32::from(self.resv8a) << 24 | self.dest_qp.0 & 0xff_ffff).to_be_bytes(),
        );
        b[8..].copy_from_slice(
            &(u32::from(self.ack_req) << 31 | self.psn.0 & 0xff_ffff).to_be_bytes(),
        );
        b
    }
}

impl Extended {
    /// Which headers are present.
    pub fn headers(&self) -> HeaderSet {
        let mut set = HeaderSet::NONE;
        for (present, header) in [
            (self.deth.is_some(), HeaderSet::DETH),
            (self.reth.is_some(), HeaderSet::RETH),
            (self.atomic.is_some(), HeaderSet::ATOMIC),
            (self.aeth.is_some(), HeaderSet::AETH),
            (self.atomic_ack.is_some(), HeaderSet::ATOMIC_ACK),
            (self.immediate.is_some(), HeaderSet::IMMEDIATE),
            (self.invalidate_r_key.is_some(), HeaderSet::INVALIDATE),
        ] {
            if present {
                set = set.with(header);
            }
        }
        set
    }

    /// Reads the headers in `set` from the front of `b`, which holds at least `set.wire_len()` bytes.
    pub(super) fn parse(set: HeaderSet, b: &[u8]) -> Self {
        let mut at = 0;
        // The offset of a header of `len` bytes if the set has it.
        let mut next = |header, len: usize| {
            set.contains(header).then(|| {
                at += len;
                at - len
            })
        };
        Self {
            deth: next(HeaderSet::DETH, 8).map(|o| Deth {
                q_key: QKey(be32(b, o)),
                src_qp: Qpn::new(be32(b, o + 4)),
            }),
            reth: next(HeaderSet::RETH, 16).map(|o| Reth {
                virtual_address: be64(b, o),
                r_key: be32(b, o + 8),
                dma_length: be32(b, o + 12),
            }),
            atomic: next(HeaderSet::ATOMIC, 28).map(|o| AtomicEth {
                virtual_address: be64(b, o),
                r_key: be32(b, o + 8),
                swap_or_add: be64(b, o + 12),
                compare: be64(b, o + 20),
            }),
            aeth: next(HeaderSet::AETH, 4).map(|o| Aeth {
                syndrome: b[o],
                msn: be32(b, o) & 0xff_ffff,
            }),
            atomic_ack: next(HeaderSet::ATOMIC_ACK, 8).map(|o| be64(b, o)),
            immediate: next(HeaderSet::IMMEDIATE, 4).map(|o| be32(b, o)),
            invalidate_r_key: next(HeaderSet::INVALIDATE, 4).map(|o| be32(b, o)),
        }
    }

    /// Writes the headers to the front of `b`, which holds at least `self.headers().wire_len()` bytes.
    pub(super) fn emit(&self, b: &mut [u8]) {
        let mut at = 0;
        let mut put = |field: &[u8]| {
            b[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        if let Some(deth) = self.deth {
            put(&deth.q_key.0.to_be_bytes());
            put(&(deth.src_qp.0 & 0xff_ffff).to_be_bytes());
        }
        if let Some(reth) = self.reth {
            put(&reth.virtual_address.to_be_bytes());
            put(&reth.r_key.to_be_bytes());
            put(&reth.dma_length.to_be_bytes());
        }
        if let Some(atomic) = self.atomic {
            put(&atomic.virtual_address.to_be_bytes());
            put(&atomic.r_key.to_be_bytes());
            put(&atomic.swap_or_add.to_be_bytes());
            put(&atomic.compare.to_be_bytes());
        }
        if let Some(aeth) = self.aeth {
            put(&(u32::from(aeth.syndrome) << 24 | aeth.msn & 0xff_ffff).to_be_bytes());
        }
        if let Some(data) = self.atomic_ack {
            put(&data.to_be_bytes());
        }
        if let Some(immediate) = self.immediate {
            put(&immediate.to_be_bytes());
        }
        if let Some(r_key) = self.invalidate_r_key {
            put(&r_key.to_be_bytes());
        }
    }
}

pub(super) fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}
pub(super) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(b, at))
}
fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(b, at))
}
fn be64(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(b, at))
}
