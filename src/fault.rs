//! `ipoib fault`: breaks something on a running fabric, and tells what is broken.

use crate::cli::{self, FaultWhat, ShowWhat};
use crate::control::{self, Request};
use crate::show::table::{Table, items, nonzero, text};
use crate::show::{json, lines, print};
use serde_json::Value;
use std::process::ExitCode;

/// Runs `ipoib fault`.
///
/// # Errors
/// There is no fabric, or it has no such thing to break.
pub fn run(args: &cli::Fault) -> anyhow::Result<ExitCode> {
    let instance = control::find(&args.target, Some(ShowWhat::Fabric))?;
    let answer = control::ask(&instance, &Request::Fault(args.what.clone()))?;
    match args.what {
        FaultWhat::List if args.json => print(&json(&answer)),
        FaultWhat::List => print(&render(&answer)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn render(of: &Value) -> String {
    let met = |of: &Value| {
        let counts = of.as_object().into_iter().flatten();
        let counts = counts.map(|(name, n)| format!("{name} {n}"));
        counts.collect::<Vec<_>>().join(", ")
    };
    let lose = |v: &Value| match (text(v, "lose"), v["left"].as_u64()) {
        (message, Some(left)) => format!("{message}, the next {left}"),
        (message, None) => message,
    };
    let down = |v: &Value| if v["down"] == true { "down" } else { "" };
    let links = Table::new(
        items(&of["links"]),
        &[
            ("NODE", &|v| text(v, "node")),
            ("PORT", &|v| text(v, "port")),
            ("STATE", &|v| down(v).into()),
            ("LOSS", &|v| nonzero(v, "loss")),
            ("DUPLICATE", &|v| nonzero(v, "duplicate")),
            ("REORDER", &|v| nonzero(v, "reorder")),
            ("CORRUPT", &|v| nonzero(v, "corrupt")),
            ("DELAY MS", &|v| nonzero(v, "delay_ms")),
            ("LOSE", &|v| lose(v)),
            ("SENT", &|v| met(&v["sent"])),
            ("RECEIVED", &|v| met(&v["received"])),
        ],
    );
    let sa = match &of["sa"] {
        Value::Null => String::new(),
        sa if sa["left"].is_null() => text(sa, "fault"),
        sa => format!("{}, the next {}", text(sa, "fault"), sa["left"]),
    };
    let tables = items(&of["pkey_tables"]).iter();
    let tables = tables.map(|table| {
        let keys: Vec<&str> = items(&table["pkeys"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        format!("{}: {}", text(table, "guid"), keys.join(" "))
    });
    let lids = items(&of["lids"]).iter();
    let lids = lids.map(|l| format!("{}: {} (was {})", text(l, "guid"), l["lid"], l["was"]));
    let sm = match text(of, "sm") {
        running if running == "running" => String::new(),
        other => other,
    };
    links.or("no link is broken")
        + &lines(&[
            ("manager", sm),
            ("SA", sa),
            ("P_Key tables", tables.collect::<Vec<_>>().join("; ")),
            ("LIDs given", lids.collect::<Vec<_>>().join("; ")),
            ("GID prefix", text(of, "prefix")),
        ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_list_as_text() {
        let nothing = json!({ "links": [], "sm": "running", "sa": null, "pkey_tables": [] });
        assert_eq!(render(&nothing), "no link is broken\n");
        let all = json!({
            "links": [{ "node": "s", "port": 3, "down": true, "loss": 0.5, "delay_ms": 0, "lose": "rep", "left": 1, "sent": { "lost": 7 } }],
            "sm": "stopped",
            "sa": { "fault": "drop", "left": 2 },
            "pkey_tables": [{ "guid": "0x01", "pkeys": ["0xffff", "0x8001"] }],
            "lids": [{ "guid": "0x02", "lid": 77, "was": 3 }],
            "prefix": "fec0:0:0:1::",
        });
        let text = render(&all);
        for part in [
            "s        3  down   0.5   rep, the next 1  lost 7",
            "stopped",
            "drop, the next 2",
            "0x01: 0xffff 0x8001",
            "0x02: 77 (was 3)",
            "GID prefix    fec0:0:0:1::",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
