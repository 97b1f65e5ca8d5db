//! What the simulator puts in the place of machines and links.

use std::fmt;
use std::str::FromStr;

/// Section `simulation`: the cost model, and what befalls the processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Bytes a second of each machine's link, each way; none for no limit.
    pub bandwidth: Option<f64>,
    /// Seconds that a bit is on its way, one way.
    pub latency_s: f64,
    /// Share of the packets that are lost, in `[0, 1)`.
    pub loss: f64,
    /// Bytes of gradient that one shard applies a second; none for no limit.
    pub apply_bytes_per_s: Option<f64>,
    /// What befalls the processes.
    pub incidents: Vec<Incident>,
}

/// Something that befalls a process, in virtual time. Written `worker 1 crash at 30 for 10`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incident {
    /// Which process.
    pub whom: Whom,
    /// What.
    pub what: What,
    /// When, in seconds from the beginning.
    pub at_s: f64,
    /// After so many seconds it is over: a crashed process is started again. None for never.
    pub for_s: Option<f64>,
}

/// A process of a simulated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The worker that was started as this one.
    Worker(u32),
    /// A server.
    Server(u32),
}

/// What can befall a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is gone, with all it knew.
    Crash,
    /// It stands still and hears nothing; then it goes on.
    Pause,
}

/// A text that is no incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnIncident;

impl FromStr for Incident {
    type Err = NotAnIncident;

    fn from_str(text: &str) -> Result<Self, NotAnIncident> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (who, number, what, at, rest) = match words.as_slice() {
            [who, number, what, "at", at, rest @ ..] => (*who, *number, *what, *at, rest),
            _ => return Err(NotAnIncident),
        };
        let number = number.parse().map_err(|_| NotAnIncident)?;
        let seconds =
            |text: &str| text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
        let incident = Self {
            whom: match who {
                "worker" => Whom::Worker(number),
                "server" => Whom::Server(number),
                _ => return Err(NotAnIncident),
            },
            what: match what {
                "crash" => What::Crash,
                "pause" => What::Pause,
                _ => return Err(NotAnIncident),
            },
            at_s: seconds(at).ok_or(NotAnIncident)?,
            for_s: match rest {
                [] => None,
                ["for", length] => Some(seconds(length).ok_or(NotAnIncident)?),
                _ => return Err(NotAnIncident),
            },
        };
        // A pause without an end is a crash that keeps the others waiting for ever.
        if incident.what == What::Pause && incident.for_s.is_none() {
            Err(NotAnIncident)
        } else {
            Ok(incident)
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.whom {
            Whom::Worker(number) => write!(f, "worker {number} ")?,
            Whom::Server(number) => write!(f, "server {number} ")?,
        }
        f.write_str(match self.what {
            What::Crash => "crash",
            What::Pause => "pause",
        })?;
        write!(f, " at {}", self.at_s)?;
        self.for_s.map_or(Ok(()), |length| write!(f, " for {length}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incident_is_read_as_it_is_written() {
        for text in ["worker 1 crash at 30 for 10", "server 0 pause at 0.5 for 2", "worker 3 crash at 1"] {
            assert_eq!(text.parse::<Incident>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "worker crash at 3",
            "worker 1 sleep at 3",
            "worker 1 crash at -3",
            "worker 1 crash at nan",
            "worker 1 crash at 3 for",
            "worker 1 crash at 3 for 1 more",
            "worker 1 pause at 3",
            "observer 1 crash at 3",
        ] {
            assert_eq!(wrong.parse::<Incident>(), Err(NotAnIncident), "{wrong}");
        }
    }
}
