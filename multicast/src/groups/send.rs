//! Packets to groups without a route: queues, and the groups that stand in (RFC 4391 section 10).

use super::Groups;
use crate::group::Group;
use crate::output::Output;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;
use wire::Gid;

const ALL_ROUTERS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(224, 0, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2)),
];

/// Is the group for more than the link (224.0.0.0/24; scopes 0 to 2)?
fn leaves_the_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] != [224, 0, 0],
        IpAddr::V6(ip) => ip.octets()[1] & 0xf > 2,
    }
}

impl Groups {
    /// A packet to a group that the data path has no route for: it is joined for sending, and the packet waits. A group with a route sends at
    /// once. 255.255.255.255 is the broadcast group.
    pub fn send(&mut self, now: Instant, ip: IpAddr, packet: Vec<u8>) {
        if !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST) {
            self.counters.dropped_not_multicast += 1;
            return;
        }
        let Some(port) = self.port.filter(|_| self.broadcast().is_some()) else {
            self.counters.dropped_no_broadcast += 1;
            return;
        };
        let mgid = self.mgid(ip, port);
        if !self.groups.contains_key(&mgid) && self.groups.len() >= self.config.max_groups {
            self.counters.dropped_too_many_groups += 1;
            return;
        }
        let (max_packets, max_bytes, queued) = (
            self.config.queue_packets,
            self.config.queue_bytes,
            self.queued_bytes,
        );
        let group = self.current(mgid, Some(ip));
        group.last_used = Some(now);
        let route = group.active.map(|_| mgid).or(group.via);
        if let Some(mgid) = route {
            self.outputs.push_back(Output::Send {
                mgid,
                packets: vec![packet],
            });
            return;
        }
        if group.failed && group.in_backoff(now) && !group.alias {
            self.counters.dropped_no_group += 1;
            return;
        }
        // The oldest one gives way, as in neighbour queues (RFC 4861 section 7.2.2).
        let oldest = if group.queue.len() >= max_packets {
            group.queue.pop_front()
        } else {
            None
        };
        let free = max_bytes + oldest.as_ref().map_or(0, |(_, old)| old.len());
        let fits = queued + packet.len() <= free;
        if fits {
            self.queued_bytes += packet.len();
            if let Some(group) = self.groups.get_mut(&mgid) {
                group.queue.push_back((now, packet));
            }
        }
        self.counters.dropped_queue_full += u64::from(!fits) + u64::from(oldest.is_some());
        self.queued_bytes -= oldest.map_or(0, |(_, old)| old.len());
        self.reroute(now, mgid);
        self.work.push_back(mgid);
        self.run(now);
    }

    /// Sends what waits, now that there is a route by way of `via`.
    pub(super) fn flush(&mut self, now: Instant, via: Gid, group: &mut Group) {
        let mut packets = Vec::new();
        for (since, packet) in group.queue.drain(..) {
            self.queued_bytes -= packet.len();
            if now.saturating_duration_since(since) > self.config.queue_age {
                self.counters.dropped_stale += 1;
            } else {
                packets.push(packet);
            }
        }
        if !packets.is_empty() {
            self.outputs.push_back(Output::Send { mgid: via, packets });
        }
    }

    /// Drops what waits; tells how many packets, for the counter of the reason.
    pub(super) fn clear_queue(&mut self, group: &mut Group) -> u64 {
        let count = group.queue.len() as u64;
        self.queued_bytes -= group
            .queue
            .drain(..)
            .map(|(_, packet)| packet.len())
            .sum::<usize>();
        count
    }

    fn all_routers(&self, ip: IpAddr) -> Option<Gid> {
        Some(self.mgid(ALL_ROUTERS[usize::from(ip.is_ipv6())], self.port?))
    }

    pub(super) fn is_all_routers(&self, mgid: Gid) -> bool {
        self.port.is_some_and(|port| {
            ALL_ROUTERS
                .into_iter()
                .any(|ip| self.mgid(ip, port) == mgid)
        })
    }

    /// A group could not be joined for sending: by refusal its packets may go elsewhere, otherwise they are dropped.
    pub(super) fn fall_back(&mut self, now: Instant, mgid: Gid, group: &mut Group, refused: bool) {
        let stand_in = group
            .ip
            .filter(|ip| leaves_the_link(*ip) && self.config.all_routers_fallback);
        let stand_in = stand_in.and_then(|ip| Some((ip, self.all_routers(ip)?)));
        let Some((ip, routers)) = stand_in.filter(|_| refused || group.alias) else {
            self.counters.dropped_no_group += self.clear_queue(group);
            return;
        };
        if !std::mem::replace(&mut group.alias, true) {
            let all_routers = ALL_ROUTERS[usize::from(ip.is_ipv6())];
            self.current(routers, Some(all_routers)).aliases += 1;
            self.work.push_back(routers);
        }
        self.apply_alias(now, mgid, group);
    }

    /// The group has a membership of its own again, or is not used any more: its packets no longer go elsewhere.
    pub(super) fn unalias(&mut self, mgid: Gid, group: &mut Group) {
        if !std::mem::take(&mut group.alias) {
            return;
        }
        if group.via.take().is_some() {
            self.outputs.push_back(Output::Unroute { mgid });
        }
        if let Some(routers) = group.ip.and_then(|ip| self.all_routers(ip))
            && let Some(stand_in) = self.groups.get_mut(&routers)
        {
            stand_in.aliases = stand_in.aliases.saturating_sub(1);
            self.work.push_back(routers);
        }
    }

    /// Where an aliased group's packets go now.
    fn apply_alias(&mut self, now: Instant, mgid: Gid, group: &mut Group) {
        let Some(routers) = group
            .ip
            .filter(|_| group.alias)
            .and_then(|ip| self.all_routers(ip))
        else {
            return;
        };
        let stand_in = self.groups.get(&routers);
        let joined = stand_in.is_some_and(|stand_in| stand_in.active.is_some());
        let failed = stand_in.is_some_and(|stand_in| stand_in.failed);
        let by_broadcast = failed && self.config.broadcast_fallback && self.broadcast().is_some();
        let via = if joined {
            Some(routers)
        } else {
            by_broadcast.then_some(self.broadcast)
        };
        if via != group.via {
            self.outputs.push_back(match via {
                Some(via) => Output::RouteAlias { mgid, via },
                None => Output::Unroute { mgid },
            });
            group.via = via;
        }
        match via {
            Some(via) => self.flush(now, via, group),
            None if failed => self.counters.dropped_no_group += self.clear_queue(group),
            None => {}
        }
    }

    fn reroute(&mut self, now: Instant, mgid: Gid) {
        if let Some(mut group) = self.groups.remove(&mgid) {
            self.apply_alias(now, mgid, &mut group);
            self.groups.insert(mgid, group);
        }
    }

    /// The membership of an all-routers group came or went.
    pub(super) fn reroute_aliases(&mut self, now: Instant, routers: Gid) {
        if self.is_all_routers(routers) {
            let aliased: Vec<Gid> = self
                .groups
                .iter()
                .filter(|(_, group)| group.alias)
                .map(|(mgid, _)| *mgid)
                .collect();
            for mgid in aliased {
                self.reroute(now, mgid);
            }
        }
    }
}
