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
            if sender.is_full() {
                // Before the work of writing it out.
                self.full.add(1);
                continue;
            }
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
}

impl LinkSink for Tapped<dyn LinkSink> {
    fn receive(&self, packets: &[Packet<'_>]) {
        self.tap.see(packets, Direction::Received);
        self.inner.receive(packets);
    }
    fn link_changed(&self, up: bool) {
        self.inner.link_changed(up);
    }
}
