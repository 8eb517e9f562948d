//! `ipoib fault`: what may be broken.

use super::{Numbers, Target, parse_pkey, parse_prefix, parse_probability, parse_status};
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// Of a node.
const PORT: Numbers = Numbers::new(0, 255, "number of a port", 1);
const LID: Numbers = Numbers::new(1, 0xbfff, "unicast LID", 77);
const DELAY: Numbers = Numbers::new(0, 60_000, "milliseconds", 20);
const REQUESTS: Numbers = Numbers::new(1, u32::MAX as u64, "requests", 5);

/// `ipoib fault`
#[derive(Debug, Args)]
pub struct Fault {
    /// As JSON
    #[arg(long, global = true)]
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
        #[arg(long, value_parser = PORT.parser::<u8>())]
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
        #[arg(value_parser = LID.parser::<u16>())]
        lid: u16,
        /// Of a channel adapter with several
        #[arg(long, value_parser = PORT.parser::<u8>())]
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
    #[arg(value_parser = PORT.parser::<u8>())]
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
    #[arg(long, value_name = "MS", value_parser = DELAY.parser::<u32>())]
    pub delay: Option<u32>,
    /// Messages of the communication manager that are lost, and nothing else
    #[arg(long, value_name = "MESSAGE")]
    pub lose: Option<CmKind>,
    /// Of those, so many in both directions together; without it, all
    #[arg(long, value_name = "N", requires = "lose", value_parser = Numbers::new(1, u32::MAX as u64, "messages", 1).parser::<u32>())]
    pub count: Option<u32>,
    /// The same seed and packets, the same faults
    #[arg(long, value_name = "N", value_parser = Numbers::new(0, u64::MAX, "seed", 7).parser::<u64>())]
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
        #[arg(long, value_parser = REQUESTS.parser::<u32>())]
        count: Option<u32>,
    },
    /// Answer later
    Delay {
        /// Milliseconds
        #[arg(value_parser = DELAY.parser::<u32>())]
        ms: u32,
        /// So many requests; without it, all
        #[arg(long, value_parser = REQUESTS.parser::<u32>())]
        count: Option<u32>,
    },
    /// Refuse
    Status {
        /// Status of the answers, such as 0x0100 (no resources) or 0x0200 (invalid request)
        #[arg(value_parser = parse_status)]
        code: u16,
        /// So many requests; without it, all
        #[arg(long, value_parser = REQUESTS.parser::<u32>())]
        count: Option<u32>,
    },
    /// Answer as usual
    Clear,
}
