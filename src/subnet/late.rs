//! The clock of links that deliver late: [`FaultLink`]s ask to be called, and are.

use crate::run::{Inbox, Machine};
use fabric::link::fault::{FaultLink, Wake};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Who wants to be called when.
#[derive(Default)]
pub(super) struct Late {
    /// Several may want the same time: a number tells them apart.
    due: BTreeMap<(Instant, u64), Weak<FaultLink>>,
    next: u64,
}

impl Late {
    /// What a link asks by.
    pub(super) fn wake(inbox: &Inbox<Late>) -> Wake {
        let inbox = inbox.clone();
        Box::new(move |link, at| inbox.put((at, Arc::downgrade(link))))
    }
}

impl Machine for Late {
    type Input = (Instant, Weak<FaultLink>);

    fn handle(&mut self, _now: Instant, (at, link): (Instant, Weak<FaultLink>)) {
        self.next += 1;
        self.due.insert((at, self.next), link);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some(first) = self.due.first_entry().filter(|first| first.key().0 <= now) {
            if let Some(link) = first.remove().upgrade() {
                link.release(now);
            }
        }
    }
}
