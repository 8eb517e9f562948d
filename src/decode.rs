//! `ipoib decode`: the frames of a capture file in words, each with a proof that it was understood.
//!
//! The proof is that a frame, taken apart into typed values and written again from those with CRCs of our own, has the same bytes.

use crate::cli;
use crate::show::table::clean;
use anyhow::{Context, anyhow};
use fabric::link::pcap::{LinkType, PcapError, PcapFrame, PcapReader};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use wire::describe;
use wire::ipoib::{ENCAP_LEN, EncapHeader, LinkAddress};
use wire::packet::{FlowControl, Packet, PacketError, vcrc_ok};

/// Bytes in front of the destination's link address in a frame of link type 242; what they mean is up to the system that captured.
const IPOIB_PREFIX: usize = 20;

/// Runs `ipoib decode`: exit code 1 if a frame was not understood, has a wrong CRC or comes out different.
///
/// # Errors
/// The file cannot be read, or not to its end.
pub fn run(args: &cli::Decode) -> anyhow::Result<ExitCode> {
    let from: Box<dyn Read> = if args.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.file)
            .with_context(|| format!("cannot open {}", args.file.display()))?;
        Box::new(BufReader::new(file))
    };
    let mut tally = Tally::default();
    match decode(from, args.json, &mut io::stdout().lock(), &mut tally) {
        Ok(()) => Ok(tally.exit_code()),
        // Whoever read has seen enough.
        Err(Failure::Write(error)) if error.kind() == ErrorKind::BrokenPipe => {
            Ok(tally.exit_code())
        }
        Err(Failure::Write(error)) => Err(error).context("cannot write the result"),
        Err(Failure::Read(error)) => {
            let after = match tally.frames {
                0 => String::new(),
                n => format!(" after frame {n}"),
            };
            Err(anyhow!("{}{after}: {error}", args.file.display()))
        }
    }
}

#[derive(Debug)]
enum Failure {
    Read(PcapError),
    Write(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Write(error)
    }
}

/// What was found so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    frames: u64,
    crcs_right: u64,
    unchanged: u64,
    with_problems: u64,
}

impl Tally {
    fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.with_problems > 0))
    }

    fn summary(&self, link_type: LinkType) -> String {
        let crcs = match link_type {
            LinkType::Erf => format!(", {} with right ICRC and VCRC", self.crcs_right),
            LinkType::Ipoib => " (IPoIB, without CRCs)".into(),
        };
        format!(
            "{} frames{crcs}, {} re-emitted unchanged",
            self.frames, self.unchanged
        )
    }
}

fn decode(
    from: impl Read,
    json: bool,
    out: &mut impl Write,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let reader = PcapReader::new(from).map_err(Failure::Read)?;
    let link_type = reader.link_type();
    let mut first = None;
    for frame in reader {
        let (time, length, checked) = match frame {
            Ok(frame) => (
                Some(frame.time),
                frame.bytes.len() + frame.missing,
                Checked::of(&frame, link_type),
            ),
            // Such a record can be skipped.
            Err(error @ (PcapError::RecordType(_) | PcapError::RecordTooShort(_))) => {
                (None, 0, Checked::unreadable(error.to_string()))
            }
            Err(error) => {
                return Err(Failure::Read(error));
            }
        };
        tally.frames += 1;
        tally.crcs_right += u64::from(checked.crcs_right == Some(true));
        tally.unchanged += u64::from(checked.unchanged);
        tally.with_problems += u64::from(!checked.problems.is_empty());
        let seconds = time.map(|time| seconds_between(*first.get_or_insert(time), time));
        if json {
            let object = serde_json::json!({
                "frame": tally.frames,
                "seconds": seconds,
                "bytes": length,
                "text": checked.text,
                "crcs_right": checked.crcs_right,
                "unchanged": checked.unchanged,
                "problems": checked.problems,
            });
            writeln!(out, "{object}")?;
        } else {
            let seconds = seconds.map_or("?".into(), |s| format!("{s:.6}"));
            write!(
                out,
                "{:>5} {seconds:>11} {}",
                tally.frames,
                clean(&checked.text)
            )?;
            if !checked.problems.is_empty() {
                write!(out, " ** {}", checked.problems.join("; "))?;
            }
            writeln!(out)?;
        }
    }
    if !json {
        writeln!(out, "{}", tally.summary(link_type))?;
    }
    Ok(out.flush()?)
}

/// Captures of several ports may go back in time.
fn seconds_between(first: SystemTime, time: SystemTime) -> f64 {
    match time.duration_since(first) {
        Ok(later) => later.as_secs_f64(),
        Err(earlier) => -earlier.duration().as_secs_f64(),
    }
}

/// A frame, looked at.
#[derive(Debug)]
struct Checked {
    text: String,
    /// `None`: a frame without CRCs, or too damaged to tell where they are.
    crcs_right: Option<bool>,
    unchanged: bool,
    problems: Vec<String>,
}

impl Checked {
    fn of(frame: &PcapFrame, link_type: LinkType) -> Self {
        if frame.missing > 0 {
            return Self::unreadable(format!(
                "{} of {} bytes were not captured",
                frame.missing,
                frame.missing + frame.bytes.len()
            ));
        }
        match link_type {
            LinkType::Erf => Self::infiniband(&frame.bytes),
            LinkType::Ipoib => Self::ipoib(&frame.bytes),
        }
    }

    /// What cannot be understood at all.
    fn unreadable(problem: String) -> Self {
        Checked {
            text: "not understood".into(),
            crcs_right: None,
            unchanged: false,
            problems: vec![problem],
        }
    }

    /// LRH through VCRC, or a flow control packet.
    fn infiniband(bytes: &[u8]) -> Self {
        if bytes.len() == FlowControl::LEN {
            return match FlowControl::parse(bytes) {
                Ok(packet) => {
                    let text = describe::describe(bytes);
                    Checked {
                        crcs_right: Some(true),
                        ..Self::compare(text, bytes, &packet.emit(), vec![])
                    }
                }
                Err(error) => Self::unreadable(error.to_string()),
            };
        }
        // In words also where a CRC is wrong.
        let text = match Packet::parse_unchecked(bytes) {
            Ok(packet) => describe::describe_packet(&packet),
            Err(error) => return Self::unreadable(error.to_string()),
        };
        let mut problems = Vec::new();
        if let Err(error @ PacketError::BadIcrc { .. }) = Packet::parse(bytes) {
            problems.push(error.to_string());
        }
        if !vcrc_ok(bytes) {
            problems.push("VCRC is wrong".into());
        }
        let crcs_right = problems.is_empty();
        let checked = match describe::reemit(bytes) {
            Ok(again) => Self::compare(text, bytes, &again, problems),
            Err(error) => {
                problems.push(format!("cannot be re-emitted: {error}"));
                Checked {
                    text,
                    crcs_right: None,
                    unchanged: false,
                    problems,
                }
            }
        };
        Checked {
            crcs_right: Some(crcs_right),
            ..checked
        }
    }

    /// 20 bytes of a system's own, the destination's link address, the encapsulation header and what it names.
    fn ipoib(bytes: &[u8]) -> Self {
        let parts = bytes
            .split_at_checked(IPOIB_PREFIX)
            .and_then(|(prefix, rest)| {
                let (address, rest) = rest.split_first_chunk::<{ LinkAddress::LEN }>()?;
                let (kind, rest) = EncapHeader::split(rest)?;
                Some((prefix, LinkAddress::from_bytes(address), kind, rest))
            });
        let Some((prefix, to, kind, rest)) = parts else {
            let headers = IPOIB_PREFIX + LinkAddress::LEN + ENCAP_LEN;
            return Self::unreadable(format!(
                "{} bytes, but the headers take {headers}",
                bytes.len()
            ));
        };
        let again = [prefix, &to.to_bytes(), &describe::reemit_ipoib(kind, rest)].concat();
        let text = format!(
            "-> qp 0x{:x} {} {}",
            to.qpn.0,
            to.gid,
            describe::describe_ipoib(kind, rest)
        );
        Self::compare(text, bytes, &again, vec![])
    }

    /// Adds to `problems` where `again` is not `bytes`.
    fn compare(text: String, bytes: &[u8], again: &[u8], mut problems: Vec<String>) -> Self {
        if text.contains("malformed: ") {
            problems.push("the payload is not understood".into());
        }
        let different = bytes.iter().zip(again).filter(|(a, b)| a != b).count();
        if let Some(at) = bytes.iter().zip(again).position(|(a, b)| a != b) {
            let (have, made) = (bytes[at], again[at]);
            let more = if different > 1 {
                format!(" ({} more differ)", different - 1)
            } else {
                String::new()
            };
            problems.push(format!(
                "byte {at} is 0x{have:02x}, re-emitted 0x{made:02x}{more}"
            ));
        }
        if bytes.len() != again.len() {
            problems.push(format!("{} bytes, re-emitted {}", bytes.len(), again.len()));
        }
        Checked {
            text,
            crcs_right: None,
            unchanged: bytes == again,
            problems,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::link::pcap::PcapWriter;
    use std::time::{Duration, UNIX_EPOCH};
    use wire::packet::{Bth, Deth, Extended, Lrh, Opcode};
    use wire::{Lid, PKey, QKey, Qpn};

    /// What is printed about the bytes of a capture file, and what was found.
    fn decoded(file: &[u8], json: bool) -> (String, Tally, Option<String>) {
        let (mut out, mut tally) = (Vec::new(), Tally::default());
        let error = match decode(file, json, &mut out, &mut tally) {
            Ok(()) => None,
            Err(Failure::Read(error)) => Some(error.to_string()),
            Err(Failure::Write(error)) => panic!("a vector takes all: {error}"),
        };
        (String::from_utf8(out).expect("text"), tally, error)
    }

    fn file(frames: &[&[u8]]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = PcapWriter::new(&mut file).expect("head");
        for (n, frame) in frames.iter().enumerate() {
            let time =
                UNIX_EPOCH + Duration::from_secs(1000) + Duration::from_millis(n as u64 * 250);
            writer.write(time, frame).expect("frame");
        }
        file
    }

    /// A UD packet with an IPv4 echo request.
    fn frame() -> Vec<u8> {
        let mut payload = vec![
            0x08, 0, 0, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        payload.extend([8, 0, 0, 0, 0, 0, 0, 0]);
        let mut bytes = Vec::new();
        Packet {
            lrh: Lrh {
                slid: Lid(1),
                dlid: Lid(2),
                ..Lrh::default()
            },
            bth: Bth {
                opcode: Opcode::UD_SEND_ONLY,
                p_key: PKey::DEFAULT_FULL,
                dest_qp: Qpn(0x48),
                ..Bth::default()
            },
            ext: Extended {
                deth: Some(Deth {
                    q_key: QKey(0xb1b),
                    src_qp: Qpn(0x49),
                }),
                ..Extended::default()
            },
            payload: &payload,
            ..Packet::default()
        }
        .emit_into(&mut bytes)
        .expect("fits");
        bytes
    }

    #[test]
    fn good_frames() {
        let hello = FlowControl::hello(FlowControl::INIT).emit();
        let (text, tally, error) = decoded(&file(&[&frame(), &hello]), false);
        assert_eq!(error, None);
        assert_eq!(
            text,
            "    1    0.000000 LID 1 -> 2 UD_SEND_ONLY qp 0x49 -> 0x48 pkey 0xffff psn 0 IPv4 10.0.0.1 -> 10.0.0.2 echo request\n    \
             2    0.250000 flow control op 1 FCTBS 0 VL 0 FCCL 2048\n\
             2 frames, 2 with right ICRC and VCRC, 2 re-emitted unchanged\n"
        );
        assert_eq!(
            tally,
            Tally {
                frames: 2,
                crcs_right: 2,
                unchanged: 2,
                with_problems: 0
            }
        );
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let good = frame();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let (text, tally, error) = decoded(&file(&[&bad, &good]), false);
            assert_eq!(
                (error, tally.frames, tally.with_problems, tally.unchanged),
                (None, 2, 1, 1),
                "bit {bit}: {text}"
            );
            assert!(
                text.lines()
                    .next()
                    .is_some_and(|line| line.contains(" ** ")),
                "bit {bit}: {text}"
            );
        }
    }

    #[test]
    fn problems_are_named() {
        let good = frame();
        let mut bad_vcrc = good.clone();
        *bad_vcrc.last_mut().expect("not empty") ^= 0xff;
        let mut bad_payload = good.clone();
        bad_payload[40] ^= 1;
        let mut bad_hello = FlowControl::hello(FlowControl::INIT).emit();
        bad_hello[5] ^= 1;
        let (text, tally, _) = decoded(
            &file(&[&bad_vcrc, &bad_payload, &good[..30], &bad_hello, &[]]),
            false,
        );
        let lines: Vec<&str> = text.lines().collect();
        let at = good.len() - 1;
        let diff = format!(
            " ** VCRC is wrong; byte {at} is 0x{:02x}, re-emitted 0x{:02x}",
            bad_vcrc[at], good[at]
        );
        assert!(lines[0].ends_with(&diff), "{text}");
        assert!(
            lines[1].contains("echo")
                && lines[1].contains("ICRC is 0x")
                && lines[1].contains("VCRC is wrong"),
            "{text}"
        );
        assert!(lines[2].contains("not understood ** LRH tells"), "{text}");
        assert!(lines[3].contains("link packet CRC"), "{text}");
        assert!(lines[4].contains("not understood ** 0 bytes"), "{text}");
        assert_eq!(
            lines[5],
            "5 frames, 0 with right ICRC and VCRC, 0 re-emitted unchanged"
        );
        assert_eq!(tally.with_problems, 5);
    }

    #[test]
    fn json_is_an_object_per_frame() {
        let mut bad = frame();
        bad[30] ^= 0x80;
        let (text, ..) = decoded(&file(&[&frame(), &bad]), true);
        let objects: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(objects.len(), 2);
        assert_eq!(
            (
                &objects[0]["frame"],
                &objects[0]["crcs_right"],
                &objects[0]["unchanged"]
            ),
            (&1.into(), &true.into(), &true.into())
        );
        assert_eq!(
            (
                &objects[1]["seconds"],
                &objects[1]["crcs_right"],
                &objects[1]["unchanged"]
            ),
            (&0.25.into(), &false.into(), &false.into())
        );
        assert_eq!(objects[1]["bytes"], bad.len());
        assert_ne!(objects[1]["problems"], serde_json::json!([]));
    }

    #[test]
    fn damaged_files() {
        let whole = file(&[&frame(), &frame()]);
        for cut in 0..whole.len() {
            let (text, tally, error) = decoded(&whole[..cut], false);
            let boundary = [24, 24 + (whole.len() - 24) / 2].contains(&cut);
            assert_eq!(error.is_none(), boundary, "{cut}: {text}");
            assert!(
                tally.frames < 2 && tally.with_problems == 0,
                "{cut}: {text}"
            );
        }
        let (_, _, error) = decoded(b"this is a text, not a capture file", false);
        assert!(error.is_some_and(|e| e.contains("not a pcap file")));
        let mut ethernet = whole.clone();
        ethernet[20] = 1;
        let (_, _, error) = decoded(&ethernet, false);
        assert!(error.is_some_and(|e| e.contains("link type 1;")));
        // An ERF record of another type is skipped.
        let mut other = whole.clone();
        other[24 + 16 + 8] = 2;
        let (text, tally, error) = decoded(&other, false);
        assert_eq!(
            (error, tally.frames, tally.with_problems, tally.unchanged),
            (None, 2, 1, 1),
            "{text}"
        );
        assert!(text.contains("ERF record type 2"), "{text}");
        // A capture with a snap length.
        let mut snapped = whole;
        snapped[24 + 16 + 15] += 1;
        let (text, ..) = decoded(&snapped, false);
        assert!(
            text.contains("1 of ") && text.contains(" bytes were not captured"),
            "{text}"
        );
    }

    #[test]
    fn real_captures() {
        for (name, summary) in [
            (
                "captures/wiki-infiniband.pcap",
                "43 frames, 43 with right ICRC and VCRC, 43 re-emitted unchanged",
            ),
            (
                "captures/tcpdump-ipoib.pcap",
                "30 frames (IPoIB, without CRCs), 30 re-emitted unchanged",
            ),
            ("kernel-peer/captures/01-ud-basic.pcap", "unchanged"),
            ("kernel-peer/captures/02-rc-connected.pcap", "unchanged"),
            ("kernel-peer/captures/03-rc-mixed.pcap", "unchanged"),
            ("kernel-peer/captures/04-multicast.pcap", "unchanged"),
            ("kernel-peer/captures/06-pkey-child.pcap", "unchanged"),
            ("kernel-peer/captures/07-mtu4096.pcap", "unchanged"),
        ] {
            let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")).join(name);
            let Ok(bytes) = std::fs::read(&path) else {
                eprintln!("SKIPPED: {} is absent", path.display());
                continue;
            };
            let (text, tally, error) = decoded(&bytes, false);
            let last = text.lines().last().unwrap_or_default();
            let problems: Vec<&str> = text.lines().filter(|line| line.contains(" ** ")).collect();
            assert_eq!(
                (error, tally.with_problems, tally.unchanged),
                (None, 0, tally.frames),
                "{name}: {problems:#?}"
            );
            assert!(
                last.ends_with(summary) && tally.frames > 0,
                "{name}: {last}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let args = cli::Decode {
            file: "/nowhere/x.pcap".into(),
            json: false,
        };
        let error = run(&args).expect_err("absent");
        assert!(
            format!("{error:#}").starts_with("cannot open /nowhere/x.pcap: "),
            "{error:#}"
        );
    }
}
