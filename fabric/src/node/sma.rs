//! The subnet management agent: attributes of the node and its ports (IBA 14.2.5), without any IO.
//!
//! [`Sma::process`] answers one Get or Set. A Set with a wrong field changes nothing and is answered with the present content and the status
//! for invalid fields.

use super::port_info::changed;
use super::{DropReason, Lanes, NodeConfig, PortPlane};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::mad::attr::{
    CapabilityMask, GuidInfo, LedInfo, NodeDescription, NodeInfo, NodeType, PKeyTable, PortInfo,
    PortPhysicalState, PortState, SlToVl,
};
use wire::mad::{AttrId, MadStatus, Method, Smp};
use wire::{Gid, Guid, LinkRate, PKey};

/// In the attribute modifier of PortInfo: the manager knows extended link speeds (IBA 14.2.5.6). OpenSM says so to nodes that support some.
const KNOWS_EXTENDED_SPEEDS: u32 = 1 << 31;
/// VLs that can be told apart: VL0 to VL7.
const VL_CAP: u8 = 4;
/// Entries of the GUID table of an end port.
pub(crate) const GUID_CAP: u8 = 8;
/// How long a port that was set Down stays so before it trains again; a Linux port with a real chip takes about as long.
pub(crate) const BOUNCE: Duration = Duration::from_millis(50);

/// A port as management sees it.
pub(crate) struct SmaPort {
    pub(crate) info: PortInfo,
    pub(crate) pkeys: Vec<PKey>,
    /// By input port.
    sl_to_vl: BTreeMap<u8, SlToVl>,
    /// The four halves of the VL arbitration tables.
    vl_arbitration: [[u8; 64]; 4],
    /// The link epoch last seen.
    pub(crate) link_epoch: u32,
    /// What its link can run at, were all enabled.
    pub(crate) agreed: LinkRate,
    /// Set: the port is bouncing and goes to Init then.
    pub(crate) training_until: Option<Instant>,
}

impl SmaPort {
    /// The physical link is there.
    pub(crate) fn link_up(&self) -> bool {
        self.link_epoch % 2 == 1
    }
}

/// What a Set did beyond changing attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A port shall go Down, after the answer is out.
    TakeDown(u8),
    /// ClientReregister was set.
    Reregister,
}

/// Attributes of a node.
pub(crate) struct Sma {
    is_switch: bool,
    pub(crate) end_port: u8,
    pub(super) node_info: NodeInfo,
    /// What a channel adapter calls its port; see [`super::NodeControl::follow_plan`].
    pub(super) called: u8,
    description: [u8; 64],
    pub(crate) ports: Vec<SmaPort>,
    pub(crate) guids: [Guid; GUID_CAP as usize],
    led: bool,
    /// When protection falls because nobody renewed the M_Key's lease.
    pub(crate) lease_until: Option<Instant>,
}

fn first_port_info(config: &NodeConfig, number: u8) -> PortInfo {
    let is_end_port = number == u8::from(!config.is_switch);
    let is_port0 = config.is_switch && number == 0;
    let capabilities = CapabilityMask::IS_TRAP_SUPPORTED
        | CapabilityMask::IS_NOTICE_SUPPORTED
        | CapabilityMask::IS_SL_MAPPING_SUPPORTED
        | CapabilityMask::IS_SYSTEM_IMAGE_GUID_SUPPORTED
        | CapabilityMask::IS_CAPABILITY_MASK_NOTICE_SUPPORTED
        | CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED
        | CapabilityMask::IS_LED_INFO_SUPPORTED
        | CapabilityMask::IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED
        | if config.is_switch {
            CapabilityMask::IS_P_KEY_SWITCH_EXTERNAL_PORT_TRAP_SUPPORTED
                | CapabilityMask::IS_MULTICAST_FDB_TOP_SUPPORTED
        } else {
            CapabilityMask::IS_COMMUNICATION_MANAGEMENT_SUPPORTED
        };
    PortInfo {
        gid_prefix: if is_end_port { config.gid_prefix } else { 0 },
        capability_mask: if is_end_port {
            capabilities
        } else {
            CapabilityMask::default()
        },
        local_port_num: number,
        // An enhanced port 0 has no link that could be down (IBA 18.2.4.2).
        port_state: if is_port0 {
            PortState::INIT
        } else {
            PortState::DOWN
        },
        port_physical_state: if is_port0 {
            PortPhysicalState::LINK_UP
        } else {
            PortPhysicalState::POLLING
        },
        link_down_default_state: 2,
        neighbor_mtu: config.mtu_cap,
        mtu_cap: config.mtu_cap,
        vl_cap: VL_CAP,
        // All, so that OpenSM finds nothing to change: it takes a link down for that.
        operational_vls: VL_CAP,
        vl_arb_high_cap: 8,
        vl_arb_low_cap: 8,
        guid_cap: if is_end_port { GUID_CAP } else { 0 },
        // 4.096 us * 2^18 = 1.07 s, the usual default of subnet managers.
        subnet_timeout: if is_end_port { 18 } else { 0 },
        resp_time_value: if is_end_port { 16 } else { 0 },
        ..PortInfo::default()
    }
}

impl Sma {
    pub(crate) fn new(config: &NodeConfig) -> Sma {
        let mut guids = [Guid::default(); GUID_CAP as usize];
        guids[0] = config.port_guid;
        let port = |number| {
            let mut pkeys = vec![PKey::default(); usize::from(config.pkey_table_len.max(1))];
            pkeys[0] = PKey::DEFAULT_FULL;
            SmaPort {
                info: first_port_info(config, number),
                pkeys,
                sl_to_vl: BTreeMap::new(),
                vl_arbitration: [[0; 64]; 4],
                link_epoch: 0,
                agreed: LinkRate::default(),
                training_until: None,
            }
        };
        Sma {
            is_switch: config.is_switch,
            end_port: u8::from(!config.is_switch),
            called: u8::from(!config.is_switch),
            node_info: NodeInfo {
                base_version: 1,
                class_version: 1,
                node_type: if config.is_switch {
                    NodeType::SWITCH
                } else {
                    NodeType::CA
                },
                num_ports: config.ports,
                system_image_guid: config.node_guid,
                node_guid: config.node_guid,
                port_guid: config.port_guid,
                partition_cap: config.pkey_table_len.max(1),
                device_id: config.device_id,
                revision: config.revision,
                local_port_num: 0,
                vendor_id: config.vendor_id,
            },
            description: NodeDescription::new(&config.description).emit(),
            ports: (0..=config.ports).map(port).collect(),
            guids,
            led: false,
            lease_until: None,
        }
    }

    pub(crate) fn end(&self) -> &SmaPort {
        &self.ports[usize::from(self.end_port)]
    }
    pub(crate) fn end_mut(&mut self) -> &mut SmaPort {
        &mut self.ports[usize::from(self.end_port)]
    }

    /// Changes NodeDescription; false if it is that already.
    pub(crate) fn describe(&mut self, text: &str) -> bool {
        let new = NodeDescription::new(text).emit();
        std::mem::replace(&mut self.description, new) != new
    }

    /// Lanes of port `n` for its data plane.
    pub(crate) fn lanes(&self, n: usize) -> Option<Lanes> {
        let port = &self.ports[n];
        let inputs = port.sl_to_vl.last_key_value().map_or(0, |(k, _)| *k + 1);
        let table = |input| port.sl_to_vl.get(&input).copied().unwrap_or_default();
        Lanes::new(port.info.operational_vls, (0..inputs).map(table).collect())
    }

    /// The attributes as verbs tell them.
    pub(crate) fn attributes(&self) -> verbs::PortAttributes {
        let port = self.end();
        verbs::PortAttributes {
            state: port.info.port_state,
            lid: port.info.lid,
            lmc: port.info.lmc,
            sm_lid: port.info.master_sm_lid,
            sm_sl: port.info.master_sm_sl,
            subnet_timeout: port.info.subnet_timeout,
            max_mtu: port.info.mtu_cap,
            active_mtu: port.info.neighbor_mtu,
            rate: LinkRate::active(&port.info).unwrap_or_default().code(),
            gids: self
                .guids
                .iter()
                .take(self.guids.iter().rposition(|g| g.0 != 0).unwrap_or(0) + 1)
                .map(|g| Gid::new(port.info.gid_prefix, *g))
                .collect(),
            pkeys: port.pkeys.clone(),
            node_guid: self.node_info.node_guid,
        }
    }

    /// The M_Key check (IBA 14.2.4). `Err`: the SMP is dropped in silence, and trap 256 is due.
    pub(crate) fn check_m_key(&mut self, now: Instant, smp: &Smp) -> Result<(), DropReason> {
        let info = &mut self.ports[usize::from(self.end_port)].info;
        if info.m_key == 0 || smp.m_key == info.m_key {
            self.lease_until = None;
            return Ok(());
        }
        if smp.header.method == Method::GET && info.m_key_protect_bits <= 1 {
            return Ok(());
        }
        info.m_key_violations = info.m_key_violations.saturating_add(1);
        if info.m_key_lease_period != 0 && self.lease_until.is_none() {
            self.lease_until = Some(now + Duration::from_secs(u64::from(info.m_key_lease_period)));
        }
        Err(DropReason::MKeyMismatch)
    }

    /// Answers a Get or Set that came in by `ingress` (0: from this node): status and content of the response.
    pub(crate) fn process(
        &mut self,
        smp: &Smp,
        ingress: u8,
        planes: &[PortPlane],
        effects: &mut Vec<Effect>,
    ) -> (MadStatus, [u8; 64]) {
        let set = smp.header.method == Method::SET;
        let modifier = smp.header.attr_mod;
        let mut data = smp.data;
        let status = match smp.header.attr_id {
            AttrId::NODE_INFO | AttrId::NODE_DESCRIPTION | AttrId::VENDOR_DIAG if set => {
                Err(MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED)
            }
            AttrId::NODE_INFO
            | AttrId::NODE_DESCRIPTION
            | AttrId::VENDOR_DIAG
            | AttrId::LED_INFO
                if modifier != 0 =>
            {
                Err(MadStatus::INVALID_FIELD)
            }
            AttrId::NODE_INFO => {
                // A request of this very node came by no port; its answer names the end port.
                let local_port_num = self.called(ingress);
                put(
                    &mut data,
                    &NodeInfo {
                        local_port_num,
                        ..self.node_info
                    }
                    .emit(),
                );
                Ok(())
            }
            AttrId::NODE_DESCRIPTION => {
                data = self.description;
                Ok(())
            }
            // Nothing to tell, and no further page (NextIndex 0).
            AttrId::VENDOR_DIAG => {
                data = [0; 64];
                Ok(())
            }
            AttrId::LED_INFO => {
                if set && let Some(wanted) = LedInfo::parse(&smp.data) {
                    self.led = wanted.led_mask;
                }
                let led_mask = self.led;
                put(&mut data, &LedInfo { led_mask }.emit());
                Ok(())
            }
            AttrId::PORT_INFO => self.port_info(smp, ingress, planes, effects, &mut data),
            AttrId::GUID_INFO => self.guid_info(set, modifier, smp, &mut data),
            AttrId::P_KEY_TABLE => self.pkey_table(set, modifier, smp, &mut data),
            AttrId::SL_TO_VL_MAPPING_TABLE => self.sl_to_vl(set, modifier, smp, &mut data),
            AttrId::VL_ARBITRATION_TABLE => self.vl_arbitration(set, modifier, smp, &mut data),
            _ => Err(MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED),
        };
        (status.err().unwrap_or(MadStatus::OK), data)
    }

    /// The number of the port that a request came in by, which is the end port if it came by none.
    fn called(&self, ingress: u8) -> u8 {
        match self.is_switch && ingress != 0 {
            true => ingress,
            false => self.called,
        }
    }

    /// The port that an attribute modifier means; 0 is a CA's only port.
    fn port_index(&self, number: u32) -> Result<usize, MadStatus> {
        let number = match number {
            n if n == 0 || (!self.is_switch && n == u32::from(self.called)) => {
                u32::from(self.end_port)
            }
            // The other ports of this channel adapter are elsewhere.
            _ if !self.is_switch => return Err(MadStatus::INVALID_FIELD),
            n => n,
        };
        let index = number as usize;
        if index < self.ports.len() {
            Ok(index)
        } else {
            Err(MadStatus::INVALID_FIELD)
        }
    }

    fn port_info(
        &mut self,
        smp: &Smp,
        ingress: u8,
        planes: &[PortPlane],
        effects: &mut Vec<Effect>,
        data: &mut [u8; 64],
    ) -> Result<(), MadStatus> {
        let index = self.port_index(smp.header.attr_mod & !KNOWS_EXTENDED_SPEEDS)?;
        let set = smp.header.method == Method::SET;
        let mut outcome = Ok(());
        let mut reregister = false;
        if set && let Some(wanted) = PortInfo::parse(&smp.data) {
            let is_end_port = index == usize::from(self.end_port);
            let is_port0 = self.is_switch && index == 0;
            let old = self.ports[index].info;
            match changed(&old, &wanted, is_end_port, is_port0) {
                Err(status) => outcome = Err(status),
                Ok(new) => {
                    self.ports[index].info = new;
                    if wanted.p_key_violations == 0 {
                        planes[index].p_key_violations.store(0, Relaxed);
                    }
                    if wanted.q_key_violations == 0 {
                        planes[index].q_key_violations.store(0, Relaxed);
                    }
                    if is_end_port && wanted.client_reregister {
                        effects.push(Effect::Reregister);
                        reregister = true;
                    }
                    let disable = new.port_physical_state == PortPhysicalState::DISABLED;
                    let enable = old.port_physical_state == PortPhysicalState::DISABLED && !disable;
                    if wanted.port_state == PortState::DOWN || disable || enable {
                        effects.push(Effect::TakeDown(index as u8));
                    }
                }
            }
        }
        let mut info = self.ports[index].info;
        info.local_port_num = self.called(ingress);
        info.p_key_violations = planes[index].p_key_violations.load(Relaxed);
        info.q_key_violations = planes[index].q_key_violations.load(Relaxed);
        // o14-12.2.1: the answer to the Set keeps the bit, any other answer has it clear.
        info.client_reregister = reregister;
        let end = &self.end().info;
        if end.m_key != smp.m_key && end.m_key_protect_bits != 0 {
            info.m_key = 0;
        }
        put(data, &info.emit());
        outcome
    }

    fn guid_info(
        &mut self,
        set: bool,
        modifier: u32,
        smp: &Smp,
        data: &mut [u8; 64],
    ) -> Result<(), MadStatus> {
        if modifier != 0 {
            return Err(MadStatus::INVALID_FIELD);
        }
        if set && let Some(wanted) = GuidInfo::parse(&smp.data) {
            // Entry 0 is the port GUID, which nobody sets (IBA 14.2.5.5).
            self.guids[1..].copy_from_slice(&wanted.guid[1..]);
        }
        put(data, &GuidInfo { guid: self.guids }.emit());
        Ok(())
    }

    fn pkey_table(
        &mut self,
        set: bool,
        modifier: u32,
        smp: &Smp,
        data: &mut [u8; 64],
    ) -> Result<(), MadStatus> {
        let index = self.port_index(modifier >> 16)?;
        let keys = &mut self.ports[index].pkeys;
        let first = (modifier as usize & 0xffff) * 32;
        let len = keys.len();
        let block = keys
            .get_mut(first..len.min(first + 32))
            .filter(|b| !b.is_empty())
            .ok_or(MadStatus::INVALID_FIELD)?;
        if set && let Some(wanted) = PKeyTable::parse(&smp.data) {
            block.copy_from_slice(&wanted.p_key[..block.len()]);
        }
        let mut table = PKeyTable::default();
        table.p_key[..block.len()].copy_from_slice(block);
        put(data, &table.emit());
        Ok(())
    }

    fn sl_to_vl(
        &mut self,
        set: bool,
        modifier: u32,
        smp: &Smp,
        data: &mut [u8; 64],
    ) -> Result<(), MadStatus> {
        let (input, output) = if self.is_switch {
            (modifier >> 8 & 0xff, modifier & 0xff)
        } else {
            (0, 0)
        };
        self.port_index(input)?;
        let index = self.port_index(output)?;
        let tables = &mut self.ports[index].sl_to_vl;
        if set && let Some(wanted) = SlToVl::parse(&smp.data) {
            tables.insert(input as u8, wanted);
        }
        *data = [0; 64];
        put(
            data,
            &tables
                .get(&(input as u8))
                .copied()
                .unwrap_or_default()
                .emit(),
        );
        Ok(())
    }

    fn vl_arbitration(
        &mut self,
        set: bool,
        modifier: u32,
        smp: &Smp,
        data: &mut [u8; 64],
    ) -> Result<(), MadStatus> {
        let index = self.port_index(modifier & 0xffff)?;
        let half = (modifier >> 16) as usize;
        let table = half
            .checked_sub(1)
            .and_then(|i| self.ports[index].vl_arbitration.get_mut(i))
            .ok_or(MadStatus::INVALID_FIELD)?;
        if set {
            *table = smp.data;
        }
        *data = *table;
        Ok(())
    }
}

fn put(data: &mut [u8; 64], content: &[u8]) {
    *data = [0; 64];
    data[..content.len()].copy_from_slice(content);
}
