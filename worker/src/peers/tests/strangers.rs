//! Workers that do not belong together.

use slackline_net::Listener;

use super::super::news::Gravity;
use super::*;

/// Two workers with other settings or groups each.
async fn meet(one: (PeerSettings, u64), other: (PeerSettings, u64)) -> [Event; 2] {
    let keys = key_directory();
    let mut members = [one.0, other.0].map(|settings| Member::new(&keys, settings));
    let addresses = [members[0].address(), members[1].address()];
    for (position, (member, run)) in (0..).zip(members.iter_mut().zip([one.1, other.1])) {
        member.peers.form(Group { run, ..group(Topology::Ring, &addresses) }, position).unwrap();
    }
    let [one, other] = &mut members;
    [one.event().await, other.event().await]
}

fn reason_of(event: &Event) -> &str {
    match event {
        Event::PeerRefused { reason } | Event::PeerTrouble { reason, .. } => reason,
        event => panic!("{event:?}"),
    }
}

#[tokio::test]
async fn another_layout_or_configuration_is_refused_by_name_on_both_sides() {
    let layout = PeerSettings { layout_hash: 99, ..settings() };
    let config = PeerSettings { config_hash: 99, ..settings() };
    for (other, what) in [(layout, "has another model"), (config, "has another configuration")] {
        let events = meet((settings(), 77), (other, 77)).await;
        for (event, worker) in events.iter().zip([1, 0]) {
            assert!(matches!(event, Event::PeerRefused { .. }), "{event:?}");
            let reason = reason_of(event);
            assert!(reason.contains(&format!("worker {worker} {what}")), "{reason}");
        }
        assert!(reason_of(&events[1]).contains("worker 0 at 127.0.0.1:"), "{}", reason_of(&events[1]));
    }
}

#[tokio::test]
async fn another_run_is_refused_by_name_and_ends_nobody() {
    let [called, caller] = meet((hasty(), 77), (hasty(), 78)).await;
    // Whoever told it that address is to blame, and not the one that calls there.
    assert!(matches!(&caller, Event::PeerTrouble { worker: WorkerId(0), .. }), "{caller:?}");
    assert!(reason_of(&caller).contains("worker 0 at 127.0.0.1:"), "{}", reason_of(&caller));
    assert!(reason_of(&caller).contains("worker 0 belongs to another run"), "{}", reason_of(&caller));
    // Whoever is called by one of another run still waits for its own.
    assert!(matches!(&called, Event::PeerTrouble { worker: WorkerId(1), .. }), "{called:?}");
    assert!(reason_of(&called).contains("worker 1 belongs to another run"), "{}", reason_of(&called));
}

#[tokio::test]
async fn a_worker_in_another_group_is_not_met_within_a_lease() {
    let keys = key_directory();
    let mut members = [hasty(), hasty()].map(|settings| Member::new(&keys, settings));
    let addresses = [members[0].address(), members[1].address()];
    let newer = Group { generation: Generation(2), ..group(Topology::Ring, &addresses) };
    members[0].peers.form(newer, 0).unwrap();
    members[1].peers.form(group(Topology::Ring, &addresses), 1).unwrap();
    for (member, other) in members.iter_mut().zip([1, 0]) {
        let (worker, reason) = member.trouble().await;
        assert_eq!(worker, WorkerId(other));
        assert!(reason.contains(&format!("worker {other} at 127.0.0.1:")), "{reason}");
        assert!(reason.contains(&format!("worker {other} is in group generation")), "{reason}");
    }
}

#[tokio::test]
async fn a_worker_that_is_in_no_group_yet_lets_callers_wait() {
    let keys = key_directory();
    let mut members = [settings(), settings()].map(|settings| Member::new(&keys, settings));
    let addresses = [members[0].address(), members[1].address()];
    members[1].peers.form(group(Topology::Ring, &addresses), 1).unwrap();
    let call = members[1].news.try_recv();
    assert!(call.is_err(), "{call:?}");
    members[0].peers.form(group(Topology::Ring, &addresses), 0).unwrap();
    for member in &mut members {
        member.met().await;
    }
}

#[tokio::test]
async fn a_worker_that_could_wait_no_longer_is_called_again() {
    let keys = key_directory();
    let mut members = [hasty(), settings()].map(|settings| Member::new(&keys, settings));
    let addresses = [members[0].address(), members[1].address()];
    members[1].peers.form(group(Topology::Ring, &addresses), 1).unwrap();
    let sent_away = timeout(WITHIN, members[1].news.recv()).await.unwrap();
    assert!(matches!(&sent_away, Some(News::Unmet { gravity: Gravity::Passing, .. })), "{sent_away:?}");
    members[0].peers.form(group(Topology::Ring, &addresses), 0).unwrap();
    for member in &mut members {
        member.met().await;
    }
}

#[tokio::test]
async fn a_worker_that_cannot_be_called_is_named_with_its_address_before_its_caller_is() {
    let keys = key_directory();
    let patient = || PeerSettings { lease: Duration::from_secs(2), ..settings() };
    let mut members = [patient(), patient()].map(|settings| Member::new(&keys, settings));
    let addresses = ["127.0.0.1:9".to_owned(), members[1].address()];
    for (position, member) in (0..).zip(&mut members) {
        member.peers.form(group(Topology::Ring, &addresses), position).unwrap();
    }
    let (worker, reason) = members[1].trouble().await;
    assert_eq!(worker, WorkerId(0));
    assert!(reason.starts_with("worker 0 at 127.0.0.1:9 was not met within 1."), "{reason}");
    assert!(reason.contains("no answer from 127.0.0.1:9"), "{reason}");
    // The one that waits to be called complains when there is nothing more to be heard.
    while let Ok(news) = members[0].news.try_recv() {
        let told = members[0].peers.take(news);
        assert!(told.is_none(), "{told:?}");
    }
    assert_eq!(members[0].trouble().await.0, WorkerId(1));
}

#[tokio::test]
async fn a_worker_at_whose_address_another_one_is_has_the_blame_for_it() {
    let keys = key_directory();
    let mut members = [settings(), settings(), settings()].map(|settings| Member::new(&keys, settings));
    let addresses = [members[1].address(), members[1].address(), members[2].address()];
    for (position, member) in (0..).zip(&mut members) {
        member.peers.form(group(Topology::Ring, &addresses), position).unwrap();
    }
    for member in &mut members[1..] {
        let (worker, reason) = member.trouble().await;
        assert_eq!(worker, WorkerId(0));
        let text =
            format!("worker 0 at {} was called: worker 0 was called and worker 1 answered", addresses[0]);
        assert!(reason.starts_with(&text), "{reason}");
    }
}

#[tokio::test]
async fn a_hello_for_a_later_group_waits_for_it() {
    let keys = key_directory();
    let mut member = Member::new(&keys, settings());
    let addresses = [member.address(), "127.0.0.1:9".to_owned()];
    member.peers.form(group(Topology::Ring, &addresses), 0).unwrap();
    let mut raw = Raw::call(&keys, &addresses[0]).await;
    let generation_of = |message| match message {
        PeerMessage::Hello(hello) => hello.generation.0,
        message => panic!("{message:?}"),
    };
    assert_eq!(generation_of(raw.receive().await), 1);
    raw.say(PeerMessage::Hello(Hello { generation: Generation(3), ..hello() })).await;
    for generation in [2, 3] {
        let later = Group { generation: Generation(generation), ..group(Topology::Ring, &addresses) };
        member.peers.form(later, 0).unwrap();
    }
    assert_eq!(generation_of(raw.receive().await), 3);
    assert_eq!(member.event().await, Event::Met { generation: Generation(3) });
}

#[tokio::test]
async fn a_dialler_that_is_not_of_the_group_or_comes_twice_is_turned_away() {
    let keys = key_directory();
    let (member, _raw) = beside_raw(&keys, settings()).await;
    let stranger = Hello { worker: WorkerId(5), ..hello() };
    for said in [stranger, hello()] {
        let mut second = Raw::call(&keys, &member.address()).await;
        second.receive().await;
        second.say(PeerMessage::Hello(said)).await;
        if said == stranger {
            let refused = second.receive().await;
            assert!(
                matches!(&refused, PeerMessage::Refused(text) if text.to_string().contains("worker 5")),
                "{refused:?}"
            );
        } else {
            break;
        }
    }
    member.has_turned_away(1).await;
}

#[tokio::test]
async fn a_worker_certificate_is_demanded_of_both_sides() {
    let keys = key_directory();
    let mut member = Member::new(&keys, settings());
    let addresses = ["127.0.0.1:9".to_owned(), member.address()];
    for role in [Role::Server, Role::Observer, Role::Admin] {
        let connector = Connector::to(&identity(&keys, role), Role::Worker, &network()).unwrap();
        let refused = connector.connect(&addresses[1], WITHIN).await;
        assert!(refused.is_err(), "{role} was let in");
    }
    member.has_turned_away(3).await;
    // A server at the address of a worker.
    let server =
        Listener::bind("127.0.0.1:0".parse().unwrap(), &identity(&keys, Role::Server), &network()).unwrap();
    let address = server.local_address().to_string();
    let _server = tokio::spawn(async move {
        while let Some(handshake) = server.accept().await {
            let _ = handshake.complete().await;
        }
    });
    member.peers.form(group(Topology::Ring, &[address.clone(), addresses[1].clone()]), 1).unwrap();
    let (worker, reason) = member.trouble().await;
    assert_eq!(worker, WorkerId(0));
    assert!(reason.contains(&format!("worker 0 at {address} cannot be connected to")), "{reason}");
}

#[tokio::test]
async fn a_caller_that_says_nothing_or_nonsense_is_sent_away() {
    let keys = key_directory();
    let member = Member::new(&keys, hasty());
    // No group, and a lease is over.
    let connector = Connector::to(&identity(&keys, Role::Worker), Role::Worker, &network()).unwrap();
    assert!(connector.connect(&member.address(), WITHIN).await.is_err());
    let mut member = Member::new(&keys, settings());
    let addresses = [member.address(), "127.0.0.1:9".to_owned()];
    member.peers.form(group(Topology::Ring, &addresses), 0).unwrap();
    let mut raw = Raw::call(&keys, &addresses[0]).await;
    raw.receive().await;
    raw.say(PeerMessage::Ping(1)).await;
    assert!(matches!(raw.receive().await, PeerMessage::Refused(_)));
    member.has_turned_away(1).await;
}
