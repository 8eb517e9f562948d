//! Subnet manager and SA at scale, in interleaved rounds, of which the medians are printed: `cargo bench --bench sm [HCAS...]`.
//!
//! First table: a two-level fat tree of scripted nodes that answer real SMPs on this thread; their time counts in. Second table: the same tree of
//! the fabric's own switches and HCAs, with the embedded manager and with Debian's OpenSM (configured as `ipoib fabric` does it), each at the
//! first switch; "sweep" is the time from the manager's start until all HCA ports are Active and the SA answers a client at one of them, which then
//! asks for paths, 64 at a time. "all at once" is the requests per second when then every HCA joins the broadcast group and asks for nine paths.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

#[path = "../fabric/tests/sm/model.rs"]
mod model;
#[path = "sm/fabric.rs"]
mod real;

use fabric::sm::{Counter, RoutingEngine, SmConfig};
use model::{MS, Model};
use real::{By, Figures};
use std::time::{Duration, Instant};
use verbs::MadReceived;
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::mad::attr::{JoinState, McMemberRecord, PathRecord, PortState, mcmember, path_record};
use wire::mad::{AttrId, Method, SaMad};
use wire::{Gid, Lid, PKey, Qpn, ServiceLevel};

const ROUNDS: usize = 5;
/// Of one client through the fabric.
const CLIENT_QUERIES: u32 = 10_000;
const QUERIES: usize = 100_000;

/// Leaves with 18 hosts and 18 ways up each.
fn fat_tree(config: SmConfig, hosts: usize) -> (Model, Vec<usize>) {
    let mut m = Model::new(config);
    let hcas: Vec<usize> = (1..=hosts as u64).map(|n| m.hca(0x10000 * n)).collect();
    let leaves = hosts.div_ceil(18);
    assert!(leaves <= 254, "a spine has 254 ports");
    let switches: Vec<usize> = (0..leaves as u64 + 18)
        .map(|n| m.switch(0xa_0000_0000 + n, if n < leaves as u64 { 36 } else { 254 }))
        .collect();
    let (leaf, spine) = switches.split_at(leaves);
    for (n, &hca) in hcas.iter().enumerate() {
        m.link((hca, 1), (leaf[n / 18], 1 + (n % 18) as u8));
    }
    for (l, &at) in leaf.iter().enumerate() {
        for (s, &up) in spine.iter().enumerate() {
            m.link((at, 19 + s as u8), (up, 1 + l as u8));
        }
    }
    (m, hcas)
}

fn broadcast() -> Gid {
    broadcast_gid(PKey(0xffff), Scope(2))
}

fn request(m: &Model, from: usize, mad: SaMad) -> MadReceived {
    MadReceived {
        slid: m.lid(from),
        dlid: Lid(1),
        src_qp: Qpn::GSI,
        dest_qp: Qpn::GSI,
        sl: ServiceLevel(0),
        p_key: PKey(0xffff),
        grh: None,
        mad: Box::new(mad.emit()),
    }
}

/// Time until all is answered, so many requests a turn; and how many answers were good.
fn serve(m: &mut Model, requests: Vec<MadReceived>, at_once: usize) -> (Duration, usize) {
    let (started, mut good) = (Instant::now(), 0);
    let mut requests = requests.into_iter().peekable();
    while requests.peek().is_some() {
        for mad in requests.by_ref().take(at_once) {
            m.sm.handle_mad(m.now, mad);
        }
        while let Some(send) = m.sm.poll_transmit() {
            if send.remote_qpn == Qpn::GSI {
                good += usize::from(send.mad[4..6] == [0, 0]);
            } else {
                m.transmit(send);
            }
        }
    }
    (started.elapsed(), good)
}

struct Round {
    sweep: Duration,
    light: Duration,
    smps: u64,
    joins: Duration,
    queries: Duration,
}

fn round(config: SmConfig, hosts: usize) -> Round {
    let (mut m, hcas) = fat_tree(config, hosts);
    let started = Instant::now();
    m.run(200 * MS);
    let sweep = started.elapsed();
    assert!(hcas.iter().all(|h| m.state(*h) == PortState::ACTIVE));
    let smps = m.sm.counters().get(Counter::SmpsSent);
    let started = Instant::now();
    m.run(Duration::from_secs(10));
    let light = started.elapsed();
    let join = |m: &Model, from: usize| {
        let record = McMemberRecord {
            mgid: broadcast(),
            port_gid: m.gid(from),
            p_key: PKey(0xffff),
            join_state: JoinState::FULL,
            ..McMemberRecord::default()
        };
        let (attr, mask) = (AttrId::MC_MEMBER_RECORD, mcmember::JOIN);
        request(
            m,
            from,
            SaMad::request(Method::SET, attr, mask, &record.emit(), 1),
        )
    };
    let requests = hcas.iter().map(|h| join(&m, *h)).collect();
    // One by one: the tables are made anew after each.
    let (joins, good) = serve(&mut m, requests, 1);
    assert_eq!(good, hosts, "joins");
    m.run(100 * MS);
    assert_eq!(m.multicast(hcas[1], Lid(0xc000)).len(), hosts - 1);
    let ask = |m: &Model, n: usize| {
        let (from, to) = (hcas[n % hosts], hcas[n.wrapping_mul(7919) % hosts]);
        let record = PathRecord {
            dgid: m.gid(to),
            sgid: m.gid(from),
            p_key: PKey(0xffff),
            numb_path: 1,
            ..PathRecord::default()
        };
        let (attr, mask) = (AttrId::PATH_RECORD, path_record::IPOIB_QUERY);
        request(
            m,
            from,
            SaMad::request(Method::GET, attr, mask, &record.emit(), n as u64),
        )
    };
    let requests = (0..QUERIES).map(|n| ask(&m, n)).collect();
    let (queries, good) = serve(&mut m, requests, 64);
    assert_eq!(good, QUERIES, "queries");
    Round {
        sweep,
        light,
        smps,
        joins,
        queries,
    }
}

fn median<R, T: Ord + Copy>(rounds: &[R], of: impl Fn(&R) -> T) -> T {
    let mut values: Vec<T> = rounds.iter().map(of).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

fn main() {
    let sizes: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() {
        vec![1000, 4500]
    } else {
        sizes
    };
    let up_down = RoutingEngine::UpDown { roots: Vec::new() };
    let configs: Vec<(&str, usize, SmConfig)> = sizes
        .iter()
        .flat_map(|hosts| {
            [
                ("min-hop", RoutingEngine::MinHop),
                ("up/down", up_down.clone()),
            ]
            .map(|(name, routing)| {
                let config = SmConfig {
                    routing,
                    ..SmConfig::default()
                };
                (name, *hosts, config)
            })
        })
        .collect();
    let mut rounds: Vec<Vec<Round>> = configs.iter().map(|_| Vec::new()).collect();
    let missing = real::missing();
    if let Some(package) = missing {
        eprintln!("SKIPPED: no figures of OpenSM: the Debian package {package} is not installed");
    }
    let managers = [By::Embedded, By::OpenSm];
    let managers = &managers[..if missing.is_none() { 2 } else { 1 }];
    let mut real: Vec<[Vec<Figures>; 2]> = vec![Default::default(); sizes.len()];
    for _ in 0..ROUNDS {
        for (&hosts, rounds) in sizes.iter().zip(&mut real) {
            for (&by, rounds) in managers.iter().zip(rounds) {
                rounds.push(real::round(by, &SmConfig::default(), hosts, CLIENT_QUERIES));
            }
        }
        for ((_, hosts, config), rounds) in configs.iter().zip(&mut rounds) {
            rounds.push(round(config.clone(), *hosts));
        }
    }
    println!("HCAs  routing  first sweep ms  SMPs    light sweep ms  joins/s  path queries/s");
    for ((name, hosts, _), rounds) in configs.iter().zip(&rounds) {
        let ms = |of: fn(&Round) -> Duration| median(rounds, of).as_secs_f64() * 1e3;
        println!(
            "{hosts:4}  {name:7}  {:14.0}  {:6}  {:14.1}  {:7.0}  {:14.0}",
            ms(|r| r.sweep),
            median(rounds, |r| r.smps),
            ms(|r| r.light),
            *hosts as f64 / median(rounds, |r| r.joins).as_secs_f64(),
            QUERIES as f64 / median(rounds, |r| r.queries).as_secs_f64(),
        );
    }
    println!("\nHCAs  manager   sweep ms  path queries/s of one client  requests/s of all at once");
    for ((&hosts, by), in_process) in sizes.iter().zip(&real).zip(rounds.chunks(2)) {
        let figures = by[..managers.len()].iter().map(|rounds| {
            let seconds = |of: fn(&Figures) -> Duration| median(rounds, of).as_secs_f64();
            let queries = f64::from(CLIENT_QUERIES) / seconds(|r| r.queries);
            (seconds(|r| r.sweep), queries, 1.0 / seconds(|r| r.crowd))
        });
        let figures: Vec<(f64, f64, f64)> = figures.collect();
        for (name, (sweep, queries, crowd)) in ["embedded", "OpenSM"].iter().zip(&figures) {
            let sweep = sweep * 1e3;
            println!("{hosts:4}  {name:8}  {sweep:8.0}  {queries:28.0}  {crowd:25.0}");
        }
        if let [own, opensm] = figures[..] {
            let in_process = QUERIES as f64 / median(&in_process[0], |r| r.queries).as_secs_f64();
            println!(
                "{hosts:4}  embedded to OpenSM: sweep {:.1} times as fast, queries {:.1} times as many through the fabric, {:.1} times in process, {:.1} times when all ask at once",
                opensm.0 / own.0,
                own.1 / opensm.1,
                in_process / opensm.1,
                own.2 / opensm.2
            );
        }
    }
}
