//! Once nothing goes wrong any more, the run ends, within a bound of time and of events (design brief, section 6: a dead worker costs
//! others at most one lease, and every hang has a name). A run that does not end is told with who waits for whom.

use std::fmt::Write;
use std::time::Duration;

use slackline_core::consistency::PolicySpec;
use slackline_server_core::replica::Role;

use crate::simulation::World;
use crate::simulation::sight::{Verdict, Violation};
use crate::simulation::workers::Life;

const LAW: &str = "liveness";

/// Events that a run may take.
const EVENTS_MAX: u64 = 3_000_000;

/// Longest time of a gradient that any mishap can bring about.
const PACE_MAX: Duration = Duration::from_millis(600);

/// Whether the run has taken too long.
pub(crate) fn check(world: &World, events: u64) -> Verdict {
    let scenario = &world.scenario;
    // One slow worker can be left with every batch, twice; a server that is gone is looked for as long as a worker may.
    let work = PACE_MAX * 2 * scenario.batch_count() as u32;
    // A server that died last is away for some seconds, and then loads what it has.
    let servers = if scenario.weather.servers_fail { scenario.lease * 20 } else { scenario.lease * 10 };
    // A quorum of all that can never be is waited for 32 times as long as its rounds took, which can be as long as the storm.
    let waits_for_all = matches!(scenario.policy, PolicySpec::Quorum { count: None, holds: true, .. });
    let quorums = if waits_for_all { 32 * (scenario.storm + scenario.lease * 4) } else { Duration::ZERO };
    let bound = scenario.storm + work + scenario.connect_timeout * 2 + servers + quorums;
    let is_late = world.now.since(slackline_core::ids::Moment(0)) > bound;
    if is_late || events > EVENTS_MAX {
        return Err(Violation { law: LAW, text: format!("not over after {events} events\n{}", dump(world)) });
    }
    Ok(())
}

/// Nothing is due, and the run is not over.
pub(crate) fn stuck(world: &World) -> Violation {
    Violation { law: LAW, text: format!("nothing happens any more\n{}", dump(world)) }
}

/// Who waits for whom.
fn dump(world: &World) -> String {
    let mut text = format!("at {:.3} s\n", world.now.0 as f64 / 1e9);
    for (index, server) in world.servers.iter().enumerate() {
        let status = server.control.status(server.control.moment(world.time_of(index)));
        let (end, is_up) = (&world.ends[index], if server.up { "up" } else { "down" });
        let _ = writeln!(text, "server {index}, {is_up}: end {end:?}, {:?}, members:", status.phase);
        for member in status.members {
            let _ = writeln!(text, "  {member:?}");
        }
        for wait in status.waits {
            let _ = writeln!(text, "  {wait:?}");
        }
        let with_part = server.hosts.iter().filter(|(_, host)| host.row().role != Role::Idle);
        for (id, host) in with_part {
            let _ = writeln!(text, "  {id}: {:?}, takes events: {}", host.row(), host.takes_events());
            let Some(shard) = host.shard() else { continue };
            let rows: Vec<_> = shard.table().rows().collect();
            let _ = writeln!(text, "    {} clocks {rows:?}, cut {:?}", shard.version(), shard.open_cut());
            for held in shard.held_rows(world.time_of(index), 16) {
                let _ = writeln!(text, "    {} at {} {}", held.worker, held.clock, held.reason);
            }
        }
        let waiting = server.waiting.iter().filter(|(_, queue)| !queue.is_empty());
        for ((id, is_task), queue) in waiting {
            let _ = writeln!(
                text,
                "  {} {} wait for {id}",
                queue.len(),
                if *is_task { "pushes" } else { "orders" }
            );
        }
    }
    for (index, process) in world.processes.iter().enumerate() {
        if process.life != Life::Running {
            let _ = writeln!(text, "process {index}: {:?}", process.life);
            continue;
        }
        let _ = writeln!(text, "process {index}: {:?}", process.worker);
        for wait in process.waits.values() {
            let _ = writeln!(text, "  {wait}");
        }
    }
    text
}
