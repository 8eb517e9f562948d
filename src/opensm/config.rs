//! Configuration of OpenSM from ours.

use fabric::sm::{GroupParams, Membership, Partition, RoutingEngine, SmConfig, Who};
use std::fmt::Write;
use std::io;
use std::path::Path;
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::{Guid, Lid};

/// Name of its configuration file, in its directory.
pub(super) const CONFIG: &str = "opensm.conf";
const PARTITIONS: &str = "partitions.conf";
const ROOTS: &str = "roots";
/// Which LIDs each GUID has, from the first to the last: OpenSM's own file, which it writes at each sweep.
pub(super) const LIDS: &str = "guid2lid";

/// Writes the files into its directory.
pub(super) fn write(place: &Path, sm: &SmConfig) -> io::Result<()> {
    let partitions: String = sm.partitions.iter().map(partition).collect();
    std::fs::write(place.join(PARTITIONS), partitions)?;
    if let RoutingEngine::UpDown { roots } = &sm.routing {
        let roots: String = roots
            .iter()
            .map(|root| format!("0x{:016x}\n", root.0))
            .collect();
        std::fs::write(place.join(ROOTS), roots)?;
    }
    let last = |first: Lid| first.0 + ((1 << sm.lmc) - 1);
    let lids = sm.lid_map.iter().map(|(guid, first)| {
        let last = last(*first);
        format!("0x{:016x} {:#06x} {last:#06x}\n", guid.0, first.0)
    });
    std::fs::write(place.join(LIDS), lids.collect::<String>())?;
    std::fs::write(place.join(CONFIG), options(place, sm))
}

/// The first LID of each GUID in its file; lines that are none are passed over.
pub(super) fn lids(text: &str) -> Vec<(Guid, Lid)> {
    let lids = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let guid = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        let lid = u16::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        Some((Guid(guid), Lid(lid)))
    });
    lids.filter(|(_, lid)| lid.is_unicast()).collect()
}

fn options(place: &Path, sm: &SmConfig) -> String {
    let at = |name: &str| place.join(name).display().to_string();
    // Started again it gives the same LIDs also to ports that are down just then: Linux keeps paths to a LID for as long as nobody tells it to forget.
    let mut text = format!(
        "honor_guid2lid_file TRUE\npartition_config_file {}\nsm_priority {}\nsweep_interval {}\nforce_log_flush TRUE\nlog_flags 0x03\ndump_files_dir {}\n",
        at(PARTITIONS),
        sm.sm_priority,
        sm.sweep_interval.as_secs().max(1),
        place.display(),
    );
    let _ = writeln!(
        text,
        "lmc {}\nsm_key 0x{1:016x}\nsa_key 0x{1:016x}",
        sm.lmc, sm.sm_key
    );
    let _ = writeln!(
        text,
        "m_key 0x{:016x}\nm_key_protection_level {}\nm_key_lease_period {}",
        sm.m_key.key, sm.m_key.protect, sm.m_key.lease
    );
    match &sm.routing {
        RoutingEngine::MinHop => text.push_str("routing_engine minhop\n"),
        RoutingEngine::UpDown { roots } => {
            text.push_str("routing_engine updn\n");
            if !roots.is_empty() {
                let _ = writeln!(text, "root_guid_file {}", at(ROOTS));
            }
        }
    }
    text
}

/// The syntax is that of opensm's partition-config.txt. Its partition-level `scope=` does not move the broadcast group, so that stands as a
/// group of its own wherever it is not the usual one.
fn partition(p: &Partition) -> String {
    let word = |membership: Membership| match membership {
        Membership::Full => "full",
        Membership::Limited => "limited",
        Membership::Both => "both",
    };
    let mut text = format!("{}=0x{:04x}", name(p), p.pkey.base());
    if let Some(group) = &p.ipoib {
        let _ = write!(text, ", ipoib{}", params(group));
    }
    if p.index0 {
        text.push_str(", indx0");
    }
    text.push_str(" :");
    let scoped = p.ipoib.as_ref().filter(|group| group.scope != 2);
    let scoped = scoped.map(|group| (broadcast_gid(p.pkey, Scope(group.scope)), *group));
    for (mgid, group) in scoped.iter().chain(&p.groups) {
        let _ = write!(text, "\n    mgid={mgid}{}\n   ", params(group));
    }
    // What comes later goes before.
    let rules = p.rules.iter().map(|(who, membership)| {
        let who = match who {
            Who::Port(guid) => format!("0x{:016x}", guid.0),
            Who::All => "ALL".into(),
            Who::Cas => "ALL_CAS".into(),
            Who::Switches => "ALL_SWITCHES".into(),
            Who::Routers => "ALL_ROUTERS".into(),
            Who::Own => "SELF".into(),
        };
        format!("{who}={}", word(*membership))
    });
    let mut members: Vec<String> = rules.collect();
    if p.pkey.base() == 0x7fff {
        members.push("SELF=full".into());
    }
    let _ = writeln!(text, " {};", members.join(", "));
    text
}

/// A name that its parser takes.
fn name(p: &Partition) -> String {
    if p.pkey.base() == 0x7fff {
        return "Default".into();
    }
    let plain: String = p
        .name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    match plain.is_empty() {
        true => format!("p{:04x}", p.pkey.base()),
        false => plain,
    }
}

fn params(group: &GroupParams) -> String {
    format!(
        ", mtu={}, rate={}, sl={}, scope={}, Q_Key=0x{:x}",
        group.mtu.0, group.rate.0, group.sl.0, group.scope, group.q_key.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{PKey, QKey};

    #[test]
    fn lids_are_written_and_read_as_opensm_does() {
        let place = tempfile::tempdir().expect("temporary directory");
        let sm = SmConfig {
            lid_map: vec![(Guid(5), Lid(8)), (Guid(0xff), Lid(0x7c))],
            lmc: 2,
            ..SmConfig::default()
        };
        write(place.path(), &sm).expect("written");
        let text = std::fs::read_to_string(place.path().join(LIDS)).expect("there");
        assert_eq!(
            text,
            "0x0000000000000005 0x0008 0x000b\n0x00000000000000ff 0x007c 0x007f\n"
        );
        assert_eq!(lids(&text.replace('\n', "\n\n")), sm.lid_map);
        assert_eq!(lids("0x1\n0x2 0xc000 0xc000\nx 0x1 0x1\n"), []);
    }

    #[test]
    fn partitions_in_words_of_opensm() {
        let all = Partition::all(
            "default",
            PKey::DEFAULT_FULL,
            Membership::Full,
            Some(GroupParams::default()),
        );
        assert_eq!(
            partition(&all),
            "Default=0x7fff, ipoib, mtu=4, rate=3, sl=0, scope=2, Q_Key=0xb1b : ALL=full, SELF=full;\n"
        );
        let group = GroupParams {
            scope: 5,
            q_key: QKey(0xabcd),
            ..GroupParams::default()
        };
        let members = vec![(Guid(1), Membership::Full), (Guid(5), Membership::Limited)];
        let some = Partition::of("guest net", PKey(0x8001), members, Some(group));
        assert_eq!(
            partition(&some),
            "guestnet=0x0001, ipoib, mtu=4, rate=3, sl=0, scope=5, Q_Key=0xabcd :\n    \
             mgid=ff15:401b:8001::ffff:ffff, mtu=4, rate=3, sl=0, scope=5, Q_Key=0xabcd\n    \
             0x0000000000000001=full, 0x0000000000000005=limited;\n"
        );
    }
}
