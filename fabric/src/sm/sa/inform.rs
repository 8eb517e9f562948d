//! Subscriptions and reports (IBA 13.4.9 to 13.4.12, 15.2.5.12).

use super::super::counters::Counter;
use super::super::topology::{PortData, PortId};
use super::records::matches;
use super::{Answer, Records, Request, Subnet};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};
use verbs::MadSend;
use wire::mad::attr::{InformInfo, InformInfoRecord, Notice, TrapNumber};
use wire::mad::sa::ComponentMask;
use wire::mad::{AttrId, MadStatus, Method, SaMad};
use wire::{Gid, Guid, Lid, PKey, QKey};

/// Subscriptions of one port.
const MAX_PER_PORT: usize = 64;
/// Reports on the way at once: with thousands of subscribers each piece of news is thousands of them, and each is to be answered.
const WINDOW: usize = 1024;
/// News that waits.
const MAX_NEWS: usize = 8192;
const REPORT_RETRIES: u8 = 3;

/// Who may be told (IBA 15.4.1.2).
pub(super) enum Audience {
    /// Those who may talk to a holder of these keys.
    PeersOf(Vec<PKey>),
    /// Members of this partition.
    Group(PKey),
}

impl Audience {
    fn has(&self, port: &PortData) -> bool {
        match self {
            Audience::PeersOf(keys) => port.may_talk_to(keys.iter().copied()),
            Audience::Group(key) => port.pkey_like(*key).is_some(),
        }
    }
}

struct Subscription {
    port: PortId,
    guid: Guid,
    gid: Gid,
    /// Where reports go.
    to: MadSend,
    info: InformInfo,
}

/// Something that subscribers are told, one after the other.
struct News {
    notice: Notice,
    gid: Gid,
    audience: Audience,
    /// Subscriptions that are left: to this trap, to all.
    left: [Range<SubscriptionId>; 2],
    /// Its place among all that there ever were.
    number: u64,
}

/// Trap number and place among all requests.
type SubscriptionId = (u16, u64);

struct Report {
    to: Lid,
    mad: MadSend,
    deadline: Instant,
    retries: u8,
}

pub(super) struct Informs {
    /// By trap, in the order of the requests.
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    by_port: HashMap<Guid, Vec<SubscriptionId>>,
    next: u64,
    news: VecDeque<News>,
    /// The last news of a GID that nobody was told yet.
    untold: HashMap<Gid, (TrapNumber, u64)>,
    next_news: u64,
    reports: BTreeMap<u32, Report>,
    deadlines: BTreeSet<(Instant, u32)>,
    next_tid: u32,
    timeout: Duration,
}

impl Informs {
    pub(super) fn new(first_tid: u32, timeout: Duration) -> Self {
        Informs {
            subscriptions: BTreeMap::new(),
            by_port: HashMap::new(),
            next: 0,
            news: VecDeque::new(),
            untold: HashMap::new(),
            next_news: 0,
            reports: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            next_tid: first_tid,
            timeout,
        }
    }
    pub(super) fn clear(&mut self) {
        *self = Informs::new(self.next_tid, self.timeout);
    }

    /// Who subscribed to what.
    pub(super) fn subscriptions(&self) -> impl Iterator<Item = (Gid, &InformInfo)> {
        self.subscriptions.values().map(|s| (s.gid, &s.info))
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
        let of_port = self.by_port.entry(port.guid).or_default();
        let is_same =
            |id: &&SubscriptionId| self.subscriptions.get(id).is_some_and(|s| s.info == info);
        match (subscribe, of_port.iter().find(is_same).copied()) {
            (true, None) if of_port.len() >= MAX_PER_PORT => {
                return Err(MadStatus::SA_NO_RESOURCES);
            }
            // The way to the subscriber may have changed.
            (true, found) => {
                let id = found.unwrap_or((info.trap_number.0, self.next));
                if found.is_none() {
                    of_port.push(id);
                    self.next += 1;
                }
                let subscription = Subscription {
                    port: request.port,
                    guid: port.guid,
                    gid: subnet.gid(port),
                    to: request.mad.reply(request.mad.mad.clone()),
                    info,
                };
                self.subscriptions.insert(id, subscription);
            }
            (false, Some(id)) => {
                of_port.retain(|other| *other != id);
                self.subscriptions.remove(&id);
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
        for (index, s) in (0u16..).zip(self.subscriptions.values()) {
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

    /// Tells those who subscribed and may know. What waits to be told already is not told twice.
    pub(super) fn report(
        &mut self,
        now: Instant,
        subnet: &Subnet<'_>,
        trap: TrapNumber,
        gid: Gid,
        audience: Audience,
        out: &mut VecDeque<MadSend>,
    ) {
        if self.untold.get(&gid).is_some_and(|(last, _)| *last == trap) {
            return;
        }
        if self.news.len() >= MAX_NEWS {
            return subnet.counters.add(Counter::NewsDropped);
        }
        let own = subnet.topo.own_port();
        let issuer_gid = own.map(|p| subnet.gid(p)).unwrap_or_default();
        self.news.push_back(News {
            notice: Notice::gid_event(trap, gid, subnet.own_lid(), issuer_gid),
            gid,
            audience,
            left: [trap, TrapNumber::ALL].map(|trap| (trap.0, 0)..(trap.0, self.next)),
            number: self.next_news,
        });
        self.untold.insert(gid, (trap, self.next_news));
        self.next_news += 1;
        self.pump(now, subnet, out);
    }

    /// Sends what the window has room for.
    pub(super) fn pump(&mut self, now: Instant, subnet: &Subnet<'_>, out: &mut VecDeque<MadSend>) {
        while self.reports.len() < WINDOW
            && let Some(news) = self.news.front_mut()
        {
            let last = self.untold.get(&news.gid);
            if last.is_some_and(|(_, number)| *number == news.number) {
                self.untold.remove(&news.gid);
            }
            let next = news.left.iter_mut().find_map(|left| {
                let (&id, s) = self.subscriptions.range(left.clone()).next()?;
                left.start = (id.0, id.1 + 1);
                Some(s)
            });
            let Some(s) = next else {
                self.news.pop_front();
                continue;
            };
            let port = subnet.topo.port(s.port);
            if !wants(&s.info, &news.notice) || !port.is_some_and(|p| news.audience.has(p)) {
                continue;
            }
            self.next_tid = self.next_tid.wrapping_add(1);
            let tid = self.next_tid;
            let mad = SaMad::request(
                Method::REPORT,
                AttrId::NOTICE,
                ComponentMask(0),
                &news.notice.emit(),
                tid.into(),
            );
            let mad = MadSend {
                remote_qpn: s.info.qpn,
                q_key: QKey::GSI,
                mad: Box::new(mad.emit()),
                ..s.to.clone()
            };
            subnet.counters.add(Counter::Reports);
            let deadline = now + self.timeout;
            self.deadlines.insert((deadline, tid));
            let report = Report {
                to: s.to.dlid,
                mad: mad.clone(),
                deadline,
                retries: 0,
            };
            self.reports.insert(tid, report);
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
        for id in self.by_port.remove(&guid).unwrap_or_default() {
            self.subscriptions.remove(&id);
        }
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
        subnet: &Subnet<'_>,
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
                subnet.counters.add(Counter::ReportsLost);
                self.reports.remove(&tid);
            } else {
                self.deadlines.insert((report.deadline, tid));
                out.push_back(report.mad.clone());
            }
        }
        self.pump(now, subnet, out);
    }
}

/// Does a subscription to its trap cover the notice?
fn wants(info: &InformInfo, notice: &Notice) -> bool {
    let source = info.gid != Gid::default();
    info.is_generic == 1
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
