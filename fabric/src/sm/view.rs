//! What people want to see of the subnet: read-only.

use super::SubnetManager;
use wire::mad::attr::{InformInfo, JoinState, NodeType, PortState, SmInfo, SmInfoRecord};
use wire::{Gid, Guid, Lid, MtuCode, PKey, QKey, RateCode};

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its GUID.
    pub guid: Guid,
    /// Switch or channel adapter.
    pub node_type: NodeType,
    /// NodeDescription.
    pub description: String,
    /// Its ports with something at the other end, and all end ports.
    pub ports: Vec<PortView>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Number at the node.
    pub number: u8,
    /// GUID of an end port, 0 of a switch's external port.
    pub guid: Guid,
    /// LID of an end port.
    pub lid: Lid,
    /// GID of an end port.
    pub gid: Option<Gid>,
    /// Logical state.
    pub state: PortState,
    /// Payload.
    pub mtu: MtuCode,
    /// Rate.
    pub rate: RateCode,
    /// Keys of an end port.
    pub pkeys: Vec<PKey>,
    /// The other end: node GUID and port.
    pub link: Option<LinkView>,
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// Node there.
    pub guid: Guid,
    /// Port there.
    pub port: u8,
}

/// One multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its GID.
    pub mgid: Gid,
    /// Its LID.
    pub mlid: Lid,
    /// Its partition.
    pub p_key: PKey,
    /// Its Q_Key.
    pub q_key: QKey,
    /// Payload.
    pub mtu: MtuCode,
    /// Rate.
    pub rate: RateCode,
    /// Exists without members.
    pub well_known: bool,
    /// Port GIDs and how they joined.
    pub members: Vec<(Gid, JoinState)>,
}

impl SubnetManager {
    /// All nodes, in no order that means anything.
    pub fn nodes(&self) -> Vec<NodeView> {
        let view = |node: &super::topology::Node| {
            let numbered = (0u8..)
                .zip(&node.ports)
                .filter(|(_, p)| p.guid.0 != 0 || p.link.is_some());
            NodeView {
                guid: node.guid(),
                node_type: node.info.node_type,
                description: node.description.to_string(),
                ports: numbered
                    .map(|(number, p)| PortView {
                        number,
                        guid: p.guid,
                        lid: p.lid,
                        gid: (p.guid.0 != 0).then(|| p.gid(self.config.subnet_prefix)),
                        state: p.state(),
                        mtu: p.mtu(),
                        rate: p.rate(),
                        pkeys: p.pkeys.iter().copied().filter(|k| k.base() != 0).collect(),
                        link: p.link.and_then(|(id, port)| {
                            Some(LinkView {
                                guid: self.topo.node(id)?.guid(),
                                port,
                            })
                        }),
                    })
                    .collect(),
            }
        };
        self.topo.nodes.values().map(view).collect()
    }

    /// All multicast groups, by MGID.
    pub fn groups(&self) -> Vec<GroupView> {
        let view = |(mgid, g): (&Gid, &super::sa::Group)| GroupView {
            mgid: *mgid,
            mlid: g.mlid,
            p_key: g.p_key,
            q_key: g.q_key,
            mtu: g.mtu,
            rate: g.rate,
            well_known: g.well_known,
            members: g.members.values().copied().collect(),
        };
        self.sa.groups().iter().map(view).collect()
    }

    /// Who subscribed to what, by port GID; in the order of the requests those to one trap.
    pub fn subscriptions(&self) -> impl Iterator<Item = (Gid, &InformInfo)> {
        self.sa.subscriptions()
    }

    /// This subnet manager and others, for SMInfoRecord.
    pub(super) fn sm_infos(&self) -> Vec<SmInfoRecord> {
        let own = Some((self.topo.own_lid(), self.sm_info()));
        let others = self
            .topo
            .end_ports()
            .filter_map(|(_, p)| Some((p.lid, p.is_sm?)));
        let record = |(lid, info)| SmInfoRecord {
            lid,
            // Everybody may ask.
            sm_info: SmInfo { sm_key: 0, ..info },
        };
        own.into_iter().chain(others).map(record).collect()
    }
}
