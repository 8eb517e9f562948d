//! A thread that follows what happens to an interface and tells it as [`HostEvent`]s.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::link::{HostLink, address_of, link_state};
use super::netlink::{BUFFER_LEN, receive, split};
use super::netns::NetnsRef;
use super::watch::NetnsWatch;
use super::{HostError, groups};

/// Something happened to the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostEvent {
    /// The administrator's state and the MTU in bytes of IP packet, at the start and when one changes.
    Link {
        /// Set up (IFF_UP).
        admin_up: bool,
        /// In bytes.
        mtu: u32,
    },
    /// The interface was deleted or moved to another namespace; the last event.
    Gone,
    /// The interface has an address of its own, with this prefix length.
    AddressAdded(IpAddr, u8),
    /// It lost one.
    AddressRemoved(IpAddr, u8),
    /// Routes, rules or next-hop objects changed: what was learnt by [`HostLink::next_hop`] may be
    /// wrong.
    RoutesChanged,
    /// A program of the host, or its kernel, joined a multicast group on the interface.
    GroupJoined(IpAddr),
    /// The last member left the group.
    GroupLeft(IpAddr),
    /// The namespace's name was deleted or its process ended; the last event.
    NamespaceDeleted,
}

/// Notification groups besides those of multicast (Linux `rtnetlink.h`): LINK, IPV4_IFADDR,
/// IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE.
const GROUPS: [u32; 7] = [1, 5, 7, 8, 9, 11, 19];
/// NEXTHOP, from Linux 5.3 on: replacing a next-hop object changes routes without a route message.
const GROUP_NEXTHOP: u32 = 32;
/// RTM_NEWNEXTHOP, RTM_DELNEXTHOP.
const NEXTHOP_MESSAGES: std::ops::RangeInclusive<u16> = 104..=105;

/// Room for notifications while the thread is busy; beyond it, everything is read anew.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Follows one interface until dropped.
pub struct HostMonitor {
    control: Arc<Control>,
    multicast_notified: bool,
    thread: Option<JoinHandle<()>>,
}

struct Control {
    wake: OwnedFd,
    stop: AtomicBool,
    recheck_groups: AtomicBool,
}

impl Control {
    fn wake(&self) {
        // EAGAIN: the counter is at its limit, so the thread is being woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl HostMonitor {
    /// Follows interface `name` in `netns`, or in the caller's network namespace. `callback` is
    /// called on the monitor's thread, first with the current state; it must not wait for the
    /// thread that drops the monitor.
    ///
    /// # Errors
    /// [`HostError::NoSuchInterface`], [`HostError::Namespace`], [`HostError::Request`].
    pub fn start(
        netns: Option<&NetnsRef>,
        name: &str,
        callback: Box<dyn Fn(HostEvent) + Send>,
    ) -> Result<Self, HostError> {
        let failed = |cause| HostError::Request {
            what: "follow the network interface",
            cause,
        };
        // In this order nothing falls between: watch the name, open it, subscribe, read.
        let watch = match netns {
            Some(netns) => NetnsWatch::new(netns).map_err(|e| netns.error(e))?,
            None => None,
        };
        let link = HostLink::open(netns, name)?;
        let (socket, multicast_notified) = link.netns().run(subscribe)?.map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let control = Arc::new(Control {
            wake: wake.map_err(|e| failed(e.into()))?,
            stop: AtomicBool::new(false),
            recheck_groups: AtomicBool::new(false),
        });
        let mut follower = Follower {
            link,
            callback,
            state: State::default(),
            over: false,
        };
        let builder = std::thread::Builder::new().name("ipoib-host".to_owned());
        let thread = builder.spawn({
            let control = Arc::clone(&control);
            move || follower.run(&socket, watch.as_ref(), &control)
        });
        Ok(Self {
            control,
            multicast_notified,
            thread: Some(thread.map_err(failed)?),
        })
    }

    /// Whether the kernel notifies of multicast groups (Linux 6.14 and later). Where it does not,
    /// call [`recheck_groups`](Self::recheck_groups) for each IGMP or MLD report that the host sends.
    pub fn multicast_notified(&self) -> bool {
        self.multicast_notified
    }

    /// Makes the monitor read the multicast groups from /proc and tell what changed.
    pub fn recheck_groups(&self) {
        self.control.recheck_groups.store(true, Ordering::Release);
        self.control.wake();
    }
}

impl Drop for HostMonitor {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Release);
        self.control.wake();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the callback was reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

/// A socket with all notification groups, and whether those of multicast are among them.
fn subscribe() -> io::Result<(Socket, bool)> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    // Above the administrator's limit the kernel gives less, which is no error.
    socket.set_rx_buf_sz(RECEIVE_BUFFER as libc::c_int)?;
    socket.bind_auto()?;
    for group in GROUPS {
        socket.add_membership(group)?;
    }
    let optional = |group| match socket.add_membership(group) {
        Ok(()) => Ok(true),
        // The kernel does not know the group.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(false),
        Err(e) => Err(e),
    };
    optional(GROUP_NEXTHOP)?;
    let mut multicast = true;
    for group in groups::NOTIFICATION_GROUPS {
        multicast &= optional(group)?;
    }
    Ok((socket, multicast))
}

/// What was told so far.
#[derive(Default)]
struct State {
    link: Option<(bool, u32)>,
    addresses: BTreeSet<(IpAddr, u8)>,
    groups: BTreeSet<IpAddr>,
}

struct Follower {
    link: HostLink,
    callback: Box<dyn Fn(HostEvent) + Send>,
    state: State,
    over: bool,
}

/// What the notifications read in one go ask for, once all are read.
#[derive(Default)]
struct Todo {
    routes: bool,
    resync: bool,
}

impl Follower {
    fn run(&mut self, socket: &Socket, watch: Option<&NetnsWatch>, control: &Control) {
        let mut buffer = vec![0; BUFFER_LEN];
        if watch.is_some_and(|w| w.is_deleted(self.link.netns())) {
            return self.end(HostEvent::NamespaceDeleted);
        }
        self.resync();
        while !self.over {
            let mut fds = vec![
                PollFd::new(&control.wake, PollFlags::IN),
                PollFd::new(socket, PollFlags::IN),
            ];
            fds.extend(watch.map(|watch| PollFd::new(watch, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!(error = %e, "the host's interface is no longer followed");
                    return;
                }
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                let _ = rustix::io::read(&control.wake, &mut [0u8; 8]);
            }
            if control.stop.load(Ordering::Acquire) {
                return;
            }
            if ready[1] {
                self.read_notifications(socket, &mut buffer);
            }
            if control.recheck_groups.swap(false, Ordering::AcqRel) && !self.over {
                self.resync_groups();
            }
            if ready.get(2) == Some(&true)
                && !self.over
                && watch.is_some_and(|w| w.is_deleted(self.link.netns()))
            {
                self.end(HostEvent::NamespaceDeleted);
            }
        }
    }

    fn end(&mut self, event: HostEvent) {
        (self.callback)(event);
        self.over = true;
    }

    fn read_notifications(&mut self, socket: &Socket, buffer: &mut [u8]) {
        let mut todo = Todo::default();
        while !self.over {
            match receive(socket, buffer, libc::MSG_DONTWAIT) {
                Ok(None) => {}
                Ok(Some(datagram)) => {
                    for raw in split(datagram) {
                        self.notification(raw.message_type(), raw.into_inner(), &mut todo);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // ENOBUFS: notifications were lost. Anything else is treated alike.
                Err(e) => {
                    tracing::debug!(error = %e, "reading the host's state anew");
                    todo.resync = true;
                    if e.raw_os_error() != Some(libc::ENOBUFS) {
                        break;
                    }
                }
            }
        }
        if todo.resync && !self.over {
            self.resync();
        } else if todo.routes && !self.over {
            (self.callback)(HostEvent::RoutesChanged);
        }
    }

    fn notification(&mut self, message_type: u16, bytes: &[u8], todo: &mut Todo) {
        if NEXTHOP_MESSAGES.contains(&message_type) {
            todo.routes = true;
            return;
        }
        if matches!(message_type, groups::NEW | groups::DEL) {
            let payload = bytes.get(16..).unwrap_or_default();
            match groups::parse_notification(payload) {
                Some((index, group)) if index == self.link.index() => {
                    self.set_group(group, message_type == groups::NEW);
                }
                Some(_) => {}
                None => todo.resync = true,
            }
            return;
        }
        let Ok(message) = NetlinkMessage::<Message>::deserialize(bytes) else {
            todo.resync = true;
            return;
        };
        let index = self.link.index();
        // Bridges send link messages of their own family, which are about their ports.
        let is_link = |message: &netlink_packet_route::link::LinkMessage| {
            message.header.index == index
                && message.header.interface_family == AddressFamily::Unspec
        };
        match message.payload {
            NetlinkPayload::InnerMessage(Message::NewLink(message)) if is_link(&message) => {
                match link_state(&message) {
                    Some(state) => self.set_link(state.admin_up, state.mtu, todo),
                    None => todo.resync = true,
                }
            }
            NetlinkPayload::InnerMessage(Message::DelLink(message)) if is_link(&message) => {
                self.end(HostEvent::Gone);
            }
            NetlinkPayload::InnerMessage(Message::NewAddress(message))
                if message.header.index == index =>
            {
                if let Some(address) = address_of(&message) {
                    self.set_address(address, true);
                }
            }
            NetlinkPayload::InnerMessage(Message::DelAddress(message))
                if message.header.index == index =>
            {
                if let Some(address) = address_of(&message) {
                    self.set_address(address, false);
                }
            }
            NetlinkPayload::InnerMessage(
                Message::NewRoute(_)
                | Message::DelRoute(_)
                | Message::NewRule(_)
                | Message::DelRule(_),
            ) => todo.routes = true,
            _ => {}
        }
    }

    fn set_link(&mut self, admin_up: bool, mtu: u32, todo: &mut Todo) {
        let before = self.state.link.replace((admin_up, mtu));
        if before == self.state.link {
            return;
        }
        (self.callback)(HostEvent::Link { admin_up, mtu });
        // The kernel drops IPv4 routes of a link that goes down without a word, and old kernels say
        // nothing of the groups either.
        if before.is_some_and(|(was_up, _)| was_up != admin_up) {
            todo.resync = true;
        }
    }

    fn set_address(&mut self, address: (IpAddr, u8), present: bool) {
        let (ip, len) = address;
        if present && self.state.addresses.insert(address) {
            (self.callback)(HostEvent::AddressAdded(ip, len));
        } else if !present && self.state.addresses.remove(&address) {
            (self.callback)(HostEvent::AddressRemoved(ip, len));
        }
    }

    fn set_group(&mut self, group: IpAddr, present: bool) {
        if present && self.state.groups.insert(group) {
            (self.callback)(HostEvent::GroupJoined(group));
        } else if !present && self.state.groups.remove(&group) {
            (self.callback)(HostEvent::GroupLeft(group));
        }
    }

    /// Reads everything and tells the differences; routes are not kept, so they may have changed.
    fn resync(&mut self) {
        match self.link.state() {
            Ok(state) => self.set_link(state.admin_up, state.mtu, &mut Todo::default()),
            Err(HostError::NoSuchInterface(_)) => return self.end(HostEvent::Gone),
            Err(e) => tracing::warn!(error = %e, "cannot read the interface's state"),
        }
        match self.link.addresses() {
            Ok(now) => {
                for (address, present) in differences(&self.state.addresses, now) {
                    self.set_address(address, present);
                }
            }
            Err(e) => tracing::warn!(error = %e, "cannot read the interface's addresses"),
        }
        self.resync_groups();
        (self.callback)(HostEvent::RoutesChanged);
    }

    fn resync_groups(&mut self) {
        match self.link.groups_now() {
            Ok(now) => {
                for (group, present) in differences(&self.state.groups, now) {
                    self.set_group(group, present);
                }
            }
            Err(e) => tracing::warn!(error = %e, "cannot read the interface's multicast groups"),
        }
    }
}

/// What is no longer there (false), then what is new (true).
fn differences<T: Copy + Ord>(before: &BTreeSet<T>, now: Vec<T>) -> Vec<(T, bool)> {
    let now: BTreeSet<T> = now.into_iter().collect();
    let lost = before.difference(&now).map(|item| (*item, false));
    lost.chain(now.difference(before).map(|item| (*item, true)))
        .collect()
}
