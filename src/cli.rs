//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use datapath::Mode;
use fabric::link::udp::Cidr;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use wire::{Guid, LinkRate, PKey, Qpn};

/// IP over InfiniBand in user space, with a software InfiniBand subnet.
#[derive(Debug, Parser)]
#[command(name = "ipoib", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to log: error, warn, info, debug, trace, or a filter such as `ipoib=debug,fabric=info`
    #[arg(long, global = true, env = "IPOIB_LOG", default_value = "warn")]
    pub log: String,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show it all at work: a subnet and hosts in network namespaces that talk IP over it
    Demo(Demo),
    /// Run a software InfiniBand subnet (switch, subnet manager, SA) that hosts connect to by UDP
    Fabric(FabricArgs),
    /// Bring up an IPoIB interface on a fabric
    Up(Up),
    /// Look into a running interface or fabric
    Show(Show),
    /// Change a setting of a running interface
    Set(Set),
    /// Write what crosses the link of a running interface or fabric into a file that Wireshark opens
    Capture(Capture),
    /// Print the frames of a capture file, a line each, and check that each is understood to the last bit
    Decode(Decode),
    /// Find out link address, GID, LID and path of an IP address
    Resolve(Resolve),
    /// Ping over a fabric from an IP stack of its own: no privileges, no network device
    Ping(Ping),
    /// Break something on a running fabric, and mend it: links, subnet manager, SA, P_Keys, LIDs, prefix
    Fault(Fault),
    /// Run one of the infiniband-diags (ibnetdiscover, saquery, perfquery, ...) at a node of a running fabric
    Diag(Diag),
}

/// `ipoib demo`
#[derive(Debug, Args)]
pub struct Demo {
    /// Hosts on the subnet
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=32))]
    pub hosts: u8,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// How the hosts send to each other: datagram or connected
    #[arg(long, default_value_t)]
    pub mode: Mode,
    /// Use smoltcp stacks inside the process even where network namespaces are to be had
    #[arg(long)]
    pub in_process: bool,
}

/// `ipoib fabric`
#[derive(Debug, Args)]
pub struct FabricArgs {
    /// Where hosts connect to
    #[arg(long, value_name = "udp://ADDR:PORT")]
    pub listen: Option<UdpUrl>,
    /// Take hosts from these addresses too, besides loopback; may be repeated
    #[arg(long, value_name = "CIDR")]
    pub allow: Vec<Cidr>,
    /// Who manages the subnet
    #[arg(long, value_enum, default_value_t)]
    pub sm: SmChoice,
    /// Serve programs on libumad2sim by UDP too: control at this port, data at those that follow
    #[arg(long, value_name = "udp://ADDR:PORT")]
    pub umad: Option<UdpUrl>,
    /// Nodes and cables: a file as ibnetdiscover writes it, or fat-tree:SPINES,LEAVES,HOSTS_PER_LEAF; without it one switch
    #[arg(long, value_name = "FILE|SHAPE")]
    pub topology: Option<String>,
    /// Settings (TOML); options here go before those in the file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Partitions in the syntax of OpenSM's partitions.conf; SIGHUP reads them again
    #[arg(long, value_name = "FILE")]
    pub partitions: Option<PathBuf>,
    /// Path of the control socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Who manages the subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SmChoice {
    /// A subnet manager that somebody else starts, on a node of the fabric or behind one of its links
    None,
    /// The one in this program
    #[default]
    Embedded,
    /// Debian's OpenSM, started and watched over by this program
    Opensm,
}

/// `ipoib diag`
#[derive(Debug, Args)]
pub struct Diag {
    /// The node to be on; without it, the first one
    #[arg(long, value_name = "NODE")]
    pub on: Option<String>,
    /// The fabric, as `ipoib show` lists them; needed where several run
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// Path of its control socket
    #[arg(long, value_name = "PATH", conflicts_with = "fabric")]
    pub control: Option<PathBuf>,
    /// The program, such as ibnetdiscover
    pub tool: String,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<std::ffi::OsString>,
}

/// `ipoib up`
#[derive(Debug, Args)]
pub struct Up {
    /// Name of the network interface, such as ib0
    pub name: String,
    /// The fabric to connect to
    #[arg(long, value_name = "udp://ADDR:PORT")]
    pub fabric: Option<UdpUrl>,
    /// Network namespace for the interface: a name, a path, or a process id
    #[arg(long, value_name = "NS")]
    pub netns: Option<String>,
    /// Address with prefix length for the interface; may be repeated
    #[arg(long, value_name = "CIDR")]
    pub address: Vec<InterfaceAddress>,
    /// Port GUID, 16 hexadecimal digits
    #[arg(long, value_name = "GUID", value_parser = parse_guid)]
    pub guid: Option<Guid>,
    /// Queue pair number
    #[arg(long, value_name = "N", value_parser = parse_qpn)]
    pub qpn: Option<Qpn>,
    /// Partition, such as 0x8001
    #[arg(long, value_name = "P_KEY", value_parser = parse_pkey)]
    pub pkey: Option<PKey>,
    /// Largest IP packet, bytes; never more than the partition's broadcast group allows, or 65520 in connected mode
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(72..=65520))]
    pub mtu: Option<u32>,
    /// How unicast packets go: datagram, or connected (over reliable connections to the neighbours that take them, RFC 4755)
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Neither accept nor offer connections, like a kernel without connected mode
    #[arg(long)]
    pub no_connections: bool,
    /// How often a packet of a connection is sent again without progress before the connection is given up; 7 if nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub retry_count: Option<u8>,
    /// The same where the receiver was not ready; 7, which is what it is if nothing is said: for ever
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub rnr_retry: Option<u8>,
    /// Width and speed of the port, from 1xSDR to 12xXDR; 4xEDR if nothing is said
    #[arg(long, value_name = "RATE")]
    pub link_rate: Option<LinkRate>,
    /// Settings (TOML); options here go before those in the file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Path of the control socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Which running program a command talks to.
#[derive(Clone, Debug, Default, Args)]
pub struct Target {
    /// The interface or fabric to ask, as `ipoib show` lists them; needed where several run
    #[arg(long, value_name = "NAME")]
    pub on: Option<String>,
    /// Path of its control socket
    #[arg(long, value_name = "PATH", conflicts_with = "on")]
    pub control: Option<PathBuf>,
}

/// `ipoib set`
#[derive(Debug, Args)]
pub struct Set {
    /// The interface, as `ipoib show` lists it; needed where several run
    #[arg(conflicts_with_all = ["on", "control"])]
    pub name: Option<String>,
    /// The same by an option
    #[command(flatten)]
    pub target: Target,
    /// What to change
    #[command(subcommand)]
    pub what: SetWhat,
}

/// What to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SetWhat {
    /// How unicast packets go
    Mode {
        /// datagram or connected
        mode: Mode,
    },
}

/// `ipoib show`
#[derive(Debug, Args)]
pub struct Show {
    /// What to show; without it, what runs and how it is
    pub what: Option<ShowWhat>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Whom to ask
    #[command(flatten)]
    pub target: Target,
}

/// Topics of `ipoib show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShowWhat {
    /// State, addresses, MTU
    Link,
    /// Neighbours
    Neigh,
    /// Paths by GID
    Path,
    /// Multicast groups
    Mcast,
    /// Counters, drops with their reasons: those that are not 0; all of them with --json
    Stats,
    /// Nodes, ports, groups and members of a fabric
    Fabric,
}

/// `ipoib capture`
#[derive(Debug, Args)]
pub struct Capture {
    /// The file to write (pcap, link type ERF), or - for standard output
    pub file: PathBuf,
    /// Stop after this many frames
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Whom to capture from
    #[command(flatten)]
    pub target: Target,
}

/// `ipoib decode`
#[derive(Debug, Args)]
pub struct Decode {
    /// A pcap file of link type 197 (ERF, InfiniBand) or 242 (IPoIB)
    pub file: PathBuf,
    /// A JSON object per frame
    #[arg(long)]
    pub json: bool,
}

/// `ipoib resolve`
#[derive(Debug, Args)]
pub struct Resolve {
    /// Address on the subnet of the interface
    pub ip: IpAddr,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Which interface
    #[command(flatten)]
    pub target: Target,
}

/// `ipoib ping`
#[derive(Debug, Args)]
pub struct Ping {
    /// Address to ping
    pub ip: IpAddr,
    /// The fabric to connect to
    #[arg(long, value_name = "udp://ADDR:PORT")]
    pub fabric: UdpUrl,
    /// Own address with prefix length; without it one is made up in the target's /24 or /64
    #[arg(long, value_name = "CIDR")]
    pub address: Option<InterfaceAddress>,
    /// Stop after this many
    #[arg(short, long, default_value_t = 4)]
    pub count: u32,
    /// Bytes of data in each; they go as datagrams
    #[arg(short, long, default_value_t = 56, value_parser = clap::value_parser!(u16).range(0..=2016))]
    pub size: u16,
    /// Milliseconds between them
    #[arg(short, long, default_value_t = 1000)]
    pub interval: u64,
    /// Partition, such as 0x8001
    #[arg(long, value_name = "P_KEY", value_parser = parse_pkey)]
    pub pkey: Option<PKey>,
}

/// `ipoib fault`
#[derive(Debug, Args)]
pub struct Fault {
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Which fabric
    #[command(flatten)]
    pub target: Target,
    /// What to break
    #[command(subcommand)]
    pub what: FaultWhat,
}

/// What to break, or mend.
#[derive(Clone, Debug, PartialEq, Subcommand, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultWhat {
    /// The link of a port, in both directions
    Link(LinkFault),
    /// The embedded subnet manager
    Sm {
        /// stop: at once and without a word; start: with the LIDs that it gave before; handover: a standby gets the subnet and keeps it, as
        /// long as it lives; takeover: it gives it back
        action: SmAction,
    },
    /// Answers of the embedded manager's SA
    Sa {
        /// How they are broken
        #[command(subcommand)]
        fault: SaFaultArgs,
    },
    /// The P_Key table of a port, whatever the partitions say
    Pkey {
        /// Name or GUID
        node: String,
        /// Of a channel adapter with several
        #[arg(long)]
        port: Option<u8>,
        /// The keys in their order, such as 0xffff 0x8001; without any, the partitions decide again
        #[arg(value_name = "KEY", value_parser = |s: &str| parse_pkey(s).map(|key| key.0))]
        keys: Vec<u16>,
    },
    /// Give a port another LID
    Lid {
        /// Name or GUID
        node: String,
        /// From 1 to 49151
        lid: u16,
        /// Of a channel adapter with several
        #[arg(long)]
        port: Option<u8>,
    },
    /// Give the subnet another GID prefix
    Prefix {
        /// Such as fec0:0:0:1:: or 0xfec0000000000001
        #[arg(value_parser = parse_prefix)]
        prefix: u64,
    },
    /// What is broken now
    List,
}

/// `ipoib fault link`
#[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize)]
pub struct LinkFault {
    /// Name or GUID of a node, or where a host comes from (ADDR:PORT)
    pub node: String,
    /// Number of the port
    pub port: u8,
    /// down, up; clear: up and no more faults
    pub action: Option<LinkAction>,
    /// Probability that a packet is lost: 0.05 or 5%
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub loss: Option<f64>,
    /// Probability that it arrives twice
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub duplicate: Option<f64>,
    /// Probability that the next one overtakes it
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub reorder: Option<f64>,
    /// Probability that it arrives with a wrong ICRC
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub corrupt: Option<f64>,
    /// All arrive so many milliseconds later
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(..=60_000))]
    pub delay: Option<u32>,
    /// Messages of the communication manager that are lost, and nothing else
    #[arg(long, value_name = "MESSAGE")]
    pub lose: Option<CmKind>,
    /// Of those, so many in both directions together; without it, all
    #[arg(long, value_name = "N", requires = "lose", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// The same seed and packets, the same faults
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// A message of the communication manager (IBA 12.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CmKind {
    /// Request for a connection
    Req,
    /// It takes longer
    Mra,
    /// Refusal
    Rej,
    /// Consent to a request
    Rep,
    /// Ready to use: the answer to that
    Rtu,
    /// Request to end a connection
    Dreq,
    /// Consent to that
    Drep,
}

/// What becomes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkAction {
    /// Take it down
    Down,
    /// Let it come up
    Up,
    /// End all its faults
    Clear,
}

/// What becomes of the subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmAction {
    /// End it
    Stop,
    /// Start it
    Start,
    /// Give the subnet to a standby
    Handover,
    /// Take it back
    Takeover,
}

/// What becomes of requests to the SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaFaultArgs {
    /// Do not answer
    Drop {
        /// So many requests; without it, all
        #[arg(long)]
        count: Option<u32>,
    },
    /// Answer later
    Delay {
        /// Milliseconds
        #[arg(value_parser = clap::value_parser!(u32).range(..=60_000))]
        ms: u32,
        /// So many requests; without it, all
        #[arg(long)]
        count: Option<u32>,
    },
    /// Refuse
    Status {
        /// Status of the answers, such as 0x0100 (no resources) or 0x0200 (invalid request)
        #[arg(value_parser = parse_status)]
        code: u16,
        /// So many requests; without it, all
        #[arg(long)]
        count: Option<u32>,
    },
    /// Answer as usual
    Clear,
}

/// `udp://ADDR:PORT`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpUrl(pub SocketAddr);

impl FromStr for UdpUrl {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let address = s.strip_prefix("udp://").ok_or_else(|| {
            format!("{s:?} is not of the form udp://ADDR:PORT, such as udp://127.0.0.1:7700")
        })?;
        address.parse().map(UdpUrl).map_err(|_| {
            format!("{address:?} is not an address and port; write the address in numbers, such as 127.0.0.1:7700 or [::1]:7700")
        })
    }
}

impl std::fmt::Display for UdpUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "udp://{}", self.0)
    }
}

/// An address with its prefix length: `10.77.0.1/24`, `fd77::1/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the on-link prefix.
    pub prefix: u8,
}

impl FromStr for InterfaceAddress {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = |what: &str| {
            format!(
                "{s:?} {what}; write address and prefix length, such as 10.77.0.1/24 or fd77::1/64"
            )
        };
        let (ip, prefix) = s
            .split_once('/')
            .ok_or_else(|| bad("has no prefix length"))?;
        let ip: IpAddr = ip.parse().map_err(|_| bad("is not an IP address"))?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        match prefix.parse() {
            Ok(prefix) if prefix <= longest => Ok(InterfaceAddress { ip, prefix }),
            _ => Err(bad("has a bad prefix length")),
        }
    }
}

impl std::fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

fn hex(s: &str) -> Option<u64> {
    let digits = s
        .strip_prefix("0x")
        .or_else(|| s.strip_prefix("0X"))
        .unwrap_or(s);
    let digits = digits.replace(':', "");
    (!digits.starts_with(['+', '-'])).then(|| u64::from_str_radix(&digits, 16).ok())?
}

/// A GUID as sysfs or ibstat print it: `0x0002c90300a00091`, `0002:c903:00a0:0091`.
pub fn parse_guid(s: &str) -> Result<Guid, String> {
    match hex(s) {
        Some(0) | None => Err(format!(
            "{s:?} is not a GUID: up to 16 hexadecimal digits, not all zero"
        )),
        Some(guid) => Ok(Guid(guid)),
    }
}

/// A P_Key in hexadecimal, with or without the full-member bit.
pub fn parse_pkey(s: &str) -> Result<PKey, String> {
    match hex(s).and_then(|n| u16::try_from(n).ok()) {
        Some(key) if key & 0x7fff != 0 => Ok(PKey(key)),
        _ => Err(format!(
            "{s:?} is not a P_Key: hexadecimal 0x0001 to 0xffff, but not 0x8000"
        )),
    }
}

/// A probability: a number from 0 to 1, or in per cent.
pub fn parse_probability(s: &str) -> Result<f64, String> {
    let p = match s.strip_suffix('%') {
        Some(s) => s.parse().map(|p: f64| p / 100.0),
        None => s.parse(),
    };
    p.ok()
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| format!("{s:?} is not a probability from 0 to 1, or from 0% to 100%"))
}

/// The upper half of a GID, as an IPv6 prefix or in hexadecimal.
pub fn parse_prefix(s: &str) -> Result<u64, String> {
    let prefix = match s.parse::<std::net::Ipv6Addr>() {
        Ok(ip) => {
            let [prefix, rest] = [64, 0].map(|shift| (ip.to_bits() >> shift) as u64);
            (rest == 0).then_some(prefix)
        }
        // A few digits are no prefix: `fe80` is meant to be fe80::.
        Err(_) => hex(s).filter(|prefix| prefix >> 60 != 0),
    };
    // Not multicast (IBA 4.1.1).
    prefix
        .filter(|prefix| *prefix != 0 && prefix >> 56 != 0xff)
        .ok_or_else(|| {
            format!("{s:?} is not a GID prefix, such as fec0:0:0:1:: or 0xfec0000000000001")
        })
}

/// Status of a MAD, in hexadecimal.
pub fn parse_status(s: &str) -> Result<u16, String> {
    let status = hex(s).and_then(|n| u16::try_from(n).ok());
    status
        .filter(|status| *status != 0)
        .ok_or_else(|| format!("{s:?} is not a status: hexadecimal, not 0"))
}

/// A queue pair number, decimal or 0x-hexadecimal.
pub fn parse_qpn(s: &str) -> Result<Qpn, String> {
    let number = if s.starts_with("0x") {
        hex(s)
    } else {
        s.parse().ok()
    };
    match number {
        Some(n @ 2..=0xff_fffe) => Ok(Qpn::new(n as u32)),
        _ => Err(format!(
            "{s:?} is not a queue pair number from 2 to 0xfffffe"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn identifiers() {
        assert_eq!(
            parse_guid("0002:c903:00a0:0091"),
            Ok(Guid(0x2_c903_00a0_0091))
        );
        assert!(
            parse_guid("0").is_err() && parse_guid("xyz").is_err() && parse_guid("+1").is_err()
        );
        assert_eq!(parse_pkey("0x8001"), Ok(PKey(0x8001)));
        assert!(parse_pkey("0x8000").is_err() && parse_pkey("10000").is_err());
        assert_eq!(parse_qpn("0x48"), Ok(Qpn(0x48)));
        assert_eq!(parse_qpn("72"), Ok(Qpn(72)));
        assert!(parse_qpn("1").is_err() && parse_qpn("0xffffff").is_err());
        assert_eq!(parse_probability("2.5%"), Ok(0.025));
        assert_eq!(parse_probability("1"), Ok(1.0));
        for bad in ["1.1", "-0.1", "101%", "NaN", "x"] {
            assert!(parse_probability(bad).is_err(), "{bad}");
        }
        let prefix = Ok(0xfec0_0000_0000_0001);
        assert_eq!(parse_prefix("fec0:0:0:1::"), prefix);
        assert_eq!(parse_prefix("0xfec0000000000001"), prefix);
        for bad in ["fec0::1", "0", "ff12::", "x"] {
            assert!(parse_prefix(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_status("0x0300"), Ok(0x300));
        assert!(parse_status("0").is_err() && parse_status("10000").is_err());
        assert!(
            "127.0.0.1:1".parse::<UdpUrl>().is_err()
                && "udp://localhost:1".parse::<UdpUrl>().is_err()
        );
        assert_eq!(
            "udp://[::1]:7".parse::<UdpUrl>().map(|u| u.to_string()),
            Ok("udp://[::1]:7".into())
        );
    }
}
