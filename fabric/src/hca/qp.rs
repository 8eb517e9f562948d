//! UD queue pairs of an HCA (IBA 10.2, 11.2.4, 11.4.1).

use super::rc::ConnectedQp;
use super::{CHUNK, Hca, same_destination};
use crate::node::{DropReason, Lanes, is_own_lid, lane};
use arrayvec::ArrayVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use verbs::{
    AhAttributes, PortAttributes, QpState, ReceiveHandler, UdInit, UdQueuePair, UdReceive, UdSend,
    VerbsError,
};
use wire::mad::attr::PortState;
use wire::packet::{Bth, Deth, Extended, Grh, Lrh, Opcode, Packet};
use wire::{Gid, Lid, PKey, Psn, QKey, Qpn};

/// Most queue pairs of an HCA; each costs a few hundred bytes.
const MAX_QPS: usize = 1 << 16;

/// A queue pair as `show` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpResource {
    /// Its number.
    pub qpn: Qpn,
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// Its Q_Key; 0 of a connected one.
    pub q_key: QKey,
    /// State of a connected one; `None`: unreliable datagrams.
    pub connected: Option<QpState>,
    /// Groups it is attached to, in order.
    pub groups: Vec<Gid>,
}

/// The queue pair as the data path knows it.
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    q_key: AtomicU32,
    pkey_index: AtomicU16,
    psn: AtomicU32,
    handler: Arc<dyn ReceiveHandler>,
}

impl Qp {
    pub(super) fn q_key(&self) -> QKey {
        QKey(self.q_key.load(Relaxed))
    }
    pub(super) fn pkey_index(&self) -> u16 {
        self.pkey_index.load(Relaxed)
    }
    pub(super) fn receive(&self, batch: &[UdReceive<'_>]) {
        self.handler.receive(batch);
    }
}

/// A queue pair of some service.
#[derive(Clone)]
pub(super) enum AnyQp {
    Ud(Arc<Qp>),
    Connected(Arc<ConnectedQp>),
}

/// All queue pairs and their groups; replaced as a whole.
#[derive(Clone, Default)]
pub(super) struct QpTable {
    pub(super) qps: HashMap<Qpn, AnyQp>,
    pub(super) groups: HashMap<Gid, Vec<Arc<Qp>>>,
}

impl QpTable {
    pub(super) fn resources(&self) -> Vec<QpResource> {
        let groups_of = |qpn| {
            let mut groups: Vec<Gid> = self
                .groups
                .iter()
                .filter(|(_, m)| m.iter().any(|q| q.qpn == qpn))
                .map(|(g, _)| *g)
                .collect();
            groups.sort_unstable();
            groups
        };
        let mut all: Vec<_> = self
            .qps
            .iter()
            .map(|(qpn, qp)| {
                let (pkey_index, q_key, connected) = match qp {
                    AnyQp::Ud(qp) => (qp.pkey_index(), qp.q_key(), None),
                    AnyQp::Connected(qp) => {
                        let status = qp.status();
                        (status.init.pkey_index, QKey(0), Some(status.state))
                    }
                };
                QpResource {
                    qpn: *qpn,
                    pkey_index,
                    q_key,
                    connected,
                    groups: groups_of(*qpn),
                }
            })
            .collect();
        all.sort_unstable_by_key(|r| r.qpn);
        all
    }
}

/// Gives out queue pair numbers: always the next one, so that a number rests long after its queue pair ended.
pub(super) struct Allocator {
    next: u32,
}

impl Allocator {
    pub(super) fn new(first: Qpn) -> Self {
        Allocator { next: first.0 }
    }

    fn allocate(&mut self, table: &QpTable, wanted: Option<Qpn>) -> Result<Qpn, VerbsError> {
        if table.qps.len() >= MAX_QPS {
            return Err(VerbsError::NoResources("queue pairs", MAX_QPS));
        }
        if let Some(qpn) = wanted {
            return if is_free(table, qpn) {
                Ok(qpn)
            } else {
                Err(VerbsError::QpnInUse(qpn))
            };
        }
        // Ends: there are fewer queue pairs than numbers.
        loop {
            let qpn = Qpn::new(self.next);
            self.next = self.next.wrapping_add(1);
            if is_free(table, qpn) {
                return Ok(qpn);
            }
        }
    }
}

/// 0, 1 and 0xFFFFFF are the standard's (IBA 3.5.10).
fn is_free(table: &QpTable, qpn: Qpn) -> bool {
    (2..Qpn::MULTICAST.0).contains(&qpn.0) && !table.qps.contains_key(&qpn)
}

/// The user's handle. The data path's tables never point to it, so dropping it ends the queue pair.
pub(super) struct UdQp {
    hca: Arc<Hca>,
    qp: Arc<Qp>,
}

impl UdQp {
    pub(super) fn create(
        hca: Arc<Hca>,
        init: UdInit,
        handler: Arc<dyn ReceiveHandler>,
    ) -> Result<UdQp, VerbsError> {
        check_pkey_index(&hca, init.pkey_index)?;
        let qp = hca.add_qp(init.qpn, |qpn| {
            let qp = Arc::new(Qp {
                qpn,
                q_key: AtomicU32::new(init.q_key.0),
                pkey_index: AtomicU16::new(init.pkey_index),
                psn: AtomicU32::new(0),
                handler,
            });
            (AnyQp::Ud(qp.clone()), qp)
        })?;
        Ok(UdQp { hca, qp })
    }

    /// The packet of one send, or why there is none.
    fn packet<'a>(
        &self,
        attributes: &PortAttributes,
        (mtu, lanes): (usize, Option<&Lanes>),
        send: &UdSend<'a>,
    ) -> Result<Packet<'a>, DropReason> {
        let ah = send.ah.attributes();
        if !(ah.dlid.is_unicast() || ah.dlid.is_multicast()) || send.remote_qpn == Qpn::SMI {
            return Err(DropReason::BadDestination);
        }
        let len = match send.lso {
            None => send.payload.len(),
            Some(lso) if lso.mss == 0 || usize::from(lso.header_len) > send.payload.len() => {
                return Err(DropReason::TooLong);
            }
            Some(lso) => send
                .payload
                .len()
                .min(usize::from(lso.header_len) + usize::from(lso.mss)),
        };
        if len > mtu {
            return Err(DropReason::TooLong);
        }
        let Address { lrh, grh, p_key } = address(attributes, lanes, ah, self.qp.pkey_index())?;
        // IBA 10.2.4: a controlled Q_Key in the work request means the queue pair's own.
        let q_key = if send.remote_qkey.0 & 0x8000_0000 != 0 {
            self.qp.q_key()
        } else {
            send.remote_qkey
        };
        Ok(Packet {
            lrh,
            grh,
            bth: Bth {
                opcode: Opcode::UD_SEND_ONLY,
                p_key,
                dest_qp: send.remote_qpn,
                psn: Psn::new(self.qp.psn.fetch_add(1, Relaxed)),
                ..Bth::default()
            },
            ext: Extended {
                deth: Some(Deth {
                    q_key,
                    src_qp: self.qp.qpn,
                }),
                ..Extended::default()
            },
            payload: send.payload,
            lso: send.lso,
            icrc: None,
            hops: 0,
        })
    }

    fn attach(&self, mgid: Gid, attach: bool) -> Result<(), VerbsError> {
        if !mgid.is_multicast() {
            return Err(VerbsError::BadGroup(mgid));
        }
        let _changing = self.hca.allocator.lock();
        let mut table = QpTable::clone(&self.hca.table.load());
        let members = table.groups.entry(mgid).or_default();
        let at = members.iter().position(|m| Arc::ptr_eq(m, &self.qp));
        match (attach, at) {
            (true, None) => members.push(self.qp.clone()),
            // Attaching twice is harmless (IBA 11.2.10.1).
            (true, Some(_)) => return Ok(()),
            (false, Some(at)) => drop(members.remove(at)),
            (false, None) => return Err(VerbsError::BadGroup(mgid)),
        }
        if members.is_empty() {
            table.groups.remove(&mgid);
        }
        self.hca.table.store(Arc::new(table));
        Ok(())
    }
}

/// The headers that follow from where a packet goes.
pub(super) struct Address {
    pub(super) lrh: Lrh,
    pub(super) grh: Option<Grh>,
    pub(super) p_key: PKey,
}

/// Addresses packets of a queue pair, or says why that cannot be.
pub(super) fn address(
    attributes: &PortAttributes,
    lanes: Option<&Lanes>,
    ah: &AhAttributes,
    pkey_index: u16,
) -> Result<Address, DropReason> {
    let p_key = attributes
        .pkeys
        .get(usize::from(pkey_index))
        .copied()
        .filter(|k| k.base() != 0)
        .ok_or(DropReason::NoPKey)?;
    let grh = match ah.grh {
        None => None,
        Some(g) => Some(Grh {
            traffic_class: g.traffic_class,
            flow_label: g.flow_label,
            hop_limit: g.hop_limit,
            sgid: attributes
                .gids
                .get(usize::from(g.sgid_index))
                .copied()
                .ok_or(DropReason::NoSourceGid)?,
            dgid: g.dgid,
        }),
    };
    let path_bits = u16::from(ah.src_path_bits) & ((1 << attributes.lmc) - 1);
    let lrh = Lrh {
        vl: lane(lanes, 0, ah.sl).ok_or(DropReason::NoLane)?,
        lver: 0,
        sl: ah.sl,
        dlid: ah.dlid,
        slid: Lid(attributes.lid.0 | path_bits),
    };
    Ok(Address { lrh, grh, p_key })
}

impl Hca {
    /// Puts the queue pair that `make` makes of a free number, or of the `wanted` one, into the table.
    pub(super) fn add_qp<T>(
        &self,
        wanted: Option<Qpn>,
        make: impl FnOnce(Qpn) -> (AnyQp, T),
    ) -> Result<T, VerbsError> {
        let mut allocator = self.allocator.lock();
        let mut table = QpTable::clone(&self.table.load());
        let qpn = allocator.allocate(&table, wanted)?;
        let (qp, made) = make(qpn);
        table.qps.insert(qpn, qp);
        self.table.store(Arc::new(table));
        Ok(made)
    }

    /// Takes a queue pair and its memberships out of the table.
    pub(super) fn remove_qp(&self, qpn: Qpn) {
        let _changing = self.allocator.lock();
        let mut table = QpTable::clone(&self.table.load());
        table.qps.remove(&qpn);
        table.groups.retain(|_, members| {
            members.retain(|m| m.qpn != qpn);
            !members.is_empty()
        });
        self.table.store(Arc::new(table));
    }
}

pub(super) fn check_pkey_index(hca: &Hca, index: u16) -> Result<(), VerbsError> {
    match hca.core.attributes.load().pkeys.get(usize::from(index)) {
        Some(key) if key.base() != 0 => Ok(()),
        _ => Err(VerbsError::BadPKeyIndex(index)),
    }
}

impl UdQueuePair for UdQp {
    fn qpn(&self) -> Qpn {
        self.qp.qpn
    }

    fn post_send(&self, batch: &[UdSend<'_>]) {
        let core = &self.hca.core;
        let port = core.end();
        if port.state() != PortState::ACTIVE {
            return port.discard(batch.len(), DropReason::PortNotActive, &core.drops);
        }
        let attributes = core.attributes.load();
        let mtu = usize::from(attributes.active_mtu.bytes().unwrap_or_default());
        let lanes = port.lanes.load();
        for sends in batch.chunks(CHUNK) {
            let mut out = ArrayVec::<Packet<'_>, CHUNK>::new();
            let mut own = ArrayVec::<Packet<'_>, CHUNK>::new();
            for send in sends {
                match self.packet(&attributes, (mtu, lanes.as_deref()), send) {
                    // Unicast to this port never leaves it.
                    Ok(packet) if is_own_lid(&attributes, packet.lrh.dlid) => own.push(packet),
                    Ok(packet) => out.push(packet),
                    Err(reason) => port.discard(1, reason, &core.drops),
                }
            }
            if !out.is_empty() {
                port.transmit(&out, &core.drops);
            }
            own.chunk_by(same_destination)
                .for_each(|run| self.hca.deliver(&attributes, run, None));
            // Other queue pairs of this port that are in the group get it as well (IBA 10.5.2): the switch does not send it back.
            let groups = out
                .chunk_by(same_destination)
                .filter(|run| run[0].lrh.dlid.is_multicast() && run[0].grh.is_some());
            groups.for_each(|run| self.hca.deliver(&attributes, run, Some(self.qp.qpn)));
        }
    }

    fn set_qkey(&self, q_key: QKey) {
        self.qp.q_key.store(q_key.0, Relaxed);
    }

    fn set_pkey_index(&self, index: u16) -> Result<(), VerbsError> {
        check_pkey_index(&self.hca, index)?;
        self.qp.pkey_index.store(index, Relaxed);
        Ok(())
    }

    /// The group is its MGID: a packet with this DGID comes in whatever MLID carried it (several groups may share one).
    fn attach_multicast(&self, mgid: Gid, _mlid: Lid) -> Result<(), VerbsError> {
        self.attach(mgid, true)
    }

    fn detach_multicast(&self, mgid: Gid, _mlid: Lid) -> Result<(), VerbsError> {
        self.attach(mgid, false)
    }
}

impl Drop for UdQp {
    fn drop(&mut self) {
        self.hca.remove_qp(self.qp.qpn);
    }
}
