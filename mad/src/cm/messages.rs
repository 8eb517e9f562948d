//! What comes from the other side (IBA 12.9.8).

use super::connection::{Connection, State};
use super::{Cm, CmAddress, CmEvent, ConnectionId, code_duration};
use std::time::Instant;
use verbs::MadReceived;
use wire::mad::cm::{
    AboutMessage, Apr, CmMessage, Drep, Dreq, Lap, Mra, Rej, RejectReason, Rep, Req, Rtu, SidrRep,
    SidrReq,
};
use wire::{Guid, Lid};

/// Class version of communication management.
const CLASS_VERSION: u8 = 2;
/// SIDR_REP status (IBA 12.11.2.1): no such service; the service does not want to.
const SIDR_NO_SERVICE: u8 = 1;
const SIDR_REJECTED: u8 = 2;
/// AP status of APR (IBA 12.8.2.1): no such connection; no alternate paths here.
const APR_NO_CONNECTION: u8 = 1;
const APR_UNSUPPORTED: u8 = 2;

/// A message of the other side on its way through.
struct From {
    address: CmAddress,
    tid: u64,
}

/// A requester beyond a router does not know the LIDs of this subnet: those of the packet that brought its REQ count (as in Linux's ib_cm).
fn routed(mut req: Req, mad: &MadReceived) -> Req {
    let path = &mut req.primary;
    if !path.subnet_local && path.local_lid == Lid::PERMISSIVE {
        (path.local_lid, path.sl) = (mad.slid, mad.sl);
    }
    if !path.subnet_local && path.remote_lid == Lid::PERMISSIVE {
        path.remote_lid = mad.dlid;
    }
    req
}

impl Cm {
    /// A MAD of class ComMgt.
    pub fn handle(&mut self, now: Instant, mad: &MadReceived) {
        let Some((header, message)) = CmMessage::parse(&mad.mad) else {
            self.counters.malformed += 1;
            return;
        };
        self.counters.received += 1;
        let from = From {
            address: CmAddress::of_sender(mad),
            tid: header.tid,
        };
        match message {
            CmMessage::Req(req) if header.class_version != CLASS_VERSION => {
                self.refuse(&from, &req, RejectReason::INVALID_CLASS_VERSION)
            }
            _ if header.class_version != CLASS_VERSION => self.counters.malformed += 1,
            CmMessage::Req(req) => self.req(now, &from, routed(req, mad)),
            CmMessage::Rep(rep) => self.rep(now, &from, rep),
            CmMessage::Rtu(rtu) => self.rtu(&rtu),
            CmMessage::Rej(rej) => self.rej(now, rej),
            CmMessage::Mra(mra) => self.mra(now, &mra),
            CmMessage::Dreq(dreq) => self.dreq(now, &from, &dreq),
            CmMessage::Drep(drep) => self.drep(now, &drep),
            CmMessage::SidrReq(req) => self.sidr_req(&from, &req),
            CmMessage::Lap(lap) => self.lap(&from, &lap),
            // Nothing here asks for these.
            CmMessage::SidrRep(_) | CmMessage::Apr(_) => self.counters.unexpected += 1,
        }
    }

    fn find(&self, matches: impl Fn(&Connection) -> bool) -> Option<ConnectionId> {
        let mut all = self.connections.iter();
        all.find(|(_, c)| matches(c)).map(|(id, _)| *id)
    }

    /// REJ of a request that no connection is made for.
    fn refuse(&mut self, from: &From, req: &Req, reason: RejectReason) {
        self.counters.refused += 1;
        let rej = Rej {
            remote_comm_id: req.local_comm_id,
            message_rejected: AboutMessage::REQ,
            reason,
            private_data: self.reject_data,
            ..Rej::default()
        };
        self.send(from.address, from.tid, &rej.into());
    }

    fn req(&mut self, now: Instant, from: &From, req: Req) {
        let known = self.find(|c| {
            !c.is_requester && c.is_peer(req.local_comm_id) && c.remote_guid == req.local_ca_guid
        });
        if let Some(id) = known {
            self.counters.duplicates += 1;
            match self.connections.get(&id).map(|c| c.state) {
                // The MRA, if there was one; the REP.
                Some(State::ReqReceived | State::RepSent) => self.send_again(id),
                Some(State::TimeWait) => self.refuse(from, &req, RejectReason::STALE_CONN),
                _ => {}
            }
            return;
        }
        // From where that connection's messages came: nobody else can end it.
        let same_qp = self.find(|c| {
            c.remote_qpn == req.local_qpn
                && c.remote_guid == req.local_ca_guid
                && c.remote_lid == from.address.dlid
        });
        if let Some(id) = same_qp {
            // IBA 12.9.8.3.1: the other side has forgotten the connection that this queue pair had.
            self.counters.stale += 1;
            self.gone(now, id);
            return self.refuse(from, &req, RejectReason::STALE_CONN);
        }
        if !self.services.contains(&req.service_id) {
            return self.refuse(from, &req, RejectReason::INVALID_SERVICE_ID);
        }
        if req.transport_service_type > 1 {
            return self.refuse(from, &req, RejectReason::INVALID_TRANSPORT_TYPE);
        }
        let of_lid = |c: &&Connection| {
            let same_port = c.address.dlid.0 >> self.lmc == from.address.dlid.0 >> self.lmc;
            !c.is_requester && same_port
        };
        if self.connections.values().filter(of_lid).count() >= self.config.max_from_lid {
            return self.refuse(from, &req, RejectReason::NO_RESOURCES);
        }
        let Ok(id) = self.free_id() else {
            return self.refuse(from, &req, RejectReason::NO_RESOURCES);
        };
        let mut connection = Connection::new(State::ReqReceived, from.address, from.tid);
        connection.remote_id = req.local_comm_id;
        connection.remote_guid = req.local_ca_guid;
        connection.remote_lid = from.address.dlid;
        connection.remote_qpn = req.local_qpn;
        connection.deadline = Some(now + self.give_up_after());
        self.connections.insert(id, connection);
        self.event(CmEvent::Requested {
            id,
            req: Box::new(req),
            from: from.address,
        });
    }

    fn rep(&mut self, now: Instant, from: &From, rep: Rep) {
        let id = ConnectionId(rep.remote_comm_id);
        let give_up = now + self.give_up_after();
        let same_qp = self.find(|c| {
            c.remote_qpn == rep.local_qpn
                && c.remote_guid == rep.local_ca_guid
                && c.remote_lid == from.address.dlid
                && !c.is_peer(rep.local_comm_id)
        });
        match self.connections.get_mut(&id).filter(|c| c.is_requester) {
            Some(c) if c.state == State::ReqSent => {
                c.state = State::RepReceived;
                c.remote_id = rep.local_comm_id;
                c.remote_guid = rep.local_ca_guid;
                c.remote_lid = from.address.dlid;
                c.remote_qpn = rep.local_qpn;
                c.sent = None;
                c.deadline = Some(give_up);
                if let Some(old) = same_qp {
                    // The standard refuses the new one (12.9.8.3.1); but the old one is surely dead, and its queue pair is closed here.
                    self.counters.stale += 1;
                    self.gone(now, old);
                }
                let rep = Box::new(rep);
                self.event(CmEvent::Replied { id, rep });
            }
            Some(c) if c.is_peer(rep.local_comm_id) => {
                self.counters.duplicates += 1;
                match c.state {
                    // The MRA, if there was one; the RTU.
                    State::RepReceived | State::Established => self.send_again(id),
                    State::TimeWait => self.refuse_rep(from, &rep),
                    _ => {}
                }
            }
            _ => {
                self.counters.unexpected += 1;
                self.refuse_rep(from, &rep);
            }
        }
    }

    /// The listener must not wait for an RTU that never comes.
    fn refuse_rep(&mut self, from: &From, rep: &Rep) {
        let rej = Rej {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            message_rejected: AboutMessage::REP,
            reason: RejectReason::INVALID_COMM_ID,
            private_data: self.reject_data,
            ..Rej::default()
        };
        self.send(from.address, from.tid, &rej.into());
    }

    fn rtu(&mut self, rtu: &Rtu) {
        let id = ConnectionId(rtu.remote_comm_id);
        match self.connections.get(&id) {
            Some(c) if c.is_peer(rtu.local_comm_id) && c.state == State::RepSent => self.open(id),
            Some(c) if c.is_peer(rtu.local_comm_id) => self.counters.duplicates += 1,
            _ => self.counters.unexpected += 1,
        }
    }

    fn rej(&mut self, now: Instant, rej: Rej) {
        let id = ConnectionId(rej.remote_comm_id);
        // Whoever refuses a REQ may have no number for it.
        let belongs = |c: &&Connection| c.is_peer(rej.local_comm_id) || c.remote_id == 0;
        let found = self.connections.get(&id).filter(belongs).map(|_| id);
        // And whoever gives up a REQ does not know ours.
        let given_up = || {
            let guid = rej.additional_reject_info.first_chunk()?;
            let guid = Guid(u64::from_be_bytes(*guid));
            let same = |c: &Connection| {
                !c.is_requester && c.is_peer(rej.local_comm_id) && c.remote_guid == guid
            };
            self.find(same)
                .filter(|_| rej.remote_comm_id == 0 && rej.reason == RejectReason::TIMEOUT)
        };
        let Some(id) = found.or_else(given_up) else {
            self.counters.unexpected += 1;
            return;
        };
        match self.connections.get(&id).map(|c| c.state) {
            Some(State::ReqSent | State::RepReceived | State::ReqReceived) => {
                let rej = Box::new(rej);
                self.event(CmEvent::Rejected { id, rej });
                self.release(id);
            }
            Some(State::RepSent) => {
                let rej = Box::new(rej);
                self.event(CmEvent::Rejected { id, rej });
                self.rest(now, id);
            }
            Some(State::Established) => {
                self.event(CmEvent::Disconnected { id });
                self.rest(now, id);
            }
            Some(State::DreqSent) => self.rest(now, id),
            Some(State::TimeWait) | None => self.counters.duplicates += 1,
        }
    }

    fn mra(&mut self, now: Instant, mra: &Mra) {
        let wait = code_duration(self.config.response_timeout);
        let id = ConnectionId(mra.remote_comm_id);
        let about = mra.message_mraed;
        match self.connections.get_mut(&id) {
            Some(c)
                if c.state == State::ReqSent && about == AboutMessage::REQ
                    || c.state == State::RepSent
                        && about == AboutMessage::REP
                        && c.is_peer(mra.local_comm_id) =>
            {
                // Once, as Linux: nobody may put off the end for ever.
                if std::mem::replace(&mut c.is_delayed, true) {
                    self.counters.duplicates += 1;
                } else {
                    c.deadline = Some(now + wait + code_duration(mra.service_timeout));
                }
            }
            _ => self.counters.unexpected += 1,
        }
    }

    fn dreq(&mut self, now: Instant, from: &From, dreq: &Dreq) {
        let id = ConnectionId(dreq.remote_comm_id);
        let known = self.connections.get(&id);
        let state = match known.filter(|c| c.is_peer(dreq.local_comm_id)) {
            Some(c) if c.local_qpn != dreq.remote_qpn => {
                self.counters.unexpected += 1;
                return;
            }
            Some(c) => Some(c.state),
            None => None,
        };
        let drep = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; 224],
        };
        // Also where there is no connection any more: the other side shall not wait (IBA 12.9.8.3.2).
        self.send(from.address, from.tid, &drep.into());
        match state {
            Some(State::Established | State::RepSent | State::RepReceived) => {
                self.event(CmEvent::Disconnected { id });
                self.rest(now, id);
            }
            Some(State::DreqSent) => self.rest(now, id),
            Some(_) => self.counters.duplicates += 1,
            None => self.counters.unexpected += 1,
        }
    }

    fn drep(&mut self, now: Instant, drep: &Drep) {
        let id = ConnectionId(drep.remote_comm_id);
        match self.connections.get(&id) {
            Some(c) if c.is_peer(drep.local_comm_id) && c.state == State::DreqSent => {
                self.rest(now, id)
            }
            _ => self.counters.unexpected += 1,
        }
    }

    /// The other side has no such connection any more.
    fn gone(&mut self, now: Instant, id: ConnectionId) {
        match self.connections.get(&id).map(|c| c.state) {
            Some(State::ReqReceived) => {
                self.event(CmEvent::Disconnected { id });
                self.release(id);
            }
            Some(State::RepSent | State::RepReceived | State::Established) => {
                self.event(CmEvent::Disconnected { id });
                self.rest(now, id);
            }
            Some(State::DreqSent) => self.rest(now, id),
            Some(State::ReqSent | State::TimeWait) | None => {}
        }
    }

    /// IPoIB has its own way to find queue pairs.
    fn sidr_req(&mut self, from: &From, req: &SidrReq) {
        let status = match self.services.contains(&req.service_id) {
            true => SIDR_REJECTED,
            false => SIDR_NO_SERVICE,
        };
        let rep = SidrRep {
            request_id: req.request_id,
            status,
            service_id: req.service_id,
            ..SidrRep::default()
        };
        self.send(from.address, from.tid, &rep.into());
    }

    fn lap(&mut self, from: &From, lap: &Lap) {
        let id = ConnectionId(lap.remote_comm_id);
        let known = self.connections.get(&id);
        let ap_status = match known.is_some_and(|c| c.is_peer(lap.local_comm_id)) {
            true => APR_UNSUPPORTED,
            false => APR_NO_CONNECTION,
        };
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            ap_status,
            ..Apr::default()
        };
        self.send(from.address, from.tid, &apr.into());
    }
}
