//! What the control loop says in the log.

use std::path::Path;
use std::time::Instant;

use slackline_server_core::Notice;
use slackline_server_core::assign::Repeats;
use slackline_server_core::control::ClusterNotice;
use slackline_server_core::record::Figures;

use super::Daemon;

impl Daemon {
    /// Each thing once, at the level of who must act.
    pub(super) fn say(&mut self, notice: &Notice) {
        match notice {
            Notice::Joined { worker, incarnation, clock, .. } => {
                tracing::info!(worker = worker.0, incarnation = incarnation.0, clock = clock.0, "{notice}");
            }
            Notice::Expired { worker, .. }
            | Notice::BadGradient { worker, .. }
            | Notice::Guarded { worker, .. }
            | Notice::Trouble { worker, .. } => {
                tracing::warn!(worker = worker.0, "{notice}");
            }
            Notice::WrongRole { role, message, .. } => self.say_refusal(&format!("{role} {message}"), notice),
            Notice::Refused { text, .. } => self.say_refusal(text, notice),
            Notice::Misfit { .. }
            | Notice::Repeated(_)
            | Notice::WentBack { .. }
            | Notice::NotTaken { .. } => tracing::warn!("{notice}"),
            Notice::Left { worker, .. } | Notice::Recovered { worker, .. } => {
                tracing::info!(worker = worker.0, "{notice}");
            }
            Notice::Cluster(
                ClusterNotice::InStep { .. }
                | ClusterNotice::Trouble { what: None, .. }
                | ClusterNotice::Saved { .. }
                | ClusterNotice::Back { .. }
                | ClusterNotice::Goes { waiting: 0, .. },
            ) => tracing::info!("{notice}"),
            // Its own trouble is in this log already.
            Notice::Cluster(ClusterNotice::Trouble { server, .. })
                if *server == self.home.surroundings.server => {}
            Notice::Cluster(_) => tracing::warn!("{notice}"),
            Notice::Grouped { generation, .. } => tracing::info!(group = generation.0, "{notice}"),
            Notice::Started { .. } | Notice::Evaluated { .. } | Notice::Chosen { .. } => {
                tracing::info!("{notice}");
            }
        }
    }

    fn say_refusal(&mut self, kind: &str, notice: &Notice) {
        match self.refusals.may_say(kind, Instant::now()) {
            Some(0) => tracing::warn!("{notice}"),
            Some(unsaid) => tracing::warn!("{notice}; {unsaid} more were before it"),
            None => {}
        }
    }
}

/// The samples that were given out again, with why, for the summary.
pub(super) fn repeated(repeats: &Repeats) -> serde_json::Value {
    let ranges: Vec<_> = repeats.ranges().collect();
    serde_json::json!({ "samples": repeats.samples(), "ranges": ranges, "unlisted": repeats.unlisted() })
}

/// The end of a run in one line.
pub(super) fn result_line(figures: &Figures, folder: &Path) -> String {
    let accuracy = match figures.r#final.test_accuracy {
        Some(accuracy) => format!("test accuracy {:.2} %", 100.0 * accuracy),
        None => "no evaluation".to_owned(),
    };
    let Figures { samples, wall_s, .. } = figures;
    format!(
        "the run is complete: {accuracy}, {samples} samples in {wall_s:.1} s; summary.json, metrics.jsonl and config.toml are in {}",
        folder.display()
    )
}
