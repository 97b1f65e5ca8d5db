//! What a run has exercised: a world in which a kind of fault never happens proves nothing about it.

/// How often each kind of thing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) worker_crashes: u64,
    pub(crate) worker_freezes: u64,
    /// Workers that came after the beginning or were told to go.
    pub(crate) changes: u64,
    /// Looks of the coordinator at the time while fewer workers were there than the run needs to go on.
    pub(crate) too_few: u64,
    pub(crate) duplicates: u64,
    /// Transfers that arrive before one that was sent earlier over the same connection.
    pub(crate) overtakings: u64,
    pub(crate) crashes: u64,
    pub(crate) told_to_go: u64,
    pub(crate) disks_lost: u64,
    pub(crate) freezes: u64,
    pub(crate) partings: u64,
    pub(crate) clock_jumps: u64,
    pub(crate) slow_disks: u64,
    pub(crate) full_disks: u64,
    pub(crate) coordinator_restarts: u64,
    pub(crate) promotions: u64,
    pub(crate) disk_restores: u64,
    /// Of those from a disk: where it was a former primary's.
    pub(crate) returns: u64,
    pub(crate) checkpoint_restores: u64,
    /// Runs that went back to a checkpoint as a whole.
    pub(crate) went_back: u64,
    /// Copies that were away when their primary had lost the shard.
    pub(crate) copies_awaited: u64,
    pub(crate) checkpoints: u64,
    pub(crate) fences: u64,
    pub(crate) doubts: u64,
    pub(crate) in_step: u64,
    /// Entries of primaries that nobody else had when another copy took over.
    pub(crate) cut_entries: u64,
    /// Events that waited for copies.
    pub(crate) waited: u64,
    /// Runs that ended by name, since a state was gone.
    pub(crate) lost_runs: u64,
    /// Shards that began with a checkpoint of another life of the run.
    pub(crate) resumed: u64,
    /// Snapshots that observers were served.
    pub(crate) looks: u64,
    pub(crate) statuses: u64,
    /// Pulls for the iteration after the one that was computed.
    pub(crate) ahead: u64,
    /// Pulls that a push brought with it.
    pub(crate) brought: u64,
    /// Answers that said that nothing has changed.
    pub(crate) unchanged: u64,
    /// Parts of gradients that left before the gradient was whole.
    pub(crate) early: u64,
    /// Gradients that were begun with the values of some shards.
    pub(crate) begun_early: u64,
}

impl Counts {
    /// The counts with their names.
    pub(crate) const fn named(&self) -> [(&'static str, u64); 36] {
        [
            ("workers crashed", self.worker_crashes),
            ("workers frozen", self.worker_freezes),
            ("workers that came or went", self.changes),
            ("looks at a run with too few workers", self.too_few),
            ("pushes that arrived twice", self.duplicates),
            ("transfers that overtook another", self.overtakings),
            ("servers crashed", self.crashes),
            ("servers told to go", self.told_to_go),
            ("disks lost", self.disks_lost),
            ("servers frozen", self.freezes),
            ("ways between servers cut", self.partings),
            ("clocks jumped", self.clock_jumps),
            ("slow disks", self.slow_disks),
            ("full disks", self.full_disks),
            ("restarts of the coordinator", self.coordinator_restarts),
            ("promotions", self.promotions),
            ("restores from disk", self.disk_restores),
            ("returns to a former primary's disk", self.returns),
            ("restores from a checkpoint", self.checkpoint_restores),
            ("runs that went back to a checkpoint as a whole", self.went_back),
            ("copies that were waited for", self.copies_awaited),
            ("checkpoints", self.checkpoints),
            ("workers fenced", self.fences),
            ("doubts", self.doubts),
            ("backups in step", self.in_step),
            ("entries cut", self.cut_entries),
            ("events that waited for copies", self.waited),
            ("runs that were lost by name", self.lost_runs),
            ("shards that went on from a former life", self.resumed),
            ("snapshots for observers", self.looks),
            ("statuses for observers", self.statuses),
            ("pulls that were ahead of a push", self.ahead),
            ("pulls that a push brought", self.brought),
            ("answers without values", self.unchanged),
            ("parts that left before their gradient", self.early),
            ("gradients that were begun without all values", self.begun_early),
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.worker_crashes += other.worker_crashes;
        self.worker_freezes += other.worker_freezes;
        self.changes += other.changes;
        self.too_few += other.too_few;
        self.duplicates += other.duplicates;
        self.overtakings += other.overtakings;
        self.crashes += other.crashes;
        self.told_to_go += other.told_to_go;
        self.disks_lost += other.disks_lost;
        self.freezes += other.freezes;
        self.partings += other.partings;
        self.clock_jumps += other.clock_jumps;
        self.slow_disks += other.slow_disks;
        self.full_disks += other.full_disks;
        self.coordinator_restarts += other.coordinator_restarts;
        self.promotions += other.promotions;
        self.disk_restores += other.disk_restores;
        self.returns += other.returns;
        self.checkpoint_restores += other.checkpoint_restores;
        self.went_back += other.went_back;
        self.copies_awaited += other.copies_awaited;
        self.checkpoints += other.checkpoints;
        self.fences += other.fences;
        self.doubts += other.doubts;
        self.in_step += other.in_step;
        self.cut_entries += other.cut_entries;
        self.waited += other.waited;
        self.lost_runs += other.lost_runs;
        self.resumed += other.resumed;
        self.looks += other.looks;
        self.statuses += other.statuses;
        self.ahead += other.ahead;
        self.brought += other.brought;
        self.unchanged += other.unchanged;
        self.early += other.early;
        self.begun_early += other.begun_early;
    }
}
