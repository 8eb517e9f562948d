//! SIGINT, SIGTERM and SIGHUP end the program in order; with a partition file, SIGHUP reads it again instead.

use crossbeam_channel::{Receiver, bounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator;

/// The signals that ask to end.
pub struct Signals(Receiver<i32>);

impl Signals {
    /// From now on they no longer kill the program.
    ///
    /// # Errors
    /// The system refuses handlers or a thread.
    pub fn install() -> std::io::Result<Signals> {
        let mut signals = iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (sender, receiver) = bounded(4);
        std::thread::Builder::new()
            .name("ipoib-signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    // Whoever waited has enough of them.
                    let _ = sender.try_send(signal);
                }
            })?;
        Ok(Signals(receiver))
    }

    /// Waits for one.
    pub fn wait(&self) {
        // The thread that sends never ends.
        let _ = self.0.recv();
    }

    /// For waiting on several things.
    pub fn channel(&self) -> &Receiver<i32> {
        &self.0
    }
}
