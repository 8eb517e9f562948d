//! What is learned from received ARP and ND packets, and when they are answered.

use crate::announce::ALL_NODES;
use crate::neighbours::{Neighbours, is_unicast};
use crate::output::{Destination, Source};
use crate::show::State;
use crate::table::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;
use wire::ipoib::arp::ArpOperation;
use wire::ipoib::nd::{NaFlags, NdMessage, NdPacket};
use wire::ipoib::{ArpPacket, LinkAddress};
use wire::{Gid, Qpn};

impl Neighbours {
    /// An ARP packet was received (RFC 826, section "Packet Reception").
    pub fn handle_arp(&mut self, now: Instant, from: Source, packet: &ArpPacket) {
        self.counters.received += 1;
        let Some(local) = self.local else {
            self.counters.dropped_link_down += 1;
            return;
        };
        let by = packet.sender_hw;
        let sender = IpAddr::V4(packet.sender_ip);
        let target = IpAddr::V4(packet.target_ip);
        let probe = packet.sender_ip == Ipv4Addr::UNSPECIFIED;
        let request = packet.operation == ArpOperation::REQUEST;
        if by.same_destination(&local) {
            self.counters.dropped_own += 1;
        } else if !(request || packet.operation == ArpOperation::REPLY)
            || !is_usable(by)
            || !(is_unicast(sender) || probe && request)
        {
            self.counters.dropped_invalid += 1;
        } else if self.own.contains_key(&sender) {
            self.defend(now, sender, by);
        } else {
            // No proxy, no answers for other interfaces' addresses (ARP flux).
            let for_us = self.own.contains_key(&target);
            if !probe {
                // The target's link address may be zero in replies (eIPoIB), so it says nothing.
                if !request && for_us && !from.multicast && self.asked(sender) {
                    self.confirm(now, sender, by);
                } else {
                    self.learn(now, sender, by, request && for_us);
                }
            } else if !for_us {
                self.counters.ignored += 1;
            }
            if request && for_us {
                self.reply_arp(now, packet);
            }
        }
        self.pump();
    }

    /// A Neighbor Discovery packet was received: a whole IPv6 packet, which is checked here (RFC 4861 sections 6.1, 7.1, 8.1).
    pub fn handle_nd(&mut self, now: Instant, from: Source, ipv6_packet: &[u8]) {
        self.counters.received += 1;
        let Some(local) = self.local else {
            self.counters.dropped_link_down += 1;
            return;
        };
        let Ok(packet) = NdPacket::parse(ipv6_packet) else {
            self.counters.dropped_invalid += 1;
            return;
        };
        let link = packet.link_address();
        let ours = from.qpn == local.qpn && from.gid == Some(local.gid);
        if ours || link.is_some_and(|a| a.same_destination(&local)) {
            self.counters.dropped_own += 1;
            return;
        }
        let source = IpAddr::V6(packet.source);
        if link.is_some_and(|a| !is_usable(a))
            || !(is_unicast(source) || packet.source.is_unspecified())
        {
            self.counters.dropped_invalid += 1;
            return;
        }
        match packet.message {
            NdMessage::NeighborSolicitation { target } => {
                self.solicited(now, from, local, target, packet.source, link)
            }
            NdMessage::NeighborAdvertisement { flags, target } => {
                self.advertised(now, from, IpAddr::V6(target), flags, link)
            }
            // RFC 4861 section 6.2.6: for routers. Nothing to gain for a host but an update.
            NdMessage::RouterSolicitation => {
                self.learn_option(now, source, link, self.config.router, None)
            }
            // RFC 4861 section 6.3.4
            NdMessage::RouterAdvertisement { .. } => {
                self.learn_option(now, source, link, true, Some(true))
            }
            // RFC 4861 section 8.3. Which router is our first hop, only the kernel knows: any known router will do.
            NdMessage::Redirect {
                target,
                destination,
            } => {
                if self.table.get(source).is_some_and(|e| e.router) {
                    let router = (target != destination).then_some(true);
                    self.learn_option(now, IpAddr::V6(target), link, true, router);
                } else {
                    self.counters.ignored += 1;
                }
            }
        }
        self.pump();
    }

    /// RFC 4861 section 7.2.3, 7.2.4.
    fn solicited(
        &mut self,
        now: Instant,
        from: Source,
        local: LinkAddress,
        target: Ipv6Addr,
        source: Ipv6Addr,
        link: Option<LinkAddress>,
    ) {
        if self.own.contains_key(&IpAddr::V6(source)) {
            self.defend(now, IpAddr::V6(source), link.unwrap_or(address_of(from)));
        } else if !self.own.contains_key(&IpAddr::V6(target)) {
            self.counters.ignored += 1;
        } else if source.is_unspecified() {
            // Duplicate address detection: the address is taken.
            let payload = self.advertisement(local, target, ALL_NODES, false);
            self.counters.replies_sent += 1;
            self.transmit(Destination::Group(ALL_NODES), payload);
        } else {
            let payload = self.advertisement(local, target, source, true);
            match link {
                Some(address) => {
                    self.learn(now, IpAddr::V6(source), address, true);
                    self.reply(now, address, payload);
                }
                // It expects us to know it already; if not, we ask.
                None => self.send(now, IpAddr::V6(source), payload),
            }
        }
    }

    /// RFC 4861 section 7.2.5.
    fn advertised(
        &mut self,
        now: Instant,
        from: Source,
        target: IpAddr,
        flags: NaFlags,
        link: Option<LinkAddress>,
    ) {
        if self.own.contains_key(&target) {
            return self.defend(now, target, link.unwrap_or(address_of(from)));
        }
        let Some(e) = self.table.get_mut(target) else {
            self.counters.ignored += 1;
            return;
        };
        let cached = e
            .address
            .filter(|_| !matches!(e.state, State::Incomplete | State::Failed));
        let Some(cached) = cached else {
            let Some(address) = link else {
                self.counters.ignored += 1;
                return;
            };
            e.router = flags.router;
            match flags.solicited && self.asked(target) {
                true => self.confirm(now, target, address),
                false => self.learn(now, target, address, false),
            }
            return;
        };
        let other = link.filter(|a| !a.same_destination(&cached));
        if other.is_some() && !flags.override_cached {
            if e.state == State::Reachable {
                self.enter(now, target, State::Stale);
                self.sync(now, target);
            }
            return;
        }
        e.router = flags.router;
        let address = link.unwrap_or(cached);
        match flags.solicited {
            true => self.confirm(now, target, address),
            false => self.learn(now, target, address, false),
        }
    }

    fn learn_option(
        &mut self,
        now: Instant,
        ip: IpAddr,
        link: Option<LinkAddress>,
        create: bool,
        router: Option<bool>,
    ) {
        match link {
            Some(address) if is_unicast(ip) && !self.own.contains_key(&ip) => {
                self.learn(now, ip, address, create)
            }
            _ => self.counters.ignored += 1,
        }
        if let (Some(router), Some(e)) = (router, self.table.get_mut(ip)) {
            e.router = router;
        }
    }

    /// Is a request of ours for `ip` unanswered?
    fn asked(&self, ip: IpAddr) -> bool {
        self.table
            .get(ip)
            .is_some_and(|e| matches!(e.state, State::Incomplete | State::Probe))
    }

    /// It answered our request: its address is `address`, and it hears us.
    fn confirm(&mut self, now: Instant, ip: IpAddr, address: LinkAddress) {
        self.update_address(now, ip, address);
        self.enter(now, ip, State::Reachable);
        self.sync(now, ip);
    }

    /// It says that its address is `address`, which proves nothing about whether it hears us. An unknown neighbour is remembered only with
    /// `create`: it has business with us.
    fn learn(&mut self, now: Instant, ip: IpAddr, address: LinkAddress, create: bool) {
        let known = self
            .table
            .get(ip)
            .map(|e| (e.state, e.address, e.retry_at, e.wanted.then_some(e.since)));
        match known {
            None if !create => {
                self.counters.ignored += 1;
                return;
            }
            None if !self.make_room(true) => {
                self.counters.not_learned += 1;
                return;
            }
            None => {
                self.table.insert(ip, Entry::new(now, State::Stale));
                self.set_address(now, ip, Some(address));
                self.enter(now, ip, State::Stale);
            }
            Some((state, old, retry_at, wanted_since)) => {
                let moved = self.update_address(now, ip, address);
                let no_path = old.is_some_and(|old| old.gid == address.gid) && now < retry_at;
                match state {
                    State::Failed if no_path => {
                        // There was no path to that GID. That it speaks says that there may be one by now: no need to sit out a long
                        // back-off, but strangers do not set the pace of queries.
                        if wanted_since.is_none_or(|since| now < since + self.config.backoff_min) {
                            return;
                        }
                        self.paths.reset_backoff(address.gid);
                        self.enter(now, ip, State::Stale);
                    }
                    State::Failed | State::Incomplete => self.enter(now, ip, State::Stale),
                    _ if moved => self.enter(now, ip, State::Stale),
                    _ => {}
                }
            }
        }
        self.sync(now, ip);
    }

    /// True if packets go elsewhere from now on.
    fn update_address(&mut self, now: Instant, ip: IpAddr, address: LinkAddress) -> bool {
        let old = self.table.get(ip).and_then(|e| e.address);
        let moved = old.is_none_or(|old| !old.same_destination(&address));
        // Flags that mean nothing to us are no reason to install an entry again.
        if moved || old.is_some_and(|old| old.known_flags() != address.known_flags()) {
            self.set_address(now, ip, Some(address));
        }
        moved
    }
}

/// Can an interface have this link address? QPNs 0 and 1 are management's, 0xffffff is the groups'.
fn is_usable(address: LinkAddress) -> bool {
    let LinkAddress { qpn, gid, .. } = address;
    !matches!(qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST)
        && !gid.is_multicast()
        && gid != Gid::default()
}

/// The sender as far as the work completion tells.
fn address_of(from: Source) -> LinkAddress {
    LinkAddress {
        flags: 0,
        qpn: from.qpn,
        gid: from.gid.unwrap_or_default(),
    }
}
