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
    /// Bytes that each server's disk takes or gives a second; none for no limit.
    pub disk_bytes_per_s: Option<f64>,
    /// What befalls the processes.
    pub incidents: Vec<Incident>,
    /// Mean seconds between two crashes of a worker's machine while it is up; none for no crashes.
    pub worker_mtbf_s: Option<f64>,
    /// The same for a server.
    pub server_mtbf_s: Option<f64>,
    /// After such a crash a process is started again so many seconds later.
    pub down_s: f64,
}

/// Something that befalls a process, in virtual time. Written `worker 1 crash at 30 for 10`, or `server any crash at 9..14`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incident {
    /// Which process.
    pub whom: Whom,
    /// What.
    pub what: What,
    /// When, in seconds from the beginning: drawn evenly between two times, which are the same where nothing is drawn.
    pub at_s: (f64, f64),
    /// After so many seconds it is over: a crashed process is started again. None for never.
    pub for_s: Option<f64>,
}

/// Whom something befalls in a simulated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The worker that was started as this one; none for one that is drawn.
    Worker(Option<u32>),
    /// A server; none for one that is drawn.
    Server(Option<u32>),
    /// All processes at once.
    Run,
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

fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
}

fn whom(who: &str, number: &str) -> Result<Whom, NotAnIncident> {
    let number = match number {
        "any" => None,
        number => Some(number.parse().map_err(|_| NotAnIncident)?),
    };
    match who {
        "worker" => Ok(Whom::Worker(number)),
        "server" => Ok(Whom::Server(number)),
        _ => Err(NotAnIncident),
    }
}

impl FromStr for Incident {
    type Err = NotAnIncident;

    fn from_str(text: &str) -> Result<Self, NotAnIncident> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (whom, what, at, rest) = match words.as_slice() {
            ["run", what, "at", at, rest @ ..] => (Whom::Run, *what, *at, rest),
            [who, number, what, "at", at, rest @ ..] => (whom(who, number)?, *what, *at, rest),
            _ => return Err(NotAnIncident),
        };
        let incident = Self {
            whom,
            what: match what {
                "crash" => What::Crash,
                "pause" if whom != Whom::Run => What::Pause,
                _ => return Err(NotAnIncident),
            },
            at_s: match at.split_once("..") {
                Some((first, last)) => {
                    (seconds(first).ok_or(NotAnIncident)?, seconds(last).ok_or(NotAnIncident)?)
                }
                None => seconds(at).map(|at| (at, at)).ok_or(NotAnIncident)?,
            },
            for_s: match rest {
                [] => None,
                ["for", length] => Some(seconds(length).ok_or(NotAnIncident)?),
                _ => return Err(NotAnIncident),
            },
        };
        // A pause without an end is a crash that keeps the others waiting for ever.
        let is_endless = incident.what == What::Pause && incident.for_s.is_none();
        if is_endless || incident.at_s.0 > incident.at_s.1 { Err(NotAnIncident) } else { Ok(incident) }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.whom {
            Whom::Worker(Some(number)) => write!(f, "worker {number} ")?,
            Whom::Worker(None) => f.write_str("worker any ")?,
            Whom::Server(Some(number)) => write!(f, "server {number} ")?,
            Whom::Server(None) => f.write_str("server any ")?,
            Whom::Run => f.write_str("run ")?,
        }
        f.write_str(match self.what {
            What::Crash => "crash",
            What::Pause => "pause",
        })?;
        let (first, last) = self.at_s;
        write!(f, " at {first}")?;
        if last > first {
            write!(f, "..{last}")?;
        }
        self.for_s.map_or(Ok(()), |length| write!(f, " for {length}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incident_is_read_as_it_is_written() {
        for text in [
            "worker 1 crash at 30 for 10",
            "server 0 pause at 0.5 for 2",
            "worker 3 crash at 1",
            "server any crash at 9..14.5 for 2",
            "worker any pause at 1 for 1",
            "run crash at 3 for 1",
        ] {
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
            "worker some crash at 3",
            "worker 1 crash at 3..1",
            "worker 1 crash at 3..",
            "run pause at 3 for 1",
            "run 1 crash at 3",
            "observer 1 crash at 3",
        ] {
            assert_eq!(wrong.parse::<Incident>(), Err(NotAnIncident), "{wrong}");
        }
    }
}
