//! Performance management through MADs.

use super::*;

fn perf(method: Method, attr: AttrId, data: &[u8], tid: u64) -> MadBytes {
    let mut mad = [0; 256];
    put(
        &mut mad,
        0,
        &MadHeader::request(wire::mad::MgmtClass::PERF_MGT, method, attr, 0, tid).emit(),
    );
    put(&mut mad, PERF_DATA_OFFSET, data);
    mad
}

#[test]
fn counters_through_mads() {
    let mut star = Star::up();
    let inbox: Arc<parking_lot::Mutex<Vec<MadReceived>>> = Arc::default();
    let into = inbox.clone();
    let agent =
        Port::register_mad_agent(&*star.hcas[0], &[], Arc::new(move |m| into.lock().push(m)))
            .expect("an agent");
    let mut ask = |dlid, method, attr, data: &[u8]| {
        let mad = Box::new(perf(method, attr, data, u64::from(agent.tid_high()) << 32));
        let grh = None;
        agent.send(MadSend {
            dlid,
            sl: ServiceLevel(0),
            remote_qpn: Qpn::GSI,
            q_key: QKey::GSI,
            p_key: PKey::DEFAULT_FULL,
            grh,
            mad,
        });
        star.net.run();
        inbox.lock().pop().expect("an answer").mad
    };
    // The HCA's own port, a switch port, and all switch ports together.
    for (lid, select) in [(1, 1), (2, 1), (10, 2), (10, 255)] {
        let select = PortCounters {
            port_select: select,
            counter_select: 0xffff,
            ..PortCounters::default()
        };
        let answer = ask(Lid(lid), Method::GET, AttrId::PORT_COUNTERS, &select.emit());
        let counters = PortCounters::parse(&answer[64..]).expect("record");
        assert!(
            counters.port_xmit_pkts > 5,
            "port {}: {counters:?}",
            select.port_select
        );
        assert_eq!(
            counters.port_xmit_data,
            counters.port_xmit_pkts * 72,
            "MADs have 288 bytes before the VCRC"
        );
    }
    let select = PortCounters {
        port_select: 1,
        counter_select: 1 << 14,
        ..PortCounters::default()
    };
    let cleared =
        PortCounters::parse(&ask(Lid(2), Method::SET, AttrId::PORT_COUNTERS, &select.emit())[64..])
            .expect("record");
    assert!(cleared.port_xmit_pkts == 0 && cleared.port_rcv_pkts > 0);
    let select = PortCountersExtended {
        port_select: 1,
        ..PortCountersExtended::default()
    };
    let extended = PortCountersExtended::parse(
        &ask(
            Lid(2),
            Method::GET,
            AttrId::PORT_COUNTERS_EXTENDED,
            &select.emit(),
        )[64..],
    )
    .expect("record");
    assert!(
        extended.port_xmit_pkts > 5,
        "each attribute has its own zero"
    );
    let bad = PortCounters {
        port_select: 9,
        ..PortCounters::default()
    };
    let answer = ask(Lid(10), Method::GET, AttrId::PORT_COUNTERS, &bad.emit());
    assert_eq!(
        MadHeader::parse(&answer[..]).expect("header").status,
        MadStatus::INVALID_FIELD
    );
}
