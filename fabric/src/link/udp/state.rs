//! One end of a UDP link as a state machine without IO.
//!
//! Fed with what arrives (datagrams that were checked, refusals, the port's own state) and the time, it says when to send a hello and when the
//! link comes up or goes down. Poll its output after each input.

use std::time::{Duration, Instant};
use wire::mad::PortState;
use wire::packet::FlowControl;

/// Time between two hellos. The contract is four a second; a fifth leaves room for late timers.
pub const HELLO_INTERVAL: Duration = Duration::from_millis(200);

/// A link from which nothing valid came for this long is down.
pub const SILENCE: Duration = Duration::from_secs(3);

/// What the owner of the machine has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this flow-control packet.
    Hello(FlowControl),
    /// Tell the port that the link came up (true) or went down.
    LinkChanged(bool),
}

/// State of one end of a link.
#[derive(Debug)]
pub struct LinkState {
    port: PortState,
    /// When something valid came last; the link is up while this is set.
    heard: Option<Instant>,
    /// What the port was told last.
    told_up: bool,
    hello_at: Instant,
    hello_due: bool,
}

impl LinkState {
    /// A link that is down, over which a first hello is due.
    pub fn new(now: Instant) -> Self {
        Self {
            port: PortState::DOWN,
            heard: None,
            told_up: false,
            hello_at: now,
            hello_due: true,
        }
    }

    /// Is the link up?
    pub fn is_up(&self) -> bool {
        self.heard.is_some()
    }

    /// A valid datagram came: a packet with right ICRC or a hello.
    pub fn handle_datagram(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// The other side's address refuses datagrams: nobody is there.
    pub fn handle_refused(&mut self) {
        self.heard = None;
    }

    /// The port of this side changed its logical state.
    pub fn handle_port_state(&mut self, state: PortState) {
        if self.port != state {
            self.port = state;
            self.hello_due = true;
        }
    }

    /// When [`LinkState::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Instant {
        match self.heard {
            Some(heard) => self.hello_at.min(heard + SILENCE),
            None => self.hello_at,
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.heard.is_some_and(|heard| now >= heard + SILENCE) {
            self.heard = None;
        }
        self.hello_due |= now >= self.hello_at;
    }

    /// The next thing to do.
    pub fn poll_output(&mut self, now: Instant) -> Option<Output> {
        if std::mem::take(&mut self.hello_due) {
            self.hello_at = now + HELLO_INTERVAL;
            let op = match self.port {
                PortState::ARMED | PortState::ACTIVE => FlowControl::NORMAL,
                _ => FlowControl::INIT,
            };
            return Some(Output::Hello(FlowControl::hello(op)));
        }
        if self.told_up != self.is_up() {
            self.told_up = self.is_up();
            return Some(Output::LinkChanged(self.told_up));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(link: &mut LinkState, now: Instant) -> Vec<Output> {
        std::iter::from_fn(|| link.poll_output(now)).collect()
    }

    fn hello(op: u8) -> Output {
        Output::Hello(FlowControl::hello(op))
    }

    #[test]
    fn up_from_the_first_datagram_and_down_after_silence() {
        let start = Instant::now();
        let mut link = LinkState::new(start);
        assert_eq!(outputs(&mut link, start), [hello(FlowControl::INIT)]);
        link.handle_datagram(start);
        assert_eq!(outputs(&mut link, start), [Output::LinkChanged(true)]);
        link.handle_datagram(start);
        assert_eq!(outputs(&mut link, start), []);

        let mut down_at = None;
        let mut now = start;
        while down_at.is_none() && now < start + 2 * SILENCE {
            now = link.poll_timeout();
            link.handle_timeout(now);
            if outputs(&mut link, now).contains(&Output::LinkChanged(false)) {
                down_at = Some(now);
            }
        }
        assert_eq!(down_at, Some(start + SILENCE));
        link.handle_datagram(now);
        assert_eq!(outputs(&mut link, now), [Output::LinkChanged(true)]);
    }

    #[test]
    fn refused_takes_the_link_down_at_once_and_hellos_go_on() {
        let start = Instant::now();
        let mut link = LinkState::new(start);
        link.handle_datagram(start);
        outputs(&mut link, start);
        link.handle_refused();
        assert_eq!(outputs(&mut link, start), [Output::LinkChanged(false)]);
        link.handle_refused();
        assert_eq!(outputs(&mut link, start), []);
        let now = link.poll_timeout();
        link.handle_timeout(now);
        assert_eq!(outputs(&mut link, now), [hello(FlowControl::INIT)]);
    }

    #[test]
    fn at_least_four_hellos_a_second() {
        let start = Instant::now();
        let mut link = LinkState::new(start);
        let mut last = start;
        outputs(&mut link, start);
        for _ in 0..50 {
            let now = link.poll_timeout();
            assert!(now > last && now - last <= Duration::from_millis(250));
            link.handle_timeout(now);
            assert_eq!(outputs(&mut link, now).len(), 1);
            last = now;
        }
    }

    #[test]
    fn each_change_of_the_port_says_hello() {
        let start = Instant::now();
        let mut link = LinkState::new(start);
        outputs(&mut link, start);
        for (state, op) in [
            (PortState::INIT, FlowControl::INIT),
            (PortState::ARMED, FlowControl::NORMAL),
            (PortState::ACTIVE, FlowControl::NORMAL),
            (PortState::DOWN, FlowControl::INIT),
        ] {
            link.handle_port_state(state);
            assert_eq!(outputs(&mut link, start), [hello(op)]);
            link.handle_port_state(state);
            assert_eq!(outputs(&mut link, start), []);
        }
    }
}
