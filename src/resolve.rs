//! `ipoib resolve`: where an IP address leads, as a running interface sees it.

use crate::cli;
use crate::control::{self, Request};
use crate::show;
use crate::show::neigh::connection;
use crate::show::table::{clean, lid, text};
use serde_json::Value;
use std::process::ExitCode;

/// Runs `ipoib resolve`.
///
/// # Errors
/// There is no interface to ask, or it cannot resolve the address.
pub fn run(args: &cli::Resolve) -> anyhow::Result<ExitCode> {
    // Whoever has neighbours can resolve.
    let instance = control::find(&args.target, Some(cli::ShowWhat::Neigh))?;
    let answer = control::ask(&instance, &Request::Resolve(args.ip))?;
    let words = || render(&args.ip.to_string(), &answer);
    show::print(&if args.json {
        show::json(&answer)
    } else {
        words()
    })
}

/// The answer has the fields of a neighbour (`ipoib show neigh`), whose `ip` is the next hop.
fn render(asked: &str, answer: &Value) -> String {
    let next_hop = Some(text(answer, "ip"))
        .filter(|ip| ip != asked)
        .unwrap_or_default();
    let mtu = match (text(answer, "mtu"), text(answer, "datagram_mtu")) {
        (none, datagram) if none.is_empty() && !datagram.is_empty() => {
            format!("{datagram} as datagrams; a connection will say what it takes")
        }
        (mtu, _) => mtu,
    };
    let lines = show::lines(&[
        ("next hop", next_hop),
        ("state", text(answer, "state")),
        ("link address", text(answer, "link_address")),
        ("GID", text(answer, "gid")),
        ("LID", lid(answer, "lid")),
        ("SL", text(answer, "sl")),
        ("MTU", mtu),
        ("connection", connection(answer)),
        ("rate", text(answer, "rate")),
    ]);
    format!("{}\n{lines}", clean(asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn in_lines() {
        let answer = json!({ "ip": "10.0.0.2", "lid": 3, "sl": 0, "mtu": 2044, "rate": "10 Gb/s", "gid": "fe80::1", "link_address": null });
        let rest = "  GID           fe80::1\n  LID           3\n  SL            0\n  MTU           2044\n  rate          10 Gb/s\n";
        assert_eq!(render("10.0.0.2", &answer), format!("10.0.0.2\n{rest}"));
        assert_eq!(
            render("192.0.2.1", &answer),
            format!("192.0.2.1\n  next hop      10.0.0.2\n{rest}")
        );
        let idle = json!({ "mtu": null, "datagram_mtu": 2044, "connection": "idle" });
        assert_eq!(
            render("10.0.0.2", &idle),
            "10.0.0.2\n  MTU           2044 as datagrams; a connection will say what it takes\n  connection    idle\n"
        );
    }
}
