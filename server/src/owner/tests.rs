//! The thread of a shard: its queues, its end, its busy time.

use std::time::Duration;

use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, SessionId, Version, WorkerId};
use slackline_core::wire::{Origin, Place, PullKind};
use slackline_server_core::shard::Push;

use super::*;
use crate::budget::Budget;
use crate::directory::Outgoing;
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
    started_with(|_| {})
}

/// The same, with sessions.
fn started_with(sessions: impl FnOnce(&Surroundings)) -> Led {
    let resolved = pair::resolved();
    let settings = parts::host_settings(ServerId(0), &resolved.config, ShardId(0)).unwrap();
    let folder = pair::key_folder();
    let (word_sender, words) = mpsc::unbounded_channel();
    let surroundings = Arc::new(pair::surroundings(&folder, word_sender));
    sessions(&surroundings);
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
    task_of(SessionId(1), event)
}

fn task_of(session: SessionId, event: ShardEvent) -> Task {
    Task { event, session, arrived: Instant::now(), waited: Duration::ZERO, _room: None }
}

fn push(session: SessionId, sequence: u64, gradient: Option<Vec<f32>>) -> ShardEvent {
    ShardEvent::Push(Push {
        session,
        worker: WorkerId(0),
        incarnation: Incarnation(1),
        sequence: Sequence(sequence),
        clock: Clock(0),
        pulled: Version(0),
        batch: BatchIndex(0),
        samples: 1,
        reply: 0,
        have: 0,
        gradient: gradient.map(Payload::plain),
    })
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
    let mut performer = Performer::new(&settings, surroundings, notes);
    let push = push(SessionId(1), 1, None);
    let arrived = Instant::now().checked_sub(Duration::from_millis(5)).unwrap();
    let task = Task { arrived, waited: Duration::from_millis(7), ..task(push) };
    performer.taken_up(&task.event, task.busy());
    let busy_us = performer.busy_of(SessionId(1), Sequence(1));
    // Also that in which there was no room for it.
    assert!((12_000..5_000_000).contains(&busy_us), "{busy_us}");
    assert_eq!(performer.busy_of(SessionId(1), Sequence(1)), 0, "once");
}

// First come, first served, a worker with much under way had most of a shard's time, and the others waited for all that it had sent before.
#[test]
fn sessions_take_turns_whatever_each_has_brought() {
    const KEYS: usize = 4000;
    let (_notes, noted) = mpsc::channel(1);
    let (_orders, ordered) = mpsc::channel(1);
    let (inbox, tasks) = mpsc::channel(64);
    let waiting = Turns::new(PUSH_BYTES + 4 * KEYS as u64);
    let mut queues = Queues { noted, ordered, tasks, waiting, deferred: Deferred::default() };
    let bring = |session, sequence, gradient| {
        let session = SessionId(session);
        inbox.try_send(task_of(session, push(session, sequence, gradient))).unwrap();
    };
    let gradient = || Some(vec![1.0; KEYS]);
    (1..=4).for_each(|sequence| bring(1, sequence, gradient()));
    bring(2, 1, gradient());
    // Those without a gradient cost little, and so share a turn; one that says little of each key costs as much as any.
    (1..=2).for_each(|sequence| bring(3, sequence, None));
    (3..=4).for_each(|sequence| bring(3, sequence, gradient()));
    assert!(queues.ready(false).is_none(), "while the host takes nothing they stay where they are");
    let mut take = || match queues.ready(true) {
        Some(Next::Task(Task { event: ShardEvent::Push(push), .. })) => {
            Some((push.session.0, push.sequence.0))
        }
        _ => None,
    };
    let mut taken: Vec<_> = (0..3).map_while(|_| take()).collect();
    assert_eq!(taken, [(1, 1), (2, 1), (3, 1)]);
    bring(2, 2, gradient());
    taken = std::iter::from_fn(take).collect();
    assert_eq!(taken, [(3, 2), (1, 2), (2, 2), (3, 3), (1, 3), (3, 4), (1, 4)]);
}

// All that was pulled lay in memory, in as many versions as there were pushes meanwhile.
#[tokio::test]
async fn a_pull_for_which_there_is_no_room_is_served_when_there_is_with_what_there_is_then() {
    const SESSION: SessionId = SessionId(3);
    let meeting = pair::Pair::meet().await;
    let (outgoing, mut waiting) = mpsc::channel(16);
    let (to_another, mut another) = mpsc::channel(16);
    let settings = parts::host_settings(ServerId(0), &pair::resolved().config, ShardId(0)).unwrap();
    let mut led = started_with(|surroundings| {
        // Room for two shards.
        let budget = || Budget::new(1, 4 * settings.shard.keys.len);
        surroundings.directory.insert(SESSION, outgoing, meeting.server.clone(), budget());
        surroundings.directory.insert(SessionId(4), to_another, meeting.server.clone(), budget());
    });
    led.order(leads()).await;
    assert!(matches!(led.words.recv().await, Some(Word::Host(ShardId(0), HostEffect::Leads { .. }))));
    let initial = vec![0.5; led.owner.keys.len as usize];
    led.owner.inbox.send(task(ShardEvent::Initialize(initial))).await.unwrap();
    assert!(matches!(led.words.recv().await, Some(Word::HasValues(ShardId(0)))));
    for (session, request) in [(SESSION, 1), (SESSION, 2), (SESSION, 3), (SessionId(4), 4)] {
        let pull = ShardEvent::Pull { session, reader: None, request, have: 0, kind: PullKind::Snapshot };
        led.order(Order::Shard(pull)).await;
    }
    assert!(
        matches!(another.recv().await, Some(Outgoing::Values(_))),
        "the room of one session is not another's"
    );
    let mut values = Vec::new();
    while let Ok(Outgoing::Values(sent)) = waiting.try_recv() {
        values.push(sent);
    }
    assert_eq!(values.iter().map(|sent| sent.header.sequence.0).collect::<Vec<_>>(), [1, 2]);
    drop(values.pop());
    let Some(Outgoing::Values(third)) = waiting.recv().await else { panic!("the third pull is served") };
    assert_eq!((third.header.sequence, third.values.as_ref()[0]), (Sequence(3), 0.5));
    assert!(third.values.shares_with(&values[0].values));
}
