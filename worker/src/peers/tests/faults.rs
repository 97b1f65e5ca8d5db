//! A worker of the group that does what it must not, or is gone.

use slackline_net::{CloseCode, ConnectionError};

use super::*;

/// Keys of the two parts of the two buckets, for two members.
fn part_lens(bucket: usize) -> Vec<u64> {
    let keys = settings().buckets[bucket].keys;
    slackline_core::collective::Packing::new(2).part_lens(keys)
}

/// The number and length of what worker 1 sends first, and last, of a bucket.
fn transfers(bucket: usize) -> Vec<(u64, usize)> {
    let schedule = slackline_core::collective::Schedule::new(Topology::Ring, 2).unwrap();
    let sent = schedule.of(1).filter(|transfer| transfer.from == 1);
    let lens = part_lens(bucket);
    sent.map(|transfer| (u64::from(transfer.number), lens[transfer.parts.start as usize] as usize)).collect()
}

/// What is wrong with a transfer.
type Change = fn(&mut TransferHeader);

#[tokio::test]
async fn a_part_without_a_place_is_refused_by_name() {
    let keys = key_directory();
    let (number, len) = transfers(0)[0];
    let cases: [(usize, Change, &str); 8] = [
        (
            len,
            |header| header.clock = Clock(2),
            "sent a part of clock 2, bucket 0, that has no place (this worker is at clock 0)",
        ),
        (len, |header| header.shard = ShardId(2), "sent a part of bucket 2 at clock 0, and there are 2"),
        (
            len,
            |header| header.sequence = Sequence(99),
            "sent transfer 99 of clock 0, bucket 0, which is none",
        ),
        (len, |header| header.sequence = Sequence(u64::MAX), "sent transfer 18446744073709551615 of clock 0"),
        (len - 1, |_| {}, "sent"),
        (len, |header| header.worker = WorkerId(0), "sent a transfer in the name of worker 0"),
        (
            len,
            |header| header.incarnation = Incarnation(2),
            "sent a transfer of generation 2 over a connection of generation 1",
        ),
        (len, |header| header.kind = TransferKind::Push, "sent what is for a server, which nobody waits for"),
    ];
    for (len, change, text) in cases {
        let (mut member, raw) = beside_raw(&keys, settings()).await;
        raw.transfer(vec![1.0; len], |header| {
            header.sequence = Sequence(number);
            change(header);
        })
        .await;
        let (worker, reason) = member.trouble().await;
        assert_eq!(worker, WorkerId(1));
        assert!(reason.starts_with(&format!("worker 1 {text}")), "{reason}");
        let closed = raw.connection.closed().await;
        assert!(
            matches!(&closed, ConnectionError::Closed { code: CloseCode::Malformed, reason } if reason.contains("worker 1")),
            "{closed:?}"
        );
        member.has_turned_away(1).await;
    }
}

#[tokio::test]
async fn a_part_that_comes_twice_is_refused() {
    let keys = key_directory();
    let (mut member, raw) = beside_raw(&keys, settings()).await;
    let (number, len) = transfers(0)[0];
    raw.part(0, 0, number, vec![1.0; len]).await;
    // Whether the first has been read is seen by what is accepted.
    loop {
        let has_come = {
            let current = member.peers.current.as_ref().unwrap();
            let reducing = current.circle.reducing();
            let missing = reducing.as_ref().unwrap().missing();
            missing.is_some_and(|missing| missing.bucket != 0)
                || reducing.as_ref().is_some_and(|reducing| reducing.received(Clock(0)) > 0)
        };
        if has_come {
            break;
        }
        tokio::task::yield_now().await;
    }
    raw.part(0, 0, number, vec![1.0; len]).await;
    let (_, reason) = member.trouble().await;
    assert!(reason.contains("which is none that it still has to send here"), "{reason}");
}

#[tokio::test]
async fn parts_of_the_next_iteration_are_kept_for_it() {
    let keys = key_directory();
    let (mut member, raw) = beside_raw(&keys, settings()).await;
    let generation = Generation(1);
    for clock in [1, 0] {
        for bucket in [0, 1] {
            for (number, len) in transfers(bucket) {
                raw.part(clock, bucket as u32, number, vec![clock as f32 + 1.0; len]).await;
            }
        }
    }
    for clock in [Clock(0), Clock(1)] {
        member.peers.begin(generation);
        for bucket in settings().buckets.iter() {
            let packed = vec![0.5; bucket.keys.len as usize];
            member.peers.own(generation, clock, bucket.index, packed.into());
        }
        assert_eq!(member.event().await, Event::Gathered { generation, clock });
        let reduced = member.event().await;
        assert!(
            matches!(reduced, Event::Reduced { clock: complete, .. } if complete == clock),
            "{reduced:?}"
        );
        let sums = member.peers.take_sums(generation, clock).unwrap();
        // One part is a sum here; the other was one at the other worker, which said what it liked.
        let values: Vec<f32> = sums[0].iter().map(|part| part.as_ref()[0]).collect();
        let said = clock.0 as f32 + 1.0;
        assert!(values.contains(&(said + 0.5)) && values.contains(&said), "{values:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_gone_is_trouble_with_its_name() {
    let keys = key_directory();
    let (mut member, raw) = beside_raw(&keys, settings()).await;
    member.peers.begin(Generation(1));
    drop(raw);
    let (worker, reason) = member.trouble().await;
    assert_eq!(worker, WorkerId(1));
    assert!(reason.starts_with("the connection to worker 1 at 127.0.0.1:9 was lost"), "{reason}");
}

#[tokio::test]
async fn a_worker_whose_process_stands_still_is_trouble_within_a_lease() {
    let keys = key_directory();
    let hasty = PeerSettings {
        network: Settings { idle_timeout: Duration::from_millis(300), ..network() },
        ..settings()
    };
    // Its network has a thread of its own, which is then held up.
    let other = slackline_net::NetworkThread::start("other").unwrap();
    let mut member = Member::new(&keys, hasty);
    let addresses = [member.address(), "127.0.0.1:9".to_owned()];
    member.peers.form(group(Topology::Ring, &addresses), 0).unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let address = addresses[0].clone();
    let folder = Identity::load(keys.path(), Role::Worker).unwrap();
    other.handle().spawn(async move {
        let connector = Connector::to(&folder, Role::Worker, &network()).unwrap();
        let connection = connector.connect(&address, WITHIN).await.unwrap();
        let (mut sender, mut receiver) = connection.accept_control().await.unwrap();
        let _: Option<PeerMessage> = receiver.receive().await.unwrap();
        sender.send(&PeerMessage::Hello(hello())).await.unwrap();
        // Until the hello is on its way nothing is held up.
        assert!(receiver.receive::<PeerMessage>().await.unwrap().is_some());
        let _ = held.recv();
    });
    member.met().await;
    // An answer to nothing would close the connection; a question does not.
    let line = member.peers.current.as_ref().unwrap().links[&1].line.clone();
    line.send(crate::streams::Outgoing::Message(Box::new(PeerMessage::Ping(1)))).await.unwrap();
    let (worker, reason) = member.trouble().await;
    assert_eq!(worker, WorkerId(1));
    assert!(reason.contains("nothing more was heard from the peer"), "{reason}");
    drop(release);
    other.stop();
}

#[tokio::test]
async fn messages_without_a_place_close_the_connection() {
    let keys = key_directory();
    for (message, what) in
        [(PeerMessage::Hello(hello()), "a second hello"), (PeerMessage::Pong(7), "an answer")]
    {
        let (mut member, mut raw) = beside_raw(&keys, settings()).await;
        raw.say(message).await;
        let (_, reason) = member.trouble().await;
        assert!(reason.contains(&format!("worker 1 sent {what}, which nobody waits for")), "{reason}");
    }
    let (mut member, mut raw) = beside_raw(&keys, settings()).await;
    for _ in 0..2 {
        raw.say(PeerMessage::WantState { clock: Clock(0) }).await;
    }
    assert!(matches!(member.next().await, Told::WantState { .. }));
    let (_, reason) = member.trouble().await;
    assert!(reason.contains("the wish for values a second time"), "{reason}");
}

#[tokio::test]
async fn values_that_were_not_asked_for_or_are_wrong_are_refused() {
    let keys = key_directory();
    let state = |header: &mut TransferHeader| header.kind = TransferKind::State;
    let (mut member, raw) = beside_raw(&keys, settings()).await;
    raw.transfer(vec![0.0; 8], state).await;
    let (_, reason) = member.trouble().await;
    assert!(reason.contains("worker 1 sent the model, which nobody waits for"), "{reason}");
    // Whatever number it has, no second buffer of the model's size is set aside.
    for sequence in [1, u64::MAX] {
        let (mut member, raw) = beside_raw(&keys, settings()).await;
        member.peers.fetch(Generation(1), WorkerId(1), Clock(9));
        raw.transfer(vec![0.0; KEYS as usize], |header| {
            state(header);
            (header.clock, header.sequence) = (Clock(9), Sequence(sequence));
        })
        .await;
        let (_, reason) = member.trouble().await;
        assert!(reason.contains("worker 1 sent state under a number, which nobody waits for"), "{reason}");
    }
    for (len, clock) in [(8, 9), (KEYS, 8)] {
        let (mut member, raw) = beside_raw(&keys, settings()).await;
        member.peers.fetch(Generation(1), WorkerId(1), Clock(9));
        raw.transfer(vec![0.0; len as usize], |header| {
            state(header);
            header.clock = Clock(clock);
        })
        .await;
        let (_, reason) = member.trouble().await;
        assert!(reason.contains(&format!("sent {len} values of the model at clock {clock}")), "{reason}");
    }
}
