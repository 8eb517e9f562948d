//! Real frames of others, read from outside the repository: each must parse, have right CRCs and come out of its typed form unchanged.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use wire::describe::{describe, reemit};
use wire::ipoib::{ArpPacket, EncapHeader, EtherType};
use wire::packet::{FlowControl, Packet};

/// A file or folder of the shared data, `None` (and a loud line) where there is none.
fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")).join(path);
    if !path.exists() {
        eprintln!("SKIPPED: {} is absent", path.display());
        return None;
    }
    Some(path)
}

/// Link type and records of a pcap file of either byte order.
fn pcap(path: &Path) -> (u32, Vec<Vec<u8>>) {
    let bytes = std::fs::read(path).unwrap();
    let little = bytes[..4] == [0xd4, 0xc3, 0xb2, 0xa1];
    let word = |at: usize| {
        let word = bytes[at..at + 4].try_into().unwrap();
        if little {
            u32::from_le_bytes(word)
        } else {
            u32::from_be_bytes(word)
        }
    };
    let (mut at, mut records) = (24, Vec::new());
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        records.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    (word(20), records)
}

/// The InfiniBand frames of a capture of link type 197 with ERF records of type 21.
fn erf_frames(path: &Path) -> Vec<Vec<u8>> {
    let (link_type, records) = pcap(path);
    assert_eq!(link_type, 197, "{}", path.display());
    let frame = |record: &Vec<u8>| {
        assert_eq!(record[8], 21, "ERF type");
        let wire_len = usize::from(u16::from_be_bytes([record[14], record[15]]));
        record[16..16 + wire_len].to_vec()
    };
    records.iter().map(frame).collect()
}

fn check(name: &str, frame: &[u8]) {
    if frame.len() == FlowControl::LEN {
        FlowControl::parse(frame).unwrap_or_else(|e| panic!("{name}: {e}"));
    } else {
        let packet = Packet::parse_strict(frame).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(packet.wire_len(), frame.len(), "{name}");
        let mut again = Vec::new();
        packet.emit_into(&mut again).unwrap();
        assert_eq!(again, frame, "{name}");
        let mut fresh = Vec::new();
        Packet {
            icrc: None,
            ..packet
        }
        .emit_into(&mut fresh)
        .unwrap();
        assert_eq!(fresh, frame, "{name}");
    }
    let line = describe(frame);
    assert!(!line.contains("malformed"), "{name}: {line}");
    assert_eq!(reemit(frame).as_deref(), Ok(frame), "{name}: {line}");
}

#[test]
fn a_fabric_of_2008() {
    let Some(path) = shared("captures/wiki-infiniband.pcap") else {
        return;
    };
    let frames = erf_frames(&path);
    assert_eq!(frames.len(), 43);
    for (n, frame) in frames.iter().enumerate() {
        check(&format!("frame {}", n + 1), frame);
    }
    let lines: Vec<String> = frames.iter().map(|f| describe(f)).collect();
    let count = |word: &str| lines.iter().filter(|l| l.contains(word)).count();
    assert_eq!(
        (
            count(" ARP "),
            count(" IPv4 "),
            count(" IPv6 "),
            count("RC_ACK"),
            count(" GRH ")
        ),
        (2, 10, 5, 9, 6),
        "{lines:#?}"
    );
    assert!(
        lines[25].contains(" NS ") && lines[29].contains(" N"),
        "{lines:#?}"
    );

    let request = Packet::parse(&frames[4]).unwrap();
    assert_eq!(
        request.grh.unwrap().dgid.to_string(),
        "ff12:401b:ffff::ffff:ffff"
    );
    let (kind, rest) = EncapHeader::split(request.payload).unwrap();
    let arp = ArpPacket::parse(rest).unwrap();
    assert_eq!(kind, EtherType::ARP);
    assert_eq!(
        arp.sender_hw.to_string(),
        "80:00:04:05:fe:80:00:00:00:00:00:00:00:02:c9:02:00:24:f6:36"
    );
    assert!(arp.target_hw.is_zero());
}

#[test]
fn linux_kernels_on_both_sides() {
    let Some(folder) = shared("kernel-peer/captures") else {
        return;
    };
    let mut frames_seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        for (n, frame) in erf_frames(&path).iter().enumerate() {
            check(&format!("{} frame {}", path.display(), n + 1), frame);
            frames_seen += 1;
        }
    }
    assert!(frames_seen > 900, "{frames_seen}");
}

#[test]
fn one_frame_of_each_kind() {
    let Some(folder) = shared("kernel-peer/vectors") else {
        return;
    };
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "hex") {
            let text = std::fs::read_to_string(&path).unwrap();
            let frame: Vec<u8> = text
                .split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                .collect();
            check(&path.display().to_string(), &frame);
            seen += 1;
        }
    }
    assert!(seen >= 50, "{seen}");
}

/// Link type 242: 20 bytes, destination link address, encapsulation header, payload.
#[test]
fn arp_of_solaris() {
    let Some(path) = shared("captures/tcpdump-ipoib.pcap") else {
        return;
    };
    let (link_type, records) = pcap(&path);
    assert_eq!((link_type, records.len()), (242, 30));
    let mut arps = 0;
    for record in &records {
        let (kind, rest) = EncapHeader::split(&record[40..]).unwrap();
        if kind == EtherType::ARP {
            let arp = ArpPacket::parse(rest).unwrap();
            assert_eq!(arp.emit()[..], rest[..ArpPacket::LEN], "{arp}");
            arps += 1;
        }
    }
    assert_eq!(arps, 4);
}
