//! Programs that know nothing of InfiniBand.

use crate::subnet::{Background, Subnet, command, succeed, wait_until};
use std::io::{BufWriter, Write};
use std::process::Stdio;

/// A download of 100 MB by curl from Python's web server arrives as it is.
#[test]
fn http_download() {
    let Some(subnet) = Subnet::up(2) else { return };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    write_noise(&file, 100_000_000);
    let mut server = subnet.on(2, "python3 -m http.server --bind :: 8000 --directory");
    let _server = Background(
        server
            .arg(place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    wait_until(
        "the web server listens",
        || succeed(&mut subnet.on(2, "ss -Hltn")),
        |listening| listening.contains(":8000"),
    );
    for host in ["10.77.0.2", "[fd77::2]"] {
        let copy = place.path().join("copy");
        let mut curl = subnet.on(
            1,
            &format!("curl --noproxy * --globoff -sSf http://{host}:8000/file -o"),
        );
        succeed(curl.arg(&copy));
        let sums = [&file, &copy].map(|file| {
            let line = succeed(command("sha256sum").arg(file));
            line.split(' ').next().unwrap().to_owned()
        });
        assert_eq!(std::fs::metadata(&copy).unwrap().len(), 100_000_000);
        assert_eq!(sums[0], sums[1], "from {host}");
    }
}

/// Bytes that repeat nowhere: xorshift64.
fn write_noise(path: &std::path::Path, length: usize) {
    let mut file = BufWriter::new(std::fs::File::create(path).unwrap());
    let mut x = 0x1234_5678_9abc_def1_u64;
    for _ in 0..length / 8 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        file.write_all(&x.to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// Host 2 is the router between the subnet and a network behind it.
#[test]
fn route_by_another_host() {
    let Some(subnet) = Subnet::up(2) else { return };
    let behind = format!("{}net", subnet.prefix);
    struct Namespace<'a>(&'a str);
    impl Drop for Namespace<'_> {
        fn drop(&mut self) {
            let _ = command(&format!("ip netns delete {}", self.0)).status();
        }
    }
    succeed(&mut command(&format!("ip netns add {behind}")));
    let _behind = Namespace(&behind);
    subnet.ip(
        2,
        &format!("link add veth0 type veth peer name veth0 netns {behind}"),
    );
    for (namespace, number) in [(subnet.namespace(2).as_str(), 1), (&behind, 2)] {
        succeed(&mut command(&format!(
            "ip -n {namespace} address add 192.0.2.{number}/24 dev veth0"
        )));
        succeed(&mut command(&format!(
            "ip -n {namespace} address add 2001:db8::{number}/64 dev veth0 nodad"
        )));
        succeed(&mut command(&format!(
            "ip -n {namespace} link set veth0 up"
        )));
    }
    succeed(&mut subnet.on(
        2,
        "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
    ));
    succeed(&mut command(&format!(
        "ip -n {behind} route add default via 192.0.2.1"
    )));
    succeed(&mut command(&format!(
        "ip -n {behind} route add default via 2001:db8::1"
    )));
    subnet.ip(1, "route add 192.0.2.0/24 via 10.77.0.2");
    subnet.ip(1, "route add 2001:db8::/64 via fd77::2");
    for address in ["192.0.2.2", "2001:db8::2"] {
        subnet.wait_reaches(1, address);
        // Through the router: one hop less is left to the answer.
        let ping = subnet.all_come_back(1, 5, &format!("-i 0.05 {address}"));
        assert!(ping.contains("ttl=63"), "{ping}");
        let back = if address.contains(':') {
            "fd77::1"
        } else {
            "10.77.0.1"
        };
        succeed(&mut command(&format!(
            "ip netns exec {behind} ping -n -c 5 -i 0.05 -w 60 {back}"
        )));
    }
}
