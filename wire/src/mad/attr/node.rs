//! What a node says of itself: NodeInfo, NodeDescription, SMInfo (IBA 14.2.5.2, 14.2.5.3, 14.2.5.13).

use crate::bits::{newtype_field, record};
use crate::id::Guid;
use crate::mad::names::named;
use std::fmt;

/// Kind of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NodeType(pub u8);

/// State of a subnet manager (IBA 14.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SmState(pub u8);

newtype_field!(NodeType(u8), SmState(u8));

named!(NodeType(u8) {
    CA = 1 "channel adapter";
    SWITCH = 2 "switch";
    ROUTER = 3 "router";
});

named!(SmState(u8) {
    NOT_ACTIVE = 0 "not active";
    DISCOVERING = 1 "discovering";
    STANDBY = 2 "standby";
    MASTER = 3 "master";
});

record! {
    /// NodeInfo.
    pub struct NodeInfo[40] {
        base_version: u8 = 0:8,
        class_version: u8 = 8:8,
        node_type: NodeType = 16:8,
        num_ports: u8 = 24:8,
        system_image_guid: Guid = 32:64,
        node_guid: Guid = 96:64,
        /// Of the port the request came in by.
        port_guid: Guid = 160:64,
        /// Entries of the P_Key table.
        partition_cap: u16 = 224:16,
        device_id: u16 = 240:16,
        revision: u32 = 256:32,
        /// The port the request came in by.
        local_port_num: u8 = 288:8,
        /// IEEE company number, 24 bits.
        vendor_id: u32 = 296:24,
    }
}

record! {
    /// NodeDescription: UTF-8, ended by a zero if shorter than 64 bytes.
    pub struct NodeDescription[64] {
        node_string: [u8; 64] = 0:512,
    }
}

record! {
    /// LedInfo (IBA 14.2.5.15): the light that shows a person which port is meant.
    pub struct LedInfo[4] {
        led_mask: bool = 0:1,
    }
}

record! {
    /// SMInfo.
    pub struct SmInfo[21] {
        guid: Guid = 0:64,
        sm_key: u64 = 64:64,
        act_count: u32 = 128:32,
        priority: u8 = 160:4,
        sm_state: SmState = 164:4,
    }
}

impl NodeDescription {
    /// `text`, cut after 64 bytes at most.
    pub fn new(text: &str) -> Self {
        let mut node_string = [0; 64];
        let n = text.floor_char_boundary(64);
        node_string[..n].copy_from_slice(&text.as_bytes()[..n]);
        NodeDescription { node_string }
    }
}

impl fmt::Display for NodeDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.node_string.iter().position(|&b| b == 0).unwrap_or(64);
        f.write_str(&String::from_utf8_lossy(&self.node_string[..end]))
    }
}
