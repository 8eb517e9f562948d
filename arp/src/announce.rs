//! Own addresses and what is said about them: announcements, requests in their name, replies.

use crate::neighbours::Neighbours;
use crate::output::{Destination, Output, Resolved};
use crate::paths::{Demand, Urgency};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;
use wire::ipoib::arp::ArpOperation;
use wire::ipoib::nd::{NaFlags, neighbor_advertisement, neighbor_solicitation, solicited_node};
use wire::ipoib::{ArpPacket, EncapHeader, EtherType, LinkAddress};

pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An address of this interface.
#[derive(Debug)]
pub(crate) struct Own {
    prefix_len: u8,
    /// Announcements still to be sent, and when the next.
    announce: u8,
    announce_at: Option<Instant>,
    /// When it was last defended.
    defended: Option<Instant>,
}

impl Neighbours {
    /// The interface has this address: it is announced, answered for, and a source of requests for neighbours within its prefix.
    pub fn add_address(&mut self, now: Instant, ip: IpAddr, prefix_len: u8) {
        // Perhaps another host had it so far.
        self.remove(ip);
        self.own.insert(
            ip,
            Own {
                prefix_len,
                announce: 0,
                announce_at: None,
                defended: None,
            },
        );
        if self.local.is_some() {
            self.announce(now, ip);
        }
    }

    /// It has it no more.
    pub fn remove_address(&mut self, _now: Instant, ip: IpAddr) {
        self.own.remove(&ip);
    }

    pub(crate) fn announce_all(&mut self, now: Instant) {
        let own: Vec<IpAddr> = self.own.keys().copied().collect();
        for ip in own {
            self.announce(now, ip);
        }
    }

    /// No announcements without a link.
    pub(crate) fn silence(&mut self) {
        for own in self.own.values_mut() {
            own.announce_at = None;
        }
    }

    fn announce(&mut self, now: Instant, ip: IpAddr) {
        if let Some(own) = self.own.get_mut(&ip) {
            own.announce = self.config.announcements;
            own.announce_at = Some(now);
        }
        self.announce_due(now);
    }

    pub(crate) fn next_announcement(&self) -> Option<Instant> {
        self.own.values().filter_map(|own| own.announce_at).min()
    }

    pub(crate) fn announce_due(&mut self, now: Instant) {
        let due = |own: &Own| own.announce_at.is_some_and(|at| at <= now);
        let ips: Vec<IpAddr> = self
            .own
            .iter()
            .filter(|(_, own)| due(own))
            .map(|(&ip, _)| ip)
            .collect();
        for ip in ips {
            let Some(own) = self.own.get_mut(&ip) else {
                continue;
            };
            let send = own.announce > 0;
            own.announce = own.announce.saturating_sub(1);
            own.announce_at = (own.announce > 0).then(|| now + self.config.retrans);
            if send {
                self.transmit_announcement(ip);
            }
        }
    }

    /// A gratuitous ARP request, or an advertisement that overrides (RFC 4861 section 7.2.6).
    fn transmit_announcement(&mut self, ip: IpAddr) {
        let Some(local) = self.local else { return };
        self.counters.announcements_sent += 1;
        match ip {
            IpAddr::V4(ip) => {
                let packet = ArpPacket {
                    operation: ArpOperation::REQUEST,
                    sender_hw: local,
                    sender_ip: ip,
                    target_hw: LinkAddress::default(),
                    target_ip: ip,
                };
                self.transmit(
                    Destination::Broadcast,
                    encapsulate(EtherType::ARP, &packet.emit()),
                );
            }
            IpAddr::V6(ip) => {
                let payload = self.advertisement(local, ip, ALL_NODES, false);
                self.transmit(Destination::Group(ALL_NODES), payload);
            }
        }
    }

    /// Somebody else uses an address of ours: we say that it is ours, at most every [`defend_interval`] (RFC 5227 section 2.4).
    ///
    /// [`defend_interval`]: crate::NeighbourConfig::defend_interval
    pub(crate) fn defend(&mut self, now: Instant, ip: IpAddr, by: LinkAddress) {
        self.counters.conflicts += 1;
        let Some(own) = self.own.get_mut(&ip) else {
            return;
        };
        let interval = self.config.defend_interval;
        if own
            .defended
            .is_none_or(|at| now.saturating_duration_since(at) >= interval)
        {
            own.defended = Some(now);
            self.outputs.push_back(Output::Conflict { ip, by });
            self.transmit_announcement(ip);
        }
    }

    /// Asks for `target`: everybody, or itself at the address it had.
    pub(crate) fn transmit_request(&mut self, target: IpAddr, to: Option<Resolved>) {
        let Some(local) = self.local else { return };
        let (to, payload) = match target {
            IpAddr::V4(target) => {
                // Without an address of ours this is a probe (RFC 5227 section 2.1.1), which is answered as well.
                let source = match self.source_for(IpAddr::V4(target)) {
                    Some(IpAddr::V4(source)) => source,
                    _ => Ipv4Addr::UNSPECIFIED,
                };
                let packet = ArpPacket {
                    operation: ArpOperation::REQUEST,
                    sender_hw: local,
                    sender_ip: source,
                    target_hw: LinkAddress::default(),
                    target_ip: target,
                };
                let to = to.map_or(Destination::Broadcast, Destination::Unicast);
                (to, encapsulate(EtherType::ARP, &packet.emit()))
            }
            IpAddr::V6(target) => {
                let Some(IpAddr::V6(source)) = self.source_for(IpAddr::V6(target)) else {
                    self.counters.dropped_no_source += 1;
                    return;
                };
                let group = solicited_node(target);
                let (to, destination) = match to {
                    Some(to) => (Destination::Unicast(to), target),
                    None => (Destination::Group(group), group),
                };
                let packet = neighbor_solicitation(source, destination, target, Some(local));
                (to, encapsulate(EtherType::IPV6, &packet))
            }
        };
        self.counters.requests_sent += 1;
        self.transmit(to, payload);
    }

    /// Our address with the longest prefix around `target`, else any of its kind: for IPv6 a link-local one, which every neighbour can
    /// answer.
    fn source_for(&self, target: IpAddr) -> Option<IpAddr> {
        let rank = |ip: IpAddr, own: &Own| {
            let (common, link_local) = match (ip, target) {
                (IpAddr::V4(ip), IpAddr::V4(target)) => {
                    ((ip.to_bits() ^ target.to_bits()).leading_zeros(), false)
                }
                (IpAddr::V6(ip), IpAddr::V6(target)) => (
                    (ip.to_bits() ^ target.to_bits()).leading_zeros(),
                    ip.is_unicast_link_local(),
                ),
                _ => return None,
            };
            Some((
                common >= u32::from(own.prefix_len),
                link_local,
                own.prefix_len,
            ))
        };
        let ranked = self
            .own
            .iter()
            .filter_map(|(&ip, own)| Some((rank(ip, own)?, ip)));
        ranked.max().map(|(_, ip)| ip)
    }

    /// Answers an ARP request: unicast to where the ARP body says (RFC 4391 section 9.2).
    pub(crate) fn reply_arp(&mut self, now: Instant, request: &ArpPacket) {
        let Some(local) = self.local else { return };
        let packet = ArpPacket {
            operation: ArpOperation::REPLY,
            sender_hw: local,
            sender_ip: request.target_ip,
            target_hw: request.sender_hw,
            target_ip: request.sender_ip,
        };
        self.reply(
            now,
            request.sender_hw,
            encapsulate(EtherType::ARP, &packet.emit()),
        );
    }

    /// A whole advertisement for our `target`.
    pub(crate) fn advertisement(
        &self,
        local: LinkAddress,
        target: Ipv6Addr,
        to: Ipv6Addr,
        solicited: bool,
    ) -> Vec<u8> {
        let flags = NaFlags {
            router: self.config.router,
            solicited,
            override_cached: true,
        };
        encapsulate(
            EtherType::IPV6,
            &neighbor_advertisement(target, to, target, flags, Some(local)),
        )
    }

    /// Sends a reply, now or once the path is known.
    pub(crate) fn reply(&mut self, now: Instant, to: LinkAddress, payload: Vec<u8>) {
        match self.paths.demand(now, to.gid, Urgency::Background) {
            Demand::Ready(_) => self.transmit_reply(to, payload),
            Demand::Pending => {
                if !self.paths.wait(now, to.gid, (to, payload), &self.config) {
                    self.counters.dropped_reply_full += 1;
                }
            }
            Demand::Refused(_) => self.counters.dropped_reply_no_path += 1,
        }
    }

    /// Sends a reply whose path is known.
    pub(crate) fn transmit_reply(&mut self, address: LinkAddress, payload: Vec<u8>) {
        if let Some(path) = self.paths.get(address.gid) {
            self.counters.replies_sent += 1;
            self.transmit(
                Destination::Unicast(Resolved {
                    address,
                    path,
                    stale: false,
                }),
                payload,
            );
        } else {
            self.counters.dropped_reply_no_path += 1;
        }
    }
}

/// `packet` behind an encapsulation header.
pub(crate) fn encapsulate(ether_type: EtherType, packet: &[u8]) -> Vec<u8> {
    [&EncapHeader { ether_type }.emit(), packet].concat()
}
