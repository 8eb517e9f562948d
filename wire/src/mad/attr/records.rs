//! Records of the SA (IBA 15.2.5): a key in front of a subnet management attribute, and ServiceRecord.

use super::{
    GuidInfo, InformInfo, LinearForwardingTable, MulticastForwardingTable, NodeDescription,
    NodeInfo, PKeyTable, PortInfo, SlToVl, SmInfo, SwitchInfo, VlArbitration,
};
use crate::bits::record;
use crate::id::{Gid, Lid, PKey};

record! {
    pub struct NodeRecord[108] {
        lid: Lid = 0:16,
        node_info: NodeInfo = 32:320,
        node_description: NodeDescription = 352:512,
    }
}

record! {
    pub struct PortInfoRecord[68] {
        lid: Lid = 0:16,
        port_num: u8 = 16:8,
        /// Which form of some fields is asked for.
        options: u8 = 24:8,
        port_info: PortInfo = 32:512,
    }
}

record! {
    pub struct SwitchInfoRecord[24] {
        lid: Lid = 0:16,
        switch_info: SwitchInfo = 32:160,
    }
}

record! {
    pub struct GuidInfoRecord[72] {
        lid: Lid = 0:16,
        block_num: u8 = 16:8,
        guid_info: GuidInfo = 64:512,
    }
}

record! {
    pub struct SmInfoRecord[25] {
        lid: Lid = 0:16,
        sm_info: SmInfo = 32:168,
    }
}

record! {
    pub struct LinkRecord[6] {
        from_lid: Lid = 0:16,
        from_port: u8 = 16:8,
        to_port: u8 = 24:8,
        to_lid: Lid = 32:16,
    }
}

record! {
    pub struct PKeyTableRecord[72] {
        lid: Lid = 0:16,
        block_num: u16 = 16:16,
        port_num: u8 = 32:8,
        p_key_table: PKeyTable = 64:512,
    }
}

record! {
    pub struct SlToVlRecord[16] {
        lid: Lid = 0:16,
        input_port_num: u8 = 16:8,
        output_port_num: u8 = 24:8,
        sl_to_vl: SlToVl = 64:64,
    }
}

record! {
    pub struct VlArbitrationRecord[72] {
        lid: Lid = 0:16,
        output_port_num: u8 = 16:8,
        block_num: u8 = 24:8,
        vl_arbitration: VlArbitration = 64:512,
    }
}

record! {
    pub struct LinearForwardingTableRecord[72] {
        lid: Lid = 0:16,
        block_num: u16 = 16:16,
        table: LinearForwardingTable = 64:512,
    }
}

record! {
    pub struct MulticastForwardingTableRecord[72] {
        lid: Lid = 0:16,
        /// 4 bits: which 16 ports.
        position: u8 = 16:4,
        block_num: u16 = 23:9,
        table: MulticastForwardingTable = 64:512,
    }
}

record! {
    pub struct InformInfoRecord[60] {
        subscriber_gid: Gid = 0:128,
        /// Number of the subscription at that subscriber.
        index: u16 = 128:16,
        inform_info: InformInfo = 192:288,
    }
}

record! {
    pub struct ServiceRecord[176] {
        service_id: u64 = 0:64,
        service_gid: Gid = 64:128,
        service_p_key: PKey = 192:16,
        /// Seconds; 0xFFFFFFFF: for ever.
        service_lease: u32 = 224:32,
        service_key: [u8; 16] = 256:128,
        service_name: [u8; 64] = 384:512,
        service_data8: [u8; 16] = 896:128,
        service_data16: [u16; 8] = 1024:128,
        service_data32: [u32; 4] = 1152:128,
        service_data64: [u64; 2] = 1280:128,
    }
}
