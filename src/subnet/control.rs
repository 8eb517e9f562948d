//! The control state machines of all nodes of a subnet, on one thread.

use crate::run::Machine;
use fabric::hca::HcaControl;
use fabric::node::NodeInput;
use fabric::switch::SwitchControl;
use std::collections::BTreeSet;
use std::time::Instant;

/// The control side of a node.
pub(super) enum Control {
    /// Of a switch.
    Switch(Box<SwitchControl>),
    /// Of a port of a channel adapter.
    Hca(Box<HcaControl>),
}

impl Control {
    fn handle(&mut self, now: Instant, input: NodeInput) {
        match self {
            Control::Switch(control) => control.handle(now, input),
            Control::Hca(control) => control.handle(now, input),
        }
    }
    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Control::Switch(control) => control.poll_timeout(),
            Control::Hca(control) => control.poll_timeout(),
        }
    }
    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Control::Switch(control) => control.handle_timeout(now),
            Control::Hca(control) => control.handle_timeout(now),
        }
    }
}

/// All of them. An input says for which it is, by index.
#[derive(Default)]
pub(super) struct Controls {
    nodes: Vec<(Control, Option<Instant>)>,
    /// The timeouts in their order: a subnet may have thousands of nodes, and few of them wait for anything.
    due: BTreeSet<(Instant, usize)>,
}

impl Controls {
    /// Adds a node; its index is the number of those before it.
    pub(super) fn push(&mut self, control: Control) {
        self.nodes.push((control, None));
        self.reschedule(self.nodes.len() - 1);
    }

    /// All nodes look at their links.
    pub(super) fn look(&mut self, now: Instant) {
        for index in 0..self.nodes.len() {
            self.handle(now, (index, NodeInput::LinkChanged));
        }
    }

    fn reschedule(&mut self, index: usize) {
        let Some((control, scheduled)) = self.nodes.get_mut(index) else {
            return;
        };
        let next = control.poll_timeout();
        if next != *scheduled {
            if let Some(at) = scheduled.take() {
                self.due.remove(&(at, index));
            }
            self.due.extend(next.map(|at| (at, index)));
            *scheduled = next;
        }
    }
}

impl Machine for Controls {
    type Input = (usize, NodeInput);

    fn handle(&mut self, now: Instant, (index, input): (usize, NodeInput)) {
        if let Some((control, _)) = self.nodes.get_mut(index) {
            control.handle(now, input);
            self.reschedule(index);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn handle_timeout(&mut self, now: Instant) {
        // Each node once: one that has something to do at once again must not keep the others waiting.
        let due: Vec<usize> = self
            .due
            .iter()
            .take_while(|(at, _)| *at <= now)
            .map(|(_, index)| *index)
            .collect();
        for index in due {
            if let Some((control, _)) = self.nodes.get_mut(index) {
                control.handle_timeout(now);
            }
            self.reschedule(index);
        }
    }
}
