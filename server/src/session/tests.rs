//! Sessions while control hears nobody, and one that cannot be told something.

use slackline_core::ids::{Generation, Moment, ServerId};
use slackline_core::wire::{Placed, WaitRow};
use slackline_net::{Connector, Identity};
use slackline_server_core::Control;

use super::*;
use crate::pair;
use crate::parts::control_settings;

/// How things stood when control could keep nothing any more.
fn standstill(why: &str) -> Standstill {
    let control = Control::new(control_settings(ServerId(0), &pair::resolved(), 1), Moment(0));
    let mut status = control.status(Moment(0));
    status.waits.insert(0, WaitRow::new(Duration::ZERO, why.to_owned()));
    Standstill { welcome: control.welcome(), status }
}

// Found by reading: with 4096 events in control's queue nobody was told why they waited there.
#[tokio::test]
async fn a_status_needs_no_room_before_a_control_that_stands_still() {
    let folder = pair::key_folder();
    let (control, mut events) = mpsc::channel(1);
    let (words, _heard) = mpsc::unbounded_channel();
    let shared = Arc::new(pair::shared(control.clone(), &pair::surroundings(&folder, words)));
    control.try_send(ControlEvent::Tick).unwrap();
    let listener = pair::listener(&folder);
    let identity = Identity::load(folder.path(), Role::Observer).unwrap();
    let connector = Connector::new(&identity, &Settings::default()).unwrap();
    let address = listener.local_address().to_string();
    let serving = tokio::spawn({
        let shared = shared.clone();
        async move {
            for session in 7..9 {
                let connection = listener.accept().await.unwrap().complete().await.unwrap();
                tokio::spawn(serve(SessionId(session), connection, shared.clone()));
            }
            std::future::pending::<()>().await;
        }
    });
    // Whoever came before that waits for room, and is let in when it begins.
    let (connection, ()) =
        tokio::join!(async { connector.connect(&address, Duration::from_secs(20)).await.unwrap() }, async {
            while !shared.directory.has(SessionId(7)) {
                tokio::task::yield_now().await;
            }
            shared.stand_still(Some(standstill("the disk is full")));
        });
    let (mut sender, mut receiver) = connection.accept_control().await.unwrap();
    assert!(matches!(receiver.receive().await, Ok(Some(ToPeer::Welcome { .. }))));
    for _ in 0..3 {
        sender.send(&ToServer::Status).await.unwrap();
        let Ok(Some(ToPeer::Status(status))) = receiver.receive().await else { panic!("no status") };
        assert_eq!(status.waits[0].text.shown(), "the disk is full");
    }
    // Each of many wishes is answered, whatever is asked while a status is made or on its way.
    for _ in 0..200 {
        sender.send(&ToServer::Status).await.unwrap();
    }
    for _ in 0..200 {
        assert!(matches!(receiver.receive().await, Ok(Some(ToPeer::Status(_)))));
    }
    // One that comes and goes meanwhile leaves nothing for control.
    let passing = connector.connect(&address, Duration::from_secs(20)).await.unwrap();
    let (_sender, mut welcome) = passing.accept_control().await.unwrap();
    assert!(matches!(welcome.receive().await, Ok(Some(ToPeer::Welcome { .. }))));
    passing.close(CloseCode::Done, "");
    while shared.directory.has(SessionId(8)) {
        tokio::task::yield_now().await;
    }
    // Control goes on, and hears of the session with its first word.
    shared.stand_still(None);
    sender.send(&ToServer::Status).await.unwrap();
    assert_eq!(events.recv().await, Some(ControlEvent::Tick));
    let opened = events.recv().await;
    assert!(matches!(opened, Some(ControlEvent::Opened { session: SessionId(7), .. })), "{opened:?}");
    let asked = ControlEvent::Message { session: SessionId(7), message: ToServer::Status };
    assert_eq!(events.recv().await, Some(asked));
    connection.close(CloseCode::Done, "");
    assert_eq!(events.recv().await, Some(ControlEvent::Closed { session: SessionId(7) }));
    serving.abort();
}

// Found by reading: the writer ended, the session looked alive, and its peer waited for answers for ever.
#[tokio::test]
async fn a_session_that_cannot_be_told_something_ends() {
    let folder = pair::key_folder();
    let (control, mut events) = mpsc::channel(16);
    let (words, _heard) = mpsc::unbounded_channel();
    let shared = Arc::new(pair::shared(control, &pair::surroundings(&folder, words)));
    let listener = pair::listener(&folder);
    let identity = Identity::load(folder.path(), Role::Observer).unwrap();
    let connector = Connector::new(&identity, &Settings::default()).unwrap();
    let address = listener.local_address().to_string();
    let serving = tokio::spawn({
        let shared = shared.clone();
        async move {
            let connection = listener.accept().await.unwrap().complete().await.unwrap();
            serve(SessionId(7), connection, shared).await;
            listener
        }
    });
    let patience = Duration::from_secs(20);
    // A peer is in when it was told something.
    let (connection, ()) =
        tokio::join!(async { connector.connect(&address, patience).await.unwrap() }, async {
            assert!(matches!(events.recv().await, Some(ControlEvent::Opened { .. })));
            shared.directory.send(SessionId(7), Outgoing::Message(ToPeer::Goodbye));
        });
    let placed = Placed { shard: ShardId(0), generation: Generation(0), server: ServerId(0) };
    let too_long = ToPeer::Placed(vec![placed; 1 << 20]);
    shared.directory.send(SessionId(7), Outgoing::Message(too_long));
    let ended = tokio::time::timeout(patience, connection.closed()).await.expect("the peer sees the end");
    assert!(ended.to_string().contains("cannot tell its answer"), "{ended}");
    assert_eq!(events.recv().await, Some(ControlEvent::Closed { session: SessionId(7) }));
    serving.await.unwrap();
}
