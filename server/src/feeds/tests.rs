//! Feeds between two servers over real connections.

use slackline_core::ids::{Generation, Moment, ShardId};
use slackline_core::wire::{Backup, Origin, PROTOCOL, Place, ToPeer};
use slackline_server_core::replica::Entry;
use slackline_server_core::replica::HostSettings;
use slackline_server_core::{ControlEvent, Shard, ShardEvent};

use super::*;
use crate::directory::Outgoing;
use crate::door::accept;
use crate::links::Addresses;
use crate::owner::Order;
use crate::{pair, parts};

/// A server 0 that backs shard 0, and what a server 1 needs to feed it.
struct Backed {
    owner: Owner,
    surroundings: Arc<Surroundings>,
    settings: HostSettings,
    words: mpsc::UnboundedReceiver<Word>,
    folder: tempfile::TempDir,
}

fn place(primary: u32) -> Place {
    let backup = Some(Backup { server: ServerId(0), in_step: false });
    let (shard, generation) = (ShardId(0), Generation(3));
    Place { shard, generation, primary: ServerId(primary), backup, origin: Origin::Memory }
}

fn opening(surroundings: &Surroundings) -> Opening {
    let (primary, generation) = (ServerId(1), Generation(3));
    Opening { shard: ShardId(0), primary, generation, config_hash: surroundings.config_hash }
}

async fn backed() -> Backed {
    let folder = pair::key_folder();
    let (word_sender, words) = mpsc::unbounded_channel();
    let (control, mut events) = mpsc::channel(64);
    let listener = pair::listener(&folder);
    let address = listener.local_address().to_string();
    let surroundings = pair::surroundings_at(&folder, word_sender, Addresses::known(vec![address]));
    let surroundings = Arc::new(surroundings);
    let shared = Arc::new(pair::shared(control, &surroundings));
    let settings = parts::host_settings(ServerId(0), &pair::resolved().config, ShardId(0)).unwrap();
    let (owner, _thread) = Owner::start(settings.clone(), &surroundings, None).unwrap();
    shared.owners.write().unwrap().insert(ShardId(0), owner.clone());
    tokio::spawn(accept(Arc::new(listener), shared.clone()));
    // What control does for a peer that has connected.
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if let ControlEvent::Opened { session, .. } = event {
                let welcome = ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(0), boot: 1 };
                shared.directory.send(session, Outgoing::Message(welcome));
            }
        }
    });
    Backed { owner, surroundings, settings, words, folder }
}

impl Backed {
    async fn place(&self, place: Place) {
        self.owner.set_place(Some(place));
        let event = HostEvent::Place { place: Some(place), members: Vec::new(), started: true };
        self.owner.orders.send(Order::Host(event)).await.unwrap();
    }

    fn state(&self) -> Frame {
        let mut shard = Shard::new(self.settings.shard.clone());
        let initial = vec![1.0; self.owner.keys.len as usize];
        shard.handle(Moment(1), ShardEvent::Initialize(initial), &mut Vec::new());
        Frame::State { index: Index(7), at: Moment(1), state: Arc::new(shard.state()) }
    }
}

async fn opened(notes: &mut mpsc::Receiver<Note>) -> mpsc::UnboundedSender<Frame> {
    match notes.recv().await {
        Some(Note::FeedOpen { backup: ServerId(0), frames, .. }) => frames,
        other => panic!("{other:?}"),
    }
}

/// Waits until the backup holds everything up to `wanted`.
async fn held(notes: &mut mpsc::Receiver<Note>, wanted: u64) {
    loop {
        match notes.recv().await {
            Some(Note::Host(HostEvent::Held {
                backup: ServerId(0),
                generation: Generation(3),
                index,
                ..
            })) => {
                if index == Index(wanted) {
                    return;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_backup_holds_the_state_and_the_entries_after_it() {
    let backed = backed().await;
    backed.place(place(1)).await;
    let (sender, mut notes) = mpsc::channel(64);
    let _feed = Feed::start(backed.surroundings.clone(), opening(&backed.surroundings), ServerId(0), sender);
    let frames = opened(&mut notes).await;
    frames.send(backed.state()).unwrap();
    for index in 8..=20 {
        let (at, event) = (Moment(index), ShardEvent::Tick);
        frames.send(Frame::Entry(Arc::new(Entry { index: Index(index), at, event }))).unwrap();
    }
    held(&mut notes, 20).await;
    drop(backed.folder);
}

#[tokio::test]
async fn a_log_waits_for_a_backup_that_does_not_know_yet_that_it_is_one() {
    let backed = backed().await;
    let (sender, mut notes) = mpsc::channel(64);
    let _feed = Feed::start(backed.surroundings.clone(), opening(&backed.surroundings), ServerId(0), sender);
    assert!(timeout(std::time::Duration::from_millis(200), notes.recv()).await.is_err());
    backed.place(place(1)).await;
    opened(&mut notes).await;
}

// An old primary that thaws writes to nobody.
#[tokio::test]
async fn a_primary_that_was_replaced_is_not_heard() {
    let mut backed = backed().await;
    backed.place(place(1)).await;
    let (sender, mut notes) = mpsc::channel(64);
    let _feed = Feed::start(backed.surroundings.clone(), opening(&backed.surroundings), ServerId(0), sender);
    let frames = opened(&mut notes).await;
    frames.send(backed.state()).unwrap();
    held(&mut notes, 7).await;
    backed.place(Place { generation: Generation(4), primary: ServerId(0), backup: None, ..place(1) }).await;
    frames.send(backed.state()).unwrap();
    assert!(matches!(notes.recv().await, Some(Note::FeedLost { .. })), "the log is ended");
    loop {
        // It is said once it could not be fed for a lease.
        if let Some(Word::OutOfReach { backup: ServerId(0), .. }) = backed.words.recv().await {
            break;
        }
    }
    assert!(notes.try_recv().is_err());
}
