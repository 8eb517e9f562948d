//! Bytes to [`Packet`] and back.

use super::crc::{icrc, vcrc};
use super::headers::{Bth, Extended, Grh, Lrh, array, be16};
use super::{Opcode, Packet};

/// NxtHdr of a GRH in front of a BTH (IBA 8.3).
pub(super) const NXT_HDR_IBA: u8 = 0x1b;

const ICRC_LEN: usize = 4;
const VCRC_LEN: usize = 2;

/// The shortest packet: LRH, BTH and the CRCs.
pub const MIN_WIRE_LEN: usize = Lrh::LEN + Bth::LEN + ICRC_LEN + VCRC_LEN;

/// The longest packet that PktLen, 11 bits of 4-byte words, can tell, with the VCRC.
pub const MAX_WIRE_LEN: usize = 0x7ff * 4 + VCRC_LEN;

/// Why a datagram is no InfiniBand packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Fewer bytes than the headers and CRCs need.
    #[error("{len} bytes, but LRH, BTH, the headers of {opcode:?} and the CRCs take {need}")]
    Truncated {
        /// Bytes there are.
        len: usize,
        /// Bytes there must be.
        need: usize,
        /// Known once the BTH could be read.
        opcode: Option<Opcode>,
    },
    /// A raw packet: LNH 0 or 1, neither of which has a BTH.
    #[error("raw packet (LNH {0}); only IBA transport (2, or 3 with GRH) is supported")]
    RawPacket(u8),
    /// LRH.PktLen and the datagram disagree.
    #[error("LRH tells {stated} bytes up to the ICRC, the datagram has {actual}")]
    Length {
        /// PktLen in bytes.
        stated: usize,
        /// Bytes without VCRC.
        actual: usize,
    },
    /// GRH.IPVer is not 6.
    #[error("GRH version {0} instead of 6")]
    GrhVersion(u8),
    /// GRH.NxtHdr is not IBA transport.
    #[error("GRH next header 0x{0:02x} instead of 0x1b")]
    GrhNextHeader(u8),
    /// GRH.PayLen is not what follows the GRH.
    #[error("GRH payload length {stated}, but {actual} bytes follow")]
    GrhLength {
        /// PayLen.
        stated: usize,
        /// BTH..ICRC.
        actual: usize,
    },
    /// More pad than payload.
    #[error("pad count {pad} in a payload of {payload} bytes")]
    PadCount {
        /// BTH.PadCnt.
        pad: usize,
        /// Bytes of payload and pad.
        payload: usize,
    },
    /// The invariant CRC is wrong.
    #[error("ICRC is 0x{found:08x} where 0x{computed:08x} is right")]
    BadIcrc {
        /// In the packet.
        found: u32,
        /// Over the packet.
        computed: u32,
    },
    /// The variant CRC is wrong.
    #[error("VCRC is 0x{found:04x} where 0x{computed:04x} is right")]
    BadVcrc {
        /// In the packet.
        found: u16,
        /// Over the packet.
        computed: u16,
    },
}

/// Why a [`Packet`] cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The buffer is shorter than [`Packet::wire_len`].
    #[error("the packet takes {need} bytes, the buffer has {have}")]
    Buffer {
        /// [`Packet::wire_len`].
        need: usize,
        /// Bytes of the buffer.
        have: usize,
    },
    /// More than [`MAX_WIRE_LEN`].
    #[error("the packet takes {0} bytes, but LRH can tell {MAX_WIRE_LEN} only")]
    TooLong(usize),
    /// A super-packet must be cut before it goes on a wire.
    #[error("a super-packet must be cut into segments before it goes on a wire")]
    SuperPacket,
    /// The extended headers are not those of the opcode.
    #[error("the extended headers are not those of {0}")]
    ExtendedHeaders(Opcode),
}

/// Is the VCRC of this datagram right? False for less than a whole packet.
pub fn vcrc_ok(bytes: &[u8]) -> bool {
    bytes.len() >= MIN_WIRE_LEN && check_vcrc(bytes).is_ok()
}

fn check_vcrc(bytes: &[u8]) -> Result<(), PacketError> {
    let (covered, found) = bytes.split_at(bytes.len() - VCRC_LEN);
    let found = u16::from_le_bytes(array(found, 0));
    let computed = vcrc(covered);
    if found == computed {
        Ok(())
    } else {
        Err(PacketError::BadVcrc { found, computed })
    }
}

impl<'a> Packet<'a> {
    /// Reads a datagram (LRH..VCRC) and checks the ICRC, as every receiver of a link does.
    ///
    /// Reserved bits and pad bytes are ignored. An opcode not known here leaves all after the BTH in the payload.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let packet = Self::parse_unchecked(bytes)?;
        let (covered, found) =
            bytes[..bytes.len() - VCRC_LEN].split_at(bytes.len() - VCRC_LEN - ICRC_LEN);
        let found = u32::from_le_bytes(array(found, 0));
        let computed = icrc(covered);
        if found == computed {
            Ok(packet)
        } else {
            Err(PacketError::BadIcrc { found, computed })
        }
    }

    /// As [`Packet::parse`], and checks the VCRC too.
    pub fn parse_strict(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let packet = Self::parse(bytes)?;
        check_vcrc(bytes)?;
        Ok(packet)
    }

    /// As [`Packet::parse`] without looking at either CRC: for bytes whose CRCs were checked or made in this process.
    pub fn parse_unchecked(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let truncated = |need, opcode| PacketError::Truncated {
            len: bytes.len(),
            need,
            opcode,
        };
        let lrh: &[u8; Lrh::LEN] = bytes
            .first_chunk()
            .filter(|_| bytes.len() >= MIN_WIRE_LEN)
            .ok_or(truncated(MIN_WIRE_LEN, None))?;
        let lnh = lrh[1] & 3;
        if lnh < 2 {
            return Err(PacketError::RawPacket(lnh));
        }
        let stated = usize::from(be16(lrh, 4) & 0x7ff) * 4;
        let actual = bytes.len() - VCRC_LEN;
        if stated != actual {
            return Err(PacketError::Length { stated, actual });
        }
        let mut at = Lrh::LEN;
        let mut grh = None;
        if lnh == 3 {
            let need = MIN_WIRE_LEN + Grh::LEN;
            let b: &[u8; Grh::LEN] = bytes[at..]
                .first_chunk()
                .filter(|_| bytes.len() >= need)
                .ok_or(truncated(need, None))?;
            at += Grh::LEN;
            let (stated, actual) = (usize::from(be16(b, 4)), actual - at);
            if b[0] >> 4 != 6 {
                return Err(PacketError::GrhVersion(b[0] >> 4));
            }
            if b[6] != NXT_HDR_IBA {
                return Err(PacketError::GrhNextHeader(b[6]));
            }
            if stated != actual {
                return Err(PacketError::GrhLength { stated, actual });
            }
            grh = Some(Grh::parse(b));
        }
        let b: [u8; Bth::LEN] = array(bytes, at);
        let bth = Bth::parse(&b);
        at += Bth::LEN;
        let headers = bth.opcode.headers();
        let need = at + headers.wire_len() + ICRC_LEN + VCRC_LEN;
        if bytes.len() < need {
            return Err(truncated(need, Some(bth.opcode)));
        }
        let ext = Extended::parse(headers, &bytes[at..]);
        let deth_reserved = if ext.deth.is_some() { bytes[at + 4] } else { 0 };
        at += headers.wire_len();
        let (body, found) = bytes[at..actual].split_at(actual - at - ICRC_LEN);
        let pad = usize::from(b[1] >> 4 & 3);
        let payload = body.len().checked_sub(pad).ok_or(PacketError::PadCount {
            pad,
            payload: body.len(),
        })?;
        let (payload, padding) = body.split_at(payload);
        // The received ICRC also covers reserved bits and pad, which emit as zeros: where they were not zero it would no longer fit. With a GRH
        // the LRH is not covered.
        let lrh_reserved = if lnh == 2 {
            lrh[1] & 0x0c | lrh[4] & 0xf8
        } else {
            0
        };
        let exact = lrh_reserved == 0
            && b[8] & 0x7f == 0
            && deth_reserved == 0
            && padding.iter().all(|&p| p == 0);
        Ok(Self {
            lrh: Lrh::parse(lrh),
            grh,
            bth,
            ext,
            payload,
            lso: None,
            icrc: exact.then(|| u32::from_le_bytes(array(found, 0))),
            hops: 0,
        })
    }

    /// Bytes from LRH to VCRC.
    pub fn wire_len(&self) -> usize {
        MIN_WIRE_LEN
            + if self.grh.is_some() { Grh::LEN } else { 0 }
            + self.bth.opcode.headers().wire_len()
            + self.payload.len().next_multiple_of(4)
    }

    /// Writes LRH..VCRC to the front of `out` and returns the length. The ICRC is computed unless [`Packet::icrc`] brings one.
    ///
    /// Fields wider in the type than on the wire lose their upper bits.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let len = self.emittable()?;
        let have = out.len();
        let out = out
            .get_mut(..len)
            .ok_or(EmitError::Buffer { need: len, have })?;
        let covered = len - ICRC_LEN - VCRC_LEN;
        let lnh = if self.grh.is_some() { 3 } else { 2 };
        out[..Lrh::LEN].copy_from_slice(&self.lrh.emit(lnh, ((len - VCRC_LEN) / 4) as u16));
        let mut at = Lrh::LEN;
        if let Some(grh) = &self.grh {
            let pay_len = (len - VCRC_LEN - Lrh::LEN - Grh::LEN) as u16;
            out[at..at + Grh::LEN].copy_from_slice(&grh.emit(pay_len));
            at += Grh::LEN;
        }
        let pad = self.payload.len().next_multiple_of(4) - self.payload.len();
        out[at..at + Bth::LEN].copy_from_slice(&self.bth.emit(pad as u8));
        at += Bth::LEN;
        self.ext.emit(&mut out[at..]);
        at += self.bth.opcode.headers().wire_len();
        out[at..at + self.payload.len()].copy_from_slice(self.payload);
        out[at + self.payload.len()..covered].fill(0);
        let icrc = self.icrc.unwrap_or_else(|| icrc(&out[..covered]));
        out[covered..covered + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
        let vcrc = vcrc(&out[..len - VCRC_LEN]);
        out[len - VCRC_LEN..].copy_from_slice(&vcrc.to_le_bytes());
        Ok(len)
    }

    /// Appends LRH..VCRC to `out`; allocates only where its capacity is short. On an error `out` stays as it was.
    pub fn emit_into(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        let start = out.len();
        out.resize(start + self.emittable()?, 0);
        self.emit(&mut out[start..]).map(|_| ())
    }

    fn emittable(&self) -> Result<usize, EmitError> {
        let len = self.wire_len();
        if self.lso.is_some() {
            Err(EmitError::SuperPacket)
        } else if self.ext.headers() != self.bth.opcode.headers() {
            Err(EmitError::ExtendedHeaders(self.bth.opcode))
        } else if len > MAX_WIRE_LEN {
            Err(EmitError::TooLong(len))
        } else {
            Ok(len)
        }
    }
}
