//! Clients that speak the protocol themselves: hostile ones, dead ones, ones that want reports.

use crate::site::{Site, star, wait_until};
use fabric::umad::protocol::{ClientInfo, Ctl, Request};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use wire::Lid;
use wire::mad::{AttrId, MadHeader, Method, MgmtClass, Smp};

const PATIENCE: Duration = Duration::from_secs(120);

fn name(text: String) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("{text}\0")).unwrap()
}

/// A client as libumad2sim is one.
struct Client {
    ctl: UnixDatagram,
    data: UnixDatagram,
    id: u32,
}

impl Client {
    fn connect(base: &str, number: u32, node: &str, qp: u32) -> Option<Client> {
        let ctl = UnixDatagram::bind_addr(&name(format!("{base}:ctl{number}"))).unwrap();
        ctl.connect_addr(&name(format!("{base}:ctl"))).unwrap();
        let data = UnixDatagram::bind_addr(&name(format!("{base}:in{number}"))).unwrap();
        for socket in [&ctl, &data] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let info = ClientInfo {
            id: number,
            qp,
            is_sm: false,
            node: node.into(),
        };
        let mut client = Client { ctl, data, id: 0 };
        let answer = client.ask(Ctl::CONNECT, info.emit())?;
        client.id = ClientInfo::parse(&answer).id;
        let out = name(format!("{base}:out{}", client.id));
        client.data.connect_addr(&out).unwrap();
        Some(client)
    }

    fn ask(&self, kind: u32, data: [u8; 64]) -> Option<[u8; 64]> {
        let len = 64;
        let client = self.id;
        let ctl = Ctl {
            client,
            kind,
            len,
            data,
        };
        self.ctl.send(&ctl.emit()).unwrap();
        let mut bytes = [0; Ctl::LEN];
        assert_eq!(self.ctl.recv(&mut bytes).unwrap(), Ctl::LEN);
        let answer = Ctl::parse(&bytes).unwrap();
        (answer.kind == kind).then_some(answer.data)
    }

    fn is_sm(&self) -> bool {
        // IsSM is bit 1 of the CapabilityMask, bytes 20 to 23 of PortInfo.
        self.ask(Ctl::GET_PORTINFO, [0; 64]).unwrap()[23] & 2 != 0
    }

    fn set_sm(&self, on: bool) -> bool {
        let mut data = [0; 64];
        data[..4].copy_from_slice(&u32::from(on).to_ne_bytes());
        self.ask(Ctl::SET_ISSM, data).is_some()
    }

    fn send(&self, request: &Request) {
        self.data.send(&request.emit()).unwrap();
    }

    fn receive(&self) -> Request {
        let mut bytes = [0; Request::LEN];
        assert_eq!(self.data.recv(&mut bytes).unwrap(), Request::LEN);
        Request::parse(&bytes).unwrap()
    }
}

fn smp(path: &[u8], tid: u64) -> Request {
    let smp = Smp::directed(Method::GET, AttrId::NODE_INFO, 0, tid, path);
    Request {
        dlid: Lid::PERMISSIVE,
        slid: Lid(0),
        dqp: 0,
        sqp: 0,
        status: 0,
        length: 256,
        mad: Box::new(smp.emit()),
    }
}

#[test]
fn transactions_come_back_as_they_were_asked() {
    let site = Site::new(&star(4));
    let client = Client::connect(&site.base, 1, "H2", 0).unwrap();
    // The switch is one hop away. Nobody is at its port 9.
    client.send(&smp(&[1], 0xdead_beef_0102_0304));
    let answer = client.receive();
    let tid = u64::from_be_bytes(answer.mad[8..16].try_into().unwrap());
    assert_eq!((tid, answer.status), (0xdead_beef_0102_0304, 0));
    assert_eq!(answer.mad[3], Method::GET_RESP.0);
    assert_eq!(answer.mad[64 + 2], 2, "a switch");
    let lost = Request {
        length: 200,
        ..smp(&[1, 9], 7)
    };
    client.send(&lost);
    let back = client.receive();
    assert_eq!(
        back,
        Request {
            status: 110,
            ..lost
        }
    );
    // By name, by GUID, the first where none is named; and no such node.
    for (number, node, is) in [(2, "0x100030", "H3"), (3, "", "S1")] {
        let other = Client::connect(&site.base, number, node, 0).unwrap();
        let guid = &other.ask(Ctl::GET_NODEINFO, [0; 64]).unwrap()[12..20];
        let want: u64 = if is == "S1" { 0x20_0000 } else { 0x10_0030 };
        assert_eq!(guid, want.to_be_bytes());
    }
    assert!(Client::connect(&site.base, 4, "nowhere", 0).is_none());
}

#[test]
fn a_dead_subnet_manager_makes_room() {
    let site = Site::new(&star(2));
    let first = Client::connect(&site.base, 1, "H1", 0).unwrap();
    let second = Client::connect(&site.base, 2, "H1", 0).unwrap();
    assert!(first.set_sm(true) && first.is_sm());
    assert!(!second.set_sm(true), "there is one");
    // As kill -9 does: no DISCONNECT.
    drop(first);
    assert!(second.set_sm(true), "the first is dead");
    drop(second);
    let third = Client::connect(&site.base, 3, "H1", 0).unwrap();
    wait_until(|| "IsSM stays".into(), || third.is_sm(), |is| !is);
    let died = || site.server.counters().died.get();
    wait_until(|| "the dead are counted".into(), died, |n| *n >= 1);
}

#[test]
fn one_that_does_not_read_costs_nobody_else() {
    let site = Site::new(&star(2));
    let deaf = Client::connect(&site.base, 1, "H1", 0).unwrap();
    let other = Client::connect(&site.base, 2, "H1", 0).unwrap();
    for tid in 0..3000 {
        deaf.send(&smp(&[1], tid));
    }
    other.send(&smp(&[1], 42));
    assert_eq!(other.receive().mad[15], 42);
    let full = || site.server.counters().tx_full.get();
    wait_until(
        || "what it does not read is dropped".into(),
        full,
        |n| *n > 0,
    );
    // Backlog and socket hold the oldest, in order.
    assert_eq!(deaf.receive().mad[3], Method::GET_RESP.0);
}

/// The library asks one thing at a time and waits for the answer for ever.
#[test]
fn control_answers_wait_for_room() {
    let site = Site::new(&star(2));
    let client = Client::connect(&site.base, 1, "H1", 0).unwrap();
    let question = Ctl {
        client: client.id,
        kind: Ctl::GET_GID,
        len: 64,
        data: [0; 64],
    };
    let counters = site.server.counters();
    // Answers fill the queue of its socket; one waits, and then there is no room even for that.
    let mut asked = 0;
    while counters.tx_full.get() == 0 {
        assert!(asked < 10_000, "the queue has no end");
        client.ctl.send(&question.emit()).unwrap();
        asked += 1;
    }
    let taken = || counters.tx_full.get() as usize;
    let mut answers = 0;
    while answers + taken() < asked {
        let mut bytes = [0; Ctl::LEN];
        assert_eq!(client.ctl.recv(&mut bytes).unwrap(), Ctl::LEN);
        answers += 1;
    }
    assert_eq!(counters.tx_errors.get(), 0);
    assert!(client.ask(Ctl::GET_GUID, [0; 64]).is_some());
}

#[test]
fn hostile_datagrams() {
    let total: u32 = std::env::var("IPOIB_HOSTILE")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(20_000);
    let seed = 0x5eed_0003;
    eprintln!("seed {seed:#x}, {total} datagrams");
    let mut random = fastrand::Rng::with_seed(seed);
    let site = Site::new(&star(4));
    let nodes = ["H1", "H2", "S1", ""];
    let mut number = 100;
    let mut clients: Vec<Client> = Vec::new();
    let mut sent = 0;
    while sent < total {
        if clients.len() < 4 {
            number += 1;
            let qp = random.u32(0..4);
            let node = nodes[random.usize(0..4)];
            if let Some(client) = Client::connect(&site.base, number, node, qp) {
                client.ctl.set_nonblocking(true).unwrap();
                client.data.set_nonblocking(true).unwrap();
                clients.push(client);
            }
            continue;
        }
        let index = random.usize(0..4);
        if random.u32(0..2000) == 0 {
            clients.swap_remove(index);
            continue;
        }
        let client = &clients[index];
        let bytes = if random.u8(0..4) == 0 {
            control(&mut random, client.id)
        } else {
            data(&mut random)
        };
        let socket = if bytes.len() < 200 {
            &client.ctl
        } else {
            &client.data
        };
        match socket.send(&bytes) {
            Ok(_) => sent += 1,
            // The server has not taken the last ones yet.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::yield_now();
            }
            // A DISCONNECT was among them.
            Err(_) => {
                clients.swap_remove(index);
                continue;
            }
        }
        let mut sink = [0; 300];
        while client.ctl.recv(&mut sink).is_ok() || client.data.recv(&mut sink).is_ok() {}
    }
    drop(clients);
    // Still there, and as it should be.
    let client = Client::connect(&site.base, 1, "H3", 0).unwrap();
    client.send(&smp(&[1], 99));
    let answer = client.receive();
    assert_eq!((answer.mad[15], answer.status), (99, 0));
    let counters = site.server.counters();
    assert!(counters.rx_bad_control.get() > 0 && counters.rx_bad_length.get() > 0);
    let left = || counters.connected.get() - counters.disconnected.get();
    wait_until(|| "all but one are gone".into(), left, |left| *left == 1);
}

fn control(random: &mut fastrand::Rng, id: u32) -> Vec<u8> {
    let mut data = [0; 64];
    random.fill(&mut data[..4]);
    let ctl = Ctl {
        client: if random.u8(0..8) == 0 {
            random.u32(..)
        } else {
            id
        },
        // Those that need a fresh client afterwards seldom.
        kind: match random.u8(0..60) {
            0 => Ctl::DISCONNECT,
            1 => random.u32(..),
            2 => Ctl::CONNECT,
            n => 3 + u32::from(n) % 8,
        },
        len: random.u32(0..100),
        data,
    };
    let mut bytes = ctl.emit().to_vec();
    match random.u8(0..10) {
        0 => bytes.truncate(random.usize(0..80)),
        1 => bytes.resize(random.usize(80..190), 0xaa),
        2 => bytes[random.usize(0..4)] ^= 1,
        _ => {}
    }
    bytes
}

fn data(random: &mut fastrand::Rng) -> Vec<u8> {
    let path: Vec<u8> = (0..random.usize(0..4)).map(|_| random.u8(0..14)).collect();
    let mut request = smp(&path, random.u64(..));
    if random.bool() {
        let class = MgmtClass([1, 3, 4, 7, 0x32, 0x81][random.usize(0..6)]);
        let method = Method(random.choice([1, 2, 3, 5, 6, 7, 0x12, 0x81, 0x92]).unwrap());
        let attr = AttrId(random.u16(0..0x40));
        let header = MadHeader::request(class, method, attr, random.u32(0..4), random.u64(..));
        request.mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        request.dqp = random.u32(0..4);
        request.dlid = Lid(random.u16(..));
    }
    let mut bytes = request.emit().to_vec();
    for _ in 0..random.u8(0..6) {
        let at = random.usize(0..bytes.len());
        bytes[at] = random.u8(..);
    }
    if random.u8(0..10) == 0 {
        bytes.resize(random.usize(200..800), 0x55);
    }
    bytes
}
