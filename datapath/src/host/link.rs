//! One network interface of the host: setting it up, and asking the kernel about it.

use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia,
};

use super::netlink::Requests;
use super::netns::{Netns, NetnsRef};
use super::{HostError, groups};

/// What the kernel says of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// The name now; an administrator may change it.
    pub name: String,
    /// The administrator set it up (IFF_UP).
    pub admin_up: bool,
    /// It is up and has a carrier (IFF_RUNNING, which the kernel derives from the operational state).
    pub running: bool,
    /// In bytes of IP packet.
    pub mtu: u32,
}

/// To whom a packet must go on the interface's subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// To the destination itself.
    OnLink,
    /// To this router. Its family may differ from the destination's (IPv4 by an IPv6 next hop).
    Gateway(IpAddr),
    /// To everyone: the destination is a broadcast address.
    Broadcast,
    /// The kernel has no route to it by this interface, or it is the host itself.
    Unreachable,
}

/// A network interface, by its index, in its network namespace.
pub struct HostLink {
    netns: Netns,
    index: u32,
    requests: Requests,
}

impl HostLink {
    /// Finds interface `name` in `netns`, or in the caller's network namespace.
    ///
    /// # Errors
    /// [`HostError::NoSuchInterface`], [`HostError::Namespace`], [`HostError::Request`].
    pub fn open(netns: Option<&NetnsRef>, name: &str) -> Result<Self, HostError> {
        let netns = netns.map_or_else(Netns::current, NetnsRef::open)?;
        let requests = open_requests(&netns)?;
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        let index = get_link(&requests, message, name)?.header.index;
        Ok(Self {
            netns,
            index,
            requests,
        })
    }

    /// The interface's index in its namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Sets the interface up or down.
    ///
    /// # Errors
    /// [`HostError::Request`].
    pub fn set_up(&self, up: bool) -> Result<(), HostError> {
        let mut message = self.link_message();
        message.header.change_mask = LinkFlags::Up;
        if up {
            message.header.flags = LinkFlags::Up;
        }
        let what = "set the interface up or down";
        self.requests.change(what, Message::SetLink(message), 0)
    }

    /// Sets the MTU in bytes.
    ///
    /// # Errors
    /// [`HostError::Request`].
    pub fn set_mtu(&self, mtu: u32) -> Result<(), HostError> {
        let mut message = self.link_message();
        message.attributes.push(LinkAttribute::Mtu(mtu));
        self.requests
            .change("set the MTU", Message::SetLink(message), 0)
    }

    /// Keeps the kernel from making a random `fe80::` address when the interface goes up
    /// (`addrgenmode none`).
    ///
    /// # Errors
    /// [`HostError::Request`]; EAFNOSUPPORT where the kernel has no IPv6.
    pub fn set_addr_gen_mode_none(&self) -> Result<(), HostError> {
        let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let mut message = self.link_message();
        message
            .attributes
            .push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
                vec![mode],
            )]));
        let what = "set the IPv6 address generation mode";
        self.requests.change(what, Message::SetLink(message), 0)
    }

    /// Adds an address; that it is there already is no error.
    ///
    /// # Errors
    /// [`HostError::Request`].
    pub fn add_address(&self, address: IpAddr, prefix_len: u8) -> Result<(), HostError> {
        let message = self.address_message(address, prefix_len);
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.requests
            .change("add the address", Message::NewAddress(message), flags)
    }

    /// Adds the link-local address of a port's GUID, [`wire::ipoib::nd::link_local`].
    ///
    /// # Errors
    /// [`HostError::Request`].
    pub fn add_link_local(&self, guid: wire::Guid) -> Result<(), HostError> {
        self.add_address(wire::ipoib::nd::link_local(guid).into(), 64)
    }

    /// The same where the kernel took IPv6 from the interface and gave it back, with addresses of its own making: they go.
    ///
    /// # Errors
    /// [`HostError::Request`].
    pub fn restore_link_local(&self, guid: wire::Guid) -> Result<(), HostError> {
        let cleared = self.clear_link_local(wire::ipoib::nd::link_local(guid));
        self.add_link_local(guid)?;
        cleared
    }

    fn clear_link_local(&self, own: Ipv6Addr) -> Result<(), HostError> {
        self.set_addr_gen_mode_none()?;
        for (address, prefix_len) in self.addresses()? {
            if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() && v6 != own) {
                let message = self.address_message(address, prefix_len);
                self.requests
                    .change("delete the address", Message::DelAddress(message), 0)?;
            }
        }
        Ok(())
    }

    /// Name, flags and MTU.
    ///
    /// # Errors
    /// [`HostError::NoSuchInterface`] after the interface was deleted; [`HostError::Request`].
    pub fn state(&self) -> Result<LinkState, HostError> {
        let message = get_link(&self.requests, self.link_message(), &self.index.to_string())?;
        link_state(&message).ok_or_else(|| HostError::Answer {
            what: "read the interface",
            detail: "name or MTU is missing".to_owned(),
        })
    }

    /// The interface's own addresses with their prefix lengths.
    ///
    /// # Errors
    /// [`HostError::Request`].
    pub fn addresses(&self) -> Result<Vec<(IpAddr, u8)>, HostError> {
        let message = Message::GetAddress(AddressMessage::default());
        let messages = self.requests.dump("read the addresses", message)?;
        let addresses = messages.iter().filter_map(|message| match message {
            Message::NewAddress(message) if message.header.index == self.index => {
                address_of(message)
            }
            _ => None,
        });
        Ok(addresses.collect())
    }

    /// The multicast groups that are joined on the interface, read from /proc.
    ///
    /// # Errors
    /// [`HostError::Namespace`]; [`HostError::Request`] where /proc cannot be read.
    pub fn groups_now(&self) -> Result<Vec<IpAddr>, HostError> {
        let groups = self.netns.run(|| groups::read_proc(self.index))?;
        groups.map_err(|cause| HostError::Request {
            what: "read the multicast groups",
            cause,
        })
    }

    /// Asks the kernel's routing (routes, metrics, next-hop objects, rules) for the next hop of a
    /// packet to `destination` that it gave to this interface. Not for multicast.
    ///
    /// For IPv4 the kernel takes a destination without a route by this interface as on-link
    /// (`ip_route_output_key_hash_rcu`): a program that binds its socket to the interface relies
    /// on that.
    ///
    /// # Errors
    /// [`HostError::Request`], [`HostError::Answer`].
    pub fn next_hop(&self, destination: IpAddr) -> Result<NextHop, HostError> {
        self.route(destination, None)
    }

    /// [`next_hop`](Self::next_hop) for a packet with this source address: rules may look at it. The
    /// kernel answers so only for an IPv4 source of its own; for one whose packets it forwards, the
    /// destination decides alone.
    ///
    /// # Errors
    /// [`HostError::Request`], [`HostError::Answer`].
    pub fn next_hop_from(&self, source: IpAddr, destination: IpAddr) -> Result<NextHop, HostError> {
        match self.route(destination, Some(source)) {
            // EINVAL or ENETUNREACH, depending on the kernel: the source is not the host's own. That a
            // rule really forbids the packet is not to be thought of: the kernel has let it through.
            Ok(NextHop::Unreachable) => self.route(destination, None),
            answer => answer,
        }
    }

    /// Lets the kernel forget which MTU it was told of the path to `destination` (RFC 1191, RFC 8201), which it believes for ten minutes else.
    /// IPv4 knows only all such MTUs of the network namespace at once: others are found out anew.
    ///
    /// # Errors
    /// [`HostError::Namespace`]; [`HostError::Request`]: it knew none (IPv6), or /proc may not be written.
    pub fn forget_path_mtu(&self, destination: IpAddr) -> Result<(), HostError> {
        let what = "forget the MTU of a path";
        if destination.is_ipv4() {
            let flush = || std::fs::write("/proc/sys/net/ipv4/route/flush", "1");
            let done = self.netns.run(flush)?;
            return done.map_err(|cause| HostError::Request { what, cause });
        }
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.destination_prefix_length = 128;
        message.header.flags = RouteFlags::Cloned;
        message.attributes = vec![
            RouteAttribute::Destination(destination.into()),
            RouteAttribute::Oif(self.index),
        ];
        self.requests.change(what, Message::DelRoute(message), 0)
    }

    fn route(&self, destination: IpAddr, source: Option<IpAddr>) -> Result<NextHop, HostError> {
        if matches!(destination, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return Ok(NextHop::OnLink);
        }
        let what = "find the route";
        let whole = if destination.is_ipv4() { 32 } else { 128 };
        let mut message = RouteMessage::default();
        message.header.address_family = family(destination);
        message.header.destination_prefix_length = whole;
        message.attributes = vec![
            RouteAttribute::Destination(destination.into()),
            RouteAttribute::Oif(self.index),
        ];
        if let Some(source) = source {
            message.header.source_prefix_length = whole;
            message
                .attributes
                .push(RouteAttribute::Source(source.into()));
        }
        match self.requests.get(what, Message::GetRoute(message)) {
            Ok(Message::NewRoute(route)) => Ok(self.next_hop_of(&route)),
            Ok(other) => Err(HostError::Answer {
                what,
                detail: format!("message type {}", other.message_type()),
            }),
            Err(e) => match e.errno() {
                // No route; or one of type unreachable, prohibit, blackhole, throw; or no device.
                Some(
                    libc::ENETUNREACH
                    | libc::EINVAL
                    | libc::EHOSTUNREACH
                    | libc::EACCES
                    | libc::EAGAIN
                    | libc::ENODEV
                    | libc::ENETDOWN,
                ) => Ok(NextHop::Unreachable),
                _ => Err(e),
            },
        }
    }

    fn next_hop_of(&self, route: &RouteMessage) -> NextHop {
        match route.header.kind {
            RouteType::Unicast | RouteType::Multicast | RouteType::Anycast => {}
            RouteType::Broadcast => return NextHop::Broadcast,
            _ => return NextHop::Unreachable,
        }
        let mut gateway = None;
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) if *index != self.index => return NextHop::Unreachable,
                RouteAttribute::Gateway(RouteAddress::Inet(v4)) => gateway = Some((*v4).into()),
                RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => gateway = Some((*v6).into()),
                RouteAttribute::Via(RouteVia::Inet(v4)) => gateway = Some((*v4).into()),
                RouteAttribute::Via(RouteVia::Inet6(v6)) => gateway = Some((*v6).into()),
                _ => {}
            }
        }
        gateway.map_or(NextHop::OnLink, NextHop::Gateway)
    }

    fn address_message(&self, address: IpAddr, prefix_len: u8) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = self.index;
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
        ];
        message
    }

    fn link_message(&self) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        message
    }
}

fn open_requests(netns: &Netns) -> Result<Requests, HostError> {
    netns
        .run(Requests::new)?
        .map_err(|cause| HostError::Request {
            what: "open a netlink socket",
            cause,
        })
}

fn get_link(
    requests: &Requests,
    message: LinkMessage,
    name: &str,
) -> Result<LinkMessage, HostError> {
    let what = "read the interface";
    match requests.get(what, Message::GetLink(message)) {
        Ok(Message::NewLink(message)) => Ok(message),
        Ok(other) => Err(HostError::Answer {
            what,
            detail: format!("message type {}", other.message_type()),
        }),
        Err(e) if e.errno() == Some(libc::ENODEV) => {
            Err(HostError::NoSuchInterface(name.to_owned()))
        }
        Err(e) => Err(e),
    }
}

pub(super) fn link_state(message: &LinkMessage) -> Option<LinkState> {
    let (mut name, mut mtu) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(value) => name = Some(value.clone()),
            LinkAttribute::Mtu(value) => mtu = Some(*value),
            _ => {}
        }
    }
    Some(LinkState {
        name: name?,
        admin_up: message.header.flags.contains(LinkFlags::Up),
        running: message.header.flags.contains(LinkFlags::Running),
        mtu: mtu?,
    })
}

/// The interface's own address: IFA_LOCAL, which IPv6 leaves out where there is no peer; IFA_ADDRESS
/// is the peer's on a point-to-point link.
pub(super) fn address_of(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => return Some((*local, message.header.prefix_len)),
            AddressAttribute::Address(value) => address = Some(*value),
            _ => {}
        }
    }
    Some((address?, message.header.prefix_len))
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
