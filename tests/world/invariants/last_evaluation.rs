//! The last evaluation measures the final values: no gradient comes after it while nobody dies.

use slackline_core::consistency::PolicySpec;

use crate::simulation::sight::{Law, Sight, Verdict, holds};

const LAW: &str = "last evaluation";

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LastEvaluation {
    measured: Option<Vec<f32>>,
    disturbed: bool,
}

impl Law for LastEvaluation {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        match sight {
            Sight::Disturbed | Sight::Changed => self.disturbed = true,
            Sight::Measures { values } => self.measured = Some(values.to_vec()),
            Sight::Over { scenario, shards, .. } => {
                let last: Vec<f32> =
                    shards.iter().filter_map(|shard| shard.values()).flatten().copied().collect();
                let is_there = self.measured.is_some();
                holds(LAW, is_there, || "nobody measured the final values".to_owned())?;
                // What is left in a buffer is applied when the last worker goes.
                let is_buffered = matches!(scenario.policy, PolicySpec::Buffer { .. });
                let is_last = self.measured.as_ref() == Some(&last);
                return holds(LAW, self.disturbed || is_last || is_buffered, || {
                    "the values changed after it".to_owned()
                });
            }
            _ => {}
        }
        Ok(())
    }
}
