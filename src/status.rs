//! `slackline status`: who is connected, each worker's clock, who waits for whom and since when.

use std::fmt::Write as _;
use std::path::Path;

use slackline_core::wire::{Phase, Status};
use slackline_net::Identity;

use crate::cli::StatusArgs;
use crate::failure::Failure;
use crate::observer::{Observer, connector};
use crate::{print, resolve};

pub(crate) fn show(args: &StatusArgs) -> Result<u8, Failure> {
    let resolved = resolve(&args.configured)?;
    let addresses = resolved.addresses().map_err(Failure::user)?;
    let role = slackline_net::keys::role(&args.role)
        .ok_or_else(|| Failure::user(format!("--role {}: observer, admin, worker or server", args.role)))?;
    let identity = Identity::load(Path::new(&resolved.config.cluster.keys), role).map_err(Failure::user)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::world)?;
    let mut unreachable = 0;
    runtime.block_on(async {
        let connector = connector(&resolved.config, &identity).map_err(Failure::user)?;
        for (index, address) in addresses.iter().enumerate() {
            let asked = async { Observer::connect(&connector, address).await?.status().await };
            match asked.await {
                Ok(status) => print(&render(address, &status))?,
                Err(text) => {
                    unreachable += 1;
                    print(&format!("server {index} at {address}: {text}\n"))?
                }
            };
        }
        connector.close(slackline_net::CloseCode::Done, "").await;
        Ok::<_, Failure>(())
    })?;
    if unreachable > 0 {
        return Err(Failure::world(format!("{unreachable} of {} servers did not answer", addresses.len())));
    }
    Ok(0)
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
