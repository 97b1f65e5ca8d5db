//! A plan: which faults befall a cluster, how often, and how many at once. A TOML file; `configs/chaos/rough.toml` is the example.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Why there is no plan. For the user to put right.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error("{}: cannot read the plan: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or has a field that no plan has.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser says, with the line.
        message: String,
    },
    /// A value is beyond what it can be.
    #[error("{}: {what}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which, and what is allowed.
        what: String,
    },
    /// There is no such scale.
    #[error("{}: there is no scale \"{scale}\"; it has {known}", path.display())]
    Scale {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        scale: String,
        /// The scales that the file has.
        known: String,
    },
}

/// What befalls a cluster.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What the plan is for, in a line.
    pub about: String,
    /// Seconds from the first fault to the last.
    pub duration_s: f64,
    /// Seconds from one fault to the next, on average; each gap is drawn evenly from half of it to one and a half.
    pub every_s: f64,
    /// Seconds of training before the first fault.
    pub calm_s: f64,
    /// How many may be away at once.
    pub limits: Limits,
    /// The kinds of fault.
    #[serde(rename = "fault")]
    pub faults: Vec<Kind>,
    /// What a scale changes.
    #[serde(default)]
    pub(crate) scale: BTreeMap<String, Scale>,
}

/// How many may be away at once. A fault that would take one more is put off.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Workers that are dead, frozen or cut off.
    pub workers: u32,
    /// Servers that are dead, frozen, cut off or whose disk is full.
    pub servers: u32,
    /// Whether server 0 may be among them.
    pub coordinator: bool,
    /// Seconds after a server is back before the next one may go: its copies must be in step again.
    pub server_rest_s: f64,
}

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// What happens.
    pub kind: What,
    /// Whom it can befall.
    pub whom: Whom,
    /// How often, against the other kinds.
    pub weight: f64,
    /// How long it lasts, in seconds: drawn evenly between the two. A killed process is started again afterwards.
    pub for_s: [f64; 2],
    /// Packets that are lost, for `loss`.
    #[serde(default)]
    pub share: f64,
    /// Seconds that each packet comes later, for `delay`.
    #[serde(default)]
    pub delay_s: f64,
}

/// What can befall a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// SIGKILL; started again afterwards.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Freeze,
    /// No packet passes to or from it.
    Cut,
    /// Packets are lost.
    Loss,
    /// Packets are late.
    Delay,
    /// The disk that it keeps its state on is full.
    FullDisk,
}

/// Whom a fault befalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whom {
    /// One of the workers.
    Worker,
    /// One of the servers.
    Server,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scale {
    duration_s: Option<f64>,
    every_s: Option<f64>,
    calm_s: Option<f64>,
}

impl Plan {
    /// Reads a plan; `scale` is the name of one of its scales, none for the plan as it stands.
    ///
    /// # Errors
    /// Any [`PlanError`].
    pub fn read(path: &Path, scale: Option<&str>) -> Result<Self, PlanError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PlanError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, path, scale)
    }

    fn parse(text: &str, path: &Path, scale: Option<&str>) -> Result<Self, PlanError> {
        let mut plan: Self = toml::from_str(text).map_err(|error| {
            let message = error.to_string().trim().replace('\n', " ");
            PlanError::Syntax { path: path.to_owned(), message }
        })?;
        if let Some(name) = scale.filter(|name| *name != "full") {
            let Some(scale) = plan.scale.get(name).copied() else {
                let names: Vec<&str> = plan.scale.keys().map(String::as_str).chain(["full"]).collect();
                let known = names.join(", ");
                return Err(PlanError::Scale { path: path.to_owned(), scale: name.to_owned(), known });
            };
            plan.duration_s = scale.duration_s.unwrap_or(plan.duration_s);
            plan.every_s = scale.every_s.unwrap_or(plan.every_s);
            plan.calm_s = scale.calm_s.unwrap_or(plan.calm_s);
        }
        match plan.fault() {
            Some(what) => Err(PlanError::Value { path: path.to_owned(), what }),
            None => Ok(plan),
        }
    }

    /// The first value that is beyond what it can be.
    fn fault(&self) -> Option<String> {
        const LONGEST_S: f64 = 86_400.0;
        let is_time = |seconds: f64| (0.0..=LONGEST_S).contains(&seconds);
        for (name, seconds) in [("duration_s", self.duration_s), ("calm_s", self.calm_s)] {
            if !is_time(seconds) {
                return Some(format!("{name} = {seconds}: takes seconds from 0 to a day"));
            }
        }
        if !(0.05..=LONGEST_S).contains(&self.every_s) {
            return Some(format!("every_s = {}: takes seconds from 0.05 to a day", self.every_s));
        }
        if !is_time(self.limits.server_rest_s) {
            return Some(format!("limits.server_rest_s = {}: takes seconds", self.limits.server_rest_s));
        }
        if self.faults.is_empty() {
            return Some("there is no [[fault]]: without one nothing happens".to_owned());
        }
        self.faults.iter().enumerate().find_map(|(place, kind)| {
            kind.fault()
                .map(|what| format!("fault {} ({:?} of a {:?}): {what}", place + 1, kind.kind, kind.whom))
        })
    }
}

impl Kind {
    fn fault(&self) -> Option<String> {
        let [least, most] = self.for_s;
        if !(self.weight > 0.0 && self.weight <= 1e6) {
            return Some(format!("weight = {}: takes a number above 0", self.weight));
        }
        if !(least >= 0.05 && most >= least && most <= 3600.0) {
            return Some(format!(
                "for_s = [{least}, {most}]: takes two times, from 0.05 s to an hour, the shorter first"
            ));
        }
        if (self.kind == What::Loss) != (self.share > 0.0) || !(0.0..=0.9).contains(&self.share) {
            return Some(format!(
                "share = {}: loss takes a share from 0 to 0.9, nothing else takes one",
                self.share
            ));
        }
        if (self.kind == What::Delay) != (self.delay_s > 0.0) || !(0.0..=10.0).contains(&self.delay_s) {
            return Some(format!(
                "delay_s = {}: delay takes up to 10 s, nothing else takes one",
                self.delay_s
            ));
        }
        (self.kind == What::FullDisk && self.whom == Whom::Worker)
            .then(|| "a worker keeps nothing on its disk".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "about = \"x\"\nduration_s = 60\nevery_s = 5\ncalm_s = 3\n\
        [limits]\nworkers = 2\nservers = 1\ncoordinator = true\nserver_rest_s = 4\n\
        [[fault]]\nkind = \"kill\"\nwhom = \"worker\"\nweight = 2\nfor_s = [1, 2]\n\
        [[fault]]\nkind = \"full-disk\"\nwhom = \"server\"\nweight = 1\nfor_s = [1, 2]\n\
        [scale.small]\nduration_s = 6\n";

    fn parse(text: &str, scale: Option<&str>) -> Result<Plan, String> {
        Plan::parse(text, Path::new("plan.toml"), scale).map_err(|error| error.to_string())
    }

    #[test]
    fn a_scale_changes_what_it_names() {
        let (full, small) = (parse(PLAN, None).unwrap(), parse(PLAN, Some("small")).unwrap());
        assert_eq!((full.duration_s, small.duration_s, small.every_s), (60.0, 6.0, 5.0));
        assert_eq!(parse(PLAN, Some("full")).unwrap(), full);
        assert!(parse(PLAN, Some("tiny")).unwrap_err().contains("it has small, full"));
    }

    #[test]
    fn what_no_plan_says_is_refused_by_name() {
        for (from, to, says) in [
            ("every_s = 5", "every_s = 0", "every_s = 0"),
            ("calm_s = 3", "calm_s = nan", "calm_s = NaN"),
            ("for_s = [1, 2]\n\n", "", ""),
            ("\"kill\"", "\"hit\"", "unknown variant `hit`"),
            ("weight = 2", "weight = -1", "fault 1 (Kill of a Worker): weight = -1"),
            ("weight = 2", "weight = 2\nshare = 0.5", "share = 0.5"),
            ("whom = \"server\"", "whom = \"worker\"", "keeps nothing on its disk"),
            ("calm_s = 3", "calm_s = 3\nloud = 1", "unknown field `loud`"),
        ] {
            let text = PLAN.replacen(from, to, 1);
            if text != PLAN {
                let error = parse(&text, None).unwrap_err();
                assert!(error.contains(says) && error.starts_with("plan.toml: "), "{error}");
            }
        }
    }
}
