//! Every wait has its line, and says it once.

use slackline_core::wire::Text;

use super::*;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn held(worker: u32, shard: u32, since_ms: u64) -> HeldRow {
    let reason = HoldReason::Clock { slowest: WorkerId(2), at: Clock(3), needs: Clock(5) };
    HeldRow { worker: WorkerId(worker), shard: ShardId(shard), clock: Clock(7), since_ms, reason }
}

fn server(number: u32, heard_ms: u64, is_alive: bool, trouble: &str) -> ServerRow {
    ServerRow {
        server: ServerId(number),
        address: Text::new(format!("10.0.0.{number}:4400")),
        boot: Some(1),
        heard_ms: Some(heard_ms),
        is_alive,
        primaries: 1,
        backups: 1,
        trouble: Text::new(trouble),
    }
}

fn place(shard: u32, lack: Lack, since_ms: u64) -> PlaceRow {
    let (shard, generation, primary) = (ShardId(shard), Generation(2), ServerId(1));
    PlaceRow { shard, generation, primary, lack, since_ms }
}

fn lines(waits: &[Waiting]) -> Vec<String> {
    waits.iter().map(|waiting| line(&waiting.wait, waiting.since)).collect()
}

// Case 10 of the allreduce list (pytorch#118369): an error that did not say whose fault it was. Case horovod#367: a wall of "waiting for remainder of ranks" without a cause. One line a blocked worker: who, at which clock, waiting
// for whom, for how long.
#[test]
fn the_report_of_a_stall_has_one_line_for_each_blocked_worker_and_each_cause() {
    let rows = [held(1, 0, 6200), held(1, 1, 6000), held(3, 1, 5900), held(4, 0, 100)];
    let servers = [
        server(0, 0, true, ""),
        server(1, 4200, true, ""),
        server(2, 12_000, false, ""),
        server(3, 10, true, "no space left for checkpoints in /mnt"),
    ];
    let places = [
        place(1, Lack::Primary, 9000),
        place(4, Lack::Primary, 9100),
        place(5, Lack::Step { backup: ServerId(3) }, 700),
        place(6, Lack::Backup, 600),
        place(7, Lack::State, 500),
        place(8, Lack::Copy { former: ServerId(3) }, 400),
        place(9, Lack::Room, 300),
    ];
    let heard = |worker: WorkerId| (worker == WorkerId(2)).then(|| Duration::from_millis(3240));
    let all = of_held(&rows, secs(5), heard).chain(of_cluster(
        &servers,
        &places,
        &[(WorkerId(2), Clock(3)), (WorkerId(1), Clock(7))],
        secs(3),
    ));
    assert_eq!(
        lines(&merged(all)),
        [
            "server 2 is silent for 12.0 s (its process may be stopped), its lease is over; worker 2 at clock 3, worker 1 at clock 7 need its \
             shards; it is at 10.0.0.2:4400 (12.0 s)",
            "shard 1, shard 4 have no server and wait for server 1 to come back (9.1 s)",
            "worker 1 at clock 7 waits for worker 2 at clock 3 to reach clock 5, last heard 3.2 s ago (shard 0, shard 1) (6.2 s)",
            "worker 3 at clock 7 waits for worker 2 at clock 3 to reach clock 5, last heard 3.2 s ago (shard 1) (5.9 s)",
            "server 1 is silent for 4.2 s (its process may be stopped); worker 2 at clock 3, worker 1 at clock 7 need its shards; it is at \
             10.0.0.1:4400 (4.2 s)",
            "shard 5: server 3 is being given a copy (0.7 s)",
            "shard 6 has no backup: no other server is there for one (0.6 s)",
            "shard 7 waits for server 1 to load the state (0.5 s)",
            "shard 8 waits for server 1 to come back, which has the only copy: server 3 was restarted without it (0.4 s)",
            "shard 9 has no backup: every other server that is there has all the 1024 shards and copies that one can have (0.3 s)",
            "server 3: no space left for checkpoints in /mnt (0.0 s)",
        ]
    );
}

// Case flower#4678 (a hidden minimum that was waited for in silence) and byteps#37 (no one said who was missing).
#[test]
fn missing_workers_are_counted_and_named() {
    let wait = |here: &[u32], needs, is_least, missing: &[u32]| {
        let ids = |ids: &[u32]| ids.iter().copied().map(WorkerId).collect();
        Wait::Workers { here: ids(here), needs, is_least, missing: ids(missing) }.to_string()
    };
    assert_eq!(wait(&[], 2, true, &[]), "waiting for workers: 0 of 2 (min_workers)");
    assert_eq!(
        wait(&[0], 2, true, &[1]),
        "waiting for workers: 1 of 2 (min_workers), worker 1 missing (here: worker 0)"
    );
    assert_eq!(
        wait(&[0, 1], 9, false, &[2, 3, 4, 5, 6, 7, 8]),
        "waiting for workers: 2 of 9 here, worker 2, worker 3, worker 4, worker 5 and 3 more missing (here: worker 0, worker 1)"
    );
}

#[test]
fn copies_steps_and_checkpoints_that_are_waited_for_have_a_line() {
    let shards = || vec![ShardId(3)];
    let checkpoint = |is_last, lacks| Wait::Checkpoint { number: 6, is_last, lacks };
    for (wait, text) in [
        (
            Wait::Staged { worker: WorkerId(1), step: Sequence(4), shards: shards(), heard: Some(secs(2)) },
            "shard 3 has a step of worker 1 and no word that the others have it, last heard 2.0 s ago",
        ),
        (
            checkpoint(false, Unsaved::Parts { server: ServerId(1), shards: shards() }),
            "checkpoint 6 waits for server 1 to write its part to the store (shard 3)",
        ),
        (
            checkpoint(true, Unsaved::Parts { server: ServerId(1), shards: vec![ShardId(1), ShardId(2)] }),
            "checkpoint 6, the last of the run, waits for server 1 to write its parts to the store (shard 1, shard 2)",
        ),
        (
            checkpoint(false, Unsaved::Cut { worker: WorkerId(1), at: Clock(4), needs: Clock(7) }),
            "checkpoint 6 waits for worker 1 at clock 4 to reach clock 7, where it is cut",
        ),
        (
            checkpoint(false, Unsaved::Results),
            "checkpoint 6 waits for what workers have to tell of the batches before its cut",
        ),
        (
            checkpoint(true, Unsaved::Manifest),
            "checkpoint 6, the last of the run, waits for its manifest to be written to the store",
        ),
        (
            checkpoint(true, Unsaved::Beginning),
            "checkpoint 6, the last of the run, cannot be begun yet: not all shards can be told of it",
        ),
        (
            Wait::Unconfirmed { shards: shards(), backup: Some(ServerId(2)) },
            "shard 3 waits for server 2 to confirm its copy",
        ),
        (
            Wait::Unconfirmed { shards: vec![ShardId(1), ShardId(2)], backup: None },
            "shard 1, shard 2 wait for the disk",
        ),
        (
            Wait::Regrouping { generation: Generation(2), missing: vec![WorkerId(1)] },
            "generation 2 is dissolved and waits for worker 1",
        ),
        (
            Wait::Gathering { here: 2, wanted: 4, left: secs(3) },
            "waiting for workers: 2 of 4 here, enough to begin in 3.0 s if nobody else comes",
        ),
    ] {
        assert_eq!(wait.to_string(), text);
    }
}

#[test]
fn a_link_far_slower_than_the_others_is_named_and_an_even_set_is_not() {
    let links = |milliseconds: &[u64]| {
        let link = |(index, ms): (usize, &u64)| (format!("worker {index}"), Duration::from_millis(*ms));
        of_links(&milliseconds.iter().enumerate().map(link).collect::<Vec<_>>())
    };
    let slow = links(&[1, 1, 2, 250]);
    assert_eq!(
        slow[0].wait.to_string(),
        "the link to worker 3 is slow: 250.0 ms there and back, 2.0 ms for half of the peers"
    );
    assert_eq!(slow.len(), 1);
    for even in [&[][..], &[500], &[1, 400], &[80, 90, 100], &[0, 0, 0, 19]] {
        assert_eq!(links(even), [], "{even:?}");
    }
}

#[test]
fn each_wait_is_said_once_and_what_goes_on_in_one_line() {
    let mut journal = Journal::default();
    let waits = |rows: &[HeldRow]| merged(of_held(rows, secs(5), |_| None));
    assert_eq!(journal.news(&waits(&[held(1, 0, 4999)])), [] as [&str; 0]);
    let first = "worker 1 at clock 7 waits for worker 2 at clock 3 to reach clock 5 (shard 0)";
    assert_eq!(journal.news(&waits(&[held(1, 0, 6200)])), [format!("{first} (6.2 s)")]);
    assert_eq!(journal.news(&waits(&[held(1, 0, 11_200)])), [format!("still {first} (11.2 s)")]);
    let two = [held(1, 0, 16_200), held(3, 0, 5000)];
    let news = journal.news(&waits(&two));
    assert_eq!(news.len(), 2);
    assert!(news[0].starts_with("worker 3 at clock 7") && news[1].starts_with("still worker 1"), "{news:?}");
    let news = journal.news(&waits(&two));
    assert_eq!(news, [format!("still {first} (16.2 s), and 1 more")]);
    assert_eq!(journal.news(&[]), ["nothing is waited for any more"]);
    assert_eq!(journal.news(&[]), [] as [&str; 0]);
    assert_eq!(journal.news(&waits(&two)).len(), 2, "they wait anew");
}

#[test]
fn what_brings_no_time_is_dated_from_when_it_was_first_seen() {
    let mut journal = Journal::default();
    let at = |seconds| Moment(0).after(secs(seconds));
    let trouble = || {
        let wait = Wait::Trouble { server: ServerId(1), text: "the disk is full".to_owned() };
        [Waiting { wait, since: Duration::ZERO }]
    };
    for (now, since) in [(10, 0), (15, 5), (20, 10)] {
        let mut waits = trouble();
        journal.date(at(now), &mut waits);
        assert_eq!(waits[0].since, secs(since));
    }
    journal.date(at(25), &mut []);
    let mut waits = trouble();
    journal.date(at(30), &mut waits);
    assert_eq!(waits[0].since, secs(0), "it was over in between");
}

#[test]
fn no_more_waits_are_told_than_a_status_carries_and_the_longest_are() {
    let rows: Vec<HeldRow> = (0..100).map(|worker| held(worker, 0, 6000 + u64::from(worker))).collect();
    let waits = merged(of_held(&rows, secs(5), |_| None));
    assert_eq!(waits.len(), WAIT_ROWS_MAX);
    assert_eq!(waits[0].since, Duration::from_millis(6099));
    assert!(rows_fit(&waits));
}

fn rows_fit(waits: &[Waiting]) -> bool {
    rows(waits).iter().all(|row| row.text.shown().len() <= slackline_core::limits::WAIT_BYTES_MAX)
}
