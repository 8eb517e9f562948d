//! Asking for memberships and giving them up.

use super::Groups;
use crate::error::{JoinError, explain, mismatch};
use crate::group::{Ask, Group, Request, Want};
use crate::output::{Output, RequestTag};
use std::time::Instant;
use wire::Gid;
use wire::mad::attr::{JoinState, McMemberRecord, Selector, mcmember};
use wire::mad::sa::ComponentMask;

/// What becomes of a group after it was looked at.
pub(super) enum Fate {
    /// It stays, to be looked at again then.
    Keep(Option<Instant>),
    /// It is of no use any more.
    Gone,
}

const NONE: JoinState = JoinState(0);

impl Groups {
    /// What to do about a group now.
    pub(super) fn decide(&mut self, now: Instant, mgid: Gid, group: &mut Group) -> Fate {
        let idle = self.config.send_only_idle;
        let want = group.want(now, idle);
        if group.request.is_some() || self.port.is_none() {
            return Fate::Keep(None);
        }
        if want == Want::Nothing || (want == Want::SendOnly && group.attached) {
            self.deactivate(mgid, group);
            self.unalias(mgid, group);
            if group.held != NONE {
                if group.in_backoff(now) {
                    return Fate::Keep(group.not_before);
                }
                self.ask_leave(mgid, group);
                return Fate::Keep(None);
            }
            if want == Want::Nothing {
                return Fate::Gone;
            }
        }
        let expiry = group
            .last_used
            .map(|used| used + idle)
            .filter(|at| *at > now && group.users + group.aliases == 0);
        if mgid != self.broadcast && !self.is_ready() {
            // It is looked at again when the broadcast group is there.
            return Fate::Keep(expiry);
        }
        if group.active.is_some() && !group.refresh && (want != Want::Full || group.attached) {
            return Fate::Keep(expiry);
        }
        if group.in_backoff(now) {
            return Fate::Keep(group.not_before);
        }
        if want == Want::SendOnly
            && group.failed
            && group.active.is_none()
            && group.queue.is_empty()
            && !group.alias
            && group.aliases == 0
        {
            // The next packet will ask again.
            return Fate::Keep(expiry);
        }
        self.ask_join(now, mgid, group);
        Fate::Keep(None)
    }

    /// The ways to ask for what is wanted, to be tried in this order while the SA refuses.
    fn plan(&self, now: Instant, mgid: Gid, group: &Group) -> &'static [Ask] {
        const fn ask(state: JoinState, create: bool) -> Ask {
            Ask { state, create }
        }
        // RFC 4391 section 5: find out the parameters; create only where allowed.
        const BROADCAST: &[Ask] = &[ask(JoinState::FULL, false), ask(JoinState::FULL, true)];
        // RFC 4391 section 10: by the broadcast group's parameters. If they are refused the group may exist with others.
        const FULL: &[Ask] = &[ask(JoinState::FULL, true), ask(JoinState::FULL, false)];
        // As Linux, then as the RFC.
        const SEND_ONLY: &[Ask] = &[
            ask(JoinState::SEND_ONLY_FULL, true),
            ask(JoinState::SEND_ONLY_NON, false),
        ];
        if mgid == self.broadcast {
            return if self.config.create_broadcast.is_some() {
                BROADCAST
            } else {
                &BROADCAST[..1]
            };
        }
        match group.want(now, self.config.send_only_idle) {
            Want::Full => FULL,
            // A fallback without routers in it would be a hole.
            _ if self.config.send_only_creates && !self.is_all_routers(mgid) => SEND_ONLY,
            _ => &SEND_ONLY[1..],
        }
    }

    fn record(&self, mgid: Gid, ask: Ask) -> (McMemberRecord, ComponentMask) {
        let (port_gid, p_key) = self
            .port
            .map(|port| (port.gid, port.p_key))
            .unwrap_or_default();
        let plain = McMemberRecord {
            mgid,
            port_gid,
            p_key,
            join_state: ask.state,
            ..McMemberRecord::default()
        };
        let selectors = McMemberRecord {
            mtu_selector: Selector::EXACTLY,
            rate_selector: Selector::EXACTLY,
            ..plain
        };
        let record = match (self.broadcast(), self.config.create_broadcast) {
            _ if !ask.create => return (plain, mcmember::JOIN),
            (Some(b), _) if mgid != self.broadcast => McMemberRecord {
                q_key: b.q_key,
                mtu: b.mtu,
                rate: b.rate,
                sl: b.sl,
                tclass: b.tclass,
                flow_label: b.flow_label,
                hop_limit: b.hop_limit,
                ..selectors
            },
            (_, Some(p)) => McMemberRecord {
                q_key: p.q_key,
                mtu: p.mtu,
                rate: p.rate,
                sl: p.sl,
                tclass: p.tclass,
                flow_label: p.flow_label,
                hop_limit: p.hop_limit,
                ..selectors
            },
            _ => return (plain, mcmember::JOIN),
        };
        (record, mcmember::CREATE)
    }

    fn tag(&mut self, mgid: Gid) -> RequestTag {
        self.next_tag += 1;
        let tag = RequestTag(self.next_tag);
        self.requests.insert(tag, mgid);
        tag
    }

    fn ask_join(&mut self, now: Instant, mgid: Gid, group: &mut Group) {
        let plan = self.plan(now, mgid, group);
        let Some(&ask) = plan.get(group.step).or(plan.first()) else {
            return;
        };
        let (record, component_mask) = self.record(mgid, ask);
        let tag = self.tag(mgid);
        group.refresh = false;
        group.not_before = None;
        group.last_ask = Some(now);
        group.attempts += 1;
        group.request = Some((tag, Request::Join(ask, group.held)));
        group.held = group.held | ask.state;
        self.counters.joins += 1;
        self.outputs.push_back(Output::Join {
            tag,
            record,
            component_mask,
        });
    }

    fn ask_leave(&mut self, mgid: Gid, group: &mut Group) {
        let lowest = JoinState(group.held.0 & group.held.0.wrapping_neg());
        let join_state = if group.leave_singly {
            lowest
        } else {
            group.held
        };
        let port_gid = self.port.map(|port| port.gid).unwrap_or_default();
        let tag = self.tag(mgid);
        group.not_before = None;
        group.request = Some((tag, Request::Leave(join_state)));
        self.counters.leaves += 1;
        self.outputs.push_back(Output::Leave {
            tag,
            mgid,
            port_gid,
            join_state,
        });
    }

    pub(super) fn joined(
        &mut self,
        now: Instant,
        mgid: Gid,
        group: &mut Group,
        ask: Ask,
        record: McMemberRecord,
    ) {
        self.counters.joined += 1;
        group.step = 0;
        group.failed = false;
        group.backoff = self.config.backoff_min;
        // Some SAs tell all memberships of the port, some the one that was asked for.
        group.held = group.held | record.join_state;
        if mgid != self.broadcast && self.broadcast().is_none() {
            // Asked before the broadcast group was lost; it is asked again after that.
            return;
        }
        group.last_error = self
            .broadcast()
            .filter(|_| mgid != self.broadcast)
            .and_then(|b| mismatch(&record, b));
        let before = group.active.replace(record);
        let changed = before.is_none_or(|before| !same_group(&before, &record));
        if ask.state == JoinState::FULL {
            let old = before.filter(|_| group.attached);
            if old.is_none_or(|old| old.mlid != record.mlid) {
                self.outputs.extend(old.map(|old| Output::Detach {
                    mgid,
                    mlid: old.mlid,
                }));
                self.outputs.push_back(Output::Attach {
                    mgid,
                    mlid: record.mlid,
                });
            }
            group.attached = true;
        }
        if changed {
            self.outputs.push_back(Output::Route { mgid, record });
        }
        // The new route replaced the alias.
        group.via = None;
        self.unalias(mgid, group);
        if mgid == self.broadcast {
            if changed {
                self.outputs.push_back(Output::BroadcastUp(record));
            }
            self.spread_rejoins(now, changed);
        }
        self.flush(now, mgid, group);
    }

    /// The broadcast group was joined again: the others follow, each at a time of its own; all of them if its parameters changed.
    fn spread_rejoins(&mut self, now: Instant, changed: bool) {
        for group in self.groups.values_mut() {
            group.refresh |= changed && (group.active.is_some() || group.request.is_some());
            if group.refresh && !group.in_backoff(now) {
                group.not_before =
                    Some(now + Self::up_to(&mut self.rng, self.config.rejoin_spread));
            }
        }
    }

    pub(super) fn not_joined(
        &mut self,
        now: Instant,
        mgid: Gid,
        group: &mut Group,
        (ask, before): (Ask, JoinState),
        error: JoinError,
    ) {
        let refusal = error.is_refusal();
        let (record, mask) = self.record(mgid, ask);
        group.last_error = Some(explain(&record, mask, &error));
        let in_use = group.active.is_some() && group.attached == (ask.state == JoinState::FULL);
        group.refresh |= group.active.is_some();
        if refusal {
            self.counters.refused += 1;
            // A membership held before may still be held; this one was not given.
            group.held = before;
            let plan = self.plan(now, mgid, group);
            group.step = match plan.iter().position(|planned| *planned == ask) {
                Some(step) => step + 1,
                // Something else is wanted by now.
                None => 0,
            };
            if group.step < plan.len() {
                return;
            }
            if in_use {
                self.deactivate(mgid, group);
            }
        } else {
            self.counters.unanswered += 1;
        }
        group.step = 0;
        group.failed = true;
        self.back_off(now, group);
        if group.active.is_some() || group.users > 0 {
            self.counters.dropped_no_group += self.clear_queue(group);
        } else {
            self.fall_back(now, mgid, group, refusal);
        }
    }

    pub(super) fn attach_refused(
        &mut self,
        now: Instant,
        mgid: Gid,
        group: &mut Group,
        error: JoinError,
    ) {
        group.attached = false;
        self.deactivate(mgid, group);
        group.last_error = Some(format!("{mgid}: {error}"));
        group.failed = true;
        self.back_off(now, group);
    }

    pub(super) fn left(
        &mut self,
        now: Instant,
        group: &mut Group,
        states: JoinState,
        result: Result<(), JoinError>,
    ) {
        match result {
            Err(error) if !error.is_refusal() => {
                group.last_error = Some(format!("leaving: {error}"));
                self.back_off(now, group);
                return;
            }
            // Some of these memberships the SA does not know of, and then it ends none.
            Err(_) if states.0.count_ones() > 1 => group.leave_singly = true,
            // Done, or there was nothing to do.
            _ => group.held = JoinState(group.held.0 & !states.0),
        }
        group.backoff = self.config.backoff_min;
        if group.held == NONE {
            group.leave_singly = false;
        }
    }

    fn back_off(&mut self, now: Instant, group: &mut Group) {
        let wait = group.backoff.min(self.config.backoff_max);
        let jitter = Self::up_to(&mut self.rng, wait / 4);
        group.backoff = (wait * 2).min(self.config.backoff_max);
        group.not_before = Some(now + wait - jitter);
    }

    /// Ends the use of a membership; the SA still holds it.
    pub(super) fn deactivate(&mut self, mgid: Gid, group: &mut Group) {
        let Some(record) = group.active.take() else {
            return;
        };
        // What is being asked may be answered by an SA that forgets it.
        group.refresh = group.request.is_some();
        if mgid == self.broadcast {
            self.outputs.push_back(Output::BroadcastDown);
        }
        for (aliased, group) in self
            .groups
            .iter_mut()
            .filter(|(_, group)| group.via == Some(mgid))
        {
            group.via = None;
            self.outputs.push_back(Output::Unroute { mgid: *aliased });
        }
        self.outputs.push_back(Output::Unroute { mgid });
        if std::mem::take(&mut group.attached) {
            self.outputs.push_back(Output::Detach {
                mgid,
                mlid: record.mlid,
            });
        }
        if mgid == self.broadcast {
            // Nothing works without it: not its Q_Key, not its parameters.
            let others: Vec<Gid> = self.groups.keys().copied().collect();
            for other in others {
                if let Some(mut group) = self.groups.remove(&other) {
                    self.deactivate(other, &mut group);
                    self.unalias(other, &mut group);
                    self.counters.dropped_no_broadcast += self.clear_queue(&mut group);
                    self.groups.insert(other, group);
                }
            }
        }
    }
}

/// Would packets to both be the same?
fn same_group(a: &McMemberRecord, b: &McMemberRecord) -> bool {
    let key = |r: &McMemberRecord| {
        (
            r.mlid,
            r.q_key,
            r.mtu,
            r.rate,
            r.sl,
            r.tclass,
            r.flow_label,
            r.hop_limit,
            r.p_key,
        )
    };
    key(a) == key(b)
}
