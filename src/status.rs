//! `slackline status`: who is connected, each worker's clock, who waits for whom and since when.

use std::fmt::Write as _;

use slackline_core::ids::WorkerId;
use slackline_core::wire::{Phase, Status};

use crate::cli::StatusArgs;
use crate::failure::Failure;
use crate::observer::visit;

/// Missing workers that are named.
const NAMED_MAX: usize = 8;

pub(crate) fn show(args: &StatusArgs) -> Result<u8, Failure> {
    let role = slackline_net::keys::role(&args.role)
        .ok_or_else(|| Failure::user(format!("--role {}: observer, admin, worker or server", args.role)))?;
    visit(&args.clustered, role, "did not answer", async |server, address| {
        server.status().await.map(|status| render(address, &status))
    })
}

fn render(address: &str, status: &Status) -> String {
    let mut out = String::new();
    // Writing to a text cannot fail; the results are dropped.
    let _ = write!(out, "{} at {address}: ", status.server);
    let _ = match &status.phase {
        Phase::Waiting { here, wanted, since_ms } => {
            writeln!(out, "waiting for workers, {here} of {wanted} here, for {} s", since_ms / 1000)
        }
        Phase::Running => writeln!(out, "running"),
        Phase::Finished => writeln!(out, "finished"),
        Phase::Failed(text) => writeln!(out, "failed: {text}"),
    };
    if let Some(missing) = missing(status) {
        let _ = writeln!(out, "  missing: {missing}");
    }
    if let Some(progress) = &status.progress {
        let _ = writeln!(
            out,
            "  {} of {} samples, {:.0} samples/s, loss {:.4}, waiting {:.0} %",
            progress.samples,
            progress.samples_total,
            progress.samples_per_s,
            progress.loss,
            100.0 * progress.waiting
        );
    }
    for shard in &status.shards {
        let minimum = shard
            .minimum
            .map_or_else(|| "nobody in its clock table".to_owned(), |clock| format!("minimum {clock}"));
        let values = if shard.has_values { "" } else { ", no values yet" };
        let _ =
            writeln!(out, "  {}: {} keys, {}, {minimum}{values}", shard.shard, shard.keys.len, shard.version);
    }
    for member in &status.members {
        let clock = member.clock.map_or_else(String::new, |clock| format!(", {clock}"));
        let _ = writeln!(
            out,
            "  {} ({}) from {}{clock}, heard {:.1} s ago",
            member.worker,
            member.incarnation,
            member.address,
            member.heard_ms as f64 / 1000.0
        );
    }
    if status.members_hidden > 0 {
        let _ = writeln!(out, "  and {} workers more", status.members_hidden);
    }
    for held in &status.held {
        let seconds = held.since_ms as f64 / 1000.0;
        let _ = writeln!(
            out,
            "  {} at {} {} ({}, {seconds:.1} s)",
            held.worker, held.clock, held.reason, held.shard
        );
    }
    let refused = &status.refused;
    if refused.handshake + refused.role + refused.malformed + refused.fenced > 0 {
        let _ = writeln!(
            out,
            "  turned away: {} handshakes, {} for their role, {} malformed, {} fenced",
            refused.handshake, refused.role, refused.malformed, refused.fenced
        );
    }
    out
}

/// The workers that a run which has not begun waits for; none where not all rows are there to tell.
fn missing(status: &Status) -> Option<String> {
    let Phase::Waiting { wanted, .. } = status.phase else { return None };
    if status.members_hidden > 0 {
        return None;
    }
    let is_here = |worker: &WorkerId| status.members.iter().any(|member| member.worker == *worker);
    let missing: Vec<_> = (0..wanted).map(WorkerId).filter(|worker| !is_here(worker)).collect();
    let named: Vec<_> = missing.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = missing.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!missing.is_empty()).then(|| named.join(", ") + &more)
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::{Incarnation, ServerId};
    use slackline_core::wire::{MemberRow, RefusedCounts, Text};

    use super::*;

    fn status(here: &[u32], wanted: u32) -> Status {
        let member = |worker: &u32| MemberRow {
            worker: WorkerId(*worker),
            incarnation: Incarnation(1),
            address: Text::new("here"),
            clock: None,
            heard_ms: 0,
        };
        Status {
            server: ServerId(0),
            phase: Phase::Waiting { here: here.len() as u32, wanted, since_ms: 0 },
            progress: None,
            members: here.iter().map(member).collect(),
            members_hidden: 0,
            held: Vec::new(),
            shards: Vec::new(),
            refused: RefusedCounts::default(),
        }
    }

    #[test]
    fn missing_workers_are_named_while_they_are_waited_for() {
        assert!(render("a:1", &status(&[0, 2], 4)).contains("\n  missing: worker 1, worker 3\n"));
        assert_eq!(missing(&status(&[0, 1], 2)), None);
        assert_eq!(missing(&Status { phase: Phase::Running, ..status(&[0], 2) }), None);
        assert_eq!(missing(&Status { members_hidden: 1, ..status(&[0], 2) }), None);
        let many = missing(&status(&[], 11)).unwrap();
        assert!(many.starts_with("worker 0, ") && many.ends_with("worker 7 and 3 more"), "{many}");
    }
}
