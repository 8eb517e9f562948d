//! What connections of IPoIB say in CM messages (RFC 4755 sections 3.2 and 6; Linux `ipoib_cm.c`).

use super::config::Dialect;
use super::lane::PeerKey;
use super::{ConnectedConfig, Local};
use crate::interface::neighbour::ah_attributes;
use arp::Path;
use mad::CmAddress;
use verbs::{AhAttributes, GrhAttributes, GrhInfo, RnrTimer, RtrAttributes, RtsAttributes};
use wire::ipoib::ENCAP_LEN;
use wire::mad::cm::{CmPath, Rep, Req, ServiceId};
use wire::{Lid, MtuCode, Psn, Qpn};

/// READs and ATOMICs: none are done, but Linux offers so many.
const RESPONDER_RESOURCES: u8 = 4;
/// 0.64 ms: what a sender is told to wait if it overruns the receiver.
const RNR_TIMER: RnrTimer = RnrTimer(12);

/// Private data: UD queue pair and receive MTU, with the encapsulation header.
pub(super) fn private_data<const N: usize>(qpn: Qpn, config: &ConnectedConfig) -> [u8; N] {
    let mut data = [0; N];
    data[..4].copy_from_slice(&qpn.0.to_be_bytes());
    let mtu = config.receive_mtu + ENCAP_LEN as u32;
    data[4..8].copy_from_slice(&mtu.to_be_bytes());
    data
}

/// What the other side says of itself: its UD queue pair, and the longest IP packet that it takes, bytes; `None` if it takes none.
pub(super) fn read_private_data(data: &[u8]) -> (Qpn, Option<usize>) {
    let word = |at: usize| {
        let bytes = data.get(at..at + 4).and_then(|b| b.first_chunk());
        u32::from_be_bytes(bytes.copied().unwrap_or_default())
    };
    let mtu = (word(4) as usize).checked_sub(ENCAP_LEN);
    (Qpn::new(word(0)), mtu.filter(|mtu| *mtu > 0))
}

pub(super) fn service_id(dialect: Dialect, qpn: Qpn) -> ServiceId {
    match dialect {
        Dialect::Linux => ServiceId::ipoib_linux(qpn),
        Dialect::Rfc => ServiceId::ipoib_rfc(qpn),
    }
}

/// Where the communication manager of a neighbour is.
pub(super) fn cm_address(local: &Local, path: &Path, peer: PeerKey) -> CmAddress {
    CmAddress {
        dlid: path.dlid,
        sl: path.sl,
        qpn: Qpn::GSI,
        p_key: local.p_key,
        grh: (path.hop_limit > 0).then_some(GrhInfo {
            sgid: local.address.gid,
            dgid: peer.0,
            hop_limit: path.hop_limit,
            traffic_class: path.tclass,
            flow_label: path.flow_label,
        }),
    }
}

/// The largest packet of a connection along `path`.
pub(super) fn path_mtu(local: &Local, path: &Path) -> MtuCode {
    path.mtu.min(local.max_mtu)
}

/// What Linux asks for, but for the retry counts.
pub(super) fn req(
    local: &Local,
    config: &ConnectedConfig,
    path: &Path,
    peer: PeerKey,
    dialect: Dialect,
    qpn: Qpn,
    psn: Psn,
) -> Req {
    // Beyond a router the LIDs of this subnet mean nothing: those of the packet count then, as in Linux's ib_cm.
    let subnet_local = path.hop_limit <= 1;
    let lid = |lid| if subnet_local { lid } else { Lid::PERMISSIVE };
    Req {
        service_id: service_id(dialect, peer.1),
        local_qpn: qpn,
        responder_resources: RESPONDER_RESOURCES,
        starting_psn: psn,
        retry_count: config.retry_count,
        rnr_retry_count: config.rnr_retry,
        p_key: local.p_key,
        path_packet_payload_mtu: path_mtu(local, path),
        srq: true,
        primary: CmPath {
            // Where this side is now: the path may be older.
            local_lid: lid(Lid(local.lid.0 | path.slid.0 & ((1 << local.lmc) - 1))),
            remote_lid: lid(path.dlid),
            local_gid: local.address.gid,
            remote_gid: peer.0,
            flow_label: path.flow_label,
            packet_rate: path.rate,
            traffic_class: path.tclass,
            hop_limit: path.hop_limit,
            sl: path.sl,
            subnet_local,
            local_ack_timeout: config.ack_timeout.0,
        },
        private_data: private_data(local.address.qpn, config),
        ..Req::default()
    }
}

pub(super) fn rep(local: &Local, config: &ConnectedConfig, qpn: Qpn, psn: Psn) -> Rep {
    Rep {
        local_qpn: qpn,
        starting_psn: psn,
        rnr_retry_count: config.rnr_retry,
        srq: true,
        private_data: private_data(local.address.qpn, config),
        ..Rep::default()
    }
}

/// Of the queue pair of whoever asked, for packets from `rq_psn` on.
pub(super) fn rtr_of_rep(
    local: &Local,
    path: &Path,
    peer: PeerKey,
    rep: &Rep,
    rq_psn: Psn,
) -> RtrAttributes {
    RtrAttributes {
        path: ah_attributes(path, peer.0, local.lmc),
        path_mtu: path_mtu(local, path),
        dest_qpn: rep.local_qpn,
        rq_psn,
        max_dest_rd_atomic: RESPONDER_RESOURCES,
        min_rnr_timer: RNR_TIMER,
    }
}

/// Of the queue pair of whoever was asked, for packets from `rq_psn` on: the same way back.
pub(super) fn rtr_of_req(local: &Local, req: &Req, rq_psn: Psn) -> RtrAttributes {
    let there = &req.primary;
    let path = AhAttributes {
        dlid: there.local_lid,
        sl: there.sl,
        src_path_bits: (there.remote_lid.0 & ((1 << local.lmc) - 1)) as u8,
        rate: there.packet_rate,
        // As ib_cm.
        grh: (there.hop_limit > 0).then_some(GrhAttributes {
            dgid: there.local_gid,
            sgid_index: 0,
            flow_label: there.flow_label,
            hop_limit: there.hop_limit,
            traffic_class: there.traffic_class,
        }),
    };
    RtrAttributes {
        path,
        path_mtu: req.path_packet_payload_mtu,
        dest_qpn: req.local_qpn,
        rq_psn,
        max_dest_rd_atomic: RESPONDER_RESOURCES,
        min_rnr_timer: RNR_TIMER,
    }
}

/// How this side sends, from `sq_psn` on. What a peer asks for is what it can bear; more retries than it thought of do no harm.
pub(super) fn rts(config: &ConnectedConfig, sq_psn: Psn) -> RtsAttributes {
    RtsAttributes {
        sq_psn,
        timeout: config.ack_timeout,
        retry_count: config.retry_count,
        rnr_retry: config.rnr_retry,
        max_rd_atomic: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ipoib::LinkAddress;
    use wire::{Gid, Guid, Lid, PKey, RateCode, ServiceLevel};

    fn local(n: u16) -> Local {
        Local {
            address: LinkAddress {
                flags: LinkAddress::FLAG_RC,
                qpn: Qpn::new(n.into()),
                gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(n.into())),
            },
            lid: Lid(n),
            lmc: 0,
            p_key: PKey::DEFAULT_FULL,
            pkey_index: 0,
            max_mtu: MtuCode::MTU_4096,
        }
    }

    /// IBA 12.6.5, and Linux: whoever gets a REQ or REP begins to send where that says.
    #[test]
    fn each_side_begins_where_the_other_says() {
        let ([asking, asked], config) = ([1, 2].map(local), ConnectedConfig::default());
        let path = Path {
            dlid: asked.lid,
            slid: asking.lid,
            sl: ServiceLevel(0),
            mtu: MtuCode::MTU_2048,
            rate: RateCode::GBPS_10,
            hop_limit: 0,
            flow_label: 0,
            tclass: 0,
        };
        let (key, own) = ((asked.address.gid, asked.address.qpn), Psn::new(7));
        let req = req(
            &asking,
            &config,
            &path,
            key,
            Dialect::Linux,
            Qpn::new(3),
            own,
        );
        let there = rtr_of_req(&asked, &req, Psn::new(9));
        let rep = rep(&asked, &config, Qpn::new(4), there.rq_psn);
        let here = rtr_of_rep(&asking, &path, key, &rep, own);
        assert_eq!(rts(&config, rep.starting_psn).sq_psn, there.rq_psn);
        assert_eq!(rts(&config, req.starting_psn).sq_psn, here.rq_psn);
        assert_eq!((there.dest_qpn, here.dest_qpn), (Qpn::new(3), Qpn::new(4)));
        assert_eq!((there.path.dlid, here.path.dlid), (Lid(1), Lid(2)));
    }
}
