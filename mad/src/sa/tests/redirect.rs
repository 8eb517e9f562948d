//! Redirection to another port.

use super::*;
use wire::QKey;
use wire::mad::attr::ClassPortInfo;

/// The answer to `request` that sends its sender to `lid`.
fn elsewhere(request: &SaMad, lid: u16, status: MadStatus) -> SaMad {
    let info = ClassPortInfo {
        redirect_lid: Lid(lid),
        redirect_sl: ServiceLevel(3),
        redirect_p_key: PKey(0x8001),
        redirect_qp: Qpn(0x55),
        redirect_q_key: QKey(0x8001_0001),
        ..ClassPortInfo::default()
    };
    let mut answer = request.response(status).with_data(&info.emit());
    answer.header.attr_id = AttrId::CLASS_PORT_INFO;
    answer
}

fn received_from(lid: u16, mad: &SaMad) -> MadReceived {
    MadReceived {
        slid: Lid(lid),
        ..received(mad)
    }
}

fn next(client: &mut SaClient) -> (MadSend, SaMad) {
    let send = client.poll_transmit().expect("something to send");
    let mad = SaMad::parse(&send.mad[..]).expect("a MAD");
    (send, mad)
}

#[test]
fn requests_follow_to_the_port_that_is_named() {
    let (mut client, now) = client(SaClientConfig::default());
    let id = client.request(now, path());
    let (first, asked) = next(&mut client);
    assert_eq!((first.dlid, first.remote_qpn), (Lid(1), Qpn::GSI));
    let answer = elsewhere(&asked, 9, MadStatus::REDIRECT_REQUIRED);
    client.handle_mad(now, &received(&answer));
    let (again, asked) = next(&mut client);
    assert_eq!(
        (
            again.dlid,
            again.sl,
            again.remote_qpn,
            again.q_key,
            again.p_key
        ),
        (
            Lid(9),
            ServiceLevel(3),
            Qpn(0x55),
            QKey(0x8001_0001),
            PKey(0x8001)
        )
    );
    assert_eq!(asked.header.attr_id, AttrId::PATH_RECORD);
    let right = asked.response(MadStatus::OK);
    client.handle_mad(now, &received_from(10, &right));
    assert!(results(&mut client).is_empty(), "from a third port");
    client.handle_mad(now, &received_from(9, &right));
    assert!(matches!(&results(&mut client)[..], [(done, Ok(_))] if *done == id));
    client.request(now, path());
    assert_eq!(
        next(&mut client).0.dlid,
        Lid(9),
        "and so does the next request"
    );
    assert_eq!(client.counters().redirected, 1);
    // Another subnet manager: nothing is left of it.
    client.set_sm(now, Some(SmAddress { lid: Lid(4), ..SM }));
    assert_eq!(next(&mut client).0.dlid, Lid(4));
}

#[test]
fn a_class_port_info_may_redirect_what_follows() {
    let (mut client, now) = client(SaClientConfig::default());
    let request = SaRequest::raw(Method::GET, AttrId::CLASS_PORT_INFO, ComponentMask(0), &[]);
    client.request(now, request);
    let asked = next(&mut client).1;
    client.handle_mad(now, &received(&elsewhere(&asked, 9, MadStatus::OK)));
    assert!(results(&mut client)[0].1.is_ok());
    client.request(now, path());
    assert_eq!(next(&mut client).0.dlid, Lid(9));
}

#[test]
fn circles_and_redirections_to_nowhere_end() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(now, path());
    for lid in [9, 1, 9, 1, 9] {
        let (send, asked) = next(&mut client);
        let answer = elsewhere(&asked, lid, MadStatus::REDIRECT_REQUIRED);
        client.handle_mad(now, &received_from(send.dlid.0, &answer));
    }
    assert_eq!(client.poll_transmit(), None);
    let error = results(&mut client).remove(0).1.expect_err("a circle");
    assert!(error.to_string().contains("in a circle"), "{error}");

    client.request(now, path());
    let asked = next(&mut client).1;
    let answer = elsewhere(&asked, 0, MadStatus::REDIRECT_REQUIRED);
    client.handle_mad(now, &received(&answer));
    assert!(results(&mut client)[0].1.is_err());
}

#[test]
fn silence_there_leads_back() {
    let (mut client, now) = client(SaClientConfig::default());
    client.request(now, path());
    let asked = next(&mut client).1;
    let answer = elsewhere(&asked, 9, MadStatus::REDIRECT_REQUIRED);
    client.handle_mad(now, &received(&answer));
    let last = now + ms(*silence(&mut client, now).last().expect("tries") as u64);
    client.handle_timeout(last + ms(5000));
    assert_eq!(results(&mut client).len(), 1);
    client.request(last, path());
    assert_eq!(next(&mut client).0.dlid, Lid(1));
}
