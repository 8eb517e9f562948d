//! Neighbours and connections as text.

use super::table::{Table, age, lid, nonzero, text};
use serde_json::Value;

pub(super) fn neighbours(list: &[Value]) -> String {
    let table = Table::new(
        list,
        &[
            ("ADDRESS", &|n| text(n, "ip")),
            ("STATE", &|n| text(n, "state")),
            ("FOR", &|n| age(n, "age_ms")),
            ("LID", &|n| lid(n, "lid")),
            ("SL", &|n| text(n, "sl")),
            ("MTU", &|n| text(n, "mtu")),
            ("CONNECTION", &connection),
            ("RATE", &|n| text(n, "rate")),
            ("SENT", &|n| nonzero(n, "tx_packets")),
            ("BYTES", &|n| nonzero(n, "tx_bytes")),
            ("WAITING", &|n| nonzero(n, "queued")),
            ("LINK ADDRESS", &|n| text(n, "link_address")),
            ("LAST FAILURE", &failure),
        ],
    );
    table.or("no neighbours: nothing was sent to or heard from anyone yet")
}

/// Which way packets go by connections, or why none go.
pub(crate) fn connection(n: &Value) -> String {
    let (own, direction) = (text(n, "connection"), text(n, "direction"));
    match direction.as_str() {
        "both" => "in and out".into(),
        "in" if own.is_empty() => "in".into(),
        "in" => format!("in; out: {own}"),
        "out" => "out".into(),
        _ => own,
    }
}

/// The last failure, how long ago it was, and when there is another attempt.
fn failure(n: &Value) -> String {
    let why = text(n, "last_failure");
    let ago = age(n, "last_failure_age_ms");
    if ago.is_empty() {
        return why;
    }
    let next = match n["retry_in_ms"].as_u64() {
        Some(0) => "; the next packet tries again".into(),
        Some(_) => format!("; no attempt for {}", age(n, "retry_in_ms")),
        None => String::new(),
    };
    format!("{ago} ago: {why}{next}")
}

pub(super) fn connections(list: &[Value]) -> String {
    let qpn = |of: &Value, key: &str| {
        let qpn = of[key].as_u64();
        qpn.map_or(String::new(), |n| format!("0x{n:x}"))
    };
    let opened_by = |c: &Value| match c["direction"] == "both" {
        true => text(c, "opened_by"),
        // The direction says it.
        false => String::new(),
    };
    let table = Table::new(
        list,
        &[
            ("NEIGHBOUR", &|c| text(c, "ips")),
            ("DIRECTION", &|c| text(c, "direction")),
            ("OPENED BY", &opened_by),
            ("STATE", &|c| text(c, "state")),
            ("MTU", &|c| text(c, "mtu")),
            ("IDLE", &|c| age(c, "idle_ms")),
            ("SENT", &|c| nonzero(c, "tx_messages")),
            ("PENDING", &|c| nonzero(c, "tx_pending")),
            ("REPEATED", &|c| nonzero(c, "tx_repeated")),
            ("RECEIVED", &|c| nonzero(c, "rx_messages")),
            ("QP", &|c| qpn(c, "qpn")),
            ("PEER QP", &|c| qpn(c, "peer_qpn")),
            ("PEER LID", &|c| lid(c, "lid")),
            ("PEER GID", &|c| text(c, "gid")),
            ("PEER UD QP", &|c| qpn(c, "peer_ud_qpn")),
        ],
    );
    table.or("no connections: in connected mode one is opened with the next packet to a neighbour, and a peer may open one")
}
