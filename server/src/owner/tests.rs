//! The thread of a shard: its queues, its end, its busy time.

use std::time::Duration;

use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, SessionId, Version, WorkerId};
use slackline_core::wire::{Origin, Place};
use slackline_server_core::shard::Push;

use super::*;
use crate::{pair, parts};

/// An owner that leads its shard, with what it says.
struct Led {
    owner: Owner,
    thread: JoinHandle<()>,
    words: mpsc::UnboundedReceiver<Word>,
    _folder: tempfile::TempDir,
}

/// Within a runtime.
fn started() -> Led {
    let resolved = pair::resolved();
    let settings = parts::host_settings(ServerId(0), &resolved.config, ShardId(0)).unwrap();
    let folder = pair::key_folder();
    let (word_sender, words) = mpsc::unbounded_channel();
    let surroundings = Arc::new(pair::surroundings(&folder, word_sender));
    let (owner, thread) = Owner::start(settings, &surroundings, None).unwrap();
    Led { owner, thread, words, _folder: folder }
}

fn leads() -> Order {
    let place = Place {
        shard: ShardId(0),
        generation: Generation(0),
        primary: ServerId(0),
        backup: None,
        origin: Origin::Nothing,
    };
    Order::Host(HostEvent::Place { place: Some(place), members: Vec::new(), started: false })
}

fn task(event: ShardEvent) -> Task {
    Task { event, arrived: Instant::now() }
}

impl Led {
    async fn order(&self, order: Order) {
        self.owner.orders.send(order).await.unwrap();
    }

    async fn rows(&self) -> Option<Rows> {
        let (answer, rows) = oneshot::channel();
        self.owner.notes.send(Note::Look(answer)).await.unwrap();
        rows.await.unwrap()
    }
}

// A shard whose thread had panicked looked like one that was slow, and all workers waited for it for ever.
#[tokio::test]
async fn a_thread_that_panics_says_that_it_ended() {
    let mut led = started();
    led.order(leads()).await;
    assert!(matches!(led.words.recv().await, Some(Word::Host(ShardId(0), HostEffect::Leads { .. }))));
    let initial = vec![0.0; led.owner.keys.len as usize];
    led.owner.inbox.send(task(ShardEvent::Initialize(initial))).await.unwrap();
    assert!(matches!(led.words.recv().await, Some(Word::HasValues(ShardId(0)))));
    led.owner.notes.send(Note::Panic).await.unwrap();
    assert!(matches!(led.words.recv().await, Some(Word::Ended(ShardId(0)))));
    tokio::task::spawn_blocking(|| assert!(led.thread.join().is_err())).await.unwrap();
    assert!(led.owner.orders.send(Order::Shard(ShardEvent::Start)).await.is_err());
}

#[tokio::test]
async fn a_thread_ends_when_nobody_can_tell_it_anything() {
    let Led { owner, thread, mut words, .. } = started();
    drop(owner);
    assert!(matches!(words.recv().await, Some(Word::Ended(ShardId(0)))));
    tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_shard_that_is_not_led_here_has_no_rows_and_takes_no_values() {
    let mut led = started();
    assert!(led.rows().await.is_none());
    led.order(leads()).await;
    assert!(matches!(led.words.recv().await, Some(Word::Host(ShardId(0), HostEffect::Leads { .. }))));
    assert!(led.rows().await.is_some());
    led.order(Order::Host(HostEvent::Place { place: None, members: Vec::new(), started: false })).await;
    // Orders and notes have queues of their own.
    while led.rows().await.is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_time_that_a_push_lay_there_is_told_with_its_answer() {
    let folder = pair::key_folder();
    let (word_sender, _words) = mpsc::unbounded_channel();
    let surroundings = Arc::new(pair::surroundings(&folder, word_sender));
    let resolved = pair::resolved();
    let settings = parts::host_settings(ServerId(0), &resolved.config, ShardId(0)).unwrap();
    let (notes, _noted) = mpsc::channel(1);
    let mut performer = Performer::new(&settings, surroundings, notes, Spare::default());
    let push = ShardEvent::Push(Push {
        session: SessionId(1),
        worker: WorkerId(0),
        incarnation: Incarnation(1),
        sequence: Sequence(1),
        clock: Clock(0),
        pulled: Version(0),
        batch: BatchIndex(0),
        samples: 1,
        gradient: None,
    });
    let before = Instant::now().checked_sub(Duration::from_millis(5)).unwrap();
    performer.taken_up(&push, before);
    let busy_us = performer.busy_of(SessionId(1), Sequence(1));
    assert!((5000..5_000_000).contains(&busy_us), "{busy_us}");
    assert_eq!(performer.busy_of(SessionId(1), Sequence(1)), 0, "once");
}
