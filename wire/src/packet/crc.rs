//! The two CRCs of a data packet and the one of a link packet (IBA 7.8).
//!
//! Both are stored least significant byte first, unlike every other field. The masks were proven on real frames.

/// Invariant CRC over LRH..pad of a packet, with the fields that change on the way taken as ones (IBA 7.8.1): without a GRH the VL and BTH byte
/// 4; with one the whole LRH, traffic class, flow label, hop limit and BTH byte 4.
///
/// `bytes` begins with the LRH and ends before the ICRC; whether there is a GRH is read from its LNH. Bytes that are too few for the headers are
/// hashed as they are.
pub fn icrc(bytes: &[u8]) -> u32 {
    let mut masked = [0u8; 60];
    let routed = bytes.get(1).is_some_and(|b| b & 3 == 3);
    let n = if routed { 60 } else { 20 }.min(bytes.len());
    masked[..n].copy_from_slice(&bytes[..n]);
    if routed {
        masked[..8].fill(0xff);
        masked[8] |= 0x0f;
        masked[9..12].fill(0xff);
        masked[15] = 0xff;
        masked[52] = 0xff;
    } else {
        masked[0] |= 0xf0;
        masked[12] = 0xff;
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&masked[..n]);
    hasher.update(&bytes[n..]);
    hasher.finalize()
}

/// x^16 + x^12 + x^3 + x + 1, reflected.
const POLYNOMIAL: u16 = 0xd008;

/// `TABLES[k][b]`: the register after byte `b` and `k` zero bytes. Sixteen bytes at a time then cost sixteen independent look-ups.
static TABLES: [[u16; 256]; 16] = {
    let mut tables = [[0u16; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 16 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
};

/// Variant CRC over LRH..ICRC (IBA 7.8.2); also the LPCRC over the first four bytes of a flow control packet (IBA 7.9.4).
pub fn vcrc(bytes: &[u8]) -> u16 {
    let (blocks, rest) = bytes.as_chunks();
    let crc = match blocks.split_last() {
        Some((last, blocks)) => update(0, &fold(blocks, last)),
        None => INITIAL,
    };
    !update(crc, rest)
}

const INITIAL: u16 = 0xffff;

/// Words of a block: the degree of the polynomial.
const WORDS: usize = 16;
const BLOCK: usize = WORDS * 8;

/// Reduces blocks, the initial register included, to one block with the same remainder.
///
/// Squaring a polynomial over GF(2) doubles its exponents, so modulo the CRC's polynomial not only x^16 = x^12 + x^3 + x + 1 but also
/// x^(16*64) = x^(12*64) + x^(3*64) + x^64 + 1: a word of 64 bits may be replaced by itself added to the words 4, 13, 15 and 16 later. Four
/// exclusive-ors for eight bytes are several times faster than tables, and the tables see the last block only.
fn fold(blocks: &[[u8; BLOCK]], last: &[u8; BLOCK]) -> [u8; BLOCK] {
    // Ring of the last 16 words, not yet replaced.
    let mut ring = [0u64; WORDS];
    ring[0] = u64::from(INITIAL);
    for block in blocks {
        for (n, word) in words(block).enumerate() {
            ring[n] ^=
                word ^ ring[(n + 12) % WORDS] ^ ring[(n + 3) % WORDS] ^ ring[(n + 1) % WORDS];
        }
    }
    let mut out = [0; BLOCK];
    for (n, word) in words(last).enumerate() {
        // Words of this block stay: only what came before is added.
        let before = |later: usize| ring.get(n + WORDS - later).copied().unwrap_or(0);
        let sum = word ^ ring[n] ^ before(15) ^ before(13) ^ before(4);
        out[n * 8..][..8].copy_from_slice(&sum.to_le_bytes());
    }
    out
}

fn words(block: &[u8; BLOCK]) -> impl Iterator<Item = u64> {
    block
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}

/// The register after `bytes`.
fn update(mut crc: u16, bytes: &[u8]) -> u16 {
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        let [low, high] = crc.to_le_bytes();
        let first = TABLES[15][usize::from(block[0] ^ low)];
        let mut next = first ^ TABLES[14][usize::from(block[1] ^ high)];
        for (at, byte) in block.iter().enumerate().skip(2) {
            next ^= TABLES[15 - at][usize::from(*byte)];
        }
        crc = next;
    }
    for byte in rest {
        crc = crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA's sample packet for the ICRC, its mask already applied.
    const SAMPLE: [u8; 52] = [
        0xf0, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0xff, 0x87, 0xb1,
        0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2,
        0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72,
        0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
    ];

    #[test]
    fn icrc_of_the_sample() {
        assert_eq!(icrc(&SAMPLE).to_le_bytes(), [0x96, 0x25, 0xb7, 0x5a]);
        let mut unmasked = SAMPLE;
        unmasked[0] = 0x70;
        unmasked[12] = 0x00;
        assert_eq!(icrc(&unmasked), 0x5ab7_2596);
    }

    fn bitwise(bytes: &[u8]) -> u16 {
        !bytes.iter().fold(0xffff, |crc, &byte| {
            (0..8).fold(crc ^ u16::from(byte), |crc, _| {
                if crc & 1 != 0 {
                    crc >> 1 ^ POLYNOMIAL
                } else {
                    crc >> 1
                }
            })
        })
    }

    #[test]
    fn equals_the_bitwise_definition() {
        let bytes: Vec<u8> = (0..900u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        for start in 0..20 {
            for end in (start..900).step_by(7) {
                assert_eq!(
                    vcrc(&bytes[start..end]),
                    bitwise(&bytes[start..end]),
                    "{start}..{end}"
                );
            }
        }
    }

    #[test]
    fn short_input_does_not_panic() {
        for n in 0..70 {
            icrc(&vec![3; n]);
            vcrc(&vec![3; n]);
        }
    }
}
