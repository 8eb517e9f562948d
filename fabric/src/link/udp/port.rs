//! One link of a socket, whichever side it is: what the port sends into.

use super::counters::UdpCounters;
use super::socket::{Endpoint, Route};
use super::state::{LinkState, Output};
use super::{Datagram, Malformed};
use crate::link::{Link, LinkSink};
use arrayvec::ArrayVec;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use wire::mad::PortState;
use wire::packet::{FlowControl, Packet};

/// Packets given to a port at once.
const BATCH: usize = 64;

pub(super) type Batch<'a> = ArrayVec<Packet<'a>, BATCH>;

pub(super) struct UdpPort {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) route: Route,
    pub(super) counters: Arc<UdpCounters>,
    state: Mutex<LinkState>,
    up: AtomicBool,
    /// Nothing leaves, not even hellos: the other side comes to see the link as down.
    muted: AtomicBool,
}

impl UdpPort {
    pub(super) fn new(endpoint: Arc<Endpoint>, route: Route, now: Instant) -> Self {
        Self {
            endpoint,
            route,
            counters: Arc::default(),
            state: Mutex::new(LinkState::new(now)),
            up: AtomicBool::new(false),
            muted: AtomicBool::new(false),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.state.lock().poll_timeout()
    }

    /// Feeds the state machine, sends the hello it asks for, and returns what the port has to be told. Only the receiving thread feeds what can
    /// bring a link up or down, so that the port hears of it in order.
    #[must_use]
    pub(super) fn drive(&self, now: Instant, input: impl FnOnce(&mut LinkState)) -> Option<bool> {
        let (mut hello, mut change) = (None, None);
        let mut state = self.state.lock();
        input(&mut state);
        while let Some(output) = state.poll_output(now) {
            match output {
                Output::Hello(packet) => hello = Some(packet),
                Output::LinkChanged(up) => {
                    self.up.store(up, Relaxed);
                    change = Some(up);
                }
            }
        }
        drop(state);
        if let Some(packet) = hello.filter(|_| !self.muted.load(Relaxed)) {
            let bytes: [u8; FlowControl::LEN] = packet.emit();
            self.counters.tx_hellos.add(1);
            self.endpoint
                .send_train(self.route, &bytes, bytes.len(), 1, &self.counters);
        }
        change
    }
}

impl Link for UdpPort {
    fn transmit(&self, packets: &[Packet<'_>]) {
        if self.is_up() && !self.muted.load(Relaxed) {
            self.endpoint.send(self.route, packets, &self.counters);
        } else {
            self.counters.tx_link_down.add(packets.len());
        }
    }

    fn port_state(&self, state: PortState) {
        // This input changes nothing about the link itself.
        let _ = self.drive(Instant::now(), |link| link.handle_port_state(state));
    }

    fn enable(&self, up: bool) {
        self.muted.store(!up, Relaxed);
    }
}

/// Takes what one receive call brought for one link to its port.
pub(super) struct Delivery<'r, 'a> {
    port: &'r UdpPort,
    sink: &'r dyn LinkSink,
    batch: &'r mut Batch<'a>,
    now: Instant,
    heard: bool,
}

impl<'r, 'a> Delivery<'r, 'a> {
    pub(super) fn new(
        port: &'r UdpPort,
        sink: &'r dyn LinkSink,
        batch: &'r mut Batch<'a>,
        now: Instant,
    ) -> Self {
        Self {
            port,
            sink,
            batch,
            now,
            heard: false,
        }
    }

    /// Counts a datagram and puts its packet into the batch.
    pub(super) fn take(&mut self, len: usize, datagram: Result<Datagram<'a>, Malformed>) {
        let counters = &self.port.counters;
        counters.rx_datagrams.add(1);
        counters.rx_bytes.add(len);
        let datagram = match datagram {
            Ok(datagram) => datagram,
            Err(malformed) => {
                match malformed {
                    Malformed::Length => counters.rx_bad_length.add(1),
                    Malformed::Header => counters.rx_bad_header.add(1),
                    Malformed::Icrc => counters.rx_bad_icrc.add(1),
                }
                return self.sink.receive_errors(1);
            }
        };
        if !self.heard {
            self.heard = true;
            let now = self.now;
            if let Some(up) = self.port.drive(now, |link| link.handle_datagram(now)) {
                self.sink.link_changed(up);
            }
        }
        match datagram {
            Datagram::Hello => counters.rx_hellos.add(1),
            Datagram::Packet(packet) => {
                if self.batch.is_full() {
                    self.flush();
                }
                self.batch.push(packet);
            }
        }
    }

    /// Gives the batch to the port.
    pub(super) fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.port.counters.rx_packets.add(self.batch.len());
            self.sink.receive(self.batch);
            self.batch.clear();
        }
    }
}
