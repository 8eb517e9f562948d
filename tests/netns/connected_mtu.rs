//! The administrator's MTU on an interface that may be in connected mode.

use crate::connected::{python, serve, set_mode, wait_mtu};
use crate::subnet::{Background, Subnet, succeed, wait_until};
use std::process::Stdio;

/// Each size that host `host` sends by IPv4 is answered, or refused with this MTU; the edges too.
#[track_caller]
fn all_sizes(subnet: &Subnet, host: u32, mtu: u32) {
    let to = format!("10.77.0.{}", 3 - host);
    let most = mtu - 28;
    for (first, last, step) in [(1, 65_492, 1310), (most - 1, most + 1, 1)] {
        let answered = (first..=last).step_by(step).filter(|size| *size <= most);
        let (answered, all) = (answered.count(), (first..=last).step_by(step).count());
        let line = format!("sweep.py {to} {first} {last} {step}");
        let said = succeed(&mut python(subnet, host, &line));
        let expected = format!("{answered} {} {mtu}\n", all - answered);
        assert_eq!(said, expected, "host {host}, {first} to {last}");
    }
}

#[test]
fn an_administrators_mtu_in_both_modes_under_tcp() {
    let Some(subnet) = Subnet::up(2) else { return };
    let _servers = [1, 2].map(|host| serve(&subnet, host));
    set_mode(&subnet, 2, "connected");
    wait_mtu(&subnet, 2, 65_520);
    let streams = [(1, "10.77.0.2"), (2, "10.77.0.1")].map(|(host, address)| {
        let stream = format!("talk.py stream {address} on 4");
        Background::start(python(&subnet, host, &stream).stdin(Stdio::piped()))
    });
    let link_local = || subnet.ip(1, "-o -6 address show dev ib0 scope link");
    let before = link_local();
    let set = |mtu: u32, becomes: u32| {
        subnet.ip(1, &format!("link set ib0 mtu {mtu}"));
        wait_mtu(&subnet, 1, becomes);
        all_sizes(&subnet, 1, becomes);
        // What is longer than the own MTU is received nonetheless.
        all_sizes(&subnet, 2, 65_520);
    };
    let mode = |mode: &str, mtu: u32| {
        set_mode(&subnet, 1, mode);
        wait_mtu(&subnet, 1, mtu);
        all_sizes(&subnet, 1, mtu);
    };
    set(1500, 1500);
    // More than the broadcast group allows.
    set(9000, 2044);
    mode("connected", 65_520);
    set(9000, 9000);
    // It stays the administrator's wish over changes of mode, as far as they allow it.
    mode("datagram", 2044);
    mode("connected", 9000);
    set(2044, 2044);
    set(65_521, 65_520);
    // Too small for IPv6: the kernel takes it from the device and deletes its addresses, but what every interface has comes back.
    set(1000, 1000);
    assert_eq!(link_local(), "");
    set(65_520, 65_520);
    wait_until("the link-local address", link_local, |now| *now == before);
    subnet.ip(1, "address add fd77::1/64 dev ib0");
    subnet.wait_reaches(1, "fd77::2");
    let sweep = "sweep.py fd77::2 1 65472 1310";
    let said = succeed(&mut python(&subnet, 1, sweep));
    assert_eq!(said, "50 0 65520\n");
    for mut stream in streams {
        drop(stream.0.stdin.take());
        stream.succeeds("the stream");
    }
}
