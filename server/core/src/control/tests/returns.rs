//! Workers that register once more, and servers that come back to a run that goes on.

use super::*;
use slackline_core::consistency::Standing;

/// Another server than the coordinator's, with this origin of its shard in this generation.
fn server_with(generation: u64, origin: Origin) -> Desk {
    let other = ControlSettings { server: ServerId(1), coordinator: None, servers: 2, ..settings(1) };
    let other = ControlSettings { shards: vec![(ShardId(0), ServerId(1))], ..other };
    let mut desk = Desk { control: Control::new(other, Moment(0)), now: Moment(0) };
    let generation = Generation(generation);
    let place = Place { shard: ShardId(0), generation, primary: ServerId(1), backup: None, origin };
    desk.event(ControlEvent::CoordinatorOpened);
    desk.event(ControlEvent::Ordered(ServerOrder::Places {
        number: 1,
        run: 0,
        from: None,
        places: vec![place],
    }));
    desk
}

fn entered(effects: &[ControlEffect]) -> Vec<(Standing, u64)> {
    let entered = |effect: &ControlEffect| match effect {
        ControlEffect::Shards(ShardEvent::Enter { standing, batch_count, .. }) => {
            Some((*standing, *batch_count))
        }
        _ => None,
    };
    effects.iter().filter_map(entered).collect()
}

// Found by the simulated world: a server that was restarted did not know that the run had begun, and let a newcomer count at once.
#[test]
fn whoever_enters_a_run_that_goes_on_gates_nobody_and_in_one_that_is_resumed_all_count() {
    let checkpoint = Origin::Checkpoint { number: 7 };
    for (generation, origin, standing) in [
        (0, Origin::Nothing, Standing::Active),
        (0, checkpoint, Standing::Active),
        (3, Origin::Nothing, Standing::Active),
        (0, Origin::Memory, Standing::Joining),
        (3, Origin::Disk, Standing::Joining),
        (3, checkpoint, Standing::Joining),
    ] {
        let mut desk = server_with(generation, origin);
        desk.open(1, Role::Worker);
        let effects = desk.register(1, WorkerId(2), Incarnation(4));
        assert_eq!(entered(&effects), [(standing, 5)], "{generation} {origin:?}");
    }
}

// Found by the simulated world: a copy that led without any registration in its journal had a run of one batch, and its rate was at its
// end; one that lacked a worker's return had no clock of it.
#[test]
fn whoever_registers_once_more_is_made_known_to_the_shards_again() {
    let mut desk = Desk::new(settings(1));
    let (worker, incarnation) = desk.enlist(0);
    desk.say(0, ask(0, None));
    for session in [0, 1] {
        desk.open(session, Role::Worker);
        let effects = desk.register(session, worker, incarnation);
        assert_eq!(entered(&effects), [(Standing::Joining, 5)]);
    }
}

// A server that was stopped for longer than a lease heard nobody: that is nobody's silence, in whatever order it takes in what waited.
#[test]
fn a_server_that_stood_still_removes_nobody() {
    let silent = Duration::from_secs(35);
    for is_heard_first in [true, false] {
        let mut desk = server_with(0, Origin::Nothing);
        for session in [1, 2] {
            desk.open(session, Role::Worker);
            desk.register(session, WorkerId(session as u32), Incarnation(session));
        }
        desk.now = desk.now.after(silent);
        // What one of them said waits in the queue; the other's connection was given up by then.
        if is_heard_first {
            desk.say(1, ToServer::Renew);
        }
        desk.event(ControlEvent::Closed { session: SessionId(2) });
        desk.event(ControlEvent::Late { by: silent });
        let mut effects = desk.event(ControlEvent::Tick);
        effects.extend(desk.say(1, ToServer::Renew));
        desk.open(3, Role::Worker);
        effects.extend(desk.register(3, WorkerId(2), Incarnation(2)));
        effects.extend(desk.after(LEASE.as_secs_f64() - 1.0));
        assert_eq!(refusals(&effects), []);
        assert!(
            !effects.iter().any(|effect| matches!(effect, ControlEffect::Notice(Notice::Expired { .. })))
        );
        assert_eq!(desk.control.members.len(), 2);
    }
}

// Found by the simulated world: a copy that had heard nothing yet was made the primary (nothing waits for it with durability "memory"), and
// all workers waited for its values and then gave up.
#[test]
fn a_copy_without_values_in_a_run_that_has_some_is_named_to_the_coordinator() {
    for (origin, clock, is_named) in
        [(Origin::Memory, 1, true), (Origin::Memory, 0, false), (Origin::Nothing, 1, false)]
    {
        let mut desk = server_with(2, origin);
        desk.open(1, Role::Worker);
        let register = Register {
            worker: WorkerId(1),
            incarnation: Incarnation(1),
            layout_hash: 1,
            config_hash: 2,
            clock: Clock(clock),
            batch_count: 5,
            answered: Sequence(clock),
        };
        let message = ToServer::Register(register);
        let mut effects = Vec::new();
        desk.control.handle(desk.now, ControlEvent::Message { session: SessionId(1), message }, &mut effects);
        let is_word = |effect: &ControlEffect| {
            matches!(effect, ControlEffect::Coordinator(slackline_core::wire::ServerWord::NotRestored { .. }))
        };
        assert_eq!(effects.iter().any(is_word), is_named, "{origin:?} {clock}");
    }
}
