//! What comes from a connection, on the thread that delivers it.

use crate::counters::Counters;
use crate::plane::{Plane, Upcall};
use arp::Source;
use parking_lot::Mutex;
use std::sync::Arc;
use verbs::{Completion, CompletionStatus, ConnectedHandler, ConnectedReceive, QpEvent};

/// What queue pairs tell and control has not heard yet, with the number of the connection. Each tells of few things in its life.
pub(super) type Events = Mutex<Vec<(u64, QpEvent)>>;

pub(super) struct Handler {
    /// Names the connection before it has a number.
    pub(super) serial: u64,
    /// Who is at the other end.
    pub(super) source: Source,
    pub(super) plane: Arc<Plane>,
    pub(super) events: Arc<Events>,
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
        self.events.lock().push((self.serial, event));
        // Wakes control. If its queue is full it is awake, and looks here after whatever it does next.
        self.plane.upcall(Upcall::Connection);
    }
}
