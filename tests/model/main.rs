//! Model checking: every order of events of small runs, over the machines that the servers run. (The simulated world takes large runs and
//! draws their orders by chance; here nothing is left to chance.)
//!
//! ```text
//! cargo test --test model                           what fits in a minute
//! SLACKLINE_MODEL=large cargo test --test model     more mishaps and more iterations: minutes to hours
//! ```
//!
//! - `copies`: three workers under a staleness bound of 2, one shard with two copies on two servers; servers crash and come back, the
//!   coordinator suspects a server that lives, a worker is removed, connections are lost.
//! - `steps`: steps that are whole over two shards, with workers that vanish at any point.
//!
//! The shard, its gate, its window of pushes and its host are the real ones. Workers, the coordinator and the ways between them are written
//! down here, as small as they can be; each file says what it leaves out.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod copies;
mod ledger;
mod steps;

use stateright::{Checker, Model};

/// Whether the larger variants are asked for.
fn is_large() -> bool {
    std::env::var("SLACKLINE_MODEL").is_ok_and(|size| size == "large")
}

/// Checks a model to its last state and says how many there were.
fn check<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: std::fmt::Debug + std::hash::Hash + Send + Sync + Clone + PartialEq + 'static,
    M::Action: std::fmt::Debug + Clone + PartialEq + Send + Sync,
{
    let began = std::time::Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} states, {} of them different, up to {} actions deep, in {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

#[test]
fn copies_of_a_shard_lose_nothing_and_finish() {
    for variant in copies::variants(is_large()) {
        check(variant.name, variant);
    }
}

#[test]
fn whole_steps_are_in_all_shards_or_in_none() {
    for variant in steps::variants(is_large()) {
        check(variant.name, variant);
    }
}
