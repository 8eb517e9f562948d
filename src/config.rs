//! Configuration files (TOML). Options of the command line go before them.

use crate::cli::{InterfaceAddress, UdpUrl, parse_guid, parse_pkey, parse_qpn};
use anyhow::{Context, bail, ensure};
use datapath::{ConnectedConfig, Mode};
use fabric::link::udp::Cidr;
use fabric::sm::{
    GroupParams, MKey, Membership, Partition, RoutingEngine, SmConfig, Who, partitions,
};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use verbs::AckTimeout;
use wire::{Guid, LinkRate, MtuCode, PKey, QKey, Qpn, RateCode, ServiceLevel};

/// `ipoib up --config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpFile {
    /// As `--fabric`.
    #[serde(deserialize_with = "optional")]
    pub fabric: Option<UdpUrl>,
    /// As `--netns`.
    pub netns: Option<String>,
    /// As `--address`.
    #[serde(deserialize_with = "list")]
    pub address: Vec<InterfaceAddress>,
    /// As `--guid`.
    #[serde(deserialize_with = "optional_guid")]
    pub guid: Option<Guid>,
    /// As `--qpn`.
    #[serde(deserialize_with = "optional_qpn")]
    pub qpn: Option<Qpn>,
    /// As `--pkey`.
    #[serde(deserialize_with = "optional_pkey")]
    pub pkey: Option<PKey>,
    /// As `--mtu`.
    pub mtu: Option<u32>,
    /// As `--link-rate`.
    #[serde(deserialize_with = "optional")]
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
    pub retry_count: Option<u8>,
    /// As `--rnr-retry`.
    pub rnr_retry: Option<u8>,
    /// How long to wait for an acknowledgement: 4.096 us * 2^n, n from 1 to 31.
    pub ack_timeout: Option<u8>,
    /// Connections at once.
    pub max_connections: Option<usize>,
    /// Seconds after which an unused connection is closed.
    pub idle: Option<u64>,
}

impl ConnectedFile {
    /// The settings, with the defaults for those that are not given.
    ///
    /// # Errors
    /// A value that cannot be.
    pub fn settings(&self) -> anyhow::Result<ConnectedConfig> {
        let defaults = ConnectedConfig::default();
        let bounded = |name: &str, value: Option<u8>, range: RangeInclusive<u8>, default| {
            let value = value.unwrap_or(default);
            ensure!(
                range.contains(&value),
                "connected.{name} = {value}: it must be from {} to {}",
                range.start(),
                range.end()
            );
            Ok(value)
        };
        let max_connections = self.max_connections.unwrap_or(defaults.max_connections);
        ensure!(
            (1..=65_536).contains(&max_connections),
            "connected.max_connections = {max_connections}: it must be from 1 to 65536"
        );
        let idle = self.idle.unwrap_or(defaults.idle.as_secs());
        ensure!(
            (1..=86_400).contains(&idle),
            "connected.idle = {idle}: it must be from 1 to 86400 seconds"
        );
        Ok(ConnectedConfig {
            offer: self.offer.unwrap_or(defaults.offer),
            rfc_only: self.rfc_only,
            retry_count: bounded("retry_count", self.retry_count, 0..=7, defaults.retry_count)?,
            rnr_retry: bounded("rnr_retry", self.rnr_retry, 0..=7, defaults.rnr_retry)?,
            ack_timeout: AckTimeout(bounded(
                "ack_timeout",
                self.ack_timeout,
                1..=31,
                defaults.ack_timeout.0,
            )?),
            max_connections,
            idle: Duration::from_secs(idle),
            ..defaults
        })
    }
}

/// `ipoib fabric --config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FabricFile {
    /// As `--listen`.
    #[serde(deserialize_with = "optional")]
    pub listen: Option<UdpUrl>,
    /// As `--allow`.
    #[serde(deserialize_with = "list")]
    pub allow: Vec<Cidr>,
    /// As `--topology`; `ports` and `guid` are those of the one switch without it.
    pub topology: Option<String>,
    /// Ports of the switch, 1 to 254.
    pub ports: u8,
    /// GUID of the switch.
    #[serde(deserialize_with = "optional_guid")]
    pub guid: Option<Guid>,
    /// Priority of the subnet manager, 0 to 15.
    pub sm_priority: u8,
    /// [`SmConfig::sm_key`].
    pub sm_key: u64,
    /// Seconds between light sweeps.
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
    pub lmc: u8,
    /// Key that SMPs must have; 0: none. [`MKey`] tells about it and the next two.
    pub m_key: u64,
    /// 0 to 3.
    pub m_key_protect: u8,
    /// Seconds.
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
    #[serde(deserialize_with = "pkey")]
    pkey: PKey,
    /// Has a broadcast group.
    #[serde(default = "yes")]
    ipoib: bool,
    /// Bytes: 256 to 4096.
    #[serde(default = "mtu")]
    mtu: u32,
    /// Gbit/s.
    #[serde(default = "rate")]
    rate: f64,
    #[serde(default)]
    sl: u8,
    #[serde(default = "scope")]
    scope: u8,
    #[serde(default = "q_key")]
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
        if self.sl > 15 || self.scope > 15 {
            bail!(
                "sl = {} and scope = {} must be from 0 to 15",
                self.sl,
                self.scope
            );
        }
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
        if self.sm_priority > 15 {
            bail!(
                "sm_priority = {}: it must be from 0 to 15",
                self.sm_priority
            );
        }
        if self.ports == 0 || self.ports > 254 {
            bail!("ports = {}: a switch has 1 to 254", self.ports);
        }
        if self.sweep_interval == 0 {
            bail!("sweep_interval = 0: it must be at least 1 second");
        }
        if self.lmc > 3 || self.m_key_protect > 3 {
            let (lmc, protect) = (self.lmc, self.m_key_protect);
            bail!("lmc = {lmc} and m_key_protect = {protect} must be from 0 to 3");
        }
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

fn parsed<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(from)?).map_err(de::Error::custom)
}

fn by_from_str<T: FromStr<Err: ToString>>(s: &str) -> Result<T, String> {
    s.parse().map_err(|error: T::Err| error.to_string())
}

fn optional<'de, D: Deserializer<'de>, T: FromStr<Err: ToString>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    parsed(from, by_from_str).map(Some)
}

fn list<'de, D: Deserializer<'de>, T: FromStr<Err: ToString>>(from: D) -> Result<Vec<T>, D::Error> {
    Vec::<String>::deserialize(from)?
        .iter()
        .map(|s| by_from_str(s))
        .collect::<Result<_, _>>()
        .map_err(de::Error::custom)
}

fn optional_guid<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Guid>, D::Error> {
    parsed(from, parse_guid).map(Some)
}

fn optional_qpn<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Qpn>, D::Error> {
    parsed(from, parse_qpn).map(Some)
}

fn optional_pkey<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PKey>, D::Error> {
    parsed(from, parse_pkey).map(Some)
}

fn pkey<'de, D: Deserializer<'de>>(from: D) -> Result<PKey, D::Error> {
    parsed(from, parse_pkey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::sm::EndPort;
    use wire::mad::attr::NodeType;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("test.toml");
        std::fs::write(&path, text).expect("write");
        (dir, path)
    }

    fn keys(partition: &Partition, guid: u64) -> Vec<PKey> {
        let port = EndPort {
            guid: Guid(guid),
            node_type: NodeType::CA,
            own: false,
        };
        partition.keys_of(&port).collect()
    }

    #[test]
    fn partitions_of_a_file_and_routing() {
        let (dir, path) = file("a=0x8001 : 0x5=full;\n\nb=2 : wrong;\n");
        let error = read_partitions(&path).expect_err("invalid").to_string();
        assert!(error.contains("test.toml, line 3: "), "{error}");
        std::fs::write(&path, "a=0x8001,ipoib : 0x5=full;\n").expect("write");
        let toml = format!(
            "partitions = {:?}\nrouting = \"updn\"\nroots = [\"0xa1\"]\nlmc = 1\nm_key = 5\n",
            path.display()
        );
        let config = dir.path().join("fabric.toml");
        std::fs::write(&config, &toml).expect("write");
        let sm = read::<FabricFile>(&config).and_then(|f| f.sm_config());
        let sm = sm.expect("valid");
        assert_eq!(keys(&sm.partitions[0], 5), [PKey(0x8001)]);
        let roots = vec![Guid(0xa1)];
        assert_eq!(sm.routing, RoutingEngine::UpDown { roots });
        assert_eq!((sm.lmc, sm.m_key.key), (1, 5));
        std::fs::write(&config, toml + "[[partition]]\npkey = \"0x8002\"\n").expect("write");
        let both = read::<FabricFile>(&config).and_then(|f| f.sm_config());
        assert!(both.is_err());
    }

    #[test]
    fn a_whole_fabric_file() {
        let (_dir, path) = file(
            "listen = \"udp://127.0.0.1:7700\"\nallow = [\"192.0.2.0/24\"]\nports = 16\n\
             [[partition]]\npkey = \"0x7fff\"\nmtu = 4096\nrate = 100\n\
             [[partition]]\npkey = \"0x8001\"\nq_key = 0xabcd\nmembers = { \"0x100001\" = \"full\", \"0x100005\" = \"limited\" }\n",
        );
        let file: FabricFile = read(&path).expect("valid");
        let sm = file.sm_config().expect("valid");
        assert_eq!(sm.partitions.len(), 2);
        assert_eq!(keys(&sm.partitions[0], 7), [PKey(0xffff)]);
        assert_eq!(
            sm.partitions[0].ipoib.map(|p| (p.mtu, p.rate)),
            Some((MtuCode::MTU_4096, RateCode(16)))
        );
        assert_eq!(keys(&sm.partitions[1], 7), []);
        assert_eq!(keys(&sm.partitions[1], 0x100005), [PKey(0x0001)]);
        assert_eq!(sm.partitions[1].ipoib.map(|p| p.q_key), Some(QKey(0xabcd)));
    }

    #[test]
    fn the_example_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fabric.example.toml");
        let sm = read::<FabricFile>(&path)
            .and_then(|file| file.sm_config())
            .expect("valid");
        assert_eq!(sm.partitions.len(), 2);
    }

    #[test]
    fn errors_name_file_and_line() {
        for (text, line, says) in [
            ("guid = \"0x1\"\nmtu = \"big\"\n", 2, "invalid type"),
            ("\n\nwrong = 1\n", 3, "unknown field"),
            ("address = [\"10.0.0.1\"]\n", 1, "no prefix length"),
            ("pkey = \"0x8000\"\n", 1, "not a P_Key"),
        ] {
            let (_dir, path) = file(text);
            let error = read::<UpFile>(&path).expect_err("invalid").to_string();
            assert!(
                error.contains(&format!("test.toml, line {line}: ")) && error.contains(says),
                "{error}"
            );
        }
        let error = read::<UpFile>(Path::new("/nowhere/at/all"))
            .expect_err("absent")
            .to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn values_that_infiniband_does_not_have() {
        for text in [
            "mtu = 1500",
            "rate = 11.5",
            "sl = 16",
            "members = { \"x\" = \"full\" }",
        ] {
            let (_dir, path) = file(&format!("[[partition]]\npkey = \"0x8001\"\n{text}\n"));
            let file: FabricFile = read(&path).expect("TOML");
            assert!(file.sm_config().is_err(), "{text}");
        }
    }
}
