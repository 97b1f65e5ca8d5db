//! The worker of an allreduce when nothing goes wrong.

use slackline_core::collective::Topology;
use slackline_core::ids::Generation;
use slackline_core::wire::{
    Evaluated, Group, GroupMember, LinkFigures, Outcome, Ready, Report, Stepped, Text, Times,
};

use super::*;
use crate::{GroupSettings, Notice, WorkerError};

/// 20 units of 5 samples, the last with 2; a small part of an epoch.
pub(crate) fn grouped() -> Settings {
    let group = GroupSettings {
        peers_at: ":4000".to_owned(),
        unit: 5,
        sample_total: 97,
        evaluate_every: 0,
        step_report: Duration::from_millis(250),
    };
    Settings { group: Some(group), sample_count: 10_000, ..settings(1) }
}

pub(crate) fn member(worker: u32, incarnation: u64) -> GroupMember {
    let address = Text::new(format!("10.0.0.{worker}:4000"));
    GroupMember { worker: WorkerId(worker), incarnation: Incarnation(incarnation), address }
}

/// A group of this worker (id 1) and some others, in which it has the position that its id gives it.
pub(crate) fn group(generation: u64, others: &[u32], clock: u64, units: u64) -> Group {
    let mut members: Vec<_> = others.iter().map(|other| member(*other, 90 + u64::from(*other))).collect();
    members.push(member(ONE.0, FIRST_LIFE.0));
    members.sort_by_key(|member| member.worker);
    Group {
        run: 77,
        generation: Generation(generation),
        topology: Topology::Ring,
        members,
        clock: Clock(clock),
        units,
        source: None,
    }
}

pub(crate) fn ready(generation: u64, clock: u64, units: u64) -> Effect {
    let (generation, clock) = (Generation(generation), Clock(clock));
    send(0, ToServer::Ready(Ready { generation, clock, units, measured: None }))
}

pub(crate) fn step(generation: u64, clock: u64, batch: Option<u64>, share: f32) -> Effect {
    let (generation, clock) = (Generation(generation), Clock(clock));
    Effect::Step { generation, clock, batch: batch.map(BatchIndex), share }
}

pub(crate) fn apply(generation: u64, clock: u64, progress: f64) -> Effect {
    Effect::Apply { generation: Generation(generation), clock: Clock(clock), progress }
}

pub(crate) fn stepped(generation: u64, clock: u64, units: u64, report: Report) -> Effect {
    let (generation, clock) = (Generation(generation), Clock(clock));
    send(0, ToServer::Stepped(Stepped { generation, clock, units, report: Some(report) }))
}

/// The effects without those that are for the user only.
pub(crate) fn silent(mut effects: Vec<Effect>) -> Vec<Effect> {
    effects.retain(|effect| !matches!(effect, Effect::Notice(_)));
    effects
}

impl Rig {
    /// A worker that has just said that it is ready.
    pub(crate) fn ready(settings: Settings) -> Self {
        let batch_count = settings.batch_count;
        let mut rig = Self::new(settings);
        rig.tick_after(Duration::ZERO);
        let join = rig.greet(0, 70);
        let Some(Effect::Send { message: ToServer::Join(join), .. }) = join.first() else {
            panic!("{join:?}")
        };
        assert_eq!(join.peers_at, Some(Text::new(":4000")));
        let registers = silent(rig.hear(0, joined(FIRST_LIFE)));
        let [Effect::Send { message: ToServer::Register(register), .. }] = &registers[..] else {
            panic!("{registers:?}")
        };
        assert_eq!((register.clock, register.batch_count), (Clock(0), batch_count));
        assert_eq!(rig.hear(0, ToPeer::Registered { has_values: true }), [ready(0, 0, 0)]);
        rig
    }

    /// A worker that computes its first step in a group with others.
    pub(crate) fn stepping(settings: Settings, others: &[u32]) -> Self {
        let mut rig = Self::ready(settings);
        let group = group(1, others, 0, 0);
        let position = group.position_of(ONE).unwrap();
        rig.hear(0, ToPeer::Group(group));
        rig.met(1);
        rig.on(Event::BatchLoaded { batch: BatchIndex(u64::from(position)) });
        rig
    }

    pub(crate) fn met(&mut self, generation: u64) -> Vec<Effect> {
        self.on(Event::Met { generation: Generation(generation) })
    }

    pub(crate) fn computed(&mut self, generation: u64, clock: u64, bad_key: Option<u64>) -> Vec<Effect> {
        let (generation, clock) = (Generation(generation), Clock(clock));
        self.on(Event::StepComputed { generation, clock, bad_key, loss: 0.5, samples: 5 })
    }

    pub(crate) fn gathered(&mut self, generation: u64, clock: u64) -> Vec<Effect> {
        self.on(Event::Gathered { generation: Generation(generation), clock: Clock(clock) })
    }

    pub(crate) fn reduced(&mut self, generation: u64, clock: u64, bad_key: Option<u64>) -> Vec<Effect> {
        let (generation, clock) = (Generation(generation), Clock(clock));
        self.on(Event::Reduced { generation, clock, bad_key, sent: 100, received: 200 })
    }

    /// A whole step whose batch is there already; returns all that follows.
    pub(crate) fn whole_step(&mut self, generation: u64, clock: u64) -> Vec<Effect> {
        let mut effects = self.computed(generation, clock, None);
        effects.extend(self.gathered(generation, clock));
        effects.extend(self.reduced(generation, clock, None));
        effects
    }

    pub(crate) fn loaded(&mut self, unit: u64) -> Vec<Effect> {
        self.on(Event::BatchLoaded { batch: BatchIndex(unit) })
    }
}

#[test]
fn two_steps_of_a_group_of_two() {
    let mut rig = Rig::ready(grouped());
    let formed = group(1, &[0], 0, 0);
    let effects = silent(rig.hear(0, ToPeer::Group(formed.clone())));
    assert_eq!(effects, [Effect::Form { group: formed, position: 1 }, load(1)]);
    assert_eq!(rig.met(1), []);
    assert_eq!(rig.loaded(1), [step(1, 0, Some(1), 0.5), load(3)]);
    assert!(rig.worker.wants_batch(BatchIndex(1)) && rig.worker.wants_batch(BatchIndex(3)));
    assert_eq!(rig.computed(1, 0, None), []);
    assert!(!rig.worker.wants_batch(BatchIndex(1)));
    assert_eq!(rig.gathered(1, 0), []);
    assert_eq!(rig.reduced(1, 0, None), [apply(1, 0, 0.0)]);
    assert_eq!(rig.worker.clock(), Clock(1));
    assert_eq!(rig.loaded(3), [step(1, 1, Some(3), 0.5), load(5)]);
    rig.loaded(5);
    // The next step begins at once, on the values with this one applied.
    assert_eq!(rig.whole_step(1, 1), [apply(1, 1, 0.1), step(1, 2, Some(5), 0.5), load(7)]);
}

#[test]
fn shares_are_those_of_the_weighted_mean() {
    let mut rig = Rig::ready(grouped());
    // Units 18 and 19 have 5 and 2 samples.
    let mut last = group(1, &[0, 2], 6, 18);
    last.source = Some(WorkerId(0));
    rig.hear(0, ToPeer::Group(last));
    rig.met(1);
    rig.on(Event::StateArrived { generation: Generation(1) });
    assert_eq!(rig.loaded(19), [step(1, 6, Some(19), (2.0_f64 / 7.0) as f32)]);
    let mut parts = [[3.0_f32], [5.0]];
    slackline_core::aggregate::weighted_mean(&mut parts, &[5, 2]);
    assert_eq!(parts[0][0], 3.0 * (5.0_f64 / 7.0) as f32 + 5.0 * (2.0_f64 / 7.0) as f32);
}

#[test]
fn a_position_without_a_unit_takes_part_without_a_batch() {
    let mut rig = Rig::ready(Settings { batch_count: 4, ..grouped() });
    rig.hear(0, ToPeer::Group(group(1, &[0, 2], 0, 0)));
    rig.met(1);
    rig.loaded(1);
    assert_eq!(rig.whole_step(1, 0), [apply(1, 0, 0.0), step(1, 1, None, 0.0)]);
    let done = rig.whole_step(1, 1);
    assert_eq!(done[0], apply(1, 1, 0.75));
    let Effect::Send { message: ToServer::Stepped(last), .. } = &done[1] else { panic!("{done:?}") };
    let report = last.report.as_ref().unwrap();
    assert_eq!((last.units, report.iterations, report.samples, report.pushes_sent), (4, 1, 5, 2));
}

#[test]
fn a_worker_alone_steps_alone() {
    let mut rig = Rig::stepping(grouped(), &[]);
    rig.loaded(1);
    assert_eq!(rig.whole_step(1, 0), [apply(1, 0, 0.0), step(1, 1, Some(1), 1.0), load(2)]);
}

#[test]
fn times_add_up_and_counts_are_told_after_a_while() {
    let mut settings = grouped();
    settings.group.as_mut().unwrap().step_report = Duration::from_micros(300_246);
    let mut rig = Rig::stepping(settings, &[0]);
    rig.after_us(100).computed(1, 0, None);
    rig.after_us(20).gathered(1, 0);
    rig.after_us(3).reduced(1, 0, None);
    rig.after_us(300_000).loaded(3);
    rig.after_us(100).computed(1, 1, None);
    rig.after_us(20).gathered(1, 1);
    let effects = rig.after_us(3).reduced(1, 1, None);
    let times = Times {
        compute_us: 200,
        wait_for_clock_us: 40,
        push_us: 6,
        data_us: 300_000,
        total_us: 300_246,
        ..Times::default()
    };
    let mut report = Report {
        iterations: 2,
        samples: 10,
        loss_sum: 5.0,
        times,
        bytes_pushed: 200,
        bytes_pulled: 400,
        pushes_sent: 2,
        pushes_applied: 2,
        ..Report::default()
    };
    report.version_staleness.record(0);
    report.version_staleness.record(0);
    assert_eq!(effects, [apply(1, 1, 0.1), stepped(1, 2, 4, report), send(0, ToServer::Renew)]);
}

#[test]
fn each_tenth_of_an_epoch_is_told_of_however_soon_but_one_word_at_a_time() {
    let mut rig = Rig::stepping(Settings { sample_count: 100, ..grouped() }, &[0]);
    let told = |effects: Vec<Effect>| {
        let samples = |effect: &Effect| match effect {
            Effect::Send { message: ToServer::Stepped(Stepped { report, .. }), .. } => {
                Some(report.as_ref().unwrap().samples)
            }
            _ => None,
        };
        effects.iter().find_map(samples)
    };
    let step = |rig: &mut Rig, clock: u64| {
        rig.loaded(2 * clock + 3);
        told(rig.whole_step(1, clock))
    };
    // Both members have done a tenth, and then more.
    assert_eq!(step(&mut rig, 0), None);
    assert_eq!(step(&mut rig, 1), Some(10));
    // That word has no answer yet.
    assert_eq!((step(&mut rig, 2), step(&mut rig, 3), step(&mut rig, 4)), (None, None, None));
    assert_eq!(told(rig.hear(0, ToPeer::Renewed)), Some(15));
}

#[test]
fn evaluations_lie_where_those_of_runs_with_servers_lie() {
    let mut settings = grouped();
    settings.group.as_mut().unwrap().evaluate_every = 20;
    let mut rig = Rig::stepping(settings, &[2]);
    // Its id is below the other's: it has position 0. Unit 3 has the samples 15 to 19, so the border lies behind it.
    let mut points = Vec::new();
    for clock in 0..10 {
        rig.loaded(2 * (clock + 1));
        for effect in rig.whole_step(1, clock) {
            if let Effect::Evaluate { at_samples, last } = effect {
                points.push((clock + 1, at_samples));
                assert_eq!(last, clock == 9);
                rig.on(Event::EvaluationReady { at_samples, loss: 0.5, accuracy: 0.5 });
            }
        }
    }
    assert_eq!(points, [(1, 15), (3, 35), (5, 55), (7, 75), (10, 97)]);
}

#[test]
fn position_0_evaluates_beside_the_training_and_nobody_else_does() {
    let mut settings = grouped();
    settings.group.as_mut().unwrap().evaluate_every = 20;
    for (others, evaluates) in [([2], true), ([0], false)] {
        let mut rig = Rig::stepping(settings.clone(), &others);
        let first = u64::from(!evaluates);
        rig.loaded(2 + first);
        let effects = rig.whole_step(1, 0);
        let evaluation = Effect::Evaluate { at_samples: 15, last: false };
        assert_eq!(effects.contains(&evaluation), evaluates, "{effects:?}");
        if evaluates {
            // After the sums of the iterations before, and before the step.
            let place = |wanted: &Effect| effects.iter().position(|effect| effect == wanted);
            assert!(place(&apply(1, 0, 0.0)) < place(&evaluation));
            assert!(place(&evaluation) < place(&step(1, 1, Some(2), 0.5)));
            // What it stands beside is told first.
            rig.on(Event::EvaluationReady { at_samples: 15, loss: 0.25, accuracy: 0.75 });
            let measured = rig.hear(0, ToPeer::Renewed);
            let result = Evaluated { at_samples: 15, loss: 0.25, accuracy: 0.75, report: None };
            assert_eq!(without_reports(measured)[0], send(0, ToServer::Evaluated(result)));
        }
    }
}

/// A worker that has done its last step; the effects of that.
pub(crate) fn finished(others: &[u32]) -> (Rig, Vec<Effect>) {
    let mut rig = Rig::stepping(Settings { batch_count: 2, ..grouped() }, others);
    let effects = rig.whole_step(1, 0);
    (rig, effects)
}

#[test]
fn the_end_is_an_evaluation_by_position_0_and_the_word_that_the_run_is_over() {
    let (mut first, effects) = finished(&[2]);
    let [applied, told, renew, measure] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*applied, apply(1, 0, 0.0));
    assert!(matches!(told, Effect::Send { message: ToServer::Stepped(Stepped { units: 2, .. }), .. }));
    assert_eq!(*renew, send(0, ToServer::Renew));
    assert_eq!(*measure, Effect::Evaluate { at_samples: 10, last: true });
    assert_eq!(first.hear(0, ToPeer::Renewed), []);
    first.after_us(500);
    let measured = first.on(Event::EvaluationReady { at_samples: 10, loss: 0.25, accuracy: 0.5 });
    let Effect::Send { message: ToServer::Evaluated(evaluated), .. } = &measured[0] else {
        panic!("{measured:?}")
    };
    assert_eq!(evaluated.report.as_ref().unwrap().times.evaluate_us, 500);
    assert_eq!(first.hear(0, ToPeer::Renewed), []);

    let (mut second, effects) = finished(&[0]);
    assert_eq!(effects.len(), 3, "it has nothing to evaluate: {effects:?}");
    assert_eq!(second.hear(0, ToPeer::Renewed), []);
    for rig in [&mut first, &mut second] {
        let effects = rig.hear(0, ToPeer::Work(Work::Done));
        let [Effect::Send { message: ToServer::Leave(leave), .. }] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(leave.outcome, Outcome::Done);
        assert_eq!(rig.hear(0, ToPeer::Goodbye), [Effect::Exit(Ok(()))]);
    }
}

#[test]
fn a_group_that_measures_is_left_only_for_the_next() {
    let mut rig = Rig::ready(grouped());
    let measuring = Group { topology: Topology::Auto, ..group(1, &[0], 0, 0) };
    let effects = silent(rig.hear(0, ToPeer::Group(measuring.clone())));
    assert_eq!(effects, [Effect::Form { group: measuring, position: 1 }]);
    let generation = Generation(1);
    assert_eq!(rig.met(1), [Effect::Probe { generation }]);
    let figures = LinkFigures { latency_s: 1e-4, bytes_per_s: 1e9 };
    let said = Ready { generation, clock: Clock(0), units: 0, measured: Some(figures) };
    let measured = Event::Measured { generation, figures };
    assert_eq!(rig.on(measured), [send(0, ToServer::Ready(said))]);
    // The others close their connections of this group when they form the next.
    let trouble = Event::PeerTrouble { generation, worker: WorkerId(0), reason: "closed".to_owned() };
    assert_eq!(rig.on(trouble), []);
    let formed = group(2, &[0], 0, 0);
    let effects = silent(rig.hear(0, ToPeer::Group(formed.clone())));
    assert_eq!(effects, [Effect::Form { group: formed, position: 1 }, load(1)]);
}

#[test]
fn a_member_that_is_behind_gets_the_values_before_it_steps() {
    let mut rig = Rig::ready(grouped());
    let joined = Group { source: Some(WorkerId(0)), ..group(4, &[0], 5, 10) };
    rig.hear(0, ToPeer::Group(joined));
    let fetch = Effect::FetchState { generation: Generation(4), source: WorkerId(0), clock: Clock(5) };
    assert_eq!(rig.met(4), [fetch]);
    assert_eq!(rig.loaded(11), []);
    let arrived = rig.on(Event::StateArrived { generation: Generation(4) });
    assert_eq!(arrived, [step(4, 5, Some(11), 0.5), load(13)]);
    assert_eq!(rig.worker.clock(), Clock(5));
}

#[test]
fn a_sum_that_is_not_finite_is_skipped_and_the_worker_that_made_it_is_named() {
    for own in [Some(3), None] {
        let mut rig = Rig::stepping(grouped(), &[0]);
        let noticed = rig.computed(1, 0, own);
        let notice = Notice::BadGradient {
            worker: ONE,
            clock: Clock(0),
            sequence: Sequence(1),
            key: 3,
            tensor: "weight".to_owned(),
            found_by: None,
        };
        assert_eq!(noticed, own.map(|_| Effect::Notice(notice)).into_iter().collect::<Vec<_>>());
        rig.loaded(3);
        rig.gathered(1, 0);
        rig.after_us(250_000);
        let skipped = rig.reduced(1, 0, Some(3));
        assert_eq!(skipped[0], Effect::Skip { generation: Generation(1), clock: Clock(0) });
        let Effect::Send { message: ToServer::Stepped(told), .. } = &skipped[3] else {
            panic!("{skipped:?}")
        };
        let report = told.report.as_ref().unwrap();
        assert_eq!((told.clock, told.units, report.samples), (Clock(1), 2, 0));
        assert_eq!((report.pushes_sent, report.pushes_applied), (1, 0));
        assert_eq!((report.pushes_dropped, report.dropped_not_finite), (1, 1));
    }
}

#[test]
fn a_sum_that_is_not_finite_ends_everybody_if_the_run_is_to_stop_for_it() {
    for own in [Some(3), None] {
        let mut rig = Rig::stepping(Settings { stop_on_bad_gradient: true, ..grouped() }, &[0]);
        let effects = match own {
            Some(_) => rig.computed(1, 0, own),
            None => {
                rig.computed(1, 0, None);
                rig.reduced(1, 0, Some(3))
            }
        };
        let error = match own {
            Some(key) => {
                WorkerError::BadGradient { worker: ONE, clock: Clock(0), key, tensor: "weight".to_owned() }
            }
            None => WorkerError::BadSum { clock: Clock(0), key: 3, tensor: "weight".to_owned() },
        };
        let [Effect::Dissolve { .. }, Effect::Send { message: ToServer::Leave(leave), .. }] =
            &silent(effects)[..]
        else {
            panic!("no leave")
        };
        assert_eq!(leave.outcome, Outcome::BadGradient(Text::new(error.to_string())));
        assert_eq!(rig.hear(0, ToPeer::Goodbye), [Effect::Exit(Err(error))]);
    }
}
