//! The join machine: public face, port and host events. Joins and leaves are in `join`, packets and fallbacks in `send`.

mod join;
mod send;

use crate::config::GroupsConfig;
use crate::error::JoinError;
use crate::group::{Group, Request};
use crate::output::{GroupsCounters, Output, RequestTag};
use crate::status::GroupStatus;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::ipoib::mgid::{broadcast_gid, ipv4_multicast_gid, ipv6_multicast_gid};
use wire::mad::attr::{JoinState, McMemberRecord};
use wire::{Gid, PKey};

/// A report that a group was created is about our own join if that is not older.
const OWN_CREATION: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortId {
    gid: Gid,
    p_key: PKey,
}

/// All groups of an interface.
///
/// It is told about the port, the memberships of the host's stack, packets to groups without a route, results of its requests and reports of
/// the SA, and asks for what has to be done. It promises: nothing is joined before the broadcast group; at most one request per group is
/// outstanding, so that a late leave never undoes a join; every wanted group is asked for until it is joined, at waits up to
/// [`GroupsConfig::backoff_max`]; what is not wanted any more is left; memory is bounded by the host's memberships,
/// [`GroupsConfig::max_groups`] and [`GroupsConfig::queue_bytes`].
#[derive(Debug)]
pub struct Groups {
    config: GroupsConfig,
    rng: Rng,
    port: Option<PortId>,
    /// GID of the port when it was last up.
    last_gid: Option<Gid>,
    /// The host's memberships with their number of users.
    wanted: BTreeMap<IpAddr, u32>,
    groups: BTreeMap<Gid, Group>,
    timers: BTreeSet<(Instant, Gid)>,
    /// MGID of the broadcast group while the port is up.
    broadcast: Gid,
    requests: BTreeMap<RequestTag, Gid>,
    next_tag: u64,
    /// Groups to look at before the call returns.
    work: VecDeque<Gid>,
    outputs: VecDeque<Output>,
    queued_bytes: usize,
    counters: GroupsCounters,
}

impl Groups {
    /// No port, no groups. `seed`: for jitter.
    pub fn new(config: GroupsConfig, seed: u64) -> Self {
        Groups {
            config,
            rng: Rng::with_seed(seed),
            port: None,
            last_gid: None,
            wanted: BTreeMap::new(),
            groups: BTreeMap::new(),
            timers: BTreeSet::new(),
            broadcast: Gid::default(),
            requests: BTreeMap::new(),
            next_tag: 0,
            work: VecDeque::new(),
            outputs: VecDeque::new(),
            queued_bytes: 0,
            counters: GroupsCounters::default(),
        }
    }

    /// The port can be used: it is Active, and its LID, GID and P_Key are known. Starts with the broadcast group. With another GID or P_Key than
    /// before everything starts anew, and the groups of the old partition are left; with the same ones it is a [`Self::reregister`].
    pub fn port_up(&mut self, now: Instant, port_gid: Gid, p_key: PKey) {
        let port = PortId {
            gid: port_gid,
            p_key: p_key.full(),
        };
        if self.port == Some(port) {
            return self.reregister(now);
        }
        self.port_down(now);
        if self.last_gid != Some(port_gid) {
            // The SA takes no requests in the name of a GID that is not the port's any more.
            self.groups.clear();
        }
        self.port = Some(port);
        self.last_gid = Some(port_gid);
        self.broadcast = broadcast_gid(port.p_key, self.config.scope);
        let wanted: Vec<_> = self
            .wanted
            .iter()
            .map(|(ip, users)| (*ip, *users))
            .collect();
        self.current(self.broadcast, None).users = 1;
        for (ip, users) in wanted {
            let mgid = self.mgid(ip, port);
            self.current(mgid, Some(ip)).users += users;
        }
        self.touch_all();
        self.run(now);
    }

    /// The port cannot be used any more. Memberships are kept in mind: those that are not wanted at the next [`Self::port_up`] are left then.
    pub fn port_down(&mut self, _now: Instant) {
        if self.port.take().is_none() {
            return;
        }
        self.work.clear();
        self.timers.clear();
        self.requests.clear();
        let mut groups = std::mem::take(&mut self.groups);
        let broadcast = groups.remove_entry(&self.broadcast);
        for (mgid, mut group) in broadcast.into_iter().chain(groups) {
            if let Some((tag, _)) = group.request.take() {
                self.outputs.push_back(Output::Cancel { tag });
            }
            self.deactivate(mgid, &mut group);
            self.unalias(mgid, &mut group);
            self.counters.dropped_no_broadcast += self.clear_queue(&mut group);
            if group.held != JoinState(0) {
                let attempts = group.attempts;
                let fresh = Group::new(group.ip, self.config.backoff_event);
                let kept = Group {
                    current: false,
                    held: group.held,
                    attempts,
                    last_error: group.last_error,
                    ..fresh
                };
                self.groups.insert(mgid, kept);
            }
        }
        self.work.clear();
    }

    /// The administrator set the interface down while the port works: as [`Self::port_down`], and all memberships are given up. The results do
    /// not matter; requests still outstanding at the next [`Self::port_up`] are to be cancelled, since repeating them would do harm then.
    pub fn leave_all(&mut self, now: Instant) {
        self.port_down(now);
        let Some(port_gid) = self.last_gid.take() else {
            return;
        };
        for (mgid, group) in std::mem::take(&mut self.groups) {
            self.next_tag += 1;
            self.counters.leaves += 1;
            self.outputs.push_back(Output::Leave {
                tag: RequestTag(self.next_tag),
                mgid,
                port_gid,
                join_state: group.held,
            });
        }
    }

    /// Why the broadcast group is not joined, in words, after at least one attempt.
    pub fn broadcast_error(&self) -> Option<&str> {
        self.groups.get(&self.broadcast)?.last_error.as_deref()
    }

    /// The subnet manager asks for everything to be registered again, or lost its memory. Memberships and routes stay in use meanwhile; the
    /// requests are spread over some time, since every port of the subnet does the same now.
    pub fn reregister(&mut self, now: Instant) {
        if self.port.is_none() {
            return;
        }
        let wait = Self::up_to(&mut self.rng, self.config.rejoin_spread);
        for (mgid, group) in &mut self.groups {
            group.refresh |= group.active.is_some() || group.request.is_some();
            group.backoff = self.config.backoff_event;
            // Not later than planned, or frequent events would put it off for ever.
            let planned = group.not_before.unwrap_or(now + wait).min(now + wait);
            group.not_before = (*mgid == self.broadcast).then_some(planned);
        }
        self.touch_all();
        self.run(now);
    }

    /// The host's stack joins a group. Must be balanced by [`Self::leave`]. What is no multicast address is ignored.
    pub fn join(&mut self, now: Instant, ip: IpAddr) {
        if !ip.is_multicast() {
            return;
        }
        *self.wanted.entry(ip).or_default() += 1;
        if let Some(port) = self.port {
            let mgid = self.mgid(ip, port);
            let group = self.current(mgid, Some(ip));
            group.users += 1;
            if group.users == 1 && !group.attached {
                // Not a group that could not be had for sending any more, but one not yet asked for.
                (group.failed, group.not_before, group.step) = (false, None, 0);
            }
            self.work.push_back(mgid);
            self.run(now);
        }
    }

    /// The host's stack leaves a group that it joined.
    pub fn leave(&mut self, now: Instant, ip: IpAddr) {
        let Some(users) = self.wanted.get_mut(&ip) else {
            return;
        };
        *users -= 1;
        if *users == 0 {
            self.wanted.remove(&ip);
        }
        if let Some(port) = self.port {
            let mgid = self.mgid(ip, port);
            if let Some(group) = self.groups.get_mut(&mgid) {
                group.users = group.users.saturating_sub(1);
                if group.users == 0 {
                    // From now on it is wanted only if it is sent to again.
                    group.last_used = None;
                    group.step = 0;
                }
            }
            self.work.push_back(mgid);
            self.run(now);
        }
    }

    /// The data path has used the group's route lately. To be told at intervals shorter than [`GroupsConfig::send_only_idle`], from the
    /// counters of the routes; groups that are only sent to are left otherwise.
    pub fn used(&mut self, now: Instant, mgid: Gid) {
        if let Some(group) = self.groups.get_mut(&mgid) {
            group.last_used = Some(now);
        }
    }

    /// A report (trap 66): the group was created. One that could not be had is asked for again; one that is joined is joined again, since it
    /// may be another one by now.
    pub fn group_created(&mut self, now: Instant, mgid: Gid) {
        let joined_lately = |group: &Group| {
            group
                .last_ask
                .is_some_and(|asked| now < asked + OWN_CREATION)
        };
        match self.groups.get(&mgid) {
            Some(group) if group.active.is_some() && joined_lately(group) => {}
            Some(_) => self.verify(now, mgid),
            None => {}
        }
    }

    /// A report (trap 67): the group was deleted. If it is joined it is joined again, which shows whether the report is late.
    pub fn group_deleted(&mut self, now: Instant, mgid: Gid) {
        if self
            .groups
            .get(&mgid)
            .is_some_and(|group| group.active.is_some())
        {
            self.verify(now, mgid);
        }
    }

    fn verify(&mut self, now: Instant, mgid: Gid) {
        let jitter = Self::up_to(&mut self.rng, self.config.backoff_event);
        if let Some(group) = self.groups.get_mut(&mgid).filter(|group| group.current) {
            group.refresh |= group.active.is_some();
            group.failed = false;
            group.backoff = self.config.backoff_event;
            let earliest = group
                .last_ask
                .map_or(now, |asked| asked + self.config.verify_interval);
            let at = earliest.max(now + jitter);
            // Not later than planned, or frequent reports would put it off for ever.
            group.not_before = Some(group.not_before.unwrap_or(at).min(at));
            self.work.push_back(mgid);
            self.run(now);
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, mgid)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.work.push_back(mgid);
        }
        self.run(now);
    }

    /// The broadcast group while it is joined: the interface's Q_Key, MTU and so on.
    pub fn broadcast(&self) -> Option<&McMemberRecord> {
        self.port?;
        self.groups.get(&self.broadcast)?.active.as_ref()
    }

    /// All groups, for people.
    pub fn snapshot(&self) -> Vec<GroupStatus> {
        self.groups
            .iter()
            .map(|(mgid, group)| group.status(*mgid))
            .collect()
    }

    /// What happened so far.
    pub fn counters(&self) -> GroupsCounters {
        self.counters
    }

    /// Bytes of packets that wait.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// A random time up to `max`.
    fn up_to(rng: &mut Rng, max: Duration) -> Duration {
        Duration::from_micros(rng.u64(0..=max.as_micros() as u64))
    }

    fn mgid(&self, ip: IpAddr, port: PortId) -> Gid {
        match ip {
            IpAddr::V4(ip) => ipv4_multicast_gid(ip, port.p_key, self.config.scope),
            IpAddr::V6(ip) => ipv6_multicast_gid(ip, port.p_key, self.config.scope),
        }
    }

    /// The group, made if it is new, as one of the present partition.
    fn current(&mut self, mgid: Gid, ip: Option<IpAddr>) -> &mut Group {
        // A group that nobody had a reason to expect waits the longer time; after port up any may work soon.
        let backoff = if self.broadcast().is_some() {
            self.config.backoff_min
        } else {
            self.config.backoff_event
        };
        let group = self
            .groups
            .entry(mgid)
            .or_insert_with(|| Group::new(ip, backoff));
        group.current = true;
        group
    }

    /// The broadcast group is joined and not in doubt: others may be joined.
    fn is_ready(&self) -> bool {
        self.groups
            .get(&self.broadcast)
            .is_some_and(Group::is_settled)
    }

    fn touch_all(&mut self) {
        self.work.push_back(self.broadcast);
        self.work.extend(self.groups.keys());
    }

    /// Brings every touched group as far as it can go now.
    fn run(&mut self, now: Instant) {
        while let Some(mgid) = self.work.pop_front() {
            let Some(mut group) = self.groups.remove(&mgid) else {
                continue;
            };
            if let Some(at) = group.timer.take() {
                self.timers.remove(&(at, mgid));
            }
            if let join::Fate::Keep(timer) = self.decide(now, mgid, &mut group) {
                group.timer = timer;
                self.timers.extend(timer.map(|at| (at, mgid)));
                self.groups.insert(mgid, group);
            }
        }
    }

    /// Takes the group of an answered request out of the table; `None` if the request was cancelled.
    fn answered(&mut self, tag: RequestTag) -> Option<(Gid, Group, Request)> {
        let found = self
            .requests
            .remove(&tag)
            .and_then(|mgid| Some((mgid, self.groups.remove(&mgid)?)));
        let Some((mgid, mut group)) = found else {
            self.counters.late_results += 1;
            return None;
        };
        let (_, request) = group.request.take()?;
        Some((mgid, group, request))
    }

    /// The SA's answer to [`Output::Join`], or why there is none.
    pub fn join_result(
        &mut self,
        now: Instant,
        tag: RequestTag,
        result: Result<McMemberRecord, JoinError>,
    ) {
        let Some((mgid, mut group, request)) = self.answered(tag) else {
            return;
        };
        if let Request::Join(ask, before) = request {
            match result {
                Ok(record) if record.mgid == mgid && record.mlid.is_multicast() => {
                    self.joined(now, mgid, &mut group, ask, record);
                }
                Ok(_) => self.not_joined(
                    now,
                    mgid,
                    &mut group,
                    (ask, before),
                    JoinError::Unusable("another group, or no multicast LID"),
                ),
                Err(error) => self.not_joined(now, mgid, &mut group, (ask, before), error),
            }
        }
        self.groups.insert(mgid, group);
        self.after_change(now, mgid);
    }

    /// The SA's answer to [`Output::Leave`], or why there is none.
    pub fn leave_result(&mut self, now: Instant, tag: RequestTag, result: Result<(), JoinError>) {
        let Some((mgid, mut group, request)) = self.answered(tag) else {
            return;
        };
        if let Request::Leave(states) = request {
            self.left(now, &mut group, states, result);
        }
        self.groups.insert(mgid, group);
        self.after_change(now, mgid);
    }

    /// The queue pair could not be attached to the group: the join failed after all.
    pub fn attach_failed(&mut self, now: Instant, mgid: Gid, reason: String) {
        let Some(mut group) = self.groups.remove(&mgid) else {
            return;
        };
        if group.attached {
            self.attach_refused(now, mgid, &mut group, JoinError::Attach(reason));
        }
        self.groups.insert(mgid, group);
        self.after_change(now, mgid);
    }

    /// A group's membership came or went: looks at it and at those that depend on it.
    fn after_change(&mut self, now: Instant, mgid: Gid) {
        if mgid == self.broadcast {
            self.touch_all();
        } else {
            self.work.push_back(mgid);
            self.reroute_aliases(now, mgid);
        }
        self.run(now);
    }
}
