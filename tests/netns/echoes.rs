//! Echoes that go on until they are told to end: how long what is watched takes does not matter.

use crate::managers::signal;
use crate::subnet::{Background, LONGEST, PATIENCE, Subnet, succeed};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Instant;

/// A running `ping`.
pub(crate) struct Echoes {
    ping: Background,
    /// What it says, line by line.
    said: mpsc::Receiver<String>,
    /// The numbers of those that came back.
    came: Vec<usize>,
}

impl Echoes {
    /// `ping LINE`. The first has come back.
    #[track_caller]
    pub(crate) fn start(subnet: &Subnet, host: u32, line: &str) -> Echoes {
        let mut ping = subnet.on(host, &format!("{LONGEST} ping -n {line}"));
        let mut ping = Background::start(ping.stdin(Stdio::null()).stdout(Stdio::piped()));
        let output = BufReader::new(ping.0.stdout.take().unwrap());
        let (say, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test may have heard enough.
                let _ = say.send(line);
            }
        });
        let came = Vec::new();
        let mut echoes = Echoes { ping, said, came };
        echoes.more(1);
        echoes
    }

    /// Until so many more have come back.
    #[track_caller]
    pub(crate) fn more(&mut self, count: usize) {
        let enough = self.came.len() + count;
        while self.came.len() < enough {
            let line = self.said.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no echo after {:?}", self.came.last()));
            self.came.extend(sequence(&line));
        }
    }

    /// Until so many have come back one after the other.
    #[track_caller]
    pub(crate) fn settle(&mut self, count: usize) {
        let begin = Instant::now();
        let together = |last: &[usize]| last.windows(2).all(|pair| pair[1] == pair[0] + 1);
        self.more(count);
        while !together(&self.came[self.came.len() - count..]) {
            assert!(begin.elapsed() < PATIENCE, "still lost: {:?}", self.came);
            self.more(1);
        }
    }

    /// Ends them, when so many more have come back: all that was sent before has come back until then, or is lost. The numbers of those that
    /// are missing, and of those that came more than once.
    #[track_caller]
    pub(crate) fn end(mut self, more: usize) -> (Vec<usize>, Vec<usize>) {
        // What is waiting to be read came before.
        let waiting: Vec<String> = self.said.try_iter().collect();
        self.came
            .extend(waiting.iter().filter_map(|line| sequence(line)));
        self.more(more);
        signal(self.ping.0.id() as i32, Signal::INT);
        let rest: Vec<String> = self.said.iter().collect();
        eprintln!(
            "{}",
            rest.iter()
                .rev()
                .take(2)
                .map(|line| &**line)
                .collect::<Vec<_>>()
                .join("; ")
        );
        self.came
            .extend(rest.iter().filter_map(|line| sequence(line)));
        self.came.sort_unstable();
        let twice = self.came.windows(2).filter(|pair| pair[0] == pair[1]);
        let twice = twice.map(|pair| pair[0]).collect();
        let last = self.came.last().copied().unwrap_or_default();
        let missing = (1..=last).filter(|number| self.came.binary_search(number).is_err());
        (missing.collect(), twice)
    }
}

/// Of an echo that came back.
fn sequence(line: &str) -> Option<usize> {
    let number = line
        .split(" bytes from ")
        .nth(1)?
        .split("icmp_seq=")
        .nth(1)?
        .split(' ')
        .next()?;
    number.parse().ok()
}

impl Subnet {
    /// `ping LINE`, of which the first `count` echoes come back, all of them, in whatever time that takes: it goes on until as many have come
    /// back. What it said.
    #[track_caller]
    pub(crate) fn all_come_back(&self, host: u32, count: usize, line: &str) -> String {
        // Without a deadline it waits for the last ones no longer than twice the longest time so far.
        let ping = format!("ping -n -c {count} -w {} {line}", PATIENCE.as_secs());
        let said = succeed(&mut self.on(host, &ping));
        let came: BTreeSet<usize> = said.lines().filter_map(sequence).collect();
        let all = (1..=count).all(|number| came.contains(&number));
        assert!(all, "{ping}: some are lost: {said}");
        said
    }
}
