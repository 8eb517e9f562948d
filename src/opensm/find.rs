//! Where the distribution has put what we start.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The Debian package of the library.
pub const LIBRARY_PACKAGE: &str = "libumad2sim0";

/// A program in PATH or where Debian has it, which is not in the PATH of ordinary users.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin"].map(PathBuf::from))
        .collect();
    directories
        .into_iter()
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// libumad2sim.so, which stands in a directory of its own below one of the dynamic linker's.
pub fn library() -> Option<PathBuf> {
    let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    std::env::split_paths(&given)
        .chain(
            [
                multiarch.as_str(),
                "/usr/lib64",
                "/usr/lib",
                "/usr/local/lib",
            ]
            .map(PathBuf::from),
        )
        .map(|directory| directory.join("umad2sim/libumad2sim.so"))
        .find(|path| path.is_file())
}

/// The value of LD_PRELOAD with the library in front of what is there.
pub(super) fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        value.push(":");
        value.push(others);
    }
    value
}
