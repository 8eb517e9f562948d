//! The command line.

mod fault;
mod values;

pub use fault::{CmKind, Fault, FaultWhat, LinkAction, LinkFault, SaFaultArgs, SmAction};
pub use values::{
    InterfaceAddress, Numbers, UdpUrl, parse_guid, parse_pkey, parse_prefix, parse_probability,
    parse_qpn, parse_status,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use datapath::Mode;
use fabric::link::udp::Cidr;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
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
    #[arg(long, default_value_t = 2, value_parser = Numbers::new(2, 32, "hosts", 3).parser::<u8>())]
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
    #[arg(long, value_name = "N", value_parser = Numbers::MTU.parser::<u32>())]
    pub mtu: Option<u32>,
    /// How unicast packets go: datagram, or connected (over reliable connections to the neighbours that take them, RFC 4755)
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Neither accept nor offer connections, like a kernel without connected mode
    #[arg(long)]
    pub no_connections: bool,
    /// How often a packet of a connection is sent again without progress before the connection is given up; 7 if nothing is said
    #[arg(long, value_name = "N", value_parser = Numbers::RETRIES.parser::<u8>())]
    pub retry_count: Option<u8>,
    /// The same where the receiver was not ready; 7, which is what it is if nothing is said: until the connection is given up, after 30 s without progress
    #[arg(long, value_name = "N", value_parser = Numbers::RETRIES.parser::<u8>())]
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
    #[arg(long, value_name = "NAME", global = true)]
    pub on: Option<String>,
    /// Path of its control socket
    #[arg(long, value_name = "PATH", conflicts_with = "on", global = true)]
    pub control: Option<PathBuf>,
}

/// `ipoib set`
#[derive(Debug, Args)]
pub struct Set {
    /// The interface, as `ipoib show` lists it; needed where several run
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
    /// Neighbours: where they are, how packets go to them
    Neigh,
    /// Connections of connected mode, own ones and those of peers: with whom, which way, and what they carried
    #[value(alias = "conn")]
    Connections,
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
    #[arg(long, value_name = "N", value_parser = Numbers::new(1, u64::MAX, "frames", 100).parser::<u64>())]
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
    #[arg(short, long, default_value_t = 4, value_parser = Numbers::new(1, u32::MAX as u64, "echo requests", 4).parser::<u32>())]
    pub count: u32,
    /// Bytes of data in each
    #[arg(short, long, default_value_t = 56, value_parser = Numbers::new(0, 65_492, "bytes", 56).parser::<u16>())]
    pub size: u16,
    /// How they go: datagram, or connected (by a connection, where the target takes one); connected without it where the size is beyond 2016 (IPv6: 1996)
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Milliseconds between them
    #[arg(short, long, default_value_t = 1000, value_parser = Numbers::new(0, 3_600_000, "milliseconds", 200).parser::<u64>())]
    pub interval: u64,
    /// Partition, such as 0x8001
    #[arg(long, value_name = "P_KEY", value_parser = parse_pkey)]
    pub pkey: Option<PKey>,
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
    fn whom_to_ask_may_be_said_anywhere() {
        for line in [
            "fault --on f --json list",
            "fault list --on f --json",
            "fault link switch 1 --on f down --json",
            "fault --on f sa drop --json",
            "fault sa drop --on f --json",
        ] {
            let cli = Cli::try_parse_from(["ipoib"].into_iter().chain(line.split(' ')));
            let Ok(Command::Fault(fault)) = cli.map(|cli| cli.command) else {
                panic!("{line}")
            };
            assert_eq!(fault.target.on.as_deref(), Some("f"), "{line}");
            assert!(fault.json, "{line}");
        }
        for (line, right) in [
            ("set ib0 mode connected", true),
            ("set mode connected --on ib0", true),
            ("set --on ib0 mode connected", true),
            ("set ib0 mode", false),
        ] {
            let cli = Cli::try_parse_from(["ipoib"].into_iter().chain(line.split(' ')));
            assert_eq!(cli.is_ok(), right, "{line}");
        }
    }
}
