//! The subnet manager on the real switches and HCAs, in one thread and in virtual time.
#![allow(clippy::unwrap_used, missing_docs)]

use fabric::hca::{Hca, HcaConfig, HcaControl};
use fabric::link::LinkSink;
use fabric::link::local::{LocalCable, connect};
use fabric::node::{ManagementPort, NodeControl, NodeInput, NodePlane};
use fabric::sm::runner::SmPort;
use fabric::sm::{SmConfig, SubnetManager};
use fabric::switch::{Switch, SwitchConfig, SwitchControl};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use verbs::{MadAgent, MadReceived, MadSend};
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::mad::attr::{
    InformInfo, JoinState, McMemberRecord, Notice, PathRecord, PortState, SmState, TrapNumber,
    mcmember, path_record,
};
use wire::mad::sa::ComponentMask;
use wire::mad::{AttrId, MadStatus, Method, MgmtClass, SaMad};
use wire::{Gid, Guid, PKey, QKey, Qpn, ServiceLevel};

const MS: Duration = Duration::from_millis(1);

type Queue<T> = Arc<Mutex<VecDeque<T>>>;

fn sink<T: Send + 'static>(queue: &Queue<T>) -> Box<dyn Fn(T) -> bool + Send + Sync> {
    let queue = queue.clone();
    Box::new(move |item| {
        queue.lock().unwrap().push_back(item);
        true
    })
}

fn drain<T>(queue: &Queue<T>) -> Vec<T> {
    queue.lock().unwrap().drain(..).collect()
}

fn turn<P: NodePlane>(
    now: Instant,
    queue: &Queue<NodeInput>,
    control: &mut NodeControl<P>,
) -> bool {
    let inputs = drain(queue);
    let busy = !inputs.is_empty();
    inputs
        .into_iter()
        .for_each(|input| control.handle(now, input));
    if control.poll_timeout().is_some_and(|at| at <= now) {
        control.handle_timeout(now);
    }
    busy
}

enum Manager {
    Host,
    Switch,
}

struct Subnet {
    now: Instant,
    hcas: Vec<(Arc<Hca>, HcaControl, Queue<NodeInput>)>,
    switches: Vec<(Arc<Switch>, SwitchControl, Queue<NodeInput>)>,
    sm: SubnetManager,
    port: SmPort,
    arrived: Queue<MadReceived>,
    cables: Vec<LocalCable>,
}

impl Subnet {
    /// Two switches with a link; HCA `n` at port `n + 1` of switch `n % 2`. The manager is at the first host or at the first switch.
    fn new(hcas: u64, at: Manager) -> Self {
        let hcas: Vec<_> = (1..=hcas)
            .map(|n| {
                let queue = Queue::default();
                let (hca, control) = Hca::new(
                    HcaConfig::new(Guid(0x1000 * n), &format!("host {n}")),
                    sink(&queue),
                );
                (hca, control, queue)
            })
            .collect();
        let switches: Vec<_> = (1..=2)
            .map(|n| {
                let queue = Queue::default();
                let config = SwitchConfig {
                    guid: Guid(0xa0_0000 * n),
                    description: format!("switch {n}"),
                    ports: 36,
                };
                let (switch, control) = Switch::new(config, sink(&queue));
                (switch, control, queue)
            })
            .collect();
        let arrived = Queue::default();
        let port = match at {
            Manager::Host => SmPort::bind(&*hcas[0].0, sink(&arrived)).unwrap(),
            Manager::Switch => SmPort::bind(&*switches[0].0, sink(&arrived)).unwrap(),
        };
        let mut subnet = Subnet {
            now: Instant::now(),
            hcas,
            switches,
            sm: SubnetManager::new(SmConfig::default(), 3),
            port,
            arrived,
            cables: Vec::new(),
        };
        for n in 0..subnet.hcas.len() {
            let hca = subnet.hcas[n].0.clone();
            let switch = subnet.switches[n % 2].0.clone();
            let number = n as u8 + 1;
            let cable = connect(
                (hca.clone() as Arc<dyn LinkSink>, move |l| {
                    hca.attach_link(l)
                }),
                (switch.port(number), move |l| switch.attach_link(number, l)),
            );
            subnet.cables.push(cable);
        }
        let (a, b) = (subnet.switches[0].0.clone(), subnet.switches[1].0.clone());
        let trunk = connect(
            (a.port(36), {
                let a = a.clone();
                move |l| a.attach_link(36, l)
            }),
            (b.port(36), {
                let b = b.clone();
                move |l| b.attach_link(36, l)
            }),
        );
        subnet.cables.push(trunk);
        subnet
    }

    /// Each takes in what has arrived; false if that was nothing.
    fn step(&mut self) -> bool {
        let mut busy = false;
        for (_, control, queue) in &mut self.hcas {
            busy |= turn(self.now, queue, control);
        }
        for (_, control, queue) in &mut self.switches {
            busy |= turn(self.now, queue, control);
        }
        let arrived = drain(&self.arrived);
        busy |= !arrived.is_empty();
        self.port.turn(self.now, &mut self.sm, arrived);
        busy
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            while self.step() {}
            let hcas = self.hcas.iter().filter_map(|h| h.1.poll_timeout());
            let switches = self.switches.iter().filter_map(|s| s.1.poll_timeout());
            match hcas.chain(switches).chain(self.sm.poll_timeout()).min() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
        }
        self.now = end;
    }

    fn active(&self) -> usize {
        self.hcas
            .iter()
            .filter(|h| h.0.attributes().state == PortState::ACTIVE)
            .count()
    }

    /// Asks the SA from a host.
    fn ask(&mut self, host: usize, mut mad: SaMad) -> SaMad {
        let queue: Queue<MadReceived> = Queue::default();
        let handler = sink(&queue);
        let agent: Box<dyn MadAgent> = ManagementPort::register_mad_agent(
            &*self.hcas[host].0,
            &[],
            Arc::new(move |mad: MadReceived| {
                handler(mad);
            }),
        )
        .unwrap();
        mad.header.tid |= u64::from(agent.tid_high()) << 32;
        let sm_lid = self.hcas[host].0.attributes().sm_lid;
        agent.send(MadSend {
            dlid: sm_lid,
            sl: ServiceLevel(0),
            remote_qpn: Qpn::GSI,
            q_key: QKey::GSI,
            p_key: PKey::DEFAULT_FULL,
            grh: None,
            mad: Box::new(mad.emit()),
        });
        self.run(5 * MS);
        let answer = drain(&queue).pop();
        let counted: Vec<_> = self.sm.counters().iter().filter(|c| c.1 > 0).collect();
        let answer = answer.unwrap_or_else(|| panic!("host {host} got no answer: {counted:?}"));
        SaMad::parse(&answer.mad[..]).unwrap()
    }
}

#[test]
fn real_nodes_come_up_and_reach_the_sa() {
    let mut s = Subnet::new(4, Manager::Host);
    s.run(100 * MS);
    assert_eq!(s.sm.state(), SmState::MASTER);
    assert_eq!(s.active(), 4);
    let lids: Vec<_> = s.hcas.iter().map(|h| h.0.attributes().lid).collect();
    // Switch 1 has hosts 0 and 2 at ports 1 and 3, switch 2 the others; the link between is port 36.
    for (n, lid) in lids.iter().enumerate() {
        for switch in 0..2 {
            let port = if n % 2 == switch { n as u8 + 1 } else { 36 };
            assert_eq!(s.switches[switch].0.route(*lid), [port]);
        }
    }
    let mgid = broadcast_gid(PKey(0xffff), Scope(2));
    for host in 0..4 {
        let record = McMemberRecord {
            mgid,
            port_gid: s.hcas[host].0.attributes().gid(),
            p_key: PKey(0xffff),
            join_state: JoinState::FULL,
            ..McMemberRecord::default()
        };
        let answer = s.ask(
            host,
            SaMad::request(
                Method::SET,
                AttrId::MC_MEMBER_RECORD,
                mcmember::JOIN,
                &record.emit(),
                1,
            ),
        );
        assert_eq!(answer.header.status, MadStatus::OK);
    }
    let mlid = s.sm.groups()[0].mlid;
    assert_eq!(s.switches[0].0.route(mlid), [1, 3, 36]);
    assert_eq!(s.switches[1].0.route(mlid), [2, 4, 36]);
    let gid = |n: usize| -> Gid { s.hcas[n].0.attributes().gid() };
    let path = PathRecord {
        dgid: gid(3),
        sgid: gid(1),
        numb_path: 1,
        p_key: PKey(0xffff),
        ..PathRecord::default()
    };
    let answer = s.ask(
        1,
        SaMad::request(
            Method::GET,
            AttrId::PATH_RECORD,
            path_record::IPOIB_QUERY,
            &path.emit(),
            2,
        ),
    );
    assert_eq!(PathRecord::parse(&answer.data).unwrap().dlid, lids[3]);
    // Host 1 subscribes, and answers what it is told.
    let reports: Queue<MadReceived> = Queue::default();
    let handler = sink(&reports);
    let listener = ManagementPort::register_mad_agent(
        &*s.hcas[1].0,
        &[MgmtClass::SUBN_ADM],
        Arc::new(move |mad: MadReceived| {
            handler(mad);
        }),
    )
    .unwrap();
    let all = InformInfo::generic(TrapNumber::ALL, true);
    let answer = s.ask(
        1,
        SaMad::request(
            Method::SET,
            AttrId::INFORM_INFO,
            ComponentMask(0),
            &all.emit(),
            3,
        ),
    );
    assert_eq!(answer.header.status, MadStatus::OK);
    // A cable is cut and joined: the host leaves the group and comes back to its LID within milliseconds.
    s.cables[3].cut();
    s.run(5 * MS);
    assert_eq!(s.sm.groups()[0].members.len(), 3);
    assert_eq!(s.switches[1].0.route(mlid), [2, 36]);
    s.cables[3].join();
    s.run(10 * MS);
    assert_eq!(s.active(), 4);
    assert_eq!(s.hcas[3].0.attributes().lid, lids[3]);
    let told = drain(&reports);
    let traps: Vec<u16> = told
        .iter()
        .map(|mad| {
            let report = SaMad::parse(&mad.mad[..]).unwrap();
            listener.send(mad.reply(Box::new(report.response(MadStatus::OK).emit())));
            Notice::parse(&report.data).unwrap().trap_number.0
        })
        .collect();
    assert_eq!(traps, [65, 64]);
    // Quiet afterwards, over several light sweeps.
    s.run(Duration::from_secs(60));
    assert_eq!(s.active(), 4);
    assert_eq!(s.sm.counters().get(fabric::sm::Counter::NodesDropped), 0);
    assert_eq!(s.sm.counters().get(fabric::sm::Counter::BadStatus), 0);
    assert_eq!(s.sm.counters().get(fabric::sm::Counter::ReportsLost), 0);
    assert_eq!(drain(&reports), [], "an answered report is not repeated");
}

/// Until a switch has a LID and knows its manager it can send no trap: links that come up after its ports were read must be found all the same.
#[test]
fn links_that_come_up_during_the_first_sweep_are_found_at_once() {
    for steps in 0..40 {
        let mut s = Subnet::new(4, Manager::Switch);
        s.cables.iter().for_each(LocalCable::cut);
        for _ in 0..steps {
            s.step();
        }
        s.cables.iter().for_each(LocalCable::join);
        s.run(200 * MS);
        assert_eq!(s.active(), 4, "joined after {steps} steps");
    }
}
