//! Capture of what passes a port: a [`Tap`] with a link and a sink around those of the port.
//!
//! While nobody captures, a packet costs one load. While somebody does, each packet is written out as it is on a wire, with both CRCs, and goes
//! to a bounded channel; what does not fit is counted, never waited for.

use super::udp::Counter;
use super::{Link, LinkSink};
use arc_swap::ArcSwapOption;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::Arc;
use std::time::SystemTime;
use wire::mad::PortState;
use wire::packet::Packet;

/// Which way a packet passed the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the port into the link.
    Sent,
    /// From the link to the port.
    Received,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When it passed.
    pub time: SystemTime,
    /// Which way.
    pub direction: Direction,
    /// LRH through VCRC. The ICRC is the one that came with the packet, else computed.
    pub bytes: Vec<u8>,
}

/// Says the time of a packet; a simulation has its own.
pub type Clock = Box<dyn Fn() -> SystemTime + Send + Sync>;

/// A place where packets can be captured. One capture at a time.
pub struct Tap {
    clock: Clock,
    capture: ArcSwapOption<Sender<Frame>>,
    full: Counter,
    unwritable: Counter,
}

impl Default for Tap {
    fn default() -> Self {
        Self::new(Box::new(SystemTime::now))
    }
}

impl Tap {
    /// A tap that does not capture yet.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            capture: ArcSwapOption::empty(),
            full: Counter::default(),
            unwritable: Counter::default(),
        }
    }

    /// What the port sends into instead of `link`.
    pub fn link(self: &Arc<Self>, link: Arc<dyn Link>) -> Arc<dyn Link> {
        Arc::new(Tapped {
            tap: self.clone(),
            inner: link,
        })
    }

    /// What the link delivers to instead of `sink`.
    pub fn sink(self: &Arc<Self>, sink: Arc<dyn LinkSink>) -> Arc<dyn LinkSink> {
        Arc::new(Tapped {
            tap: self.clone(),
            inner: sink,
        })
    }

    /// Starts a capture, which ends an earlier one. It ends when the receiver is dropped.
    pub fn start(&self, capacity: usize) -> Receiver<Frame> {
        let (sender, receiver) = bounded(capacity);
        self.capture.store(Some(Arc::new(sender)));
        receiver
    }

    /// Ends the capture: the receiver gets what is in the channel, then an end.
    pub fn stop(&self) {
        self.capture.store(None);
    }

    /// Packets not captured because the channel was full.
    pub fn dropped_full(&self) -> u64 {
        self.full.get()
    }

    /// Packets not captured because they have no form on the wire: super-packets, for now.
    pub fn dropped_unwritable(&self) -> u64 {
        self.unwritable.get()
    }

    fn see(&self, packets: &[Packet<'_>], direction: Direction) {
        let capture = self.capture.load();
        let Some(sender) = &*capture else { return };
        for packet in packets {
            let mut bytes = Vec::with_capacity(packet.wire_len());
            if packet.emit_into(&mut bytes).is_err() {
                self.unwritable.add(1);
                continue;
            }
            let time = (self.clock)();
            let frame = Frame {
                time,
                direction,
                bytes,
            };
            match sender.try_send(frame) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => self.full.add(1),
                Err(TrySendError::Disconnected(_)) => {
                    // Unless a new capture has begun meanwhile.
                    self.capture.compare_and_swap(&capture, None);
                    return;
                }
            }
        }
    }
}

struct Tapped<T: ?Sized> {
    tap: Arc<Tap>,
    inner: Arc<T>,
}

impl Link for Tapped<dyn Link> {
    fn transmit(&self, packets: &[Packet<'_>]) {
        self.tap.see(packets, Direction::Sent);
        self.inner.transmit(packets);
    }
    fn port_state(&self, state: PortState) {
        self.inner.port_state(state);
    }
    fn enable(&self, up: bool) {
        self.inner.enable(up);
    }
    fn transmit_broken(&self, packet: &Packet<'_>) {
        self.inner.transmit_broken(packet);
    }
}

impl LinkSink for Tapped<dyn LinkSink> {
    fn receive(&self, packets: &[Packet<'_>]) {
        self.tap.see(packets, Direction::Received);
        self.inner.receive(packets);
    }
    fn link_changed(&self, up: bool) {
        self.inner.link_changed(up);
    }
    fn receive_errors(&self, n: usize) {
        self.inner.receive_errors(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::time::{Duration, UNIX_EPOCH};
    use wire::packet::{Bth, Lso, Opcode};

    /// A port and a link that write down what reaches them.
    #[derive(Default)]
    struct End(Mutex<Vec<String>>);

    impl Link for End {
        fn transmit(&self, packets: &[Packet<'_>]) {
            self.0.lock().push(format!("sent {}", packets.len()));
        }
        fn port_state(&self, state: PortState) {
            self.0.lock().push(state.to_string());
        }
    }

    impl LinkSink for End {
        fn receive(&self, packets: &[Packet<'_>]) {
            self.0.lock().push(format!("received {}", packets.len()));
        }
        fn link_changed(&self, up: bool) {
            self.0.lock().push(format!("up {up}"));
        }
    }

    fn packet(payload: &[u8]) -> Packet<'_> {
        Packet {
            lrh: Default::default(),
            grh: None,
            bth: Bth {
                opcode: Opcode(4),
                ..Bth::default()
            },
            ext: Default::default(),
            payload,
            lso: None,
            icrc: None,
            hops: 0,
        }
    }

    #[test]
    fn captures_both_ways_only_while_asked() {
        let now = UNIX_EPOCH + Duration::from_secs(5);
        let tap = Arc::new(Tap::new(Box::new(move || now)));
        let end = Arc::new(End::default());
        let (link, sink) = (tap.link(end.clone()), tap.sink(end.clone()));
        link.transmit(&[packet(b"before")]);
        let frames = tap.start(4);
        let came = Packet {
            icrc: Some(0x0102_0304),
            ..packet(b"two")
        };
        link.transmit(&[packet(b"one")]);
        sink.receive(&[came, packet(b"three")]);
        link.port_state(PortState::ACTIVE);
        sink.link_changed(true);
        tap.stop();
        link.transmit(&[packet(b"after")]);

        assert_eq!(
            *end.0.lock(),
            [
                "sent 1",
                "sent 1",
                "received 2",
                "Active",
                "up true",
                "sent 1"
            ]
        );
        let frames: Vec<Frame> = frames.iter().collect();
        let expect = |n: usize, direction, payload: &[u8]| {
            assert_eq!((frames[n].time, frames[n].direction), (now, direction));
            let packet = Packet::parse_unchecked(&frames[n].bytes).expect("whole");
            assert_eq!(packet.payload, payload);
        };
        assert_eq!(frames.len(), 3);
        expect(0, Direction::Sent, b"one");
        expect(1, Direction::Received, b"two");
        expect(2, Direction::Received, b"three");
        assert!(Packet::parse_strict(&frames[0].bytes).is_ok());
        let came = &frames[1].bytes;
        assert_eq!(came[came.len() - 6..][..4], [4, 3, 2, 1]);
    }

    #[test]
    fn drops_are_counted_and_a_lost_receiver_ends_it() {
        let tap = Arc::new(Tap::default());
        let link = tap.link(Arc::new(End::default()));
        let frames = tap.start(2);
        let lso = Packet {
            lso: Some(Lso {
                header_len: 1,
                mss: 1,
            }),
            ..packet(b"super")
        };
        link.transmit(&[lso, packet(b"1"), packet(b"2"), packet(b"3"), packet(b"4")]);
        assert_eq!((tap.dropped_unwritable(), tap.dropped_full()), (1, 2));
        drop(frames);
        link.transmit(&[packet(b"5"), packet(b"6")]);
        assert!(tap.capture.load().is_none());
        let frames = tap.start(1);
        link.transmit(&[packet(b"7")]);
        assert_eq!(frames.len(), 1);
    }
}
