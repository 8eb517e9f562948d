//! Demo hosts in network namespaces: the kernel's IP stack on a TUN device, reached by ordinary sockets.

use super::{BULK_PORT, DemoHost, Sent, pattern, receive_all};
use crate::cli::InterfaceAddress;
use crate::linux::LinuxNode;
use crate::node::{Node, NodeConfig};
use crate::subnet::Subnet;
use anyhow::{Context, bail};
use datapath::host::{HostLink, Netns, NetnsRef};
use datapath::netdev::tun;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt,
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Finds out whether this process may have namespaces and TUN devices, before any thread exists.
///
/// # Errors
/// What was refused.
pub(super) fn probe() -> anyhow::Result<()> {
    super::userns::enter_if_needed()?;
    let netns = Netns::new_anonymous()?;
    tun::open_in(Some(&netns.into()), "ib0")?;
    Ok(())
}

/// One host.
pub(super) struct NamespaceHost {
    host: LinuxNode,
    link: HostLink,
    netns: Netns,
    sequence: AtomicU16,
}

impl NamespaceHost {
    /// Makes the namespace and its `ib0`, and plugs it into the subnet.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub(super) fn start(
        config: NodeConfig,
        addresses: &[InterfaceAddress],
        subnet: &Subnet,
    ) -> anyhow::Result<NamespaceHost> {
        let netns = Netns::new_anonymous()?;
        let at = NetnsRef::Open(netns.clone());
        let name = config.interface.name.clone();
        let host = LinuxNode::start(config, Some(&at), addresses)?;
        subnet.connect(None, host.node().sink(), |link| host.node().attach(link))?;
        Ok(NamespaceHost {
            link: HostLink::open(Some(&at), &name)?,
            host,
            netns,
            sequence: AtomicU16::new(0),
        })
    }
}

impl DemoHost for NamespaceHost {
    fn node(&self) -> &Node {
        self.host.node()
    }

    fn is_running(&self) -> bool {
        self.link.state().is_ok_and(|state| state.running)
    }

    fn echo(
        &self,
        to: IpAddr,
        want: usize,
        timeout: Duration,
    ) -> anyhow::Result<BTreeMap<IpAddr, Duration>> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let socket = self
            .netns
            .run(|| icmp_socket(to))
            .context("cannot enter the namespace")??;
        let request = Echo {
            v6: to.is_ipv6(),
            ident: std::process::id() as u16,
            sequence,
        };
        let scope = if matches!(to, IpAddr::V6(ip) if ip.is_multicast()) {
            self.link.index()
        } else {
            0
        };
        let to = match to {
            IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, scope).into(),
        };
        let sent = Instant::now();
        net::sendto(&socket, &request.to_bytes(), SendFlags::empty(), &to)?;
        let mut answers = BTreeMap::new();
        let mut buffer = [0; 2048];
        while answers.len() < want {
            let left = timeout.saturating_sub(sent.elapsed());
            if left < Duration::from_millis(1) {
                break;
            }
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(left))?;
            match net::recvfrom(&socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _, Some(from))) if request.is_answered_by(&buffer[..length]) => {
                    if let Ok(from) = SocketAddr::try_from(from) {
                        answers.entry(from.ip()).or_insert_with(|| sent.elapsed());
                    }
                }
                // Raw sockets see all ICMP; a time-out shows above.
                Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(answers)
    }

    fn listen(&self) -> anyhow::Result<Box<dyn FnOnce(Instant) -> anyhow::Result<()> + Send + '_>> {
        let listener = self
            .netns
            .run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, BULK_PORT)))??;
        Ok(Box::new(move |deadline| {
            listener.set_nonblocking(true)?;
            let mut stream = loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    Err(error)
                        if error.kind() == std::io::ErrorKind::WouldBlock
                            && Instant::now() < deadline =>
                    {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => return Err(error).context("nobody connected"),
                }
            };
            stream.set_nonblocking(false)?;
            set_timeouts(&stream, deadline)?;
            let digest = receive_all(|buffer| Ok(stream.read(buffer)?))?;
            Ok(stream.write_all(&digest.to_be_bytes())?)
        }))
    }

    fn send(&self, to: IpAddr, bytes: usize, deadline: Instant) -> anyhow::Result<Sent> {
        let transfer = || -> anyhow::Result<Sent> {
            let begin = Instant::now();
            let mut stream = TcpStream::connect_timeout(
                &(to, BULK_PORT).into(),
                deadline.saturating_duration_since(begin),
            )?;
            set_timeouts(&stream, deadline)?;
            let mut sent = crc32fast::Hasher::new();
            for block in pattern(bytes) {
                sent.update(&block);
                stream.write_all(&block)?;
                if Instant::now() > deadline {
                    bail!("took too long");
                }
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut received = [0; 4];
            stream.read_exact(&mut received)?;
            Ok(Sent {
                duration: begin.elapsed(),
                sent: sent.finalize(),
                received: u32::from_be_bytes(received),
            })
        };
        self.netns.run(transfer)?
    }
}

fn set_timeouts(stream: &TcpStream, deadline: Instant) -> std::io::Result<()> {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

fn icmp_socket(to: IpAddr) -> rustix::io::Result<OwnedFd> {
    let (family, protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let socket = net::socket_with(
        family,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(protocol),
    )?;
    if to.is_ipv6() {
        // Else this host would answer its own ping of all nodes.
        sockopt::set_ipv6_multicast_loop(&socket, false)?;
    }
    Ok(socket)
}

/// An echo request of RFC 792 or RFC 4443.
struct Echo {
    v6: bool,
    ident: u16,
    sequence: u16,
}

impl Echo {
    fn to_bytes(&self) -> [u8; 64] {
        let mut packet = [0; 64];
        packet[0] = if self.v6 { 128 } else { 8 };
        packet[4..6].copy_from_slice(&self.ident.to_be_bytes());
        packet[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        // The kernel fills in that of ICMPv6 (RFC 3542 section 3.1).
        if !self.v6 {
            let words = packet
                .chunks_exact(2)
                .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            let sum: u32 = words.sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            packet[2..4].copy_from_slice(&(!(folded + (folded >> 16)) as u16).to_be_bytes());
        }
        packet
    }

    /// A raw IPv4 socket hands out the IP header too, an IPv6 one does not.
    fn is_answered_by(&self, packet: &[u8]) -> bool {
        let header = if self.v6 {
            0
        } else {
            packet
                .first()
                .map_or(0, |first| usize::from(first & 0xf) * 4)
        };
        let kind = if self.v6 { 129 } else { 0 };
        packet.get(header..header + 8).is_some_and(|icmp| {
            icmp[0] == kind
                && icmp[4..6] == self.ident.to_be_bytes()
                && icmp[6..8] == self.sequence.to_be_bytes()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_request_has_a_right_checksum_and_its_reply_is_known() {
        let echo = Echo {
            v6: false,
            ident: 0x1234,
            sequence: 0xfffe,
        };
        let mut packet = echo.to_bytes();
        let sum: u32 = packet
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        packet[0] = 0;
        let received = [&[0x45; 1][..], &[0; 19], &packet].concat();
        assert!(echo.is_answered_by(&received));
        assert!(
            !Echo {
                sequence: 1,
                ..echo
            }
            .is_answered_by(&received)
        );
        assert!(!echo.is_answered_by(&received[..27]));
    }
}
