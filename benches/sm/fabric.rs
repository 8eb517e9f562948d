//! The same subnet of real switches and HCAs in this process, managed by the embedded manager or by Debian's OpenSM, and one client at an HCA.

use crossbeam_channel::{Receiver, bounded, unbounded};
use fabric::node::ManagementPort;
use fabric::sm::SmConfig;
use fabric::sm::SubnetManager;
use fabric::sm::runner::SmPort;
use fabric::topology::{Shape, Topology};
use fabric::umad::{UmadConfig, UmadServer};
use ipoib::machines::Manager;
use ipoib::opensm::{OpenSm, library, program};
use ipoib::run::{queues, spawn};
use ipoib::subnet::Subnet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use verbs::{MadAgent, MadReceived, MadSend, PortAttributes};
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::mad::attr::{JoinState, McMemberRecord, PathRecord, PortState, mcmember, path_record};
use wire::mad::{AttrId, Method, MgmtClass, SaMad};
use wire::{PKey, QKey, Qpn, ServiceLevel};

/// Requests of the client on the way at once.
const WINDOW: u32 = 64;
/// Transaction of the first request, which is repeated until it is answered.
const FIRST: u32 = u32::MAX;
const RETRY: Duration = Duration::from_millis(5);
/// For a subnet to come up, or an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of each HCA when all ask at once: one to join, the others for paths.
const EACH: u32 = 10;
/// Who is not answered when nobody was for so long asks again.
const CROWD_RETRY: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, PartialEq)]
pub enum By {
    Embedded,
    OpenSm,
}

/// What is missing for OpenSM.
pub fn missing() -> Option<&'static str> {
    [("opensm", program("opensm")), ("libumad2sim0", library())]
        .into_iter()
        .find_map(|(package, path)| path.is_none().then_some(package))
}

fn topology(hosts: usize) -> Topology {
    let leaves = u8::try_from(hosts.div_ceil(18)).unwrap();
    let shape = Shape::FatTree {
        spines: 18,
        leaves,
        hosts: 18,
    };
    let mut topology = shape.topology();
    topology.nodes.truncate(18 + usize::from(leaves) + hosts);
    let nodes = topology.nodes.len();
    topology
        .cables
        .retain(|cable| cable.ends.iter().all(|end| end.node < nodes));
    topology
}

fn wait_active(ports: &[Arc<dyn ManagementPort>]) {
    let end = Instant::now() + PATIENCE;
    for port in ports {
        while port.attributes().state != PortState::ACTIVE {
            assert!(Instant::now() < end, "the subnet is not up");
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// What one manager needed.
#[derive(Clone, Copy)]
pub struct Figures {
    /// From its start (of OpenSM: of its process) until all HCA ports are Active and the SA answers one of them.
    pub sweep: Duration,
    /// For the path queries of one client.
    pub queries: Duration,
    /// For one answer, when all HCAs join the broadcast group and ask for paths at once.
    pub crowd: Duration,
}

pub fn round(by: By, config: &SmConfig, hosts: usize, queries: u32) -> Figures {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let topology = topology(hosts);
    let subnet = Subnet::with_topology(&topology, None).unwrap();
    let nodes = subnet.nodes();
    let ports = nodes.iter().map(|(_, port)| port.clone());
    let ports: Vec<_> = ports.skip(nodes.len() - hosts).collect();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let base = format!("ipoib-b{}-{number}", std::process::id());
    let first = nodes[0].clone();
    let umad = (by == By::OpenSm).then(|| {
        let (base, udp, allow) = (base.clone(), None, Vec::new());
        UmadServer::start(UmadConfig {
            base,
            udp,
            allow,
            nodes,
        })
        .unwrap()
    });
    let started = Instant::now();
    let (embedded, opensm) = match by {
        By::Embedded => {
            let (inbox, outbox) = queues::<Manager>();
            let sink = inbox.clone();
            let port = SmPort::bind(&*first.1, Box::new(move |mad| sink.put(mad))).unwrap();
            let sm = SubnetManager::new(config.clone(), 7);
            let mut manager = Manager { sm, port };
            manager.port.turn(Instant::now(), &mut manager.sm, []);
            (Some(spawn("sm", inbox, outbox, manager).unwrap()), None)
        }
        By::OpenSm => (None, Some(OpenSm::start(&base, &first.0, config).unwrap())),
    };
    wait_active(&ports);
    let client = Client::new(&ports);
    client.wait_for_sa();
    let sweep = started.elapsed();
    let queries = client.ask(queries);
    drop(client);
    let crowd = crowd(&ports);
    drop((embedded, opensm, umad));
    Figures {
        sweep,
        queries,
        crowd,
    }
}

/// All HCAs join and ask for paths at once; the time of one answer.
fn crowd(ports: &[Arc<dyn ManagementPort>]) -> Duration {
    let (answers, answered) = unbounded();
    let own: Vec<Arc<PortAttributes>> = ports.iter().map(|port| port.attributes()).collect();
    let agent = |(index, port): (usize, &Arc<dyn ManagementPort>)| {
        let answers = answers.clone();
        let handler = Arc::new(move |mad: MadReceived| {
            let _ = answers.send((index, mad));
        });
        port.register_mad_agent(&[MgmtClass::SUBN_ADM], handler)
            .unwrap()
    };
    let agents: Vec<Box<dyn MadAgent>> = ports.iter().enumerate().map(agent).collect();
    let mut missing = BTreeMap::new();
    for n in 0..EACH {
        for (index, agent) in agents.iter().enumerate() {
            let tid = u64::from(agent.tid_high()) << 32 | u64::from(n);
            let peer = &own[(index + n as usize * 7919) % own.len()];
            let mad = match n {
                0 => join(&own[index], tid),
                _ => request(&own[index], peer, tid),
            };
            missing.insert((index, n), mad);
        }
    }
    let count = missing.len() as u32;
    let started = Instant::now();
    for ((index, _), mad) in &missing {
        agents[*index].send(mad.clone());
    }
    while !missing.is_empty() {
        match answered.recv_timeout(CROWD_RETRY) {
            Ok((index, mad)) => {
                assert_eq!(mad.mad[4..6], [0, 0], "a request was refused");
                missing.remove(&(index, u32::from(mad.mad[15])));
            }
            Err(_) => {
                assert!(started.elapsed() < PATIENCE, "{} unanswered", missing.len());
                for ((index, _), mad) in &missing {
                    agents[*index].send(mad.clone());
                }
            }
        }
    }
    started.elapsed() / count
}

fn join(own: &PortAttributes, tid: u64) -> MadSend {
    let record = McMemberRecord {
        mgid: broadcast_gid(PKey::DEFAULT_FULL, Scope(2)),
        port_gid: own.gid(),
        join_state: JoinState::FULL,
        ..McMemberRecord::default()
    };
    let mask = mcmember::MGID | mcmember::PORT_GID | mcmember::JOIN_STATE;
    let attr = AttrId::MC_MEMBER_RECORD;
    send(
        own,
        SaMad::request(Method::SET, attr, mask, &record.emit(), tid),
    )
}

fn request(own: &PortAttributes, peer: &PortAttributes, tid: u64) -> MadSend {
    let record = PathRecord {
        dgid: peer.gid(),
        sgid: own.gid(),
        p_key: PKey::DEFAULT_FULL,
        numb_path: 1,
        ..PathRecord::default()
    };
    let (attr, mask) = (AttrId::PATH_RECORD, path_record::IPOIB_QUERY);
    send(
        own,
        SaMad::request(Method::GET, attr, mask, &record.emit(), tid),
    )
}

fn send(own: &PortAttributes, mad: SaMad) -> MadSend {
    MadSend {
        dlid: own.sm_lid,
        sl: ServiceLevel(0),
        remote_qpn: Qpn::GSI,
        q_key: QKey::GSI,
        p_key: PKey::DEFAULT_FULL,
        grh: None,
        mad: Box::new(mad.emit()),
    }
}

struct Client {
    agent: Box<dyn MadAgent>,
    answered: Receiver<MadReceived>,
    own: Arc<PortAttributes>,
    peers: Vec<Arc<PortAttributes>>,
}

impl Client {
    fn new(ports: &[Arc<dyn ManagementPort>]) -> Self {
        let (answers, answered) = bounded::<MadReceived>(1024);
        let handler = Arc::new(move |mad| {
            // A full queue ends in a missing answer, which is noticed.
            let _ = answers.try_send(mad);
        });
        let agent = ports[0].register_mad_agent(&[MgmtClass::SUBN_ADM], handler);
        Client {
            agent: agent.unwrap(),
            answered,
            own: ports[0].attributes(),
            peers: ports.iter().map(|port| port.attributes()).collect(),
        }
    }

    fn send(&self, n: u32) {
        let peer = &self.peers[(n as usize).wrapping_mul(7919) % self.peers.len()];
        self.agent.send(request(
            &self.own,
            peer,
            u64::from(self.agent.tid_high()) << 32 | u64::from(n),
        ));
    }

    /// Ports of switches on the way may become Active last, and what goes there before is dropped.
    fn wait_for_sa(&self) {
        let end = Instant::now() + PATIENCE;
        while {
            self.send(FIRST);
            self.answered.recv_timeout(RETRY).is_err()
        } {
            assert!(Instant::now() < end, "no answer of the SA");
        }
    }

    fn ask(&self, queries: u32) -> Duration {
        let started = Instant::now();
        (0..WINDOW.min(queries)).for_each(|n| self.send(n));
        let mut answered = 0;
        while answered < queries {
            let Ok(answer) = self.answered.recv_timeout(PATIENCE) else {
                panic!("an answer of the SA is missing");
            };
            if answer.mad[12..16] == FIRST.to_be_bytes() {
                continue;
            }
            assert_eq!(answer.mad[4..6], [0, 0], "a path query failed");
            answered += 1;
            if answered + WINDOW <= queries {
                self.send(answered + WINDOW - 1);
            }
        }
        started.elapsed()
    }
}
