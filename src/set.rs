//! `ipoib set`: changes a setting of a running interface.

use crate::cli::{self, ShowWhat, Target};
use crate::control::{self, Request};
use crate::show;
use crate::show::table::{clean, text};
use anyhow::bail;
use serde_json::Value;
use std::process::ExitCode;

/// Runs `ipoib set`.
///
/// # Errors
/// There is no such interface, or it cannot be set so.
pub fn run(args: &cli::Set) -> anyhow::Result<ExitCode> {
    let Target { on, control } = args.target.clone();
    if args.name.is_some() && (on.is_some() || control.is_some()) {
        bail!("say which interface by its name, by --on or by --control, not by several");
    }
    let target = Target {
        on: args.name.clone().or(on),
        control,
    };
    // Whoever has neighbours is an interface.
    let instance = control::find(&target, Some(ShowWhat::Neigh))?;
    let changed = control::ask(&instance, &Request::Set(args.what))?;
    show::print(&render(&instance.name, &changed))
}

/// The answer has the settings by name, each with what it was and is.
fn render(name: &str, changed: &Value) -> String {
    let settings = changed.as_object().into_iter().flatten();
    let line = |(setting, change): (&String, &Value)| {
        let words = match (text(change, "from"), text(change, "to")) {
            (from, to) if from == to => format!("{name}: {setting} is {to} already"),
            (from, to) => format!("{name}: {setting} is {to} now, it was {from}"),
        };
        clean(&words) + "\n"
    };
    settings.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn says_what_changed() {
        let mode = |from: &str| json!({ "mode": { "from": from, "to": "connected" } });
        assert_eq!(
            render("ib0@h1", &mode("datagram")),
            "ib0@h1: mode is connected now, it was datagram\n"
        );
        assert_eq!(
            render("ib0@h1", &mode("connected")),
            "ib0@h1: mode is connected already\n"
        );
        assert_eq!(render("ib0", &json!(null)), "");
    }
}
