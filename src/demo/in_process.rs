//! Demo hosts without the kernel: smoltcp stacks.

use super::{BULK_PORT, DemoHost, Sent, pattern, receive_all};
use crate::cli::InterfaceAddress;
use crate::node::{Node, NodeConfig};
use crate::stack::Stack;
use crate::subnet::Subnet;
use anyhow::{Context, bail};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::IpAddress;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Of a TCP socket, each way, bytes.
const BUFFER: usize = 256 << 10;
/// Where the sender's connection starts.
const CLIENT_PORT: u16 = 50_000;

/// One host.
pub(super) struct StackHost {
    stack: Stack,
    sequence: AtomicU16,
}

impl StackHost {
    /// Starts it and plugs it into the subnet.
    ///
    /// # Errors
    /// No threads to be had.
    pub(super) fn start(
        config: NodeConfig,
        addresses: &[InterfaceAddress],
        subnet: &Subnet,
    ) -> anyhow::Result<StackHost> {
        let stack = Stack::start(config, addresses)?;
        subnet.connect(None, stack.node().sink(), |link| stack.node().attach(link))?;
        Ok(StackHost {
            stack,
            sequence: AtomicU16::new(0),
        })
    }
}

impl DemoHost for StackHost {
    fn node(&self) -> &Node {
        self.stack.node()
    }

    fn is_running(&self) -> bool {
        self.stack.is_running()
    }

    fn echo(
        &self,
        to: IpAddr,
        want: usize,
        timeout: Duration,
    ) -> anyhow::Result<BTreeMap<IpAddr, Duration>> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let pinger = self.stack.pinger(std::process::id() as u16);
        let sent = pinger.send(to, sequence, 56)?;
        let mut answers = BTreeMap::new();
        while answers.len() < want
            && let Some(reply) = pinger.receive(sent + timeout)
        {
            if reply.sequence == sequence {
                answers.entry(reply.from).or_insert(reply.at - sent);
            }
        }
        Ok(answers)
    }

    fn listen(&self) -> anyhow::Result<Box<dyn FnOnce(Instant) -> anyhow::Result<()> + Send + '_>> {
        let listening =
            |socket: &mut tcp::Socket<'static>, _: &mut Interface| Ok(socket.listen(BULK_PORT)?);
        let connection = Connection::open(&self.stack, listening)?;
        Ok(Box::new(move |deadline| {
            connection.wait("nobody connected", deadline, |socket| {
                socket.may_send().then_some(Ok(()))
            })?;
            let digest = receive_all(|buffer| connection.read(buffer, deadline))?;
            connection.write(&digest.to_be_bytes(), deadline)?;
            connection.close(deadline)
        }))
    }

    fn send(&self, to: IpAddr, bytes: usize, deadline: Instant) -> anyhow::Result<Sent> {
        let begin = Instant::now();
        let connecting = |socket: &mut tcp::Socket<'static>, iface: &mut Interface| {
            Ok(socket.connect(
                iface.context(),
                (IpAddress::from(to), BULK_PORT),
                CLIENT_PORT,
            )?)
        };
        let connection = Connection::open(&self.stack, connecting)?;
        connection.wait("no connection", deadline, |socket| match socket.state() {
            tcp::State::Closed => Some(Err(anyhow::anyhow!("connection refused"))),
            _ => socket.may_send().then_some(Ok(())),
        })?;
        let mut sent = crc32fast::Hasher::new();
        for block in pattern(bytes) {
            sent.update(&block);
            connection.write(&block, deadline)?;
        }
        connection.close(deadline)?;
        let mut received = [0; 4];
        for at in 0..received.len() {
            if connection.read(&mut received[at..=at], deadline)? == 0 {
                bail!("the connection ended before the answer");
            }
        }
        Ok(Sent {
            duration: begin.elapsed(),
            sent: sent.finalize(),
            received: u32::from_be_bytes(received),
        })
    }
}

/// A TCP socket of a stack, with calls that wait.
struct Connection<'a> {
    stack: &'a Stack,
    handle: SocketHandle,
}

impl<'a> Connection<'a> {
    fn open(
        stack: &'a Stack,
        mut begin: impl FnMut(&mut tcp::Socket<'static>, &mut Interface) -> anyhow::Result<()>,
    ) -> anyhow::Result<Connection<'a>> {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let connection = Connection {
            stack,
            handle: stack.add(tcp::Socket::new(buffer(), buffer())),
        };
        let begin = |sockets: &mut SocketSet<'static>, iface: &mut Interface| {
            Some(begin(sockets.get_mut(connection.handle), iface))
        };
        stack.drive(Instant::now(), begin).unwrap_or(Ok(()))?;
        Ok(connection)
    }

    fn wait<T>(
        &self,
        what: &'static str,
        deadline: Instant,
        mut ready: impl FnMut(&mut tcp::Socket<'static>) -> Option<anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.stack
            .drive(deadline, |sockets, _| ready(sockets.get_mut(self.handle)))
            .context(what)?
    }

    /// Waits for data; 0 at the end of the stream.
    fn read(&self, buffer: &mut [u8], deadline: Instant) -> anyhow::Result<usize> {
        self.wait("no data", deadline, |socket| {
            match (socket.can_recv(), socket.may_recv()) {
                (true, _) => Some(socket.recv_slice(buffer).map_err(Into::into)),
                (false, true) => None,
                (false, false) => Some(Ok(0)),
            }
        })
    }

    fn write(&self, data: &[u8], deadline: Instant) -> anyhow::Result<()> {
        let mut rest = data;
        while !rest.is_empty() {
            let count = self.wait("no progress", deadline, |socket| {
                let ready = socket.can_send() || !socket.may_send();
                ready.then(|| socket.send_slice(rest).map_err(Into::into))
            })?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Ends the own direction and waits until the other side has all of it, or has gone after it took what it wanted.
    fn close(&self, deadline: Instant) -> anyhow::Result<()> {
        let mut closed = false;
        self.wait("the other side did not take all", deadline, |socket| {
            if !std::mem::replace(&mut closed, true) {
                socket.close();
            }
            (socket.send_queue() == 0 || !socket.is_open()).then_some(Ok(()))
        })
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.stack.remove(self.handle);
    }
}
