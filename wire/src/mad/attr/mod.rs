//! Attributes and records: what SMPs (IBA 14.2.5), SA MADs (15.2.5), performance MADs (16.1.4) and notices (13.4.8) carry.
//!
//! Fields have the standard's names in snake case and its order; a field says more only where the name does not.
#![allow(missing_docs)]

mod link;
mod multicast;
mod node;
mod notice;
mod path;
mod perf;
mod port;
mod records;
mod switch;

pub use link::{GuidInfo, PKeyTable, SlToVl, VlArbitration, VlWeight};
pub use multicast::{JoinState, McMemberRecord, comp as mcmember};
pub use node::{LedInfo, NodeDescription, NodeInfo, NodeType, SmInfo, SmState};
pub use notice::{
    BadKey, BadMKey, CapabilityChange, InformInfo, LinkStateChange, Notice, NoticeGid, NoticeType,
    ProducerType, SwitchBadPKey, TrapNumber,
};
pub use path::{PathRecord, Selector, comp as path_record};
pub use perf::{
    ClassPortInfo, PortCounters, PortCountersExtended, PortSamplesControl, PortSamplesResult,
};
pub use port::{CapabilityMask, LinkWidth, PortInfo, PortPhysicalState, PortState};
pub use records::{
    GuidInfoRecord, InformInfoRecord, LinearForwardingTableRecord, LinkRecord,
    MulticastForwardingTableRecord, NodeRecord, PKeyTableRecord, PortInfoRecord, ServiceRecord,
    SlToVlRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationRecord,
};
pub use switch::{LinearForwardingTable, MulticastForwardingTable, SwitchInfo};
