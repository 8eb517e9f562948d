//! The socket under a link or a listener: trains out (GSO), trains in (recvmmsg, GRO), and a wake-up for its thread.

use super::counters::UdpCounters;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use wire::packet::{EmitError, Packet};

/// What a UDP datagram over IPv4 holds at most; also a whole train.
const MAX_TRAIN: usize = 65_507;

/// Asked of the kernel for each direction; it may give less.
const SOCKET_BUFFER: usize = 4 << 20;

thread_local! {
    /// Where packets get their form on the wire: one per sending thread, so that threads do not wait for each other.
    static TRAIN: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_TRAIN].into());
}

/// Where datagrams go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) to: SocketAddr,
    /// The address that the other side dialled, where the socket has several.
    pub(super) from: Option<IpAddr>,
}

pub(super) struct Endpoint {
    pub(super) socket: UdpSocket,
    state: UdpSocketState,
    wake: OwnedFd,
    stop: AtomicBool,
    /// A sender met a refusal that the receiving thread has not seen yet.
    refused: AtomicBool,
}

impl Endpoint {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // More than the limit for ordinary users takes privilege; without it the limit has to do.
        use rustix::net::sockopt;
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER));
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER));
        Ok(Self {
            socket,
            state,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        })
    }

    /// Asks for errors of single destinations on an unconnected socket.
    pub(super) fn want_errors(&self) -> io::Result<()> {
        self.state.enable_transport_errors((&self.socket).into())
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.wake();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Notes that a refusal was met.
    pub(super) fn refused(&self) {
        self.refused.store(true, Relaxed);
    }

    pub(super) fn take_refused(&self) -> bool {
        self.refused.swap(false, Relaxed)
    }

    fn wake(&self) {
        // Fails only when the count is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits until something is to be read, [`Endpoint::wake`], or the time is over. True: errors are waiting.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        let time = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        if poll(&mut fds, Some(&time)).is_err() {
            return false;
        }
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        fds[0].revents().contains(PollFlags::ERR)
    }

    /// Sends packets in order, those of one size together.
    pub(super) fn send(&self, route: Route, packets: &[Packet<'_>], counters: &UdpCounters) {
        TRAIN.with_borrow_mut(|buffer| {
            // The train so far: bytes, size of each datagram (the last may be shorter and then ends it), their number.
            let (mut len, mut size, mut count) = (0, 0, 0);
            for packet in packets {
                let need = packet.wire_len();
                let most = self.state.max_gso_segments();
                if count > 0 && (need > size || count >= most || len + need > MAX_TRAIN) {
                    self.send_train(route, &buffer[..len], size, count, counters);
                    (len, count) = (0, 0);
                }
                match packet.emit(&mut buffer[len..]) {
                    Ok(n) => {
                        if count == 0 {
                            size = n;
                        }
                        (len, count) = (len + n, count + 1);
                        if n < size {
                            self.send_train(route, &buffer[..len], size, count, counters);
                            (len, count) = (0, 0);
                        }
                    }
                    Err(EmitError::SuperPacket) => counters.tx_super_packet.add(1),
                    Err(_) => counters.tx_malformed.add(1),
                }
            }
            if count > 0 {
                self.send_train(route, &buffer[..len], size, count, counters);
            }
        });
    }

    /// Sends `count` datagrams of `size` bytes, of which the last may be shorter.
    pub(super) fn send_train(
        &self,
        route: Route,
        bytes: &[u8],
        size: usize,
        count: usize,
        counters: &UdpCounters,
    ) {
        let transmit = Transmit {
            destination: route.to,
            ecn: None,
            contents: bytes,
            segment_size: (count > 1).then_some(size),
            src_ip: route.from,
        };
        let mut result = self.state.try_send((&self.socket).into(), &transmit);
        if is_refusal(&result) {
            // That was about an earlier datagram, perhaps to another destination: this one was not sent yet.
            self.refused();
            self.wake();
            result = self.state.try_send((&self.socket).into(), &transmit);
        }
        let Err(error) = result else {
            counters.tx_datagrams.add(count);
            counters.tx_bytes.add(bytes.len());
            return;
        };
        match error.raw_os_error() {
            _ if error.kind() == ErrorKind::WouldBlock => counters.tx_full.add(count),
            // Some devices refuse trains; quinn-udp has noticed and makes no more of them.
            Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE) if count > 1 => {
                for datagram in bytes.chunks(size) {
                    self.send_train(route, datagram, size, 1, counters);
                }
            }
            Some(libc::EMSGSIZE) => counters.tx_too_big.add(count),
            _ => counters.tx_errors.add(count),
        }
    }
}

fn is_refusal(result: &io::Result<()>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

/// System calls' worth of datagrams: so many trains at once.
const TRAINS: usize = 16;

/// The largest train that GRO makes.
const TRAIN_ROOM: usize = 1 << 16;

/// Where a receiving thread reads to.
pub(super) struct Ring {
    bytes: Box<[u8]>,
    meta: [RecvMeta; TRAINS],
    filled: usize,
}

impl Ring {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; TRAINS * TRAIN_ROOM].into(),
            meta: [RecvMeta::default(); TRAINS],
            filled: 0,
        }
    }

    /// Reads what there is, without waiting. True: there may be more.
    pub(super) fn receive(&mut self, endpoint: &Endpoint) -> io::Result<bool> {
        self.filled = 0;
        let mut rest = &mut self.bytes[..];
        let mut buffers: [IoSliceMut<'_>; TRAINS] = std::array::from_fn(|_| {
            let (train, after) = std::mem::take(&mut rest).split_at_mut(TRAIN_ROOM);
            rest = after;
            IoSliceMut::new(train)
        });
        let socket = (&endpoint.socket).into();
        self.filled = endpoint.state.recv(socket, &mut buffers, &mut self.meta)?;
        Ok(self.filled == TRAINS)
    }

    /// The datagrams read last: source, own address they were sent to, bytes.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = (SocketAddr, Option<IpAddr>, &[u8])> {
        let trains = self.bytes.chunks(TRAIN_ROOM).zip(&self.meta[..self.filled]);
        trains.flat_map(|(bytes, meta)| {
            let bytes = &bytes[..meta.len.min(TRAIN_ROOM)];
            // `chunks` leaves out a datagram of no bytes; it means nothing.
            bytes
                .chunks(meta.stride.max(1))
                .map(|datagram| (meta.addr, meta.dst_ip, datagram))
        })
    }
}
