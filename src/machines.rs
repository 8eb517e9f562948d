//! The state machines that this program runs on threads.

use crate::run::Machine;
use datapath::plane::Upcall;
use datapath::{Input, Interface};
use fabric::node::{NodeControl, NodeInput, NodePlane};
use fabric::sm::SubnetManager;
use fabric::sm::runner::SmPort;
use std::time::Instant;
use verbs::MadReceived;

impl<P: NodePlane + Send + Sync + 'static> Machine for NodeControl<P> {
    type Input = NodeInput;

    fn handle(&mut self, now: Instant, input: NodeInput) {
        NodeControl::handle(self, now, input)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        NodeControl::poll_timeout(self)
    }
    fn handle_timeout(&mut self, now: Instant) {
        NodeControl::handle_timeout(self, now)
    }
}

/// A subnet manager at its port.
pub struct Manager {
    /// The manager.
    pub sm: SubnetManager,
    /// Its agents.
    pub port: SmPort,
}

impl Machine for Manager {
    type Input = MadReceived;

    fn handle(&mut self, now: Instant, mad: MadReceived) {
        self.port.turn(now, &mut self.sm, [mad]);
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.sm.poll_timeout()
    }
    fn handle_timeout(&mut self, now: Instant) {
        self.port.turn(now, &mut self.sm, []);
    }
}

impl Machine for Interface {
    type Input = Input;

    fn handle(&mut self, now: Instant, input: Input) {
        Interface::handle(self, now, input)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Interface::poll_timeout(self)
    }
    fn handle_timeout(&mut self, now: Instant) {
        Interface::handle_timeout(self, now)
    }
    fn is_finished(&self) -> bool {
        Interface::is_finished(self)
    }
    fn bulk(input: &Input) -> Option<usize> {
        match input {
            Input::Upcall(
                Upcall::Miss(packet)
                | Upcall::TooBig(packet, _)
                | Upcall::Arp(_, packet)
                | Upcall::Nd(_, packet),
            ) => Some(packet.len()),
            _ => None,
        }
    }
}
