//! The fuzzers' targets on stable Rust: over the corpus, and over mutations of it.

use crate::mutate::mutate;
use crate::net::Random;
use crate::targets::{self, record};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::packet::Packet;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target)
}

fn replay(target: &str, run: fn(&[u8]), mutations: usize) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let corpus: Vec<Vec<u8>> = files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    assert!(corpus.len() >= 3, "{target}: {} files", corpus.len());
    run(&[]);
    corpus.iter().for_each(|input| run(input));
    for seed in 0..mutations as u64 {
        let mut random = Random(seed);
        let mut input = corpus[random.below(corpus.len())].clone();
        let other = &corpus[random.below(corpus.len())];
        mutate(&mut random, &mut input, other);
        if let Err(panic) = std::panic::catch_unwind(|| run(&input)) {
            eprintln!("{target}: mutation {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn packet_parse() {
    replay("packet_parse", targets::packet_parse, 100_000);
}

#[test]
fn mad_parse() {
    replay("mad_parse", targets::mad_parse, 100_000);
}

#[test]
fn sm() {
    replay("sm", targets::sm, 1000);
}

#[test]
fn interface() {
    replay("interface", targets::interface, 1000);
}

#[test]
fn datagram() {
    replay("datagram", targets::datagram, 1000);
}

/// The packets of a bring-up with pings, without repetitions of the same kind and size.
pub fn bring_up() -> Vec<Vec<u8>> {
    let mut sim = crate::sim::Sim::new(1);
    sim.add_switch(4);
    sim.frames = Some(Vec::new());
    sim.start_sm(
        crate::sim::SmPlace::Switch(0),
        fabric::sm::SmConfig::default(),
    );
    for h in 0..3 {
        sim.add_host(0);
        sim.start(h);
    }
    sim.run_for(Duration::from_secs(1));
    for h in 0..3 {
        for to in [crate::host::v4((h + 1) % 3), crate::host::v6((h + 1) % 3)] {
            sim.ping(h, to);
            sim.run_for(Duration::from_millis(500));
        }
    }
    sim.kill(2, crate::net::Death::Noticed);
    sim.run_for(Duration::from_secs(40));
    sim.frames.take().unwrap()
}

/// The MADs of packets.
pub fn mads(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, bool)> {
    let mad = |frame: &Vec<u8>| {
        let packet = Packet::parse(frame).ok()?;
        (packet.bth.dest_qp.0 < 2 && packet.payload.len() == 256)
            .then(|| (packet.payload.to_vec(), packet.bth.dest_qp.0 == 0))
    };
    frames.iter().filter_map(mad).collect()
}

/// Makes the corpus: `cargo test --test hostile write_the_corpus -- --ignored`. By hand, after the formats changed.
#[test]
#[ignore = "writes into the source tree"]
fn write_the_corpus() {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(folder(target)).unwrap();
        std::fs::write(folder(target).join(name), bytes).unwrap();
    };
    let frames = bring_up();
    let mut kinds = std::collections::BTreeMap::new();
    for frame in &frames {
        let packet = Packet::parse(frame).unwrap();
        let kind = match packet.bth.dest_qp.0 {
            qp @ 0..2 => format!(
                "qp{qp}-{:02x}-{:02x}{:02x}",
                packet.payload[3], packet.payload[16], packet.payload[17]
            ),
            _ => format!(
                "ip-{:02x}{:02x}-{}",
                packet.payload[0],
                packet.payload[1],
                packet.payload.len()
            ),
        };
        kinds.entry(kind).or_insert_with(|| frame.clone());
    }
    let (mut all_sm, mut all_interface, mut all_datagram) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, frame) in &kinds {
        let packet = Packet::parse(frame).unwrap();
        let qp = packet.bth.dest_qp.0;
        write("packet_parse", kind, frame);
        all_datagram.extend(record(1, 2, frame));
        if qp < 2 {
            write("mad_parse", kind, packet.payload);
            let (kind, pause) = (if qp == 0 { 8 } else { 0 }, record(0xff, 1, &[]));
            all_sm.extend([record(kind, 1, packet.payload), pause].concat());
            all_interface.extend(
                [
                    record(kind, 2, packet.payload),
                    record(kind | 5, 2, packet.payload),
                    record(kind | 6, 2, packet.payload),
                ]
                .concat(),
            );
        } else {
            let kind = match packet.payload[..2] {
                [8, 6] => 1,
                _ if packet.payload.get(10) == Some(&58) => 2,
                _ => 3,
            };
            all_interface.extend(record(kind, 1, &packet.payload[4..]));
        }
    }
    // In pieces: a fuzzer does best with small files.
    for (target, all) in [
        ("sm", all_sm),
        ("interface", all_interface),
        ("datagram", all_datagram),
    ] {
        let mut pieces = vec![Vec::new()];
        let mut at = 0;
        while at < all.len() {
            let len = 4 + usize::from(u16::from_le_bytes([all[at + 2], all[at + 3]]));
            if pieces.last().unwrap().len() > 1500 {
                pieces.push(Vec::new());
            }
            pieces.last_mut().unwrap().extend(&all[at..at + len]);
            at += len;
        }
        for (n, piece) in pieces.iter().enumerate() {
            write(target, &format!("bring-up-{n}"), piece);
        }
    }
}
