//! Binds a [`SubnetManager`] to the management port of a node.

use super::SubnetManager;
use crate::link::ControlSink;
use crate::node::ManagementPort;
use std::sync::Arc;
use std::time::Instant;
use verbs::{MadAgent, MadReceived, VerbsError};
use wire::Qpn;
use wire::mad::{Method, MgmtClass};

/// The agents of a subnet manager at its port. Dropping it takes IsSM from the port.
pub struct SmPort {
    smi: Box<dyn MadAgent>,
    gsi: Box<dyn MadAgent>,
}

impl SmPort {
    /// Registers at the port; what arrives goes to `sink`, whose owner gives it to [`SubnetManager::handle_mad`] on the manager's thread.
    ///
    /// # Errors
    /// Another subnet manager is at this port, or the port is gone.
    pub fn bind(
        port: &dyn ManagementPort,
        sink: ControlSink<MadReceived>,
    ) -> Result<Self, VerbsError> {
        let sink = Arc::new(sink);
        let handler = |sink: Arc<ControlSink<MadReceived>>| {
            Arc::new(move |mad: MadReceived| {
                // A full queue is counted by its owner; the senders come again.
                sink(mad);
            })
        };
        let smi = port.register_sm(handler(sink.clone()))?;
        let gsi = port.register_mad_agent(&[MgmtClass::SUBN_ADM], handler(sink))?;
        Ok(SmPort { smi, gsi })
    }

    /// Sends all that the manager has to send.
    pub fn pump(&self, sm: &mut SubnetManager) {
        while let Some(mut mad) = sm.poll_transmit() {
            let agent = if mad.remote_qpn == Qpn::SMI {
                &self.smi
            } else {
                &self.gsi
            };
            // Answers come back by the agent's number; what is an answer itself keeps the TID that it has.
            if matches!(
                Method(mad.mad[3]),
                Method::GET | Method::SET | Method::REPORT
            ) {
                mad.mad[8..12].copy_from_slice(&agent.tid_high().to_be_bytes());
            }
            agent.send(mad);
        }
    }

    /// One turn of the manager's thread: everything that arrived, whatever is due, and what follows.
    pub fn turn(
        &self,
        now: Instant,
        sm: &mut SubnetManager,
        arrived: impl IntoIterator<Item = MadReceived>,
    ) {
        arrived.into_iter().for_each(|mad| sm.handle_mad(now, mad));
        if sm.is_due(now) {
            sm.handle_timeout(now);
        }
        self.pump(sm);
    }
}
