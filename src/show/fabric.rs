//! `ipoib show fabric`.

use super::table::{Table, items, lid, text};
use fabric::sm::SubnetManager;
use serde_json::{Value, json};

/// What `ipoib show fabric` tells of a subnet: `sm`, `nodes` with their `ports`, `groups` with their `members`, `subscriptions`,
/// `counters`.
pub fn value(sm: &SubnetManager) -> Value {
    let nodes = sm.nodes().into_iter().map(|node| {
        let ports = node.ports.iter().map(|port| {
            json!({
                "number": port.number,
                "guid": (port.guid.0 != 0).then(|| port.guid.to_string()),
                "lid": (port.lid.0 != 0).then_some(port.lid.0),
                "gid": port.gid.map(|gid| gid.to_string()),
                "state": port.state.to_string(),
                "mtu": port.mtu.bytes(),
                "rate": port.rate.to_string(),
                "pkeys": port.pkeys.iter().map(|key| key.to_string()).collect::<Vec<_>>(),
                "link": port.link.map(|link| json!({ "guid": link.guid.to_string(), "port": link.port })),
            })
        });
        json!({
            "guid": node.guid.to_string(),
            "type": node.node_type.to_string(),
            "description": node.description,
            "ports": ports.collect::<Vec<_>>(),
        })
    });
    let groups = sm.groups().into_iter().map(|group| {
        let members = group
            .members
            .iter()
            .map(|(gid, how)| json!({ "gid": gid.to_string(), "join_state": how.to_string() }));
        json!({
            "mgid": group.mgid.to_string(),
            "mlid": group.mlid.0,
            "p_key": group.p_key.to_string(),
            "q_key": group.q_key.to_string(),
            "mtu": group.mtu.bytes(),
            "rate": group.rate.to_string(),
            "permanent": group.well_known,
            "members": members.collect::<Vec<_>>(),
        })
    });
    let subscriptions = sm.subscriptions();
    let subscriptions = subscriptions
        .map(|(gid, info)| json!({ "gid": gid.to_string(), "trap": info.trap_number.0 }));
    json!({
        "subscriptions": subscriptions.collect::<Vec<_>>(),
        "sm": { "state": sm.state().to_string(), "lid": sm.lid().0 },
        "nodes": nodes.collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
        "counters": super::counters(sm.counters().iter()),
    })
}

/// One line of the overview.
pub(super) fn summary(of: &Value) -> String {
    let (nodes, groups) = (items(&of["nodes"]), items(&of["groups"]));
    let switches = nodes
        .iter()
        .filter(|node| text(node, "type").eq_ignore_ascii_case("switch"))
        .count();
    format!(
        "subnet manager {}: switches {switches}, hosts {}, multicast groups {}",
        text(&of["sm"], "state"),
        nodes.len() - switches,
        groups.len()
    )
}

pub(super) fn render(of: &Value) -> String {
    let nodes = items(&of["nodes"]);
    // The other end of a link is told by the name of its node.
    let name = |guid: &Value| {
        let node = nodes.iter().find(|node| node["guid"] == *guid);
        node.map_or_else(
            || guid.as_str().unwrap_or_default().to_owned(),
            |node| text(node, "description"),
        )
    };
    let by_gid: std::collections::HashMap<String, String> = nodes
        .iter()
        .flat_map(|node| {
            items(&node["ports"])
                .iter()
                .map(move |port| (text(port, "gid"), text(node, "description")))
        })
        .collect();
    let ports: Vec<(&Value, &Value)> = nodes
        .iter()
        .flat_map(|node| items(&node["ports"]).iter().map(move |port| (node, port)))
        .collect();
    let ports = Table::new(
        &ports,
        &[
            ("NODE", &|(node, _)| text(node, "description")),
            ("TYPE", &|(node, _)| text(node, "type")),
            ("PORT", &|(_, port)| text(port, "number")),
            ("STATE", &|(_, port)| text(port, "state")),
            ("LID", &|(_, port)| lid(port, "lid")),
            ("GUID", &|(_, port)| text(port, "guid")),
            ("MTU", &|(_, port)| text(port, "mtu")),
            ("RATE", &|(_, port)| text(port, "rate")),
            ("P_KEYS", &|(_, port)| text(port, "pkeys")),
            ("CONNECTED TO", &|(_, port)| match &port["link"] {
                Value::Null => String::new(),
                link => format!("{} port {}", name(&link["guid"]), link["port"]),
            }),
        ],
    );
    let groups = items(&of["groups"]);
    let list = Table::new(
        groups,
        &[
            ("MULTICAST GROUP", &|g| text(g, "mgid")),
            ("MLID", &|g| lid(g, "mlid")),
            ("P_KEY", &|g| text(g, "p_key")),
            ("Q_KEY", &|g| text(g, "q_key")),
            ("MTU", &|g| text(g, "mtu")),
            ("RATE", &|g| text(g, "rate")),
            ("MEMBERS", &|g| items(&g["members"]).len().to_string()),
        ],
    );
    let members: Vec<(&Value, &Value)> = groups
        .iter()
        .flat_map(|group| {
            items(&group["members"])
                .iter()
                .map(move |member| (group, member))
        })
        .collect();
    let members = Table::new(
        &members,
        &[
            ("MEMBERS OF", &|(group, _)| text(group, "mgid")),
            ("NODE", &|(_, member)| {
                by_gid
                    .get(&text(member, "gid"))
                    .cloned()
                    .unwrap_or_default()
            }),
            ("GID", &|(_, member)| text(member, "gid")),
            ("JOINED AS", &|(_, member)| text(member, "join_state")),
        ],
    );
    let attached = items(&of["attached"]);
    let attached = Table::new(
        attached,
        &[
            ("SWITCH", &|host| text(host, "switch")),
            ("PORT", &|host| text(host, "port")),
            ("ATTACHED HOST", &|host| text(host, "host")),
        ],
    );
    format!(
        "{}\n\n{}\n{}\n{}\n{}",
        summary(of),
        ports.or("no nodes found yet"),
        attached.or("no hosts attached"),
        list.or("no multicast groups"),
        members.or("no members of multicast groups")
    )
}
