//! MADs that OpenSM, ibsim and the Linux kernel really sent: all of them come out of the typed values as they went in.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::path::{Path, PathBuf};
use wire::mad::attr::*;
use wire::mad::cm::{CmMessage, IpoibPrivateData, ServiceId};
use wire::mad::describe::{describe, reemit};
use wire::mad::*;
use wire::{Lid, MtuCode, PKey, QKey, Qpn, RateCode};

fn shared(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared")
        .join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: {} is absent", path.display());
    None
}

/// Hex bytes separated by white space; words that end in a colon are offsets.
fn bytes(path: &Path) -> Vec<u8> {
    let text = std::fs::read_to_string(path).unwrap();
    let words = text.split_whitespace().filter(|word| !word.ends_with(':'));
    words
        .map(|word| u8::from_str_radix(word, 16).unwrap())
        .collect()
}

fn files(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|e| e == "hex"))
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_string(),
                path,
            )
        })
        .collect();
    files.sort();
    files
}

/// All stored MADs by file name: the dumps, and the MADs inside of the packets (after LRH 8, BTH 12, DETH 8).
fn stored() -> Vec<(String, MadBytes)> {
    let mut mads = Vec::new();
    if let Some(folder) = shared("mads") {
        for (name, path) in files(&folder) {
            mads.push((name, bytes(&path).try_into().unwrap()));
        }
    }
    if let Some(folder) = shared("kernel-peer/vectors") {
        for (name, path) in files(&folder) {
            if ["SA-", "SMP-", "CM-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                mads.push((name, bytes(&path)[28..28 + 256].try_into().unwrap()));
            }
        }
    }
    mads
}

fn stored_one(name: &str) -> Option<MadBytes> {
    stored()
        .into_iter()
        .find(|(n, _)| n == name)
        .map(|(_, mad)| mad)
}

#[test]
fn stored_mads_come_out_unchanged() {
    let mut different = Vec::new();
    for (name, mad) in stored() {
        let again = reemit(&mad).unwrap();
        let at: Vec<usize> = (0..256).filter(|&i| mad[i] != again[i]).collect();
        println!("{name}: {}", describe(&mad));
        if !at.is_empty() {
            different.push(format!("{name}: bytes {at:02x?}"));
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

fn sa(name: &str) -> Option<SaMad> {
    stored_one(name).and_then(|mad| SaMad::parse(&mad))
}

#[test]
fn port_info_is_what_ibsim_says() {
    let Some(mad) = stored_one("02-smp-portinfo-get.resp.hex") else {
        return;
    };
    let smp = Smp::parse(&mad).unwrap();
    assert!(!smp.is_directed() && smp.header.method == Method::GET_RESP);
    let info = PortInfo::parse(&smp.data).unwrap();
    assert_eq!(
        (
            info.lid,
            info.master_sm_lid,
            info.gid_prefix,
            info.local_port_num
        ),
        (Lid(3), Lid(1), 0xfe80_0000_0000_0000, 1)
    );
    assert_eq!(
        (
            info.port_state,
            info.port_physical_state,
            info.link_down_default_state
        ),
        (PortState::ACTIVE, PortPhysicalState::LINK_UP, 2)
    );
    assert_eq!(
        (info.neighbor_mtu, info.mtu_cap),
        (MtuCode::MTU_2048, MtuCode::MTU_2048)
    );
    assert_eq!(
        (info.link_width_active, info.link_speed_active),
        (LinkWidth::X4, 1)
    );
    assert_eq!(
        (
            info.guid_cap,
            info.subnet_timeout,
            info.vl_cap,
            info.operational_vls
        ),
        (32, 31, 4, 4)
    );
    assert!(
        info.capability_mask
            .contains(CapabilityMask::IS_TRAP_SUPPORTED)
    );
    assert!(!info.capability_mask.contains(CapabilityMask::IS_SM));
    assert_eq!(info.capability_mask2, 0x30);
}

/// What Linux sends, made with our constructors.
#[test]
fn linux_join_and_path_requests_can_be_made() {
    for (name, mask, state) in [
        (
            "SA-Set-MCMemberRecord-js1-broadcast-k.hex",
            mcmember::JOIN,
            JoinState::FULL,
        ),
        (
            "SA-Set-MCMemberRecord-js1-k.hex",
            mcmember::CREATE,
            JoinState::FULL,
        ),
        (
            "SA-Set-MCMemberRecord-js8-k.hex",
            mcmember::CREATE,
            JoinState::SEND_ONLY_FULL,
        ),
    ] {
        let Some(mad) = sa(name) else { return };
        let record = McMemberRecord::parse(&mad.data).unwrap();
        assert_eq!(
            (mad.component_mask, record.join_state),
            (mask, state),
            "{name}"
        );
        let made = SaMad::request(
            Method::SET,
            AttrId::MC_MEMBER_RECORD,
            mask,
            &record.emit(),
            mad.header.tid,
        );
        assert_eq!(made.emit(), mad.emit(), "{name}");
        if mask == mcmember::CREATE {
            assert_eq!((record.q_key, record.p_key), (QKey(0xb1b), PKey(0xffff)));
            assert_eq!(
                (record.mtu_selector, record.mtu),
                (Selector::EXACTLY, MtuCode::MTU_2048)
            );
            assert_eq!(
                (record.rate_selector, record.rate),
                (Selector::EXACTLY, RateCode::GBPS_10)
            );
        }
    }
    let Some(mad) = sa("SA-Get-PathRecord-k.hex") else {
        return;
    };
    let path = PathRecord::parse(&mad.data).unwrap();
    let made = SaMad::request(
        Method::GET,
        AttrId::PATH_RECORD,
        path_record::IPOIB_QUERY,
        &path.emit(),
        mad.header.tid,
    );
    assert_eq!(made.emit(), mad.emit());
    assert_eq!(
        (path.numb_path, path.reversible, path.p_key),
        (1, false, PKey(0xffff))
    );
    let answer = sa("SA-GetResp-PathRecord-s.hex").unwrap();
    let found = PathRecord::parse(&answer.data).unwrap();
    assert_eq!(
        (found.slid, found.dlid, found.packet_life_time),
        (Lid(2), Lid(3), 18)
    );
}

#[test]
fn refusals_have_the_status_their_names_say() {
    for (part, status) in [
        ("ERR-wrong-pkey", MadStatus::SA_REQ_INVALID),
        (
            "ERR-implicit-create-too-few-components",
            MadStatus::SA_REQ_INSUFFICIENT_COMPONENTS,
        ),
        ("ERR-unknown-dgid", MadStatus::SA_NO_RECORDS),
        ("ERR-no-shared-pkey", MadStatus::SA_NO_RECORDS),
    ] {
        for (name, mad) in stored() {
            if name.contains(part) && name.ends_with(".resp.hex") {
                assert_eq!(MadHeader::parse(&mad).unwrap().status, status, "{name}");
            }
        }
    }
    for (name, mad) in stored().iter().filter(|(name, _)| !name.contains("ERR")) {
        let header = MadHeader::parse(mad).unwrap();
        let status = if header.mgmt_class.is_smp() {
            Smp::parse(mad).unwrap().status()
        } else {
            header.status
        };
        assert!(status.is_ok(), "{name}");
    }
}

#[test]
fn subscriptions_and_reports_can_be_made() {
    let Some(mad) = sa("40-sa-informinfo-set-sub-trap66.req.hex") else {
        return;
    };
    let info = InformInfo::parse(&mad.data).unwrap();
    let made = InformInfo::generic(TrapNumber::MULTICAST_GROUP_CREATED, true);
    let resp_time_value = info.resp_time_value;
    assert_eq!(
        InformInfo {
            resp_time_value,
            producer_type: info.producer_type,
            ..made
        },
        info
    );

    let mad = sa("report-01-trap66.req.hex").unwrap();
    let notice = Notice::parse(&mad.data).unwrap();
    let gid = notice.gid().unwrap();
    let made = Notice::gid_event(
        TrapNumber::MULTICAST_GROUP_CREATED,
        gid,
        notice.issuer_lid,
        notice.issuer_gid,
    );
    // OpenSM leaves old memory in the count and around the GID.
    let same = Notice {
        notice_count: 0,
        data_details: made.data_details,
        ..notice
    };
    assert_eq!(made, same);
    assert_eq!(made.data_details[6..22], notice.data_details[6..22]);
    assert_eq!(gid.to_string(), "ff12:401b:ffff::e000:fb");
    assert_eq!((notice.switch_lid(), notice.capability()), (None, None));
}

#[test]
fn directed_routes_can_be_made() {
    let Some(mad) = stored_one("04-dr-smp-nodeinfo-get-2hops.req.hex") else {
        return;
    };
    let tid = MadHeader::parse(&mad).unwrap().tid;
    let made = Smp::directed(Method::GET, AttrId::NODE_INFO, 0, tid, &[1, 3]);
    assert_eq!(made.emit(), mad);
    let answer = Smp::parse(&stored_one("04-dr-smp-nodeinfo-get-2hops.resp.hex").unwrap()).unwrap();
    let header = made.response(MadStatus::OK).header;
    // TID bits 63-32 are libumad's.
    assert_eq!(
        MadHeader {
            tid: answer.header.tid,
            ..header
        },
        answer.header
    );
    assert!(answer.is_returning() && answer.status().is_ok());
    assert_eq!((answer.hop_pointer(), answer.hop_count()), (0, 2));
    assert_eq!(
        NodeInfo::parse(&answer.data).unwrap().node_type,
        NodeType::CA
    );
}

#[test]
fn table_of_groups_has_its_records_at_the_pitch() {
    let Some(mad) = sa("14-sa-gettable-mcmembers.resp.hex") else {
        return;
    };
    assert_eq!(mad.attr_offset, sa::attr_offset(McMemberRecord::LEN));
    let records: Vec<_> = mad
        .data
        .chunks(56)
        .filter_map(McMemberRecord::parse)
        .collect();
    let mlids: Vec<_> = records.iter().map(|r| (r.mlid, r.p_key, r.q_key)).collect();
    assert_eq!(mlids[0], (Lid(0xc001), PKey(0x8001), QKey(0xabcd)));
    assert_eq!(mlids[1], (Lid(0xc000), PKey(0xffff), QKey(0xb1b)));
}

#[test]
fn connection_of_linux_is_read() {
    let Some(mad) = stored_one("CM-REQ-k.hex") else {
        return;
    };
    let Some((header, CmMessage::Req(req))) = CmMessage::parse(&mad) else {
        panic!("no REQ")
    };
    assert_eq!(CmMessage::from(req).emit(header.tid), mad);
    assert_eq!(req.service_id, ServiceId::ipoib_linux(Qpn(3)));
    assert_eq!(
        (req.local_qpn, req.p_key, req.path_packet_payload_mtu),
        (Qpn(5), PKey(0xffff), MtuCode::MTU_2048)
    );
    assert_eq!(
        (
            req.remote_cm_response_timeout,
            req.local_cm_response_timeout
        ),
        (20, 20)
    );
    assert_eq!(
        (
            req.responder_resources,
            req.max_cm_retries,
            req.srq,
            req.transport_service_type
        ),
        (4, 15, true, 0)
    );
    assert_eq!(
        (req.primary.local_lid, req.primary.remote_lid),
        (Lid(2), Lid(3))
    );
    assert_eq!(
        (req.primary.packet_rate, req.primary.subnet_local),
        (RateCode(3), true)
    );
    let private = IpoibPrivateData::parse(&req.private_data).unwrap();
    assert_eq!((private.ud_qpn, private.receive_mtu), (Qpn(3), 65524));
    let Some((_, CmMessage::Rep(rep))) = CmMessage::parse(&stored_one("CM-REP-k.hex").unwrap())
    else {
        panic!("no REP")
    };
    assert_eq!(rep.remote_comm_id, req.local_comm_id);
    let Some((_, CmMessage::Rej(rej))) = CmMessage::parse(&stored_one("CM-REJ-k.hex").unwrap())
    else {
        panic!("no REJ")
    };
    assert_eq!(
        (rej.message_rejected, rej.reason),
        (cm::AboutMessage::OTHER, cm::RejectReason::TIMEOUT)
    );
}

/// Both forms of the ID, from RFC 4755 section 3.5 and `ipoib_cm.c`.
#[test]
fn service_ids_name_the_queue_pair() {
    assert_eq!(ServiceId::ipoib_rfc(Qpn(0x49)).0, 0x0100_0000_0000_0049);
    assert_eq!(ServiceId::ipoib_linux(Qpn(0x49)).0, 0x1000_0000_0000_0049);
    assert_eq!(
        ServiceId::ipoib_linux(Qpn(0x49)).ipoib_qpn(),
        Some(Qpn(0x49))
    );
    assert_eq!(ServiceId::ipoib_rfc(Qpn(0x49)).ipoib_qpn(), Some(Qpn(0x49)));
    assert_eq!(ServiceId(0x1000_0001_0000_0049).ipoib_qpn(), None);
}

/// Any bytes, but most of the time a class and an attribute that have a type.
fn any_mad() -> impl Strategy<Value = MadBytes> {
    let classes = prop_oneof![
        Just(0x01u8),
        Just(0x81),
        Just(0x03),
        Just(0x04),
        Just(0x07),
        any::<u8>()
    ];
    let attrs = prop_oneof![0u16..0x40, Just(0xf3), any::<u16>()];
    let methods = prop_oneof![Just(1u8), Just(3), Just(0x81), Just(0x92), any::<u8>()];
    (
        proptest::array::uniform32(any::<u64>()),
        classes,
        attrs,
        methods,
    )
        .prop_map(|(words, class, attr, method)| {
            let mut mad = [0; 256];
            for (chunk, word) in mad.chunks_mut(8).zip(words) {
                chunk.copy_from_slice(&word.to_be_bytes());
            }
            mad[0] = 1;
            mad[1] = class;
            mad[3] = method;
            mad[16..18].copy_from_slice(&attr.to_be_bytes());
            mad
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mad_is_described_and_settles_after_one_emit(mad in any_mad()) {
        let line = describe(&mad);
        prop_assert!(!line.is_empty() && !line.contains('\n'));
        let once = reemit(&mad).unwrap();
        prop_assert_eq!(reemit(&once).unwrap(), once);
    }
}

#[test]
fn other_base_versions_are_not_understood() {
    let mut mad = [0; 256];
    assert_eq!(reemit(&mad), None);
    mad[0] = 1;
    assert_eq!(reemit(&mad), Some(mad));
}
