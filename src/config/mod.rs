//! Configuration files (TOML). Options of the command line go before them.

mod values;

use crate::cli::{InterfaceAddress, UdpUrl, parse_guid};
use anyhow::{Context, bail};
use datapath::{ConnectedConfig, Mode};
use fabric::link::udp::Cidr;
use fabric::sm::{
    GroupParams, MKey, Membership, Partition, RoutingEngine, SmConfig, Who, partitions,
};
use serde::{Deserialize, de};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use verbs::AckTimeout;
use wire::{Guid, LinkRate, MtuCode, PKey, QKey, Qpn, RateCode, ServiceLevel};

/// `ipoib up --config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpFile {
    /// As `--fabric`.
    #[serde(deserialize_with = "values::optional")]
    pub fabric: Option<UdpUrl>,
    /// As `--netns`.
    pub netns: Option<String>,
    /// As `--address`.
    #[serde(deserialize_with = "values::list")]
    pub address: Vec<InterfaceAddress>,
    /// As `--guid`.
    #[serde(deserialize_with = "values::optional_guid")]
    pub guid: Option<Guid>,
    /// As `--qpn`.
    #[serde(deserialize_with = "values::optional_qpn")]
    pub qpn: Option<Qpn>,
    /// As `--pkey`.
    #[serde(deserialize_with = "values::optional_pkey")]
    pub pkey: Option<PKey>,
    /// As `--mtu`.
    #[serde(deserialize_with = "values::mtu")]
    pub mtu: Option<u32>,
    /// As `--link-rate`.
    #[serde(deserialize_with = "values::optional")]
    pub link_rate: Option<LinkRate>,
    /// As `--mode`.
    pub mode: Option<Mode>,
    /// Settings of connections.
    pub connected: ConnectedFile,
}

/// Settings of connections; see [`ConnectedConfig`], which has the defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: [connected], and its settings below"
)]
pub struct ConnectedFile {
    /// False: as `--no-connections`.
    pub offer: Option<bool>,
    /// True: the service IDs of RFC 4755 alone, which Linux does not understand.
    pub rfc_only: bool,
    /// As `--retry-count`.
    #[serde(deserialize_with = "values::retries")]
    pub retry_count: Option<u8>,
    /// As `--rnr-retry`.
    #[serde(deserialize_with = "values::retries")]
    pub rnr_retry: Option<u8>,
    /// How long to wait for an acknowledgement: 4.096 us * 2^n, n from 1 to 31.
    #[serde(deserialize_with = "values::ack_timeout")]
    pub ack_timeout: Option<u8>,
    /// Connections at once.
    #[serde(deserialize_with = "values::connections")]
    pub max_connections: Option<u32>,
    /// Seconds after which an unused connection is closed.
    #[serde(deserialize_with = "values::idle")]
    pub idle: Option<u64>,
}

impl ConnectedFile {
    /// The settings, with the defaults for those that are not given.
    pub fn settings(&self) -> ConnectedConfig {
        let defaults = ConnectedConfig::default();
        let max_connections = self.max_connections.map(|n| n as usize);
        ConnectedConfig {
            offer: self.offer.unwrap_or(defaults.offer),
            rfc_only: self.rfc_only,
            retry_count: self.retry_count.unwrap_or(defaults.retry_count),
            rnr_retry: self.rnr_retry.unwrap_or(defaults.rnr_retry),
            ack_timeout: self.ack_timeout.map_or(defaults.ack_timeout, AckTimeout),
            max_connections: max_connections.unwrap_or(defaults.max_connections),
            idle: self.idle.map_or(defaults.idle, Duration::from_secs),
            ..defaults
        }
    }
}

/// `ipoib fabric --config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FabricFile {
    /// As `--listen`.
    #[serde(deserialize_with = "values::optional")]
    pub listen: Option<UdpUrl>,
    /// As `--allow`.
    #[serde(deserialize_with = "values::list")]
    pub allow: Vec<Cidr>,
    /// As `--topology`; `ports` and `guid` are those of the one switch without it.
    pub topology: Option<String>,
    /// Ports of the switch, 1 to 254.
    #[serde(deserialize_with = "values::ports")]
    pub ports: u8,
    /// GUID of the switch.
    #[serde(deserialize_with = "values::optional_guid")]
    pub guid: Option<Guid>,
    /// Priority of the subnet manager, 0 to 15.
    #[serde(deserialize_with = "values::priority")]
    pub sm_priority: u8,
    /// [`SmConfig::sm_key`].
    #[serde(deserialize_with = "values::key")]
    pub sm_key: u64,
    /// Seconds between light sweeps.
    #[serde(deserialize_with = "values::interval")]
    pub sweep_interval: u64,
    /// Where LIDs are kept over a restart.
    pub lid_file: Option<PathBuf>,
    /// As `--partitions`, instead of `partition`.
    pub partitions: Option<PathBuf>,
    /// Partitions; without any there is the default one with all ports as full members.
    pub partition: Vec<PartitionTable>,
    /// How ways are chosen.
    pub routing: RoutingName,
    /// Node GUIDs of the switches at the top for `updn`; without any they are found.
    pub roots: Vec<String>,
    /// Each HCA port gets 2^lmc LIDs, 0 to 3.
    #[serde(deserialize_with = "values::up_to_3")]
    pub lmc: u8,
    /// Key that SMPs must have; 0: none. [`MKey`] tells about it and the next two.
    #[serde(deserialize_with = "values::key")]
    pub m_key: u64,
    /// 0 to 3.
    #[serde(deserialize_with = "values::up_to_3")]
    pub m_key_protect: u8,
    /// Seconds.
    #[serde(deserialize_with = "values::lease")]
    pub m_key_lease: u16,
}

/// `routing`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum RoutingName {
    /// The least number of hops.
    #[default]
    MinHop,
    /// Up/down: no deadlocks.
    Updn,
}

impl Default for FabricFile {
    fn default() -> Self {
        FabricFile {
            listen: None,
            allow: Vec::new(),
            topology: None,
            ports: 128,
            guid: None,
            sm_priority: 0,
            sm_key: 1,
            sweep_interval: 10,
            lid_file: None,
            partitions: None,
            partition: Vec::new(),
            routing: RoutingName::MinHop,
            roots: Vec::new(),
            lmc: 0,
            m_key: 0,
            m_key_protect: 0,
            m_key_lease: 0,
        }
    }
}

/// One `[[partition]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionTable {
    #[serde(default)]
    name: String,
    #[serde(deserialize_with = "values::pkey")]
    pkey: PKey,
    /// Has a broadcast group.
    #[serde(default = "yes")]
    ipoib: bool,
    /// Bytes: 256 to 4096.
    #[serde(default = "mtu", deserialize_with = "values::packet")]
    mtu: u32,
    /// Gbit/s.
    #[serde(default = "rate")]
    rate: f64,
    #[serde(default, deserialize_with = "values::up_to_15")]
    sl: u8,
    #[serde(default = "scope", deserialize_with = "values::up_to_15")]
    scope: u8,
    #[serde(default = "q_key", deserialize_with = "values::q_key")]
    q_key: u32,
    /// Membership of ports that are not listed.
    default: Option<MembershipName>,
    /// By port GUID.
    #[serde(default)]
    members: BTreeMap<String, MembershipName>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MembershipName {
    Full,
    Limited,
    None,
}

impl MembershipName {
    fn membership(self) -> Option<Membership> {
        match self {
            MembershipName::Full => Some(Membership::Full),
            MembershipName::Limited => Some(Membership::Limited),
            MembershipName::None => None,
        }
    }
}

fn yes() -> bool {
    true
}
fn mtu() -> u32 {
    2048
}
fn rate() -> f64 {
    10.0
}
fn scope() -> u8 {
    2
}
fn q_key() -> u32 {
    0x0b1b
}

impl PartitionTable {
    fn partition(&self) -> anyhow::Result<Partition> {
        let mtu = MtuCode::from_bytes(self.mtu).with_context(|| {
            format!(
                "mtu = {}: it must be 256, 512, 1024, 2048 or 4096",
                self.mtu
            )
        })?;
        let rate = (2..=24)
            .map(RateCode)
            .find(|code| code.mbps() == Some((self.rate * 1000.0).round() as u32));
        let rate = rate.with_context(|| {
            format!(
                "rate = {}: not a rate of InfiniBand in Gbit/s, such as 10, 40, 56 or 100",
                self.rate
            )
        })?;
        let params = GroupParams {
            mtu,
            rate,
            sl: ServiceLevel(self.sl),
            q_key: QKey(self.q_key),
            scope: self.scope,
            ..GroupParams::default()
        };
        let mut members = Vec::new();
        for (guid, membership) in &self.members {
            let guid = parse_guid(guid).map_err(anyhow::Error::msg)?;
            match membership.membership() {
                Some(membership) => members.push((guid, membership)),
                None => bail!("member {guid}: full or limited, or leave it out"),
            }
        }
        let mut partition =
            Partition::of(&self.name, self.pkey, members, self.ipoib.then_some(params));
        // Without a list a partition is everybody's.
        let everybody = self.members.is_empty().then_some(MembershipName::Full);
        let default = self.default.or(everybody);
        if let Some(membership) = default.and_then(MembershipName::membership) {
            partition.rules.insert(0, (Who::All, membership));
        }
        Ok(partition)
    }
}

impl FabricFile {
    /// The subnet manager's part.
    ///
    /// # Errors
    /// A value that InfiniBand does not have.
    pub fn sm_config(&self) -> anyhow::Result<SmConfig> {
        let roots = self.roots.iter().map(|guid| parse_guid(guid));
        let roots: Vec<Guid> = roots
            .collect::<Result<_, _>>()
            .map_err(anyhow::Error::msg)?;
        if self.routing == RoutingName::MinHop && !roots.is_empty() {
            bail!("roots are for routing = \"updn\"");
        }
        let mut config = SmConfig {
            sm_priority: self.sm_priority,
            sm_key: self.sm_key,
            sweep_interval: Duration::from_secs(self.sweep_interval),
            routing: match self.routing {
                RoutingName::MinHop => RoutingEngine::MinHop,
                RoutingName::Updn => RoutingEngine::UpDown { roots },
            },
            lmc: self.lmc,
            m_key: MKey {
                key: self.m_key,
                protect: self.m_key_protect,
                lease: self.m_key_lease,
            },
            ..SmConfig::default()
        };
        if let Some(path) = &self.partitions {
            if !self.partition.is_empty() {
                bail!("partitions come from a file or from [[partition]], not from both");
            }
            config.partitions = read_partitions(path)?;
        }
        if !self.partition.is_empty() {
            config.partitions = Vec::new();
            for (index, table) in self.partition.iter().enumerate() {
                let partition = table
                    .partition()
                    .with_context(|| format!("partition {} ({})", index + 1, table.pkey))?;
                if config
                    .partitions
                    .iter()
                    .any(|other| other.pkey.base() == partition.pkey.base())
                {
                    bail!(
                        "partition {} ({}): there is another one with this P_Key",
                        index + 1,
                        table.pkey
                    );
                }
                config.partitions.push(partition);
            }
        }
        Ok(config)
    }
}

/// Reads a partition file in OpenSM's syntax.
///
/// # Errors
/// Not readable; what is wrong with it, with the line.
pub fn read_partitions(path: &Path) -> anyhow::Result<Vec<Partition>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the partitions {}", path.display()))?;
    partitions::parse(&text).map_err(|error| anyhow::anyhow!("{}, {error}", path.display()))
}

/// Reads a file; its errors name file, line and column.
///
/// # Errors
/// Not there, not readable, not TOML, an unknown key, a value of the wrong kind.
pub fn read<T: de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration {}", path.display()))?;
    toml::from_str(&text).map_err(|error| {
        let line = error
            .span()
            .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let place = line.map_or(String::new(), |line| format!(", line {line}"));
        anyhow::anyhow!("{}{place}: {}", path.display(), error.message())
    })
}

#[cfg(test)]
mod tests;
