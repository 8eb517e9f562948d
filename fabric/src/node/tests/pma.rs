//! Performance management through MADs.

use super::super::pma::Pma;
use super::*;
use std::sync::atomic::Ordering::Relaxed;

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

/// Asks performance management at its core, as from QP1.
struct Asker<'a> {
    pma: Pma,
    core: &'a NodeCore,
    now: std::time::Instant,
}

impl Asker<'_> {
    fn ask(&mut self, method: Method, attr: AttrId, data: &[u8]) -> (MadStatus, Vec<u8>) {
        let mad = perf(method, attr, data, 1);
        let answer = self
            .pma
            .answer(self.now, self.core, &mad)
            .expect("an answer");
        let status = MadHeader::parse(&answer).expect("header").status;
        (status, answer[PERF_DATA_OFFSET..].to_vec())
    }
    fn short(&mut self, method: Method, wanted: PortCounters) -> PortCounters {
        let (status, data) = self.ask(method, AttrId::PORT_COUNTERS, &wanted.emit());
        assert!(status.is_ok(), "{status}");
        PortCounters::parse(&data).expect("record")
    }
    fn long(&mut self, method: Method, wanted: PortCountersExtended) -> PortCountersExtended {
        let (status, data) = self.ask(method, AttrId::PORT_COUNTERS_EXTENDED, &wanted.emit());
        assert!(status.is_ok(), "{status}");
        PortCountersExtended::parse(&data).expect("record")
    }
}

fn asker(core: &NodeCore) -> Asker<'_> {
    Asker {
        pma: Pma::new(core.ports.len()),
        core,
        now: std::time::Instant::now(),
    }
}

#[test]
fn select_masks_choose_what_a_set_writes() {
    let core = NodeCore::new(SWITCH, 1, Box::new(|_| true));
    let c = &core.ports[3].counters;
    for (i, counter) in [
        &c.link_downed,
        &c.rcv_errors,
        &c.rcv_switch_relay_errors,
        &c.xmit_discards,
        &c.xmit_constraint_errors,
        &c.rcv_constraint_errors,
        &c.vl15_dropped,
        &c.xmit_data,
        &c.rcv_data,
        &c.xmit_pkts,
        &c.rcv_pkts,
        &c.qp1_dropped,
    ]
    .into_iter()
    .enumerate()
    {
        counter.store(i as u64 + 1, Relaxed);
    }
    let mut asker = asker(&core);
    let of = |port_select| PortCounters {
        port_select,
        ..PortCounters::default()
    };
    let all = asker.short(Method::GET, of(3));
    let values = |c: &PortCounters| {
        [
            c.link_downed_counter.into(),
            c.port_rcv_errors.into(),
            c.port_rcv_switch_relay_errors.into(),
            c.port_xmit_discards.into(),
            c.port_xmit_constraint_errors.into(),
            c.port_rcv_constraint_errors.into(),
            c.vl15_dropped.into(),
            c.port_xmit_data,
            c.port_rcv_data,
            c.port_xmit_pkts,
            c.port_rcv_pkts,
            u32::from(c.qp1_dropped),
        ]
    };
    let expected: [u32; 12] = std::array::from_fn(|i| i as u32 + 1);
    assert_eq!(values(&all), expected);
    // Select bits of the standard's table, in the order of `values`; CounterSelect2 follows bit 15.
    for (i, bit) in [2, 3, 5, 6, 7, 8, 11, 12, 13, 14, 15, 17]
        .into_iter()
        .enumerate()
    {
        let wanted = PortCounters {
            counter_select: (1u32 << bit) as u16,
            counter_select2: (1u32 << bit >> 16) as u8,
            ..of(3)
        };
        let after = values(&asker.short(Method::SET, wanted));
        let expected = std::array::from_fn(|at| if at <= i { 0 } else { at as u32 + 1 });
        assert_eq!(after, expected, "bit {bit}");
    }
    let long = PortCountersExtended {
        port_select: 255,
        ..PortCountersExtended::default()
    };
    let extended = asker.long(Method::GET, long);
    assert_eq!(
        (
            extended.port_rcv_errors,
            extended.qp1_dropped,
            extended.port_rcv_pkts
        ),
        (2, 12, 11),
        "each attribute has its own zero, and port 3 is among all"
    );
    let cleared = asker.long(
        Method::SET,
        PortCountersExtended {
            counter_select2: 1 << 3,
            ..long
        },
    );
    assert_eq!((cleared.port_rcv_errors, cleared.qp1_dropped), (0, 12));
    assert_eq!(
        asker
            .ask(Method::GET, AttrId::PORT_COUNTERS, &of(9).emit())
            .0,
        MadStatus::INVALID_FIELD
    );
    assert_eq!(
        asker.ask(Method::SET, AttrId::CLASS_PORT_INFO, &[]).0,
        MadStatus::METHOD_ATTRIBUTE_UNSUPPORTED
    );
    let info = ClassPortInfo::parse(&asker.ask(Method::GET, AttrId::CLASS_PORT_INFO, &[]).1)
        .expect("record");
    assert_eq!((info.capability_mask, info.capability_mask2), (0x8300, 0));
}

#[test]
fn short_counters_stick_and_long_ones_wrap() {
    let core = NodeCore::new(CA, 1, Box::new(|_| true));
    let mut asker = asker(&core);
    let full = PortCounters {
        port_select: 1,
        counter_select: 0xffff,
        link_downed_counter: 0xff,
        port_rcv_errors: 0xffff,
        port_xmit_pkts: u32::MAX,
        ..PortCounters::default()
    };
    asker.short(Method::SET, full);
    let long = PortCountersExtended {
        port_select: 1,
        counter_select: 0xff,
        port_xmit_pkts: u64::MAX,
        ..PortCountersExtended::default()
    };
    asker.long(Method::SET, long);
    let c = &core.ports[1].counters;
    for counter in [&c.link_downed, &c.rcv_errors, &c.xmit_pkts] {
        counter.fetch_add(1, Relaxed);
    }
    let now = asker.short(Method::GET, full);
    assert_eq!(
        (
            now.link_downed_counter,
            now.port_rcv_errors,
            now.port_xmit_pkts
        ),
        (0xff, 0xffff, u32::MAX)
    );
    assert_eq!(asker.long(Method::GET, long).port_xmit_pkts, 0);
}

#[test]
fn a_sample_counts_from_its_start_to_its_end() {
    let core = NodeCore::new(CA, 1, Box::new(|_| true));
    let mut asker = asker(&core);
    let wanted = PortSamplesControl {
        port_select: 1,
        sample_start: 1000,
        sample_interval: 2000,
        tag: 77,
        counter_select: std::array::from_fn(|i| [3, 4, 0][i.min(2)]),
        ..PortSamplesControl::default()
    };
    let control = |(status, data): (MadStatus, Vec<u8>)| {
        assert!(status.is_ok(), "{status}");
        PortSamplesControl::parse(&data).expect("record")
    };
    let idle = control(asker.ask(Method::GET, AttrId::PORT_SAMPLES_CONTROL, &wanted.emit()));
    assert_eq!((idle.sample_mechanisms, idle.sample_status), (1, 0));
    let begun = control(asker.ask(Method::SET, AttrId::PORT_SAMPLES_CONTROL, &wanted.emit()));
    assert_eq!((begun.sample_status, begun.tag), (1, 77));
    let c = &core.ports[1].counters;
    let mut statuses = Vec::new();
    while let Some(due) = asker.pma.poll_timeout() {
        c.xmit_pkts.fetch_add(5, Relaxed);
        c.rcv_pkts.fetch_add(7, Relaxed);
        asker.pma.handle_timeout(due, &core);
        let (_, data) = asker.ask(Method::GET, AttrId::PORT_SAMPLES_RESULT, &[]);
        let result = PortSamplesResult::parse(&data).expect("record");
        statuses.push((
            due - asker.now,
            result.sample_status,
            result.counter[0],
            result.counter[1],
        ));
        // One that is under way is not replaced.
        let other = PortSamplesControl { tag: 1, ..wanted };
        if result.sample_status != 0 {
            let kept = asker.ask(Method::SET, AttrId::PORT_SAMPLES_CONTROL, &other.emit());
            assert_eq!(control(kept).tag, 77);
        }
    }
    let ms = Duration::from_millis;
    assert_eq!(statuses, [(ms(1), 2, 0, 0), (ms(3), 0, 5, 7)]);
    let all = PortSamplesControl {
        port_select: 255,
        ..wanted
    };
    assert_eq!(
        asker
            .ask(Method::SET, AttrId::PORT_SAMPLES_CONTROL, &all.emit())
            .0,
        MadStatus::INVALID_FIELD
    );
}
