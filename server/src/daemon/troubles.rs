//! What this server cannot do at present and the user must know: its own log has all of it, and the first of it goes to the coordinator.

use std::collections::BTreeMap;

use slackline_core::ids::ShardId;

/// Where there is trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// The journal of a shard.
    Journal(ShardId),
    /// The memory of the coordinator.
    Ledger,
    /// The store of checkpoints.
    Store,
}

impl Place {
    fn is_well(self) -> String {
        match self {
            Self::Journal(shard) => format!("the journal of {shard} can be written again"),
            Self::Ledger => "the coordinator's memory can be kept again".to_owned(),
            Self::Store => "checkpoints can be stored again".to_owned(),
        }
    }
}

/// All trouble there is.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    now: BTreeMap<Place, String>,
    said: Option<String>,
}

impl Troubles {
    /// Takes note of trouble or of its end. What is to be told, where that changes it: the first of all that there is, or that there is none.
    #[expect(clippy::option_option, reason = "nothing new, the end of it, or what it is")]
    pub(super) fn note(&mut self, place: Place, text: Option<String>) -> Option<Option<String>> {
        if self.now.get(&place) != text.as_ref() {
            match &text {
                Some(text) if place == Place::Ledger => {
                    tracing::warn!("{text}; nothing goes on before it can be")
                }
                Some(text) => tracing::warn!("{text}"),
                None => tracing::info!("{}", place.is_well()),
            }
        }
        match text {
            Some(text) => _ = self.now.insert(place, text),
            None => _ = self.now.remove(&place),
        }
        let first = self.now.values().next().cloned();
        if first == self.said {
            return None;
        }
        self.said.clone_from(&first);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_once_and_its_end_when_all_of_it_is_over() {
        let mut troubles = Troubles::default();
        let full = Some("full".to_owned());
        assert_eq!(troubles.note(Place::Journal(ShardId(1)), full.clone()), Some(full.clone()));
        assert_eq!(troubles.note(Place::Journal(ShardId(2)), full.clone()), None);
        assert_eq!(troubles.note(Place::Journal(ShardId(1)), None), None);
        assert_eq!(troubles.note(Place::Journal(ShardId(2)), None), Some(None));
        assert_eq!(troubles.note(Place::Store, None), None);
    }
}
