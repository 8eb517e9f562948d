//! What the plan of a subnet ([`crate::topology`]) says of a node that nothing else does: who made it, which port of a channel adapter this is,
//! and how wide and fast its links are.

use super::control::{NodeControl, NodePlane};
use crate::topology::{Node, NodeKind};
use wire::mad::attr::CapabilityMask;
use wire::{LinkRate, LinkSpeed};

/// What a port supports, and its link runs at, that no plan speaks of: 4xEDR, 100 Gbit/s, which all tools know.
pub(super) const USUAL_LINK: LinkRate = match LinkRate::new(4, LinkSpeed::Edr) {
    Some(rate) => rate,
    None => panic!("a link may have 4 lanes"),
};

/// Bits of CapabilityMask2 (IBA 14.2.5.6).
const IS_LINK_WIDTH_2X_SUPPORTED: u16 = 1 << 4;
const IS_LINK_SPEED_HDR_SUPPORTED: u16 = 1 << 5;
const IS_LINK_SPEED_NDR_SUPPORTED: u16 = 1 << 10;
const IS_EXTENDED_SPEEDS2_SUPPORTED: u16 = 1 << 11;

impl<P: NodePlane> NodeControl<P> {
    /// Makes the node the one of the plan. A channel adapter of several ports is several of our adapters, each of one port: this one is `port`.
    pub fn follow_plan(&mut self, node: &Node, port: u8) {
        let info = &mut self.sma.node_info;
        info.vendor_id = node.vendor_id;
        info.device_id = node.device_id;
        info.system_image_guid = node.system_image_guid;
        if node.kind == NodeKind::Ca {
            info.num_ports = node.ports;
            self.sma.called = port;
        }
        self.publish();
    }

    /// What port `number` supports, and what it agrees on with the port at the other end. The number is that of the data plane.
    pub fn set_link_rate(&mut self, number: u8, supported: LinkRate, agreed: LinkRate) {
        self.plan_link(number.into(), supported, agreed);
        self.publish();
    }

    /// The link of port `n` trains: it runs at what was agreed on, as far as that is enabled now (IBA 14.2.5.6). Nothing on a link tells the other
    /// side what is enabled here, so its PortInfo stays; paths have the lower of both.
    pub(super) fn negotiate(&mut self, n: usize) {
        let port = &mut self.sma.ports[n];
        let enabled = LinkRate::enabled(&port.info).unwrap_or(port.agreed);
        port.agreed.min(enabled).set_active(&mut port.info);
    }

    pub(super) fn plan_link(&mut self, n: usize, supported: LinkRate, agreed: LinkRate) {
        let Some(port) = self.sma.ports.get_mut(n) else {
            return;
        };
        supported.set_supported(&mut port.info);
        port.agreed = agreed;
        agreed.set_active(&mut port.info);
        let end = &mut self.sma.end_mut().info;
        let mut mask2 = end.capability_mask2;
        if supported.lanes() == 2 {
            mask2 |= IS_LINK_WIDTH_2X_SUPPORTED;
        }
        for (speed, bit) in [
            (LinkSpeed::Hdr, IS_LINK_SPEED_HDR_SUPPORTED),
            (LinkSpeed::Ndr, IS_LINK_SPEED_NDR_SUPPORTED),
            (LinkSpeed::Xdr, IS_EXTENDED_SPEEDS2_SUPPORTED),
        ] {
            if supported.speed() >= speed {
                mask2 |= bit;
            }
        }
        end.capability_mask2 = mask2;
        if mask2 != 0 {
            end.capability_mask =
                end.capability_mask | CapabilityMask::IS_CAPABILITY_MASK2_SUPPORTED;
        }
        if supported.speed() >= LinkSpeed::Fdr {
            end.capability_mask =
                end.capability_mask | CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED;
        }
    }
}
