//! Requests on the way, one at a time.

use super::*;

#[test]
fn one_set_of_a_block_at_a_time_and_the_newest_last() {
    let mut now = Instant::now();
    let mut queue = SmpQueue::new(&SmConfig::default(), fastrand::Rng::with_seed(1));
    let lft = AttrId::LINEAR_FORWARDING_TABLE;
    let set = |block: u16, content: u8| {
        Transaction::set(
            Purpose::SetLft(NodeId::default(), block),
            lft,
            block.into(),
            vec![1],
            &[content; 64],
        )
    };
    let sent = |mad: MadSend| Smp::parse(&mad.mad[..]).expect("an SMP");
    queue.push(set(0, 1));
    queue.push(set(0, 2));
    let first = sent(queue.poll(now).expect("a request"));
    assert_eq!(first.data[0], 2, "what was not sent yet is made new");
    queue.push(set(0, 3));
    queue.push(set(0, 4));
    queue.push(set(1, 5));
    now += Duration::from_millis(1);
    assert_eq!(sent(queue.poll(now).expect("another block")).data[0], 5);
    assert!(queue.poll(now).is_none());
    now += Duration::from_millis(200);
    let mut out = VecDeque::new();
    assert!(queue.handle_timeout(now, &mut out, |_| None).is_empty());
    assert_eq!(
        out.pop_front().map(sent).map(|s| s.data[0]),
        Some(2),
        "a repetition repeats"
    );
    assert!(
        queue
            .complete(&first.response(wire::mad::MadStatus::OK))
            .is_some()
    );
    let mut rest = Vec::new();
    while let Some(mad) = queue.poll(now) {
        rest.push(sent(mad).data[0]);
    }
    // Block 1 waited for the sign of life.
    assert_eq!(rest, [5, 4]);
    assert!(queue.poll(now).is_none());
}
#[test]
fn answers_of_others_are_not_taken() {
    let now = Instant::now();
    let mut queue = SmpQueue::new(&SmConfig::default(), fastrand::Rng::with_seed(1));
    let probe = |port: u8| {
        Transaction::get(
            Purpose::Probe(Some((NodeId::default(), port))),
            AttrId::NODE_INFO,
            0,
            vec![port],
        )
    };
    let mut sent = |port| {
        queue.push(probe(port));
        let mad = queue.poll(now).expect("a request");
        Smp::parse(&mad.mad[..]).expect("an SMP")
    };
    let (first, second) = (sent(1), sent(2));
    assert!(
        first.header.tid.abs_diff(second.header.tid) > 1000,
        "who sees one can guess the next"
    );
    let right = second.response(wire::mad::MadStatus::OK);
    let mut elsewhere = right;
    elsewhere.initial_path[1] = 1;
    let mut further = right;
    further.header.class_specific += 1;
    let mut other = right;
    other.header.tid = first.header.tid;
    for forged in [elsewhere, further, other] {
        assert!(queue.complete(&forged).is_none());
    }
    assert!(queue.complete(&right).is_some());
    assert!(queue.complete(&right).is_none(), "the second time");
}
