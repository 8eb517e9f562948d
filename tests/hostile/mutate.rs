//! Wrong in interesting ways: mutations of real packets and MADs.

use crate::net::Random;
use wire::mad::{MAD_LEN, MadBytes};
use wire::packet::Packet;

/// Values at the edges of what fields mean.
const EDGES: [u16; 16] = [
    0, 1, 2, 3, 0x00ff, 0x0100, 0x7fff, 0x8000, 0x8001, 0xbfff, 0xc000, 0xc001, 0xfffe, 0xffff,
    0x0011, 0x0038,
];

/// Changes `bytes`, perhaps with parts of `other`.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(6) {
        let len = bytes.len();
        if len < 4 {
            bytes.resize(4 + random.below(64), random.next() as u8);
            continue;
        }
        let at = random.below(len);
        match random.below(10) {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = random.next() as u8,
            3 => bytes[at] = EDGES[random.below(16)] as u8,
            4 | 5 => {
                let at = at.min(len - 2) & !1;
                bytes[at..at + 2].copy_from_slice(&EDGES[random.below(16)].to_be_bytes());
            }
            6 => {
                // The same place of another packet has the same meaning there.
                let end = (at + 1 + random.below(32)).min(len).min(other.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&other[at..end]);
                }
            }
            7 => {
                let end = (at + 1 + random.below(16)).min(len);
                bytes[at..end].fill([0, 0xff, random.next() as u8][random.below(3)]);
            }
            8 if random.below(4) == 0 => bytes.truncate(at),
            9 if random.below(4) == 0 => bytes.resize(len + random.below(600), random.next() as u8),
            _ => {
                let from = random.below(len);
                bytes[at] = bytes[from];
            }
        }
    }
}

/// A MAD like `seed`.
pub fn mad(random: &mut Random, seed: &MadBytes, other: &MadBytes) -> Box<MadBytes> {
    let mut bytes = seed.to_vec();
    mutate(random, &mut bytes, other);
    if random.below(8) == 0 {
        // The method, attribute and component mask decide most.
        let at = [3, 16, 17, 20, 23, 40, 52][random.below(7)];
        if let Some(byte) = bytes.get_mut(at) {
            *byte = random.next() as u8;
        }
    }
    bytes.resize(MAD_LEN, 0);
    bytes.try_into().expect("resized")
}

/// Makes a packet of `bytes` whose lengths and CRCs are right, if its headers allow that at all.
pub fn repair(bytes: &mut Vec<u8>) {
    bytes.truncate(2094);
    let words = bytes.len().saturating_sub(2) / 4;
    if words < 6 {
        return;
    }
    bytes.truncate(words * 4 + 2);
    let pkt_len = (words as u16).to_be_bytes();
    bytes[4] = bytes[4] & 0xf8 | pkt_len[0] & 7;
    bytes[5] = pkt_len[1];
    match bytes[1] & 3 {
        3 if words * 4 >= 8 + 40 => {
            bytes[8] = bytes[8] & 0xf | 0x60;
            let pay_len = (words * 4 - 8 - 40) as u16;
            bytes[12..14].copy_from_slice(&pay_len.to_be_bytes());
            bytes[14] = 0x1b;
        }
        // Raw packets and those that end in the GRH.
        0 | 1 | 3 => bytes[1] = bytes[1] & !3 | 2,
        _ => {}
    }
    let Ok(packet) = Packet::parse_unchecked(bytes) else {
        return;
    };
    let mut again = Vec::with_capacity(bytes.len());
    if (Packet {
        icrc: None,
        ..packet
    })
    .emit_into(&mut again)
    .is_ok()
    {
        *bytes = again;
    }
}

#[test]
fn repaired_packets_are_packets() {
    let mut random = Random(1);
    let (mut good, rounds) = (0, 10_000);
    for _ in 0..rounds {
        let mut bytes: Vec<u8> = (0..40 + random.below(300))
            .map(|_| random.next() as u8)
            .collect();
        repair(&mut bytes);
        good += u32::from(Packet::parse_strict(&bytes).is_ok());
    }
    assert!(good > rounds / 2, "{good}");
}
