//! A small SA, and an interface that does what the join machine asks, in virtual time. Every step checks what must always hold.

use crate::{Groups, GroupsConfig, JoinError, Output, RequestTag};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use wire::mad::MadStatus;
use wire::mad::attr::{JoinState, McMemberRecord, mcmember};
use wire::mad::sa::ComponentMask;
use wire::{Gid, Guid, Lid, MtuCode, PKey, QKey, RateCode};

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[derive(Debug)]
pub(super) struct Sa {
    pub(super) groups: BTreeMap<Gid, McMemberRecord>,
    pub(super) members: BTreeMap<(Gid, Gid), JoinState>,
    /// Groups that live without members.
    pinned: BTreeSet<Gid>,
    pub(super) has_broadcast: bool,
    pub(super) send_only_full: bool,
    pub(super) refuse: Option<MadStatus>,
    pub(super) q_key: QKey,
    pub(super) next_mlid: u16,
}

impl Sa {
    fn add(&mut self, record: McMemberRecord) {
        self.next_mlid += 1;
        self.groups.insert(
            record.mgid,
            McMemberRecord {
                mlid: Lid(self.next_mlid),
                ..record
            },
        );
    }

    fn default_record(&self, mgid: Gid) -> McMemberRecord {
        let (mtu, rate) = (MtuCode::MTU_2048, RateCode::GBPS_10);
        let p_key = PKey(u16::from_be_bytes([mgid.0[4], mgid.0[5]]));
        McMemberRecord {
            mgid,
            q_key: self.q_key,
            mtu,
            rate,
            p_key,
            ..McMemberRecord::default()
        }
    }

    /// An administrator or another port makes a group.
    pub(super) fn create(&mut self, mgid: &str) {
        let mgid = super::gid(mgid);
        self.pinned.insert(mgid);
        self.add(self.default_record(mgid));
    }

    /// As at a restart of the subnet manager.
    pub(super) fn forget_groups(&mut self) {
        self.groups.clear();
        self.members.clear();
        for mgid in self.pinned.clone() {
            self.add(self.default_record(mgid));
        }
    }

    fn join(
        &mut self,
        asked: McMemberRecord,
        mask: ComponentMask,
    ) -> Result<McMemberRecord, MadStatus> {
        let McMemberRecord {
            mgid,
            port_gid,
            join_state,
            ..
        } = asked;
        if let Some(status) = self.refuse {
            return Err(status);
        }
        if join_state == JoinState::SEND_ONLY_FULL && !self.send_only_full {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        if !self.groups.contains_key(&mgid) {
            if self.has_broadcast && mgid.0[12..] == [0xff; 4] {
                self.add(self.default_record(mgid));
            } else if mask.contains(mcmember::CREATE) && join_state != JoinState::SEND_ONLY_NON {
                self.add(asked);
            } else {
                return Err(MadStatus::SA_REQ_INSUFFICIENT_COMPONENTS);
            }
        }
        let group = self.groups[&mgid];
        if mask.contains(mcmember::CREATE)
            && (asked.q_key, asked.mtu, asked.rate) != (group.q_key, group.mtu, group.rate)
        {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let states = self.members.entry((mgid, port_gid)).or_default();
        *states = *states | join_state;
        Ok(McMemberRecord {
            port_gid,
            join_state: *states,
            ..group
        })
    }

    fn leave(&mut self, mgid: Gid, port_gid: Gid, states: JoinState) -> Result<(), MadStatus> {
        let held = self
            .members
            .get(&(mgid, port_gid))
            .copied()
            .unwrap_or_default();
        if !held.contains(states) {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let rest = JoinState(held.0 & !states.0);
        self.members.insert((mgid, port_gid), rest);
        self.members.retain(|_, states| states.0 != 0);
        let keeps = |states: &JoinState| states.0 & 9 != 0;
        if !self.pinned.contains(&mgid)
            && !self
                .members
                .iter()
                .any(|((m, _), states)| *m == mgid && keeps(states))
        {
            self.groups.remove(&mgid);
            self.members.retain(|(m, _), _| *m != mgid);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Join(McMemberRecord, ComponentMask),
    Leave(Gid, Gid, JoinState),
}

#[derive(Debug)]
enum Event {
    AtSa(RequestTag, Request, bool),
    Joined(RequestTag, Result<McMemberRecord, JoinError>),
    Left(RequestTag, Result<(), JoinError>),
}

pub(super) struct Sim {
    pub(super) groups: Groups,
    pub(super) sa: Sa,
    pub(super) now: Instant,
    pub(super) p_key: PKey,
    /// Percent of requests that are not answered; half of them reach the SA.
    pub(super) loss: u64,
    /// Longest way to the SA.
    pub(super) delay: Duration,
    rng: Rng,
    events: BTreeMap<(Instant, u64), Event>,
    order: u64,
    last_arrival: Instant,
    pending: BTreeMap<RequestTag, Gid>,

    pub(super) asked: Vec<(Gid, JoinState, ComponentMask)>,
    pub(super) asked_at: Vec<Instant>,
    pub(super) carrier: bool,
    pub(super) broadcast_ups: u32,
    pub(super) attached: BTreeMap<Gid, Lid>,
    pub(super) routes: BTreeMap<Gid, McMemberRecord>,
    pub(super) aliases: BTreeMap<Gid, Gid>,
    pub(super) sent: Vec<(Gid, Vec<u8>)>,
}

pub(super) const PORT: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0001_a0b1));

impl Sim {
    pub(super) fn new(config: GroupsConfig, seed: u64) -> Self {
        let now = Instant::now();
        let sa = Sa {
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
            pinned: BTreeSet::new(),
            has_broadcast: true,
            send_only_full: true,
            refuse: None,
            q_key: QKey(0xb1b),
            next_mlid: 0xc000,
        };
        Sim {
            groups: Groups::new(config, seed),
            sa,
            now,
            p_key: PKey(0x8001),
            loss: 0,
            delay: ms(1),
            rng: Rng::with_seed(!seed),
            events: BTreeMap::new(),
            order: 0,
            last_arrival: now,
            pending: BTreeMap::new(),
            asked: Vec::new(),
            asked_at: Vec::new(),
            carrier: false,
            broadcast_ups: 0,
            attached: BTreeMap::new(),
            routes: BTreeMap::new(),
            aliases: BTreeMap::new(),
            sent: Vec::new(),
        }
    }

    /// With the broadcast group joined.
    pub(super) fn up(config: GroupsConfig, seed: u64) -> Self {
        let mut sim = Sim::new(config, seed);
        sim.port_up();
        sim.run(ms(100));
        assert!(sim.carrier);
        sim
    }

    pub(super) fn port_up(&mut self) {
        self.groups.port_up(self.now, PORT, self.p_key);
        self.drain();
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.order += 1;
        self.events.insert((at, self.order), event);
    }

    /// Does what the machine asks for.
    fn drain(&mut self) {
        while let Some(output) = self.groups.poll_output() {
            match output {
                Output::Join {
                    tag,
                    record,
                    component_mask,
                } => {
                    let broadcast = record.mgid.0[12..] == [0xff; 4];
                    assert!(
                        broadcast || self.carrier,
                        "{} asked for before the broadcast group",
                        record.mgid
                    );
                    self.asked
                        .push((record.mgid, record.join_state, component_mask));
                    self.asked_at.push(self.now);
                    self.ask(tag, record.mgid, Request::Join(record, component_mask));
                }
                Output::Leave {
                    tag,
                    mgid,
                    port_gid,
                    join_state,
                } => {
                    assert!(!self.routes.contains_key(&mgid) && !self.attached.contains_key(&mgid));
                    self.ask(tag, mgid, Request::Leave(mgid, port_gid, join_state));
                }
                Output::Cancel { tag } => assert!(self.pending.remove(&tag).is_some()),
                Output::Attach { mgid, mlid } => assert_eq!(self.attached.insert(mgid, mlid), None),
                Output::Detach { mgid, mlid } => {
                    assert_eq!(self.attached.remove(&mgid), Some(mlid))
                }
                Output::BroadcastUp(record) => {
                    assert!(
                        self.attached.contains_key(&record.mgid)
                            && self.routes.contains_key(&record.mgid)
                    );
                    (self.carrier, self.broadcast_ups) = (true, self.broadcast_ups + 1);
                }
                Output::BroadcastDown => assert!(std::mem::take(&mut self.carrier)),
                Output::Route { mgid, record } => {
                    self.aliases.remove(&mgid);
                    self.routes.insert(mgid, record);
                }
                Output::RouteAlias { mgid, via } => {
                    assert!(self.routes.contains_key(&via) && !self.routes.contains_key(&mgid));
                    self.aliases.insert(mgid, via);
                }
                Output::Unroute { mgid } => {
                    let had = (
                        self.routes.remove(&mgid).is_some(),
                        self.aliases.remove(&mgid).is_some(),
                    );
                    assert!(had.0 != had.1, "{mgid}: {had:?}");
                }
                Output::Send { mgid, packets } => {
                    assert!(self.routes.contains_key(&mgid), "{mgid} has no route");
                    self.sent
                        .extend(packets.into_iter().map(|packet| (mgid, packet)));
                }
            }
        }
        assert!(
            self.aliases
                .values()
                .all(|via| self.routes.contains_key(via))
        );
    }

    fn ask(&mut self, tag: RequestTag, mgid: Gid, request: Request) {
        assert!(
            !self.pending.values().any(|pending| *pending == mgid),
            "two requests for {mgid} at once"
        );
        self.pending.insert(tag, mgid);
        // Requests do not overtake each other.
        let at = self
            .last_arrival
            .max(self.now + Duration::from_micros(self.rng.u64(0..=self.delay.as_micros() as u64)));
        self.last_arrival = at;
        let lost = self.rng.u64(0..100) < self.loss;
        if lost {
            let late = self.now + secs(5);
            self.schedule(
                late,
                match request {
                    Request::Join(..) => Event::Joined(tag, Err(JoinError::NoAnswer)),
                    Request::Leave(..) => Event::Left(tag, Err(JoinError::NoAnswer)),
                },
            );
            if self.rng.bool() {
                return;
            }
        }
        self.schedule(at, Event::AtSa(tag, request, !lost));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::AtSa(tag, request, answered) => {
                let reply = match request {
                    Request::Join(record, mask) => {
                        Event::Joined(tag, self.sa.join(record, mask).map_err(JoinError::Refused))
                    }
                    Request::Leave(mgid, port, states) => Event::Left(
                        tag,
                        self.sa
                            .leave(mgid, port, states)
                            .map_err(JoinError::Refused),
                    ),
                };
                let at = self.now
                    + Duration::from_micros(self.rng.u64(0..=self.delay.as_micros() as u64));
                if answered {
                    self.schedule(at, reply);
                }
            }
            Event::Joined(tag, result) => {
                self.pending.remove(&tag);
                self.groups.join_result(self.now, tag, result);
            }
            Event::Left(tag, result) => {
                self.pending.remove(&tag);
                self.groups.leave_result(self.now, tag, result);
            }
        }
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.drain();
        loop {
            let event = self.events.keys().next().map(|(at, _)| *at);
            let timer = self.groups.poll_timeout();
            let Some(next) = event.into_iter().chain(timer).min().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(next);
            if event.is_some_and(|at| at <= next) {
                if let Some((_, event)) = self.events.pop_first() {
                    self.happen(event);
                }
            } else {
                self.groups.handle_timeout(self.now);
                assert!(
                    self.groups.poll_timeout().is_none_or(|at| at > self.now),
                    "a timer that does not advance"
                );
            }
            self.drain();
        }
        self.now = end;
    }

    /// Milliseconds from the last ask of each cycle of joins to the first of the next one.
    pub(super) fn wait_times(&mut self, mgid: Gid, cycles: usize, asks: usize) -> Vec<u128> {
        let times = |sim: &Sim| -> Vec<Instant> {
            let all = sim.asked.iter().zip(&sim.asked_at);
            all.filter(|((asked, ..), _)| *asked == mgid)
                .map(|(_, at)| *at)
                .collect()
        };
        while times(self).len() < cycles * asks {
            self.run(ms(50));
        }
        let times = times(self);
        let ends = times.iter().skip(asks - 1).step_by(asks);
        ends.zip(times.iter().skip(asks).step_by(asks))
            .map(|(end, next)| next.duration_since(*end).as_millis())
            .collect()
    }

    /// Nothing is being asked; SA, data path and queue pair agree.
    pub(super) fn check_settled(&self) {
        assert!(self.pending.is_empty(), "{:?}", self.groups.snapshot());
        let member: BTreeMap<Gid, JoinState> = self
            .sa
            .members
            .iter()
            .filter(|((_, port), _)| *port == PORT)
            .map(|((mgid, _), states)| (*mgid, *states))
            .collect();
        assert_eq!(
            member.keys().collect::<Vec<_>>(),
            self.routes.keys().collect::<Vec<_>>()
        );
        for (mgid, states) in member {
            let group = &self.sa.groups[&mgid];
            assert_eq!(
                (self.routes[&mgid].mlid, self.routes[&mgid].q_key),
                (group.mlid, group.q_key),
                "{mgid}"
            );
            let expect = states.contains(JoinState::FULL).then_some(&group.mlid);
            assert_eq!(self.attached.get(&mgid), expect, "{mgid}");
        }
        assert_eq!(self.groups.queued_bytes(), 0);
    }
}
