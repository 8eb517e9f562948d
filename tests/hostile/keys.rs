//! Mutated SMPs and SA MADs of those who know neither the M_Key nor the SM_Key, through the umad socket and through the UDP link: nothing that the
//! keys guard changes, and hosts talk all the while.

use crate::mads::Seeds;
use crate::net::Random;
use crate::world::{PATIENCE, Pings, World, wait_for};
use crate::{host, watch};
use fabric::node::smp_packet;
use fabric::sm::{MKey, SmConfig};
use fabric::topology::Topology;
use fabric::umad::protocol::{ClientInfo, Ctl, Request};
use fabric::umad::{UmadConfig, UmadServer};
use rustix::net::{RecvFlags, recv};
use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::Port;
use wire::mad::attr::{JoinState, SmState};
use wire::mad::{AttrId, MadBytes, Method, MgmtClass, Smp};
use wire::packet::{Bth, Deth, Extended, Lrh, Opcode, Packet};
use wire::{Gid, Lid, PKey, Psn, QKey, Qpn};

/// Nothing that a few changed or copied bytes make by chance.
const M_KEY: u64 = 0x1f2e_3d4c_5b6a_7988;
const SM_KEY: u64 = 0x2143_6587_a9cb_ed0f;
/// Growth of memory that full tables and allocators explain.
const GROWTH: u64 = 200 << 20;
/// The place of a channel adapter that nobody takes: a client of the umad server sits there.
const INTRUDER: &str = "switchguid=0x5000\nSwitch 16 \"switch\"\n[16] \"intruder\"[1]\n\ncaguid=0x100010\nCa 1 \"intruder\"\n[1] \"switch\"[16]\n";

fn total() -> u64 {
    watch::count("IPOIB_HOSTILE_KEYS", 50_000)
}

fn world() -> World {
    let m_key = MKey {
        key: M_KEY,
        protect: 1,
        lease: 0,
    };
    let config = SmConfig {
        m_key,
        sm_key: SM_KEY,
        ..SmConfig::default()
    };
    World::start_in(&Topology::parse(INTRUDER).unwrap(), config)
}

/// A mutated MAD, and is it an SMP? Without either key: whoever has them may do anything.
fn keyless(seeds: &Seeds, random: &mut Random) -> (Box<MadBytes>, bool) {
    let (mut mad, _) = seeds.mad(random);
    let is_smp = matches!(
        MgmtClass(mad[1]),
        MgmtClass::SUBN_LID | MgmtClass::SUBN_DIRECTED
    );
    // SMInfo has it, too.
    for (at, key) in [(24, M_KEY), (36, SM_KEY), (72, SM_KEY)] {
        assert_ne!(mad[at..at + 8], key.to_be_bytes());
    }
    if is_smp && random.below(8) == 0 {
        // A guess.
        mad[24..32].copy_from_slice(&random.next().to_be_bytes());
    }
    (mad, is_smp)
}

/// What the keys guard, as the subnet manager and the nodes have it.
#[derive(Debug, PartialEq)]
struct State {
    manager: SmState,
    /// Of each host: full memberships and subscriptions.
    registered: BTreeMap<Gid, (Vec<Gid>, usize)>,
    /// Nodes and what is at the end of their links.
    nodes: Vec<fabric::sm::NodeView>,
    /// Attributes by LID.
    attributes: BTreeMap<(Lid, u16, u32), [u8; 64]>,
}

/// A client of the umad server, as libumad2sim is one.
struct Client {
    _control: UnixDatagram,
    data: UnixDatagram,
}

impl Client {
    fn connect(base: &str, number: u32, node: &str) -> Client {
        let name = |text: String| SocketAddr::from_abstract_name(text).unwrap();
        let control = UnixDatagram::bind_addr(&name(format!("{base}:client{number}"))).unwrap();
        let data = UnixDatagram::bind_addr(&name(format!("{base}:in{number}\0"))).unwrap();
        // A server that takes nothing any more hangs. What is asked is asked again.
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        data.set_read_timeout(Some(PATIENCE / 40)).unwrap();
        data.set_write_timeout(Some(PATIENCE)).unwrap();
        control
            .connect_addr(&name(format!("{base}:ctl\0")))
            .unwrap();
        let info = ClientInfo {
            id: number,
            node: node.into(),
            ..ClientInfo::default()
        };
        let connect = Ctl {
            client: 0,
            kind: Ctl::CONNECT,
            len: ClientInfo::LEN,
            data: info.emit(),
        };
        control.send(&connect.emit()).unwrap();
        let mut answer = [0; Ctl::LEN];
        assert_eq!(control.recv(&mut answer).unwrap(), Ctl::LEN);
        let answer = Ctl::parse(&answer).unwrap();
        assert_eq!(answer.kind, Ctl::CONNECT);
        let id = ClientInfo::parse(&answer.data).id;
        data.connect_addr(&name(format!("{base}:out{id}\0")))
            .unwrap();
        Client {
            _control: control,
            data,
        }
    }

    fn send(&self, dlid: Lid, qp: u32, mad: Box<MadBytes>) {
        let request = Request {
            dlid,
            slid: Lid(0),
            dqp: qp,
            sqp: qp,
            status: 0,
            length: 256,
            mad,
        };
        self.data.send(&request.emit()).expect("the server hangs");
    }

    /// What came, without waiting.
    fn drain(&self) -> u64 {
        let mut bytes = [0; Request::LEN];
        let mut count = 0;
        while recv(&self.data, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {
            count += 1;
        }
        count
    }

    /// Asks with the M_Key, again when the answer was lost.
    fn get(&self, lid: Lid, attr: AttrId, modifier: u32) -> [u8; 64] {
        wait_for("an answer to who has the key", || {
            // Else there might be no room for it.
            self.drain();
            let smp = Smp {
                m_key: M_KEY,
                ..Smp::lid_routed(Method::GET, attr, modifier, 0x5eed)
            };
            self.send(lid, 0, Box::new(smp.emit()));
            // The node of this client gets other things, too.
            loop {
                let mut bytes = [0; Request::LEN];
                self.data.recv(&mut bytes).ok()?;
                let answer = Request::parse(&bytes).unwrap();
                let smp = Smp::parse(&answer.mad[..]).unwrap();
                let asked = (smp.header.attr_id, smp.header.attr_mod) == (attr, modifier);
                match answer.status {
                    0 if asked && smp.header.method == Method::GET_RESP => return Some(smp.data),
                    0 => {}
                    _ => return None,
                }
            }
        })
    }
}

/// A subnet under attack.
struct Siege {
    world: World,
    seeds: Seeds,
    random: Random,
    /// Whoever asks for the state.
    witness: Client,
    base: String,
    server: Arc<UmadServer>,
    lids: Vec<Lid>,
    panics: u64,
}

impl Siege {
    fn start(seed: u64) -> Siege {
        let panics = watch::panics();
        let world = world();
        let base = format!("ipoib-hostile-{}-{seed}", std::process::id());
        let server = UmadServer::start(UmadConfig {
            base: base.clone(),
            udp: None,
            allow: Vec::new(),
            nodes: world.subnet.nodes(),
        });
        let server = Arc::new(server.unwrap());
        let nodes = world.subnet.nodes();
        let nodes = nodes.iter().map(|(_, port)| port.attributes().lid);
        let lids = nodes
            .chain(world.victims.iter().map(|victim| victim.lid()))
            .collect();
        Siege {
            witness: Client::connect(&base, 1, "switch"),
            world,
            seeds: Seeds::new(),
            random: Random(seed),
            base,
            server,
            lids,
            panics,
        }
    }

    fn state(&self) -> State {
        let gids = self.world.victims.each_ref().map(|victim| victim.gid());
        let manager = self.world.subnet.manager().unwrap();
        let (manager, registered, nodes) = manager
            .call(move |manager, _| {
                let sm = &manager.sm;
                let of = |gid: Gid| {
                    let groups = sm.groups().into_iter().filter(|group| {
                        let mut members = group.members.iter();
                        members.any(|(member, how)| *member == gid && how.contains(JoinState::FULL))
                    });
                    let groups = groups.map(|group| group.mgid).collect();
                    let subscriptions = sm.subscriptions().filter(|(who, _)| *who == gid);
                    (gid, (groups, subscriptions.count()))
                };
                (sm.state(), gids.map(of).into(), sm.nodes())
            })
            .unwrap();
        let common = [
            (AttrId::NODE_DESCRIPTION, 0),
            (AttrId::NODE_INFO, 0),
            (AttrId::GUID_INFO, 0),
            (AttrId::PORT_INFO, 1),
            (AttrId::P_KEY_TABLE, 0),
            (AttrId::SL_TO_VL_MAPPING_TABLE, 1),
            (AttrId::VL_ARBITRATION_TABLE, 1 << 16 | 1),
        ];
        let switch = [
            (AttrId::SWITCH_INFO, 0),
            (AttrId::PORT_INFO, 0),
            (AttrId::PORT_INFO, 2),
            (AttrId::LINEAR_FORWARDING_TABLE, 0),
        ];
        let all = self.lids.iter().flat_map(|lid| common.map(|of| (*lid, of)));
        let all = all.chain(switch.map(|of| (self.lids[0], of)));
        let attributes = all.map(|(lid, (attr, modifier))| {
            let mut data = self.witness.get(lid, attr, modifier);
            if attr == AttrId::PORT_INFO {
                // Violations count, and only they.
                data[44..50].fill(0);
            }
            ((lid, attr.0, modifier), data)
        });
        State {
            manager,
            registered,
            nodes,
            attributes: attributes.collect(),
        }
    }

    /// Sends `total` MADs by `send`, while hosts talk; then all must be as before.
    fn run(
        mut self,
        what: &str,
        mut send: impl FnMut(&mut World, &mut Random, &[Lid], Box<MadBytes>, bool),
    ) {
        // All groups of both addresses, and the four traps.
        let before = wait_for("all is registered", || {
            let state = self.state();
            let mut all = state.registered.values();
            let is_up = all.all(|(groups, subscriptions)| groups.len() == 4 && *subscriptions == 4);
            is_up.then_some(state)
        });
        let total = total();
        let mut attack = |this: &mut Siege, count| {
            for _ in 0..count {
                let (mad, is_smp) = keyless(&this.seeds, &mut this.random);
                send(&mut this.world, &mut this.random, &this.lids, mad, is_smp);
                this.witness.drain();
            }
        };
        // Tables, caches and allocators fill up first.
        attack(&mut self, total / 10);
        let (memory, begun) = (watch::resident(), Instant::now());
        let pings = Pings::start(&self.world.victims[0]);
        attack(&mut self, total - total / 10);
        let took = begun.elapsed();
        let (pinged, lost) = pings.finish(&self.world.victims[0]);
        let grown = watch::resident().saturating_sub(memory);
        let counters = self.world.subnet.manager().unwrap();
        let counters = counters
            .call(|manager, _| {
                let counters = manager.sm.counters().iter().filter(|(_, n)| *n > 0);
                format!("{:?}", counters.collect::<Vec<_>>())
            })
            .unwrap();
        eprintln!(
            "{total} MADs {what}, nine tenths of them in {took:?}, {pinged} pings, {} lost, memory grew by {} KiB; {counters}",
            lost.len(),
            grown >> 10,
        );
        let umad = self.server.counters().values();
        let umad: Vec<_> = umad.into_iter().filter(|(_, n)| *n > 0).collect();
        eprintln!("umad: {umad:?}");
        assert_eq!(watch::panics(), self.panics, "threads panicked");
        // What is under way when the last one was sent comes to its end: sweeps after false traps.
        let until = Instant::now() + PATIENCE;
        let mut after = self.state();
        while after != before && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
            after = self.state();
        }
        for (of, data) in &before.attributes {
            assert_eq!(after.attributes[of], *data, "{of:?}");
        }
        assert_eq!(after, before);
        assert!(pinged > 10 && lost.is_empty(), "of {pinged}: {lost:?}");
        assert!(grown < GROWTH, "memory grew by {grown} bytes");
        let [one, other] = &self.world.victims;
        assert!(one.reaches(host::v4(1), PATIENCE) && other.reaches(host::v6(0), PATIENCE));
    }
}

#[test]
fn through_the_umad_socket() {
    let siege = Siege::start(11);
    let clients = [(2, "switch"), (3, "intruder")]
        .map(|(number, node)| Client::connect(&siege.base, number, node));
    let (mut answered, mut refused) = (0, 0);
    let server = siege.server.clone();
    siege.run("by umad", |_, random, lids, mad, is_smp| {
        let dlid = match random.below(4) {
            0 if is_smp => Lid::PERMISSIVE,
            // That of the manager.
            1 => lids[0],
            _ => lids[random.below(lids.len())],
        };
        let client = &clients[random.below(clients.len())];
        client.send(dlid, u32::from(!is_smp), mad);
        answered += client.drain();
        // As many under way as there may be: some will be given up soon.
        let now = server.counters().too_many_requests.get();
        if std::mem::replace(&mut refused, now) != now {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    eprintln!("{answered} answers");
    assert!(answered > total() / 10);
}

#[test]
fn through_the_udp_link() {
    Siege::start(12).run("by UDP", |world, random, lids, mad, is_smp| {
        let World {
            attackers,
            listener,
            ..
        } = world;
        let attacker = &mut attackers[random.below(2)];
        // Its own: who takes another's LID speaks for it at the SA.
        let slid = attacker.hca.attributes().lid;
        // Half of them go to the manager.
        let dlid = lids[random.below(lids.len()) * random.below(2)];
        let directed = MgmtClass(mad[1]) == MgmtClass::SUBN_DIRECTED;
        let psn = Psn::default();
        let packet = match is_smp {
            true if directed => smp_packet(&mad, Lid::PERMISSIVE, Lid::PERMISSIVE, psn),
            true => smp_packet(&mad, slid, dlid, psn),
            false => Packet {
                lrh: Lrh {
                    slid,
                    dlid,
                    ..Lrh::default()
                },
                bth: Bth {
                    opcode: Opcode::UD_SEND_ONLY,
                    p_key: PKey::DEFAULT_FULL,
                    dest_qp: Qpn::GSI,
                    ..Bth::default()
                },
                ext: Extended {
                    deth: Some(Deth {
                        q_key: QKey::GSI,
                        src_qp: Qpn::GSI,
                    }),
                    ..Extended::default()
                },
                payload: &mad[..],
                ..Packet::default()
            },
        };
        let mut bytes = Vec::new();
        packet.emit_into(&mut bytes).unwrap();
        attacker.send(&bytes, listener);
    });
}
