//! The neighbour machine: states and their timers (RFC 4861 section 7.3), the packets that wait, and what the forwarding table has.

use crate::announce::Own;
use crate::config::NeighbourConfig;
use crate::output::{Destination, Output, Path, PathError, Resolved};
use crate::paths::{Demand, Outcome, PathCache, Urgency, backoff};
use crate::show::{Counters, Failure, NeighbourInfo, PathInfo, State};
use crate::table::{Entry, Table};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use wire::Gid;
use wire::ipoib::LinkAddress;
use wire::mad::attr::PathRecord;

/// The neighbours of one interface. See the [crate](crate)'s documentation.
#[derive(Debug)]
pub struct Neighbours {
    pub(crate) config: NeighbourConfig,
    pub(crate) rng: fastrand::Rng,
    /// Our link address while the link is up.
    pub(crate) local: Option<LinkAddress>,
    pub(crate) own: BTreeMap<IpAddr, Own>,
    pub(crate) table: Table,
    pub(crate) paths: PathCache,
    pub(crate) outputs: VecDeque<Output>,
    pub(crate) counters: Counters,
}

impl Neighbours {
    /// A machine with its link down. Equal seeds and inputs give equal outputs.
    pub fn new(config: NeighbourConfig, seed: u64) -> Self {
        Neighbours {
            config,
            rng: fastrand::Rng::with_seed(seed),
            local: None,
            own: BTreeMap::new(),
            table: Table::default(),
            paths: PathCache::default(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// The broadcast group is joined and `local` is this interface's link address, perhaps another than before. All own addresses are
    /// announced, so that peers who knew an earlier QPN or GID follow at once; known neighbours are installed and their paths asked for
    /// again.
    pub fn link_up(&mut self, now: Instant, local: LinkAddress) {
        self.local = Some(local);
        self.announce_all(now);
        self.refresh_paths(now);
        for ip in self.table.addresses() {
            self.sync(now, ip);
        }
        self.pump();
    }

    /// Nothing can be sent: the forwarding table is emptied and what waits given back. Neighbours that were known stay known, as stale, so
    /// that traffic goes on with the link.
    pub fn link_down(&mut self, now: Instant) {
        self.local = None;
        self.silence();
        self.counters.dropped_link_down += self.paths.drop_replies() as u64;
        for ip in self.table.addresses() {
            self.give_back_queue(ip);
            match self.table.get(ip).map(|e| e.state) {
                Some(State::Incomplete) => self.remove(ip),
                Some(State::Reachable | State::Delay | State::Probe) => {
                    self.enter(now, ip, State::Stale)
                }
                _ => {}
            }
            self.sync(now, ip);
        }
    }

    /// A packet (from the encapsulation header on; its bytes are not looked at) for a next hop that the forwarding table does not know.
    pub fn send(&mut self, now: Instant, next_hop: IpAddr, packet: Vec<u8>) {
        if self.want(now, next_hop, false) {
            self.counters.dropped_queue_full +=
                self.table.push(now, next_hop, packet, &self.config);
            self.sync(now, next_hop);
        } else {
            self.unreachable(next_hop, vec![packet]);
        }
        self.pump();
    }

    /// Finds out about a neighbour without a packet for it, also during back-off. The result is an [`Output::Install`] or an
    /// [`Output::Unreachable`] without packets; if it is known already, neither, see [`Self::get`].
    pub fn resolve(&mut self, now: Instant, ip: IpAddr) {
        if self.want(now, ip, true) {
            self.sync(now, ip);
        } else {
            self.unreachable(ip, Vec::new());
        }
        self.pump();
    }

    /// Makes sure that `ip` has an entry from which something can be expected.
    fn want(&mut self, now: Instant, ip: IpAddr, force: bool) -> bool {
        if self.local.is_none() {
            self.counters.dropped_link_down += 1;
            return false;
        }
        if !is_unicast(ip) || self.own.contains_key(&ip) {
            self.counters.dropped_invalid += 1;
            return false;
        }
        match self.table.get(ip) {
            None => {
                if !self.make_room(false) {
                    self.counters.table_full += 1;
                    return false;
                }
                self.table.insert(ip, Entry::new(now, State::Incomplete));
                self.enter(now, ip, State::Incomplete);
            }
            Some(e) if e.state == State::Failed => {
                if now < e.retry_at && !force {
                    return false;
                }
                if let Some(gid) = e.address.map(|a| a.gid).filter(|_| force) {
                    self.paths.reset_backoff(gid);
                }
                self.set_address(now, ip, None);
                self.enter(now, ip, State::Incomplete);
            }
            Some(_) => {}
        }
        if let Some(e) = self.table.get_mut(ip) {
            e.wanted = true;
        }
        true
    }

    /// The data path used an entry installed as stale, for the first time since that [`Output::Install`].
    pub fn used(&mut self, now: Instant, next_hop: IpAddr) {
        let Some(e) = self.table.get_mut(next_hop) else {
            return;
        };
        let Some(installed) = &mut e.installed else {
            return;
        };
        installed.stale = false;
        e.wanted = true;
        if e.state == State::Stale {
            self.enter(now, next_hop, State::Delay);
        }
        self.sync(now, next_hop);
        self.pump();
    }

    /// An upper layer knows that the neighbour receives what we send (RFC 4861 section 7.3.1): no need to probe it.
    pub fn confirmed(&mut self, now: Instant, ip: IpAddr) {
        if self.table.get(ip).is_some_and(|e| e.installed.is_some()) {
            self.enter(now, ip, State::Reachable);
            self.sync(now, ip);
        }
    }

    /// The answer to an [`Output::QueryPath`].
    pub fn path_result(&mut self, now: Instant, gid: Gid, result: Result<PathRecord, PathError>) {
        let result = result.and_then(|record| Path::from_record(&record));
        self.counters.path_failed += u64::from(result.is_err());
        let known = self.paths.get(gid).is_some();
        let users = self.paths.users(gid);
        let Some((outcome, replies)) = self.paths.result(now, gid, result, &self.config) else {
            return;
        };
        match outcome {
            Outcome::Kept => {}
            Outcome::Changed => {
                self.counters.path_changed += u64::from(known);
                for (address, payload) in replies {
                    self.transmit_reply(address, payload);
                }
                for ip in users {
                    if self.table.get(ip).is_some_and(|e| e.state == State::Failed) {
                        self.enter(now, ip, State::Stale);
                    }
                    self.sync(now, ip);
                }
            }
            Outcome::Lost(error) => {
                self.counters.dropped_reply_no_path += replies.len() as u64;
                for ip in users {
                    self.fail(now, ip, Failure::Path(gid, error));
                }
            }
        }
        self.pump();
    }

    /// Trap 64: a port appeared. Back-offs end, since it may be the one that was missing; a known path is asked for again.
    pub fn gid_in_service(&mut self, now: Instant, gid: Gid) {
        self.paths.reset_backoff(gid);
        self.paths.refresh(gid);
        let failed = self.table.iter().filter(|(_, e)| e.state == State::Failed);
        let failed: Vec<IpAddr> = failed.map(|(ip, _)| ip).collect();
        for ip in failed {
            if let Some(e) = self.table.get_mut(ip) {
                (e.failures, e.retry_at) = (0, now);
            }
        }
        self.pump();
    }

    /// Is the path to this port known, or asked for?
    pub fn has_path(&self, gid: Gid) -> bool {
        self.paths.contains(gid)
    }

    /// Trap 65: a port is gone, and with it the neighbours there. Packets that wait for them make us ask anew, since the IP address may have
    /// moved.
    pub fn gid_out_of_service(&mut self, now: Instant, gid: Gid) {
        let users = self.paths.users(gid);
        self.counters.dropped_reply_no_path += self.paths.out_of_service(gid) as u64;
        for ip in users {
            if self.local.is_some() && self.table.get(ip).is_some_and(|e| e.queued() > 0) {
                self.set_address(now, ip, None);
                self.enter(now, ip, State::Incomplete);
                self.sync(now, ip);
            } else {
                self.remove(ip);
            }
        }
        self.pump();
    }

    /// Any path may have changed: another SM, a client reregister request, another LID of ours. Known paths stay in use while each is asked
    /// for again, spread over [`NeighbourConfig::refresh_spread`]; those that changed are installed again.
    pub fn refresh_paths(&mut self, now: Instant) {
        self.paths.refresh_all(now, &mut self.rng, &self.config);
    }

    /// The next thing to do. To be called after each input until it returns `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let entry = self.table.next_deadline().map(|(at, _)| at);
        let path = self.paths.poll_timeout().filter(|_| self.local.is_some());
        entry
            .into_iter()
            .chain(path)
            .chain(self.next_announcement())
            .min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, ip)) = self.table.next_deadline()
            && at <= now
        {
            self.entry_timeout(now, ip);
        }
        if self.local.is_some() {
            self.paths.handle_timeout(now);
            self.announce_due(now);
        }
        self.pump();
    }

    fn entry_timeout(&mut self, now: Instant, ip: IpAddr) {
        let Some(e) = self.table.get(ip) else { return };
        if e.queue_deadline.is_some_and(|at| at <= now) {
            self.give_back_queue(ip);
        }
        let Some(e) = self.table.get(ip) else { return };
        if e.timer.is_none_or(|at| at > now) {
            self.table.reindex(ip);
            return;
        }
        match e.state {
            State::Incomplete | State::Probe => {
                let limit = match e.state {
                    State::Probe => self.config.unicast_probes,
                    _ => self.config.multicast_probes,
                };
                if e.probes < limit {
                    self.solicit(now, ip);
                } else if e.state == State::Incomplete {
                    let failure = Failure::NoAnswer(e.probes);
                    self.counters.resolution_failed += 1;
                    self.fail(now, ip, failure);
                } else {
                    self.counters.probe_failed += 1;
                    // Perhaps the way is wrong, not the neighbour gone: others there should know.
                    if let Some(address) = e.address {
                        self.paths.refresh(address.gid);
                    }
                    self.remove(ip);
                }
            }
            State::Reachable => self.enter(now, ip, State::Stale),
            State::Delay => self.enter(now, ip, State::Probe),
            State::Stale | State::Failed => {
                self.counters.expired += 1;
                self.remove(ip);
            }
        }
        self.sync(now, ip);
    }

    /// Changes the state and starts what belongs to it. To be followed by [`Self::sync`].
    pub(crate) fn enter(&mut self, now: Instant, ip: IpAddr, state: State) {
        let Some(e) = self.table.get_mut(ip) else {
            return;
        };
        e.state = state;
        e.since = now;
        e.probes = 0;
        let c = &self.config;
        match state {
            State::Incomplete | State::Probe => self.solicit(now, ip),
            State::Reachable => {
                self.counters.confirmed += 1;
                e.failures = 0;
                e.timer = Some(now + c.reachable.mul_f64(0.5 + self.rng.f64()));
            }
            State::Stale => e.timer = Some(now + c.gc_stale),
            State::Delay => e.timer = Some(now + c.delay_first_probe),
            State::Failed => {
                e.failures = e.failures.saturating_add(1);
                e.retry_at = now + backoff(c, e.failures);
                e.timer = Some(e.retry_at + c.gc_stale);
            }
        }
    }

    /// Sends the next request of states Incomplete and Probe.
    fn solicit(&mut self, now: Instant, ip: IpAddr) {
        let Some(e) = self.table.get_mut(ip) else {
            return;
        };
        e.probes = e.probes.saturating_add(1);
        e.timer = Some(now + self.config.retrans);
        let to = match e.state {
            State::Probe => match e.address.and_then(|a| Some((a, self.paths.get(a.gid)?))) {
                Some((address, path)) => Some(Resolved {
                    address,
                    path,
                    stale: false,
                }),
                None => return,
            },
            _ => None,
        };
        self.transmit_request(ip, to);
    }

    /// Resolution failed. What waits is given back, and no attempt made before the back-off is over.
    fn fail(&mut self, now: Instant, ip: IpAddr, failure: Failure) {
        let Some(e) = self.table.get_mut(ip) else {
            return;
        };
        e.last_failure = Some((now, failure));
        if e.state == State::Failed {
            return;
        }
        self.enter(now, ip, State::Failed);
        let packets = self.table.take_queue(ip);
        self.unreachable(ip, packets);
        self.sync(now, ip);
    }

    /// Changes the link address, and with it the GID whose path matters.
    pub(crate) fn set_address(&mut self, now: Instant, ip: IpAddr, address: Option<LinkAddress>) {
        let Some(e) = self.table.get_mut(ip) else {
            return;
        };
        let (old, new) = (e.address.map(|a| a.gid), address.map(|a| a.gid));
        if let (Some(old), Some(new)) = (e.address, address) {
            self.counters.address_changed += u64::from(!old.same_destination(&new));
        }
        e.address = address;
        if old != new {
            if let Some(gid) = new {
                self.paths.attach(now, gid, ip);
            }
            if let Some(gid) = old {
                self.paths.detach(gid, ip);
            }
        }
    }

    /// Brings forwarding table, queue and indexes in line with the entry, after any change of it.
    pub(crate) fn sync(&mut self, now: Instant, ip: IpAddr) {
        let Some(e) = self.table.get(ip) else { return };
        let known = e
            .address
            .filter(|_| !matches!(e.state, State::Incomplete | State::Failed))
            .filter(|_| self.local.is_some());
        let mut path = None;
        if let Some(address) = known {
            // Who only asked us something gets a path for our reply, and after that in its turn.
            let urgency = if e.wanted {
                Urgency::Urgent
            } else {
                Urgency::Background
            };
            match self.paths.demand(now, address.gid, urgency) {
                Demand::Ready(ready) => path = Some(ready),
                Demand::Pending => {}
                Demand::Refused(error) => {
                    return self.fail(now, ip, Failure::Path(address.gid, error));
                }
            }
        }
        let Some(e) = self.table.get(ip) else { return };
        // Sending what waits is a use of a stale entry (RFC 4861 section 7.3.3).
        if path.is_some() && e.queued() > 0 && e.state == State::Stale {
            self.enter(now, ip, State::Delay);
        }
        let Some(e) = self.table.get_mut(ip) else {
            return;
        };
        match (known, path) {
            (Some(address), Some(path)) => {
                let entry = Resolved {
                    address,
                    path,
                    stale: e.state == State::Stale,
                };
                let same = |i: Resolved| {
                    (i.address, i.path) == (address, path) && (i.stale || !entry.stale)
                };
                if !e.installed.is_some_and(same) {
                    e.installed = Some(entry);
                    self.outputs.push_back(Output::Install { ip, entry });
                }
                let packets = self.table.take_queue(ip);
                if !packets.is_empty() {
                    self.outputs.push_back(Output::Flush { ip, packets });
                }
            }
            _ => {
                if e.installed.take().is_some() {
                    self.outputs.push_back(Output::Remove { ip });
                }
            }
        }
        self.table.reindex(ip);
    }

    /// Takes a neighbour out; what waits for it is given back.
    pub(crate) fn remove(&mut self, ip: IpAddr) {
        self.give_back_queue(ip);
        let Some(e) = self.table.get(ip) else { return };
        if e.installed.is_some() {
            self.outputs.push_back(Output::Remove { ip });
        }
        if let Some(address) = e.address {
            self.paths.detach(address.gid, ip);
        }
        self.table.remove(ip);
    }

    /// False if there is no room for another entry and all are in use.
    pub(crate) fn make_room(&mut self, learned: bool) -> bool {
        match self.table.make_room(learned, &self.config) {
            Some(victim) => {
                if let Some(ip) = victim {
                    self.counters.evicted += 1;
                    self.remove(ip);
                }
                true
            }
            None => false,
        }
    }

    fn give_back_queue(&mut self, ip: IpAddr) {
        let packets = self.table.take_queue(ip);
        if !packets.is_empty() {
            self.unreachable(ip, packets);
        }
    }

    fn unreachable(&mut self, ip: IpAddr, packets: Vec<Vec<u8>>) {
        self.counters.unreachable += packets.len() as u64;
        self.outputs.push_back(Output::Unreachable { ip, packets });
    }

    /// Sends path queries as far as they may be outstanding.
    pub(crate) fn pump(&mut self) {
        if self.local.is_none() {
            return;
        }
        while let Some(gid) = self.paths.next_query(&self.config) {
            self.counters.path_queries += 1;
            self.outputs.push_back(Output::QueryPath(gid));
        }
    }

    /// One neighbour.
    pub fn get(&self, now: Instant, ip: IpAddr) -> Option<NeighbourInfo> {
        self.table.get(ip).map(|e| self.info(now, ip, e))
    }

    /// All neighbours, in the order of their addresses.
    pub fn neighbours(&self, now: Instant) -> impl Iterator<Item = NeighbourInfo> {
        self.table.iter().map(move |(ip, e)| self.info(now, ip, e))
    }

    fn info(&self, now: Instant, ip: IpAddr, e: &Entry) -> NeighbourInfo {
        NeighbourInfo {
            ip,
            state: e.state,
            address: e.address,
            path: e.address.and_then(|a| self.paths.get(a.gid)),
            queued: e.queued(),
            probes: e.probes,
            router: e.router,
            age: now.saturating_duration_since(e.since),
            last_failure: e.last_failure.map(|(_, failure)| failure),
            failed_ago: e
                .last_failure
                .map(|(at, _)| now.saturating_duration_since(at)),
            retry_in: (e.state == State::Failed).then(|| e.retry_at.saturating_duration_since(now)),
        }
    }

    /// All paths, in the order of their GIDs.
    pub fn paths(&self, now: Instant) -> impl Iterator<Item = PathInfo> {
        self.paths.iter(now)
    }

    /// Events so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn transmit(&mut self, to: Destination, payload: Vec<u8>) {
        self.outputs.push_back(Output::Transmit { to, payload });
    }
}

/// May a neighbour have this address?
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(a) => {
            !(a.is_unspecified() || a.is_multicast() || a.is_loopback() || a == Ipv4Addr::BROADCAST)
        }
        IpAddr::V6(a) => !(a.is_unspecified() || a.is_multicast() || a.is_loopback()),
    }
}
