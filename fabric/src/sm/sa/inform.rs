//! Subscriptions and reports (IBA 13.4.9 to 13.4.12, 15.2.5.12).

use super::super::counters::{Counter, Counters};
use super::super::topology::{PortData, PortId};
use super::records::matches;
use super::{Answer, Records, Request, Subnet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use verbs::MadSend;
use wire::mad::attr::{InformInfo, InformInfoRecord, Notice, TrapNumber};
use wire::mad::sa::ComponentMask;
use wire::mad::{AttrId, MadStatus, Method, SaMad};
use wire::{Gid, Guid, Lid, PKey, QKey};

/// Subscriptions of one port.
const MAX_PER_PORT: usize = 64;
/// Reports that wait for an answer; what is more goes out once and is not repeated.
const MAX_REPORTS: usize = 65_536;
const REPORT_RETRIES: u8 = 3;

/// What a report is about: decides who may have it (IBA 15.4.1.2).
#[derive(Clone, Copy)]
pub(super) enum About<'a> {
    Port(&'a PortData),
    Group(PKey),
}

struct Subscription {
    port: PortId,
    guid: Guid,
    gid: Gid,
    /// Where reports go.
    to: MadSend,
    info: InformInfo,
}

struct Report {
    to: Lid,
    mad: MadSend,
    deadline: Instant,
    retries: u8,
}

pub(super) struct Informs {
    subscriptions: Vec<Subscription>,
    reports: BTreeMap<u32, Report>,
    deadlines: BTreeSet<(Instant, u32)>,
    next_tid: u32,
    timeout: Duration,
}

impl Informs {
    pub(super) fn new(first_tid: u32, timeout: Duration) -> Self {
        Informs {
            subscriptions: Vec::new(),
            reports: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            next_tid: first_tid,
            timeout,
        }
    }
    pub(super) fn clear(&mut self) {
        self.subscriptions.clear();
        self.reports.clear();
        self.deadlines.clear();
    }

    /// Who subscribed to what.
    pub(super) fn subscriptions(&self) -> impl Iterator<Item = (Gid, &InformInfo)> {
        self.subscriptions.iter().map(|s| (s.gid, &s.info))
    }

    /// Set(InformInfo): the answer repeats the request.
    pub(super) fn set(
        &mut self,
        subnet: &Subnet<'_>,
        request: &Request<'_>,
        asked: InformInfo,
    ) -> Answer {
        let subscribe = match asked.subscribe {
            0 => false,
            1 => true,
            _ => return Err(MadStatus::SA_REQ_INVALID),
        };
        let Some(port) = subnet.topo.port(request.port) else {
            return Err(MadStatus::SA_REQ_INVALID);
        };
        // A subscription names no queue pair: it is for the one that asks. Its end names it (IBA 13.4.8.3).
        let qpn = if subscribe || asked.qpn.0 == 0 {
            request.mad.src_qp
        } else {
            asked.qpn
        };
        let info = InformInfo {
            qpn,
            subscribe: 1,
            resp_time_value: 0,
            ..asked
        };
        let found = self
            .subscriptions
            .iter()
            .position(|s| s.guid == port.guid && s.info == info);
        match (subscribe, found) {
            (true, None) => {
                if self
                    .subscriptions
                    .iter()
                    .filter(|s| s.guid == port.guid)
                    .count()
                    >= MAX_PER_PORT
                {
                    return Err(MadStatus::SA_NO_RESOURCES);
                }
                let to = request.mad.reply(request.mad.mad.clone());
                self.subscriptions.push(Subscription {
                    port: request.port,
                    guid: port.guid,
                    gid: subnet.gid(port),
                    to,
                    info,
                });
            }
            // The way to the subscriber may have changed.
            (true, Some(at)) => {
                self.subscriptions[at].to = request.mad.reply(request.mad.mad.clone())
            }
            (false, Some(at)) => {
                self.subscriptions.remove(at);
            }
            (false, None) => return Err(MadStatus::SA_REQ_INVALID),
        }
        // OpenSM's offset of 36 bytes is 4, not 5.
        Ok(Records {
            attr_offset: 4,
            ..Records::one(&asked.emit())
        })
    }

    pub(super) fn query(&self, subnet: &Subnet<'_>, request: &Request<'_>) -> Records {
        let mut records = Records::new(InformInfoRecord::LEN);
        let own = subnet.topo.port(request.port).map(|p| p.guid);
        for (index, s) in (0u16..).zip(&self.subscriptions) {
            let record = InformInfoRecord {
                subscriber_gid: s.gid,
                index,
                inform_info: s.info,
            }
            .emit();
            if (request.trusted || own == Some(s.guid))
                && matches(
                    request.sa.component_mask.0,
                    &request.sa.data,
                    &record,
                    &[(0, 0, 128), (1, 128, 16)],
                )
            {
                records.push(&record);
            }
        }
        records
    }

    /// Tells those who subscribed and may know.
    pub(super) fn report(
        &mut self,
        now: Instant,
        subnet: &Subnet<'_>,
        trap: TrapNumber,
        gid: Gid,
        about: About<'_>,
        out: &mut VecDeque<MadSend>,
    ) {
        let issuer_gid = subnet
            .topo
            .own_port()
            .map(|p| subnet.gid(p))
            .unwrap_or_default();
        let notice = Notice::gid_event(trap, gid, subnet.own_lid(), issuer_gid);
        for s in &self.subscriptions {
            let Some(port) = subnet.topo.port(s.port) else {
                continue;
            };
            let allowed = match about {
                About::Port(other) => port.shares_pkey(other),
                About::Group(pkey) => port.pkey_like(pkey).is_some(),
            };
            if !allowed || !wants(&s.info, &notice) {
                continue;
            }
            self.next_tid = self.next_tid.wrapping_add(1);
            let tid = self.next_tid;
            let mad = SaMad::request(
                Method::REPORT,
                AttrId::NOTICE,
                ComponentMask(0),
                &notice.emit(),
                tid.into(),
            );
            let mad = MadSend {
                remote_qpn: s.info.qpn,
                q_key: QKey::GSI,
                mad: Box::new(mad.emit()),
                ..s.to.clone()
            };
            subnet.counters.add(Counter::Reports);
            if self.reports.len() < MAX_REPORTS {
                self.deadlines.insert((now + self.timeout, tid));
                self.reports.insert(
                    tid,
                    Report {
                        to: s.to.dlid,
                        mad: mad.clone(),
                        deadline: now + self.timeout,
                        retries: 0,
                    },
                );
            }
            out.push_back(mad);
        }
    }

    /// A ReportResp.
    pub(super) fn answered(&mut self, tid: u32, from: Lid) {
        if self.reports.get(&tid).is_some_and(|r| r.to == from)
            && let Some(report) = self.reports.remove(&tid)
        {
            self.deadlines.remove(&(report.deadline, tid));
        }
    }

    pub(super) fn drop_port(&mut self, lid: Lid, guid: Guid) {
        self.subscriptions.retain(|s| s.guid != guid);
        self.reports.retain(|tid, report| {
            let keep = report.to != lid;
            if !keep {
                self.deadlines.remove(&(report.deadline, *tid));
            }
            keep
        });
    }
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        out: &mut VecDeque<MadSend>,
        counters: &Counters,
    ) {
        while let Some(&(at, tid)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.remove(&(at, tid));
            let Some(report) = self.reports.get_mut(&tid) else {
                continue;
            };
            report.retries += 1;
            report.deadline = now + self.timeout;
            if report.retries > REPORT_RETRIES {
                counters.add(Counter::ReportsLost);
                self.reports.remove(&tid);
            } else {
                self.deadlines.insert((report.deadline, tid));
                out.push_back(report.mad.clone());
            }
        }
    }
}

/// Does a subscription cover the notice?
fn wants(info: &InformInfo, notice: &Notice) -> bool {
    let source = info.gid != Gid::default();
    info.is_generic == 1
        && (info.trap_number == TrapNumber::ALL || info.trap_number == notice.trap_number)
        && (info.notice_type == 0xffff || info.notice_type == u16::from(notice.notice_type.0))
        && (info.producer_type.0 == 0xff_ffff || info.producer_type == notice.producer_type)
        && if source {
            info.gid == notice.issuer_gid
        } else {
            let (begin, end) = (
                info.lid_range_begin.0,
                info.lid_range_end.0.max(info.lid_range_begin.0),
            );
            begin == 0xffff || begin == 0 || (begin..=end).contains(&notice.issuer_lid.0)
        }
}
