//! What runs under other users: whoever does not find an interface is told that it may be there.

use super::connect::listens;
use super::{Instance, directories};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names of one user in a message: anybody can make sockets in `/tmp`.
const MAX_NAMES: usize = 8;
/// Sockets of one user that are tried, and directories that are looked into.
const MAX_SOCKETS: usize = 64;
const MAX_DIRECTORIES: usize = 1000;
/// Users in a message.
const MAX_USERS: usize = 8;

/// What another user runs, in words that begin with a line break; empty if there is no sign of any.
pub fn others_in_words() -> String {
    let own = directories();
    let elsewhere = candidates().into_iter().filter(|path| !own.contains(path));
    let elsewhere = elsewhere.take(MAX_DIRECTORIES);
    let lines = elsewhere.filter_map(|path| in_words(&path));
    lines
        .take(MAX_USERS)
        .map(|line| format!("\n{line}"))
        .collect()
}

/// Directories of control sockets, of whichever user.
fn candidates() -> Vec<PathBuf> {
    let below = |directory: &str| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("ipoib-")
            .is_some_and(|user| user.parse::<u32>().is_ok())
    };
    let of_sessions = below("/run/user")
        .into_iter()
        .map(|path| path.join("ipoib"));
    std::iter::once(PathBuf::from("/run/ipoib"))
        .chain(of_sessions)
        .chain(below("/tmp").into_iter().filter(is_ours))
        .collect()
}

/// What there is to say of one directory.
pub(super) fn in_words(directory: &Path) -> Option<String> {
    let metadata = std::fs::symlink_metadata(directory).ok()?;
    let owner = match metadata.uid() {
        _ if !metadata.is_dir() => return None,
        0 => "root".to_owned(),
        user => format!("user {user}"),
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries.flatten(),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let directory = directory.display();
            return Some(format!(
                "{owner} may run something too: only {owner} and root may look into {directory}"
            ));
        }
        Err(_) => return None,
    };
    let paths = entries.map(|entry| entry.path());
    let sockets = paths.filter(|path| path.extension().is_some_and(|e| e == "sock"));
    // Those of programs that died refuse, if one may ask them.
    let asked = sockets.take(MAX_SOCKETS).filter_map(|path| {
        let may_ask = match listens(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => false,
            Err(_) => return None,
        };
        Some((Instance::of(&path), may_ask))
    });
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    for (instance, may_ask) in asked {
        match may_ask {
            true => open.push(format!("--control {}", instance.path.display())),
            false => closed.push(instance.name),
        }
    }
    let list = |names: &mut Vec<String>| {
        names.sort();
        if names.len() > MAX_NAMES {
            names.truncate(MAX_NAMES);
            names.push("...".into());
        }
        crate::show::table::clean(&names.join(", "))
    };
    let open = (!open.is_empty()).then(|| format!("{owner} runs some: {}", list(&mut open)));
    let closed = (!closed.is_empty()).then(|| {
        let closed = list(&mut closed);
        let how = match owner.as_str() {
            "root" => "only root may ask (such as by sudo)".into(),
            _ => format!("only {owner} and root may ask"),
        };
        format!("{owner} may run {closed}: {how}")
    });
    match (open, closed) {
        (None, None) => None,
        (open, closed) => Some(
            [open, closed]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; "),
        ),
    }
}
