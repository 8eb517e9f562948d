mod redirect;

use super::*;
use std::time::Duration;
use wire::mad::attr::{NodeRecord, TrapNumber, path_record};
use wire::mad::rmpp::{segment, segment_count};
use wire::mad::sa::ComponentMask;
use wire::{Guid, MtuCode, Qpn};

const SM: SmAddress = SmAddress {
    lid: Lid(1),
    sl: ServiceLevel(0),
    p_key: PKey::DEFAULT_FULL,
};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn gid(n: u64) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(n))
}

fn path() -> SaRequest {
    SaRequest::path(gid(1), gid(2), PKey(0x8001), 0)
}

fn client(config: SaClientConfig) -> (SaClient, Instant) {
    let now = Instant::now();
    let mut client = SaClient::new(config, 0x77, 5);
    client.set_sm(now, Some(SM));
    (client, now)
}

/// What the client wants sent now.
fn sent(client: &mut SaClient) -> Vec<SaMad> {
    std::iter::from_fn(|| client.poll_transmit())
        .map(|send| SaMad::parse(&send.mad[..]).unwrap())
        .collect()
}

fn received(mad: &SaMad) -> MadReceived {
    MadReceived {
        slid: SM.lid,
        dlid: Lid(3),
        src_qp: Qpn::GSI,
        dest_qp: Qpn::GSI,
        sl: SM.sl,
        p_key: SM.p_key,
        grh: None,
        mad: Box::new(mad.emit()),
    }
}

fn answer(client: &mut SaClient, now: Instant, request: &SaMad, status: MadStatus) {
    client.handle_mad(now, &received(&request.response(status)));
}

fn results(client: &mut SaClient) -> Vec<(RequestId, Result<SaResponse, SaError>)> {
    std::iter::from_fn(|| client.poll_event())
        .filter_map(|event| match event {
            SaEvent::Response { id, result } => Some((id, result)),
            SaEvent::Notice(_) => None,
        })
        .collect()
}

/// Answers nothing until the client gives up everything; the times of sending.
fn silence(client: &mut SaClient, start: Instant) -> Vec<u128> {
    let mut times = vec![0; sent(client).len()];
    while let Some(at) = client.poll_timeout() {
        client.handle_timeout(at);
        times.extend(sent(client).iter().map(|_| (at - start).as_millis()));
    }
    times
}

#[test]
fn asks_and_takes_the_answer_once() {
    let (mut client, now) = client(SaClientConfig::default());
    let id = client.request(now, path());
    let asked = sent(&mut client);
    let [asked] = asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!(asked.header.tid >> 32, 0x77);
    assert_eq!(
        (asked.component_mask, asked.header.method),
        (path_record::IPOIB_QUERY, Method::GET)
    );
    for _ in 0..2 {
        answer(&mut client, now, &asked, MadStatus::OK);
    }
    let results = results(&mut client);
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].0, id);
    let record = results[0].1.as_ref().unwrap().path_record().unwrap();
    assert_eq!((record.dgid, record.numb_path), (gid(2), 1));
    assert_eq!(results[0].1.as_ref().unwrap().mcmember(), None);
    assert_eq!(client.counters().unmatched, 1);
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn gives_up_after_seconds_and_says_so() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(now, path());
    let times = silence(&mut client, now);
    assert_eq!(times.len(), 8);
    assert!((3_500..=7_500).contains(times.last().unwrap()), "{times:?}");
    let (_, result) = results(&mut client).remove(0);
    let error = result.unwrap_err();
    assert_eq!(
        error,
        SaError::Timeout {
            tries: 8,
            sm_lid: Lid(1)
        }
    );
    assert!(
        error
            .to_string()
            .contains("no answer from the SA at LID 1 after 8 tries")
    );
}

#[test]
fn waits_without_an_sa_and_follows_it() {
    let now = Instant::now();
    let mut client = SaClient::new(SaClientConfig::default(), 1, 2);
    client.request(now, path());
    assert_eq!(
        (client.poll_transmit(), client.poll_timeout()),
        (None, None)
    );
    client.set_sm(now, Some(SM));
    let first = sent(&mut client);
    let other = SmAddress { lid: Lid(9), ..SM };
    client.set_sm(now + ms(10), Some(other));
    let send = client.poll_transmit().unwrap();
    let second = SaMad::parse(&send.mad[..]).unwrap();
    assert_eq!(send.dlid, Lid(9));
    assert_ne!(first[0].header.tid, second.header.tid);
    answer(&mut client, now, &first[0], MadStatus::OK);
    let from_other = |asked: &SaMad| MadReceived {
        slid: other.lid,
        ..received(&asked.response(MadStatus::OK))
    };
    client.handle_mad(now, &from_other(&first[0]));
    assert!(
        results(&mut client).is_empty(),
        "neither the old SA's answer is taken nor one to the old question"
    );
    client.set_sm(now, None);
    assert_eq!((client.poll_timeout(), client.pending()), (None, (0, 1)));
    client.set_sm(now, Some(other));
    let third = sent(&mut client);
    client.handle_mad(now, &from_other(&third[0]));
    assert_eq!(results(&mut client).len(), 1);
}

#[test]
fn keeps_to_its_window_in_order() {
    let (mut client, now) = client(SaClientConfig {
        window: 4,
        queue: 6,
        ..SaClientConfig::default()
    });
    let ids: Vec<_> = (0..11)
        .map(|n| client.request(now, SaRequest::path(gid(1), gid(100 + n), PKey(0x8001), 0)))
        .collect();
    let (mut asked, mut done) = (sent(&mut client), Vec::new());
    assert_eq!((asked.len(), client.pending()), (4, (4, 6)));
    assert_eq!(results(&mut client), [(ids[10], Err(SaError::Overload(6)))]);
    while !asked.is_empty() {
        let next = asked.remove(0);
        answer(&mut client, now, &next, MadStatus::OK);
        asked.extend(sent(&mut client));
        assert!(client.pending().0 <= 4);
        done.extend(results(&mut client).into_iter().map(|(id, _)| id));
    }
    assert_eq!(done, ids[..10]);
}

#[test]
fn cancelled_requests_are_silent() {
    let (mut client, now) = client(SaClientConfig {
        window: 1,
        ..SaClientConfig::default()
    });
    let first = client.request(now, path());
    let second = client.request(now, path());
    let third = client.request(now, path());
    let asked = sent(&mut client);
    client.cancel(now, second);
    client.cancel(now, first);
    answer(&mut client, now, &asked[0], MadStatus::OK);
    let asked = sent(&mut client);
    assert_eq!(asked.len(), 1);
    answer(&mut client, now, &asked[0], MadStatus::OK);
    let ids: Vec<_> = results(&mut client).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [third]);
}

#[test]
fn busy_is_not_an_answer() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(now, path());
    let asked = sent(&mut client);
    answer(&mut client, now, &asked[0], MadStatus::BUSY);
    assert!(results(&mut client).is_empty());
    let at = client.poll_timeout().unwrap();
    assert!(at - now > ms(1000));
    client.handle_timeout(at);
    let again = sent(&mut client);
    assert_eq!(again, asked);
    answer(&mut client, at, &again[0], MadStatus::SA_REQ_INVALID);
    let error = results(&mut client).remove(0).1.unwrap_err();
    assert_eq!(error.status(), Some(MadStatus::SA_REQ_INVALID));
    assert!(
        error
            .to_string()
            .starts_with("the SA refused Get(PathRecord): ERR_REQ_INVALID (0x0200): check"),
        "{error}"
    );
}

#[test]
fn answers_to_other_questions_are_dropped() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(now, path());
    let asked = sent(&mut client)[0];
    let mut wrong = asked;
    wrong.header.attr_id = AttrId::NODE_RECORD;
    answer(&mut client, now, &wrong, MadStatus::OK);
    client.handle_mad(now, &received(&asked));
    assert!(results(&mut client).is_empty());
    assert_eq!(client.counters().malformed, 2);
}

#[test]
fn others_than_the_sa_are_not_believed() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(now, path());
    let asked = sent(&mut client)[0];
    let report = SaMad::request(
        Method::REPORT,
        AttrId::NOTICE,
        ComponentMask(0),
        &Notice::gid_event(TrapNumber::GID_OUT_OF_SERVICE, gid(7), Lid(1), gid(1)).emit(),
        5,
    );
    for mad in [asked.response(MadStatus::OK), report] {
        client.handle_mad(
            now,
            &MadReceived {
                slid: Lid(SM.lid.0 + 1),
                ..received(&mad)
            },
        );
    }
    assert_eq!(client.counters().foreign, 2);
    assert!(sent(&mut client).is_empty());
    assert!(client.poll_event().is_none());
    answer(&mut client, now, &asked, MadStatus::OK);
    assert_eq!(results(&mut client).len(), 1);
}

#[test]
fn reports_are_acknowledged_always_and_passed_on_once() {
    let (mut client, now) = client(SaClientConfig::default());
    let notice = Notice::gid_event(TrapNumber::GID_OUT_OF_SERVICE, gid(7), Lid(1), gid(1));
    let report = |tid| {
        SaMad::request(
            Method::REPORT,
            AttrId::NOTICE,
            ComponentMask(0),
            &notice.emit(),
            tid,
        )
    };
    for tid in [5, 5, 6] {
        client.handle_mad(now, &received(&report(tid)));
    }
    let acks = sent(&mut client);
    assert_eq!(
        acks.iter()
            .map(|ack| (ack.header.method, ack.header.tid))
            .collect::<Vec<_>>(),
        [
            (Method::REPORT_RESP, 5),
            (Method::REPORT_RESP, 5),
            (Method::REPORT_RESP, 6)
        ]
    );
    let events: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
    assert_eq!(events, [SaEvent::Notice(notice), SaEvent::Notice(notice)]);
    assert_eq!(notice.gid(), Some(gid(7)));
}

/// Segments of a table as the answer to `request`.
fn table(request: &SaMad, data: &[u8], pitch: usize) -> Vec<SaMad> {
    let template = SaMad {
        attr_offset: (pitch / 8) as u16,
        ..request.response(MadStatus::OK)
    };
    (1..=segment_count(data.len()))
        .map_while(|n| segment(&template, data, n))
        .collect()
}

#[test]
fn tables_come_in_segments_and_survive_loss() {
    let (mut client, mut now) = client(SaClientConfig::default());
    let id = client.request(
        now,
        SaRequest::get_table(AttrId::NODE_RECORD, ComponentMask(0), &[]),
    );
    let asked = sent(&mut client)[0];
    let records: Vec<NodeRecord> = (1..=500)
        .map(|n| NodeRecord {
            lid: Lid(n),
            ..NodeRecord::default()
        })
        .collect();
    let data: Vec<u8> = records
        .iter()
        .flat_map(|record| record.emit().into_iter().chain([0; 4]))
        .collect();
    let segments = table(&asked, &data, 112);
    assert_eq!(segments.len(), 280);
    // A sender that goes back to what was acknowledged; one in ten packets is lost, both ways.
    let (mut acked, mut window, mut packets, mut luck) = (0, 1, 0, fastrand::Rng::with_seed(1));
    let mut done = Vec::new();
    while done.is_empty() {
        for segment in &segments[acked as usize..window.min(280) as usize] {
            packets += 1;
            if luck.u8(0..10) != 0 {
                client.handle_mad(now, &received(segment));
            }
            for ack in sent(&mut client) {
                packets += 1;
                assert_eq!(
                    (ack.header.method, ack.rmpp.kind),
                    (Method::GET_TABLE, RmppHeader::ACK)
                );
                if luck.u8(0..10) != 0 {
                    acked = acked.max(ack.rmpp.segment);
                    window = window.max(ack.rmpp.length);
                }
            }
        }
        done = results(&mut client);
        now += ms(50);
        client.handle_timeout(now);
        assert!(packets < 5000);
    }
    assert_eq!(done[0].0, id);
    assert_eq!(
        done[0].1.as_ref().unwrap().records(NodeRecord::parse),
        records
    );
    // The last ACK may have been lost: it is given again.
    sent(&mut client);
    client.handle_mad(now, &received(&segments[279]));
    assert_eq!(sent(&mut client)[0].rmpp.segment, 280);
}

#[test]
fn a_stalled_table_is_reminded_and_given_up() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(
        now,
        SaRequest::get_table(AttrId::NODE_RECORD, ComponentMask(0), &[]),
    );
    let asked = sent(&mut client)[0];
    client.handle_mad(now, &received(&table(&asked, &[1; 1000], 112)[0]));
    let ack = sent(&mut client)[0];
    let at = client.poll_timeout().unwrap();
    client.handle_timeout(at);
    assert_eq!(sent(&mut client)[0].rmpp.segment, ack.rmpp.segment);
    silence(&mut client, now);
    assert!(matches!(
        results(&mut client)[..],
        [(_, Err(SaError::Timeout { .. }))]
    ));
}

#[test]
fn an_aborted_table_is_an_error() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(
        now,
        SaRequest::get_table(AttrId::NODE_RECORD, ComponentMask(0), &[]),
    );
    let asked = sent(&mut client)[0];
    let mut abort = table(&asked, &[], 112)[0];
    abort.rmpp.kind = RmppHeader::ABORT;
    client.handle_mad(now, &received(&abort));
    assert!(matches!(
        results(&mut client)[..],
        [(_, Err(SaError::Malformed { .. }))]
    ));
}

/// The exchanges recorded with OpenSM: each request is one this client can send, each answer is understood.
#[test]
fn recorded_exchanges() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/mads");
    let Ok(entries) = std::fs::read_dir(folder) else {
        eprintln!("SKIPPED: no {folder}");
        return;
    };
    let read = |path: &std::path::Path| -> SaMad {
        let text = std::fs::read_to_string(path).unwrap();
        let bytes: Vec<u8> = text
            .lines()
            .flat_map(|line| line.split(": ").nth(1).unwrap_or("").split_whitespace())
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        SaMad::parse(&bytes).unwrap()
    };
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if !name.contains("-sa-") || !name.ends_with(".req.hex") {
            continue;
        }
        let (request, mut response) = (
            read(&path),
            read(&path.with_file_name(name.replace(".req.", ".resp."))),
        );
        let (mut client, now) = client(SaClientConfig::default());
        let header = request.header;
        client.request(
            now,
            SaRequest::raw(
                header.method,
                header.attr_id,
                request.component_mask,
                &request.data,
            ),
        );
        let mut asked = sent(&mut client)[0];
        response.header.tid = asked.header.tid;
        // The recording client chose its own TIDs and RMPP fields.
        asked.header.tid = header.tid;
        asked.rmpp = request.rmpp;
        asked.attr_offset = request.attr_offset;
        assert_eq!(asked, request, "{name}");
        client.handle_mad(now, &received(&response));
        let results = results(&mut client);
        assert_eq!(results.len(), 1, "{name}");
        match &results[0].1 {
            Ok(response) => {
                assert!(!name.contains("ERR"), "{name}");
                if name.contains("pathrecord") {
                    assert!(
                        response.path_record().unwrap().mtu.bytes().is_some(),
                        "{name}"
                    );
                } else if name.contains("table") {
                    assert!(response.pitch > 0 && !response.data.is_empty(), "{name}");
                } else if name.contains("join") && name.contains("bcast") {
                    assert_eq!(
                        response.mcmember().unwrap().mtu,
                        MtuCode::MTU_2048,
                        "{name}"
                    );
                }
            }
            Err(error) => assert!(
                name.contains("ERR") && error.status().is_some(),
                "{name}: {error}"
            ),
        }
        count += 1;
    }
    assert!(count >= 30, "{count}");
}

proptest::proptest! {
    /// Whatever comes, the client neither panics nor keeps more than its limits allow, and its requests end.
    #[test]
    fn hostile_mads(mads in proptest::collection::vec((0usize..4, proptest::collection::vec((0usize..256, proptest::prelude::any::<u8>()), 0..6)), 0..60)) {
        let config = SaClientConfig { window: 2, queue: 8, max_table: 2000, ..SaClientConfig::default() };
        let (mut client, mut now) = client(config);
        for _ in 0..2 {
            client.request(now, SaRequest::get_table(AttrId::NODE_RECORD, ComponentMask(0), &[]));
            client.request(now, path());
        }
        let (mut seen, mut ended) = (Vec::new(), 0);
        for (kind, changes) in mads {
            seen.extend(sent(&mut client));
            let Some(asked) = seen.last() else { break };
            let mad = match kind {
                0 => asked.response(MadStatus::OK),
                1 => table(asked, &[3; 900], 112)[0],
                2 => table(asked, &[3; 900], 112)[2],
                _ => SaMad::request(Method::REPORT, AttrId::NOTICE, ComponentMask(0), &[], 1),
            };
            let mut bytes = mad.emit();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            client.handle_mad(now, &MadReceived { mad: Box::new(bytes), ..received(&mad) });
            ended += results(&mut client).len();
            now += ms(20);
            client.handle_timeout(now);
            proptest::prop_assert!(client.pending().0 <= 2 && client.reports.len() <= REPORTS_REMEMBERED);
            proptest::prop_assert!(client.finished.len() <= TRANSFERS_REMEMBERED);
        }
        silence(&mut client, now);
        ended += results(&mut client).len();
        proptest::prop_assert_eq!((ended, client.pending()), (4, (0, 0)));
    }
}
