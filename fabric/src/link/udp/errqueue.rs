//! Which destination refused a datagram: the error queue of an unconnected socket (ip(7), `IP_RECVERR`).
//!
//! quinn-udp reads this queue too, but tells who sent the ICMP message, not which address (with its port) refused.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;

/// Room for the extended error and the address of its sender.
const CONTROL_WORDS: usize = 32;

/// Takes one error from the queue: the destination of the datagram that met it, and the error. `None`: the queue is empty.
pub(super) fn take(socket: &UdpSocket) -> io::Result<Option<(Option<SocketAddr>, io::Error)>> {
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: both are plain C structures for which all zeros are valid values.
    let (mut name, mut header): (libc::sockaddr_storage, libc::msghdr) = unsafe { zeroed() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points to `name` and `control` with their lengths, and to no other buffer (the datagram's own bytes are not wanted).
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) } < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error),
        };
    }
    let errno = errno(&header).unwrap_or(0);
    Ok(Some((address(&name), io::Error::from_raw_os_error(errno))))
}

fn errno(header: &libc::msghdr) -> Option<i32> {
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`, and aligned u64 storage suits `cmsghdr`; the macros walk it within
    // these bounds. An item is read only where its length covers a `sock_extended_err`, unaligned in case.
    unsafe {
        let mut item = libc::CMSG_FIRSTHDR(header);
        while let Some(cmsg) = item.as_ref() {
            let kind = (cmsg.cmsg_level, cmsg.cmsg_type);
            let need = libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32);
            if (kind == (libc::IPPROTO_IP, libc::IP_RECVERR)
                || kind == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR))
                && cmsg.cmsg_len as u64 >= u64::from(need)
            {
                let error: libc::sock_extended_err = libc::CMSG_DATA(item)
                    .cast::<libc::sock_extended_err>()
                    .read_unaligned();
                return Some(error.ee_errno as i32);
            }
            item = libc::CMSG_NXTHDR(header, item);
        }
    }
    None
}

fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, which is smaller than the storage and not stricter aligned.
            let a = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6, which is smaller than the storage and not stricter aligned.
            let a = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id).into())
        }
        _ => None,
    }
}
