use super::*;

fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect()
}

#[test]
fn columns_align_and_empty_ones_go() {
    let list = json!([
        { "ip": "10.0.0.2", "state": "REACHABLE", "age_ms": 1234, "lid": 3, "sl": 0, "mtu": 2044, "tx_packets": 7, "queued": 0 },
        { "ip": "fd77::3", "state": "INCOMPLETE", "age_ms": 61_000, "lid": null, "tx_packets": 12345, "last_failure": "no\u{1b}[31m answer" },
    ]);
    assert_eq!(
        render(ShowWhat::Neigh, &list),
        "ADDRESS   STATE       FOR    LID  SL   MTU   SENT  LAST FAILURE\n\
         10.0.0.2  REACHABLE   1.2 s    3   0  2044      7  -\n\
         fd77::3   INCOMPLETE  61 s     -   -     -  12345  no?[31m answer\n"
    );
}

#[test]
fn a_failure_has_an_age_and_says_when_it_is_tried_again() {
    let failed = |retry: Value| json!([{ "ip": "10.0.0.2", "last_failure": "no answer", "last_failure_age_ms": 12_000, "retry_in_ms": retry }]);
    for (retry, words) in [
        (json!(null), "12 s ago: no answer"),
        (json!(0), "12 s ago: no answer; the next packet tries again"),
        (json!(2500), "12 s ago: no answer; no attempt for 2.5 s"),
    ] {
        let text = render(ShowWhat::Neigh, &failed(retry));
        assert_eq!(rows(&text)[1], ["10.0.0.2", words]);
    }
}

#[test]
fn neighbours_say_which_way_they_are_connected() {
    for (direction, connection, words) in [
        (json!("both"), json!("connected"), "in and out"),
        (json!("out"), json!("connected"), "out"),
        (json!("in"), json!("idle"), "in; out: idle"),
        (json!("in"), json!(null), "in"),
        (json!(null), json!("none: no answer"), "none: no answer"),
    ] {
        let list = json!([{ "ip": "10.0.0.2", "direction": direction, "connection": connection }]);
        let text = render(ShowWhat::Neigh, &list);
        assert_eq!(rows(&text)[1], ["10.0.0.2", words]);
    }
}

#[test]
fn connections_of_both_sides() {
    let list = json!([
        { "ips": ["10.0.0.2", "fd77::2"], "direction": "out", "opened_by": "this", "state": "open", "mtu": 65520, "idle_ms": 400,
          "tx_messages": 7, "tx_pending": 0, "tx_repeated": 0, "rx_messages": 0, "qpn": 0x49, "peer_qpn": 0x51, "lid": 3, "gid": "fe80::3", "peer_ud_qpn": 0x48 },
        { "ips": [], "direction": "in", "opened_by": "peer", "state": "opening", "mtu": 65520, "idle_ms": 0, "rx_messages": 0,
          "qpn": 0x50, "peer_qpn": null, "lid": 4, "gid": "fe80::4", "peer_ud_qpn": 0x48 },
    ]);
    let text = render(ShowWhat::Connections, &list);
    assert_eq!(
        text,
        "NEIGHBOUR         DIRECTION  STATE      MTU  IDLE   SENT  QP    PEER QP  PEER LID  PEER GID  PEER UD QP\n\
         10.0.0.2 fd77::2  out        open     65520  0.4 s     7  0x49  0x51            3  fe80::3   0x48\n\
         -                 in         opening  65520  0.0 s     -  0x50  -               4  fe80::4   0x48\n"
    );
}

#[test]
fn empty_tables_say_so() {
    for what in [
        ShowWhat::Neigh,
        ShowWhat::Connections,
        ShowWhat::Path,
        ShowWhat::Mcast,
    ] {
        assert!(render(what, &json!([])).starts_with("no "), "{what:?}");
    }
    assert_eq!(
        render(ShowWhat::Stats, &json!({})),
        "nothing was counted yet\n"
    );
    assert!(overview(&[]).contains("ipoib fabric"));
}

#[test]
fn answers_of_any_shape_do_no_harm() {
    let odd = [
        json!(null),
        json!([1, "x", null, [2]]),
        json!({ "nodes": 3, "groups": [[]], "sm": [] }),
        json!("x"),
        json!({ "lid": -1, "mtu": {} }),
    ];
    for what in [
        ShowWhat::Link,
        ShowWhat::Neigh,
        ShowWhat::Connections,
        ShowWhat::Path,
        ShowWhat::Mcast,
        ShowWhat::Stats,
        ShowWhat::Fabric,
    ] {
        for value in &odd {
            assert!(render(what, value).ends_with('\n'));
        }
    }
    overview(&odd);
}

#[test]
fn a_link() {
    let up = json!({
        "name": "ib0", "up": true, "state": "up", "port_state": "Active", "lid": 2, "sm_lid": 1, "gid": "fe80::2", "qpn": 0x48, "p_key": "0xffff",
        "mtu": 2044, "group_mtu": 2044, "port_mtu": 4092, "admin_mtu": null, "addresses": ["10.77.0.1/24", "fd77::1/64"],
    });
    assert_eq!(
        render(ShowWhat::Link, &up),
        "ib0: up\n  addresses     10.77.0.1/24 fd77::1/64\n  MTU           2044 (the group allows 2044, the port could carry 4092)\n  \
         port          Active\n  LID           2\n  SM LID        1\n  GID           fe80::2\n  P_Key         0xffff\n  queue pair    0x48\n"
    );
    let list = [
        json!({ "name": "ib0@h1", "link": up }),
        json!({ "name": "ib1", "error": "ib1 does not answer" }),
        json!({ "name": "fabric@7700", "fabric": { "sm": { "state": "Master", "lid": 1 }, "nodes": [{ "type": "Switch" }, { "type": "CA" }], "groups": [] } }),
    ];
    let text = overview(&list);
    let rows = rows(&text);
    assert_eq!(rows[0], ["NAME", "LID", "MTU", "ADDRESSES", "STATE"]);
    assert_eq!(
        rows[1],
        ["ib0@h1", "2", "2044", "10.77.0.1/24 fd77::1/64", "up"]
    );
    assert_eq!(rows[2], ["ib1", "-", "-", "-", "ib1 does not answer"]);
    assert_eq!(
        rows[3].last(),
        Some(&"subnet manager Master: switches 1, hosts 1, multicast groups 0")
    );
}

#[test]
fn paths_and_groups() {
    let text = render(
        ShowWhat::Path,
        &json!([{ "gid": "fe80::3", "lid": 3, "sl": 1, "mtu": 2048, "querying": true, "neighbours": 2, "age_ms": 0 }]),
    );
    assert_eq!(
        rows(&text),
        [
            ["GID", "LID", "SL", "MTU", "NEIGHBOURS", "AGE", "QUERY"],
            ["fe80::3", "3", "1", "2048", "2", "0.0 s", "asking"]
        ]
    );
    let text = render(
        ShowWhat::Mcast,
        &json!([{ "mgid": "ff12:401b:ffff::1", "group": "224.0.0.1", "mlid": 0xc001, "state": "joined", "users": 1, "queued": 0, "attempts": 1 }]),
    );
    assert_eq!(
        rows(&text),
        [
            ["IP GROUP", "MGID", "MLID", "STATE", "USERS", "ATTEMPTS"],
            [
                "224.0.0.1",
                "ff12:401b:ffff::1",
                "0xc001",
                "joined",
                "1",
                "1"
            ]
        ]
    );
}

#[test]
fn zero_counters_are_not_shown() {
    let value = counters([("tx_packets", 12), ("rx_bad_icrc", 0), ("rx_packets", 3)]);
    assert_eq!(
        render(ShowWhat::Stats, &value),
        "COUNTER     VALUE\nrx_packets      3\ntx_packets     12\n1 more are 0 (all of them: --json)\n"
    );
}

#[test]
fn a_fabric_names_both_ends_of_its_links() {
    let value = json!({
        "sm": { "state": "Master", "lid": 1 },
        "nodes": [
            { "guid": "0x1", "type": "Switch", "description": "switch", "ports": [
                { "number": 0, "guid": "0x1", "lid": 1, "gid": "fe80::1", "state": "Active", "mtu": 4096, "link": null },
                { "number": 1, "guid": null, "lid": null, "state": "Active", "mtu": 4096, "link": { "guid": "0x2", "port": 1 } },
            ] },
            { "guid": "0x2", "type": "CA", "description": "host ib0", "ports": [
                { "number": 1, "guid": "0x2", "lid": 2, "gid": "fe80::2", "state": "Active", "mtu": 4096, "pkeys": ["0xffff"], "link": { "guid": "0x1", "port": 1 } },
            ] },
        ],
        "groups": [{ "mgid": "ff12::1", "mlid": 0xc000, "members": [{ "gid": "fe80::2", "join_state": "FullMember" }] }],
    });
    let text = render(ShowWhat::Fabric, &value);
    let rows = rows(&text);
    assert!(
        rows.contains(&vec![
            "switch",
            "Switch",
            "1",
            "Active",
            "-",
            "-",
            "4096",
            "-",
            "host ib0 port 1"
        ]),
        "{text}"
    );
    assert!(
        rows.contains(&vec![
            "host ib0",
            "CA",
            "1",
            "Active",
            "2",
            "0x2",
            "4096",
            "0xffff",
            "switch port 1"
        ]),
        "{text}"
    );
    assert!(
        rows.contains(&vec!["ff12::1", "host ib0", "fe80::2", "FullMember"]),
        "{text}"
    );
}
