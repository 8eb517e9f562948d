//! The state machines that this program runs on threads.

use crate::run::Machine;
use datapath::plane::Upcall;
use datapath::{Input, Interface};
use fabric::node::{NodeControl, NodeInput};
use fabric::sm::SubnetManager;
use std::time::Instant;
use verbs::{MadAgent, MadReceived};

impl Machine for NodeControl {
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
    fn is_bulk(input: &Input) -> bool {
        matches!(input, Input::Upcall(Upcall::Miss(_) | Upcall::TooBig(..) | Upcall::Arp(..) | Upcall::Nd(..)))
    }
}
