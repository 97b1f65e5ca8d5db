//! Where the threads of shards run.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::cluster::Cluster;
use crate::process::{Process, until};
use crate::stage::Stage;

/// The processors that a thread may use; 0 is the one that asks.
fn processors(thread: i32) -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(thread)).unwrap();
    (0..CpuSet::count()).filter(|processor| set.is_set(*processor).unwrap()).collect()
}

/// The processors of a server's first shards, once it has their threads.
fn of_shards(server: &Process, count: usize) -> Vec<Vec<usize>> {
    until("the threads of the shards", || {
        let threads = server.threads();
        let named = |shard| threads.iter().find(|(name, _)| *name == format!("shard {shard}"));
        (0..count).map(|shard| Some(processors(named(shard)?.1))).collect()
    })
}

#[test]
fn threads_of_shards_stay_on_a_processor_each_where_they_are_asked_to() {
    let all = processors(0);
    for pinned in [false, true] {
        let stage = Stage::new();
        let over = [
            ("servers", "1"),
            ("cluster.shards_per_server", "3"),
            ("cluster.pin_threads", if pinned { "true" } else { "false" }),
        ];
        let cluster = Cluster::start(&stage, &over);
        let expected: Vec<Vec<usize>> =
            (0..3).map(|shard| if pinned { vec![all[shard % all.len()]] } else { all.clone() }).collect();
        // A thread has its name before it has its processor.
        until("their processors", || (of_shards(&cluster.servers[0], 3) == expected).then_some(()));
        cluster.still_trains();
    }
}
