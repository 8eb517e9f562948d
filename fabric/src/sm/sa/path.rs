//! PathRecord (IBA 15.2.5.16).

use super::super::routing::Routing;
use super::super::topology::{PortData, PortId};
use super::member::Groups;
use super::{Answer, Records, Request, Subnet};
use wire::mad::attr::{PathRecord, Selector, path_record as comp};
use wire::mad::{MadStatus, Method};
use wire::{Gid, Lid, MtuCode, PKey, RateCode, ServiceLevel};

/// Records in one answer.
const MAX_PATHS: usize = 16_384;

/// The paths that a request asks for.
pub(super) fn query(
    subnet: &Subnet<'_>,
    groups: &Groups,
    request: &Request<'_>,
    asked: PathRecord,
) -> Answer {
    let mut records = Records::new(PathRecord::LEN);
    if request.has(comp::DGID) && asked.dgid.is_multicast() {
        if let Some(path) = to_group(subnet, groups, request, &asked) {
            records.push(&path.emit());
        }
        return Ok(records);
    }
    let sources = ends(
        subnet,
        request.has(comp::SGID).then_some(asked.sgid),
        request.has(comp::SLID).then_some(asked.slid),
    )?;
    let destinations = ends(
        subnet,
        request.has(comp::DGID).then_some(asked.dgid),
        request.has(comp::DLID).then_some(asked.dlid),
    )?;
    let all = |ends: Option<Vec<PortId>>| {
        ends.unwrap_or_else(|| {
            subnet
                .topo
                .end_ports()
                .filter(|(_, p)| p.lid.is_unicast())
                .map(|(id, _)| id)
                .collect()
        })
    };
    if request.sa.header.method == Method::GET && (sources.is_none() || destinations.is_none()) {
        // A Get is for one path, and both its ends must be said.
        return Err(MadStatus::SA_REQ_INSUFFICIENT_COMPONENTS);
    }
    let (sources, destinations) = (all(sources), all(destinations));
    if sources.len().saturating_mul(destinations.len()) > MAX_PATHS {
        return Err(MadStatus::SA_NO_RESOURCES);
    }
    let most = match request.sa.header.method {
        Method::GET => 1,
        _ if request.has(comp::NUMB_PATH) => asked.numb_path.max(1).into(),
        _ => usize::MAX,
    };
    for &from in &sources {
        for &to in &destinations {
            let Some(pair) = Pair::new(subnet, request, &asked, from, to) else {
                continue;
            };
            let paths = pair
                .lids(&asked)
                .filter_map(|(slid, dlid)| pair.path(&asked, slid, dlid));
            paths.take(most).for_each(|path| records.push(&path.emit()));
        }
    }
    Ok(records)
}

/// The end ports that GID and LID name; `None`: neither is given.
fn ends(
    subnet: &Subnet<'_>,
    gid: Option<Gid>,
    lid: Option<Lid>,
) -> Result<Option<Vec<PortId>>, MadStatus> {
    if gid.is_some_and(|g| g.prefix() != subnet.config.subnet_prefix) {
        return Err(MadStatus::SA_REQ_INVALID_GID);
    }
    let by_gid = gid.map(|g| subnet.by_gid(g));
    let by_lid = lid.map(|l| subnet.topo.by_lid(l));
    Ok(match (by_gid, by_lid) {
        (None, None) => None,
        (Some(port), None) | (None, Some(port)) => Some(port.into_iter().collect()),
        (Some(a), Some(b)) => Some(a.filter(|_| a == b).into_iter().collect()),
    })
}

/// Two end ports that may talk to each other.
struct Pair<'a> {
    subnet: &'a Subnet<'a>,
    request: &'a Request<'a>,
    from: (PortId, &'a PortData),
    to: (PortId, &'a PortData),
    p_key: PKey,
    sl: ServiceLevel,
}

impl<'a> Pair<'a> {
    fn new(
        subnet: &'a Subnet<'_>,
        request: &'a Request<'_>,
        asked: &PathRecord,
        from: PortId,
        to: PortId,
    ) -> Option<Self> {
        let (source, destination) = (subnet.topo.port(from)?, subnet.topo.port(to)?);
        if !request.may_see(subnet, from)
            || !request.may_see(subnet, to)
            || !source.lid.is_unicast()
            || !destination.lid.is_unicast()
        {
            return None;
        }
        let p_key = if request.has(comp::P_KEY) {
            let of = |port: &PortData| port.pkey_like(asked.p_key);
            let (a, b) = (of(source)?, of(destination)?);
            (a.matches(b) || from == to).then_some(asked.p_key)?
        } else {
            common_pkey(source, destination, from == to)?
        };
        let mut partitions = subnet.config.partitions.iter();
        let partition = partitions.find(|p| p.pkey.base() == p_key.base());
        let group = partition.and_then(|p| p.ipoib);
        let sl = group.map_or(ServiceLevel(0), |g| g.sl);
        if request.has(comp::SL) && asked.sl != sl {
            return None;
        }
        Some(Pair {
            subnet,
            request,
            from: (from, source),
            to: (to, destination),
            p_key,
            sl,
        })
    }

    /// LIDs of the two ends: each of the destination's, which decide on the way, with the one of the source whose way back is the like.
    fn lids(&self, asked: &PathRecord) -> impl Iterator<Item = (Lid, Lid)> + use<> {
        let topo = self.subnet.topo;
        let (slid, dlid) = (self.from.1.lid.0, self.to.1.lid.0);
        let (sources, count) = (topo.lids_of(self.from.0), topo.lids_of(self.to.0));
        let given = |bit, lid| self.request.has(bit).then_some(lid);
        let (own, other) = (given(comp::SLID, asked.slid), given(comp::DLID, asked.dlid));
        let lids = (0..count).map(move |n| (Lid(slid + n % sources), Lid(dlid + n)));
        lids.filter(move |(_, dlid)| other.is_none_or(|o| o == *dlid))
            .map(move |(slid, dlid)| (own.unwrap_or(slid), dlid))
    }

    fn path(&self, asked: &PathRecord, slid: Lid, dlid: Lid) -> Option<PathRecord> {
        let (subnet, request) = (self.subnet, self.request);
        let (mut mtu, mut rate) = (MtuCode(u8::MAX), None);
        let arrives = Routing::trace(subnet.topo, self.from.0, (self.to.0, dlid), |port| {
            if port.info.is_some() {
                mtu = mtu.min(port.mtu());
                let own = (port.rate().mbps(), port.rate());
                rate = Some(rate.map_or(own, |least| own.min(least)));
            }
        });
        let (_, rate) = rate.filter(|_| arrives)?;
        let same = self.from.0 == self.to.0;
        let life = if same {
            0
        } else {
            subnet.config.packet_life_time
        };
        Some(PathRecord {
            dgid: subnet.gid(self.to.1),
            sgid: subnet.gid(self.from.1),
            dlid,
            slid,
            flow_label: if request.has(comp::FLOW_LABEL) {
                asked.flow_label
            } else {
                0
            },
            tclass: if request.has(comp::TCLASS) {
                asked.tclass
            } else {
                0
            },
            reversible: true,
            p_key: self.p_key,
            sl: self.sl,
            mtu_selector: Selector::EXACTLY,
            mtu: choose_mtu(
                mtu,
                request
                    .has(comp::MTU | comp::MTU_SELECTOR)
                    .then_some((asked.mtu_selector, asked.mtu)),
            )?,
            rate_selector: Selector::EXACTLY,
            rate: choose_rate(
                rate,
                request
                    .has(comp::RATE | comp::RATE_SELECTOR)
                    .then_some((asked.rate_selector, asked.rate)),
            )?,
            packet_life_time_selector: Selector::EXACTLY,
            packet_life_time: choose_life(
                life,
                request
                    .has(comp::PACKET_LIFE_TIME | comp::PACKET_LIFE_TIME_SELECTOR)
                    .then_some((asked.packet_life_time_selector, asked.packet_life_time)),
            )?,
            ..PathRecord::default()
        })
    }
}

/// The partition with the lowest number that both are in and may talk in, with the source's membership (as OpenSM chooses).
fn common_pkey(source: &PortData, destination: &PortData, same: bool) -> Option<PKey> {
    let usable = |a: &PKey| {
        let others = &mut destination.pkeys.iter();
        a.base() != 0 && others.any(|b| a.matches(*b) || same && a == b)
    };
    let keys = source.pkeys.iter().copied();
    keys.filter(usable).min_by_key(|k| (k.base(), !k.is_full()))
}

/// The largest MTU of the path that the request allows.
fn choose_mtu(path: MtuCode, asked: Option<(Selector, MtuCode)>) -> Option<MtuCode> {
    match asked {
        Some((Selector::GREATER_THAN, n)) => (path > n).then_some(path),
        Some((Selector::LESS_THAN, n)) => (n.0 > 1).then(|| path.min(MtuCode(n.0.min(6) - 1))),
        Some((Selector::EXACTLY, n)) => (path >= n && n.bytes().is_some()).then_some(n),
        _ => Some(path),
    }
}

/// The same of the rate, whose codes are not in the order of rates.
fn choose_rate(path: RateCode, asked: Option<(Selector, RateCode)>) -> Option<RateCode> {
    let mbps = path.mbps()?;
    match asked {
        Some((Selector::GREATER_THAN, n)) => (mbps > n.mbps()?).then_some(path),
        Some((Selector::LESS_THAN, n)) => {
            let limit = n.mbps()?;
            if mbps < limit {
                return Some(path);
            }
            RateCode::all()
                .filter(|r| r.mbps().is_some_and(|m| m < limit))
                .max_by_key(|r| r.mbps())
        }
        Some((Selector::EXACTLY, n)) => (mbps >= n.mbps()?).then_some(n),
        _ => Some(path),
    }
}

fn choose_life(path: u8, asked: Option<(Selector, u8)>) -> Option<u8> {
    match asked {
        Some((Selector::GREATER_THAN, n)) => (n < 63).then(|| path.max(n + 1)),
        Some((Selector::LESS_THAN, n)) => (path < n).then_some(path),
        Some((Selector::EXACTLY, n)) => (path <= n).then_some(n),
        _ => Some(path),
    }
}

/// A multicast group as a destination.
fn to_group(
    subnet: &Subnet<'_>,
    groups: &Groups,
    request: &Request<'_>,
    asked: &PathRecord,
) -> Option<PathRecord> {
    let group = groups.get(asked.dgid)?;
    let source = if request.has(comp::SGID) {
        subnet.by_gid(asked.sgid)?
    } else {
        request.port
    };
    let port = subnet.topo.port(source)?;
    if !request.may_see(subnet, source)
        || port.pkey_like(group.p_key).is_none()
        || request.has(comp::P_KEY) && asked.p_key.base() != group.p_key.base()
    {
        return None;
    }
    Some(PathRecord {
        dgid: asked.dgid,
        sgid: subnet.gid(port),
        dlid: group.mlid,
        slid: port.lid,
        flow_label: group.flow_label,
        hop_limit: group.hop_limit,
        tclass: group.tclass,
        reversible: true,
        p_key: group.p_key,
        sl: group.sl,
        mtu_selector: Selector::EXACTLY,
        mtu: group.mtu,
        rate_selector: Selector::EXACTLY,
        rate: group.rate,
        packet_life_time_selector: Selector::EXACTLY,
        packet_life_time: group.packet_life_time,
        ..PathRecord::default()
    })
}
