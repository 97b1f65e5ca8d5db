//! Results count once, and a run that goes on from a cut does what is not in it, in the order that it would have been done in.

use super::*;
use slackline_core::wire::Mark;

fn done_at(number: u64, batch: u64, clock: u64) -> BatchResult {
    BatchResult { number, batch: BatchIndex(batch), clock: Clock(clock), fate: Fate::Done { compute_us: 0 } }
}

// Found by the simulated world (seed 35844): an ask was lost with its session, the next one said nothing of the batch that it had reported, and
// the batch was given out again.
#[test]
fn a_result_whose_ask_was_lost_is_heard_with_the_next_one_and_counts_once() {
    let mut assigner = Assigner::new(plan(5, false));
    let mut grants = Vec::new();
    assigner.enter(WorkerId(0));
    assigner.begin();
    for clock in 0..2 {
        assigner.ask(WorkerId(0), Clock(clock), &[]);
        assigner.settle(|| Clock(0), &mut grants);
    }
    // The ask that said batch 0 is done was lost; the next says it again, beside batch 1.
    let both = [done_at(1, 0, 0), done_at(2, 1, 1)];
    for _ in 0..3 {
        assigner.ask(WorkerId(0), Clock(3), &both);
        assigner.settle(|| Clock(0), &mut grants);
        assigner.check_invariants();
        assert_eq!((assigner.batches_done(), assigner.samples_done()), (2, 20));
    }
    assert_eq!(assigner.repeated(), 0);
}

/// Workers that go in step, each asking for clock c + 1 while it computes clock c; returns who was given which batch at which clock.
struct Lockstep {
    assigner: Assigner,
    workers: u32,
    numbers: Vec<u64>,
    hands: Vec<VecDeque<(u64, u64)>>,
    log: Vec<(u64, u64)>,
}

impl Lockstep {
    fn new(assigner: Assigner, workers: u32, clock: u64) -> Self {
        let count = workers as usize;
        let mut all = Self {
            assigner,
            workers,
            numbers: vec![0; count],
            hands: vec![VecDeque::new(); count],
            log: Vec::new(),
        };
        (0..workers).for_each(|worker| all.assigner.enter(WorkerId(worker)));
        all.assigner.begin();
        all.ask_all(clock);
        all
    }

    /// All ask for the work of a clock, and have done what they computed two clocks before.
    fn ask_all(&mut self, clock: u64) {
        let mut grants = Vec::new();
        for worker in 0..self.workers as usize {
            let is_done = self.hands[worker].front().is_some_and(|(_, at)| at + 1 < clock);
            let finished = is_done.then(|| self.hands[worker].pop_front()).flatten();
            self.numbers[worker] += u64::from(finished.is_some());
            let results: Vec<_> =
                finished.map(|(batch, at)| done_at(self.numbers[worker], batch, at)).into_iter().collect();
            self.assigner.ask(WorkerId(worker as u32), Clock(clock), &results);
        }
        self.assigner.settle(|| Clock(clock), &mut grants);
        self.assigner.check_invariants();
        for (worker, work) in grants {
            if let Work::Batch { batch, .. } = work {
                self.hands[worker.0 as usize].push_back((batch.0, clock));
                self.log.push((clock, batch.0));
            }
        }
    }
}

proptest! {
    // apache/mxnet#15923 (case 44): a resumed run is the run that was not interrupted.
    #[test]
    fn under_bsp_a_resumed_run_gives_every_clock_the_batches_of_the_whole_run(
        batches in 1..60_u64, workers in 1..5_u32, at in 0..12_u64, margin in 1..4_u64
    ) {
        let through = |all: &mut Lockstep, from: u64| (from..80).for_each(|clock| all.ask_all(clock));
        let mut whole = Lockstep::new(Assigner::new(plan(batches, true)), workers, 0);
        through(&mut whole, 1);
        // The same run until a cut is complete.
        let mut first = Lockstep::new(Assigner::new(plan(batches, true)), workers, 0);
        (1..=at).for_each(|clock| first.ask_all(clock));
        let cut = Clock((0..workers).map(|worker| first.assigner.beyond(WorkerId(worker)).0).max().unwrap_or(0) + margin);
        first.assigner.mark(&Mark { number: 1, cuts: Vec::new(), rest: Some(cut) });
        for clock in at + 1..at + margin + 6 {
            first.ask_all(clock);
        }
        prop_assume!(first.assigner.is_reported());
        let position = first.assigner.position();
        prop_assert!(position.todo.is_empty(), "{position:?}: under bsp what is not in a cut is what comes after it");
        let mut second = Lockstep::new(Assigner::resume(plan(batches, true), &position).unwrap(), workers, cut.0);
        through(&mut second, cut.0 + 1);
        let rest: Vec<_> = whole.log.iter().filter(|(clock, _)| *clock >= cut.0).copied().collect();
        prop_assert_eq!(&second.log, &rest);
    }

    #[test]
    fn what_is_in_a_cut_and_what_is_done_after_it_make_the_whole_run(
        count in 1..30_u64, workers in 1..5_usize,
        steps in prop::collection::vec((0..5_usize, 0..12_u8), 0..120), mark_at in 0..60_usize,
    ) {
        let mut assigner = Assigner::new(plan(count, false));
        let mut hands = vec![Hand { here: true, ..Hand::default() }; workers];
        (0..workers).for_each(|worker| assigner.enter(WorkerId(worker as u32)));
        assigner.begin();
        let (mut cuts, mut inside, mut grants) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (index, (worker, action)) in steps.into_iter().enumerate() {
            let worker = worker % workers;
            let id = WorkerId(worker as u32);
            if index == mark_at {
                // Only members have a cut.
                let here = (0..workers).filter(|worker| hands[*worker].here).map(|worker| WorkerId(worker as u32));
                cuts = here.map(|worker| (worker, Clock(assigner.beyond(worker).0 + 2))).collect();
                assigner.mark(&Mark { number: 1, cuts: cuts.clone().into_iter().collect(), rest: None });
            }
            let hand = &mut hands[worker];
            if action == 0 {
                assigner.forget(id);
                cuts.remove(&id);
                *hand = Hand::default();
            } else if !hand.here {
                assigner.enter(id);
                *hand = Hand { here: true, ..Hand::default() };
            } else if !hand.evaluates && !hand.over && (!hand.waits || !hand.batches.is_empty()) {
                let finished = if hand.batches.len() > 1 || hand.waits { Some(hand.batches.remove(0)) } else { None };
                hand.results += u64::from(finished.is_some());
                if !hand.waits { hand.clock += 1; }
                hand.waits = true;
                let results: Vec<_> = finished.map(|(batch, clock)| done_at(hand.results, batch.0, clock)).into_iter().collect();
                // Before the mark everything is in the cut.
                let is_in = |clock| index < mark_at || cuts.get(&id).is_some_and(|cut| clock < cut.0);
                inside.extend(finished.filter(|(_, clock)| is_in(*clock)).map(|(batch, _)| batch.0));
                let again = assigner.ask(id, Clock(hand.clock - 1), &results);
                deliver(&mut hands, again.into_iter().map(|work| (id, work)).collect());
            }
            assigner.settle(|| Clock(0), &mut grants);
            deliver(&mut hands, std::mem::take(&mut grants));
        }
        let position = assigner.position();
        let resumed = Assigner::resume(plan(count, false), &position).unwrap();
        resumed.check_invariants();
        prop_assert_eq!(resumed.samples_done(), 10 * resumed.done);
        let open: u64 = position.todo.iter().map(|(_, units)| u64::from(*units)).sum();
        prop_assert!(inside.len() as u64 >= position.next - open, "a batch would be skipped");
        prop_assert!(position.todo.iter().all(|(unit, _)| !inside.contains(unit)));
        prop_assert!(inside.iter().all(|unit| *unit < position.next));
    }
}

#[test]
fn a_position_that_contradicts_itself_is_refused() {
    let good = Position { sample_total: 50, next: 4, todo: vec![(0, 1), (2, 1)], ..Position::default() };
    assert!(Assigner::resume(plan(5, true), &good).is_ok());
    let table = [
        (Position { sample_total: 40, ..good.clone() }, PositionError::Samples { theirs: 40, ours: 50 }),
        (Position { next: 6, ..good.clone() }, PositionError::Contradiction { unit: 6 }),
        (Position { todo: vec![(2, 1), (0, 1)], ..good.clone() }, PositionError::Contradiction { unit: 0 }),
        (Position { todo: vec![(0, 0)], ..good.clone() }, PositionError::Contradiction { unit: 0 }),
        (Position { todo: vec![(3, 2)], ..good }, PositionError::Contradiction { unit: 3 }),
    ];
    for (position, error) in table {
        assert_eq!(Assigner::resume(plan(5, true), &position).unwrap_err(), error);
    }
}
