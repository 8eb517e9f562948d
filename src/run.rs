//! Runs sans-IO state machines on threads: one thread each, fed by channels, woken by its own next timeout.

use crossbeam_channel::{Receiver, Sender, bounded, select, select_biased};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A state machine that is fed inputs and time.
pub trait Machine: Send + 'static {
    /// What it is fed.
    type Input: Send + 'static;

    /// One input.
    fn handle(&mut self, now: Instant, input: Self::Input);
    /// When it wants [`handle_timeout`](Self::handle_timeout).
    fn poll_timeout(&self) -> Option<Instant>;
    /// Time passed.
    fn handle_timeout(&mut self, now: Instant);
    /// True: the thread ends.
    fn is_finished(&self) -> bool {
        false
    }
    /// Inputs of which there may be floods (packets without a table entry); they wait behind all others.
    /// The bytes of such an input's packet; `None` for all others.
    fn bulk(_input: &Self::Input) -> Option<usize> {
        None
    }
}

type Call<M> = Box<dyn FnOnce(&mut M, Instant) + Send>;

/// Inputs waiting at most, in each of the two classes. A full queue drops, and whoever put the input counts.
const QUEUE: usize = 8192;
/// Bytes of bulk inputs that wait at most: of packets of connected mode far less than [`QUEUE`].
const QUEUE_BYTES: usize = 32 << 20;

/// The sending side of a machine's queues; cheap to clone.
pub struct Inbox<M: Machine> {
    inputs: Sender<M::Input>,
    bulk: Sender<M::Input>,
    /// Of what is in `bulk`.
    bulk_bytes: Arc<AtomicUsize>,
    calls: Sender<Call<M>>,
    stop: Sender<()>,
    ended: Receiver<Never>,
}

impl<M: Machine> Clone for Inbox<M> {
    fn clone(&self) -> Self {
        Inbox {
            inputs: self.inputs.clone(),
            bulk: self.bulk.clone(),
            bulk_bytes: self.bulk_bytes.clone(),
            calls: self.calls.clone(),
            stop: self.stop.clone(),
            ended: self.ended.clone(),
        }
    }
}

/// The receiving side, until the machine exists.
pub struct Outbox<M: Machine> {
    inputs: Receiver<M::Input>,
    bulk: Receiver<M::Input>,
    bulk_bytes: Arc<AtomicUsize>,
    calls: Receiver<Call<M>>,
    stop: Receiver<()>,
    /// Dropped last: whoever sees the end finds all answers.
    _at_end: Sender<Never>,
}

/// The queues of a machine that is yet to be built: its parts need somewhere to put their inputs.
pub fn queues<M: Machine>() -> (Inbox<M>, Outbox<M>) {
    let (inputs, inputs_out) = bounded(QUEUE);
    let (bulk, bulk_out) = bounded(QUEUE);
    let (calls, calls_out) = bounded(64);
    let (stop, stop_out) = bounded(1);
    let (at_end, ended) = bounded(0);
    let bulk_bytes = Arc::<AtomicUsize>::default();
    let outbox = Outbox {
        inputs: inputs_out,
        bulk: bulk_out,
        bulk_bytes: bulk_bytes.clone(),
        calls: calls_out,
        stop: stop_out,
        _at_end: at_end,
    };
    (
        Inbox {
            inputs,
            bulk,
            bulk_bytes,
            calls,
            stop,
            ended,
        },
        outbox,
    )
}

impl<M: Machine> Inbox<M> {
    /// Puts an input; false if it was dropped.
    pub fn put(&self, input: M::Input) -> bool {
        let Some(bytes) = M::bulk(&input) else {
            return self.inputs.try_send(input).is_ok();
        };
        let before = self.bulk_bytes.fetch_add(bytes, Relaxed);
        let taken = before + bytes <= QUEUE_BYTES && self.bulk.try_send(input).is_ok();
        if !taken {
            self.bulk_bytes.fetch_sub(bytes, Relaxed);
        }
        taken
    }

    /// Runs `f` on the machine's thread and returns what it returns; `None` if the machine has ended.
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut M, Instant) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, result) = bounded(1);
        let call = Box::new(move |machine: &mut M, now: Instant| {
            // Whoever asked may have gone.
            let _ = answer.send(f(machine, now));
        });
        self.calls.send(call).ok()?;
        select! {
            recv(result) -> answer => answer.ok(),
            // The call may wait in the queue of a machine that has ended since, and nothing takes it out.
            recv(self.ended) -> _ => result.try_recv().ok(),
        }
    }

    /// Ends the thread after what it is doing.
    pub fn stop(&self) {
        // Full: it was told already. Disconnected: it has ended.
        let _ = self.stop.try_send(());
    }
}

/// A running machine. Dropping it stops the thread and waits for its end.
pub struct Running<M: Machine> {
    inbox: Inbox<M>,
    thread: Option<JoinHandle<()>>,
}

/// Nothing of this kind can be sent.
pub enum Never {}

impl<M: Machine> Running<M> {
    /// Its queues.
    pub fn inbox(&self) -> &Inbox<M> {
        &self.inbox
    }

    /// A channel that is disconnected when the machine has ended by itself or was stopped.
    pub fn ended(&self) -> &Receiver<Never> {
        &self.inbox.ended
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a control thread panicked");
        }
    }
}

impl<M: Machine> Drop for Running<M> {
    fn drop(&mut self) {
        self.inbox.stop();
        self.join();
    }
}

/// Starts the thread of `machine`.
///
/// # Errors
/// The system has no thread to give.
pub fn spawn<M: Machine>(
    name: &str,
    inbox: Inbox<M>,
    outbox: Outbox<M>,
    machine: M,
) -> io::Result<Running<M>> {
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || drive(machine, &outbox))?;
    Ok(Running {
        inbox,
        thread: Some(thread),
    })
}

fn drive<M: Machine>(mut machine: M, outbox: &Outbox<M>) {
    while !machine.is_finished() {
        let timeout = machine.poll_timeout();
        let now = Instant::now();
        if timeout.is_some_and(|at| at <= now) {
            machine.handle_timeout(now);
            // A stop must be seen even by a machine that always has something to do.
            if outbox.stop.try_recv().is_ok() {
                return;
            }
        }
        let wait = machine
            .poll_timeout()
            .map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(Instant::now())
            });
        // Disconnected queues cannot be: `Running` holds their other ends as long as the thread runs.
        select_biased! {
            recv(outbox.stop) -> _ => return,
            recv(outbox.calls) -> call => if let Ok(call) = call { call(&mut machine, Instant::now()) },
            recv(outbox.inputs) -> input => if let Ok(input) = input { machine.handle(Instant::now(), input) },
            recv(outbox.bulk) -> input => if let Ok(input) = input {
                outbox.bulk_bytes.fetch_sub(M::bulk(&input).unwrap_or_default(), Relaxed);
                machine.handle(Instant::now(), input);
            },
            default(wait) => {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter {
        seen: Vec<u32>,
        until: Option<Instant>,
        ticks: u32,
    }

    impl Machine for Counter {
        type Input = u32;
        fn handle(&mut self, _now: Instant, input: u32) {
            self.seen.push(input);
        }
        fn poll_timeout(&self) -> Option<Instant> {
            self.until
        }
        fn handle_timeout(&mut self, _now: Instant) {
            self.ticks += 1;
            self.until = None;
        }
        fn is_finished(&self) -> bool {
            self.seen.last() == Some(&99)
        }
        fn bulk(input: &u32) -> Option<usize> {
            (*input >= 10 && *input != 99).then_some(*input as usize)
        }
    }

    #[test]
    fn inputs_arrive_in_order_and_bulk_waits() {
        let (inbox, outbox) = queues::<Counter>();
        for n in [10, 1, 11, 2] {
            assert!(inbox.put(n));
        }
        let machine = Counter {
            seen: vec![],
            until: Some(Instant::now()),
            ticks: 0,
        };
        let running = spawn("test", inbox.clone(), outbox, machine).expect("thread");
        // A call goes before inputs, so ask until all are there.
        let mut seen = vec![];
        while seen.len() < 4 {
            seen = running.inbox().call(|m, _| m.seen.clone()).expect("runs");
        }
        assert_eq!(seen, [1, 2, 10, 11]);
        assert_eq!(running.inbox().call(|m, _| m.ticks), Some(1));
        assert!(inbox.put(99));
        assert!(running.ended().recv().is_err());
        drop(running);
        assert_eq!(inbox.call(|m, _| m.ticks), None);
    }

    #[test]
    fn a_call_ends_with_the_machine() {
        let (inbox, outbox) = queues::<Counter>();
        let running = spawn(
            "test",
            inbox.clone(),
            outbox,
            Counter {
                seen: vec![],
                until: None,
                ticks: 0,
            },
        )
        .expect("thread");
        let late = inbox.clone();
        let waiter = running.inbox().call(move |machine, _| {
            let calls = late.calls.clone();
            let waiter = std::thread::spawn(move || late.call(|machine, _| machine.ticks));
            while calls.is_empty() {
                std::thread::yield_now();
            }
            machine.seen.push(99);
            waiter
        });
        assert_eq!(waiter.expect("runs").join().expect("no panic"), None);
    }

    #[test]
    fn a_full_queue_says_so() {
        let (inbox, _outbox) = queues::<Counter>();
        assert_eq!((0..QUEUE + 5).filter(|_| inbox.put(1)).count(), QUEUE);
        assert_eq!((0..QUEUE + 5).filter(|_| inbox.put(10)).count(), QUEUE);
    }

    #[test]
    fn long_packets_fill_the_queue_until_they_are_taken_out() {
        let (inbox, outbox) = queues::<Counter>();
        let half = QUEUE_BYTES as u32 / 2;
        assert_eq!(
            [half, half, 10, 1].map(|n| inbox.put(n)),
            [true, true, false, true]
        );
        let machine = Counter {
            seen: vec![],
            until: None,
            ticks: 0,
        };
        let running = spawn("test", inbox.clone(), outbox, machine).expect("thread");
        while running.inbox().call(|m, _| m.seen.len()) != Some(3) {}
        assert!(inbox.put(half));
    }
}
