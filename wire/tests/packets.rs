//! Properties of packets: nothing panics, what is written is read back, what is flipped is noticed.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use wire::describe::{describe, reemit};
use wire::id::{Gid, Lid, PKey, Psn, QKey, Qpn, ServiceLevel};
use wire::ipoib::nd::{NdOptions, NdPacket};
use wire::ipoib::{ArpPacket, EtherType, IpoibMgid, LinkAddress};
use wire::packet::{
    Aeth, AtomicEth, Bth, Deth, EmitError, Extended, FlowControl, Grh, HeaderSet, Lrh, Lso,
    MAX_WIRE_LEN, Opcode, Packet, PacketError, Reth, vcrc_ok,
};

fn lrh() -> impl Strategy<Value = Lrh> {
    (0..16u8, 0..16u8, 0..16u8, any::<u16>(), any::<u16>()).prop_map(
        |(vl, lver, sl, dlid, slid)| Lrh {
            vl,
            lver,
            sl: ServiceLevel(sl),
            dlid: Lid(dlid),
            slid: Lid(slid),
        },
    )
}

fn grh() -> impl Strategy<Value = Grh> {
    (
        any::<u8>(),
        0..1u32 << 20,
        any::<u8>(),
        any::<[u8; 16]>(),
        any::<[u8; 16]>(),
    )
        .prop_map(|(traffic_class, flow_label, hop_limit, sgid, dgid)| Grh {
            traffic_class,
            flow_label,
            hop_limit,
            sgid: Gid(sgid),
            dgid: Gid(dgid),
        })
}

fn bth() -> impl Strategy<Value = Bth> {
    let opcode =
        prop_oneof![3 => prop::sample::select(Opcode::ALL), 1 => any::<u8>().prop_map(Opcode)];
    (
        opcode,
        any::<[bool; 3]>(),
        0..16u8,
        any::<u16>(),
        any::<u8>(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(
            |(opcode, [solicited, mig_req, ack_req], tver, p_key, resv8a, qpn, psn)| Bth {
                opcode,
                solicited,
                mig_req,
                tver,
                p_key: PKey(p_key),
                resv8a,
                dest_qp: Qpn::new(qpn),
                ack_req,
                psn: Psn::new(psn),
            },
        )
}

/// The headers of `set` filled from arbitrary numbers.
fn extended(set: HeaderSet, a: u64, b: u64, c: u32, d: u32) -> Extended {
    let has = |header| set.contains(header);
    Extended {
        deth: has(HeaderSet::DETH).then_some(Deth {
            q_key: QKey(c),
            src_qp: Qpn::new(d),
        }),
        reth: has(HeaderSet::RETH).then_some(Reth {
            virtual_address: a,
            r_key: c,
            dma_length: d,
        }),
        atomic: has(HeaderSet::ATOMIC).then_some(AtomicEth {
            virtual_address: a,
            r_key: c,
            swap_or_add: b,
            compare: !a,
        }),
        aeth: has(HeaderSet::AETH).then_some(Aeth {
            syndrome: a as u8,
            msn: d & 0xff_ffff,
        }),
        atomic_ack: has(HeaderSet::ATOMIC_ACK).then_some(b),
        immediate: has(HeaderSet::IMMEDIATE).then_some(!c),
        invalidate_r_key: has(HeaderSet::INVALIDATE).then_some(!d),
    }
}

/// Packets without payload; the payload comes beside.
fn packet() -> impl Strategy<Value = (Packet<'static>, Vec<u8>)> {
    let numbers = any::<(u64, u64, u32, u32)>();
    (
        lrh(),
        prop::option::of(grh()),
        bth(),
        numbers,
        prop::collection::vec(any::<u8>(), 0..200),
    )
        .prop_map(|(lrh, grh, bth, (a, b, c, d), payload)| {
            let ext = extended(bth.opcode.headers(), a, b, c, d);
            (
                Packet {
                    lrh,
                    grh,
                    bth,
                    ext,
                    payload: &[],
                    lso: None,
                    icrc: None,
                    hops: 0,
                },
                payload,
            )
        })
}

fn emit(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.emit_into(&mut bytes).unwrap();
    bytes
}

/// Byte offset of the BTH.
fn bth_at(packet: &Packet<'_>) -> usize {
    if packet.grh.is_some() { 48 } else { 8 }
}

/// Is bit `bit` (from the most significant bit of byte 0) outside the ICRC, by IBA 7.8.1?
fn outside_icrc(packet: &Packet<'_>, len: usize, bit: usize) -> bool {
    let byte = bit / 8;
    let anywhere = byte >= len - 2 || byte == bth_at(packet) + 4;
    let routed = byte < 8 || (68..96).contains(&bit) || byte == 15;
    anywhere
        || if packet.grh.is_some() {
            routed
        } else {
            bit < 4
        }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_written_is_read_back((headers, payload) in packet()) {
        let packet = Packet { payload: &payload, ..headers };
        let bytes = emit(&packet);
        prop_assert_eq!(bytes.len(), packet.wire_len());
        let read = Packet::parse_strict(&bytes).unwrap();
        prop_assert!(read.icrc.is_some());
        prop_assert_eq!(Packet { icrc: None, ..read }, packet);
        prop_assert_eq!(emit(&read), bytes.clone());
        prop_assert_eq!(reemit(&bytes).unwrap().len(), bytes.len());
    }

    #[test]
    fn a_flipped_bit_is_noticed((headers, payload) in packet(), bit in any::<prop::sample::Index>()) {
        let packet = Packet { payload: &payload, ..headers };
        let mut bytes = emit(&packet);
        let len = bytes.len();
        let bit = bit.index(len * 8);
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        prop_assert!(!vcrc_ok(&bytes));
        prop_assert!(Packet::parse_strict(&bytes).is_err());
        // LNH, PktLen, IPVer, NxtHdr and PayLen are checked by themselves, the first two even where the ICRC leaves them out.
        let found = Packet::parse(&bytes);
        let structural = (14..16).contains(&bit) || (37..48).contains(&bit);
        if outside_icrc(&packet, len, bit) && !structural {
            prop_assert!(found.is_ok(), "bit {bit}: {found:?}");
        } else {
            prop_assert!(found.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_icrc_from_outside_stays((headers, payload) in packet(), vl in 0..16u8, resv8a in any::<u8>()) {
        let first = emit(&Packet { payload: &payload, ..headers });
        let mut onward = Packet::parse(&first).unwrap();
        onward.lrh.vl = vl;
        onward.bth.resv8a = resv8a;
        prop_assert!(Packet::parse_strict(&emit(&onward)).is_ok());
    }

    #[test]
    fn reserved_bits_do_not_spoil_the_icrc((headers, payload) in packet(), which in 0..4usize) {
        let packet = Packet { payload: &payload, ..headers };
        let mut bytes = emit(&packet);
        let bth = bth_at(&packet);
        // LRH reserved bits, BTH reserved bits, and the last byte before the ICRC: pad, if there is any.
        let len = bytes.len();
        let (at, bits) = [(1, 0x0c), (4, 0xf8), (bth + 8, 0x7f), (len - 7, 0xff)][which];
        if which == 3 && payload.len().is_multiple_of(4) {
            return Ok(());
        }
        bytes[at] |= bits;
        let icrc = wire::packet::crc::icrc(&bytes[..len - 6]);
        bytes[len - 6..len - 2].copy_from_slice(&icrc.to_le_bytes());
        let read = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(Packet { icrc: None, ..read }, packet);
        prop_assert!(Packet::parse_strict(&emit(&read)).is_ok());
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
        let _ = Packet::parse(&bytes);
        let _ = Packet::parse_unchecked(&bytes);
        let _ = FlowControl::parse(&bytes);
        let _ = ArpPacket::parse(&bytes);
        let _ = NdPacket::parse(&bytes);
        let _ = NdOptions::parse(&bytes);
        let _ = (vcrc_ok(&bytes), describe(&bytes), reemit(&bytes));
        for kind in [EtherType::IPV4, EtherType::ARP, EtherType::IPV6] {
            wire::describe::describe_ipoib(kind, &bytes);
        }
    }

    /// Bytes that pass the first checks, so that the later ones are reached.
    #[test]
    fn likely_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 26..300), routed: bool, opcode in prop::sample::select(Opcode::ALL)) {
        bytes.truncate(bytes.len() / 4 * 4 + 2);
        if bytes.len() < 26 {
            return Ok(());
        }
        bytes[1] = bytes[1] & !3 | if routed { 3 } else { 2 };
        let words = (bytes.len() / 4) as u16;
        bytes[4..6].copy_from_slice(&words.to_be_bytes());
        if routed && bytes.len() >= 62 {
            bytes[8] = 0x60;
            let pay_len = (bytes.len() - 50) as u16;
            bytes[12..14].copy_from_slice(&pay_len.to_be_bytes());
            bytes[14] = 0x1b;
            bytes[48] = opcode.0;
        } else {
            bytes[8] = opcode.0;
        }
        if let Ok(packet) = Packet::parse_unchecked(&bytes) {
            wire::describe::describe_packet(&packet);
            prop_assert!(packet.wire_len() <= bytes.len());
            let again = emit(&Packet { icrc: None, ..packet });
            prop_assert!(Packet::parse_strict(&again).is_ok());
            prop_assert!(reemit(&bytes).is_ok());
        }
    }

    /// IPv6 packets that look like ND.
    #[test]
    fn likely_nd_is_survived(mut ip in prop::collection::vec(any::<u8>(), 41..200), kind in 130..140u8) {
        let len = (ip.len() - 40) as u16;
        (ip[0], ip[6], ip[7], ip[40]) = (0x60, 58, 255, kind);
        ip[4..6].copy_from_slice(&len.to_be_bytes());
        let _ = NdPacket::parse(&ip);
    }

    #[test]
    fn addresses_roundtrip(bytes: [u8; 20], gid: [u8; 16]) {
        let address = LinkAddress::from_bytes(&bytes);
        prop_assert_eq!(address.to_bytes(), bytes);
        prop_assert_eq!(address.to_string().parse(), Ok(address));
        let mut gid = Gid(gid);
        let _ = IpoibMgid::parse(gid);
        let signature = if gid.0[2] & 1 == 0 { 0x40 } else { 0x60 };
        gid.0[..4].copy_from_slice(&[0xff, 0x12, signature, 0x1b]);
        prop_assert_eq!(IpoibMgid::parse(gid).unwrap().gid(), gid);
    }
}

fn plain(payload: &[u8]) -> Packet<'_> {
    let bth = Bth {
        opcode: Opcode::RC_SEND_ONLY,
        ..Bth::default()
    };
    Packet {
        lrh: Lrh::default(),
        grh: None,
        bth,
        ext: Extended::default(),
        payload,
        lso: None,
        icrc: None,
        hops: 0,
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    let mut out = vec![7];
    let big = vec![0; MAX_WIRE_LEN];
    assert_eq!(
        plain(&big).emit_into(&mut out),
        Err(EmitError::TooLong(8218))
    );
    let longest = plain(&big[..MAX_WIRE_LEN - 26]);
    assert_eq!(longest.wire_len(), MAX_WIRE_LEN);
    assert_eq!(
        Packet {
            lso: Some(Lso {
                header_len: 1,
                mss: 1
            }),
            ..plain(&[])
        }
        .emit_into(&mut out),
        Err(EmitError::SuperPacket)
    );
    let ud = Bth {
        opcode: Opcode::UD_SEND_ONLY,
        ..Bth::default()
    };
    assert_eq!(
        Packet {
            bth: ud,
            ..plain(&[])
        }
        .emit_into(&mut out),
        Err(EmitError::ExtendedHeaders(Opcode::UD_SEND_ONLY))
    );
    assert_eq!(
        plain(&[1]).emit(&mut [0; 29]),
        Err(EmitError::Buffer { need: 30, have: 29 })
    );
    assert_eq!(out, [7]);
    longest.emit_into(&mut out).unwrap();
    assert!(Packet::parse_strict(&out[1..]).is_ok());
}

#[test]
fn each_check_names_its_fact() {
    let grh = Grh::default();
    let good = emit(&Packet {
        grh: Some(grh),
        ..plain(&[1, 2, 3])
    });
    let with = |at: usize, value| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Packet::parse(&bytes).unwrap_err()
    };
    assert_eq!(with(1, 1), PacketError::RawPacket(1));
    assert_eq!(
        with(5, 1),
        PacketError::Length {
            stated: 4,
            actual: 68
        }
    );
    assert_eq!(with(8, 0x40), PacketError::GrhVersion(4));
    assert_eq!(with(14, 17), PacketError::GrhNextHeader(17));
    assert_eq!(
        with(13, 16),
        PacketError::GrhLength {
            stated: 16,
            actual: 20
        }
    );
    assert_eq!(
        with(48, Opcode::RC_COMPARE_SWAP.0),
        PacketError::Truncated {
            len: 70,
            need: 94,
            opcode: Some(Opcode::RC_COMPARE_SWAP)
        }
    );
    assert!(matches!(with(60, 9), PacketError::BadIcrc { .. }));
    let mut empty = emit(&plain(&[]));
    empty[9] |= 0x30;
    assert_eq!(
        Packet::parse(&empty),
        Err(PacketError::PadCount { pad: 3, payload: 0 })
    );
    for len in 0..26 {
        assert_eq!(
            Packet::parse(&good[..len]),
            Err(PacketError::Truncated {
                len,
                need: 26,
                opcode: None
            })
        );
    }
}
