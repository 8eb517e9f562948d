//! A batch of packets: buffers that are allocated once and filled again and again.

use std::ops::Range;

/// Bytes free before each packet: the IPoIB encapsulation header (RFC 4391 section 6).
pub const HEADROOM: usize = 4;

/// Bytes of one batch, as far as the longest packet allows: what is read shall still be in the cache when it is sent.
const MAX_BYTES: usize = 512 << 10;
/// Packets begin at multiples of this, with their headroom: a cache line.
const ALIGN: usize = 64;

/// Preallocated memory for the packets of one read, one behind the other.
///
/// The longest packet allowed finds room for one byte more: read(2) cuts a packet that does not
/// fit without a word, so a packet that fills the room to its end is known to be too long.
#[derive(Debug)]
pub struct PacketBatch {
    storage: Box<[u8]>,
    /// Where each packet is in it, with headroom.
    packets: Vec<Range<usize>>,
    capacity: usize,
    max_packet: usize,
    oversize: u64,
}

impl PacketBatch {
    /// The number of packets that [`PacketBatch::for_mtu`] makes room for.
    pub const DEFAULT_CAPACITY: usize = 64;

    /// Room for `capacity` packets (at least 1) of up to `max_packet` bytes each, or for half a megabyte of them.
    pub fn new(capacity: usize, max_packet: usize) -> Self {
        let capacity = capacity.max(1);
        let bytes = (capacity * room(max_packet)).min(MAX_BYTES.max(room(max_packet)));
        Self {
            storage: vec![0; bytes].into_boxed_slice(),
            packets: Vec::with_capacity(capacity),
            capacity,
            max_packet,
            oversize: 0,
        }
    }

    /// Room for a default number of packets of a device whose MTU never exceeds `max_mtu` bytes.
    pub fn for_mtu(max_mtu: usize) -> Self {
        Self::new(Self::DEFAULT_CAPACITY, max_mtu)
    }

    /// The most packets one read takes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The longest packet that fits, in bytes, without headroom.
    pub fn max_packet(&self) -> usize {
        self.max_packet
    }

    /// Packets in the batch.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// No packet in the batch.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// No room for another packet.
    pub fn is_full(&self) -> bool {
        self.packets.len() == self.capacity
            || self.storage.len() - self.next() < room(self.max_packet)
    }

    /// Where the next packet begins.
    fn next(&self) -> usize {
        let end = self.packets.last().map_or(0, |last| last.end);
        end.next_multiple_of(ALIGN)
    }

    /// Packets that the last read dropped because they were longer than [`max_packet`](Self::max_packet).
    pub fn oversize(&self) -> u64 {
        self.oversize
    }

    /// Forgets all packets; the buffers stay.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.oversize = 0;
    }

    /// Packet `index`, or `None` past the last.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.storage
            .get(self.packets.get(index)?.clone())?
            .get(HEADROOM..)
    }

    /// The packets with their headroom, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = PacketBuf<'_>> {
        let mut rest = &mut self.storage[..];
        let mut at = 0;
        self.packets.iter().map(move |packet| {
            let (before, behind) = std::mem::take(&mut rest).split_at_mut(packet.end - at);
            rest = behind;
            let start = packet.start - at;
            at = packet.end;
            PacketBuf(&mut before[start..])
        })
    }

    /// The packets.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.packets
            .iter()
            .map(|packet| &self.storage[packet.start + HEADROOM..packet.end])
    }

    /// Adds one packet by letting `fill` write it into the next buffer and say how long it was.
    ///
    /// `fill` gets `max_packet + 1` bytes. A length over `max_packet` is counted as oversize and not
    /// added. Returns `None`, without calling `fill`, when the batch is full.
    pub fn push_with<E>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Option<Result<(), E>> {
        if self.is_full() {
            return None;
        }
        let start = self.next();
        let buffer = &mut self.storage[start + HEADROOM..][..self.max_packet + 1];
        Some(fill(buffer).map(|len| {
            if len <= self.max_packet {
                self.packets.push(start..start + HEADROOM + len);
            } else {
                self.oversize += 1;
            }
        }))
    }

    /// Adds a copy of `packet`. False when the batch is full; a packet that is too long is counted.
    pub fn push(&mut self, packet: &[u8]) -> bool {
        let max_packet = self.max_packet;
        self.push_with(|buffer| {
            if packet.len() <= max_packet {
                buffer[..packet.len()].copy_from_slice(packet);
            }
            Ok::<_, std::convert::Infallible>(packet.len())
        })
        .is_some()
    }
}

/// What the longest packet takes.
fn room(max_packet: usize) -> usize {
    (HEADROOM + max_packet + 1).next_multiple_of(ALIGN)
}

/// One packet of a [`PacketBatch`] with [`HEADROOM`] bytes before it.
#[derive(Debug)]
pub struct PacketBuf<'a>(&'a mut [u8]);

impl<'a> PacketBuf<'a> {
    /// The bare IP packet.
    pub fn packet(&self) -> &[u8] {
        &self.0[HEADROOM..]
    }

    /// The packet with the headroom in front.
    pub fn with_headroom(&mut self) -> &mut [u8] {
        self.0
    }

    /// The same for the lifetime of the batch's borrow.
    pub fn into_with_headroom(self) -> &'a mut [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headroom_stands_before_the_packet() {
        let mut batch = PacketBatch::new(2, 8);
        assert!(batch.push(b"abc"));
        assert!(batch.push(b"defghijk"));
        for mut buf in batch.iter_mut() {
            assert_eq!(buf.with_headroom().len(), buf.packet().len() + HEADROOM);
            buf.with_headroom()[..HEADROOM].copy_from_slice(&[8, 0, 0, 0]);
        }
        assert_eq!(batch.get(0), Some(&b"abc"[..]));
        assert_eq!(batch.get(1), Some(&b"defghijk"[..]));
        assert_eq!(batch.get(2), None);
    }

    #[test]
    fn a_packet_that_does_not_fit_is_counted_not_cut() {
        let mut batch = PacketBatch::new(2, 4);
        assert!(batch.push(b"12345"));
        // What read(2) does with a longer packet: fill all there is.
        let filled = batch.push_with(|buffer| {
            buffer.fill(7);
            Ok::<_, ()>(buffer.len())
        });
        assert_eq!(filled, Some(Ok(())));
        assert_eq!((batch.len(), batch.oversize()), (0, 2));
        assert!(batch.push(b"1234"));
        assert_eq!(batch.get(0), Some(&b"1234"[..]));
        batch.clear();
        assert_eq!((batch.len(), batch.oversize()), (0, 0));
    }

    #[test]
    fn a_full_batch_takes_no_more() {
        let mut batch = PacketBatch::new(1, 4);
        assert!(batch.push(b"a"));
        assert!(batch.is_full());
        assert!(!batch.push(b"b"));
        assert_eq!(batch.push_with(|_| Err::<usize, _>("called")), None);
        assert_eq!(batch.iter().collect::<Vec<_>>(), [b"a"]);
    }

    #[test]
    fn an_error_adds_nothing() {
        let mut batch = PacketBatch::new(1, 4);
        assert_eq!(batch.push_with(|_| Err("no")), Some(Err("no")));
        assert!(batch.is_empty());
    }

    #[test]
    fn few_long_packets_fill_a_batch_and_many_short_ones() {
        let mut batch = PacketBatch::new(64, 65_535);
        while batch.push(&[7; 65_535]) {}
        assert_eq!(batch.len(), MAX_BYTES / room(65_535));
        batch.clear();
        while batch.push(&[7; 2044]) {}
        assert_eq!(batch.len(), 64);
        assert!(batch.iter().all(|packet| packet == [7; 2044]));
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12)) {
            let mut batch = PacketBatch::new(8, 32);
            let mut expect = Vec::new();
            let mut oversize = 0;
            for packet in &packets {
                let room = expect.len() < 8;
                prop_assert_eq!(batch.push(packet), room);
                match packet.len() {
                    _ if !room => {}
                    0..=32 => expect.push(packet.clone()),
                    _ => oversize += 1,
                }
            }
            prop_assert_eq!(batch.oversize(), oversize);
            prop_assert_eq!(batch.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), expect.clone());
            let seen: Vec<_> = batch.iter_mut().map(|b| b.packet().to_vec()).collect();
            prop_assert_eq!(seen, expect);
        }
    }
}
