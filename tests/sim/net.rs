//! What is between the nodes: virtual time, the queue of events, and links with faults.

use crate::sim::{Input, MachineId};
pub use fabric::link::fault::is_cm;
use fabric::link::fault::{FaultConfig, FaultCore, Output, OwnedPacket};
use fabric::link::{Link, LinkSink};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use wire::Qpn;
use wire::mad::attr::{Notice, PathRecord, TrapNumber};
use wire::mad::{AttrId, MadBytes, Method, MgmtClass, PortState, SaMad};
use wire::packet::Packet;

/// A link from which nothing came for so long is down, as a UDP link.
pub const SILENCE: Duration = fabric::link::udp::SILENCE;
/// Until the first hello of a new link has arrived.
const HELLO: Duration = Duration::from_micros(200);

pub type CableId = usize;

/// How the other side of a link learns of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Nobody says anything: by silence.
    Silent,
    /// Its datagrams are refused, or the light goes out.
    Noticed,
}

/// What the future holds.
#[expect(clippy::large_enum_variant, reason = "almost all are packets")]
pub enum Event {
    /// A packet arrives at side `to`.
    Packet {
        cable: CableId,
        to: usize,
        packet: OwnedPacket,
    },
    /// A packet arrives broken at side `to`.
    Broken { cable: CableId, to: usize },
    /// Packets that a fault held up may leave side `side`.
    Late { cable: CableId, side: usize },
    /// The link of side `to` comes up or goes down, unless the cable changed since.
    Link {
        cable: CableId,
        to: usize,
        epoch: u32,
        up: bool,
    },
    /// Some machine wants to be called.
    Timer(MachineId),
    /// A host has something to do.
    Wake(usize),
}

struct Entry {
    at: Instant,
    sequence: u64,
    event: Box<Event>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Steele, Lea and Flood's SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// From 0 up to, but not, `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        low + (high - low).mul_f64(self.unit())
    }
}

struct Cable {
    /// What each side delivers to; none once that node is gone.
    sinks: [Option<Arc<dyn LinkSink>>; 2],
    carries: bool,
    /// What each side was told last.
    told: [bool; 2],
    /// Counts cuts and joins.
    epoch: u32,
    /// Packets of each direction stay in order, unless a fault changes it.
    last: [Instant; 2],
    /// Of what each side sends, besides those of all links.
    faults: [Option<FaultCore>; 2],
}

struct State {
    now: Instant,
    sequence: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    inbox: VecDeque<(MachineId, Input)>,
    cables: Vec<Cable>,
    faults: FaultConfig,
    /// Delay of a link, the least and the most.
    delay: (Duration, Duration),
    random: Random,
    lost: u64,
    carried: u64,
    losses: Vec<Loss>,
    /// Inputs that find a full queue.
    refused: Option<Refused>,
    /// What is made of the paths that the SA tells.
    paths: Option<Paths>,
}

/// Which inputs.
type Refused = Box<dyn Fn(&Input) -> bool + Send>;
type Paths = Box<dyn Fn(&mut PathRecord) + Send>;

/// Packets of one direction of a cable that do not arrive.
struct Loss {
    cable: CableId,
    /// The side that sends them.
    side: usize,
    matches: Box<dyn Fn(&Packet<'_>) -> bool + Send>,
    /// So many of them.
    most: u64,
    /// How many there were. Gone with its [`Lost`].
    seen: Weak<AtomicU64>,
}

/// Counts what [`Net::lose`] loses, and ends that when it is dropped.
#[must_use = "nothing is lost without it"]
pub struct Lost {
    most: u64,
    seen: Arc<AtomicU64>,
}

impl Lost {
    /// Packets lost so far.
    pub fn count(&self) -> u64 {
        self.seen().min(self.most)
    }
    /// Packets of the kind so far, lost and not lost.
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }
}

/// Is it a report of this trap by the SA?
pub fn is_report(packet: &Packet<'_>, trap: TrapNumber) -> bool {
    let is_report = |mad: &SaMad| {
        let header = &mad.header;
        let kind = (header.mgmt_class, header.method);
        let notice = Notice::parse(&mad.data);
        kind == (MgmtClass::SUBN_ADM, Method::REPORT)
            && notice.is_some_and(|n| n.trap_number == trap)
    };
    packet.bth.dest_qp == Qpn::GSI
        && SaMad::parse(packet.payload).is_some_and(|mad| is_report(&mad))
}

/// The world between the nodes.
pub struct Net(Mutex<State>);

impl Net {
    pub fn new(seed: u64) -> Arc<Net> {
        Arc::new(Net(Mutex::new(State {
            now: Instant::now(),
            sequence: 0,
            queue: BinaryHeap::new(),
            inbox: VecDeque::new(),
            cables: Vec::new(),
            faults: FaultConfig::NONE,
            delay: (Duration::from_micros(2), Duration::from_micros(20)),
            random: Random(seed),
            lost: 0,
            carried: 0,
            losses: Vec::new(),
            refused: None,
            paths: None,
        })))
    }

    pub fn now(&self) -> Instant {
        self.0.lock().now
    }
    pub fn set_faults(&self, faults: FaultConfig) {
        self.0.lock().faults = faults;
    }
    /// Faults of one cable, in both directions.
    pub fn set_cable_faults(&self, cable: CableId, config: FaultConfig, seed: u64) {
        let cores = &mut self.0.lock().cables[cable].faults;
        for (core, seed) in cores.iter_mut().zip([seed, !seed]) {
            core.get_or_insert_with(|| FaultCore::new(config, seed))
                .set(config, Some(seed));
        }
    }
    /// Loses the next `most` packets that side `side` of a cable sends and `matches` takes, and counts them all.
    pub fn lose(
        &self,
        cable: CableId,
        side: usize,
        most: u64,
        matches: impl Fn(&Packet<'_>) -> bool + Send + 'static,
    ) -> Lost {
        let seen = Arc::default();
        self.0.lock().losses.push(Loss {
            cable,
            side,
            matches: Box::new(matches),
            most,
            seen: Arc::downgrade(&seen),
        });
        Lost { most, seen }
    }
    /// What a fault held up leaves if it is due.
    pub fn release(&self, cable: CableId, side: usize) {
        self.0.lock().release(cable, side);
    }
    pub fn carried(&self) -> u64 {
        self.0.lock().carried
    }
    pub fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    pub fn at(&self, at: Instant, event: Event) {
        self.0.lock().push(at, event);
    }
    pub fn put(&self, machine: MachineId, input: Input) -> bool {
        let mut state = self.0.lock();
        let is_full = state
            .refused
            .as_ref()
            .is_some_and(|matches| matches(&input));
        if !is_full {
            state.inbox.push_back((machine, input));
        }
        !is_full
    }
    /// From now on the queues of control have no room for these.
    pub fn refuse(&self, matches: impl Fn(&Input) -> bool + Send + 'static) {
        self.0.lock().refused = Some(Box::new(matches));
    }
    /// From now on the SA tells other paths to those who ask for one: as `alter` makes them.
    pub fn alter_paths(&self, alter: impl Fn(&mut PathRecord) + Send + 'static) {
        self.0.lock().paths = Some(Box::new(alter));
    }
    pub fn take_input(&self) -> Option<(MachineId, Input)> {
        self.0.lock().inbox.pop_front()
    }

    /// The next event not after `until`; the time becomes its time.
    pub fn pop(&self, until: Instant) -> Option<Event> {
        let mut state = self.0.lock();
        if state
            .queue
            .peek()
            .is_none_or(|Reverse(entry)| entry.at > until)
        {
            state.now = until;
            return None;
        }
        let Reverse(entry) = state.queue.pop()?;
        state.now = entry.at;
        Some(*entry.event)
    }

    pub fn add_cable(&self, sinks: [Arc<dyn LinkSink>; 2]) -> CableId {
        let mut state = self.0.lock();
        let now = state.now;
        state.cables.push(Cable {
            sinks: sinks.map(Some),
            carries: false,
            told: [false; 2],
            epoch: 0,
            last: [now; 2],
            faults: [None, None],
        });
        state.cables.len() - 1
    }

    pub fn end(self: &Arc<Self>, cable: CableId, side: usize) -> Arc<dyn Link> {
        Arc::new(SimLink {
            net: self.clone(),
            cable,
            side,
        })
    }

    /// Where a packet or a change of the link goes, if anyone is there.
    pub fn sink(&self, cable: CableId, side: usize) -> Option<Arc<dyn LinkSink>> {
        self.0.lock().cables[cable].sinks[side].clone()
    }

    /// Notes that side `to` is told; false if it knows already or the cable changed since.
    pub fn tell(&self, cable: CableId, to: usize, epoch: u32, up: bool) -> bool {
        let cable = &mut self.0.lock().cables[cable];
        cable.epoch == epoch && std::mem::replace(&mut cable.told[to], up) != up
    }

    /// Packets pass from now on; both sides hear of it soon.
    pub fn join(&self, cable: CableId) {
        self.change(cable, true, HELLO);
    }

    /// Nothing passes any more.
    pub fn cut(&self, cable: CableId, death: Death) {
        let after = if death == Death::Silent {
            SILENCE
        } else {
            HELLO
        };
        self.change(cable, false, after);
    }

    fn change(&self, id: CableId, up: bool, after: Duration) {
        let mut state = self.0.lock();
        let cable = &mut state.cables[id];
        cable.carries = up;
        cable.epoch += 1;
        let (epoch, at) = (cable.epoch, state.now + after);
        for to in 0..2 {
            state.push(
                at,
                Event::Link {
                    cable: id,
                    to,
                    epoch,
                    up,
                },
            );
        }
    }

    pub fn is_joined(&self, cable: CableId) -> bool {
        self.0.lock().cables[cable].carries
    }

    /// The node at `side` is no more.
    pub fn vanish(&self, cable: CableId, side: usize) {
        // A node may end with this; it must not find the lock taken.
        let gone = self.0.lock().cables[cable].sinks[side].take();
        drop(gone);
    }

    pub fn random(&self) -> u64 {
        self.0.lock().random.next()
    }
}

impl State {
    fn push(&mut self, at: Instant, event: Event) {
        self.sequence += 1;
        let at = at.max(self.now);
        self.queue.push(Reverse(Entry {
            at,
            sequence: self.sequence,
            event: Box::new(event),
        }));
    }
}

/// One end of a cable.
struct SimLink {
    net: Arc<Net>,
    cable: CableId,
    side: usize,
}

impl Link for SimLink {
    fn transmit(&self, packets: &[Packet<'_>]) {
        let mut guard = self.net.0.lock();
        let state = &mut *guard;
        if let Some(core) = &mut state.cables[self.cable].faults[self.side]
            && !core.is_idle()
        {
            core.handle(state.now, packets);
            return state.release(self.cable, self.side);
        }
        state.transmit(self.cable, self.side, packets);
    }

    fn port_state(&self, _state: PortState) {}
}

impl State {
    fn release(&mut self, cable: CableId, side: usize) {
        let now = self.now;
        while let Some(core) = &mut self.cables[cable].faults[side] {
            match core.poll_output(now) {
                Some(Output::Whole(packet)) => self.transmit(cable, side, &[packet.as_packet()]),
                Some(Output::Broken(_)) => self.push(
                    now,
                    Event::Broken {
                        cable,
                        to: 1 - side,
                    },
                ),
                None => {
                    let next = core.poll_timeout();
                    return next
                        .into_iter()
                        .for_each(|at| self.push(at, Event::Late { cable, side }));
                }
            }
        }
    }

    /// Is it one of the packets to be lost?
    fn is_chosen(&mut self, cable: CableId, side: usize, packet: &Packet<'_>) -> bool {
        self.losses.retain(|loss| loss.seen.strong_count() > 0);
        let here = self.losses.iter();
        let mut here = here.filter(|l| (l.cable, l.side) == (cable, side) && (l.matches)(packet));
        here.any(|loss| {
            let seen = loss.seen.upgrade();
            seen.is_some_and(|seen| seen.fetch_add(1, Relaxed) < loss.most)
        })
    }

    /// The answer of the SA with another path, if it is one.
    fn altered(&self, packet: &Packet<'_>) -> Option<MadBytes> {
        let alter = self.paths.as_ref()?;
        let answer = SaMad::parse(packet.payload)?;
        let header = &answer.header;
        let is_path = packet.bth.dest_qp == Qpn::GSI
            && (header.mgmt_class, header.method) == (MgmtClass::SUBN_ADM, Method::GET_RESP)
            && header.attr_id == AttrId::PATH_RECORD
            && header.status.0 == 0;
        let mut path = PathRecord::parse(&answer.data).filter(|_| is_path)?;
        alter(&mut path);
        Some(answer.with_data(&path.emit()).emit())
    }

    fn transmit(&mut self, cable: CableId, side: usize, packets: &[Packet<'_>]) {
        let to = 1 - side;
        let state = self;
        for packet in packets {
            let altered = state.altered(packet);
            let packet = &Packet {
                payload: altered.as_ref().map_or(packet.payload, |mad| mad),
                ..*packet
            };
            if !state.cables[cable].carries
                || state.is_chosen(cable, side, packet)
                || state.random.chance(state.faults.loss)
            {
                state.lost += 1;
                continue;
            }
            let copies = 1 + usize::from(state.random.chance(state.faults.duplicate));
            for _ in 0..copies {
                state.carried += 1;
                let (low, high) = state.delay;
                let mut at = state.now + state.random.between(low, high);
                if state.random.chance(state.faults.reorder) {
                    // Others overtake it.
                    at += state.random.between(low, 10 * high);
                } else {
                    at = at.max(state.cables[cable].last[to]);
                    state.cables[cable].last[to] = at;
                }
                state.push(
                    at,
                    Event::Packet {
                        cable,
                        to,
                        packet: OwnedPacket::from(packet),
                    },
                );
            }
        }
    }
}

impl Net {
    /// Lets go of the nodes at a cable; false if there is none of this number.
    pub fn forget(&self, cable: CableId) -> bool {
        let gone = match self.0.lock().cables.get_mut(cable) {
            Some(cable) => std::mem::take(&mut cable.sinks),
            None => return false,
        };
        drop(gone);
        true
    }
}
