//! Two channel adapters on UDP links of a real switch with a real subnet manager: the communication managers open a reliable connection, long
//! messages cross it both ways while the links lose packets, and Wireshark reads it.
#![allow(clippy::unwrap_used)]

use crossbeam_channel::{Receiver, Sender, unbounded};
use fabric::hca::{Hca, HcaConfig, HcaControl};
use fabric::link::fault::{FaultConfig, FaultLink};
use fabric::link::pcap::PcapWriter;
use fabric::link::udp::{ListenConfig, UdpLink, UdpListener};
use fabric::sm::SmConfig;
use ipoib::run::{Running, queues, spawn};
use ipoib::subnet::Subnet;
use mad::{Cm, CmAddress, CmConfig, CmEvent, CmOutput, ConnectionId};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{
    AckTimeout, AhAttributes, Completion, CompletionStatus, ConnectedHandler, ConnectedInit,
    ConnectedQueuePair, ConnectedReceive, ConnectedSend, InitAttributes, MadAgent, MadReceived,
    Port, PortEvent, QpEvent, QpModify, RnrTimer, RtrAttributes, RtsAttributes,
};
use wire::mad::MgmtClass;
use wire::mad::attr::PortState;
use wire::mad::cm::{Rep, Req, ServiceId};
use wire::{Guid, MtuCode, PKey, Psn, Qpn, RateCode, ServiceLevel};

/// Generous: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);
const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0048);
const MTU: MtuCode = MtuCode::MTU_2048;
/// What IPoIB sends at most, with its header.
const LONG: usize = 65_524;
const COUNT: usize = 200;

/// What happens on the two sides, by side.
enum Happened {
    Port,
    Mad(MadReceived),
    Message(Vec<u8>),
    Completed(CompletionStatus),
    Event(QpEvent),
}

struct User(usize, Sender<(usize, Happened)>);

impl User {
    fn tell(&self, happened: Happened) {
        // The test may be over.
        let _ = self.1.send((self.0, happened));
    }
}

impl ConnectedHandler for User {
    fn receive(&self, batch: &[ConnectedReceive<'_>]) {
        for message in batch {
            self.tell(Happened::Message(message.payload.to_vec()));
        }
    }
    fn complete(&self, batch: &[Completion]) {
        for completion in batch {
            self.tell(Happened::Completed(completion.status));
        }
    }
    fn event(&self, event: QpEvent) {
        self.tell(Happened::Event(event));
    }
}

/// One side.
struct Host {
    hca: Arc<Hca>,
    agent: Box<dyn MadAgent>,
    cm: Cm,
    faults: Arc<FaultLink>,
    link: Arc<UdpLink>,
    qp: Option<Arc<dyn ConnectedQueuePair>>,
    received: Vec<Vec<u8>>,
    completed: usize,
    events: Vec<CmEvent>,
    _control: Running<HcaControl>,
}

impl Drop for Host {
    fn drop(&mut self) {
        // The link and its sink hold each other.
        self.link.close();
        self.hca.detach_link();
    }
}

struct Site {
    hosts: Vec<Host>,
    happened: Receiver<(usize, Happened)>,
    sender: Sender<(usize, Happened)>,
    _listener: UdpListener,
}

impl Site {
    fn new(subnet: &Subnet) -> Site {
        let listener = subnet.listen(ListenConfig::new("127.0.0.1:0".parse().unwrap()));
        let listener = listener.unwrap();
        let (sender, happened) = unbounded();
        let hosts = (0..2)
            .map(|side| {
                let (inbox, outbox) = queues::<HcaControl>();
                let into = inbox.clone();
                let guid = Guid(0x0200_0000_0000_0100 + 0x10 * side as u64);
                let config = HcaConfig::new(guid, &format!("host {side}"));
                let (hca, control) = Hca::new(config, Box::new(move |input| into.put(input)));
                let control = spawn("hca", inbox, outbox, control).unwrap();
                let user = User(side, sender.clone());
                hca.subscribe(Arc::new(move |_: PortEvent| user.tell(Happened::Port)));
                let user = User(side, sender.clone());
                let agent = Port::register_mad_agent(
                    &*hca,
                    &[MgmtClass::COM_MGT],
                    Arc::new(move |mad| user.tell(Happened::Mad(mad))),
                );
                let agent = agent.unwrap();
                let config = CmConfig {
                    time_wait: Duration::from_millis(50),
                    ..CmConfig::new(guid, agent.tid_high())
                };
                let faults = FaultLink::new(Box::new(|_, _| false));
                let link = UdpLink::connect(listener.local_addr(), hca.clone()).unwrap();
                hca.attach_link(faults.link(link.clone()));
                let mut cm = Cm::new(config, side as u64);
                cm.listen(SERVICE);
                Host {
                    hca,
                    agent,
                    cm,
                    faults,
                    link,
                    qp: None,
                    received: Vec::new(),
                    completed: 0,
                    events: Vec::new(),
                    _control: control,
                }
            })
            .collect();
        Site {
            hosts,
            happened,
            sender,
            _listener: listener,
        }
    }

    /// Lets things happen until `done`.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Vec<Host>) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(&mut self.hosts) {
            let now = Instant::now();
            assert!(now < end, "{what}");
            let timeouts = self.hosts.iter().filter_map(|h| h.cm.poll_timeout());
            let next = timeouts.min().map_or(end, |at| at.min(end));
            let wait = next.saturating_duration_since(now);
            if let Ok((side, happened)) = self.happened.recv_timeout(wait) {
                let host = &mut self.hosts[side];
                match happened {
                    Happened::Mad(mad) => host.cm.handle(Instant::now(), &mad),
                    Happened::Message(message) => host.received.push(message),
                    Happened::Completed(status) => {
                        assert_eq!(status, CompletionStatus::Success);
                        host.completed += 1;
                    }
                    Happened::Event(event) => {
                        assert_eq!(event, QpEvent::CommunicationEstablished);
                    }
                    Happened::Port => {}
                }
            }
            for host in &mut self.hosts {
                host.cm.handle_timeout(Instant::now());
                while let Some(output) = host.cm.poll_output() {
                    match output {
                        CmOutput::Send(mad) => host.agent.send(mad),
                        CmOutput::Event(event) => host.events.push(event),
                    }
                }
            }
        }
    }

    fn queue_pair(&mut self, side: usize) -> Qpn {
        let user = Arc::new(User(side, self.sender.clone()));
        let hca = &self.hosts[side].hca;
        let qp = hca.create_connected_qp(ConnectedInit::default(), user);
        let qp = qp.unwrap();
        qp.modify(QpModify::Init(InitAttributes::default()))
            .unwrap();
        let qpn = qp.qpn();
        self.hosts[side].qp = Some(qp);
        qpn
    }

    /// Init to RTS.
    fn bring_up(&self, side: usize, dest_qpn: Qpn, rq_psn: Psn, sq_psn: Psn) {
        let qp = self.hosts[side].qp.as_ref().unwrap();
        let path = AhAttributes {
            dlid: Port::attributes(&*self.hosts[1 - side].hca).lid,
            sl: ServiceLevel(0),
            src_path_bits: 0,
            rate: RateCode::GBPS_10,
            grh: None,
        };
        let rtr = RtrAttributes {
            path,
            path_mtu: MTU,
            dest_qpn,
            rq_psn,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer(12),
        };
        let rts = RtsAttributes {
            sq_psn,
            // 67 ms.
            timeout: AckTimeout(14),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 0,
        };
        qp.modify(QpModify::Rtr(rtr)).unwrap();
        qp.modify(QpModify::Rts(rts)).unwrap();
    }

    /// Opens a connection from side 0 to side 1.
    fn open(&mut self) -> ConnectionId {
        let (psn, other_psn) = (Psn::new(0xff_fff0), Psn::new(77));
        let local_qpn = self.queue_pair(0);
        let lids = [0, 1].map(|side| Port::attributes(&*self.hosts[side].hca).lid);
        let mut req = Req {
            service_id: SERVICE,
            local_qpn,
            starting_psn: psn,
            p_key: PKey::DEFAULT_FULL,
            path_packet_payload_mtu: MTU,
            retry_count: 7,
            rnr_retry_count: 7,
            ..Req::default()
        };
        req.primary.local_lid = lids[0];
        req.primary.remote_lid = lids[1];
        req.primary.local_gid = Port::attributes(&*self.hosts[0].hca).gid();
        req.primary.remote_gid = Port::attributes(&*self.hosts[1].hca).gid();
        req.primary.packet_rate = RateCode::GBPS_10;
        req.primary.subnet_local = true;
        req.primary.local_ack_timeout = 14;
        let to = CmAddress {
            dlid: lids[1],
            sl: ServiceLevel(0),
            qpn: Qpn::GSI,
            p_key: PKey::DEFAULT_FULL,
            grh: None,
        };
        let id = self.hosts[0].cm.connect(Instant::now(), to, req).unwrap();
        self.until("a REQ arrives", |hosts| !hosts[1].events.is_empty());
        let CmEvent::Requested { id: there, req, .. } = self.hosts[1].events.remove(0) else {
            panic!("not asked")
        };
        let accepted_qpn = self.queue_pair(1);
        self.bring_up(1, req.local_qpn, other_psn, req.starting_psn);
        let rep = Rep {
            local_qpn: accepted_qpn,
            starting_psn: other_psn,
            ..Rep::default()
        };
        let cm = &mut self.hosts[1].cm;
        cm.accept(Instant::now(), there, rep).unwrap();
        self.until("a REP arrives", |hosts| !hosts[0].events.is_empty());
        let CmEvent::Replied { rep, .. } = self.hosts[0].events.remove(0) else {
            panic!("not accepted")
        };
        self.bring_up(0, rep.local_qpn, psn, rep.starting_psn);
        self.hosts[0].cm.confirm(id, [0; 224]).unwrap();
        let opened = CmEvent::Established { id: there };
        self.until("the RTU arrives", |hosts| hosts[1].events.contains(&opened));
        id
    }

    /// `count` messages each way.
    fn exchange(&mut self, count: usize) {
        let message = |side: usize, n: usize| vec![(side * 101 + n) as u8; LONG - n];
        let mut posted = [0; 2];
        self.until("all messages arrive", |hosts| {
            for (side, posted) in posted.iter_mut().enumerate() {
                let qp = hosts[side].qp.clone().unwrap();
                while *posted < count {
                    let payload = message(side, *posted);
                    let send = ConnectedSend {
                        signalled: true,
                        ..ConnectedSend::message(&payload)
                    };
                    if qp.post_send(&[send]).is_err() {
                        break;
                    }
                    *posted += 1;
                }
            }
            let done = |h: &Host| h.completed == count && h.received.len() == count;
            hosts.iter().all(done)
        });
        for (side, host) in self.hosts.iter_mut().enumerate() {
            let mut all = host.received.drain(..).enumerate();
            assert!(all.all(|(n, m)| m == message(1 - side, n)), "side {side}");
            host.completed = 0;
        }
    }
}

#[test]
fn a_connection_over_udp_links_carries_long_messages_whatever_is_lost() {
    let subnet = Subnet::start(Guid(0x0200_0000_0000_0001), 4, SmConfig::default()).unwrap();
    let mut site = Site::new(&subnet);
    site.until("both ports become Active", |hosts| {
        let active = |h: &Host| Port::attributes(&*h.hca).state == PortState::ACTIVE;
        hosts.iter().all(active)
    });
    let frames = subnet.tap().start(1 << 14);
    let id = site.open();
    site.exchange(2);
    subnet.tap().stop();
    let start = Instant::now();
    site.exchange(COUNT);
    let whole = start.elapsed();
    for (seed, host) in site.hosts.iter().enumerate() {
        let config = FaultConfig {
            loss: 0.01,
            ..FaultConfig::NONE
        };
        host.faults.set(config, Some(seed as u64));
    }
    let start = Instant::now();
    site.exchange(COUNT);
    let lossy = start.elapsed();
    for host in &site.hosts {
        host.faults.set(FaultConfig::NONE, None);
        let counters = host.qp.as_ref().unwrap().query().counters;
        assert!(counters.tx_repeated > 0);
        let counters: Vec<_> = counters.iter().filter(|(_, n)| *n > 0).collect();
        println!("{counters:?}");
    }
    let rate = |time: Duration| (2 * COUNT * LONG * 8) as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{:.1} Gbit/s, and {:.1} with 1 % lost",
        rate(whole),
        rate(lossy)
    );

    site.hosts[0].cm.disconnect(Instant::now(), id).unwrap();
    site.until("both sides let go", |hosts| {
        hosts.iter().all(|h| h.cm.is_empty())
    });
    for host in &mut site.hosts {
        host.qp = None;
        assert!(host.hca.resources().queue_pairs.is_empty());
    }
    read_by_wireshark(frames.try_iter().map(|f| (f.time, f.bytes)).collect());
}

fn read_by_wireshark(frames: Vec<(std::time::SystemTime, Vec<u8>)>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("connection.pcap");
    let mut to = PcapWriter::new(std::fs::File::create(&path).unwrap()).unwrap();
    for (time, bytes) in &frames {
        to.write(*time, bytes).unwrap();
    }
    to.flush().unwrap();
    let version = Command::new("tshark")
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if version.is_err() {
        return println!("SKIPPED: there is no tshark");
    }
    let tshark = |arguments: &[&str]| {
        let output = Command::new("timeout")
            .args(["-k", "5", "300", "tshark", "-n", "-r"])
            .arg(&path)
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}", output.status);
        text
    };
    let wrong = tshark(&["-Y", "_ws.malformed || _ws.expert.severity == error"]);
    assert!(wrong.is_empty(), "Wireshark does not like:\n{wrong}");
    let listing = tshark(&[]);
    for word in [
        "ConnectRequest",
        "ConnectReply",
        "ReadyToUse",
        "RC Send First",
        "RC Send Last",
        "RC Acknowledge",
    ] {
        assert!(listing.contains(word), "no {word} in\n{listing}");
    }
}
