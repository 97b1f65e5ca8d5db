//! Servers that are lost, come back and are restarted; maps that are stored before they are told; the last steps of workers that are gone.

mod copies;
mod formers;
mod going;
mod moves;
mod processes;
mod restores;
mod resumed;
mod room;

use proptest::prelude::*;
use slackline_core::ids::{Sequence, Version};
use slackline_core::wire::{Doubt, Here, Holding, Origin, Text};

use super::*;

const LEASE: Duration = Duration::from_secs(3);

/// Three servers with a shard each.
fn settings(replicas: u32) -> ClusterSettings {
    ClusterSettings {
        own: ServerId(0),
        shards: (0..3).map(|shard| (ShardId(shard), ServerId(shard))).collect(),
        servers: 3,
        lease: LEASE,
        replicas,
        is_whole: true,
        keeps_map: true,
        every: None,
        from: None,
        run: 0,
        on_disk: false,
    }
}

/// A cluster with what it said.
struct Table {
    cluster: Cluster,
    now: Moment,
    orders: Vec<(ServerId, ServerOrder)>,
    placed: Vec<Placed>,
    notices: Vec<ClusterNotice>,
    failures: Vec<String>,
    persists: Vec<MapRecord>,
    /// The shell stores maps at once.
    stores: bool,
    /// Servers take orders in at once, all but these.
    takes: bool,
    silent: Vec<u32>,
    progress: Clock,
    /// Batches that are done, and those that workers have.
    work: (u64, u64),
    /// Checkpoints that the data are to go back to.
    went_back: Vec<u64>,
}

impl Table {
    fn new(settings: ClusterSettings) -> Self {
        let mut table = Self {
            cluster: Cluster::new(settings),
            now: Moment(0),
            orders: Vec::new(),
            placed: Vec::new(),
            notices: Vec::new(),
            failures: Vec::new(),
            persists: Vec::new(),
            stores: true,
            takes: true,
            silent: Vec::new(),
            progress: Clock(0),
            work: (0, 0),
            went_back: Vec::new(),
        };
        (0..3).for_each(|server| table.here(server, 1, &[]));
        table
    }

    /// The same, at work, with all backups in step.
    fn at_work(replicas: u32) -> Self {
        let mut table = Self::new(settings(replicas));
        table.cluster.trained();
        table.settle();
        if replicas > 1 {
            (0..3).for_each(|shard| table.in_step(shard));
        }
        table
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            let progress = self.progress;
            let cut = |number, margin| {
                let clock = Clock(progress.0 + margin);
                (Mark { number, cuts: Vec::new(), rest: Some(clock) }, clock)
            };
            let (done, in_hand) = self.work;
            let view = View {
                progress,
                is_running: true,
                is_left: false,
                done,
                in_hand,
                cut: &cut,
                is_reported: &|| true,
            };
            let mut out = Vec::new();
            self.cluster.settle(self.now, &view, &mut out);
            self.cluster.check_invariants();
            if out.is_empty() {
                return;
            }
            for out in out {
                self.take(out);
            }
        }
        panic!("it never comes to rest");
    }

    fn take(&mut self, out: Out) {
        match out {
            Out::Order(server, order) => {
                let takes = self.takes && !self.silent.contains(&server.0);
                if let (ServerOrder::Places { number, .. }, true) = (&order, takes) {
                    let number = *number;
                    self.cluster.word(self.now, server, ServerWord::Took { number });
                }
                self.orders.push((server, order));
            }
            Out::Persist(record) => {
                if self.stores {
                    self.cluster.persisted(record.number);
                }
                self.persists.push(record);
            }
            Out::Placed(placed) => self.placed.extend(placed),
            Out::Notice(notice) => self.notices.push(notice),
            Out::Fail(text) => self.failures.push(text),
            Out::GoBack { number } => self.went_back.push(number),
            Out::Marked(_) | Out::Unmarked | Out::Commit { .. } => {}
        }
    }

    fn word(&mut self, server: u32, word: ServerWord) {
        self.cluster.word(self.now, ServerId(server), word);
        self.settle();
    }

    fn here(&mut self, server: u32, boot: u64, holds: &[Holding]) {
        self.silent.retain(|silent| *silent != server);
        let here =
            Here { server: ServerId(server), boot, layout_hash: 1, config_hash: 2, holds: holds.to_vec() };
        self.word(server, ServerWord::Here(here));
    }

    fn place(&self, shard: u32) -> Place {
        self.cluster.kept.map.slots[&ShardId(shard)].place
    }

    fn in_step(&mut self, shard: u32) {
        let Place { shard, generation, primary, backup, .. } = self.place(shard);
        let backup = backup.unwrap().server;
        self.word(primary.0, ServerWord::InStep { shard, generation, backup });
    }

    /// So much time passes, in which these servers say that they are alive.
    fn pass(&mut self, seconds: u64, alive: &[u32]) {
        for _ in 0..seconds {
            self.now = self.now.after(Duration::from_secs(1));
            alive.iter().for_each(|server| self.cluster.word(self.now, ServerId(*server), ServerWord::Alive));
            self.cluster.tick(self.now);
            self.settle();
        }
    }

    fn told(&self, server: u32) -> Option<Vec<Place>> {
        self.orders.iter().rev().find_map(|(to, order)| match order {
            ServerOrder::Places { places, .. } if to.0 == server => Some(places.clone()),
            _ => None,
        })
    }

    fn count(&self, of: impl Fn(&ServerOrder) -> bool) -> usize {
        self.orders.iter().filter(|(_, order)| of(order)).count()
    }
}

fn on_disk(shard: u32, generation: Generation) -> Holding {
    Holding { shard: ShardId(shard), generation, is_whole: true, on_disk: true }
}

#[test]
fn nobody_is_told_of_a_map_that_is_not_stored() {
    let mut table = Table::at_work(2);
    (table.stores, table.orders) = (false, Vec::new());
    table.pass(5, &[2]);
    assert_eq!(table.place(1).primary, ServerId(2), "server 1 is lost and its backup promoted");
    let is_places = |order: &ServerOrder| matches!(order, ServerOrder::Places { .. });
    assert_eq!((table.count(is_places), table.placed.len()), (0, 0));
    let number = table.persists.last().unwrap().number;
    table.cluster.persisted(number - 1);
    table.settle();
    assert_eq!(table.count(is_places), 0);
    table.stores = true;
    table.cluster.persisted(number);
    table.settle();
    assert!(table.told(2).unwrap().contains(&table.place(1)));
}

// dmlc/parameter_server#32 (case 1): one server killed and the whole job hung, although replicas were asked for.
#[test]
fn a_backup_in_step_answers_within_two_leases_under_a_new_generation_and_workers_hear_when_it_knows() {
    let mut table = Table::at_work(2);
    let before = table.place(1);
    table.takes = false;
    table.pass(2 * LEASE.as_secs(), &[2]);
    let after = table.place(1);
    assert_eq!((after.primary, after.origin), (ServerId(2), Origin::Memory));
    assert!(after.generation > before.generation);
    assert_eq!(table.placed, [], "the new primary has not said that it knows");
    let number = table.cluster.kept.stored.number;
    table.word(2, ServerWord::Took { number });
    assert_eq!(
        table.placed.iter().map(|placed| (placed.shard.0, placed.server.0)).collect::<Vec<_>>(),
        [(1, 2)]
    );
    assert_eq!(table.cluster.moved().len(), 1, "a worker that registers later hears it too");
    // Shard 0, whose backup server 1 was, goes on alone and then with another one, which counts from when it is in step.
    let alone = table.place(0);
    assert_eq!(alone.backup, Some(slackline_core::wire::Backup { server: ServerId(2), in_step: false }));
}

#[test]
fn a_server_that_thaws_finds_its_shard_elsewhere_and_becomes_a_backup() {
    let mut table = Table::at_work(2);
    table.pass(5, &[2]);
    table.here(1, 1, &[]);
    let named = table.told(1).unwrap();
    assert_eq!(named, [], "others have all copies by now");
    // The next shard that lacks a copy gets it there.
    table.pass(5, &[1]);
    let named = table.told(1).unwrap();
    assert!(named.iter().any(|place| place.backup.is_some_and(|backup| backup.server == ServerId(1))));
}

#[test]
fn a_shard_without_a_copy_in_step_waits_for_its_server_and_goes_on_with_what_that_has() {
    let mut table = Table::at_work(1);
    let before = table.place(1);
    table.pass(60, &[2]);
    assert_eq!(table.cluster.lacks().len(), 1);
    assert_eq!(table.place(1), before);
    table.here(1, 1, &[]);
    assert_eq!((table.place(1), table.cluster.lacks().len()), (before, 0));
    assert!(table.failures.is_empty());
}

// tensorflow#7767 (case 2): a restarted server went on with initial values.
#[test]
fn a_restarted_server_without_copy_disk_or_checkpoint_ends_the_run_and_is_told_of_no_shard() {
    let mut table = Table::at_work(1);
    table.orders.clear();
    table.here(1, 2, &[]);
    let text = "shard 1 has no state: server 1 was restarted; give the run cluster.durability = \"disk\", \
                cluster.replicas = 2 or checkpoints";
    assert_eq!(table.failures, [text]);
    // Before anything was trained there is nothing to lose.
    let mut table = Table::new(settings(1));
    table.here(1, 2, &[]);
    assert_eq!((table.failures.len(), table.place(1).origin), (0, Origin::Nothing));
    assert_eq!(table.place(1).generation, Generation(1));
}

#[test]
fn a_restarted_server_hears_nothing_of_a_map_that_counts_on_its_lost_memory() {
    let mut table = Table::at_work(1);
    (table.stores, table.orders) = (false, Vec::new());
    table.here(1, 2, &[on_disk(1, Generation(0))]);
    assert_eq!(table.told(1), None);
    table.stores = true;
    let number = table.persists.last().unwrap().number;
    table.cluster.persisted(number);
    table.settle();
    assert_eq!(table.told(1).unwrap()[0].origin, Origin::Disk);
}

// x-deeplearning#53 (case 6): what the failover of one shard costs must be said.
#[test]
fn a_restarted_server_loads_from_its_disk_or_from_the_newest_checkpoint_and_the_loss_is_named() {
    let mut table = Table::at_work(1);
    table.progress = Clock(1000);
    table.here(1, 2, &[on_disk(1, Generation(0))]);
    let Place { shard, generation, origin, .. } = table.place(1);
    assert_eq!(origin, Origin::Disk);
    let restored =
        |clock| ServerWord::Restored { shard, generation, version: Version(5), clock: Clock(clock) };
    table.word(1, restored(998));
    let is_whole = |notice: &ClusterNotice| matches!(notice, ClusterNotice::Restored { lost: 0, .. });
    assert!(table.notices.iter().any(is_whole));

    let mut table =
        Table::new(ClusterSettings { from: Some((7, Clock(900))), every: Some(50), ..settings(1) });
    for shard in 0..3 {
        let Place { shard: id, generation, origin, primary, .. } = table.place(shard);
        assert_eq!(origin, Origin::Checkpoint { number: 7 });
        let clock = Clock(900);
        table.word(primary.0, ServerWord::Restored { shard: id, generation, version: Version(1), clock });
    }
    table.cluster.trained();
    table.progress = Clock(1000);
    table.here(1, 2, &[]);
    let Place { shard, generation, .. } = table.place(1);
    assert_eq!(table.place(1).origin, Origin::Checkpoint { number: 7 });
    table.word(1, ServerWord::Restored { shard, generation, version: Version(1), clock: Clock(900) });
    let lines: Vec<String> = table.notices.iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("100 clocks of it are lost")), "{lines:?}");
}

// Found by reading: the disk of a primary that lost its backup, and crashed before it heard so, was not taken for whole.
#[test]
fn a_disk_is_whole_from_the_generation_on_in_which_its_server_became_the_primary() {
    let mut table = Table::at_work(2);
    table.pass(5, &[2]);
    // Server 1 is lost: shard 0 of server 0 went on alone, and shard 1 is led by server 2 now.
    let (led, alone) = (table.place(1).generation, table.place(2).generation);
    table.now = table.now.after(Duration::from_secs(1));
    table.here(2, 2, &[on_disk(1, led), on_disk(2, alone)]);
    assert_eq!(table.failures, [""; 0]);
    assert!((1..3).all(|shard| table.place(shard).origin != Origin::Nothing));
    // A copy of before it led the shard is not whole.
    let mut table = Table::at_work(2);
    table.pass(5, &[2]);
    table.here(2, 2, &[on_disk(1, Generation(0)), on_disk(2, Generation(0))]);
    assert!(table.failures.iter().any(|text| text.contains("shard 1 has no state")), "{:?}", table.failures);
}

#[test]
fn a_state_that_cannot_be_loaded_ends_the_run_with_the_reason() {
    let mut table = Table::at_work(1);
    table.here(1, 2, &[on_disk(1, Generation(0))]);
    let Place { shard, generation, .. } = table.place(1);
    let why = Text::new("journal-1: bad checksum");
    table.word(1, ServerWord::NotRestored { shard, generation: Generation(0), why: why.clone() });
    assert!(table.failures.is_empty(), "said of an older place");
    table.word(1, ServerWord::NotRestored { shard, generation, why });
    assert_eq!(table.failures, ["shard 1 cannot be restored from its disk: journal-1: bad checksum"]);
}

// Found by the simulated world (seed 14138): a clock that jumped at the coordinator, over a session that stayed. The run waited for ever
// for a state to be loaded that was in force.
#[test]
fn a_state_that_was_loaded_is_not_waited_for_again_when_its_server_was_only_silent() {
    for said_before in [true, false] {
        let mut table = Table::at_work(1);
        table.here(1, 2, &[on_disk(1, Generation(0))]);
        let Place { shard, generation, .. } = table.place(1);
        let restored = || ServerWord::Restored { shard, generation, version: Version(4), clock: Clock(4) };
        if said_before {
            table.word(1, restored());
        }
        table.pass(5, &[2]);
        assert_eq!(table.cluster.lacks().len(), 1, "its lease is over");
        table.pass(1, &[1, 2]);
        let lacks: Vec<_> = table.cluster.lacks().iter().map(|lack| lack.lack).collect();
        if said_before {
            assert_eq!(lacks, []);
        } else {
            assert_eq!(lacks, [slackline_core::wire::Lack::State]);
            table.word(1, restored());
            assert_eq!(table.cluster.lacks(), []);
        }
    }
}

fn doubt(shard: u32, applied: u64, waiting: &[u64]) -> ServerWord {
    ServerWord::Doubt(Doubt {
        shard: ShardId(shard),
        worker: WorkerId(4),
        incarnation: Incarnation(9),
        applied: Sequence(applied),
        waiting: waiting.iter().map(|sequence| Sequence(*sequence)).collect(),
    })
}

#[test]
fn all_shards_apply_the_steps_of_a_lost_worker_as_far_as_any_of_them_has() {
    let mut table = Table::at_work(1);
    table.cluster.fence(WorkerId(4), Incarnation(9));
    table.settle();
    let is_fence = |order: &ServerOrder| matches!(order, ServerOrder::Fence { .. });
    let is_resolve = |order: &ServerOrder| matches!(order, ServerOrder::Resolve { .. });
    assert_eq!((table.count(is_fence), table.count(is_resolve)), (3, 0));
    table.word(0, doubt(0, 6, &[7]));
    table.word(1, doubt(1, 7, &[]));
    assert_eq!(table.count(is_resolve), 0, "one shard has not said how far it is");
    // The server of the last shard comes back over a new session: it is told again.
    table.here(2, 1, &[]);
    assert_eq!(table.count(is_fence), 4);
    table.word(2, doubt(2, 6, &[7]));
    let through: Vec<Sequence> = table
        .orders
        .iter()
        .filter_map(|(_, order)| match order {
            ServerOrder::Resolve { through, .. } => Some(*through),
            _ => None,
        })
        .collect();
    assert_eq!(through, [Sequence(7); 3]);
    // Whoever asks again hears the same.
    table.word(2, doubt(2, 6, &[7]));
    assert_eq!(table.count(is_resolve), 4);
    assert_eq!(table.cluster.take_gone(), [], "the coordinator had removed it itself");
}

/// What can happen to the servers.
#[derive(Clone, Debug)]
enum Step {
    Pass(Vec<u32>),
    Cut(u32),
    Return(u32),
    Restart(u32, bool),
    Equal(u32),
    Unreachable(u32),
    Stored,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec(1..3_u32, 0..3).prop_map(Step::Pass),
        1 => (1..3_u32).prop_map(Step::Cut),
        2 => (1..3_u32).prop_map(Step::Return),
        1 => (0..3_u32, any::<bool>()).prop_map(|(server, disk)| Step::Restart(server, disk)),
        3 => (0..3_u32).prop_map(Step::Equal),
        1 => (0..3_u32).prop_map(Step::Unreachable),
        3 => Just(Step::Stored),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_a_generation_has_one_primary_and_no_server_is_told_to_begin_again(
        steps in prop::collection::vec(step(), 0..60), replicas in 1..3_u32
    ) {
        let mut table = Table::at_work(replicas);
        table.stores = false;
        let mut boots = [1; 3];
        for step in steps {
            let from = table.orders.len();
            match step {
                Step::Pass(alive) => table.pass(1, &alive),
                Step::Cut(server) => table.cluster.disconnected(ServerId(server)),
                Step::Return(server) => table.here(server, boots[server as usize], &[]),
                Step::Restart(server, disk) => {
                    boots[server as usize] += 1;
                    let holds: Vec<_> = (0..3).map(|shard| on_disk(shard, table.place(shard).generation)).collect();
                    table.here(server, boots[server as usize], if disk { &holds } else { &[] });
                }
                Step::Equal(shard) if table.place(shard).backup.is_some() => table.in_step(shard),
                Step::Unreachable(shard) => {
                    if let Place { shard, generation, primary, backup: Some(backup), .. } = table.place(shard) {
                        table.word(primary.0, ServerWord::OutOfReach { shard, generation, backup: backup.server });
                    }
                }
                Step::Equal(_) => {}
                Step::Stored => {
                    let number = table.persists.last().map_or(0, |record| record.number);
                    table.cluster.persisted(number);
                    table.settle();
                }
            }
            // Only what is stored is told, and nobody is told to begin without values.
            for (_, order) in &table.orders[from..] {
                let ServerOrder::Places { number, places, .. } = order else { continue };
                let record = table.persists.iter().find(|record| record.number == *number);
                prop_assert!(record.is_some_and(|record| places.iter().all(|place| record.places.contains(place))));
                prop_assert!(places.iter().all(|place| place.origin != Origin::Nothing));
            }
        }
        // Over all maps that ever were: a generation of a shard has one primary, and at most one backup that counts.
        let mut primaries = BTreeMap::new();
        let mut counting = BTreeMap::new();
        for place in table.persists.iter().flat_map(|record| &record.places) {
            let primary = primaries.entry((place.shard, place.generation)).or_insert(place.primary);
            prop_assert_eq!(*primary, place.primary);
            if let Some(backup) = place.backup.filter(|backup| backup.in_step) {
                let server = counting.entry((place.shard, place.generation)).or_insert(backup.server);
                prop_assert_eq!(*server, backup.server);
            }
        }
    }
}
