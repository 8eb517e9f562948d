//! One group, and what it may ask of a port.

use super::super::super::topology::PortData;
use super::super::Request;
use std::collections::BTreeMap;
use wire::mad::attr::{JoinState, McMemberRecord, Selector, mcmember as comp};
use wire::{Gid, Guid, Lid, MtuCode, PKey, QKey, RateCode, ServiceLevel};

/// Join states that keep a group.
pub(super) const KEEPS: u8 = JoinState::FULL.0 | JoinState::SEND_ONLY_FULL.0;
/// One group.
#[derive(Debug)]
pub(in super::super::super) struct Group {
    pub(in super::super::super) mlid: Lid,
    pub(in super::super::super) q_key: QKey,
    pub(in super::super::super) p_key: PKey,
    pub(in super::super::super) mtu: MtuCode,
    pub(in super::super::super) rate: RateCode,
    pub(in super::super::super) packet_life_time: u8,
    pub(in super::super::super) sl: ServiceLevel,
    pub(in super::super::super) flow_label: u32,
    pub(in super::super::super) hop_limit: u8,
    pub(in super::super::super) tclass: u8,
    /// Exists without members too.
    pub(in super::super::super) well_known: bool,
    /// How many members keep it.
    pub(super) keepers: usize,
    /// By port GUID: GID and join state.
    pub(in super::super::super) members: BTreeMap<Guid, (Gid, JoinState)>,
}

impl Group {
    pub(super) fn record(&self, mgid: Gid) -> McMemberRecord {
        McMemberRecord {
            mgid,
            q_key: self.q_key,
            mlid: self.mlid,
            mtu_selector: Selector::EXACTLY,
            mtu: self.mtu,
            tclass: self.tclass,
            p_key: self.p_key,
            rate_selector: Selector::EXACTLY,
            rate: self.rate,
            packet_life_time_selector: Selector::EXACTLY,
            packet_life_time: self.packet_life_time,
            sl: self.sl,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            scope: mgid.0[1] & 0xf,
            ..McMemberRecord::default()
        }
    }

    /// Do the group's parameters satisfy what a join asks for? (IBA o15-0.2.4; OpenSM `validate_more_comp_fields`)
    pub(super) fn suits(&self, request: &Request<'_>, asked: &McMemberRecord, scope: u8) -> bool {
        let says = |c| request.has(c);
        (!says(comp::Q_KEY) || asked.q_key == self.q_key)
            && (!says(comp::P_KEY)
                || (asked.p_key.base() == self.p_key.base()
                    && (asked.p_key.is_full() || self.p_key.is_full())))
            && (!says(comp::TCLASS) || asked.tclass == self.tclass)
            && (!says(comp::SL) || asked.sl == self.sl)
            && (!says(comp::FLOW_LABEL) || asked.flow_label == self.flow_label)
            && (!says(comp::SCOPE) || asked.scope == scope)
            && (!says(comp::MLID) || asked.mlid == self.mlid)
            && (!says(comp::MTU | comp::MTU_SELECTOR)
                || selected(asked.mtu_selector, asked.mtu.0, self.mtu.0))
            && (!says(comp::RATE | comp::RATE_SELECTOR)
                || selected(asked.rate_selector, asked.rate.mbps(), self.rate.mbps()))
            && (!says(comp::PACKET_LIFE_TIME | comp::PACKET_LIFE_TIME_SELECTOR)
                || selected(
                    asked.packet_life_time_selector,
                    asked.packet_life_time,
                    self.packet_life_time,
                ))
    }
}

fn selected<T: PartialOrd>(selector: Selector, asked: T, value: T) -> bool {
    match selector {
        Selector::GREATER_THAN => value > asked,
        Selector::LESS_THAN => value < asked,
        Selector::EXACTLY => value == asked,
        _ => true,
    }
}

/// The broadcast group that an IPoIB group goes with, if it is one (RFC 4391 section 4).
pub(super) fn ipoib_broadcast_of(mgid: Gid) -> Option<Gid> {
    let g = &mgid.0;
    let is_ipoib = g[0] == 0xff && matches!([g[2], g[3]], [0x40 | 0x60, 0x1b]);
    is_ipoib.then(|| {
        Gid([
            0xff,
            0x10 | g[1] & 0xf,
            0x40,
            0x1b,
            g[4],
            g[5],
            0,
            0,
            0,
            0,
            0,
            0,
            0xff,
            0xff,
            0xff,
            0xff,
        ])
    })
}

/// Is the port in the group's partition, and can it take the group's packets? (OpenSM `validate_port_caps`, `osm_physp_has_pkey`)
pub(super) fn may_join(group: &Group, port: &PortData) -> bool {
    let capable = port.info.is_some_and(|i| group.mtu <= i.mtu_cap)
        && group.rate.mbps() <= port.rate().mbps();
    capable && port.pkey_like(group.p_key).is_some()
}

/// The MTU of a group to be created: what the request asks for, if the port can do it.
pub(super) fn realizable_mtu(
    request: &Request<'_>,
    asked: &McMemberRecord,
    port: &PortData,
) -> Option<MtuCode> {
    let most = port.info?.mtu_cap;
    let selector = request
        .has(comp::MTU | comp::MTU_SELECTOR)
        .then_some(asked.mtu_selector);
    let mtu = match selector {
        Some(Selector::GREATER_THAN) => MtuCode(asked.mtu.0.checked_add(1)?),
        Some(Selector::LESS_THAN) => MtuCode(asked.mtu.0.checked_sub(1)?).min(most),
        Some(Selector::EXACTLY) => asked.mtu,
        Some(_) => most,
        None => MtuCode::MTU_2048.min(most),
    };
    (mtu.bytes().is_some() && mtu <= most).then_some(mtu)
}

/// The same of the rate.
pub(super) fn realizable_rate(
    request: &Request<'_>,
    asked: &McMemberRecord,
    port: &PortData,
) -> Option<RateCode> {
    let most = port.rate().mbps()?;
    let all = || RateCode::all().filter(|r| r.mbps().is_some_and(|m| m <= most));
    let limit = asked.rate.mbps();
    match request
        .has(comp::RATE | comp::RATE_SELECTOR)
        .then_some(asked.rate_selector)
    {
        Some(Selector::GREATER_THAN) => all().filter(|r| r.mbps() > limit).min_by_key(|r| r.mbps()),
        Some(Selector::LESS_THAN) => all().filter(|r| r.mbps() < limit).max_by_key(|r| r.mbps()),
        Some(Selector::EXACTLY) => all().find(|r| *r == asked.rate),
        Some(_) => Some(port.rate()),
        None => Some(RateCode::GBPS_10)
            .filter(|r| r.mbps() <= Some(most))
            .or(Some(port.rate())),
    }
}
