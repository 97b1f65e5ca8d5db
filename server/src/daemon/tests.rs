//! The end of a shard's thread, and what control is told late.

use slackline_core::ids::ServerId;

use super::*;
use crate::door::turned_away;
use crate::pair;
use crate::parts::control_settings;

/// Within a runtime; what it hears goes into `control`, and what its threads say into `words`.
fn daemon(
    folder: &tempfile::TempDir,
    control: mpsc::Sender<ControlEvent>,
    words: mpsc::UnboundedSender<Word>,
) -> Daemon {
    let resolved = pair::resolved();
    let identity = Identity::load(folder.path(), slackline_net::Role::Server).unwrap();
    let surroundings = Arc::new(pair::surroundings(folder, words));
    let shared = Arc::new(pair::shared(control, &surroundings));
    let machine = Control::new(control_settings(ServerId(0), &resolved, 1), Moment(0));
    let home = Home::new(&resolved, shared, surroundings, None);
    let (_sender, signals) = Signals::by_hand();
    Daemon::new((machine, Vec::new()), resolved, identity, home, None, Memory::default(), signals)
}

#[tokio::test]
async fn those_turned_away_while_control_heard_nobody_are_counted_when_it_does() {
    let folder = pair::key_folder();
    let (control, _events) = mpsc::channel(1);
    let (words, _said) = mpsc::unbounded_channel();
    let mut daemon = daemon(&folder, control, words);
    for handshake in [true, true, true, false] {
        turned_away(daemon.shared(), "an address".to_owned(), "a reason".to_owned(), handshake);
    }
    // The first of them is in its queue.
    daemon.event(ControlEvent::Tick).await;
    let refused = daemon.control.refused();
    assert_eq!((refused.handshake, refused.malformed), (2, 1));
    assert_eq!(daemon.refusals.take_unsaid(Instant::now()), Some(3));
    assert!(daemon.shared().unheard.take().is_none(), "once");
}

#[tokio::test]
async fn a_shard_without_its_thread_fails_the_run() {
    let folder = pair::key_folder();
    let (control, events) = mpsc::channel(EVENTS_MAX);
    let (word_sender, words) = mpsc::unbounded_channel();
    let daemon = daemon(&folder, control, word_sender.clone());
    word_sender.send(Word::HasValues(ShardId(3))).unwrap();
    word_sender.send(Word::Ended(ShardId(3))).unwrap();
    let error = daemon.run(pair::listener(&folder), events, words).await.unwrap_err();
    assert!(!error.is_users() && error.to_string().contains("the thread of shard 3 has ended"), "{error}");
}
