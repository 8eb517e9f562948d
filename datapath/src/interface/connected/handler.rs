//! What comes from a connection, on the thread that delivers it.

use crate::counters::Counters;
use crate::plane::{Plane, Upcall};
use arp::Source;
use std::sync::Arc;
use verbs::{Completion, CompletionStatus, ConnectedHandler, ConnectedReceive, QpEvent};

pub(super) struct Handler {
    /// Names the connection before it has a number.
    pub(super) serial: u64,
    /// Who is at the other end.
    pub(super) source: Source,
    pub(super) plane: Arc<Plane>,
}

impl ConnectedHandler for Handler {
    fn receive(&self, batch: &[ConnectedReceive<'_>]) {
        self.plane.receive_connected(self.source, batch);
    }

    fn complete(&self, batch: &[Completion]) {
        let failed = |c: &&Completion| c.status != CompletionStatus::Success;
        let lost = batch.iter().filter(failed).count();
        Counters::add(&self.plane.counters().tx_lost_connection, lost as u64);
    }

    fn event(&self, event: QpEvent) {
        // Control looks at all queue pairs now and then: what is lost here it finds out later.
        self.plane.upcall(Upcall::Connection(self.serial, event));
    }
}
