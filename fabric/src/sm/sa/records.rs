//! Records that only repeat what the manager knows: nodes, ports, switches, links, tables.

use super::super::topology::{Node, NodeId, PortData};
use super::{Records, Request, Subnet};
use wire::mad::AttrId;
use wire::mad::attr::{
    GuidInfo, GuidInfoRecord, LinearForwardingTable, LinearForwardingTableRecord, LinkRecord,
    MulticastForwardingTable,
};
use wire::mad::attr::{
    MulticastForwardingTableRecord, NodeRecord, PKeyTable, PKeyTableRecord, PortInfo,
    PortInfoRecord, SmInfoRecord, SwitchInfoRecord,
};
use wire::{Lid, PKey};

/// A component: its bit in the mask, its place in the record in bits, its width in bits.
pub(super) type Field = (u8, usize, usize);

/// Do the components that the mask names have the same values in both records?
pub(super) fn matches(mask: u64, wanted: &[u8], record: &[u8], fields: &[Field]) -> bool {
    fields
        .iter()
        .filter(|(bit, ..)| mask >> bit & 1 != 0)
        .all(|&(_, offset, width)| {
            if offset % 8 == 0 && width % 8 == 0 {
                let range = offset / 8..(offset + width) / 8;
                return wanted.get(range.clone()) == record.get(range);
            }
            (offset..offset + width).all(|bit| bit_of(wanted, bit) == bit_of(record, bit))
        })
}

fn bit_of(bytes: &[u8], bit: usize) -> bool {
    bytes
        .get(bit / 8)
        .is_some_and(|b| b >> (7 - bit % 8) & 1 != 0)
}

const NODE: &[Field] = &[
    (0, 0, 16),
    (2, 32, 8),
    (3, 40, 8),
    (4, 48, 8),
    (5, 56, 8),
    (6, 64, 64),
    (7, 128, 64),
    (8, 192, 64),
    (9, 256, 16),
    (10, 272, 16),
    (11, 288, 32),
    (12, 320, 8),
    (13, 328, 24),
    (14, 352, 512),
];
/// LID, port and what of PortInfo people select by.
const PORT: &[Field] = &[
    (0, 0, 16),
    (1, 16, 8),
    (4, 96, 64),
    (5, 160, 16),
    (6, 176, 16),
    (10, 256, 8),
    (13, 280, 8),
    (15, 292, 4),
    (16, 296, 4),
    (19, 309, 3),
    (20, 312, 4),
    (22, 320, 4),
];
const CAPABILITY_MASK: u64 = 1 << 7;
/// AttributeModifier bit of a PortInfoRecord query: CapabilityMask means "all of these bits".
const CAP_MASK_MATCH: u32 = 1 << 31;

/// `None`: no such records here.
pub(super) fn query(subnet: &Subnet<'_>, request: &Request<'_>) -> Option<Records> {
    let topo = subnet.topo;
    let (mask, wanted) = (request.sa.component_mask.0, &request.sa.data);
    Some(match request.sa.header.attr_id {
        AttrId::NODE_RECORD => collect(
            NodeRecord::LEN,
            end_ports(subnet, request),
            |(_, node, number, port)| {
                let mut info = node.info;
                info.port_guid = port.guid;
                if number != 0 {
                    info.local_port_num = number;
                }
                let record = NodeRecord {
                    lid: port.lid,
                    node_info: info,
                    node_description: node.description,
                }
                .emit();
                matches(mask, wanted, &record, NODE).then_some(record)
            },
        ),
        AttrId::PORT_INFO_RECORD => collect(
            PortInfoRecord::LEN,
            ports(subnet, request),
            |(_, node, number, port)| {
                let info = PortInfo {
                    m_key: 0,
                    ..port.info?
                };
                let record = PortInfoRecord {
                    lid: base_lid(node, port),
                    port_num: number,
                    options: 0,
                    port_info: info,
                }
                .emit();
                let capability =
                    PortInfoRecord::parse(wanted).map_or(0, |w| w.port_info.capability_mask.0);
                let has = if request.sa.header.attr_mod & CAP_MASK_MATCH != 0 {
                    info.capability_mask.0 & capability == capability
                } else {
                    info.capability_mask.0 == capability
                };
                (matches(mask, wanted, &record, PORT) && (mask & CAPABILITY_MASK == 0 || has))
                    .then_some(record)
            },
        ),
        AttrId::SWITCH_INFO_RECORD => collect(
            SwitchInfoRecord::LEN,
            end_ports(subnet, request),
            |(_, node, _, port)| {
                let record = SwitchInfoRecord {
                    lid: port.lid,
                    switch_info: node.switch.as_ref()?.info,
                }
                .emit();
                matches(mask, wanted, &record, &[(0, 0, 16)]).then_some(record)
            },
        ),
        AttrId::SM_INFO_RECORD => collect(SmInfoRecord::LEN, subnet.sm.iter(), |record| {
            let record = record.emit();
            matches(
                mask,
                wanted,
                &record,
                &[(0, 0, 16), (2, 32, 64), (5, 192, 4), (6, 196, 4)],
            )
            .then_some(record)
        }),
        AttrId::LINK_RECORD => collect(
            LinkRecord::LEN,
            ports(subnet, request),
            |(_, node, number, port)| {
                let peer = port.link?;
                let (other, other_port) = (topo.node(peer.0)?, topo.port(peer)?);
                let record = LinkRecord {
                    from_lid: base_lid(node, port),
                    from_port: number,
                    to_port: peer.1,
                    to_lid: base_lid(other, other_port),
                }
                .emit();
                matches(
                    mask,
                    wanted,
                    &record,
                    &[(0, 0, 16), (1, 16, 8), (2, 24, 8), (3, 32, 16)],
                )
                .then_some(record)
            },
        ),
        AttrId::GUID_INFO_RECORD => collect(
            GuidInfoRecord::LEN,
            end_ports(subnet, request),
            |(_, _, _, port)| {
                let record = GuidInfoRecord {
                    lid: port.lid,
                    block_num: 0,
                    guid_info: GuidInfo { guid: port.guids },
                }
                .emit();
                matches(mask, wanted, &record, &[(0, 0, 16), (1, 16, 8)]).then_some(record)
            },
        ),
        AttrId::P_KEY_TABLE_RECORD => {
            // Whose partitions are whose is nobody's business but the administrator's (IBA 15.2.5.11).
            let visible = end_ports(subnet, request)
                .filter(|(id, _, number, _)| request.trusted || request.port == (*id, *number));
            let blocks = visible.flat_map(|(_, node, number, port)| {
                (0u16..)
                    .zip(port.pkeys.chunks(32))
                    .map(move |(n, b)| (node, number, port, n, b))
            });
            collect(
                PKeyTableRecord::LEN,
                blocks,
                |(_, number, port, block_num, block)| {
                    let mut p_key = [PKey(0); 32];
                    p_key[..block.len()].copy_from_slice(block);
                    let record = PKeyTableRecord {
                        lid: port.lid,
                        block_num,
                        port_num: number,
                        p_key_table: PKeyTable { p_key },
                    }
                    .emit();
                    matches(
                        mask,
                        wanted,
                        &record,
                        &[(0, 0, 16), (1, 16, 16), (2, 32, 8)],
                    )
                    .then_some(record)
                },
            )
        }
        AttrId::LINEAR_FORWARDING_TABLE_RECORD => {
            let blocks = switches(subnet, request).flat_map(|(lid, s)| {
                (0u16..)
                    .zip(s.lft.as_chunks::<64>().0)
                    .map(move |(n, b)| (lid, n, *b))
            });
            collect(
                LinearForwardingTableRecord::LEN,
                blocks,
                |(lid, block_num, port)| {
                    let record = LinearForwardingTableRecord {
                        lid,
                        block_num,
                        table: LinearForwardingTable { port },
                    }
                    .emit();
                    matches(mask, wanted, &record, &[(0, 0, 16), (1, 16, 16)]).then_some(record)
                },
            )
        }
        AttrId::MULTICAST_FORWARDING_TABLE_RECORD => {
            let blocks = switches(subnet, request)
                .flat_map(|(lid, s)| s.mft.iter().map(move |(key, b)| (lid, *key, *b)));
            collect(
                MulticastForwardingTableRecord::LEN,
                blocks,
                |(lid, (block_num, position), port_mask)| {
                    let record = MulticastForwardingTableRecord {
                        lid,
                        position,
                        block_num,
                        table: MulticastForwardingTable { port_mask },
                    }
                    .emit();
                    matches(mask, wanted, &record, &[(0, 0, 16), (1, 16, 4), (3, 23, 9)])
                        .then_some(record)
                },
            )
        }
        _ => return None,
    })
}

fn collect<T, const N: usize>(
    len: usize,
    items: impl Iterator<Item = T>,
    record: impl Fn(T) -> Option<[u8; N]>,
) -> Records {
    let mut records = Records::new(len);
    items.filter_map(record).for_each(|r| records.push(&r));
    records
}

type PortItem<'a> = (NodeId, &'a Node, u8, &'a PortData);

/// All end ports with a LID that the requester may know of.
fn end_ports<'a>(
    subnet: &'a Subnet<'a>,
    request: &'a Request<'a>,
) -> impl Iterator<Item = PortItem<'a>> {
    let with_node = subnet
        .topo
        .end_ports()
        .filter_map(|((id, number), port)| Some((id, subnet.topo.node(id)?, number, port)));
    with_node.filter(|(id, _, number, port)| {
        port.lid.is_unicast() && request.may_see(subnet, (*id, *number))
    })
}

/// The same with the other ports of switches.
fn ports<'a>(
    subnet: &'a Subnet<'a>,
    request: &'a Request<'a>,
) -> impl Iterator<Item = PortItem<'a>> {
    end_ports(subnet, request).flat_map(|(id, node, number, _)| {
        let last = if node.switch.is_some() {
            node.info.num_ports
        } else {
            number
        };
        (number..=last).filter_map(move |n| Some((id, node, n, node.ports.get(usize::from(n))?)))
    })
}

fn switches<'a>(
    subnet: &'a Subnet<'a>,
    request: &'a Request<'a>,
) -> impl Iterator<Item = (Lid, &'a super::super::topology::SwitchData)> {
    end_ports(subnet, request)
        .filter_map(|(_, node, _, port)| Some((port.lid, node.switch.as_ref()?)))
}

/// The LID that a port answers to: its own, or the switch's.
fn base_lid(node: &Node, port: &PortData) -> Lid {
    if node.switch.is_some() {
        node.ports.first().map_or(Lid::UNSET, |p| p.lid)
    } else {
        port.lid
    }
}
