//! Tables of a port: GUIDInfo, P_KeyTable, SLtoVLMappingTable, VLArbitrationTable (IBA 14.2.5.5, 14.2.5.7 to 14.2.5.9).

use crate::bits::{Field, array_field, record};
use crate::id::{Guid, PKey, ServiceLevel};

array_field!(Guid, PKey, VlWeight);

record! {
    /// A block of GUIDInfo: 8 GUIDs from index `8 * modifier`.
    pub struct GuidInfo[64] {
        guid: [Guid; 8] = 0:512,
    }
}

record! {
    /// A block of the P_Key table: 32 keys from index `32 * block`; the modifier's upper half is a switch port.
    pub struct PKeyTable[64] {
        p_key: [PKey; 32] = 0:512,
    }
}

record! {
    /// One entry of a VL arbitration table.
    pub struct VlWeight[2] {
        vl: u8 = 4:4,
        weight: u8 = 8:8,
    }
}

record! {
    /// A half of a VL arbitration table: 32 entries. The modifier's upper half is 1, 2: low priority, 3, 4: high priority.
    pub struct VlArbitration[64] {
        entry: [VlWeight; 32] = 0:512,
    }
}

/// SLtoVLMappingTable: the virtual lane of each service level, 4 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SlToVl {
    pub vl: [u8; 16],
}

impl SlToVl {
    /// Length on the wire, bytes.
    pub const LEN: usize = 8;

    /// Reads the layout from the front of `bytes`; `None` if there are fewer than [`Self::LEN`].
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::LEN)?;
        Some(SlToVl {
            vl: std::array::from_fn(|sl| {
                if sl % 2 == 0 {
                    bytes[sl / 2] >> 4
                } else {
                    bytes[sl / 2] & 0xf
                }
            }),
        })
    }

    /// Writes the layout.
    pub fn emit(&self) -> [u8; 8] {
        std::array::from_fn(|i| self.vl[2 * i] << 4 | self.vl[2 * i + 1] & 0xf)
    }

    /// The lane of `sl`.
    pub fn vl(&self, sl: ServiceLevel) -> u8 {
        self.vl[usize::from(sl.0 & 0xf)]
    }
}

impl Field for SlToVl {
    fn get(bytes: &[u8], offset: usize, _width: usize) -> Self {
        bytes
            .get(offset / 8..)
            .and_then(Self::parse)
            .unwrap_or_default()
    }
    fn put(&self, bytes: &mut [u8], offset: usize, _width: usize) {
        bytes[offset / 8..offset / 8 + Self::LEN].copy_from_slice(&self.emit());
    }
}
