//! What the demo found, as a table and as JSON.

use datapath::Mode;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub hosts_are: &'static str,
    /// How they sent to each other.
    pub mode: Mode,
    /// Why it is not namespaces.
    pub note: Option<String>,
    pub hosts: Vec<HostRow>,
    pub broadcast_group: String,
    /// From the start of the program until all interfaces were up.
    pub bring_up_ms: f64,
    pub pings: Vec<Ping>,
    pub multicast: Multicast,
    pub tcp: Bulk,
    pub passed: bool,
}

/// A host.
#[derive(Debug, Serialize)]
pub(super) struct HostRow {
    pub name: String,
    pub addresses: [IpAddr; 2],
    pub lid: u16,
    pub gid: String,
    /// Flags, queue pair number and GID, in hexadecimal.
    pub link_address: String,
    pub mtu: Option<u32>,
}

/// Echoes from a host to one address.
#[derive(Debug, Serialize)]
pub(super) struct Ping {
    pub from: String,
    pub to: String,
    pub address: IpAddr,
    /// Round trip of the first, which had to find out link address and path.
    pub first_ms: Option<f64>,
    /// Median round trip of the later ones.
    pub rtt_ms: Option<f64>,
    pub error: Option<String>,
}

/// An echo to all hosts.
#[derive(Debug, Serialize)]
pub(super) struct Multicast {
    pub from: String,
    pub group: IpAddr,
    pub expected: usize,
    pub answers: Vec<Answer>,
    pub error: Option<String>,
}

/// Who answered.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub from: IpAddr,
    pub rtt_ms: f64,
}

/// The TCP transfer.
#[derive(Debug, Serialize)]
pub(super) struct Bulk {
    pub from: String,
    pub to: String,
    pub bytes: usize,
    pub seconds: Option<f64>,
    pub mbit_per_s: Option<f64>,
    /// Equal at both ends.
    pub crc32: Option<String>,
    pub error: Option<String>,
}

/// Milliseconds with three digits behind the point.
pub(super) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl Report {
    /// With `passed` filled in.
    pub(super) fn judged(self) -> Report {
        let passed = self.pings.iter().all(|ping| ping.error.is_none())
            && self.multicast.error.is_none()
            && self.tcp.error.is_none();
        Report { passed, ..self }
    }

    fn rtt(&self, from: &str, to: &str, v6: bool) -> String {
        let ping = self
            .pings
            .iter()
            .find(|ping| ping.from == from && ping.to == to && ping.address.is_ipv6() == v6);
        match ping.and_then(|ping| ping.rtt_ms) {
            Some(ms) => format!("{ms:.3}"),
            None => "FAILED".into(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.hosts.len();
        writeln!(
            f,
            "{count} hosts ({}), each with an IPoIB interface ib0 on one software InfiniBand subnet\n",
            self.hosts_are
        )?;
        let line = |cells: [&str; 7]| {
            let [host, v4, v6, lid, gid, rtt4, rtt6] = cells;
            format!("{host:<5} {v4:<11} {v6:<9} {lid:>4}  {gid:<23} {rtt4:>10} {rtt6:>10}")
        };
        writeln!(
            f,
            "{}",
            line([
                "host",
                "IPv4",
                "IPv6",
                "LID",
                "port GID",
                "ping next",
                "ping next"
            ])
        )?;
        writeln!(f, "{}", line(["", "", "", "", "", "IPv4, ms", "IPv6, ms"]))?;
        for (row, next) in self.hosts.iter().zip(self.hosts.iter().cycle().skip(1)) {
            let [v4, v6] = row.addresses.map(|address| address.to_string());
            let (rtt4, rtt6) = (
                self.rtt(&row.name, &next.name, false),
                self.rtt(&row.name, &next.name, true),
            );
            writeln!(
                f,
                "{}",
                line([
                    &row.name,
                    &v4,
                    &v6,
                    &row.lid.to_string(),
                    &row.gid,
                    &rtt4,
                    &rtt6
                ])
            )?;
        }
        writeln!(
            f,
            "\nhost  link address: flags, queue pair number, GID (what an Ethernet host's MAC address is here)"
        )?;
        for row in &self.hosts {
            writeln!(f, "{:<5} {}", row.name, row.link_address)?;
        }
        let passed = self
            .pings
            .iter()
            .filter(|ping| ping.error.is_none())
            .count();
        let first = self
            .pings
            .iter()
            .filter_map(|ping| ping.first_ms)
            .fold(0.0, f64::max);
        writeln!(f)?;
        writeln!(
            f,
            "ping       {passed} of {} passed; the slowest first one, with address resolution, took {first:.3} ms",
            self.pings.len()
        )?;
        let (group, answered) = (&self.multicast.group, self.multicast.answers.len());
        let slowest = self
            .multicast
            .answers
            .iter()
            .map(|answer| answer.rtt_ms)
            .fold(0.0, f64::max);
        let expected = self.multicast.expected;
        writeln!(
            f,
            "multicast  {} pinged {group}: {answered} of {expected} others answered, the last after {slowest:.3} ms",
            self.multicast.from
        )?;
        match (self.tcp.seconds, self.tcp.mbit_per_s, &self.tcp.crc32) {
            (Some(seconds), Some(rate), Some(crc)) => writeln!(
                f,
                "TCP        {} sent {} MB to {} in {seconds:.2} s ({rate:.0} Mbit/s), CRC-32 {crc} at both ends",
                self.tcp.from,
                self.tcp.bytes >> 20,
                self.tcp.to,
            )?,
            _ => writeln!(f, "TCP        FAILED")?,
        }
        writeln!(
            f,
            "\nWhat happened: the subnet manager found the switch and the hosts by directed-route SMPs and gave them LIDs; each host\n\
             joined the broadcast group {}; ARP and IPv6 neighbour discovery asked over\n\
             multicast for the link address, the SA for the path to its GID; then the packets went {} from\n\
             queue pair to queue pair. All interfaces were up {:.0} ms after the start.",
            self.broadcast_group,
            match self.mode {
                Mode::Datagram => "as unreliable datagrams",
                Mode::Connected => "by reliable connections",
            },
            self.bring_up_ms,
        )?;
        for ping in &self.pings {
            if let Some(error) = &ping.error {
                writeln!(
                    f,
                    "FAILED: ping from {} to {} ({}): {error}",
                    ping.from, ping.to, ping.address
                )?;
            }
        }
        for (what, error) in [
            ("multicast", &self.multicast.error),
            ("TCP", &self.tcp.error),
        ] {
            if let Some(error) = error {
                writeln!(f, "FAILED: {what}: {error}")?;
            }
        }
        writeln!(
            f,
            "{}",
            if self.passed {
                "All passed."
            } else {
                "Not all passed."
            }
        )
    }
}
