//! Communication manager (IBA chapter 12): opens and closes connections of one node.
//!
//! [`Cm`] is fed CM messages, the user's wishes and the time; it gives messages to send and [`CmEvent`]s. A connection begins by
//! [`Cm::connect`] here or by [`CmEvent::Requested`], and ends with [`CmEvent::Released`], once in each case. Between the two:
//!
//! ```text
//! requester   connect -> Replied -> confirm            \
//! listener    Requested -> accept -> Established        > disconnect, or Disconnected
//! either      Rejected or TimedOut: it never was, or is no more
//! ```
//!
//! Losses are repaired by sending again what was not answered; duplicates get the same answer. A connection of which the other side
//! knows nothing any more is refused (REJ 6), or found out by its queue pair, which gets no acknowledgements: then `disconnect`.
//! Alternate paths are refused (LAP), service ID resolution is answered (SIDR).

mod connection;
mod messages;
#[cfg(test)]
mod tests;
mod types;

pub use types::{CmAddress, CmConfig, CmCounters, CmError, CmEvent, CmOutput, ConnectionId};

use connection::{Connection, State};
use fastrand::Rng;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use wire::mad::cm::{CmMessage, Dreq, Mra, Rej, RejectReason, Rep, Req, Rtu, ServiceId};

/// The communication manager.
pub struct Cm {
    config: CmConfig,
    services: HashSet<ServiceId>,
    connections: BTreeMap<ConnectionId, Connection>,
    outputs: VecDeque<CmOutput>,
    counters: CmCounters,
    rng: Rng,
    next_tid: u32,
    lmc: u8,
    reject_data: [u8; 148],
}

impl Cm {
    /// Without connections. Numbers are random by `seed`, so that nobody guesses them and a restarted program is not taken for its predecessor.
    pub fn new(config: CmConfig, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        Cm {
            config,
            services: HashSet::new(),
            connections: BTreeMap::new(),
            outputs: VecDeque::new(),
            counters: CmCounters::default(),
            next_tid: rng.u32(..),
            rng,
            lmc: 0,
            reject_data: [0; 148],
        }
    }

    /// From now on requests for `service` are taken.
    pub fn listen(&mut self, service: ServiceId) {
        self.services.insert(service);
    }

    /// The reverse. Connections stay.
    pub fn unlisten(&mut self, service: ServiceId) {
        self.services.remove(&service);
    }

    /// Private data of all REJs from now on.
    pub fn set_reject_data(&mut self, private_data: [u8; 148]) {
        self.reject_data = private_data;
    }

    /// The subnet's LMC (0 to 7): so many low bits do not tell one port's LIDs from another's.
    pub fn set_lmc(&mut self, lmc: u8) {
        self.lmc = lmc & 7;
    }

    /// What became of messages.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Connections, those that rest included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Has it no connections at all?
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// What is to be done now.
    pub fn poll_output(&mut self) -> Option<CmOutput> {
        self.outputs.pop_front()
    }

    /// When [`Cm::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.connections.values().filter_map(|c| c.deadline).min()
    }

    /// Asks for a connection. Of `req` the user sets service, queue pair, PSN, path, retry counts and private data; communication ID, node GUID
    /// and the time-outs of CM messages are set here.
    ///
    /// # Errors
    /// [`CmError::TooMany`].
    pub fn connect(
        &mut self,
        now: Instant,
        to: CmAddress,
        req: Req,
    ) -> Result<ConnectionId, CmError> {
        let id = self.free_id()?;
        let req = Req {
            local_comm_id: id.0,
            local_ca_guid: self.config.node_guid,
            remote_cm_response_timeout: self.config.response_timeout,
            local_cm_response_timeout: self.config.response_timeout,
            max_cm_retries: self.config.max_retries,
            ..req
        };
        let tid = self.tid();
        let mut connection = Connection::new(State::ReqSent, to, tid);
        connection.local_qpn = req.local_qpn;
        self.connections.insert(id, connection);
        self.ask(now, id, req.into());
        Ok(id)
    }

    /// Accepts what [`CmEvent::Requested`] told of; the queue pair is in RTR at least. Of `rep` the IDs and the GUID are set here.
    ///
    /// # Errors
    /// It was given up meanwhile, or has another state.
    pub fn accept(&mut self, now: Instant, id: ConnectionId, rep: Rep) -> Result<(), CmError> {
        let node_guid = self.config.node_guid;
        let connection = self.in_state(id, &[State::ReqReceived])?;
        let rep = Rep {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_id,
            local_ca_guid: node_guid,
            ..rep
        };
        connection.local_qpn = rep.local_qpn;
        connection.state = State::RepSent;
        self.ask(now, id, rep.into());
        Ok(())
    }

    /// The queue pair of what [`CmEvent::Replied`] told of is in RTS: the connection is open.
    ///
    /// # Errors
    /// It was given up meanwhile, or has another state.
    pub fn confirm(&mut self, id: ConnectionId, private_data: [u8; 224]) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::RepReceived])?;
        connection.state = State::Established;
        connection.deadline = None;
        let rtu = Rtu {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_id,
            private_data,
        };
        connection.sent = Some(rtu.into());
        self.send_again(id);
        Ok(())
    }

    /// Refuses what [`CmEvent::Requested`] or [`CmEvent::Replied`] told of.
    ///
    /// # Errors
    /// It was given up meanwhile, or has another state.
    pub fn reject(&mut self, id: ConnectionId, reason: RejectReason) -> Result<(), CmError> {
        self.in_state(id, &[State::ReqReceived, State::RepReceived])?;
        self.send_rej(id, reason);
        self.release(id);
        Ok(())
    }

    /// Tells the other side that the answer to its REQ or REP takes up to 4.096 us * 2^`service_timeout` (MRA).
    ///
    /// # Errors
    /// Nothing is waiting for an answer.
    pub fn delay(
        &mut self,
        now: Instant,
        id: ConnectionId,
        service_timeout: u8,
    ) -> Result<(), CmError> {
        let give_up = self.give_up_after() + code_duration(service_timeout);
        let connection = self.in_state(id, &[State::ReqReceived, State::RepReceived])?;
        let mra = Mra {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_id,
            message_mraed: connection.about(),
            service_timeout,
            private_data: [0; 222],
        };
        connection.sent = Some(mra.into());
        connection.deadline = Some(now + give_up);
        self.send_again(id);
        Ok(())
    }

    /// A packet came by the queue pair of an accepted connection (`QpEvent::CommunicationEstablished`): as good as the RTU.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn established(&mut self, id: ConnectionId) -> Result<(), CmError> {
        if self.connection(id)?.state == State::RepSent {
            self.open(id);
        }
        Ok(())
    }

    /// Ends a connection, or the attempt. What follows is [`CmEvent::Released`] only.
    ///
    /// # Errors
    /// It ended already.
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId) -> Result<(), CmError> {
        let tid = self.tid();
        let connection = self.connection(id)?;
        match connection.state {
            State::ReqSent => {
                self.send_rej(id, RejectReason::TIMEOUT);
                self.release(id);
            }
            State::ReqReceived | State::RepReceived => {
                self.send_rej(id, RejectReason::CONSUMER_DEFINED);
                self.release(id);
            }
            State::RepSent | State::Established => {
                let dreq = Dreq {
                    local_comm_id: id.0,
                    remote_comm_id: connection.remote_id,
                    remote_qpn: connection.remote_qpn,
                    private_data: [0; 220],
                };
                connection.tid = tid;
                connection.state = State::DreqSent;
                self.ask(now, id, dreq.into());
            }
            State::DreqSent | State::TimeWait => return Err(CmError::WrongState),
        }
        Ok(())
    }

    /// Does what is due at `now`; harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, c)| c.deadline.is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.timeout(now, id);
        }
    }

    fn timeout(&mut self, now: Instant, id: ConnectionId) {
        let wait = code_duration(self.config.response_timeout);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.state {
            State::ReqSent | State::RepSent | State::DreqSent if connection.tries_left > 0 => {
                connection.tries_left -= 1;
                connection.deadline = Some(now + wait);
                self.counters.repeated += 1;
                self.send_again(id);
            }
            State::ReqSent | State::ReqReceived | State::RepReceived => {
                self.send_rej(id, RejectReason::TIMEOUT);
                self.event(CmEvent::TimedOut { id });
                self.release(id);
            }
            State::RepSent => {
                self.send_rej(id, RejectReason::TIMEOUT);
                self.event(CmEvent::TimedOut { id });
                self.rest(now, id);
            }
            State::DreqSent => self.rest(now, id),
            State::TimeWait => self.release(id),
            State::Established => connection.deadline = None,
        }
    }

    fn free_id(&mut self) -> Result<ConnectionId, CmError> {
        if self.connections.len() >= self.config.max_connections {
            return Err(CmError::TooMany(self.config.max_connections));
        }
        // Ends: there are fewer connections than numbers. 0 stands for none in REJ.
        loop {
            // Whoever knows the number of one connection must not guess, and end, those of others.
            let id = ConnectionId(self.rng.u32(..));
            if id.0 != 0 && !self.connections.contains_key(&id) {
                return Ok(id);
            }
        }
    }

    fn tid(&mut self) -> u64 {
        self.next_tid = self.next_tid.wrapping_add(1);
        u64::from(self.config.tid_high) << 32 | u64::from(self.next_tid)
    }

    fn connection(&mut self, id: ConnectionId) -> Result<&mut Connection, CmError> {
        let connection = self.connections.get_mut(&id);
        connection.ok_or(CmError::NoConnection(id))
    }

    fn in_state(&mut self, id: ConnectionId, states: &[State]) -> Result<&mut Connection, CmError> {
        let connection = self.connection(id)?;
        match states.contains(&connection.state) {
            true => Ok(connection),
            false => Err(CmError::WrongState),
        }
    }

    /// A user, or the other side's, has so long to answer.
    fn give_up_after(&self) -> Duration {
        code_duration(self.config.response_timeout) * (u32::from(self.config.max_retries) + 1)
    }

    fn event(&mut self, event: CmEvent) {
        self.outputs.push_back(CmOutput::Event(event));
    }

    fn send(&mut self, to: CmAddress, tid: u64, message: &CmMessage) {
        self.counters.sent += 1;
        self.outputs
            .push_back(CmOutput::Send(to.send(message, tid)));
    }

    /// Sends what is to be sent until it is answered.
    fn ask(&mut self, now: Instant, id: ConnectionId, message: CmMessage) {
        let (wait, tries) = (
            code_duration(self.config.response_timeout),
            self.config.max_retries,
        );
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.sent = Some(message);
            connection.tries_left = tries;
            connection.is_delayed = false;
            connection.deadline = Some(now + wait);
        }
        self.send_again(id);
    }

    fn send_again(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get(&id)
            && let Some(message) = connection.sent
        {
            let (to, tid) = (connection.address, connection.tid);
            self.send(to, tid, &message);
        }
    }

    fn send_rej(&mut self, id: ConnectionId, reason: RejectReason) {
        if let Some(connection) = self.connections.get(&id) {
            let mut rej = Rej {
                local_comm_id: id.0,
                remote_comm_id: connection.remote_id,
                message_rejected: connection.about(),
                reason,
                private_data: self.reject_data,
                ..Rej::default()
            };
            if reason == RejectReason::TIMEOUT {
                // Whoever gives up a REQ knows no other number of it than its own (IBA 12.6.7.2: additional information).
                rej.reject_info_length = 8;
                let guid = self.config.node_guid.0.to_be_bytes();
                rej.additional_reject_info[..8].copy_from_slice(&guid);
            }
            let (to, tid) = (connection.address, connection.tid);
            self.send(to, tid, &rej.into());
        }
    }

    /// RepSent -> Established.
    fn open(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::Established;
            connection.deadline = None;
            connection.sent = None;
            self.event(CmEvent::Established { id });
        }
    }

    /// It may have carried data.
    fn rest(&mut self, now: Instant, id: ConnectionId) {
        let until = now + self.config.time_wait;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::TimeWait;
            connection.deadline = Some(until);
            connection.sent = None;
        }
    }

    fn release(&mut self, id: ConnectionId) {
        if self.connections.remove(&id).is_some() {
            self.event(CmEvent::Released { id });
        }
    }
}

/// 4.096 us * 2^n of a 5-bit code, a minute at most: nobody may keep a connection waiting for hours.
fn code_duration(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 0x1f)).min(Duration::from_secs(60))
}
