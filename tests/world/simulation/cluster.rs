//! What servers keep and tell each other: words of hosts to control, maps and checkpoints to disks and stores, and what must hold of them.

use std::sync::Arc;

use slackline_core::config::Durability;
use slackline_core::ids::{Generation, Moment, ServerId, ShardId};
use slackline_core::layout::Layout;
use slackline_core::wire::{Holding, Origin, Place};
use slackline_server_core::control::{Commit, CoordinatorSettings, MapRecord};
use slackline_server_core::replica::{Kept, Role};
use slackline_server_core::{
    Control, ControlEffect, ControlEvent, ControlSettings, HostEffect, HostEvent, ShardEffect, ShardState,
};

use super::agenda::Happening;
use super::lineage::Loaded;
use super::sight::{Verdict, Violation, holds};
use super::store::Part;
use super::world::World;

/// Events that the coordinator's journal has before it begins anew.
const HEARD_MAX: usize = 200;

impl World {
    /// What the control of a server's process is made from.
    pub(crate) fn control_settings(
        &self,
        index: usize,
        boot: u64,
        layout: &Arc<Layout>,
        disk: Vec<Holding>,
    ) -> ControlSettings {
        let (scenario, id) = (&self.scenario, ServerId(index as u32));
        ControlSettings {
            server: id,
            workers: scenario.workers,
            min_workers: scenario.min_workers,
            lease: scenario.lease,
            layout_hash: layout.hash(),
            layout_text: layout.to_string(),
            config_hash: 1,
            boot,
            servers: scenario.servers,
            shards: self
                .partition
                .shards()
                .map(|(shard, _)| (shard, self.partition.server_of(shard)))
                .collect(),
            steps: scenario.steps,
            disk,
            on_disk: scenario.durability == Durability::Disk,
            stop_on_bad_gradient: true,
            coordinator_at: ServerId(0),
            coordinator: (index == 0).then_some(CoordinatorSettings {
                sync: None,
                policy: scenario.policy,
                cut: scenario.cut(),
                blind_loss: 1.0,
                epochs: scenario.epochs,
                evaluate_every_epochs: scenario.evaluate_every_epochs,
                replicas: scenario.replicas,
                keeps_map: true,
                checkpoint_every: scenario.checkpoint_every,
                // A process that goes on with what it has kept is not told.
                resume: self.resumed.clone().filter(|_| self.machines[index].disk.image.is_none()),
            }),
        }
    }

    /// The control of a process that begins, or of the coordinator's that goes on where the one before was; with what it does first.
    pub(crate) fn begin_control(
        &mut self,
        index: usize,
        settings: ControlSettings,
    ) -> (Control, Vec<ControlEffect>) {
        let now = self.time_of(index);
        let mut effects = Vec::new();
        let disk = &self.machines[index].disk;
        let control = match &disk.image {
            Some(image) => {
                let heard = disk.heard.clone();
                let restored =
                    Control::restore(settings, image, heard.into_iter().flatten(), now, &mut effects);
                restored.unwrap_or_else(|error| panic!("the coordinator's state: {error}"))
            }
            None => Control::new(settings, now),
        };
        if index == 0 {
            self.knows_checkpoint = self.resumed.is_some();
            let image = control.state().unwrap_or_else(|error| panic!("the coordinator's state: {error}"));
            let disk = &mut self.machines[index].disk;
            (disk.image, disk.heard_synced) = (Some(image), 0);
            disk.heard.clear();
        }
        (control, effects)
    }

    /// A host or its shard tells control something, over a queue.
    fn tell_control(&mut self, server: usize, event: ControlEvent) {
        let wait = self.chance.micros(1, 2_000);
        let last = self.said_last.get(&server).copied().unwrap_or_default();
        let when = self.now.after(wait).max(Moment(last.0 + 1));
        self.said_last.insert(server, when);
        let boot = self.servers[server].boot;
        self.agenda.at(when, Happening::Said { server, boot, event: Box::new(event) });
    }

    /// What a host has to say to control.
    pub(crate) fn host_says(&mut self, server: usize, shard: ShardId, effect: HostEffect) {
        let event = match effect {
            HostEffect::Leads { generation, has_values, members } => {
                ControlEvent::Leads { shard, generation, has_values, members }
            }
            HostEffect::InStep { generation, backup } => {
                self.counts.in_step += 1;
                ControlEvent::InStep { shard, generation, backup }
            }
            HostEffect::Restored { generation, version, clock } => {
                ControlEvent::Restored { shard, generation, version, clock }
            }
            HostEffect::NotRestored { generation, why } => {
                ControlEvent::NotRestored { shard, generation, why }
            }
            _ => return,
        };
        self.tell_control(server, event);
    }

    /// A primary cannot reach its backup.
    pub(crate) fn out_of_reach(
        &mut self,
        server: usize,
        shard: ShardId,
        generation: Generation,
        backup: ServerId,
    ) {
        self.tell_control(server, ControlEvent::OutOfReach { shard, generation, backup });
    }

    /// What a shard has to say to control.
    pub(crate) fn shard_says(&mut self, server: usize, shard: ShardId, effect: ShardEffect) {
        match effect {
            ShardEffect::HasValues => self.tell_control(server, ControlEvent::HasValues { shard }),
            ShardEffect::Doubt(doubt) => {
                self.counts.doubts += 1;
                self.tell_control(server, ControlEvent::Doubt(doubt));
            }
            ShardEffect::CutMissed { number } => {
                self.tell_control(server, ControlEvent::CutMissed { number, shard });
            }
            ShardEffect::Cut { number, state } => {
                let (boot, when) = (self.servers[server].boot, self.disk_is_done(server));
                self.agenda.at(when, Happening::Saved { server, boot, number, state });
            }
            _ => {}
        }
    }

    /// A shard's part of a checkpoint is in the store.
    pub(crate) fn part_saved(&mut self, server: usize, number: u64, state: ShardState) -> Verdict {
        let shard = state.shard;
        let entry = format!("{number} {shard} {:016x}", state.hash()).into_bytes();
        self.store.checkpoints.entry(number).or_default().parts.insert(shard, state);
        self.control_event(server, ControlEvent::Saved { number, shard, entry })
    }

    /// The coordinator's map goes to its disk.
    pub(crate) fn persist(&mut self, server: usize, record: &MapRecord) {
        let when = self.disk_is_done(server);
        let (boot, number) = (self.servers[server].boot, record.number);
        self.agenda.at(when, Happening::Kept { boot, number });
    }

    /// The coordinator's journal is synced up to some event: what followed from those leaves, and what came meanwhile is synced next.
    pub(crate) fn noted_to(&mut self, upto: usize) -> Verdict {
        let state = &mut self.servers[0];
        let disk = &mut self.machines[0].disk;
        disk.heard_synced = disk.heard_synced.max(upto - state.imaged);
        let leave = upto.saturating_sub(state.let_out).min(state.withheld.len());
        state.let_out += leave;
        let effects: Vec<ControlEffect> = state.withheld.drain(..leave).flatten().collect();
        self.perform_all(0, effects)?;
        self.sync_heard();
        self.image();
        Ok(())
    }

    /// The coordinator's journal does not grow for ever: once in a while it begins anew with what the coordinator is.
    fn image(&mut self) {
        let state = &mut self.servers[0];
        let disk = &mut self.machines[0].disk;
        if disk.heard.len() < HEARD_MAX || !state.withheld.is_empty() || !state.up {
            return;
        }
        let image = state.control.state().unwrap_or_else(|error| panic!("the coordinator's state: {error}"));
        disk.image = Some(image);
        disk.heard.clear();
        (disk.heard_synced, state.imaged) = (0, state.let_out);
    }

    fn sync_heard(&mut self) {
        let state = &mut self.servers[0];
        state.is_syncing = !state.withheld.is_empty();
        if !state.is_syncing || !state.up {
            return;
        }
        let (boot, upto) = (state.boot, state.let_out + state.withheld.len());
        let when = self.disk_is_done(0);
        self.agenda.at(when, Happening::Noted { boot, upto });
    }

    /// The coordinator has heard something: where that counts (else there is none) it is kept before anything that follows from it leaves.
    pub(crate) fn hear(&mut self, moment: Moment, event: Option<ControlEvent>, effects: Vec<ControlEffect>) {
        let disk = &mut self.machines[0].disk;
        disk.heard.push(event.map(|event| (moment, event)));
        let state = &mut self.servers[0];
        state.withheld.push_back(effects);
        if !state.is_syncing {
            // The first sync takes what is there by then; later ones gather.
            self.sync_heard();
        }
    }

    /// The manifest of a checkpoint goes to the store. All its parts must be there, and be of one cut.
    pub(crate) fn commit(&mut self, server: usize, commit: &Commit) {
        let when = self.disk_is_done(server);
        let boot = self.servers[server].boot;
        let checkpoint = self.store.checkpoints.entry(commit.number).or_default();
        (checkpoint.mark, checkpoint.position) = (commit.cut.clone(), commit.position.clone());
        self.committing.insert(commit.number, commit.parts.clone());
        self.agenda.at(when, Happening::Sealed { boot, number: commit.number });
    }

    /// It is there.
    pub(crate) fn sealed(&mut self, number: u64) -> Verdict {
        let parts = self.committing.remove(&number).unwrap_or_default();
        let checkpoint = self.store.checkpoints.entry(number).or_default();
        for (shard, entry) in &parts {
            let part = checkpoint.parts.get(shard);
            let found = part.map(|part| format!("{number} {shard} {:016x}", part.hash()).into_bytes());
            holds("checkpoints are whole", found.as_ref() == Some(entry), || {
                format!("checkpoint {number} names a part of {shard} that is not in the store")
            })?;
        }
        checkpoint.named = Some(parts.iter().map(|(shard, _)| *shard).collect());
        self.counts.checkpoints += 1;
        self.knows_checkpoint = true;
        self.one_cut(number)?;
        self.control_event(0, ControlEvent::Committed { number })
    }

    /// All parts of a checkpoint have the same steps of every worker, where steps are whole.
    fn one_cut(&self, number: u64) -> Verdict {
        let Some(checkpoint) = self.store.checkpoints.get(&number) else { return Ok(()) };
        let shards: Vec<ShardId> = self.lineages.keys().copied().collect();
        let named = checkpoint.named.clone().unwrap_or_default();
        holds("checkpoints are whole", shards.iter().all(|shard| named.contains(shard)), || {
            format!("checkpoint {number} has parts of {named:?} and not of all of {shards:?}")
        })
    }

    /// A state that a host asked for is there, or not.
    pub(crate) fn fetch(&mut self, server: usize, shard: ShardId, place: &Place) {
        let (generation, boot) = (place.generation, self.servers[server].boot);
        let mut of = None;
        let (loaded, marked) = match place.origin {
            Origin::Disk => {
                let disk = &self.machines[server].disk;
                of = disk.generation_of(shard);
                let since = self.servers[server].since.get(&shard).copied();
                let kept = disk.read(shard).filter(|_| of >= since);
                (kept.ok_or_else(|| format!("there is no journal of {shard}")), None)
            }
            Origin::Checkpoint { number } => {
                let keys = self.partition.range(shard);
                let is_same_run = self.servers[server].resumed != Some(number);
                match self.store.part(number, (shard, keys), is_same_run) {
                    Ok(Part { state, cut, is_lossy }) => (Ok(Kept::from(state)), Some((cut, is_lossy))),
                    Err(text) => (Err(text), None),
                }
            }
            Origin::Nothing | Origin::Memory => (Err("it has no state".to_owned()), None),
        };
        if let Ok(kept) = &loaded {
            let index = kept.entries.last().map_or(kept.index, |entry| entry.index);
            self.loaded.insert((server, boot, shard), Loaded { index, marked, of });
        }
        self.put_host(server, shard, HostEvent::Loaded { generation, loaded });
    }

    /// Something leaves a host: only one server may let anything out in one generation.
    pub(crate) fn lets_out(
        &mut self,
        server: usize,
        shard: ShardId,
        generation: Generation,
        effect: &ShardEffect,
    ) -> Verdict {
        if matches!(effect, ShardEffect::Recycle(_) | ShardEffect::Notice(_)) {
            return Ok(());
        }
        let by = (server, self.servers[server].boot);
        let first = *self.led_by.entry((shard, generation)).or_insert(by);
        holds("one leader", first == by, || {
            format!(
                "{shard} is led in {generation} by server {first:?} and by {by:?}, which lets out {effect:?}"
            )
        })
    }

    /// Whether what was acknowledged must be kept when another copy of a shard takes over.
    pub(crate) fn is_kept(&self) -> bool {
        self.scenario.durability != Durability::Memory
    }

    /// After the run the copies of every shard are equal, as far as they have the same entries.
    pub(crate) fn copies_are_equal(&self) -> Result<(), Violation> {
        for (shard, lineage) in &self.lineages {
            let Some((leader, boot, generation)) = lineage.leader else { continue };
            let (server, twin) = (&self.servers[leader], &lineage.twin);
            let Some(host) = server.hosts.get(shard).filter(|_| server.boot == boot) else { continue };
            let row = host.row();
            for (other, follower) in self.servers.iter().enumerate() {
                let Some(copy) = follower.hosts.get(shard).filter(|_| other != leader) else { continue };
                let copied = copy.row();
                let is_copy = copied.role == Role::Following && copied.generation == generation;
                if !is_copy || copied.index != row.index {
                    continue;
                }
                let hash = copy.shard().map(|shard| shard.state().hash());
                holds("copies are equal", hash == Some(twin.state().hash()), || {
                    format!(
                        "{shard} on server {other} is not what it is on server {leader}, at entry {}",
                        row.index.0
                    )
                })?;
            }
        }
        Ok(())
    }
}
