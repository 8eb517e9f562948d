//! `ipoib show`: what runs, and a look into it.
//!
//! The running program answers in JSON, which `--json` prints as it is; without it, tables are made here. What a table shows and the JSON lacks is
//! left out, so programs of different versions can talk.

mod fabric;
pub(crate) mod neigh;
pub(crate) mod table;
#[cfg(test)]
mod tests;

pub use fabric::value as fabric_value;

use crate::cli::{self, ShowWhat};
use crate::control::{self, Instance, Request};
use anyhow::Context;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use table::{Table, age, items, lid, nonzero, text};

/// Runs `ipoib show`.
///
/// # Errors
/// There is nothing to ask, or it does not answer.
pub fn run(args: &cli::Show) -> anyhow::Result<ExitCode> {
    let Some(what) = args.what else {
        let named = args.target.control.is_some() || args.target.on.is_some();
        let instances = if named {
            vec![control::find(&args.target, None)?]
        } else {
            control::running()
        };
        let list: Vec<Value> = instances.iter().map(look_at).collect();
        if args.json {
            return print(&json(&list.into()));
        }
        // Not where somebody was named: that one is found, or an error says this.
        let others = match named {
            true => String::new(),
            false => control::others_in_words(),
        };
        let others = others.lines().skip(1).map(|line| format!("{line}\n"));
        return print(&(overview(&list) + &others.collect::<String>()));
    };
    let instance = control::find(&args.target, Some(what))?;
    let answer = control::ask(&instance, &Request::Show(what))?;
    print(&if args.json {
        json(&answer)
    } else {
        render(what, &answer)
    })
}

/// Counters by name, as `ipoib show stats` wants them.
pub fn counters<N: Into<String>>(list: impl IntoIterator<Item = (N, u64)>) -> Value {
    Value::Object(
        list.into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
    )
}

pub(crate) fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Prints to standard output; that its reader has gone is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the result")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints a line of a program that runs on whether or not anybody reads it.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// An entry of the overview. What does not answer is told as that.
fn look_at(instance: &Instance) -> Value {
    let what = if instance.is_fabric() {
        ShowWhat::Fabric
    } else {
        ShowWhat::Link
    };
    let (kind, answer) = match control::ask(instance, &Request::Show(what)) {
        Ok(answer) => (
            if what == ShowWhat::Fabric {
                "fabric"
            } else {
                "link"
            },
            answer,
        ),
        Err(error) => ("error", format!("{error:#}").into()),
    };
    json!({ "name": instance.name, "control": instance.path, kind: answer })
}

fn overview(list: &[Value]) -> String {
    let state = |v: &Value| match (&v["fabric"], &v["link"]) {
        (Value::Null, Value::Null) => text(v, "error"),
        (Value::Null, link) => text(link, "state"),
        (fabric, _) => fabric::summary(fabric),
    };
    let table = Table::new(
        list,
        &[
            ("NAME", &|v| text(v, "name")),
            ("LID", &|v| lid(&v["link"], "lid")),
            ("MTU", &|v| text(&v["link"], "mtu")),
            ("ADDRESSES", &|v| text(&v["link"], "addresses")),
            ("STATE", &state),
        ],
    );
    table.or(&control::nothing())
}

/// A topic as text.
fn render(what: ShowWhat, answer: &Value) -> String {
    match what {
        ShowWhat::Link => link(answer),
        ShowWhat::Neigh => neigh::neighbours(items(answer)),
        ShowWhat::Connections => neigh::connections(items(answer)),
        ShowWhat::Path => paths(items(answer)),
        ShowWhat::Mcast => groups(items(answer)),
        ShowWhat::Stats => stats(answer),
        ShowWhat::Fabric => fabric::render(answer),
    }
}

/// Lines of a label and a value; those without a value are left out.
pub(crate) fn lines(list: &[(&str, String)]) -> String {
    let line = |(label, value): &(&str, String)| format!("  {label:<14}{}\n", table::clean(value));
    list.iter()
        .filter(|(_, value)| !value.is_empty())
        .map(line)
        .collect()
}

fn link(v: &Value) -> String {
    let mtu = [
        ("group_mtu", "the group allows"),
        ("port_mtu", "the port could carry"),
        ("admin_mtu", "the administrator set"),
    ];
    let limits = mtu
        .iter()
        .filter(|(key, _)| !v[*key].is_null())
        .map(|(key, words)| format!("{words} {}", v[*key]));
    let limits = limits.collect::<Vec<_>>().join(", ");
    let mtu = match text(v, "mtu") {
        device if device.is_empty() || limits.is_empty() => device,
        device => format!("{device} ({limits})"),
    };
    let qpn = v["qpn"]
        .as_u64()
        .map_or(String::new(), |n| format!("0x{n:x}"));
    let head = table::clean(&format!("{}: {}", text(v, "name"), text(v, "state")));
    let rest = lines(&[
        ("addresses", text(v, "addresses")),
        ("mode", text(v, "mode")),
        ("MTU", mtu),
        ("port", text(v, "port_state")),
        ("LID", lid(v, "lid")),
        ("SM LID", lid(v, "sm_lid")),
        ("GID", text(v, "gid")),
        ("rate", text(v, "rate")),
        ("P_Key", text(v, "p_key")),
        ("Q_Key", text(v, "q_key")),
        ("queue pair", qpn),
        ("link address", text(v, "link_address")),
    ]);
    format!("{head}\n{rest}")
}

fn paths(list: &[Value]) -> String {
    let table = Table::new(
        list,
        &[
            ("GID", &|p| text(p, "gid")),
            ("LID", &|p| lid(p, "lid")),
            ("SL", &|p| text(p, "sl")),
            ("MTU", &|p| text(p, "mtu")),
            ("RATE", &|p| text(p, "rate")),
            ("NEIGHBOURS", &|p| text(p, "neighbours")),
            ("AGE", &|p| age(p, "age_ms")),
            ("QUERY", &|p| {
                if p["querying"] == true {
                    "asking".into()
                } else {
                    String::new()
                }
            }),
            ("LAST ERROR", &|p| text(p, "last_error")),
        ],
    );
    table.or("no paths: no neighbour was resolved yet")
}

fn groups(list: &[Value]) -> String {
    let table = Table::new(
        list,
        &[
            ("IP GROUP", &|g| text(g, "group")),
            ("MGID", &|g| text(g, "mgid")),
            ("MLID", &|g| lid(g, "mlid")),
            ("STATE", &|g| text(g, "state")),
            ("JOINED AS", &|g| text(g, "join_state")),
            ("USERS", &|g| text(g, "users")),
            ("WAITING", &|g| nonzero(g, "queued")),
            ("ATTEMPTS", &|g| text(g, "attempts")),
            ("SENT VIA", &|g| text(g, "via")),
            ("LAST ERROR", &|g| text(g, "last_error")),
        ],
    );
    table.or("no multicast groups")
}

fn stats(v: &Value) -> String {
    let all: Vec<(&String, u64)> = v
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k, v.as_u64()?)))
        .collect();
    let counted: Vec<(&String, u64)> = all.iter().filter(|(_, n)| *n > 0).copied().collect();
    let zero = all.len() - counted.len();
    let table = Table::new(
        &counted,
        &[
            ("COUNTER", &|(name, _)| name.to_string()),
            ("VALUE", &|(_, n)| n.to_string()),
        ],
    );
    let more = if zero == 0 {
        String::new()
    } else {
        format!("{zero} more are 0 (all of them: --json)\n")
    };
    table.or("nothing was counted yet") + &more
}
