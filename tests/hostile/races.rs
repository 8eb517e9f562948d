//! Threads against each other: modes change, links go and come, and interfaces end while packets of all sizes fly both ways.

use crate::world::{Victim, World};
use crate::{host, watch};
use datapath::Mode;
use fabric::link::LinkSink;
use fabric::sm::SmConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Sends echo requests of all sizes from `victim` to the other, until told to stop.
fn talk(victim: &Victim, to: usize, stop: &Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    let (peer, stop, from) = (victim.peer.clone(), stop.clone(), victim.h);
    thread::spawn(move || {
        let mut sent = 0;
        while !stop.load(Relaxed) {
            for size in [0, 1400, 2100, 9000, 40_000] {
                let content = host::Content::EchoRequest(0x1000_0000);
                let packet = host::build(host::v4(from), host::v4(to), &content, size);
                // A full device drops.
                sent += u64::from(peer.send(&packet).is_ok());
            }
            thread::sleep(Duration::from_millis(1));
        }
        sent
    })
}

#[test]
fn modes_links_and_ends_race_with_packets() {
    let panics = watch::panics();
    let world = World::start(SmConfig::default());
    let stop = Arc::<AtomicBool>::default();
    let talks = [
        talk(&world.victims[0], 1, &stop),
        talk(&world.victims[1], 0, &stop),
    ];
    for round in 0..watch::count("IPOIB_HOSTILE_RACES", 300) {
        for (h, victim) in world.victims.iter().enumerate() {
            let mode = match (round + h as u64) % 3 {
                0 => Mode::Datagram,
                _ => Mode::Connected,
            };
            let node = victim.node();
            let set = node.inbox().call(move |i, now| i.set_mode(now, mode));
            assert_eq!(set, Some(Ok(())));
            if round % 50 == 49 {
                node.hca().link_changed(false);
                node.hca().link_changed(true);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    for victim in &world.victims {
        let set = victim
            .node()
            .inbox()
            .call(|i, now| i.set_mode(now, Mode::Connected));
        assert_eq!(set, Some(Ok(())));
    }
    let reached = world.victims[0].reaches(host::v4(1), crate::world::PATIENCE)
        && world.victims[1].reaches(host::v6(0), crate::world::PATIENCE);
    let stats = |h: usize| {
        let stats = world.victims[h].node().inbox().call(|i, _| i.stats());
        let mut stats = stats.unwrap_or_default();
        stats.retain(|(name, n)| *n > 0 && name.contains("conn"));
        stats
    };
    println!("{:?}\n{:?}", stats(0), stats(1));
    assert!(reached, "{:?}\n{:?}", stats(0), stats(1));
    // With connections open and packets under way, all threads end and all that they held is let go.
    let hcas = [0, 1].map(|h| Arc::downgrade(world.victims[h].node().hca()));
    let planes = [0, 1].map(|h| {
        let plane = world.victims[h]
            .node()
            .inbox()
            .call(|i, _| Arc::downgrade(i.plane()));
        plane.unwrap()
    });
    let World {
        victims, subnet, ..
    } = world;
    drop(victims);
    stop.store(true, Relaxed);
    let sent = talks.map(|talk| talk.join().unwrap());
    println!("{sent:?} sent");
    drop(subnet);
    let held = hcas.map(|hca| hca.strong_count());
    let planes = planes.map(|plane| plane.strong_count());
    assert_eq!((held, planes), ([0; 2], [0; 2]));
    assert_eq!(watch::panics(), panics);
}
