//! Capture files: the classic pcap format, written as link type 197 (ERF) with records of type 21 (InfiniBand, LRH through VCRC), which
//! Wireshark reads; read as that or as link type 242 (IPoIB: a 44-byte header in place of all InfiniBand headers).
//!
//! ERF is documented by Endace ("ERF types reference guide"), pcap by draft-ietf-opsawg-pcap.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const ERF_HEADER_LEN: usize = 16;
/// ERF record type TYPE_INFINIBAND. The upper bit of the type octet says that extension headers follow.
const ERF_INFINIBAND: u8 = 21;
/// ERF flag: the record has the length of its frame.
const ERF_VARYING_LENGTH: u8 = 4;
/// No link has frames as long; a longer record is a damaged file.
const MAX_RECORD: usize = 1 << 18;

/// What the records of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// 197: records with an ERF header.
    Erf,
    /// 242: IPoIB frames with a 44-byte header.
    Ipoib,
}

impl LinkType {
    const ERF: u32 = 197;
    const IPOIB: u32 = 242;
}

/// Writes a capture file with times in nanoseconds.
pub struct PcapWriter<W: Write>(W);

impl<W: Write> PcapWriter<W> {
    /// Writes the head of the file.
    pub fn new(mut to: W) -> io::Result<Self> {
        let mut head = [0; 24];
        head[..4].copy_from_slice(&MAGIC_NANOS.to_le_bytes());
        head[4..6].copy_from_slice(&2u16.to_le_bytes());
        head[6..8].copy_from_slice(&4u16.to_le_bytes());
        head[16..20].copy_from_slice(&(u32::from(u16::MAX)).to_le_bytes());
        head[20..].copy_from_slice(&LinkType::ERF.to_le_bytes());
        to.write_all(&head)?;
        Ok(Self(to))
    }

    /// Writes one frame, LRH through VCRC. A time before 1970 becomes 1970; a frame too long for an ERF record is an error.
    pub fn write(&mut self, time: SystemTime, frame: &[u8]) -> io::Result<()> {
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanos) = (time.as_secs() as u32, time.subsec_nanos());
        let (Ok(record), wire) = (
            u16::try_from(ERF_HEADER_LEN + frame.len()),
            frame.len() as u16,
        ) else {
            let message = format!("a frame of {} bytes is too long for ERF", frame.len());
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        };
        let mut head = [0; 16 + ERF_HEADER_LEN];
        head[..4].copy_from_slice(&seconds.to_le_bytes());
        head[4..8].copy_from_slice(&nanos.to_le_bytes());
        head[8..12].copy_from_slice(&u32::from(record).to_le_bytes());
        head[12..16].copy_from_slice(&u32::from(record).to_le_bytes());
        // Seconds in the upper, fraction of a second in the lower half: 32.32 fixed point.
        let fraction = (u64::from(nanos) << 32) / 1_000_000_000;
        head[16..24].copy_from_slice(&(u64::from(seconds) << 32 | fraction).to_le_bytes());
        head[24] = ERF_INFINIBAND;
        head[25] = ERF_VARYING_LENGTH;
        head[26..28].copy_from_slice(&record.to_be_bytes());
        head[30..32].copy_from_slice(&wire.to_be_bytes());
        self.0.write_all(&head)?;
        self.0.write_all(frame)
    }

    /// Hands what was written on to where it goes.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Why a capture file cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// Reading failed.
    #[error("cannot read the capture: {0}")]
    Io(#[from] io::Error),
    /// The file is something else.
    #[error(
        "not a pcap file (it begins with 0x{0:08x}); pcapng has to be converted: editcap -F pcap IN OUT"
    )]
    Magic(u32),
    /// The records are of a kind not read here.
    #[error("link type {0}; only 197 (ERF) and 242 (IPoIB) are read")]
    LinkType(u32),
    /// The file ends within a record.
    #[error("the file ends in the middle of a record")]
    Truncated,
    /// A record that claims an absurd length.
    #[error("a record of {0} bytes: the file is damaged")]
    RecordLength(usize),
    /// An ERF record of another type; those after it can be read.
    #[error("ERF record type {0}; only 21 (InfiniBand) is read")]
    RecordType(u8),
    /// An ERF record shorter than its headers; those after it can be read.
    #[error("an ERF record of {0} bytes is shorter than its headers")]
    RecordTooShort(usize),
}

/// A frame out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcapFrame {
    /// When it was captured.
    pub time: SystemTime,
    /// ERF: LRH through VCRC. IPoIB: the 44-byte header and the packet.
    pub bytes: Vec<u8>,
    /// Bytes that the capture left out at the end.
    pub missing: usize,
}

/// Reads a capture file frame by frame, either byte order, times in microseconds or nanoseconds.
pub struct PcapReader<R: Read> {
    from: R,
    big_endian: bool,
    nanos: bool,
    link_type: LinkType,
    ended: bool,
}

impl<R: Read> PcapReader<R> {
    /// Reads the head of the file.
    pub fn new(mut from: R) -> Result<Self, PcapError> {
        let mut head = [0; 24];
        if fill(&mut from, &mut head)? < head.len() {
            return Err(PcapError::Truncated);
        }
        let magic = number(&head, 0, true);
        let (big_endian, nanos) = match (magic, magic.swap_bytes()) {
            (MAGIC_MICROS, _) => (true, false),
            (MAGIC_NANOS, _) => (true, true),
            (_, MAGIC_MICROS) => (false, false),
            (_, MAGIC_NANOS) => (false, true),
            _ => return Err(PcapError::Magic(magic)),
        };
        // The upper bits tell about frame check sequences.
        let link_type = match number(&head, 20, big_endian) & 0xffff {
            LinkType::ERF => LinkType::Erf,
            LinkType::IPOIB => LinkType::Ipoib,
            other => return Err(PcapError::LinkType(other)),
        };
        Ok(Self {
            from,
            big_endian,
            nanos,
            link_type,
            ended: false,
        })
    }

    /// What the frames are.
    pub fn link_type(&self) -> LinkType {
        self.link_type
    }

    fn read(&mut self) -> Result<Option<PcapFrame>, PcapError> {
        // Until a whole record was read, an error leaves no place to go on from.
        self.ended = true;
        let mut head = [0; 16];
        match fill(&mut self.from, &mut head)? {
            0 => return Ok(None),
            16 => {}
            _ => return Err(PcapError::Truncated),
        }
        let [seconds, fraction, captured, original] =
            [0, 4, 8, 12].map(|at| number(&head, at, self.big_endian));
        let captured = captured as usize;
        if captured > MAX_RECORD {
            return Err(PcapError::RecordLength(captured));
        }
        let mut bytes = vec![0; captured];
        if fill(&mut self.from, &mut bytes)? < captured {
            return Err(PcapError::Truncated);
        }
        self.ended = false;
        let fraction = u64::from(fraction) * if self.nanos { 1 } else { 1000 };
        let time =
            UNIX_EPOCH + Duration::from_secs(seconds.into()) + Duration::from_nanos(fraction);
        let mut wire = (original as usize).max(captured);
        if self.link_type == LinkType::Erf {
            wire = strip_erf(&mut bytes)?;
        }
        bytes.truncate(wire);
        let missing = wire - bytes.len();
        Ok(Some(PcapFrame {
            time,
            bytes,
            missing,
        }))
    }
}

impl<R: Read> Iterator for PcapReader<R> {
    type Item = Result<PcapFrame, PcapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        self.read().transpose()
    }
}

/// Takes the ERF headers off a record and returns the length of its frame on the wire.
fn strip_erf(record: &mut Vec<u8>) -> Result<usize, PcapError> {
    let short = PcapError::RecordTooShort(record.len());
    let Some(head) = record.first_chunk::<ERF_HEADER_LEN>() else {
        return Err(short);
    };
    let wire = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let kind = head[8];
    if kind & 0x7f != ERF_INFINIBAND {
        return Err(PcapError::RecordType(kind & 0x7f));
    }
    // Extension headers of 8 bytes; the upper bit of each says whether another follows.
    let (mut at, mut another) = (ERF_HEADER_LEN, kind & 0x80 != 0);
    while another {
        match record.get(at) {
            Some(first) => another = first & 0x80 != 0,
            None => return Err(short),
        }
        at += 8;
    }
    if at > record.len() {
        return Err(short);
    }
    record.drain(..at);
    Ok(wire)
}

fn number(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if big_endian {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    }
}

/// Reads until `to` is full or the file ends; returns the bytes read.
fn fill(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < to.len() {
        match from.read(&mut to[at..]) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::process::{Command, Stdio};

    fn written(frames: &[&[u8]]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = PcapWriter::new(&mut file).expect("memory");
        for (n, frame) in (1u32..).zip(frames) {
            writer.write(at(n), frame).expect("memory");
        }
        file
    }

    fn at(n: u32) -> SystemTime {
        UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_700 + n)
    }

    fn shared(file: &str) -> Option<Vec<u8>> {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")).join(file);
        let bytes = std::fs::read(&path).ok();
        if bytes.is_none() {
            eprintln!("SKIPPED: no {}", path.display());
        }
        bytes
    }

    fn read(file: &[u8]) -> Vec<PcapFrame> {
        let reader = PcapReader::new(file).expect("a capture");
        reader.collect::<Result<_, _>>().expect("whole records")
    }

    #[test]
    fn reads_what_it_writes() {
        let frames: [&[u8]; 3] = [&[1; 30], &[], &[2; 8190]];
        let file = written(&frames);
        let expected = (1u32..).zip(frames).map(|(n, bytes)| PcapFrame {
            time: at(n),
            bytes: bytes.to_vec(),
            missing: 0,
        });
        assert_eq!(read(&file), expected.collect::<Vec<_>>());
        // ERF header: time in 32.32 fixed point, type, flags, record length, loss, wire length.
        let erf = &file[40..56];
        assert_eq!(erf[4..8], 1_700_000_000u32.to_le_bytes());
        assert_eq!(erf[8..], [21, 4, 0, 46, 0, 0, 0, 30]);
        let mut writer = PcapWriter::new(Vec::new()).expect("memory");
        let error = writer.write(at(0), &[0; 65_520]).expect_err("too long");
        assert!(error.to_string().contains("65520 bytes"));
    }

    #[test]
    fn real_captures() {
        if let Some(file) = shared("captures/wiki-infiniband.pcap") {
            let frames = read(&file);
            assert_eq!(frames.len(), 43);
            for frame in &frames {
                assert_eq!(frame.missing, 0);
                let packet = wire::packet::Packet::parse_strict(&frame.bytes).expect("valid");
                let mut again = Vec::new();
                packet.emit_into(&mut again).expect("emit");
                assert_eq!(again, frame.bytes);
            }
        }
        if let Some(file) = shared("captures/tcpdump-ipoib.pcap") {
            let reader = PcapReader::new(&file[..]).expect("a capture");
            assert_eq!(reader.link_type(), LinkType::Ipoib);
            let frames = read(&file);
            assert_eq!(frames.len(), 30);
            // The 44-byte header ends with an ethertype: ARP or IPv4.
            for frame in frames {
                assert!([[8, 0], [8, 6]].contains(&[frame.bytes[40], frame.bytes[41]]));
            }
        }
    }

    #[test]
    fn wireshark_reads_it() {
        let Some(file) = shared("captures/wiki-infiniband.pcap") else {
            return;
        };
        let frames = read(&file);
        let bytes: Vec<&[u8]> = frames.iter().map(|f| &f.bytes[..]).collect();
        let dissect = |file: &[u8]| {
            let mut tshark = Command::new("tshark")
                .args(["-r", "-", "-T", "fields"])
                .args(["-e", "infiniband.invariant.crc", "-e", "_ws.col.Info"])
                .args(["-e", "_ws.malformed"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .ok()?;
            tshark.stdin.take()?.write_all(file).ok()?;
            let output = tshark.wait_with_output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let Some(ours) = dissect(&written(&bytes)) else {
            return eprintln!("SKIPPED: no tshark");
        };
        assert_eq!(ours.lines().count(), 43);
        assert_eq!(Some(ours), dissect(&file));
    }

    #[test]
    fn errors_say_what_it_is() {
        let error = |bytes: &[u8]| match PcapReader::new(bytes) {
            Err(error) => error.to_string(),
            Ok(mut reader) => {
                let error = reader.find_map(Result::err).expect("an error");
                error.to_string()
            }
        };
        let file = written(&[&[0; 30]]);
        let with = |at: usize, byte: u8| {
            let mut file = file.clone();
            file[at] = byte;
            file
        };
        assert!(error(&file[..20]).contains("ends in the middle"));
        assert!(error(&file[..30]).contains("ends in the middle"));
        assert!(error(&file[..70]).contains("ends in the middle"));
        assert!(error(b"\x0a\x0d\x0d\x0apcapng has other blocks").contains("editcap"));
        assert!(error(&with(20, 1)).contains("link type 1;"));
        assert!(error(&with(35, 1)).contains("damaged"));
        assert!(error(&with(48, 2)).contains("record type 2;"));
    }

    #[test]
    fn goes_on_after_a_strange_record() {
        let mut file = written(&[&[1; 30], &[2; 30]]);
        file[48] = 2;
        let results: Vec<_> = PcapReader::new(&file[..]).expect("a capture").collect();
        assert!(matches!(
            results[..],
            [Err(PcapError::RecordType(2)), Ok(_)]
        ));
        // An extension header in front of the second frame.
        file[24 + 16 + 46 + 16 + 8] = 0x80 | ERF_INFINIBAND;
        let results: Vec<_> = PcapReader::new(&file[..]).expect("a capture").collect();
        let Ok(second) = &results[1] else {
            panic!("{results:?}")
        };
        assert_eq!((second.bytes.len(), second.missing), (22, 8));
    }

    proptest! {
        #[test]
        fn damaged_files(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..4),
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6),
            cut: usize,
        ) {
            let frames: Vec<&[u8]> = frames.iter().map(|f| &f[..]).collect();
            let mut file = written(&frames);
            for (at, byte) in changes {
                let at = at % file.len();
                file[at] = byte;
            }
            file.truncate(cut % (file.len() + 1));
            if let Ok(reader) = PcapReader::new(&file[..]) {
                prop_assert!(reader.count() <= file.len() / 16);
            }
        }
    }
}
