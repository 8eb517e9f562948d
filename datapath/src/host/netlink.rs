//! rtnetlink requests and their answers, synchronous.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use parking_lot::Mutex;

use super::HostError;

/// The kernel's dumps come in datagrams of at most this many bytes (`netlink_dump`: 32 KiB).
pub(super) const BUFFER_LEN: usize = 64 * 1024;

/// How often a dump that was disturbed by a change is repeated.
const DUMP_ATTEMPTS: usize = 8;

/// A socket for requests; requests of several threads wait for each other.
pub(super) struct Requests(Mutex<Inner>);

struct Inner {
    socket: Socket,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Requests {
    /// In the calling thread's network namespace.
    pub(super) fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self(Mutex::new(Inner {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
        })))
    }

    /// Asks for a change, with `flags` besides REQUEST and ACK.
    pub(super) fn change(
        &self,
        what: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), HostError> {
        self.0
            .lock()
            .exchange(what, &message, NLM_F_REQUEST | NLM_F_ACK | flags)
            .map(drop)
    }

    /// Asks for one object.
    pub(super) fn get(
        &self,
        what: &'static str,
        message: RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, HostError> {
        // With ACK the answer is surely over when the acknowledgement comes, also where there is none.
        let answer = self
            .0
            .lock()
            .exchange(what, &message, NLM_F_REQUEST | NLM_F_ACK)?;
        answer
            .messages
            .into_iter()
            .next()
            .ok_or_else(|| HostError::Answer {
                what,
                detail: "it is empty".to_owned(),
            })
    }

    /// Asks for all objects of a kind, as of one moment.
    pub(super) fn dump(
        &self,
        what: &'static str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, HostError> {
        let mut inner = self.0.lock();
        for _ in 0..DUMP_ATTEMPTS {
            let answer = inner.exchange(what, &message, NLM_F_REQUEST | NLM_F_DUMP)?;
            if !answer.interrupted {
                return Ok(answer.messages);
            }
        }
        Err(HostError::Answer {
            what,
            detail: "it changed again and again while being read".to_owned(),
        })
    }
}

struct Answer {
    messages: Vec<RouteNetlinkMessage>,
    interrupted: bool,
}

impl Inner {
    fn exchange(
        &mut self,
        what: &'static str,
        message: &RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Answer, HostError> {
        let refused = |cause| HostError::Request { what, cause };
        let unexpected = |detail: &dyn std::fmt::Display| HostError::Answer {
            what,
            detail: detail.to_string(),
        };
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message.clone());
        request.header.flags = flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket
            .send_to(&bytes, &SocketAddr::new(0, 0), 0)
            .map_err(refused)?;

        let mut answer = Answer {
            messages: Vec::new(),
            interrupted: false,
        };
        loop {
            let Some(datagram) = receive(&self.socket, &mut self.buffer, 0).map_err(refused)?
            else {
                continue;
            };
            for raw in split(datagram) {
                // An answer to an earlier request that ended in an error.
                if raw.sequence_number() != self.sequence {
                    continue;
                }
                answer.interrupted |= raw.flags() & NLM_F_DUMP_INTR != 0;
                // Messages of a dump that cannot be read (of a newer kernel, of a strange device)
                // must not hide the others.
                let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
                let message_type = raw.message_type();
                let message = match NetlinkMessage::deserialize(raw.into_inner()) {
                    Ok(message) => message,
                    Err(e) if dump && !is_control(message_type) => {
                        tracing::debug!(what, error = %e, "skipped a netlink message");
                        continue;
                    }
                    Err(e) => return Err(unexpected(&e)),
                };
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => answer.messages.push(inner),
                    NetlinkPayload::Done(_) => return Ok(answer),
                    NetlinkPayload::Error(e) if e.code.is_none() => return Ok(answer),
                    NetlinkPayload::Error(e) => return Err(refused(e.to_io())),
                    _ => {}
                }
            }
        }
    }
}

fn is_control(message_type: u16) -> bool {
    matches!(message_type, NLMSG_DONE | NLMSG_ERROR)
}

/// Receives one datagram; `None` where it is not from the kernel. One that is too long is an error
/// of kind `InvalidData`.
pub(super) fn receive<'a>(
    socket: &Socket,
    buffer: &'a mut [u8],
    flags: i32,
) -> io::Result<Option<&'a [u8]>> {
    let (len, from) = loop {
        match socket.recv_from(&mut &mut buffer[..], flags | libc::MSG_TRUNC) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    if from.port_number() != 0 {
        return Ok(None);
    }
    match buffer.get(..len) {
        Some(datagram) => Ok(Some(datagram)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The messages of a datagram; ends at the first that is malformed.
pub(super) fn split(datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let len = NetlinkBuffer::new_checked(rest).ok()?.length() as usize;
        // new_checked has seen that header and length lie inside.
        let (message, after) = rest.split_at_checked(len)?;
        // Messages start at multiples of four bytes (NLMSG_ALIGN); the last may be unpadded.
        rest = after
            .get(len.next_multiple_of(4) - len..)
            .unwrap_or_default();
        NetlinkBuffer::new_checked(message).ok()
    })
}
