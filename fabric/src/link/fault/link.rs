//! Faults at a port, both ways.

use super::core::{CmLoss, FaultConfig, FaultCore, FaultCounters, Output, OwnedPacket, is_cm};
use crate::link::{Link, LinkSink};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;
use wire::mad::PortState;
use wire::packet::Packet;

/// Asks its owner to call [`FaultLink::release`] at this time; false if that will not happen.
pub type Wake = Box<dyn Fn(&Arc<FaultLink>, Instant) -> bool + Send + Sync>;

/// Faults of the link of one port. It stays with the port while links come and go.
///
/// While there are none, a packet costs one load.
pub struct FaultLink {
    me: Weak<FaultLink>,
    wake: Wake,
    /// Packets are to be looked at.
    active: AtomicBool,
    state: Mutex<State>,
}

struct State {
    down: bool,
    /// What the link said last.
    link_up: bool,
    /// [SENT] and [RECEIVED].
    ways: [FaultCore; 2],
    /// In both directions together.
    cm_loss: Option<CmLoss>,
    /// Weak: the port has its link, and the link its sink.
    link: Option<Weak<dyn Link>>,
    sink: Option<Weak<dyn LinkSink>>,
    /// When `wake` was asked for.
    scheduled: Option<Instant>,
}

const SENT: usize = 0;
const RECEIVED: usize = 1;

impl FaultLink {
    /// No faults yet.
    pub fn new(wake: Wake) -> Arc<Self> {
        let core = || FaultCore::new(FaultConfig::NONE, 0);
        Arc::new_cyclic(|me| FaultLink {
            me: me.clone(),
            wake,
            active: AtomicBool::new(false),
            state: Mutex::new(State {
                down: false,
                link_up: false,
                ways: [core(), core()],
                cm_loss: None,
                link: None,
                sink: None,
                scheduled: None,
            }),
        })
    }

    /// What the port sends into instead of `link`, until the next link.
    pub fn link(self: &Arc<Self>, link: Arc<dyn Link>) -> Arc<dyn Link> {
        let down = {
            let mut state = self.state.lock();
            state.link = Some(Arc::downgrade(&link));
            state.down
        };
        if down {
            link.enable(false);
        }
        Arc::new(Outward {
            faults: self.clone(),
            inner: link,
        })
    }

    /// What links deliver to instead of the port itself. Its owner keeps it.
    pub fn sink(self: &Arc<Self>, sink: Arc<dyn LinkSink>) -> Arc<dyn LinkSink> {
        self.state.lock().sink = Some(Arc::downgrade(&sink));
        Arc::new(Inward {
            faults: self.clone(),
            inner: sink,
        })
    }

    /// Changes the faults of both directions from the next packet on; with a seed they begin anew.
    pub fn set(&self, config: FaultConfig, seed: Option<u64>) {
        let mut state = self.state.lock();
        let seeds = [seed, seed.map(|seed| !seed)];
        for (way, seed) in state.ways.iter_mut().zip(seeds) {
            way.set(config, seed);
        }
        self.update(&state);
    }

    /// The faults.
    pub fn config(&self) -> FaultConfig {
        self.state.lock().ways[SENT].config()
    }

    /// From now on messages of the communication manager are lost, counted in both directions together; `None`: not any more.
    pub fn lose_cm(&self, loss: Option<CmLoss>) {
        let mut state = self.state.lock();
        state.cm_loss = loss;
        self.update(&state);
    }

    /// What of the communication manager is still to be lost.
    pub fn cm_loss(&self) -> Option<CmLoss> {
        self.state.lock().cm_loss
    }

    /// Takes the link down, or up again: the port is told at once, the other side as its kind of link tells it.
    pub fn set_down(&self, down: bool) {
        let link = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.down, down) == down {
                return;
            }
            if down {
                state.ways.iter_mut().for_each(FaultCore::clear);
            }
            self.update(&state);
            self.tell(&state);
            state.link.as_ref().and_then(Weak::upgrade)
        };
        // It may tell both sides within this call.
        if let Some(link) = link {
            link.enable(!down);
        }
    }

    /// Is the link taken down?
    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    /// Packets that met faults, by direction.
    pub fn with_counters<R>(&self, f: impl FnOnce([&FaultCounters; 2]) -> R) -> R {
        let state = self.state.lock();
        let [sent, received] = &state.ways;
        f([sent.counters(), received.counters()])
    }

    /// Lets go what is due.
    pub fn release(&self, now: Instant) {
        let (link, sink) = {
            let mut state = self.state.lock();
            state.scheduled = None;
            let upgrade = (
                state.link.as_ref().and_then(Weak::upgrade),
                state.sink.as_ref().and_then(Weak::upgrade),
            );
            match upgrade {
                (Some(link), Some(sink)) => (link, sink),
                // The node or its link is gone, and with it what was on the way.
                _ => return state.ways.iter_mut().for_each(FaultCore::clear),
            }
        };
        self.turn(now, SENT, &*link, &[]);
        self.receive(now, &*sink, &[]);
    }

    fn update(&self, state: &State) {
        let idle =
            !state.down && state.cm_loss.is_none() && state.ways.iter().all(FaultCore::is_idle);
        self.active.store(!idle, Relaxed);
    }

    /// Tells the port. Held while it is told: it hears of changes in their order.
    fn tell(&self, state: &State) {
        if let Some(sink) = state.sink.as_ref().and_then(Weak::upgrade) {
            sink.link_changed(state.link_up && !state.down);
        }
    }

    /// Packets set out in a direction; what arrives.
    fn pass(&self, now: Instant, way: usize, packets: &[Packet<'_>]) -> Vec<Output> {
        let mut state = self.state.lock();
        if state.down {
            state.ways[way].counters().down.add(packets.len());
            return Vec::new();
        }
        let State { ways, cm_loss, .. } = &mut *state;
        let core = &mut ways[way];
        for packet in packets {
            match lose(cm_loss, packet) {
                true => core.counters().lost.add(1),
                false => core.handle(now, std::slice::from_ref(packet)),
            }
        }
        let outputs = std::iter::from_fn(|| core.poll_output(now)).collect();
        let next = state.ways.iter().filter_map(FaultCore::poll_timeout).min();
        if let Some(next) = next
            && state.scheduled.is_none_or(|at| next < at)
            && let Some(me) = self.me.upgrade()
            && (self.wake)(&me, next)
        {
            state.scheduled = Some(next);
        }
        self.update(&state);
        // In one process the receiver may answer within the call that it gets them by.
        outputs
    }

    fn turn(&self, now: Instant, way: usize, link: &dyn Link, packets: &[Packet<'_>]) {
        each_run(self.pass(now, way, packets), |run| match run {
            Run::Whole(packets) => link.transmit(packets),
            Run::Broken(packet) => link.transmit_broken(packet),
        });
    }

    fn receive(&self, now: Instant, sink: &dyn LinkSink, packets: &[Packet<'_>]) {
        each_run(self.pass(now, RECEIVED, packets), |run| match run {
            Run::Whole(packets) => sink.receive(packets),
            Run::Broken(_) => sink.receive_errors(1),
        });
    }
}

/// Is this one lost as a message of the communication manager?
fn lose(cm_loss: &mut Option<CmLoss>, packet: &Packet<'_>) -> bool {
    let Some(loss) = cm_loss.as_mut().filter(|l| is_cm(packet, l.message)) else {
        return false;
    };
    loss.left = loss.left.map(|left| left.saturating_sub(1));
    if loss.left == Some(0) {
        *cm_loss = None;
    }
    true
}

enum Run<'a> {
    Whole(&'a [Packet<'a>]),
    Broken(&'a Packet<'a>),
}

/// Packets in a row that are whole stay together.
fn each_run(outputs: Vec<Output>, mut give: impl FnMut(Run<'_>)) {
    let is_whole = |output: &Output| matches!(output, Output::Whole(_));
    for run in outputs.chunk_by(|a, b| is_whole(a) && is_whole(b)) {
        match run {
            [Output::Broken(packet)] => give(Run::Broken(&packet.as_packet())),
            run => {
                let packets: Vec<Packet<'_>> = run
                    .iter()
                    .map(|(Output::Whole(packet) | Output::Broken(packet))| {
                        OwnedPacket::as_packet(packet)
                    })
                    .collect();
                give(Run::Whole(&packets));
            }
        }
    }
}

struct Outward {
    faults: Arc<FaultLink>,
    inner: Arc<dyn Link>,
}

impl Link for Outward {
    fn transmit(&self, packets: &[Packet<'_>]) {
        if self.faults.active.load(Relaxed) {
            self.faults
                .turn(Instant::now(), SENT, &*self.inner, packets);
        } else {
            self.inner.transmit(packets);
        }
    }
    fn port_state(&self, state: PortState) {
        self.inner.port_state(state);
    }
    fn enable(&self, up: bool) {
        self.inner.enable(up);
    }
    fn transmit_broken(&self, packet: &Packet<'_>) {
        self.inner.transmit_broken(packet);
    }
}

struct Inward {
    faults: Arc<FaultLink>,
    inner: Arc<dyn LinkSink>,
}

impl LinkSink for Inward {
    fn receive(&self, packets: &[Packet<'_>]) {
        if self.faults.active.load(Relaxed) {
            self.faults.receive(Instant::now(), &*self.inner, packets);
        } else {
            self.inner.receive(packets);
        }
    }
    fn link_changed(&self, up: bool) {
        let mut state = self.faults.state.lock();
        state.link_up = up;
        self.faults.tell(&state);
    }
    fn receive_errors(&self, n: usize) {
        self.inner.receive_errors(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::local::LocalCable;
    use std::time::Duration;
    use wire::mad::AttrId;
    use wire::mad::cm::{CmMessage, Rej};

    /// A port that writes down what reaches it.
    #[derive(Default)]
    struct Port(Mutex<Vec<String>>);

    impl LinkSink for Port {
        fn receive(&self, packets: &[Packet<'_>]) {
            self.0.lock().push(format!("received {}", packets.len()));
        }
        fn link_changed(&self, up: bool) {
            self.0.lock().push(format!("up {up}"));
        }
        fn receive_errors(&self, n: usize) {
            self.0.lock().push(format!("errors {n}"));
        }
    }

    fn packet(payload: &[u8]) -> Packet<'_> {
        Packet {
            payload,
            ..Packet::default()
        }
    }

    struct Bench {
        near: Arc<Port>,
        far: Arc<Port>,
        faults: Arc<FaultLink>,
        cable: LocalCable,
        /// What the near port sends into, and what keeps its sink.
        link: Arc<dyn Link>,
        _sink: Arc<dyn LinkSink>,
        woken: Arc<Mutex<Vec<Instant>>>,
    }

    impl Bench {
        fn new() -> Bench {
            let (near, far) = (Arc::<Port>::default(), Arc::<Port>::default());
            let woken = Arc::<Mutex<Vec<Instant>>>::default();
            let list = woken.clone();
            let faults = FaultLink::new(Box::new(move |_, at| {
                list.lock().push(at);
                true
            }));
            let sink = faults.sink(near.clone());
            let far_sink: Arc<dyn LinkSink> = far.clone();
            let cable = LocalCable::new(&sink, &far_sink);
            let link = faults.link(cable.end(0));
            cable.join();
            Bench {
                near,
                far,
                faults,
                cable,
                link,
                _sink: sink,
                woken,
            }
        }
        fn both_ways(&self) -> [Vec<String>; 2] {
            self.link.transmit(&[packet(b"a"), packet(b"b")]);
            self.cable.end(1).transmit(&[packet(b"c")]);
            [&self.near, &self.far].map(|port| std::mem::take(&mut *port.0.lock()))
        }
    }

    #[test]
    fn down_and_up_tell_both_sides_once() {
        let bench = Bench::new();
        let whole = [vec!["up true", "received 1"], vec!["up true", "received 2"]];
        assert_eq!(bench.both_ways(), whole);
        bench.faults.set_down(true);
        bench.faults.set_down(true);
        let [near, far] = bench.both_ways();
        assert!(near.iter().all(|said| said == "up false") && !near.is_empty());
        assert_eq!(far, ["up false"]);
        // Plugging it in again does not mend it.
        bench.cable.cut();
        bench.cable.join();
        assert!(
            bench
                .both_ways()
                .concat()
                .iter()
                .all(|said| said == "up false")
        );
        bench.faults.set_down(false);
        let [near, far] = bench.both_ways();
        assert_eq!(near[near.len() - 2..], ["up true", "received 1"]);
        assert_eq!(far, ["up true", "received 2"]);
    }

    #[test]
    fn broken_packets_are_errors_of_the_receiver() {
        let bench = Bench::new();
        bench.both_ways();
        let config = FaultConfig {
            corrupt: 1.0,
            ..FaultConfig::NONE
        };
        bench.faults.set(config, Some(1));
        assert_eq!(
            bench.both_ways(),
            [vec!["errors 1"], vec!["errors 1", "errors 1"]]
        );
        bench.faults.set(FaultConfig::NONE, None);
        assert_eq!(bench.both_ways(), [["received 1"], ["received 2"]]);
        assert_eq!(
            bench
                .faults
                .with_counters(|ways| ways.map(|c| c.corrupted.get())),
            [2, 1]
        );
    }

    #[test]
    fn messages_of_the_communication_manager_are_lost_until_as_many_were() {
        let rej = CmMessage::from(Rej::default()).emit(1);
        let mut rej = packet(&rej[..]);
        rej.bth.dest_qp = wire::Qpn::GSI;
        let bench = Bench::new();
        bench.both_ways();
        bench.faults.lose_cm(Some(CmLoss {
            message: AttrId::CM_REJ,
            left: Some(2),
        }));
        // It is the second that is lost, each time, and whatever is no message passes.
        for left in [Some(1), None] {
            bench.link.transmit(&[packet(b"a"), rej, packet(b"b")]);
            assert_eq!(
                bench.far.0.lock().drain(..).collect::<Vec<_>>(),
                ["received 2"]
            );
            assert_eq!(bench.faults.cm_loss().and_then(|loss| loss.left), left);
        }
        assert!(!bench.faults.active.load(Relaxed));
        bench.cable.end(1).transmit(&[rej]);
        assert_eq!(*bench.near.0.lock(), ["received 1"]);
        let lost = bench
            .faults
            .with_counters(|ways| ways.map(|c| c.lost.get()));
        assert_eq!(lost, [2, 0]);
    }

    #[test]
    fn late_packets_leave_when_released() {
        let bench = Bench::new();
        bench.both_ways();
        let config = FaultConfig {
            delay: Duration::from_secs(3600),
            ..FaultConfig::NONE
        };
        bench.faults.set(config, None);
        assert_eq!(bench.both_ways(), [[""; 0]; 2]);
        let at = bench.woken.lock()[0];
        assert_eq!(bench.woken.lock().len(), 1, "asked once");
        bench.faults.set(FaultConfig::NONE, None);
        bench.faults.release(at + Duration::from_secs(60));
        let near = std::mem::take(&mut *bench.near.0.lock());
        let far = std::mem::take(&mut *bench.far.0.lock());
        assert_eq!(
            (near, far),
            (vec!["received 1".into()], vec!["received 2".into()])
        );
        assert!(!bench.faults.active.load(Relaxed));
    }
}
