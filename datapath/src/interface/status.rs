//! What an operator sees of an interface: `ipoib show link|neigh|path|mcast|stats`.

use super::{ConnectionStatus, Interface, Mode};
use arp::NeighbourInfo;
use serde::Serialize;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::mad::PortState;

/// The named fields of a struct of counters, with a prefix to their names.
macro_rules! named {
    ($prefix:literal, $from:ident, $($field:ident),*) => {
        [$((concat!($prefix, stringify!($field)).to_owned(), $from.$field)),*]
    };
}

/// `ipoib show link`.
#[derive(Clone, Debug, Serialize)]
pub struct LinkStatus {
    /// Device name.
    pub name: String,
    /// Can IP packets flow?
    pub up: bool,
    /// In words; where it is not up, what it waits for.
    pub state: String,
    /// PortState of the port below.
    pub port_state: String,
    /// Own LID.
    pub lid: u16,
    /// LID of the master subnet manager.
    pub sm_lid: u16,
    /// Own GID.
    pub gid: String,
    /// The 20 bytes that others see in ARP and ND.
    pub link_address: Option<String>,
    /// Queue pair number.
    pub qpn: Option<u32>,
    /// Partition with the full-member bit.
    pub p_key: Option<String>,
    /// Q_Key of the broadcast group.
    pub q_key: Option<String>,
    /// `datagram` or `connected`.
    pub mode: String,
    /// MTU of the device, bytes.
    pub mtu: Option<u32>,
    /// IP MTU that the broadcast group allows, bytes.
    pub group_mtu: Option<u32>,
    /// What the administrator set below it, bytes.
    pub admin_mtu: Option<u32>,
    /// IP MTU that the port could carry, bytes.
    pub port_mtu: Option<u32>,
    /// Rate of the port.
    pub rate: String,
    /// IP addresses with prefix lengths.
    pub addresses: Vec<String>,
}

/// One line of `ipoib show neigh`.
#[derive(Clone, Debug, Serialize)]
pub struct NeighbourStatus {
    /// Next hop.
    pub ip: IpAddr,
    /// State of RFC 4861.
    pub state: String,
    /// 20-byte link address.
    pub link_address: Option<String>,
    /// Destination LID.
    pub lid: Option<u16>,
    /// Its GID.
    pub gid: Option<String>,
    /// Service level.
    pub sl: Option<u8>,
    /// Where the connection stands that this side sends by, or why there is none; none where none is wanted.
    pub connection: Option<String>,
    /// Which way packets go by connections that are open: `out`, `in`, `both`. See [`ConnectionStatus`].
    pub direction: Option<&'static str>,
    /// Largest IP packet that goes to it, bytes; none where that is only known when a connection is open.
    pub mtu: Option<u32>,
    /// Largest IP packet that goes to it as a datagram, bytes.
    pub datagram_mtu: Option<u32>,
    /// Rate of the path.
    pub rate: Option<String>,
    /// Packets that wait.
    pub queued: usize,
    /// Milliseconds in this state.
    pub age_ms: u64,
    /// IP packets sent to it since its entry was made or changed.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// The last failure in words.
    pub last_failure: Option<String>,
    /// Milliseconds since then.
    pub last_failure_age_ms: Option<u64>,
    /// In state `failed`, the milliseconds before a packet makes it try again.
    pub retry_in_ms: Option<u64>,
}

/// One line of `ipoib show path`.
#[derive(Clone, Debug, Serialize)]
pub struct PathStatus {
    /// Destination.
    pub gid: String,
    /// Destination LID.
    pub lid: Option<u16>,
    /// Service level.
    pub sl: Option<u8>,
    /// IB MTU, bytes.
    pub mtu: Option<u16>,
    /// Rate.
    pub rate: Option<String>,
    /// A query is outstanding.
    pub querying: bool,
    /// Neighbours that use it.
    pub neighbours: usize,
    /// Milliseconds since the SA answered.
    pub age_ms: u64,
    /// The last error in words.
    pub last_error: Option<String>,
}

/// One line of `ipoib show mcast`.
#[derive(Clone, Debug, Serialize)]
pub struct GroupStatus {
    /// MGID.
    pub mgid: String,
    /// The IP group it stands for, where that can be told.
    pub group: Option<IpAddr>,
    /// MLID once joined.
    pub mlid: Option<u16>,
    /// Where it stands: waiting, joining, joined, back-off ...
    pub state: String,
    /// As what it is or shall be joined.
    pub join_state: String,
    /// How often the host's stack joined it; 0: only sent to.
    pub users: u32,
    /// Its packets go to this group instead.
    pub via: Option<String>,
    /// Packets that wait.
    pub queued: usize,
    /// Joins asked for.
    pub attempts: u64,
    /// What was asked, what was offered and what the SA answered, the last time it failed.
    pub last_error: Option<String>,
}

impl Interface {
    /// What the interface waits for, or that it works.
    pub fn state_in_words(&self) -> String {
        // As it is now: of a step from Down to Init there is no event.
        let port = self.port.attributes();
        if self.finished {
            return "ended: the device or the port is gone".into();
        }
        if !self.admin_up {
            return "set down by the administrator".into();
        }
        if port.state == PortState::DOWN {
            return "port down: no fabric at the other end of the link".into();
        }
        if port.state != PortState::ACTIVE || !port.lid.is_unicast() {
            return format!("port {}: waiting for a subnet manager", port.state);
        }
        if self.running.is_none() {
            let have: Vec<String> = port
                .pkeys
                .iter()
                .filter(|k| k.base() != 0)
                .map(|k| k.to_string())
                .collect();
            let wanted = self
                .config
                .p_key
                .map_or("at index 0".into(), |k| k.to_string());
            return format!(
                "P_Key {wanted} is not in the port's table (it has {})",
                have.join(", ")
            );
        }
        match self.table.identity {
            Some(_) => "up".into(),
            None => match self.groups.broadcast_error() {
                Some(error) => format!("joining the broadcast group: {error}"),
                None => "joining the broadcast group".into(),
            },
        }
    }

    /// `ipoib show link`.
    pub fn link_status(&self) -> LinkStatus {
        let port = &self.attributes;
        LinkStatus {
            name: self.config.name.clone(),
            up: self.is_up(),
            state: self.state_in_words(),
            port_state: port.state.to_string(),
            lid: port.lid.0,
            sm_lid: port.sm_lid.0,
            gid: port.gid().to_string(),
            link_address: self.link_address().map(|a| a.to_string()),
            qpn: self.qp.as_ref().map(|qp| qp.qpn().0),
            p_key: self.running.map(|(_, key)| key.to_string()),
            q_key: self.table.identity.as_ref().map(|i| i.q_key.to_string()),
            mode: self.mode().to_string(),
            mtu: self.mtu.device,
            group_mtu: self.mtu.group,
            admin_mtu: self.mtu.admin,
            port_mtu: port.active_mtu.bytes().map(|b| u32::from(b) - 4),
            rate: port.rate.to_string(),
            addresses: self
                .addresses
                .iter()
                .map(|(ip, prefix)| format!("{ip}/{prefix}"))
                .collect(),
        }
    }

    /// `ipoib show neigh`, by address.
    pub fn neighbour_status(&self, now: Instant) -> Vec<NeighbourStatus> {
        let mut list: Vec<_> = self
            .neighbours
            .neighbours(now)
            .map(|info| self.neighbour(now, info))
            .collect();
        list.sort_by_key(|n| n.ip);
        list
    }

    pub(super) fn neighbour(&self, now: Instant, n: NeighbourInfo) -> NeighbourStatus {
        let to = self.table.neighbours.get(&n.ip);
        let outline = self.connections.outline(now, n.ip);
        let offers_none = self.mode() == Mode::Connected
            && n.address.is_some_and(|address| !address.accepts_rc());
        let ms = |time: Duration| time.as_millis() as u64;
        let connection = outline
            .out
            .or_else(|| offers_none.then(|| "none: it offers none (no RC flag)".into()));
        NeighbourStatus {
            ip: n.ip,
            state: n.state.to_string(),
            link_address: n.address.map(|a| a.to_string()),
            lid: n.path.map(|p| p.dlid.0),
            gid: n.address.map(|a| a.gid.to_string()),
            sl: n.path.map(|p| p.sl.0),
            connection,
            direction: outline.direction,
            mtu: match outline.mtu_to_be {
                Some(of_the_last) => of_the_last.map(|mtu| mtu as u32),
                None => to.map(|to| to.mtu_now() as u32),
            },
            datagram_mtu: to.map(|to| to.mtu as u32),
            rate: n.path.map(|p| p.rate.to_string()),
            queued: n.queued + outline.queued,
            age_ms: ms(n.age),
            tx_packets: to.map_or(0, |to| to.packets.load(Relaxed)),
            tx_bytes: to.map_or(0, |to| to.bytes.load(Relaxed)),
            last_failure: n.last_failure.map(|f| f.to_string()),
            last_failure_age_ms: n.failed_ago.map(ms),
            retry_in_ms: n.retry_in.map(ms),
        }
    }

    /// `ipoib show connections`, by peer.
    pub fn connection_status(&mut self, now: Instant) -> Vec<ConnectionStatus> {
        self.connections.list(now)
    }

    /// `ipoib show path`, by GID.
    pub fn path_status(&self, now: Instant) -> Vec<PathStatus> {
        let mut list: Vec<_> = self.neighbours.paths(now).collect();
        list.sort_by_key(|p| p.gid);
        list.into_iter()
            .map(|p| PathStatus {
                gid: p.gid.to_string(),
                lid: p.path.map(|p| p.dlid.0),
                sl: p.path.map(|p| p.sl.0),
                mtu: p.path.and_then(|p| p.mtu.bytes()),
                rate: p.path.map(|p| p.rate.to_string()),
                querying: p.querying,
                neighbours: p.neighbours,
                age_ms: p.age.as_millis() as u64,
                last_error: p.last_error.map(|e| e.to_string()),
            })
            .collect()
    }

    /// `ipoib show mcast`, by MGID.
    pub fn group_status(&self) -> Vec<GroupStatus> {
        let list = self.groups.snapshot().into_iter();
        list.map(|g| GroupStatus {
            mgid: g.mgid.to_string(),
            group: g.group,
            mlid: g.mlid.map(|l| l.0),
            state: g.state.to_string(),
            join_state: g.join_state.to_string(),
            users: g.users,
            via: g.via.map(|v| v.to_string()),
            queued: g.queued,
            attempts: g.attempts,
            last_error: g.last_error,
        })
        .collect()
    }

    /// `ipoib show stats`: counters of the data path, the device and the protocols, by name.
    pub fn stats(&self) -> Vec<(String, u64)> {
        let mut list: Vec<(String, u64)> = self
            .plane
            .counters()
            .list()
            .into_iter()
            .map(|(n, v)| (n.to_owned(), v))
            .collect();
        let netdev = self.plane.netdev().counters();
        list.extend([
            ("device_rx_oversize".to_owned(), netdev.rx_oversize),
            ("device_tx_full".to_owned(), netdev.tx_full),
            ("device_tx_down".to_owned(), netdev.tx_down),
            ("device_tx_refused".to_owned(), netdev.tx_refused),
        ]);
        let neighbours = self.neighbours.counters();
        list.extend(named!(
            "neighbour_",
            neighbours,
            requests_sent,
            replies_sent,
            announcements_sent,
            received,
            confirmed,
            address_changed,
            resolution_failed,
            probe_failed,
            path_queries,
            path_failed,
            path_changed,
            conflicts,
            dropped_queue_full,
            unreachable,
            table_full,
            evicted,
            not_learned,
            expired,
            dropped_reply_full,
            dropped_reply_no_path,
            dropped_no_source,
            dropped_own,
            dropped_invalid,
            ignored,
            dropped_link_down
        ));
        let connections = self.connections.counters();
        list.extend(named!(
            "connection_",
            connections,
            opened,
            accepted,
            refused,
            rejected,
            timed_out,
            disconnected,
            failed,
            closed_idle,
            closed_for_room,
            no_room,
            dropped_queue_full,
            dropped_link_down
        ));
        let [own, peers, changing] = self.connections.count();
        list.extend([
            ("connections_own".to_owned(), own),
            ("connections_of_peers".to_owned(), peers),
            ("connections_changing".to_owned(), changing),
        ]);
        let cm = self.connections.cm_counters();
        list.extend(named!(
            "cm_", cm, sent, repeated, received, duplicates, unexpected, malformed, stale, refused
        ));
        let groups = self.groups.counters();
        list.extend(named!(
            "group_",
            groups,
            joins,
            joined,
            refused,
            unanswered,
            leaves,
            late_results,
            dropped_no_broadcast,
            dropped_no_group,
            dropped_queue_full,
            dropped_stale,
            dropped_too_many_groups,
            dropped_not_multicast
        ));
        let sa = self.sa.counters();
        list.extend(named!(
            "sa_",
            sa,
            sent,
            resent,
            responses,
            busy,
            redirected,
            timeouts,
            unmatched,
            overload,
            malformed,
            foreign,
            segments,
            broken_transfers,
            reports,
            repeated_reports
        ));
        list
    }
}
