//! `slackline status`: who is connected, each worker's clock, who waits for whom and since when.

use std::fmt::Write as _;

use slackline_core::wire::{FinalValues, Phase, ServerRow, Status};

use crate::cli::StatusArgs;
use crate::failure::Failure;
use crate::observer::visit;

pub(crate) fn show(args: &StatusArgs) -> Result<u8, Failure> {
    let role = slackline_net::keys::role(&args.role)
        .ok_or_else(|| Failure::user(format!("--role {}: observer, admin, worker or server", args.role)))?;
    visit(&args.clustered, role, "did not answer", async |server, address| {
        server.status().await.map(|status| render(address, &status))
    })
}

/// Where the final values are, as the end of a sentence.
fn kept_at(values: &FinalValues) -> String {
    match values {
        FinalValues::Unkept => String::new(),
        FinalValues::Keeping => "; a checkpoint of the final values is being made".to_owned(),
        FinalValues::Kept { number } => format!("; checkpoint {number} has the final values"),
    }
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
        Phase::Left(values) => {
            writeln!(out, "all samples are used, and the final evaluation is not made{}", kept_at(values))
        }
    };
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
    for wait in &status.waits {
        let _ = writeln!(out, "  waits {:.1} s: {}", seconds(wait.since_ms), wait.text);
    }
    for server in &status.servers {
        out.push_str(&server_line(server));
    }
    if status.servers_hidden > 0 {
        let _ = writeln!(out, "  and {} servers more", status.servers_hidden);
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
            seconds(member.heard_ms)
        );
    }
    if status.members_hidden > 0 {
        let _ = writeln!(out, "  and {} workers more", status.members_hidden);
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

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

fn server_line(row: &ServerRow) -> String {
    let address = row.address.shown();
    let at = if address.is_empty() { String::new() } else { format!(" at {address}") };
    let life = match (row.heard_ms, row.is_alive) {
        (None, _) => "not here yet".to_owned(),
        (Some(heard), true) => format!("heard {:.1} s ago", seconds(heard)),
        (Some(heard), false) => format!("lost, last heard {:.1} s ago", seconds(heard)),
    };
    let roles = format!("primary of {}, backup of {}", row.primaries, row.backups);
    let process = row.boot.map_or_else(String::new, |boot| format!(", process {boot:016x}"));
    let trouble = row.trouble.shown();
    let trouble = if trouble.is_empty() { trouble } else { format!(": {trouble}") };
    format!("  {}{at}: {life}, {roles}{process}{trouble}\n", row.server)
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::{Incarnation, ServerId, WorkerId};
    use slackline_core::wire::{MemberRow, RefusedCounts, Text, WaitRow};

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
            servers: Vec::new(),
            servers_hidden: 0,
            places: Vec::new(),
            waits: Vec::new(),
        }
    }

    #[test]
    fn what_is_waited_for_comes_first_and_the_longest_wait_on_top() {
        let wait = |since_ms, text: &str| WaitRow { since_ms, text: Text::new(text) };
        let server = ServerRow {
            server: ServerId(1),
            address: Text::new("10.0.0.1:4400"),
            boot: Some(0xab),
            heard_ms: Some(4200),
            is_alive: true,
            primaries: 2,
            backups: 1,
            trouble: Text::new("the disk is full"),
        };
        let gone = ServerRow {
            server: ServerId(2),
            address: Text::default(),
            boot: None,
            is_alive: false,
            trouble: Text::default(),
            ..server.clone()
        };
        let never = ServerRow { server: ServerId(3), heard_ms: None, ..gone.clone() };
        let status = Status {
            phase: Phase::Running,
            waits: vec![wait(12_340, "worker 1 waits"), wait(4200, "server 1 is silent")],
            servers: vec![server, gone, never],
            servers_hidden: 2,
            ..status(&[0], 2)
        };
        let expected = "server 0 at a:1: running
  waits 12.3 s: worker 1 waits
  waits 4.2 s: server 1 is silent
  server 1 at 10.0.0.1:4400: heard 4.2 s ago, primary of 2, backup of 1, process 00000000000000ab: the disk is full
  server 2: lost, last heard 4.2 s ago, primary of 2, backup of 1
  server 3: not here yet, primary of 2, backup of 1
  and 2 servers more
  worker 0 (incarnation 1) from here, heard 0.0 s ago
";
        assert_eq!(render("a:1", &status), expected);
    }
}
