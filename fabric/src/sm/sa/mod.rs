//! Subnet administration (IBA chapter 15): answers to requests on QP1, and reports.
//!
//! Status codes and odd details are those of OpenSM, against which clients are tested in the field.

mod inform;
mod member;
mod path;
mod records;
mod rmpp;
mod service;

pub(super) use member::{Change, Group, Member};

use super::config::SmConfig;
use super::counters::{Counter, Counters};
use super::topology::{PortData, PortId, Topology};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use verbs::{MadReceived, MadSend};
use wire::mad::attr::{
    ClassPortInfo, InformInfo, McMemberRecord, PathRecord, ServiceRecord, SmInfoRecord,
};
use wire::mad::sa::{DATA_LEN, RmppHeader, attr_offset};
use wire::mad::{AttrId, MadStatus, Method, MgmtClass, SaMad};
use wire::{Gid, Guid, Lid, QKey, Qpn};

/// What the SA looks things up in.
pub(super) struct Subnet<'a> {
    pub(super) topo: &'a Topology,
    pub(super) config: &'a SmConfig,
    pub(super) counters: &'a Counters,
    /// This subnet manager and others.
    pub(super) sm: Vec<SmInfoRecord>,
}

impl<'a> Subnet<'a> {
    pub(super) fn new(topo: &'a Topology, config: &'a SmConfig, counters: &'a Counters) -> Self {
        Subnet {
            topo,
            config,
            counters,
            sm: Vec::new(),
        }
    }
    pub(super) fn own_lid(&self) -> Lid {
        self.topo.own_lid()
    }
    pub(super) fn gid(&self, port: &PortData) -> Gid {
        port.gid(self.config.subnet_prefix)
    }
    /// The port of a unicast GID of this subnet.
    pub(super) fn by_gid(&self, gid: Gid) -> Option<PortId> {
        (gid.prefix() == self.config.subnet_prefix)
            .then(|| self.topo.by_port_guid(gid.guid()))
            .flatten()
    }
}

/// A request and who sent it.
struct Request<'a> {
    mad: &'a MadReceived,
    sa: SaMad,
    port: PortId,
    /// Came with the SM_Key.
    trusted: bool,
}

impl Request<'_> {
    fn has(&self, component: wire::mad::sa::ComponentMask) -> bool {
        self.sa.component_mask.contains(component)
    }
    /// May the requester know of this port? (IBA 15.4.1.2: those of its partitions.)
    fn may_see(&self, subnet: &Subnet<'_>, port: PortId) -> bool {
        if self.trusted || port == self.port {
            return true;
        }
        let (own, other) = (subnet.topo.port(self.port), subnet.topo.port(port));
        own.zip(other)
            .is_some_and(|(own, other)| other.may_talk_to(own.known_pkeys()))
    }
}

/// Records of one kind, in a row.
struct Records {
    bytes: Vec<u8>,
    /// Bytes from one to the next, a multiple of 8.
    pitch: usize,
    count: usize,
    attr_offset: u16,
}

impl Records {
    fn new(record_len: usize) -> Self {
        let attr_offset = attr_offset(record_len);
        Records {
            bytes: Vec::new(),
            pitch: usize::from(attr_offset) * 8,
            count: 0,
            attr_offset,
        }
    }
    fn one(record: &[u8]) -> Self {
        let mut records = Records::new(record.len());
        records.push(record);
        records
    }
    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.count += 1;
        self.bytes.resize(self.count * self.pitch, 0);
    }
}

type Answer = Result<Records, MadStatus>;

/// The subnet administration.
pub(super) struct Sa {
    groups: member::Groups,
    informs: inform::Informs,
    services: service::Services,
    rmpp: rmpp::Senders,
    out: VecDeque<MadSend>,
}

impl Sa {
    pub(super) fn new(config: &SmConfig, first_tid: u32) -> Self {
        Sa {
            groups: member::Groups::new(config),
            informs: inform::Informs::new(first_tid, config.report_timeout),
            services: service::Services::default(),
            rmpp: rmpp::Senders::default(),
            out: VecDeque::new(),
        }
    }

    /// Who subscribed to what.
    pub(super) fn subscriptions(&self) -> impl Iterator<Item = (Gid, &InformInfo)> {
        self.informs.subscriptions()
    }

    /// Forgets all that clients registered.
    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.informs.clear();
        self.services = service::Services::default();
        self.rmpp = rmpp::Senders::default();
        self.out.clear();
    }

    /// A MAD for QP1.
    pub(super) fn handle(&mut self, now: Instant, subnet: &Subnet<'_>, mad: &MadReceived) {
        let counters = subnet.counters;
        let Some(sa) = SaMad::parse(&mad.mad[..])
            .filter(|s| s.header.mgmt_class == MgmtClass::SUBN_ADM && s.header.base_version == 1)
        else {
            return counters.add(Counter::SaBad);
        };
        let Some(port) = subnet.topo.by_lid(mad.slid) else {
            return counters.add(Counter::SaStrangers);
        };
        if sa.header.method == Method::REPORT_RESP {
            self.informs.answered(sa.header.tid as u32, mad.slid);
            return self.informs.pump(now, subnet, &mut self.out);
        }
        if sa.rmpp.active && sa.rmpp.version == 1 {
            let whole = sa.rmpp.first && sa.rmpp.last && sa.rmpp.segment == 1;
            match sa.rmpp.kind {
                RmppHeader::DATA if whole && !sa.header.method.is_response() => {
                    self.out.push_back(rmpp::acknowledge(mad, &sa))
                }
                RmppHeader::DATA => return counters.add(Counter::SaBad),
                _ => return self.rmpp.handle(now, mad, &sa, &mut self.out, counters),
            }
        } else if sa.header.method.is_response() {
            return counters.add(Counter::Ignored);
        }
        if sa.sm_key != 0 && sa.sm_key != subnet.config.sm_key {
            return counters.add(Counter::SaBadKey);
        }
        counters.add(Counter::SaRequests);
        let request = Request {
            mad,
            sa,
            port,
            trusted: sa.sm_key != 0,
        };
        if sa.header.class_version != 2 {
            return self.respond(now, &request, Err(MadStatus::BAD_VERSION), counters);
        }
        let answer = self.answer(now, subnet, &request);
        self.respond(now, &request, answer, counters);
    }

    fn answer(&mut self, now: Instant, subnet: &Subnet<'_>, request: &Request<'_>) -> Answer {
        let (method, attr) = (request.sa.header.method, request.sa.header.attr_id);
        let data = &request.sa.data;
        match (method, attr) {
            (Method::GET, AttrId::CLASS_PORT_INFO) => Ok(class_port_info()),
            (Method::SET, AttrId::INFORM_INFO) => {
                let info = InformInfo::parse(data).unwrap_or_default();
                self.informs.set(subnet, request, info)
            }
            (Method::GET | Method::GET_TABLE, AttrId::PATH_RECORD) => {
                let record = PathRecord::parse(data).unwrap_or_default();
                path::query(subnet, &self.groups, request, record)
            }
            (_, AttrId::MC_MEMBER_RECORD) => {
                let record = McMemberRecord::parse(data).unwrap_or_default();
                let outcome = match method {
                    Method::SET => self.groups.join(subnet, request, record),
                    Method::DELETE => self.groups.leave(subnet, request, record),
                    Method::GET | Method::GET_TABLE => {
                        return Ok(self.groups.query(subnet, request));
                    }
                    _ => return Err(MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED),
                };
                self.report_groups(now, subnet);
                outcome.map(|record| Records::one(&record.emit()))
            }
            (_, AttrId::SERVICE_RECORD) => {
                let record = ServiceRecord::parse(data).unwrap_or_default();
                match method {
                    Method::SET => self.services.set(now, subnet, request, record),
                    Method::DELETE => self.services.delete(subnet, request),
                    Method::GET | Method::GET_TABLE => {
                        Ok(self.services.query(now, subnet, request))
                    }
                    _ => Err(MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED),
                }
            }
            (Method::GET | Method::GET_TABLE, AttrId::INFORM_INFO_RECORD) => {
                Ok(self.informs.query(subnet, request))
            }
            (Method::GET | Method::GET_TABLE, _) => {
                records::query(subnet, request).ok_or(MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED)
            }
            _ => Err(MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED),
        }
    }

    fn respond(
        &mut self,
        now: Instant,
        request: &Request<'_>,
        answer: Answer,
        counters: &Counters,
    ) {
        let table = request.sa.header.method == Method::GET_TABLE;
        let answer = answer.and_then(|records| match records.count {
            _ if table => Ok(records),
            0 => Err(MadStatus::SA_NO_RECORDS),
            1 => Ok(records),
            _ => Err(MadStatus::SA_TOO_MANY_RECORDS),
        });
        match answer {
            Err(status) => {
                counters.add(Counter::SaErrors);
                self.refuse(request.mad, &request.sa, status);
            }
            Ok(records) => {
                let mut response = request.sa.response(MadStatus::OK);
                response.rmpp = RmppHeader::default();
                response.sm_key = 0;
                response.attr_offset = records.attr_offset;
                response.data = [0; DATA_LEN];
                if table {
                    self.rmpp.start(
                        now,
                        request.mad,
                        response,
                        records.bytes,
                        &mut self.out,
                        counters,
                    );
                } else {
                    self.out.push_back(
                        request
                            .mad
                            .reply(Box::new(response.with_data(&records.bytes).emit())),
                    );
                }
            }
        }
    }

    /// Refuses a request without a look at it.
    pub(super) fn refuse(&mut self, mad: &MadReceived, request: &SaMad, status: MadStatus) {
        let mut response = request.response(status);
        response.rmpp = RmppHeader::default();
        response.sm_key = 0;
        response.attr_offset = 0;
        self.out.push_back(mad.reply(Box::new(response.emit())));
    }

    /// Tells subscribers of groups that came and went.
    fn report_groups(&mut self, now: Instant, subnet: &Subnet<'_>) {
        for (trap, mgid, pkey) in self.groups.take_news() {
            let audience = inform::Audience::Group(pkey);
            self.informs
                .report(now, subnet, trap, mgid, audience, &mut self.out);
        }
    }

    /// A port came into service.
    pub(super) fn port_up(&mut self, now: Instant, subnet: &Subnet<'_>, id: PortId) {
        self.report_port(now, subnet, id, wire::mad::attr::TrapNumber::GID_IN_SERVICE);
    }

    /// Ends the subscriptions of a port.
    pub(super) fn drop_subscriptions(&mut self, lid: Lid, guid: Guid) {
        self.informs.drop_port(lid, guid);
    }

    /// A port is gone or began anew: frees all that it registered.
    pub(super) fn port_gone(&mut self, now: Instant, subnet: &Subnet<'_>, id: PortId) {
        let Some(port) = subnet.topo.port(id) else {
            return;
        };
        self.groups.drop_port(port.guid);
        self.informs.drop_port(port.lid, port.guid);
        self.services.drop_port(subnet.gid(port));
        self.rmpp.drop_port(port.lid);
        self.report_groups(now, subnet);
        if port.announced {
            self.report_port(
                now,
                subnet,
                id,
                wire::mad::attr::TrapNumber::GID_OUT_OF_SERVICE,
            );
        }
    }

    fn report_port(
        &mut self,
        now: Instant,
        subnet: &Subnet<'_>,
        id: PortId,
        trap: wire::mad::attr::TrapNumber,
    ) {
        let Some(port) = subnet.topo.port(id) else {
            return;
        };
        let audience = inform::Audience::PeersOf(port.known_pkeys().collect());
        self.informs
            .report(now, subnet, trap, subnet.gid(port), audience, &mut self.out);
    }

    /// The configuration changed: groups that exist from the start, and who may be a member.
    pub(super) fn reconfigure(&mut self, now: Instant, subnet: &Subnet<'_>) {
        self.groups.reconfigure(subnet);
        self.report_groups(now, subnet);
    }

    pub(super) fn all_groups_dirty(&mut self) {
        self.groups.all_dirty();
    }
    pub(super) fn limit_mlids(&mut self, capacity: Option<u16>) {
        self.groups.limit_mlids(capacity);
    }
    pub(super) fn has_dirty_groups(&self) -> bool {
        self.groups.has_dirty()
    }
    /// Multicast LIDs whose trees must change.
    pub(super) fn take_dirty_groups(&mut self) -> BTreeMap<Lid, Change> {
        self.groups.take_dirty()
    }
    pub(super) fn groups(&self) -> &member::Groups {
        &self.groups
    }

    pub(super) fn poll_transmit(&mut self) -> Option<MadSend> {
        self.out.pop_front()
    }
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [
            self.informs.poll_timeout(),
            self.rmpp.poll_timeout(),
            self.services.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }
    pub(super) fn handle_timeout(&mut self, now: Instant, subnet: &Subnet<'_>) {
        self.informs.handle_timeout(now, &mut self.out, subnet);
        self.rmpp
            .handle_timeout(now, &mut self.out, subnet.counters);
        self.services.handle_timeout(now);
    }
}

/// What this SA can do: optional records, multicast, matching of CapabilityMask bits, send-only full members.
fn class_port_info() -> Records {
    const IS_GET_SET_NOTICE: u16 = 1 << 1;
    const IS_SUBNET_OPTIONAL_RECORDS_SUPPORTED: u16 = 1 << 8;
    const IS_UD_MULTICAST_SUPPORTED: u16 = 1 << 9;
    const IS_PORT_INFO_CAP_MASK_MATCH_SUPPORTED: u16 = 1 << 13;
    let info = ClassPortInfo {
        base_version: 1,
        class_version: 2,
        capability_mask: IS_GET_SET_NOTICE
            | IS_SUBNET_OPTIONAL_RECORDS_SUPPORTED
            | IS_UD_MULTICAST_SUPPORTED
            | IS_PORT_INFO_CAP_MASK_MATCH_SUPPORTED,
        capability_mask2: ClassPortInfo::SA_IS_SEND_ONLY_FULL_MEMBER_SUPPORTED,
        resp_time_value: 16,
        redirect_qp: Qpn::GSI,
        redirect_q_key: QKey::GSI,
        trap_q_key: QKey::GSI,
        ..ClassPortInfo::default()
    };
    Records {
        attr_offset: 0,
        ..Records::one(&info.emit())
    }
}

/// A retry after this time suits all that waits for an answer of a client.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
