//! What becomes of a run when one of its processes ends: whose end it survives, and who is started again.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use slackline_core::config::Resolved;
use slackline_core::ids::ServerId;
use tokio::time::Instant;

use super::{Ends, Run, describe};
use crate::daemons::{ADDRESSES, survives};
use crate::failure::Failure;

impl Run<'_> {
    /// What a server is told whenever it is started.
    pub(super) fn of_server(&self, index: usize, bind: String) -> Vec<String> {
        let mut extra = vec!["--index".to_owned(), index.to_string(), "--bind".to_owned(), bind];
        extra.extend(self.trace.then(|| "--trace".to_owned()));
        extra.extend(self.resume.iter().flat_map(|at| ["--resume".to_owned(), at.clone()]));
        extra
    }

    /// Starts a server that was killed or told to go again, at its address. One that does not live for a lease is not started once more.
    async fn restart(&mut self, index: usize) -> Result<(), Failure> {
        let mut extra = self.of_server(index, self.addresses[index].clone());
        extra.push("--again".to_owned());
        let mut child = self.start("server", index, index, &extra)?;
        child.tell(&format!("{ADDRESSES}{}", self.addresses.join(" "))).await;
        self.children[index] = child;
        self.restarts[index] = Some(Instant::now());
        Ok(())
    }

    /// Whether a server that is gone can be started again, and its shards be had again.
    fn comes_again(&self, index: usize) -> bool {
        let lease = Duration::from_secs_f64(self.config.cluster.lease_s);
        let long_ago =
            self.restarts.get(index).is_some_and(|last| last.is_none_or(|last| last.elapsed() > lease));
        survives(self.config) && long_ago
    }

    /// Whether the others go on when a signal has ended this worker: its lease ends its part, and its work is given to them.
    fn can_spare(&self, index: usize, servers: usize) -> bool {
        let others = self.children[servers..].iter().enumerate();
        let left = others.filter(|(other, child)| servers + other != index && child.ended.is_none()).count();
        let least = self.config.cluster.min_workers.unwrap_or(1) as usize;
        let survives = self.config.sync.as_ref().is_none_or(|sync| sync.elastic);
        survives && left >= least.max(1)
    }

    /// Whether this worker was the last one, and the coordinator may still keep what all have trained, where they had used all samples. It
    /// says so once the lease of whoever was killed is over.
    fn may_be_kept(&self, index: usize, servers: usize) -> bool {
        let mut others = self.children[servers..].iter().enumerate();
        let is_last = others.all(|(other, child)| servers + other == index || child.ended.is_some());
        is_last && self.config.checkpoint.every.is_some() && self.config.sync.is_none()
    }

    /// Why a run that is given up has failed: where its last worker was killed, because of that first of all.
    pub(super) fn given_up(&mut self, text: &str) -> Failure {
        match self.lost.take() {
            Some(Failure { code, text: lost }) => Failure { code, text: format!("{lost}; {text}") },
            None => Failure::world(text),
        }
    }

    /// A child has ended: what becomes of the run, which fails where that may not be.
    pub(super) async fn ended(
        &mut self,
        index: usize,
        status: std::io::Result<ExitStatus>,
        servers: usize,
        ends: &Ends,
    ) -> Result<(), Failure> {
        let name = self.children[index].name.clone();
        match status {
            // The coordinator ends the other servers, and some are faster at that than it is itself.
            Ok(status)
                if status.success() && (index == 0 || index >= servers || ends.last_worker.is_some()) =>
            {
                self.children[index].ended = Some(status);
            }
            Ok(status) if status.code().is_none() && index >= servers && self.can_spare(index, servers) => {
                let (_, how) = describe(status);
                self.children[index].ended = Some(status);
                self.display.say(&format!("{name} ended ({how}); the others go on without it"));
            }
            Ok(status) if status.code().is_none() && index >= servers && self.may_be_kept(index, servers) => {
                let lost = self.failed(index, Ok(status));
                self.display.say(&lost.text);
                self.lost = Some(lost);
            }
            // Server 0 is the coordinator: without it a run that it ends cleanly is over.
            Ok(status) if index < servers && may_come_again(index, status) && self.comes_again(index) => {
                let (_, how) = describe(status);
                self.display.say(&format!("{name} ended ({how}) and is started again"));
                self.restart(index).await?;
            }
            status => return Err(self.failed(index, status)),
        }
        Ok(())
    }

    /// Removes what servers that were told to go have left for processes in their place.
    pub(super) fn forget_states(&self, resolved: &Resolved) {
        let started = self.children.len().min(self.config.servers as usize);
        for index in (0..started).filter(|_| survives(self.config)) {
            let server = ServerId(index as u32);
            if let Err(error) = slackline_server::forget(resolved, Path::new(&self.config.out), server) {
                self.display.say(&format!("what {server} has left cannot be removed: {error}"));
            }
        }
    }
}

/// Whether a server that ended like this did not fail: a signal ended it, or it was told to go and went.
fn may_come_again(index: usize, status: ExitStatus) -> bool {
    status.code().is_none() || (index > 0 && status.success())
}
