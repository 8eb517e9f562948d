//! The infiniband-diags, unmodified, tell what is there, and OpenSM what it did.

use crate::processes::{finish, words};
use crate::site::{Site, possible, star, wait_until};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

/// The number behind a name of `perfquery`, `smpquery`, `saquery`: `Name:.....42`.
pub(crate) fn field(text: &str, name: &str) -> u64 {
    let line = text
        .lines()
        .map(str::trim_start)
        .find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    let digits = line[name.len()..].trim_start_matches([':', '.']);
    digits.parse().unwrap_or_else(|_| panic!("{line}"))
}

#[track_caller]
pub(crate) fn contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

#[test]
fn opensm_and_the_tools() {
    if !possible() {
        return;
    }
    let (site, _opensm) = Site::managed(&star(4));
    let say = |line: &str| site.tool("H2", line);
    // Every cable from both ends, and nothing else.
    let net = say("ibnetdiscover");
    for n in 1..=4 {
        contains(
            &net,
            &[
                &format!("[{n}]\t\"H-00000000001000{n}0\"[1](1000{n}1)"),
                &format!("[1](1000{n}1) \t\"S-0000000000200000\"[{n}]"),
            ],
        );
    }
    assert_eq!(
        net.lines().filter(|l| l.starts_with('[')).count(),
        8,
        "{net}"
    );
    let links = say("iblinkinfo");
    assert_eq!(links.matches("Active/  LinkUp").count(), 8, "{links}");
    contains(
        &say("ibstat"),
        &["State: Active", "Port GUID: 0x0000000000100021"],
    );
    contains(&say("sminfo"), &["sm guid 0x100011", "SMINFO_MASTER"]);
    let lid = |node: &str| field(&site.tool(node, "smpquery -D PI 0"), "Lid");
    let (one, two, three, switch) = (lid("H1"), lid("H2"), lid("H3"), lid("S1"));
    contains(
        &say(&format!("saquery NR {three}")),
        &[
            "node_guid...............0x0000000000100030",
            "NodeDescription.........H3",
        ],
    );
    let path = say(&format!("saquery PR --src-to-dst {two}:{three}"));
    assert_eq!((field(&path, "slid"), field(&path, "dlid")), (two, three));
    contains(
        &path,
        &[
            "dgid....................fe80::10:31",
            "pkey....................0xFFFF",
        ],
    );
    contains(
        &say("saquery MCMR"),
        &["ff12:401b:ffff::ffff:ffff", "qkey....................0xb1b"],
    );
    let port = say(&format!("saquery PIR {one}"));
    contains(&port, &["IsSM", "LinkState:.......................Active"]);
    contains(
        &say(&format!("smpquery NI {switch}")),
        &["NumPorts:........................12"],
    );
    contains(
        &say(&format!("ibtracert {two} {three}")),
        &[
            "[1] -> switch port {0x0000000000200000}[2]",
            "[3] -> ca port {0x0000000000100031}[1]",
        ],
    );
    let routes = say(&format!("ibroute {switch}"));
    contains(
        &routes,
        &["5 valid lids dumped", &format!("0x{three:04x} 003")],
    );
    // Between the two readings pass five SMPs and, of the second reading itself, two MADs; more, where a tool asked twice.
    let received = || {
        let text = say(&format!("perfquery {three} 1"));
        field(&text, "PortRcvPkts")
    };
    let passed = || {
        let before = received();
        for _ in 0..5 {
            say(&format!("smpquery NI {three}"));
        }
        received() - before
    };
    wait_until(|| "seven MADs".into(), passed, |passed| *passed == 7);
    // It fails where an error counter exceeds its threshold.
    contains(&say("ibqueryerrors"), &["Summary: 5 nodes checked, 0 bad"]);
    contains(&say("osmtest -f c"), &["PASS"]);
    let log = site.log();
    assert!(!log.contains("ERR "), "{log}");
    assert_eq!(site.server.counters().timed_out.get(), 0);
}

#[test]
fn thirty_clients_at_once() {
    if !possible() {
        return;
    }
    let (site, _opensm) = Site::managed(&star(4));
    let nodes = ["H1", "H2", "H3", "H4", "S1"];
    let children: Vec<_> = (0..30)
        .map(|n| {
            let mut command = site.command(nodes[n % 5], "saquery");
            command.args(["PR", "--src-to-dst", "1:2"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.process_group(0).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = finish(child, Duration::from_secs(300), "saquery");
        let text = words(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(field(&text, "dlid"), 2);
    }
}
