//! MADs that OpenSM, ibsim and the Linux kernel really sent: all of them come out of the typed values as they went in.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::path::{Path, PathBuf};
use wire::mad::attr::*;
use wire::mad::cm::{CmMessage, IpoibPrivateData, ServiceId};
use wire::mad::describe::{describe, reemit};
use wire::mad::*;
use wire::{Lid, MtuCode, PKey, QKey, Qpn, RateCode};

fn shared(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared")
        .join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: {} is absent", path.display());
    None
}

/// Hex bytes separated by white space; words that end in a colon are offsets.
fn bytes(path: &Path) -> Vec<u8> {
    let text = std::fs::read_to_string(path).unwrap();
    let words = text.split_whitespace().filter(|word| !word.ends_with(':'));
    words
        .map(|word| u8::from_str_radix(word, 16).unwrap())
        .collect()
}

fn files(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|e| e == "hex"))
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_string(),
                path,
            )
        })
        .collect();
    files.sort();
    files
}

/// All stored MADs by file name: the dumps, and the MADs inside of the packets (after LRH 8, BTH 12, DETH 8).
fn stored() -> Vec<(String, MadBytes)> {
    let mut mads = Vec::new();
    if let Some(folder) = shared("mads") {
        for (name, path) in files(&folder) {
            mads.push((name, bytes(&path).try_into().unwrap()));
        }
    }
    if let Some(folder) = shared("kernel-peer/vectors") {
        for (name, path) in files(&folder) {
            if ["SA-", "SMP-", "CM-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                mads.push((name, bytes(&path)[28..28 + 256].try_into().unwrap()));
            }
        }
    }
    mads
}

fn stored_one(name: &str) -> Option<MadBytes> {
    stored()
        .into_iter()
        .find(|(n, _)| n == name)
        .map(|(_, mad)| mad)
}

#[test]
fn stored_mads_come_out_unchanged() {
    let mut different = Vec::new();
    for (name, mad) in stored() {
        let again = reemit(&mad).unwrap();
        let at: Vec<usize> = (0..256).filter(|&i| mad[i] != again[i]).collect();
        println!("{name}: {}", describe(&mad));
        if !at.is_empty() {
            different.push(format!("{name}: bytes {at:02x?}"));
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}
