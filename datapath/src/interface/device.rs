//! The device of an interface and its host: addresses, groups, MTU.

use super::Interface;
use crate::host::HostEvent;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

/// The device's MTU follows the group's, unless the administrator wants less.
#[derive(Debug, Default)]
pub(super) struct Mtu {
    /// What the administrator wants at most, bytes.
    pub(super) admin: Option<u32>,
    /// What the group allows, bytes.
    pub(super) group: Option<u32>,
    /// What the device has, as last heard.
    pub(super) device: Option<u32>,
    /// What was set and not heard back yet: older reports are on their way.
    pub(super) expected: Option<u32>,
}

impl Interface {
    pub(super) fn host_event(&mut self, now: Instant, event: HostEvent) {
        match event {
            HostEvent::Link { admin_up, mtu } => {
                self.device_mtu(mtu);
                if self.admin_up != admin_up {
                    self.admin_up = admin_up;
                    self.reconsider(now);
                }
            }
            HostEvent::AddressAdded(ip, prefix) => self.add_address(now, ip, prefix),
            HostEvent::AddressRemoved(ip, prefix) => self.remove_address(now, ip, prefix),
            HostEvent::RoutesChanged => {
                self.table.hops = Arc::default();
                self.changed = true;
            }
            HostEvent::GroupJoined(group) => {
                if self.host_groups.insert(group) {
                    self.groups.join(now, group);
                }
            }
            HostEvent::GroupLeft(group) => {
                if self.host_groups.remove(&group) {
                    self.groups.leave(now, group);
                }
            }
            HostEvent::Gone | HostEvent::NamespaceDeleted => self.shutdown(now),
        }
    }

    fn add_address(&mut self, now: Instant, ip: IpAddr, prefix: u8) {
        if !self.addresses.insert((ip, prefix)) {
            return;
        }
        self.addresses_changed();
        self.neighbours.add_address(now, ip, prefix);
        for group in needed_groups(ip) {
            self.groups.join(now, group);
        }
    }

    fn remove_address(&mut self, now: Instant, ip: IpAddr, prefix: u8) {
        if !self.addresses.remove(&(ip, prefix)) {
            return;
        }
        self.addresses_changed();
        self.neighbours.remove_address(now, ip);
        for group in needed_groups(ip) {
            self.groups.leave(now, group);
        }
    }

    fn addresses_changed(&mut self) {
        self.table.own = Arc::new(self.addresses.iter().map(|(ip, _)| *ip).collect());
        self.changed = true;
    }

    fn device_mtu(&mut self, mtu: u32) {
        match self.mtu.expected {
            Some(expected) if expected != mtu => return,
            Some(_) => self.mtu.expected = None,
            // The first report is what the device was made with, not a wish.
            None if self.mtu.device.is_some_and(|old| old != mtu) => {
                let limit = self.mtu.group.map(|g| self.connections.device_mtu(g));
                if let Some(limit) = limit.filter(|limit| mtu > *limit) {
                    tracing::warn!(interface = %self.config.name, mtu, limit, mode = %self.mode(), "the MTU is more than the mode and the broadcast group allow");
                }
                self.mtu.admin = limit.is_none_or(|limit| mtu < limit).then_some(mtu);
            }
            None => {}
        }
        self.mtu.device = Some(mtu);
        self.apply_mtu();
    }

    /// Sets the device's MTU to the smaller of the mode's and the administrator's.
    pub(super) fn apply_mtu(&mut self) {
        let Some(group) = self.mtu.group else { return };
        let limit = self.connections.device_mtu(group);
        let wanted = self.mtu.admin.map_or(limit, |admin| admin.min(limit));
        if self.mtu.device == Some(wanted) && self.mtu.expected.is_none()
            || self.mtu.expected == Some(wanted)
        {
            return;
        }
        match self.host.set_mtu(wanted) {
            Ok(()) => self.mtu.expected = Some(wanted),
            Err(error) => {
                tracing::warn!(interface = %self.config.name, mtu = wanted, %error, "cannot set the MTU")
            }
        }
    }
}

/// Groups that resolving `ip` needs: all nodes, and the solicited-node group (RFC 4861 section 7.2.1).
fn needed_groups(ip: IpAddr) -> Vec<IpAddr> {
    match ip {
        IpAddr::V4(_) => vec![IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1))],
        IpAddr::V6(ip) => {
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            vec![
                IpAddr::V6(all_nodes),
                IpAddr::V6(wire::ipoib::nd::solicited_node(ip)),
            ]
        }
    }
}
