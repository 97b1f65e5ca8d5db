//! Every wait for another worker has a name: for whom, where in the run, and when it was last heard. Since when is the pure worker's
//! business.

use super::Peers;
use super::current::Current;

impl Peers {
    /// Who is waited for now, in words.
    pub(crate) fn awaited(&self) -> Option<String> {
        self.current.as_ref()?.awaited()
    }
}

impl Current {
    fn awaited(&self) -> Option<String> {
        if !self.is_met {
            let missing = self.missing()?;
            let last = self.last_words.get(&missing).map_or_else(String::new, |text| format!(" ({text})"));
            return Some(format!("{} is not met yet{last}", self.meeting.named(missing)));
        }
        if let Some(fetch) = self.circle.fetch().as_ref() {
            return Some(format!(
                "{}, for its values after {}{}",
                self.named(fetch.from),
                fetch.clock,
                self.heard(fetch.from)
            ));
        }
        let missing = self.circle.reducing().as_ref()?.missing()?;
        let place = format!("at {}, bucket {} of {}", missing.clock, missing.bucket, missing.buckets);
        Some(format!("{}, {place}{}", self.named(missing.from), self.heard(missing.from)))
    }

    fn named(&self, position: u32) -> String {
        self.meeting.named(position)
    }

    fn heard(&self, position: u32) -> String {
        let Some(link) = self.links.get(&position) else {
            let how = if self.departed.contains_key(&position) { "has left the group" } else { "is gone" };
            return format!(", which {how}");
        };
        let how = if link.has_left() { "it has said that it needs nothing more, and was " } else { "" };
        format!("; {how}last heard {:.1} s ago", link.heard().elapsed().as_secs_f64())
    }
}
