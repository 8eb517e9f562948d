//! What the administrator decides: partitions and their groups, priority, timers.

use std::collections::BTreeMap;
use std::time::Duration;
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::mad::attr::NodeType;
use wire::{Gid, Guid, Lid, MtuCode, PKey, QKey, RateCode, ServiceLevel};

/// Kind of membership in a partition (IBA 10.9.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Talks to all members.
    Full,
    /// Talks to full members only.
    Limited,
    /// Has both keys.
    Both,
}

/// Ports that a rule of a partition is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// One end port.
    Port(Guid),
    /// All.
    All,
    /// Those of channel adapters.
    Cas,
    /// Those of switches.
    Switches,
    /// Those of routers.
    Routers,
    /// The subnet manager's own.
    Own,
}

/// What a partition's rules look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndPort {
    /// Its GUID.
    pub guid: Guid,
    /// Kind of its node.
    pub node_type: NodeType,
    /// The subnet manager is at it.
    pub own: bool,
}

impl Who {
    fn is(self, port: &EndPort) -> bool {
        match self {
            Who::Port(guid) => guid == port.guid,
            Who::All => true,
            Who::Cas => port.node_type == NodeType::CA,
            Who::Switches => port.node_type == NodeType::SWITCH,
            Who::Routers => port.node_type == NodeType::ROUTER,
            Who::Own => port.own,
        }
    }
}

/// Parameters of a multicast group that exists from the start (RFC 4391 section 5; names as OpenSM's partition file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupParams {
    /// Largest payload.
    pub mtu: MtuCode,
    /// Static rate.
    pub rate: RateCode,
    /// Service level.
    pub sl: ServiceLevel,
    /// Queue key of the interfaces.
    pub q_key: QKey,
    /// Scope nibble of the broadcast MGID.
    pub scope: u8,
    /// GRH traffic class.
    pub tclass: u8,
    /// GRH flow label.
    pub flow_label: u32,
    /// GRH hop limit; 0 becomes 255 for groups beyond link-local scope.
    pub hop_limit: u8,
}

impl Default for GroupParams {
    /// OpenSM's defaults: MTU 2048, 10 Gbit/s, SL 0, Q_Key 0x0b1b, link-local scope.
    fn default() -> Self {
        GroupParams {
            mtu: MtuCode::MTU_2048,
            rate: RateCode::GBPS_10,
            sl: ServiceLevel(0),
            q_key: QKey(0x0b1b),
            scope: 2,
            tclass: 0,
            flow_label: 0,
            hop_limit: 0,
        }
    }
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// For people.
    pub name: String,
    /// Its number; the membership bit is ignored.
    pub pkey: PKey,
    /// Set: an IPoIB broadcast group exists from the start.
    pub ipoib: Option<GroupParams>,
    /// Further groups that exist from the start.
    pub groups: Vec<(Gid, GroupParams)>,
    /// Who is in it: the last rule that fits a port decides.
    pub rules: Vec<(Who, Membership)>,
    /// Its key shall be the first in the table of each port that has it.
    pub index0: bool,
}

impl Partition {
    /// A partition of all ports.
    pub fn all(name: &str, pkey: PKey, membership: Membership, ipoib: Option<GroupParams>) -> Self {
        Partition {
            rules: vec![(Who::All, membership)],
            ..Partition::of(name, pkey, Vec::new(), ipoib)
        }
    }
    /// A partition of these ports.
    pub fn of(
        name: &str,
        pkey: PKey,
        members: Vec<(Guid, Membership)>,
        ipoib: Option<GroupParams>,
    ) -> Self {
        let rule = |(guid, membership)| (Who::Port(guid), membership);
        Partition {
            name: name.into(),
            pkey,
            ipoib,
            groups: Vec::new(),
            rules: members.into_iter().map(rule).collect(),
            index0: false,
        }
    }

    /// The P_Keys that the port's table gets: none if it is no member.
    pub fn keys_of(&self, port: &EndPort) -> impl Iterator<Item = PKey> + use<> {
        let rule = self.rules.iter().rev().find(|(who, _)| who.is(port));
        let membership = rule.map(|(_, membership)| *membership);
        let limited = PKey(self.pkey.base());
        let full = matches!(membership, Some(Membership::Full | Membership::Both));
        let half = matches!(membership, Some(Membership::Limited | Membership::Both));
        let full = full.then(|| limited.full());
        full.into_iter().chain(half.then_some(limited))
    }

    /// Groups that exist from the start.
    pub(super) fn well_known_groups(&self) -> impl Iterator<Item = (Gid, GroupParams)> + '_ {
        let broadcast = self
            .ipoib
            .map(|params| (broadcast_gid(self.pkey, Scope(params.scope)), params));
        broadcast.into_iter().chain(self.groups.iter().copied())
    }
}

/// How ways through the subnet are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RoutingEngine {
    /// The least number of hops. Subnets with rings of switches can deadlock under load.
    #[default]
    MinHop,
    /// No way goes up again after it went down, so that no deadlock is possible.
    UpDown {
        /// Node GUIDs of the switches at the top; none: they are found.
        roots: Vec<Guid>,
    },
}

/// The key that a manager's SMPs must have at a port (IBA 14.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MKey {
    /// 0: none is needed.
    pub key: u64,
    /// M_KeyProtectBits, 0..=3: 0 guards what is set, 1 also hides the key, 2 and 3 guard what is read.
    pub protect: u8,
    /// Seconds after which a port that was asked with a wrong key opens itself, unless the manager was heard of; 0: never.
    pub lease: u16,
}

/// Configuration of a subnet manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmConfig {
    /// Ports that are in no partition of these with number 0x7fff become limited members of it, the manager's own port a full one: without
    /// it nobody could reach the SA.
    pub partitions: Vec<Partition>,
    /// 0..=15; the higher wins.
    pub sm_priority: u8,
    /// SM_Key: of the other managers of this subnet, and of requests to the SA that may see and do everything (OpenSM's `sm_key` and `sa_key`).
    pub sm_key: u64,
    /// Upper half of all GIDs.
    pub subnet_prefix: u64,
    /// PortInfo.SubnetTimeOut, 4.096 us * 2^n.
    pub subnet_timeout: u8,
    /// Life time of packets in path and member records, 4.096 us * 2^n.
    pub packet_life_time: u8,
    /// Time between light sweeps.
    pub sweep_interval: Duration,
    /// An SMP without answer is sent again after this time ...
    pub smp_timeout: Duration,
    /// ... and this many times.
    pub smp_retries: u8,
    /// SMPs on the way at once.
    pub smp_window: usize,
    /// A standby asks the master this often whether it lives, and takes over if that request fails.
    pub poll_interval: Duration,
    /// A report is sent again after this time, and up to three times.
    pub report_timeout: Duration,
    /// Set at all ports, and used. A port with another key is asked again until its lease is over.
    pub m_key: MKey,
    /// How ways are chosen.
    pub routing: RoutingEngine,
    /// Ports of channel adapters get 2^lmc LIDs each, and different ways to them where there are some; 0..=3. Cannot change while a manager runs.
    pub lmc: u8,
    /// P_Key tables that partitions do not decide on, by port GUID.
    pub pkey_tables: BTreeMap<Guid, Vec<PKey>>,
    /// LIDs of an earlier run, from [`SubnetManager::lid_map`](super::SubnetManager::lid_map).
    pub lid_map: Vec<(Guid, Lid)>,
}

impl Default for SmConfig {
    /// One partition 0x7fff of all ports, full members, with IPoIB; time-outs as OpenSM's.
    fn default() -> Self {
        SmConfig {
            partitions: vec![Partition::all(
                "Default",
                PKey::DEFAULT_LIMITED,
                Membership::Full,
                Some(GroupParams::default()),
            )],
            sm_priority: 0,
            sm_key: 1,
            subnet_prefix: Gid::DEFAULT_PREFIX,
            subnet_timeout: 18,
            packet_life_time: 18,
            sweep_interval: Duration::from_secs(10),
            smp_timeout: Duration::from_millis(200),
            smp_retries: 3,
            smp_window: 128,
            poll_interval: Duration::from_millis(500),
            report_timeout: Duration::from_secs(1),
            m_key: MKey::default(),
            routing: RoutingEngine::MinHop,
            lmc: 0,
            pkey_tables: BTreeMap::new(),
            lid_map: Vec::new(),
        }
    }
}
