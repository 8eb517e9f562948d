//! ARP, ND and neighbours: between the data path, the neighbour machine and the SA.

use super::status::NeighbourStatus;
use super::{Interface, MAX_RESOLVING, Purpose, ResolveAnswer};
use crate::counters::Counters;
use crate::forwarding::{Destination, Key};
use crate::host::NextHop;
use crate::icmp::Reason;
use arp::{Output, Path, Resolved, Source};
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use verbs::{AddressHandle, AhAttributes, GrhAttributes};
use wire::Gid;
use wire::ipoib::nd::{NdMessage, NdOptions, NdPacket, is_neighbor_discovery};
use wire::ipoib::{ArpPacket, ENCAP_LEN, LinkAddress};

impl Interface {
    pub(super) fn arp_received(&mut self, now: Instant, source: Source, packet: &[u8]) {
        match ArpPacket::parse(packet) {
            Ok(arp) => self.neighbours.handle_arp(now, source, &arp),
            Err(error) => {
                Counters::bump(&self.plane.counters().rx_drop_bad_arp);
                tracing::debug!(interface = %self.config.name, from = %source.lid, %error, "bad ARP packet");
            }
        }
    }

    pub(super) fn nd_received(&mut self, now: Instant, source: Source, packet: &[u8]) {
        self.neighbours.handle_nd(now, source, packet);
        match NdPacket::parse(packet) {
            // Neighbours are ours to find, not the kernel's.
            Ok(nd)
                if matches!(
                    nd.message,
                    NdMessage::NeighborSolicitation { .. }
                        | NdMessage::NeighborAdvertisement { .. }
                ) => {}
            Ok(nd) => self.plane.to_host(&without_link_addresses(nd)),
            Err(error) => {
                Counters::bump(&self.plane.counters().rx_drop_bad_nd);
                tracing::debug!(interface = %self.config.name, from = %source.lid, %error, "bad neighbour discovery packet");
            }
        }
    }

    /// The data path used a destination for the first time since control asked to be told.
    pub(super) fn used(&mut self, now: Instant, key: Key) {
        match key {
            Key::Neighbour(ip) => self.neighbours.used(now, ip),
            Key::Group(mgid) => self.groups.used(now, mgid),
        }
    }

    pub(super) fn neighbours_output(&mut self, now: Instant, output: Output) {
        match output {
            Output::Transmit { to, payload } => self.transmit_control(now, to, payload),
            Output::QueryPath(gid) => self.query_path(now, gid),
            Output::Install { ip, entry } => {
                // An entry refers to a path that the SA gave for our own GID: none is installed while the interface is down.
                let Some(mut to) = self.destination(&entry) else {
                    return;
                };
                to.lane = self.connections.attach(now, ip, &entry);
                Arc::make_mut(&mut self.table.neighbours).insert(ip, Arc::new(to));
                self.changed = true;
                self.resolved(now, ip);
            }
            Output::Remove { ip } => {
                Arc::make_mut(&mut self.table.neighbours).remove(&ip);
                self.connections.detach(now, ip);
                self.changed = true;
            }
            Output::Flush { ip, packets } => match self.table.neighbours.get(&ip).cloned() {
                Some(to) => self.send_to(now, &to, packets),
                None => Counters::add(
                    &self.plane.counters().tx_drop_unreachable,
                    packets.len() as u64,
                ),
            },
            Output::Unreachable { ip, packets } => {
                self.resolved(now, ip);
                Counters::add(
                    &self.plane.counters().tx_drop_unreachable,
                    packets.len() as u64,
                );
                for packet in packets {
                    let packet = packet.get(ENCAP_LEN..).unwrap_or_default();
                    // The machine's own answers may be among them.
                    if !is_neighbor_discovery(packet) {
                        self.icmp_error(now, packet, Reason::Unreachable);
                    }
                }
            }
            Output::Conflict { ip, by } => {
                tracing::warn!(interface = %self.config.name, address = %ip, claimed_by = %by, "another interface uses an address of this one");
            }
        }
    }

    /// Resolves the next hop towards `ip` although no packet asks for it, and tells `answer`.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr, answer: ResolveAnswer) {
        if !self.is_up() {
            return answer(Err(self.state_in_words()));
        }
        let hop = match self.host.next_hop(ip) {
            NextHop::OnLink if ip.is_multicast() => {
                return answer(Err(format!(
                    "{ip} is a group, not a neighbour: see `ipoib show mcast`"
                )));
            }
            NextHop::OnLink => ip,
            NextHop::Gateway(gateway) => gateway,
            NextHop::Broadcast => return answer(Err(format!("{ip} is a broadcast address"))),
            NextHop::Unreachable => {
                return answer(Err(format!("no route to {ip} by this interface")));
            }
        };
        if self.resolving.len() >= MAX_RESOLVING {
            return answer(Err("too many resolutions at once".into()));
        }
        self.resolving.push((hop, answer));
        if self.table.neighbours.contains_key(&hop) {
            self.resolved(now, hop);
        } else {
            self.neighbours.resolve(now, hop);
        }
        self.settle(now);
    }

    /// Tells those who wait for `ip` how it went.
    fn resolved(&mut self, now: Instant, ip: IpAddr) {
        for (_, answer) in self
            .resolving
            .extract_if(.., |(hop, _)| *hop == ip)
            .collect::<Vec<_>>()
        {
            let status = self
                .neighbours
                .get(now, ip)
                .map(|info| self.neighbour(now, info));
            answer(match status {
                Some(status) if self.table.neighbours.contains_key(&ip) => Ok(status),
                Some(NeighbourStatus {
                    last_failure: Some(failure),
                    ..
                }) => Err(format!("{ip}: {failure}")),
                _ => Err(format!("{ip} cannot be resolved")),
            });
        }
    }

    fn query_path(&mut self, now: Instant, gid: Gid) {
        if !self.request_path(now, gid, Purpose::Path(gid)) {
            self.neighbours
                .path_result(now, gid, Err(arp::PathError::TimedOut));
        }
    }

    /// Asks the SA for the path to `gid`; false while the interface is down.
    pub(super) fn request_path(&mut self, now: Instant, gid: Gid, purpose: Purpose) -> bool {
        let Some((own, p_key)) = self.running else {
            return false;
        };
        let tclass = self.groups.broadcast().map_or(0, |record| record.tclass);
        let id = self
            .sa
            .request(now, mad::SaRequest::path(own, gid, p_key, tclass));
        self.requests.insert(id, purpose);
        true
    }

    /// Sends an ARP or ND packet of our own.
    fn transmit_control(&mut self, now: Instant, to: arp::Destination, payload: Vec<u8>) {
        let Some(identity) = self.table.identity.clone() else {
            return Counters::bump(&self.plane.counters().tx_drop_down);
        };
        let to = match to {
            arp::Destination::Unicast(resolved) => self.destination(&resolved).map(Arc::new),
            arp::Destination::Broadcast => self
                .table
                .groups
                .get(&identity.mgid(std::net::Ipv4Addr::BROADCAST.into()))
                .cloned(),
            arp::Destination::Group(group) => {
                let group = IpAddr::V6(group);
                match self.table.groups.get(&identity.mgid(group)) {
                    Some(to) => Some(to.clone()),
                    None => return self.groups.send(now, group, payload),
                }
            }
        };
        let Some(to) = to else { return };
        if to.first_use()
            && to.qpn == wire::Qpn::MULTICAST
            && let Some(grh) = to.ah.attributes().grh
        {
            self.groups.used(now, grh.dgid);
        }
        identity.qp.post_send(&[identity.send(&to, &payload)]);
    }

    /// What the data path needs to send to a neighbour.
    fn destination(&self, entry: &Resolved) -> Option<Destination> {
        let identity = self.table.identity.as_ref()?;
        let ah = ah_attributes(&entry.path, entry.address.gid, self.attributes.lmc);
        let mtu = entry.path.mtu.bytes().map_or(identity.mtu, |bytes| {
            identity.mtu.min(usize::from(bytes) - ENCAP_LEN)
        });
        let ah = self.address_handle(ah, &entry.address)?;
        Some(Destination::new(ah, entry.address.qpn, mtu, entry.stale))
    }

    /// An address handle for `to`; that there is none is logged.
    pub(super) fn address_handle(
        &self,
        attributes: AhAttributes,
        to: &dyn Display,
    ) -> Option<AddressHandle> {
        self.port
            .create_ah(attributes)
            .inspect_err(|error| {
                tracing::warn!(interface = %self.config.name, %to, %error, "no address handle");
            })
            .ok()
    }

    /// The link address that others see (RFC 4391 section 9.1.1).
    pub(super) fn link_address(&self) -> Option<LinkAddress> {
        let identity = self.table.identity.as_ref()?;
        Some(LinkAddress {
            flags: self.connections.flags(),
            qpn: identity.qp.qpn(),
            gid: identity.gid,
        })
    }
}

/// The way to a neighbour as verbs want it.
pub(super) fn ah_attributes(path: &Path, gid: Gid, lmc: u8) -> AhAttributes {
    AhAttributes {
        dlid: path.dlid,
        sl: path.sl,
        src_path_bits: (path.slid.0 & ((1 << lmc) - 1)) as u8,
        rate: path.rate,
        // As ib_ipoib: a path inside the subnet has hop limit 0 and needs no GRH.
        grh: (path.hop_limit > 0).then_some(GrhAttributes {
            dgid: gid,
            sgid_index: 0,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.tclass,
        }),
    }
}

/// The same message without link-layer address options: the host's device has none, and Linux rejects those of another length than its own.
fn without_link_addresses(nd: NdPacket<'_>) -> Vec<u8> {
    const LINK_LAYER_ADDRESS: std::ops::RangeInclusive<u8> = 1..=2;
    let kept: Vec<u8> = nd
        .options
        .iter()
        .filter(|(kind, _)| !LINK_LAYER_ADDRESS.contains(kind))
        .flat_map(|(_, option)| option.iter().copied())
        .collect();
    NdPacket {
        options: NdOptions::parse(&kept).unwrap_or_default(),
        ..nd
    }
    .emit()
}
