//! A scripted subnet in virtual time: nodes that answer SMPs, links that may lose them. It shares no code with the real switches and HCAs.

use fabric::sm::{SmConfig, SubnetManager};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use verbs::{MadReceived, MadSend};
use wire::mad::attr::*;
use wire::mad::sa::ComponentMask;
use wire::mad::{AttrId, MadBytes, MadStatus, Method, SaMad, Smp};
use wire::{Gid, Guid, Lid, MtuCode, PKey, QKey, Qpn, ServiceLevel};

pub struct MPort {
    pub info: PortInfo,
    pub peer: Option<(usize, u8)>,
    pub pkeys: Vec<PKey>,
    pub reregistered: u32,
    /// When the lease of the M_Key ends, after a wrong one was seen.
    pub lease_end: Option<Instant>,
}

pub struct MNode {
    pub info: NodeInfo,
    pub switch: Option<SwitchInfo>,
    pub ports: Vec<MPort>,
    pub lft: Vec<u8>,
    pub mft: HashMap<(u32, u32), [u16; 32]>,
    pub alive: bool,
    pub sm: Option<SmInfo>,
    pub smps: u32,
}

pub struct Model {
    pub nodes: Vec<MNode>,
    pub own: usize,
    pub now: Instant,
    pub sm: SubnetManager,
    /// Out of 1000 SMPs and SA MADs each way.
    pub loss: u64,
    rng: u64,
    queue: BTreeMap<(Instant, u64), MadReceived>,
    sequence: u64,
    /// What the SA sent, by LID.
    pub sa_out: Vec<MadSend>,
    /// Sets of anything but SwitchInfo, by which PortStateChange is cleared.
    pub sets: u64,
    /// A node that takes no P_Keys.
    pub stubborn: Option<usize>,
    /// A node that answers so late.
    pub slow: Option<(usize, Duration)>,
    /// A multicast LID whose tables are examined after each change, and how often they had a circle.
    pub watched: Option<Lid>,
    pub circles: u32,
}

pub const MS: Duration = Duration::from_millis(1);

impl Model {
    pub fn new(config: SmConfig) -> Self {
        Model {
            nodes: Vec::new(),
            own: 0,
            now: Instant::now(),
            sm: SubnetManager::new(config, 7),
            loss: 0,
            rng: 0x1234_5678_9abc_def1,
            queue: BTreeMap::new(),
            sequence: 0,
            sa_out: Vec::new(),
            sets: 0,
            stubborn: None,
            slow: None,
            watched: None,
            circles: 0,
        }
    }

    pub fn random(&mut self) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng
    }

    fn add(&mut self, info: NodeInfo, switch: Option<SwitchInfo>) -> usize {
        let port = |number: u8| {
            let mut info = PortInfo {
                capability_mask: CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED
                    | CapabilityMask::IS_TRAP_SUPPORTED,
                local_port_num: number,
                link_width_active: LinkWidth::X4,
                link_width_supported: LinkWidth::X1_OR_X4,
                link_width_enabled: LinkWidth::X1_OR_X4,
                link_speed_active: 1,
                link_speed_supported: 1,
                link_speed_enabled: 1,
                port_state: PortState::DOWN,
                port_physical_state: PortPhysicalState::POLLING,
                mtu_cap: MtuCode(4),
                neighbor_mtu: MtuCode(1),
                vl_cap: 4,
                operational_vls: 1,
                guid_cap: 32,
                ..PortInfo::default()
            };
            if switch.is_some() && number == 0 {
                info.port_state = PortState::ACTIVE;
            }
            let mut pkeys = vec![PKey(0); 64];
            pkeys[0] = PKey(0xffff);
            MPort {
                info,
                peer: None,
                pkeys,
                reregistered: 0,
                lease_end: None,
            }
        };
        let ports = (0..=info.num_ports).map(port).collect();
        self.nodes.push(MNode {
            info,
            switch,
            ports,
            lft: vec![255; if switch.is_some() { 0xc000 } else { 0 }],
            mft: HashMap::new(),
            alive: true,
            sm: None,
            smps: 0,
        });
        self.nodes.len() - 1
    }

    /// A channel adapter: node GUID `guid`, port GUID `guid + 1`.
    pub fn hca(&mut self, guid: u64) -> usize {
        let info = NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: NodeType::CA,
            num_ports: 1,
            system_image_guid: Guid(guid),
            node_guid: Guid(guid),
            port_guid: Guid(guid + 1),
            partition_cap: 64,
            local_port_num: 1,
            ..NodeInfo::default()
        };
        self.add(info, None)
    }

    pub fn switch(&mut self, guid: u64, ports: u8) -> usize {
        let info = NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: NodeType::SWITCH,
            num_ports: ports,
            system_image_guid: Guid(guid),
            node_guid: Guid(guid),
            port_guid: Guid(guid),
            partition_cap: 32,
            ..NodeInfo::default()
        };
        self.add(
            info,
            Some(SwitchInfo {
                linear_fdb_cap: 0xbfff,
                multicast_fdb_cap: 8192,
                ..SwitchInfo::default()
            }),
        )
    }

    /// Both ends go to Init, and switches with a manager send trap 128.
    pub fn link(&mut self, a: (usize, u8), b: (usize, u8)) {
        self.nodes[a.0].ports[usize::from(a.1)].peer = Some(b);
        self.nodes[b.0].ports[usize::from(b.1)].peer = Some(a);
        self.set_link(a, PortState::INIT);
        self.set_link(b, PortState::INIT);
    }

    pub fn cut(&mut self, a: (usize, u8)) {
        let peer = self.nodes[a.0].ports[usize::from(a.1)].peer.take();
        self.set_link(a, PortState::DOWN);
        if let Some(b) = peer {
            self.nodes[b.0].ports[usize::from(b.1)].peer = None;
            self.set_link(b, PortState::DOWN);
        }
    }

    /// The node starts anew: everything that was set is gone.
    pub fn reset_hca(&mut self, node: usize) {
        let port = &mut self.nodes[node].ports[1];
        port.info.lid = Lid(0);
        port.info.master_sm_lid = Lid(0);
        port.pkeys = vec![PKey(0); 64];
        port.pkeys[0] = PKey(0xffff);
        let peer = port.peer;
        self.set_link((node, 1), PortState::INIT);
        if let Some(peer) = peer {
            self.set_link(peer, PortState::INIT);
        }
    }

    fn set_link(&mut self, (node, port): (usize, u8), state: PortState) {
        let n = &mut self.nodes[node];
        n.ports[usize::from(port)].info.port_state = state;
        if let Some(switch) = &mut n.switch {
            switch.port_state_change = true;
            self.trap128(node);
        }
    }

    pub fn trap128(&mut self, node: usize) {
        self.trap(
            node,
            Notice::link_state_change(self.nodes[node].ports[0].info.lid),
        );
    }

    /// A trap of a switch.
    pub fn trap(&mut self, node: usize, notice: Notice) {
        let info = self.nodes[node].ports[0].info;
        if !info.master_sm_lid.is_unicast() || !self.nodes[node].alive {
            return;
        }
        let smp =
            Smp::lid_routed(Method::TRAP, AttrId::NOTICE, 0, 0x77).with_data(&notice.emit()[..64]);
        self.deliver(info.lid, Qpn::SMI, smp.emit(), Duration::ZERO);
    }

    /// A LID routed SMP of an HCA to the manager.
    pub fn from(&mut self, node: usize, smp: Smp) {
        self.deliver(self.lid(node), Qpn::SMI, smp.emit(), Duration::ZERO);
    }

    fn deliver(&mut self, slid: Lid, qp: Qpn, mad: MadBytes, late: Duration) {
        if self.loss > 0 && self.random() % 1000 < self.loss {
            return;
        }
        let received = MadReceived {
            slid,
            dlid: Lid(1),
            src_qp: qp,
            dest_qp: qp,
            sl: ServiceLevel(0),
            p_key: PKey(0xffff),
            grh: None,
            mad: Box::new(mad),
        };
        self.sequence += 1;
        let at = self.now + Duration::from_micros(20) + late;
        self.queue.insert((at, self.sequence), received);
    }

    /// Runs until nothing happens for 50 ms, or at most `limit`.
    pub fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        if self.sm.is_due(self.now) {
            self.sm.handle_timeout(self.now);
        }
        loop {
            while let Some(mad) = self.sm.poll_transmit() {
                self.transmit(mad);
            }
            let next = self.queue.keys().next().map(|k| k.0);
            let timeout = self.sm.poll_timeout();
            let Some(at) = next
                .into_iter()
                .chain(timeout)
                .min()
                .filter(|at| *at <= end)
            else {
                break;
            };
            self.now = self.now.max(at);
            while let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= self.now) {
                let mad = entry.remove();
                self.sm.handle_mad(self.now, mad);
            }
            if self.sm.poll_timeout().is_some_and(|at| at <= self.now) {
                self.sm.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    pub fn transmit(&mut self, send: MadSend) {
        if send.remote_qpn != Qpn::SMI {
            self.sa_out.push(send);
            return;
        }
        if self.loss > 0 && self.random() % 1000 < self.loss {
            return;
        }
        let Some(mut smp) = Smp::parse(&send.mad[..]) else {
            panic!("not an SMP")
        };
        let unanswered = smp.header.method == Method::TRAP_REPRESS
            || smp.header.method.is_response()
            // To another manager, of the taking over.
            || (smp.header.attr_id == AttrId::SM_INFO && !smp.is_directed());
        if unanswered {
            return;
        }
        assert!(smp.is_directed());
        assert_eq!(send.dlid, Lid::PERMISSIVE);
        let (mut at, mut ingress) = (self.own, self.own_port());
        for hop in 1..=smp.hop_count() {
            let out = smp.initial_path[usize::from(hop)];
            if hop > 1 && self.nodes[at].switch.is_none() {
                return;
            }
            let Some(port) = self.nodes[at].ports.get(usize::from(out)) else {
                return;
            };
            let Some(peer) = port
                .peer
                .filter(|_| port.info.port_state >= PortState::INIT)
            else {
                return;
            };
            (at, ingress) = peer;
            if !self.nodes[at].alive {
                return;
            }
        }
        if !self.opens(at, ingress, &smp) {
            return;
        }
        let status = self.agent(at, ingress, &mut smp);
        if smp.header.attr_id == AttrId::MULTICAST_FORWARDING_TABLE {
            self.circles += u32::from(self.watched.is_some_and(|mlid| self.has_circle(mlid)));
        }
        let response = smp.response(status);
        let late = self.slow.filter(|(node, _)| *node == at);
        let late = late.map_or(Duration::ZERO, |(_, late)| late);
        self.deliver(Lid::PERMISSIVE, Qpn::SMI, response.emit(), late);
    }

    /// Has the SMP the M_Key of the node's port? (IBA 14.2.4)
    fn opens(&mut self, at: usize, ingress: u8, smp: &Smp) -> bool {
        let node = &mut self.nodes[at];
        let number = if node.switch.is_some() { 0 } else { ingress };
        let port = &mut node.ports[usize::from(number)];
        if port.lease_end.is_some_and(|end| end <= self.now) {
            (
                port.info.m_key,
                port.info.m_key_protect_bits,
                port.lease_end,
            ) = (0, 0, None);
        }
        let guarded = smp.header.method == Method::SET || port.info.m_key_protect_bits >= 2;
        let opens = port.info.m_key == 0 || port.info.m_key == smp.m_key || !guarded;
        if !opens && port.info.m_key_lease_period > 0 && port.lease_end.is_none() {
            let lease = Duration::from_secs(port.info.m_key_lease_period.into());
            port.lease_end = Some(self.now + lease);
        }
        opens
    }

    fn mft_has(&self, at: usize, mlid: Lid, port: u8) -> bool {
        let slot = u32::from(mlid.0 - 0xc000);
        let block = self.nodes[at].mft.get(&(slot / 32, u32::from(port / 16)));
        block.is_some_and(|b| b[slot as usize % 32] >> (port % 16) & 1 != 0)
    }

    /// Could a multicast packet come to a place twice?
    fn has_circle(&self, mlid: Lid) -> bool {
        // Channels between switches; those that lead to none are taken away until a circle is left, or nothing.
        let switches = (0..self.nodes.len()).filter(|n| self.nodes[*n].switch.is_some());
        let out = |at: usize| {
            (1..=self.nodes[at].info.num_ports)
                .filter(move |p| self.mft_has(at, mlid, *p))
                .filter_map(move |p| Some((at, p, self.nodes[at].ports[usize::from(p)].peer?)))
                .filter(|(.., peer)| self.nodes[peer.0].switch.is_some())
        };
        let mut channels: Vec<_> = switches.flat_map(out).collect();
        loop {
            let before = channels.len();
            let all = channels.clone();
            channels.retain(|(.., to)| all.iter().any(|(at, p, _)| *at == to.0 && *p != to.1));
            if channels.len() == before {
                return before > 0;
            }
        }
    }

    fn own_port(&self) -> u8 {
        u8::from(self.nodes[self.own].switch.is_none())
    }

    fn agent(&mut self, at: usize, ingress: u8, smp: &mut Smp) -> MadStatus {
        let node = &mut self.nodes[at];
        node.smps += 1;
        let modifier = smp.header.attr_mod;
        let set = smp.header.method == Method::SET;
        self.sets += u64::from(set && smp.header.attr_id != AttrId::SWITCH_INFO);
        let data = match smp.header.attr_id {
            AttrId::NODE_INFO => NodeInfo {
                local_port_num: ingress,
                ..node.info
            }
            .emit()
            .to_vec(),
            AttrId::NODE_DESCRIPTION => NodeDescription::new(&format!("node {at}")).emit().to_vec(),
            AttrId::SWITCH_INFO => {
                let Some(info) = &mut node.switch else {
                    return MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED;
                };
                if set {
                    let new = SwitchInfo::parse(&smp.data).unwrap();
                    info.linear_fdb_top = new.linear_fdb_top;
                    info.life_time_value = new.life_time_value;
                    info.port_state_change &= !new.port_state_change;
                }
                info.emit().to_vec()
            }
            AttrId::GUID_INFO => GuidInfo::default().emit().to_vec(),
            AttrId::PORT_INFO => {
                let number = if node.switch.is_none() && modifier == 0 {
                    ingress
                } else {
                    modifier as u8
                };
                let is_management = node.switch.is_some() && number == 0;
                let Some(port) = node.ports.get_mut(usize::from(number)) else {
                    return MadStatus::INVALID_FIELD;
                };
                if set {
                    let new = PortInfo::parse(&smp.data).unwrap();
                    let state = port.info.port_state;
                    let allowed = match new.port_state {
                        PortState::NO_CHANGE => true,
                        PortState::ARMED => state == PortState::INIT || state == PortState::ARMED,
                        PortState::ACTIVE => state >= PortState::ARMED,
                        _ => false,
                    };
                    assert!(
                        new.neighbor_mtu.bytes().is_some() && new.neighbor_mtu <= port.info.mtu_cap
                    );
                    if !allowed || (is_management && new.port_state != PortState::NO_CHANGE) {
                        return MadStatus::INVALID_FIELD;
                    }
                    port.reregistered += u32::from(new.client_reregister);
                    let keep = port.info;
                    port.info = PortInfo {
                        capability_mask: keep.capability_mask,
                        local_port_num: keep.local_port_num,
                        link_width_enabled: keep.link_width_enabled,
                        link_width_supported: keep.link_width_supported,
                        link_width_active: keep.link_width_active,
                        link_speed_supported: keep.link_speed_supported,
                        link_speed_active: keep.link_speed_active,
                        link_speed_enabled: keep.link_speed_enabled,
                        port_physical_state: keep.port_physical_state,
                        port_state: if new.port_state == PortState::NO_CHANGE {
                            state
                        } else {
                            new.port_state
                        },
                        client_reregister: false,
                        ..new
                    };
                }
                port.info.emit().to_vec()
            }
            AttrId::P_KEY_TABLE => {
                let number = if node.switch.is_some() { 0 } else { ingress };
                let block = modifier as usize & 0xffff;
                let port = &mut node.ports[usize::from(number)];
                if set && self.stubborn == Some(at) {
                    return MadStatus::INVALID_FIELD;
                }
                if set {
                    port.pkeys[block * 32..][..32]
                        .copy_from_slice(&PKeyTable::parse(&smp.data).unwrap().p_key);
                }
                let mut table = PKeyTable::default();
                table.p_key.copy_from_slice(&port.pkeys[block * 32..][..32]);
                table.emit().to_vec()
            }
            AttrId::LINEAR_FORWARDING_TABLE => {
                node.lft[modifier as usize * 64..][..64].copy_from_slice(&smp.data);
                smp.data.to_vec()
            }
            AttrId::MULTICAST_FORWARDING_TABLE => {
                let table = MulticastForwardingTable::parse(&smp.data).unwrap();
                node.mft
                    .insert((modifier & 0x1ff, modifier >> 28), table.port_mask);
                smp.data.to_vec()
            }
            AttrId::SM_INFO => {
                let Some(info) = &mut node.sm else {
                    return MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED;
                };
                if set {
                    info.sm_state = SmState::MASTER;
                }
                info.emit().to_vec()
            }
            _ => return MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED,
        };
        smp.data = [0; 64];
        *smp = smp.with_data(&data);
        MadStatus::OK
    }

    /// Where a packet from the switch that `from` is at ends, by the LFTs.
    pub fn follow(&self, from: usize, lid: Lid) -> Option<usize> {
        let mut at = self.nodes[from].ports[1].peer?.0;
        for _ in 0..64 {
            if self.nodes[at].switch.is_none() {
                return Some(at);
            }
            match self.nodes[at].lft[usize::from(lid.0)] {
                0 => return Some(at),
                255 => return None,
                port => at = self.nodes[at].ports[usize::from(port)].peer?.0,
            }
        }
        None
    }

    /// HCAs that get a multicast packet of `from`, by the MFTs.
    pub fn multicast(&self, from: usize, mlid: Lid) -> Vec<usize> {
        let mut reached = Vec::new();
        let slot = u32::from(mlid.0 - 0xc000);
        let mut queue = vec![self.nodes[from].ports[1].peer.unwrap()];
        while let Some((at, ingress)) = queue.pop() {
            let node = &self.nodes[at];
            if node.switch.is_none() {
                reached.push(at);
                continue;
            }
            assert!(reached.len() + queue.len() < 5000, "a loop");
            for port in (1..=node.info.num_ports).filter(|p| *p != ingress) {
                let mask = node
                    .mft
                    .get(&(slot / 32, u32::from(port / 16)))
                    .map_or(0, |b| b[slot as usize % 32]);
                if mask >> (port % 16) & 1 != 0 {
                    queue.extend(node.ports[usize::from(port)].peer);
                }
            }
        }
        reached.sort_unstable();
        reached
    }

    pub fn lid(&self, node: usize) -> Lid {
        let port = usize::from(self.nodes[node].switch.is_none());
        self.nodes[node].ports[port].info.lid
    }
    pub fn state(&self, node: usize) -> PortState {
        self.nodes[node].ports[1].info.port_state
    }
    pub fn gid(&self, node: usize) -> Gid {
        Gid::new(Gid::DEFAULT_PREFIX, self.nodes[node].info.port_guid)
    }

    /// Sends to the SA and gives back the answer.
    pub fn ask(&mut self, node: usize, mad: SaMad) -> SaMad {
        self.sa_out.clear();
        let lid = self.lid(node);
        self.deliver(lid, Qpn::GSI, mad.emit(), Duration::ZERO);
        self.run(MS);
        let tid = mad.header.tid;
        let answers = self
            .sa_out
            .iter()
            .filter(|m| m.dlid == lid && m.remote_qpn == Qpn::GSI && m.q_key == QKey::GSI);
        answers
            .filter_map(|m| SaMad::parse(&m.mad[..]))
            .find(|m| m.header.tid == tid && m.header.method.is_response())
            .expect("no answer")
    }

    /// Sends to the SA, whatever comes of it.
    pub fn tell(&mut self, node: usize, mad: SaMad) {
        let lid = self.lid(node);
        self.deliver(lid, Qpn::GSI, mad.emit(), Duration::ZERO);
        self.run(MS);
    }

    pub fn join(&mut self, node: usize, mgid: Gid, state: JoinState) -> SaMad {
        self.member(node, Method::SET, mgid, state)
    }
    pub fn leave(&mut self, node: usize, mgid: Gid, state: JoinState) -> SaMad {
        self.member(node, Method::DELETE, mgid, state)
    }
    /// A join as Linux sends it for all groups but the broadcast group.
    fn member(&mut self, node: usize, method: Method, mgid: Gid, join_state: JoinState) -> SaMad {
        let broadcast = mgid.0[15] == 0xff && mgid.0[14] == 0xff;
        let record = McMemberRecord {
            mgid,
            port_gid: self.gid(node),
            q_key: QKey(0xb1b),
            mtu_selector: Selector::EXACTLY,
            mtu: MtuCode(4),
            p_key: PKey(0xffff),
            rate_selector: Selector::EXACTLY,
            rate: wire::RateCode(3),
            join_state,
            ..McMemberRecord::default()
        };
        let mask = match (method, broadcast) {
            (Method::DELETE, _) => ComponentMask(0x10003),
            (_, true) => mcmember::JOIN,
            _ => mcmember::CREATE,
        };
        self.ask(
            node,
            SaMad::request(
                method,
                AttrId::MC_MEMBER_RECORD,
                mask,
                &record.emit(),
                0x5000,
            ),
        )
    }

    pub fn subscribe(&mut self, node: usize, trap: TrapNumber) -> SaMad {
        self.ask(
            node,
            SaMad::request(
                Method::SET,
                AttrId::INFORM_INFO,
                ComponentMask(0),
                &InformInfo::generic(trap, true).emit(),
                0x6000,
            ),
        )
    }

    /// Reports sent meanwhile: LID, trap, GID.
    pub fn reports(&self) -> Vec<(Lid, u16, Gid)> {
        let mads = self
            .sa_out
            .iter()
            .filter_map(|m| Some((m.dlid, SaMad::parse(&m.mad[..])?)));
        let reports = mads.filter(|(_, m)| m.header.method == Method::REPORT);
        reports
            .filter_map(|(lid, m)| {
                Notice::parse(&m.data).map(|n| (lid, n.trap_number.0, n.gid().unwrap_or_default()))
            })
            .collect()
    }
}

/// Two switches with a link, two HCAs at each; the manager is at the first HCA.
pub fn two_switches(config: SmConfig) -> Model {
    let mut m = Model::new(config);
    let hcas: Vec<usize> = (1..=4).map(|n| m.hca(0x1000 * n)).collect();
    let (a, b) = (m.switch(0xa000, 36), m.switch(0xb000, 36));
    m.link((hcas[0], 1), (a, 1));
    m.link((hcas[1], 1), (a, 2));
    m.link((hcas[2], 1), (b, 1));
    m.link((hcas[3], 1), (b, 20));
    m.link((a, 36), (b, 36));
    m
}

pub fn up(config: SmConfig) -> Model {
    let mut m = two_switches(config);
    m.run(100 * MS);
    m
}
