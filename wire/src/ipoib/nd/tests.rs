use super::*;
use crate::id::{Gid, Qpn};

const GUID_A: Guid = Guid(0x0002_c903_0001_a0b1);
const GUID_B: Guid = Guid(0x0002_c903_0002_c3d2);

fn a() -> Ipv6Addr {
    link_local(GUID_A)
}
fn b() -> Ipv6Addr {
    link_local(GUID_B)
}
fn link_a() -> LinkAddress {
    LinkAddress {
        flags: 0x80,
        qpn: Qpn(0x48),
        gid: Gid::new(Gid::DEFAULT_PREFIX, GUID_A),
    }
}
fn ns() -> Vec<u8> {
    neighbor_solicitation(a(), solicited_node(b()), b(), Some(link_a()))
}
/// `ip` changed by `change`, with the checksum made right again.
fn changed(mut ip: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut ip);
    ip[42..44].fill(0);
    let sum = icmpv6_checksum(address(&ip, 8), address(&ip, 24), &ip[40..]);
    ip[42..44].copy_from_slice(&sum.to_be_bytes());
    ip
}

#[test]
fn layout_of_a_solicitation() {
    let hex = "6000000000303afffe800000000000000202c9030001a0b1ff0200000000000000000001ff02c3d28700d5a100000000
               fe800000000000000202c9030002c3d20103000080000048fe800000000000000002c9030001a0b1";
    let digits: String = hex.split_whitespace().collect();
    let expect: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|n| u8::from_str_radix(&digits[n..n + 2], 16).unwrap())
        .collect();
    assert_eq!(ns(), expect);
    let packet = NdPacket::parse(&expect).unwrap();
    assert_eq!(
        packet.message,
        NdMessage::NeighborSolicitation { target: b() }
    );
    assert_eq!(
        (packet.source, packet.destination, packet.link_address()),
        (a(), solicited_node(b()), Some(link_a()))
    );
    assert_eq!(packet.emit(), expect);
}

#[test]
fn advertisement_roundtrip() {
    for bits in 0..8u8 {
        let flags = NaFlags {
            router: bits & 1 != 0,
            solicited: bits & 2 != 0,
            override_cached: bits & 4 != 0,
        };
        for link in [None, Some(link_a())] {
            let bytes = neighbor_advertisement(a(), b(), a(), flags, link);
            let packet = NdPacket::parse(&bytes).unwrap();
            assert_eq!(
                packet.message,
                NdMessage::NeighborAdvertisement { flags, target: a() }
            );
            assert_eq!(packet.link_address(), link);
            assert_eq!(packet.emit(), bytes);
        }
    }
}

#[test]
fn router_messages_roundtrip() {
    let router = |message, options| NdPacket {
        traffic_class: 0xc0,
        flow_label: 0x12345,
        source: a(),
        destination: b(),
        message,
        options,
    };
    let mtu = [5, 1, 0, 0, 0, 0, 7, 0xfc];
    let advertisement = NdMessage::RouterAdvertisement {
        cur_hop_limit: 64,
        flags: 0xc0,
        router_lifetime: 1800,
        reachable_time: 30_000,
        retrans_timer: 1000,
    };
    for message in [
        advertisement,
        NdMessage::RouterSolicitation,
        NdMessage::Redirect {
            target: a(),
            destination: "2001:db8::1".parse().unwrap(),
        },
    ] {
        let packet = router(message, NdOptions::parse(&mtu).unwrap());
        assert_eq!(NdPacket::parse(&packet.emit()), Ok(packet));
    }
    let global = NdPacket {
        source: "2001:db8::1".parse().unwrap(),
        ..router(advertisement, NdOptions::default())
    };
    assert_eq!(
        NdPacket::parse(&global.emit()),
        Err(NdError::RouterAddress(global.source))
    );
    let target = "2001:db8::2".parse().unwrap();
    let redirect = router(
        NdMessage::Redirect {
            target,
            destination: "2001:db8::1".parse().unwrap(),
        },
        NdOptions::default(),
    );
    assert_eq!(
        NdPacket::parse(&redirect.emit()),
        Err(NdError::RedirectTarget(target))
    );
}

#[test]
fn receive_rules() {
    let refused = |ip: &[u8]| NdPacket::parse(ip).unwrap_err();
    assert_eq!(
        refused(&changed(ns(), |ip| ip[7] = 254)),
        NdError::HopLimit(254)
    );
    let mut wrong = ns();
    wrong[87] ^= 1;
    assert_eq!(refused(&wrong), NdError::Checksum(0xd5a1));
    assert_eq!(refused(&changed(ns(), |ip| ip[41] = 1)), NdError::Code(1));
    assert_eq!(
        refused(&changed(ns(), |ip| ip[48] = 0xff)),
        NdError::Multicast(address(&changed(ns(), |ip| ip[48] = 0xff), 48))
    );
    assert_eq!(
        refused(&changed(ns(), |ip| ip[65] = 0)),
        NdError::OptionLength(0)
    );
    assert_eq!(
        refused(&changed(ns(), |ip| ip[65] = 4)),
        NdError::OptionLength(4)
    );
    assert_eq!(
        refused(&changed(ns(), |ip| ip[6] = 17)),
        NdError::NotNeighborDiscovery
    );
    assert_eq!(
        refused(&ns()[..87]),
        NdError::Truncated { have: 87, need: 88 }
    );
    let short = changed(ns()[..60].to_vec(), |ip| ip[5] = 20);
    assert_eq!(refused(&short), NdError::Truncated { have: 20, need: 24 });
    let flags = NaFlags {
        solicited: true,
        ..NaFlags::default()
    };
    let all_nodes = "ff02::1".parse().unwrap();
    assert_eq!(
        refused(&neighbor_advertisement(a(), all_nodes, a(), flags, None)),
        NdError::SolicitedMulticast(all_nodes)
    );
}

#[test]
fn duplicate_address_detection() {
    let none = Ipv6Addr::UNSPECIFIED;
    assert!(NdPacket::parse(&neighbor_solicitation(none, solicited_node(b()), b(), None)).is_ok());
    assert_eq!(
        NdPacket::parse(&neighbor_solicitation(none, b(), b(), None)),
        Err(NdError::DadDestination(b()))
    );
    assert_eq!(
        NdPacket::parse(&neighbor_solicitation(
            none,
            solicited_node(b()),
            b(),
            Some(link_a())
        )),
        Err(NdError::DadLinkAddress)
    );
}

#[test]
fn addresses_of_a_port() {
    assert_eq!(a().to_string(), "fe80::202:c903:1:a0b1");
    assert_eq!(solicited_node(a()).to_string(), "ff02::1:ff01:a0b1");
    assert_eq!(
        link_local(Guid(0x0200_0000_0000_0001)).to_string(),
        "fe80::200:0:0:1"
    );
}

#[test]
fn an_option_of_ethernet_length_is_no_address() {
    let options = [1, 1, 2, 3, 4, 5, 6, 7];
    let message = NdMessage::NeighborSolicitation { target: b() };
    let packet = NdPacket {
        traffic_class: 0,
        flow_label: 0,
        source: a(),
        destination: b(),
        message,
        options: NdOptions::parse(&options).unwrap(),
    };
    let bytes = packet.emit();
    assert_eq!(NdPacket::parse(&bytes).unwrap().link_address(), None);
}
