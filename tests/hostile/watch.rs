//! Watches this process: panics in any thread, memory.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts panics in all threads from now on: a thread that dies of one would otherwise only be missed.
pub fn panics() -> u64 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let inner = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Relaxed);
            inner(info);
        }));
    });
    PANICS.load(Relaxed)
}

/// Resident memory, bytes (proc(5), status).
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next());
    kib.unwrap().parse::<u64>().unwrap() << 10
}

/// A count from the environment.
pub fn count(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .replace('_', "")
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: not a number")),
        Err(_) => default,
    }
}
