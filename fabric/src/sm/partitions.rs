//! Partition files in the syntax of OpenSM's `partitions.conf` (its manual: "Partition configuration").
//!
//! `NAME=PKEY, flag, flag=value : members and groups ;` where a member is `GUID[=full|limited|both]` or one of the words ALL, ALL_CAS,
//! ALL_SWITCHES, ALL_ROUTERS, SELF, and a group is a line `mgid=MGID, flag=value`. Definitions with one P_Key are one partition. Unlike OpenSM,
//! which skips what it does not understand, every such thing is an error here: a member in the wrong partition is hard to find.

use super::config::{GroupParams, Membership, Partition, Who};
use std::net::Ipv6Addr;
use wire::ipoib::Scope;
use wire::ipoib::mgid::broadcast_gid;
use wire::{Gid, Guid, MtuCode, PKey, QKey, RateCode, ServiceLevel};

/// What is wrong with a partition file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct PartitionFileError {
    /// Counted from 1.
    pub line: usize,
    /// For people.
    pub reason: String,
}

type Result<T> = std::result::Result<T, PartitionFileError>;

/// A piece of the text and the line that it begins in.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    line: usize,
}

impl<'a> Piece<'a> {
    fn error<T>(self, reason: impl Into<String>) -> Result<T> {
        Err(PartitionFileError {
            line: self.line,
            reason: reason.into(),
        })
    }
    /// The parts between separators, without white space around them, and without empty ones.
    fn split(self, separator: char) -> impl Iterator<Item = Piece<'a>> {
        let mut line = self.line;
        let parts = self.text.split(separator).map(move |text| {
            let blank = &text[..text.len() - text.trim_start().len()];
            let begin = line + blank.matches('\n').count();
            line += text.matches('\n').count() + usize::from(separator == '\n');
            Piece {
                text: text.trim(),
                line: begin,
            }
        });
        parts.filter(|piece| !piece.text.is_empty())
    }
    /// `name` or `name=value`.
    fn assignment(self) -> (&'a str, Option<&'a str>) {
        match self.text.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (self.text, None),
        }
    }
    fn number(self, text: Option<&str>, most: u64) -> Result<u64> {
        let text = text.unwrap_or_default();
        let number = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        match number {
            Ok(number) if number <= most => Ok(number),
            Ok(number) => self.error(format!("{number} is more than {most}")),
            Err(_) => self.error(format!("{text:?} is not a number")),
        }
    }
    fn membership(self, text: &str) -> Result<Membership> {
        // Words may be shortened.
        let begins = |word: &str| !text.is_empty() && word.starts_with(text);
        match text {
            _ if begins("full") => Ok(Membership::Full),
            _ if begins("limited") => Ok(Membership::Limited),
            _ if begins("both") => Ok(Membership::Both),
            _ => self.error(format!("{text:?} is none of full, limited, both")),
        }
    }
}

/// Parameters of groups, and the scopes for which there shall be one each.
#[derive(Clone, Default)]
struct Flags {
    params: GroupParams,
    scopes: Vec<u8>,
}

impl Flags {
    /// False: it is no flag of a group.
    fn set(&mut self, piece: Piece<'_>) -> Result<bool> {
        let (name, value) = piece.assignment();
        let number = |most| piece.number(value, most);
        let params = &mut self.params;
        match name {
            "mtu" => {
                params.mtu = MtuCode(number(5)? as u8);
                if params.mtu.bytes().is_none() {
                    return piece.error("mtu is a code: 1 to 5 for 256 to 4096 bytes");
                }
            }
            "rate" => {
                params.rate = RateCode(number(63)? as u8);
                if params.rate.mbps().is_none() {
                    return piece.error("rate is a code, such as 3 for 10 Gbit/s");
                }
            }
            "sl" => params.sl = ServiceLevel(number(15)? as u8),
            "scope" => {
                let scope = number(14)? as u8;
                if scope == 0 {
                    return piece.error("scope 0 is reserved");
                }
                self.scopes.push(scope);
            }
            "Q_Key" => params.q_key = QKey(number(u32::MAX.into())? as u32),
            "TClass" => params.tclass = number(255)? as u8,
            "FlowLabel" => params.flow_label = number(0xf_ffff)? as u32,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads a whole file. Without a rule for partition 0x7fff all ports are limited members of it, and the manager's own a full one.
///
/// # Errors
/// The first thing that is not understood.
pub fn parse(text: &str) -> Result<Vec<Partition>> {
    let without_comments: String = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().to_owned() + "\n")
        .collect();
    let mut partitions: Vec<Partition> = Vec::new();
    let whole = Piece {
        text: &without_comments,
        line: 1,
    };
    if let Some(rest) = without_comments.rsplit(';').next().map(str::trim)
        && !rest.is_empty()
        && let Some(last) = whole.split(';').last()
    {
        return last.error("no ';' at the end of this definition");
    }
    for definition in whole.split(';') {
        let Some((head, body)) = definition.text.split_once(':') else {
            return definition.error("no ':' between the partition and its members");
        };
        let line = definition.line + head.matches('\n').count();
        define(
            &mut partitions,
            Piece {
                text: head,
                line: definition.line,
            },
            Piece { text: body, line },
        )?;
    }
    if !partitions.iter().any(|p| p.pkey.base() == 0x7fff) {
        let default = PKey::DEFAULT_LIMITED;
        partitions.push(Partition::all(
            "Default",
            default,
            Membership::Limited,
            None,
        ));
    }
    Ok(partitions)
}

fn define(partitions: &mut Vec<Partition>, head: Piece<'_>, body: Piece<'_>) -> Result<()> {
    let (mut flags, mut ipoib, mut index0) = (Flags::default(), false, false);
    let mut default = Membership::Limited;
    // The name may be empty, and then there is nothing before the first comma.
    let (first, rest) = head.text.split_once(',').unwrap_or((head.text, ""));
    let rest_line = head.line + first.matches('\n').count();
    let (mut name, mut number) = Piece {
        text: first.trim(),
        ..head
    }
    .assignment();
    if number.is_none() && name.starts_with(|c: char| c.is_ascii_digit()) {
        (name, number) = ("", Some(name));
    }
    let rest = Piece {
        text: rest,
        line: rest_line,
    };
    for piece in rest.split(',') {
        match piece.assignment() {
            ("ipoib", None) => ipoib = true,
            ("indx0", None) => index0 = true,
            ("defmember", value) => default = piece.membership(value.unwrap_or_default())?,
            _ if flags.set(piece)? => {}
            (other, _) => return piece.error(format!("{other:?} is no flag of a partition")),
        }
    }
    let pkey = match number {
        Some(_) => PKey(PKey(head.number(number, 0xffff)? as u16).base()),
        None => (1..0x7fff)
            .map(PKey)
            .find(|key| partitions.iter().all(|p| p.pkey != *key))
            .map_or_else(|| head.error("all P_Keys are taken"), Ok)?,
    };
    if pkey.base() == 0 {
        return head.error("a P_Key of 0 is none");
    }
    let at = match partitions.iter().position(|p| p.pkey == pkey) {
        Some(at) => at,
        None => {
            partitions.push(Partition::of(name, pkey, Vec::new(), None));
            partitions.len() - 1
        }
    };
    let partition = &mut partitions[at];
    partition.index0 |= index0;
    if ipoib {
        let mut scopes = flags.scopes.iter().copied();
        let scope = scopes.next().unwrap_or(2);
        partition.ipoib = Some(GroupParams {
            scope,
            ..flags.params
        });
        partition.groups.extend(scopes.map(|scope| {
            let params = GroupParams {
                scope,
                ..flags.params
            };
            (broadcast_gid(pkey, Scope(scope)), params)
        }));
    }
    // A group has its line for itself; members go on over lines.
    for line in body.split('\n') {
        if let ("mgid", Some(_)) = (Piece {
            text: line.text.split(',').next().unwrap_or_default(),
            ..line
        })
        .assignment()
        {
            partition.groups.extend(group(pkey, &flags, line)?);
            continue;
        }
        for piece in line.split(',') {
            partition.rules.extend(member(piece, default)?);
        }
    }
    Ok(())
}

fn member(piece: Piece<'_>, default: Membership) -> Result<Option<(Who, Membership)>> {
    let (name, value) = piece.assignment();
    let membership = value.map_or(Ok(default), |value| piece.membership(value))?;
    let who = match name {
        "NONE" => return Ok(None),
        "ALL" => Who::All,
        "ALL_CAS" => Who::Cas,
        "ALL_SWITCHES" => Who::Switches,
        "ALL_ROUTERS" => Who::Routers,
        "SELF" => Who::Own,
        guid => match piece.number(Some(guid), u64::MAX) {
            Ok(guid) if guid != 0 => Who::Port(Guid(guid)),
            _ => {
                return piece.error(format!(
                    "{guid:?} is no GUID of a port and no word for some"
                ));
            }
        },
    };
    Ok(Some((who, membership)))
}

/// Groups of an `mgid=` line: one, or one of each scope.
fn group(pkey: PKey, inherited: &Flags, line: Piece<'_>) -> Result<Vec<(Gid, GroupParams)>> {
    let mut flags = Flags {
        params: inherited.params,
        scopes: Vec::new(),
    };
    let mut mgid = None;
    for piece in line.split(',') {
        match piece.assignment() {
            ("mgid", Some(text)) => mgid = text.parse::<Ipv6Addr>().ok().map(|ip| Gid(ip.octets())),
            _ if flags.set(piece)? => {}
            (other, _) => return piece.error(format!("{other:?} is no flag of a group")),
        }
    }
    let Some(mut mgid) = mgid.filter(|gid| gid.is_multicast()) else {
        return line.error("this is no multicast GID");
    };
    if matches!(mgid.0[2..4], [0x40 | 0x60, 0x1b]) {
        let full = pkey.full().0.to_be_bytes();
        if mgid.0[4..6] != [0, 0] && mgid.0[4..6] != full {
            return line.error(format!(
                "the P_Key in this GID is not that of the partition, {}",
                pkey.full()
            ));
        }
        mgid.0[4..6].copy_from_slice(&full);
        if (flags.params.mtu, flags.params.rate) != (inherited.params.mtu, inherited.params.rate) {
            return line.error("an IP group has the MTU and the rate of its partition");
        }
    }
    if flags.scopes.is_empty() {
        flags.scopes.push(mgid.0[1] & 0xf);
    }
    let params = flags.params;
    let of_scope = |&scope: &u8| {
        let mut mgid = mgid;
        mgid.0[1] = mgid.0[1] & 0xf0 | scope;
        (mgid, GroupParams { scope, ..params })
    };
    Ok(flags.scopes.iter().map(of_scope).collect())
}

#[cfg(test)]
mod tests {
    use super::super::config::EndPort;
    use super::*;
    use wire::mad::attr::NodeType;

    fn keys(partition: &Partition, guid: u64, node_type: NodeType, own: bool) -> Vec<u16> {
        let port = EndPort {
            guid: Guid(guid),
            node_type,
            own,
        };
        partition.keys_of(&port).map(|k| k.0).collect()
    }
    fn ca(partition: &Partition, guid: u64) -> Vec<u16> {
        keys(partition, guid, NodeType::CA, false)
    }

    #[test]
    fn a_file_that_opensm_was_run_with() {
        let text = "Default=0x7fff, ipoib, mtu=4, rate=3, Q_Key=0x0b1b : ALL=full, SELF=full;\n\
                    p1=0x8001, ipoib, mtu=4, rate=3, Q_Key=0xabcd :\n    \
                    mgid=ff15:401b:8001::ffff:ffff, scope=5, mtu=4, rate=3, Q_Key=0xabcd\n    \
                    0x100001=full, 0x100003=full, 0x100005=limited;\n";
        let partitions = parse(text).expect("valid");
        assert_eq!(partitions.len(), 2);
        let [default, p1] = &partitions[..] else {
            panic!("two")
        };
        assert_eq!(default.ipoib, Some(GroupParams::default()));
        assert_eq!(ca(default, 9), [0xffff]);
        assert_eq!((p1.name.as_str(), p1.pkey), ("p1", PKey(1)));
        assert_eq!(p1.ipoib.map(|g| g.q_key), Some(QKey(0xabcd)));
        let (mgid, params) = p1.groups[0];
        assert_eq!(mgid.to_string(), "ff15:401b:8001::ffff:ffff");
        assert_eq!((params.q_key, params.scope), (QKey(0xabcd), 5));
        assert_eq!(p1.groups.len(), 1);
        assert_eq!(ca(p1, 0x100001), [0x8001]);
        assert_eq!(ca(p1, 0x100005), [1]);
        assert_eq!(ca(p1, 0x100007), [0_u16; 0]);
    }

    #[test]
    fn words_defaults_and_definitions_in_pieces() {
        let text = "# all of it\n\
            A=0x300 , defmember=full : 0x11, 0x12 ; A = 0x8300 : 0x13, # not this: 0x99\n 18=full;\n\
            , ipoib, sl=3 : ALL_CAS, ALL_SWITCHES=full, SELF=both;\n\
            7,indx0:NONE;\n";
        let partitions = parse(text).expect("valid");
        let [a, unnamed, seven, default] = &partitions[..] else {
            panic!("{partitions:?}")
        };
        assert_eq!(
            [0x11, 0x12, 0x13, 18].map(|g| ca(a, g)),
            [[0x8300], [0x8300], [0x300], [0x8300]]
        );
        assert!(ca(a, 0x99).is_empty());
        assert_eq!((unnamed.name.as_str(), unnamed.pkey), ("", PKey(1)));
        assert_eq!(unnamed.ipoib.map(|g| g.sl), Some(ServiceLevel(3)));
        assert_eq!(ca(unnamed, 5), [1]);
        assert_eq!(keys(unnamed, 5, NodeType::SWITCH, false), [0x8001]);
        assert_eq!(keys(unnamed, 5, NodeType::SWITCH, true), [0x8001, 1]);
        assert!(seven.index0 && seven.pkey == PKey(7) && ca(seven, 1).is_empty());
        // There was no rule for it.
        assert_eq!(ca(default, 5), [0x7fff]);
        assert_eq!(default.ipoib, None);
        assert_eq!(parse("").expect("valid").len(), 1);
    }

    #[test]
    fn groups_of_scopes_and_wild_cards() {
        let text = "P=0x8002,ipoib,scope=2,scope=5: mgid=ff12:601b::1\n mgid=ff12::5,scope=5,scope=8,Q_Key=7\n ALL;";
        let partitions = parse(text).expect("valid");
        let groups: Vec<String> = partitions[0]
            .groups
            .iter()
            .map(|g| g.0.to_string())
            .collect();
        assert_eq!(
            groups,
            [
                "ff15:401b:8002::ffff:ffff",
                "ff12:601b:8002::1",
                "ff15::5",
                "ff18::5"
            ]
        );
        assert_eq!(partitions[0].ipoib.map(|g| g.scope), Some(2));
    }

    #[test]
    fn errors_name_line_and_reason() {
        for (text, line, says) in [
            ("a=1 : ALL", 1, "no ';'"),
            ("a=1 : ALL;\n\nb=2 ALL;\n", 3, "no ':'"),
            ("a=1,\n\nwrong : ALL;", 3, "\"wrong\" is no flag"),
            ("a=1 :\n 0x1=full,\n 0x2=none;", 3, "none of full"),
            ("a=1 :\n\n HOST;", 3, "no GUID"),
            ("a=0x8000 : ALL;", 1, "P_Key of 0"),
            ("a=0x12345 : ALL;", 1, "more than 65535"),
            ("a=1,ipoib,mtu=9: ALL;", 1, "more than 5"),
            ("a=1,ipoib,rate=1: ALL;", 1, "rate is a code"),
            ("a=1,ipoib:\nmgid=fe80::1\nALL;", 2, "no multicast GID"),
            (
                "a=1,ipoib:\nmgid=ff12:401b:8005::1\nALL;",
                2,
                "is not that of the partition",
            ),
            (
                "a=1,ipoib:\nmgid=ff12:401b::1,mtu=1\nALL;",
                2,
                "MTU and the rate",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(
                error.line == line && error.reason.contains(says),
                "{text:?}: {error}"
            );
        }
    }
}
