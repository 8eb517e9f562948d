//! The port's side of an interface: port events, SA answers, groups.

use super::connected::Local;
use super::{Interface, Purpose};
use crate::counters::Counters;
use crate::forwarding::{Destination, Forwarding, Identity};
use crate::netdev::NetdevError;
use mad::{SaError, SaEvent, SaRequest, SmAddress};
use multicast::{JoinError, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{AhAttributes, GrhAttributes, PortEvent, UdInit};
use wire::ipoib::ENCAP_LEN;
use wire::mad::MadStatus;
use wire::mad::attr::{McMemberRecord, Notice, PortState, TrapNumber};
use wire::{Gid, PKey, Qpn};

/// What the SA shall report (RFC 4391 section 10; facts of neighbours and groups that no packet tells).
const TRAPS: [TrapNumber; 4] = [
    TrapNumber::GID_IN_SERVICE,
    TrapNumber::GID_OUT_OF_SERVICE,
    TrapNumber::MULTICAST_GROUP_CREATED,
    TrapNumber::MULTICAST_GROUP_DELETED,
];
/// Between attempts to subscribe.
const SUBSCRIBE_RETRY: Duration = Duration::from_secs(5);

impl Interface {
    pub(super) fn port_event(&mut self, now: Instant, event: PortEvent) {
        self.attributes = self.port.attributes();
        match event {
            PortEvent::DeviceFatal => self.shutdown(now),
            PortEvent::Active | PortEvent::Error | PortEvent::PKeyChange | PortEvent::GidChange => {
                self.reconsider(now)
            }
            PortEvent::LidChange => {
                self.reconsider(now);
                if let Some(identity) = &mut self.table.identity {
                    identity.lid = self.attributes.lid;
                    self.changed = true;
                    self.neighbours.refresh_paths(now);
                }
            }
            PortEvent::SmChange => self.set_sm(now),
            PortEvent::ClientReregister => {
                self.reconsider(now);
                if self.running.is_some() {
                    self.groups.reregister(now);
                    self.neighbours.refresh_paths(now);
                    self.subscribe_anew(now);
                }
            }
        }
    }

    /// What the port and the administrator allow now; `None`: nothing.
    fn possible(&self) -> Option<(Gid, PKey)> {
        let port = &self.attributes;
        if !self.admin_up || port.state != PortState::ACTIVE || !port.lid.is_unicast() {
            return None;
        }
        let index = match self.config.p_key {
            Some(key) => port.pkey_index(key)?,
            None => 0,
        };
        let key = *port.pkeys.get(usize::from(index))?;
        (key.base() != 0).then(|| (port.gid(), key.full()))
    }

    /// Brings what runs in line with what is possible.
    pub(super) fn reconsider(&mut self, now: Instant) {
        let possible = self.possible();
        if self.running.is_some() && self.running != possible {
            if self.attributes.state == PortState::ACTIVE {
                self.groups.leave_all(now);
            } else {
                self.groups.port_down(now);
            }
            self.running = None;
        }
        self.set_sm(now);
        let Some((gid, p_key)) = possible else { return };
        let index = self.attributes.pkey_index(p_key).unwrap_or(0);
        match &self.qp {
            Some(qp) => {
                if let Err(error) = qp.set_pkey_index(index) {
                    tracing::warn!(interface = %self.config.name, %p_key, %error, "cannot use the P_Key");
                    return;
                }
            }
            None => {
                let init = UdInit {
                    pkey_index: index,
                    q_key: Default::default(),
                    qpn: self.config.qpn,
                };
                match self.port.create_ud_qp(init, self.plane.clone()) {
                    Ok(qp) => self.qp = Some(qp),
                    Err(error) => {
                        tracing::error!(interface = %self.config.name, %error, "no queue pair");
                        return;
                    }
                }
            }
        }
        if self.is_up() {
            self.connect_as_now(now);
        }
        if self.running.is_none() {
            // Repeating a leave now would end the membership that is joined next.
            let leaves: Vec<_> = self
                .requests
                .extract_if(.., |_, purpose| matches!(purpose, Purpose::Leave(_)))
                .collect();
            for (id, _) in leaves {
                self.sa.cancel(now, id);
            }
            self.running = possible;
            self.groups.port_up(now, gid, p_key);
        }
    }

    fn set_sm(&mut self, now: Instant) {
        let port = &self.attributes;
        let reachable = port.state == PortState::ACTIVE && port.sm_lid.is_unicast();
        let default = |full: PKey| {
            port.pkey_index(full)
                .and_then(|i| port.pkeys.get(usize::from(i)).copied())
        };
        let p_key = default(PKey::DEFAULT_FULL)
            .or_else(|| port.pkeys.first().copied())
            .unwrap_or(PKey::DEFAULT_FULL);
        self.sa.set_sm(
            now,
            reachable.then_some(SmAddress {
                lid: port.sm_lid,
                sl: port.sm_sl,
                p_key,
            }),
        );
    }

    /// The SA knows of no subscription of ours.
    fn subscribe_anew(&mut self, now: Instant) {
        self.unsubscribed = TRAPS.to_vec();
        self.subscribe(now);
    }

    pub(super) fn subscribe(&mut self, now: Instant) {
        self.subscribe_at = None;
        for trap in std::mem::take(&mut self.unsubscribed) {
            let id = self.sa.request(now, SaRequest::subscribe(trap));
            self.requests.insert(id, Purpose::Subscribe(trap));
        }
    }

    pub(super) fn sa_event(&mut self, now: Instant, event: SaEvent) {
        match event {
            SaEvent::Notice(notice) => self.notice(now, &notice),
            SaEvent::Response { id, result } => match self.requests.remove(&id) {
                Some(Purpose::Join(tag)) => {
                    let record = result.map_err(join_error).and_then(|response| {
                        response
                            .mcmember()
                            .ok_or(JoinError::Unusable("no MCMemberRecord in it"))
                    });
                    self.groups.join_result(now, tag, record);
                }
                Some(Purpose::Leave(tag)) => {
                    self.groups
                        .leave_result(now, tag, result.map(drop).map_err(join_error))
                }
                Some(Purpose::Path(gid)) => {
                    let path = result.map_err(path_error);
                    let path = path.and_then(|response| {
                        response.path_record().ok_or(arp::PathError::NotFound)
                    });
                    self.neighbours.path_result(now, gid, path);
                }
                Some(Purpose::Gone(gid)) => {
                    let path = result.ok().and_then(|response| response.path_record());
                    // No answer is none that denies it.
                    if path.is_none() {
                        self.gone(now, gid);
                    }
                }
                Some(Purpose::Subscribe(trap)) => {
                    if let Err(error) = result {
                        tracing::info!(interface = %self.config.name, %trap, %error, "cannot subscribe, trying again");
                        self.unsubscribed.push(trap);
                        self.subscribe_at = Some(now + SUBSCRIBE_RETRY);
                    }
                }
                None => {}
            },
        }
    }

    fn notice(&mut self, now: Instant, notice: &Notice) {
        let Some(gid) = notice.gid() else { return };
        match notice.trap_number {
            TrapNumber::GID_IN_SERVICE => self.neighbours.gid_in_service(now, gid),
            TrapNumber::GID_OUT_OF_SERVICE => {
                self.ask_if_gone(now, gid);
            }
            TrapNumber::MULTICAST_GROUP_CREATED => self.groups.group_created(now, gid),
            TrapNumber::MULTICAST_GROUP_DELETED => self.groups.group_deleted(now, gid),
            _ => {}
        }
    }

    /// A report that a port is gone may be late, and the port be back: the SA knows.
    fn ask_if_gone(&mut self, now: Instant, gid: Gid) {
        let asked = self.requests.values().any(|p| *p == Purpose::Gone(gid));
        let known = self.neighbours.has_path(gid) || self.connections.any_to(gid);
        if known && !asked && !self.request_path(now, gid, Purpose::Gone(gid)) {
            self.gone(now, gid);
        }
    }

    fn gone(&mut self, now: Instant, gid: Gid) {
        self.neighbours.gid_out_of_service(now, gid);
        self.connections.gid_out_of_service(now, gid);
    }

    pub(super) fn groups_output(&mut self, now: Instant, output: Output) {
        match output {
            Output::Join {
                tag,
                record,
                component_mask,
            } => {
                let id = self
                    .sa
                    .request(now, SaRequest::join(&record, component_mask));
                self.requests.insert(id, Purpose::Join(tag));
            }
            Output::Leave {
                tag,
                mgid,
                port_gid,
                join_state,
            } => {
                let id = self
                    .sa
                    .request(now, SaRequest::leave(mgid, port_gid, join_state));
                self.requests.insert(id, Purpose::Leave(tag));
            }
            Output::Cancel { tag } => {
                let named = |purpose: &Purpose| matches!(purpose, Purpose::Join(t) | Purpose::Leave(t) if *t == tag);
                if let Some(id) = self
                    .requests
                    .iter()
                    .find(|(_, purpose)| named(purpose))
                    .map(|(id, _)| *id)
                {
                    self.requests.remove(&id);
                    self.sa.cancel(now, id);
                }
            }
            Output::Attach { mgid, mlid } => {
                if let Some(Err(error)) = self.qp.as_ref().map(|qp| qp.attach_multicast(mgid, mlid))
                {
                    self.groups.attach_failed(now, mgid, error.to_string());
                }
            }
            Output::Detach { mgid, mlid } => {
                if let Some(Err(error)) = self.qp.as_ref().map(|qp| qp.detach_multicast(mgid, mlid))
                {
                    tracing::warn!(interface = %self.config.name, group = %mgid, %error, "cannot detach");
                }
            }
            Output::BroadcastUp(record) => self.broadcast_up(now, &record),
            Output::BroadcastDown => self.broadcast_down(now),
            Output::Route { mgid, record } => {
                self.route(mgid, &record);
                self.changed = true;
            }
            Output::RouteAlias { mgid, via } => {
                if let Some(to) = self.table.groups.get(&via).cloned() {
                    Arc::make_mut(&mut self.table.groups).insert(mgid, to);
                    self.changed = true;
                }
            }
            Output::Unroute { mgid } => {
                Arc::make_mut(&mut self.table.groups).remove(&mgid);
                self.changed = true;
            }
            Output::Send { mgid, packets } => match self.table.groups.get(&mgid).cloned() {
                Some(to) => self.send_to(now, &to, packets),
                None => Counters::add(
                    &self.plane.counters().tx_drop_multicast,
                    packets.len() as u64,
                ),
            },
        }
    }

    /// The broadcast group is joined: everything else follows its parameters.
    fn broadcast_up(&mut self, now: Instant, record: &McMemberRecord) {
        let (Some((gid, p_key)), Some(qp)) = (self.running, self.qp.clone()) else {
            return;
        };
        qp.set_qkey(record.q_key);
        let ib_mtu = record.mtu.bytes().unwrap_or(2048);
        let mtu = usize::from(ib_mtu) - ENCAP_LEN;
        if self
            .table
            .identity
            .as_ref()
            .is_some_and(|old| old.mtu != mtu)
        {
            // Entries of neighbours and groups carry the old one: they are made anew.
            self.neighbours.link_down(now);
            for to in Arc::make_mut(&mut self.table.groups).values_mut() {
                *to = Arc::new(Destination::new(to.ah.clone(), to.qpn, mtu, true));
            }
        }
        self.table.identity = Some(Identity {
            qp,
            lid: self.attributes.lid,
            gid,
            q_key: record.q_key,
            p_key,
            scope: self.config.scope,
            mtu,
        });
        self.changed = true;
        self.mtu.group = Some(mtu as u32);
        self.apply_mtu();
        self.route(record.mgid, record);
        // The device may send as soon as it has carrier.
        self.plane.publish(self.table.clone());
        self.connect_as_now(now);
        self.carrier(true);
        if let Some(address) = self.link_address() {
            self.neighbours.link_up(now, address);
        }
        self.ask_use_at.get_or_insert(now);
        self.subscribe_anew(now);
    }

    fn broadcast_down(&mut self, now: Instant) {
        self.carrier(false);
        self.connections.link_down(now);
        self.neighbours.link_down(now);
        // Its addresses stay the interface's own.
        self.table = Forwarding {
            own: std::mem::take(&mut self.table.own),
            ..Forwarding::default()
        };
        self.changed = true;
        self.subscribe_at = None;
        self.ask_use_at = None;
    }

    /// Connections are those of the interface as it is now.
    fn connect_as_now(&mut self, now: Instant) {
        let (Some(address), Some(identity)) = (self.link_address(), &self.table.identity) else {
            return;
        };
        let p_key = identity.p_key;
        let local = Local {
            address,
            lid: self.attributes.lid,
            lmc: self.attributes.lmc,
            p_key,
            pkey_index: self.attributes.pkey_index(p_key).unwrap_or(0),
            max_mtu: self.attributes.active_mtu,
        };
        self.connections.link_up(now, local);
    }

    fn carrier(&self, up: bool) {
        if let Err(error) = self.plane.netdev().set_carrier(up)
            && !matches!(error, NetdevError::DeviceGone)
        {
            tracing::warn!(interface = %self.config.name, up, %error, "cannot set the carrier");
        }
    }

    /// Makes a group's address handle; multicast always has a GRH (Linux ipoib_multicast.c does the same).
    fn route(&mut self, mgid: Gid, record: &McMemberRecord) {
        let Some(identity) = &self.table.identity else {
            return;
        };
        let ah = AhAttributes {
            dlid: record.mlid,
            sl: record.sl,
            src_path_bits: 0,
            rate: record.rate,
            grh: Some(GrhAttributes {
                dgid: record.mgid,
                sgid_index: 0,
                flow_label: record.flow_label,
                hop_limit: record.hop_limit,
                traffic_class: record.tclass,
            }),
        };
        if let Some(ah) = self.address_handle(ah, &mgid) {
            let to = Destination::new(ah, Qpn::MULTICAST, identity.mtu, true);
            Arc::make_mut(&mut self.table.groups).insert(mgid, Arc::new(to));
        }
    }
}

fn join_error(error: SaError) -> JoinError {
    match error {
        SaError::Status { status, .. } => JoinError::Refused(status),
        SaError::Malformed { reason, .. } => JoinError::Unusable(reason),
        SaError::Timeout { .. } | SaError::Overload(_) => JoinError::NoAnswer,
    }
}

fn path_error(error: SaError) -> arp::PathError {
    match error {
        SaError::Status {
            status: MadStatus::SA_NO_RECORDS,
            ..
        } => arp::PathError::NotFound,
        SaError::Status { status, .. } => arp::PathError::Refused(status.0),
        SaError::Malformed { .. } => arp::PathError::NotFound,
        SaError::Timeout { .. } | SaError::Overload(_) => arp::PathError::TimedOut,
    }
}
