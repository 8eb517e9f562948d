//! The datagrams of libumad2sim: native byte order and the layout of LP64 C structures, except where it says big endian.

use wire::Lid;
use wire::mad::{MAD_LEN, MadBytes};

const MAGIC: u32 = 0xdead_beef;
/// Status of a MAD that nobody answered: `ETIMEDOUT` of Linux, as `ib_umad` reports it.
pub(super) const TIMED_OUT: u32 = 110;

/// What a control datagram asks for; an answer repeats it, or is [`Ctl::ERROR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ctl {
    /// The client's number, 0 until it has one.
    pub client: u32,
    /// One of the constants.
    pub kind: u32,
    /// Bytes of `data` that are used.
    pub len: u32,
    /// Question or answer.
    pub data: [u8; 64],
}

impl Ctl {
    /// Bytes of every control datagram.
    pub const LEN: usize = 80;
    /// Answer to what cannot be.
    pub const ERROR: u32 = 0;
    /// [`ClientInfo`] both ways.
    pub const CONNECT: u32 = 1;
    /// The client leaves.
    pub const DISCONNECT: u32 = 2;
    /// LID and state of the node's port.
    pub const GET_PORT: u32 = 3;
    /// Vendor and revision.
    pub const GET_VENDOR: u32 = 4;
    /// The port's GID.
    pub const GET_GID: u32 = 5;
    /// The port's GUID.
    pub const GET_GUID: u32 = 6;
    /// Attribute NodeInfo.
    pub const GET_NODEINFO: u32 = 7;
    /// Attribute PortInfo; the first byte of the question is the port, 0 for the node's own.
    pub const GET_PORTINFO: u32 = 8;
    /// The client is the subnet manager of its port, or no longer: u32 1 or 0.
    pub const SET_ISSM: u32 = 9;
    /// Attribute P_KeyTable, block 0.
    pub const GET_PKEYS: u32 = 10;

    /// `None`: not such a datagram.
    pub fn parse(bytes: &[u8]) -> Option<Ctl> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        (native(bytes, 0) == MAGIC).then(|| Ctl {
            client: native(bytes, 4),
            kind: native(bytes, 8),
            len: native(bytes, 12),
            data: std::array::from_fn(|i| bytes[16 + i]),
        })
    }

    /// As it is sent.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (at, value) in [(0, MAGIC), (4, self.client), (8, self.kind), (12, self.len)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&self.data);
        bytes
    }
}

/// Data of [`Ctl::CONNECT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// Asked: what the names of the client's sockets end in (Unix), or the port of its data socket (UDP). Answered: the client's number.
    pub id: u32,
    /// Queue pair for which it wants requests, if more than 1.
    pub qp: u32,
    /// It is a subnet manager.
    pub is_sm: bool,
    /// The node it sits on; empty: the first.
    pub node: String,
}

impl ClientInfo {
    /// Bytes used of the data.
    pub const LEN: u32 = 44;
    const NODE: std::ops::Range<usize> = 12..44;

    /// Any data is some client.
    pub fn parse(data: &[u8; 64]) -> ClientInfo {
        let name = &data[Self::NODE];
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        ClientInfo {
            id: native(data, 0),
            qp: native(data, 4),
            is_sm: native(data, 8) != 0,
            node: String::from_utf8_lossy(&name[..end]).into_owned(),
        }
    }

    /// As it is sent; the name is cut at 31 bytes and a terminating zero.
    pub fn emit(&self) -> [u8; 64] {
        let mut data = [0; 64];
        data[..4].copy_from_slice(&self.id.to_ne_bytes());
        data[4..8].copy_from_slice(&self.qp.to_ne_bytes());
        data[8..12].copy_from_slice(&u32::from(self.is_sm).to_ne_bytes());
        let n = self.node.len().min(Self::NODE.len() - 1);
        data[12..12 + n].copy_from_slice(&self.node.as_bytes()[..n]);
        data
    }
}

/// A MAD and its addresses, both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Destination; [`Lid::PERMISSIVE`] for directed routes.
    pub dlid: Lid,
    /// Source; 0 from a client: its own.
    pub slid: Lid,
    /// Destination queue pair.
    pub dqp: u32,
    /// Source queue pair.
    pub sqp: u32,
    /// 0, or an error number of Linux for a MAD that comes back.
    pub status: u32,
    /// Bytes of the MAD that are meant, at most 256.
    pub length: u64,
    /// The MAD.
    pub mad: Box<MadBytes>,
}

impl Request {
    /// Bytes of every data datagram.
    pub const LEN: usize = 288;
    const MAD: usize = Self::LEN - MAD_LEN;

    /// `None`: not of that length.
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let quad = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        Some(Request {
            dlid: Lid((quad(0) >> 16) as u16),
            slid: Lid((quad(4) >> 16) as u16),
            dqp: quad(8),
            sqp: quad(12),
            status: quad(16),
            length: u64::from(quad(24)) << 32 | u64::from(quad(28)),
            mad: Box::new(std::array::from_fn(|i| bytes[Self::MAD + i])),
        })
    }

    /// As it is sent.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let lid = |lid: Lid| u32::from(lid.0) << 16;
        for (at, value) in [
            (0, lid(self.dlid)),
            (4, lid(self.slid)),
            (8, self.dqp),
            (12, self.sqp),
            (16, self.status),
        ] {
            bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        bytes[24..32].copy_from_slice(&self.length.to_be_bytes());
        bytes[Self::MAD..].copy_from_slice(&self.mad[..]);
        bytes
    }
}

fn native(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_where_the_library_has_them() {
        let info = ClientInfo {
            id: 0x3ef7,
            qp: 0,
            is_sm: false,
            node: "Hca2".into(),
        };
        let ctl = Ctl {
            client: 0,
            kind: Ctl::CONNECT,
            len: ClientInfo::LEN,
            data: info.emit(),
        };
        let bytes = ctl.emit();
        assert_eq!(
            (Ctl::parse(&bytes), ClientInfo::parse(&ctl.data)),
            (Some(ctl), info)
        );
        assert_eq!(&bytes[28..33], b"Hca2\0");
        let request = Request {
            dlid: Lid(1),
            slid: Lid(4),
            dqp: 1,
            sqp: 1,
            status: TIMED_OUT,
            length: 0x78,
            mad: Box::new(std::array::from_fn(|i| i as u8)),
        };
        let bytes = request.emit();
        assert_eq!(
            bytes[..33],
            [
                0, 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 110, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0x78, 0
            ]
        );
        assert_eq!(Request::parse(&bytes), Some(request));
        assert_eq!(
            (Request::parse(&bytes[1..]), Ctl::parse(&bytes[..80])),
            (None, None)
        );
    }
}
