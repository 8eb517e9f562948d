//! The syndrome of an AETH (IBA 9.7.5.2, table 43).

use verbs::{CompletionStatus, RnrTimer};

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syndrome {
    /// All up to its PSN is there; so many more messages have a place, if that is limited.
    Ack(Credits),
    /// All before its PSN is there; no place for this one until the timer is over.
    Rnr(RnrTimer),
    /// All before its PSN is there; this one is refused.
    Nak(Nak),
}

/// End-to-end credits as their 5-bit code (IBA 9.7.7.2.3, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credits(u8);

/// NAK code (IBA 9.7.5.2.2, table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nak {
    /// A packet is missing before this one.
    Sequence = 0,
    /// Unknown operation, or too long.
    InvalidRequest = 1,
    /// No such memory, or not allowed.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperation = 3,
}

impl Credits {
    /// The receiver's places are not limited.
    pub(super) const UNLIMITED: Credits = Credits(31);

    /// The largest code for no more than `n` places.
    pub(super) fn at_most(n: usize) -> Credits {
        let fits = |code: &u8| Credits(*code).count().is_some_and(|c| c as usize <= n);
        Credits((0..31).rev().find(fits).unwrap_or(0))
    }

    /// 0, 1, 2, 3, 4, 6, 8, 12, 16, ... 32768; `None`: not limited.
    pub(super) fn count(self) -> Option<u64> {
        match self.0 {
            n @ (0 | 1) => Some(n.into()),
            31.. => None,
            n => Some((2 + u64::from(n & 1)) << ((n >> 1) - 1)),
        }
    }
}

impl Nak {
    /// How the refused request ends; `None`: it is tried again.
    pub(super) fn status(self) -> Option<CompletionStatus> {
        match self {
            Nak::Sequence => None,
            Nak::InvalidRequest => Some(CompletionStatus::RemoteInvalidRequest),
            Nak::RemoteAccess => Some(CompletionStatus::RemoteAccess),
            Nak::RemoteOperation => Some(CompletionStatus::RemoteOperation),
        }
    }
}

impl Syndrome {
    /// `None` for a reserved code.
    pub(super) fn parse(byte: u8) -> Option<Syndrome> {
        let value = byte & 0x1f;
        Some(match byte >> 5 {
            0 => Syndrome::Ack(Credits(value)),
            1 => Syndrome::Rnr(RnrTimer(value)),
            3 => Syndrome::Nak(match value {
                0 => Nak::Sequence,
                1 => Nak::InvalidRequest,
                2 => Nak::RemoteAccess,
                3 => Nak::RemoteOperation,
                _ => return None,
            }),
            _ => return None,
        })
    }

    pub(super) fn emit(self) -> u8 {
        match self {
            Syndrome::Ack(Credits(code)) => code,
            Syndrome::Rnr(RnrTimer(code)) => 1 << 5 | code & 0x1f,
            Syndrome::Nak(nak) => 3 << 5 | nak as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_are_read_as_written() {
        let known: Vec<u8> = (0..=255)
            .filter(|b| Syndrome::parse(*b).is_some())
            .collect();
        let expect: Vec<u8> = (0..0x40).chain(0x60..0x64).collect();
        assert_eq!(known, expect);
        let again = |b: &u8| Syndrome::parse(*b).map(Syndrome::emit);
        assert!(known.iter().all(|b| again(b) == Some(*b)));
    }

    #[test]
    fn credits_follow_the_table() {
        let counts: Vec<_> = (0..31).filter_map(|c| Credits(c).count()).collect();
        assert_eq!(counts[..10], [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]);
        assert_eq!((counts[30], Credits(31).count()), (32_768, None));
        for (n, count) in [(0, 0), (5, 4), (7, 6), (100, 96), (usize::MAX, 32_768)] {
            assert_eq!(Credits::at_most(n).count(), Some(count));
        }
    }
}
