//! Every timer of a cluster, each derived from one setting: the lease.
//!
//! A lease that does not fit the timers around it is found out by users as a run that stops for no reason: a connection that is given up
//! before its member is, a search that ends before the other side could come back. So nothing here is set by itself but by the user's
//! own hand, every pair that must nest is written down, and a pair that does not is an error at the start.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Cluster, Config, Store};

/// Times that a member (a worker at a server, a server at the coordinator) renews its lease within it.
pub const RENEWALS: u32 = 3;

/// Renewals after which a member that said nothing is called silent. One of them is nothing: whoever is asked for a word every third of a
/// lease says it a little later than that, each time. Of two one is missing.
pub const QUIET: u32 = 2;

/// Times that a quiet QUIC connection says something within a lease.
pub const KEEP_ALIVES: u32 = 4;

/// Attempts that a worker which looks for a server makes at least within a lease.
pub const RETRIES: u32 = 4;

/// Attempts that a server which looks for another one makes at least within a lease: others wait for it meanwhile.
pub const SERVER_RETRIES: u32 = 8;

/// The share of a lease for which a process may stand still without making up for it to its members: 1 / 2.
pub const STANDSTILL: u32 = 2;

/// Attempts of a worker to call another, in an allreduce, within a lease.
pub const CALLS: u32 = 3;

/// Looks at the clock within a lease.
pub const TICKS: u32 = 20;

/// Leases that a worker looks for a server, where that is not set.
pub const SEARCH: u32 = 6;

/// Leases that putting another server in the place of a lost one may take: one until it is missed, one for the change.
pub const PROMOTION: u32 = 2;

/// The longest time from the beginning of one attempt to connect to that of the next, whatever the lease: an attempt that takes longer is
/// followed at once.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Bounds of an attempt to connect: below the first a busy machine has not answered yet.
pub const ATTEMPT: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// The same of a server.
const SERVER_RETRY_MAX: Duration = Duration::from_secs(1);

/// The shortest life of a lease in etcd: it counts in whole seconds. While etcd elects a leader of its own nobody can renew one, for up to two
/// seconds with its usual settings; a leadership must not end by that.
const STORE_LEASE_MIN: u64 = 5;

/// How much longer a leadership may outlive its last renewal: an etcd that has elected a leader of its own meanwhile counts all leases anew
/// from then on, as it cannot know what the former one had heard.
const STORE_ELECTION: Duration = Duration::from_secs(3);

/// Takeovers that a coordinator in etcd is looked for, where that is not set and more than [`SEARCH`] leases.
const SEARCH_TAKEOVERS: u32 = 2;

/// Renewals of a leadership in etcd within its length.
pub const STORE_RENEWALS: u32 = 3;

/// Members of etcd that a renewal can ask, one after the other, within the length of a leadership.
pub const STORE_ATTEMPTS: u32 = 8;

/// How long the leadership of a coordinator in etcd outlives its last renewal: a lease, in whole seconds.
#[must_use]
pub fn store_lease(lease: Duration) -> Duration {
    let seconds = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
    Duration::from_secs(seconds.max(STORE_LEASE_MIN))
}

/// How long putting another coordinator in the place of a lost one may take: until etcd lets its leadership go, with an election of etcd's
/// own in between, and a lease for the change.
#[must_use]
pub fn takeover(lease: Duration) -> Duration {
    store_lease(lease) + STORE_ELECTION + lease
}

/// How long a server is looked for where that is not set.
#[must_use]
pub fn search(lease: Duration, store: &Store) -> Duration {
    let leases = lease * SEARCH;
    match store {
        Store::Local => leases,
        Store::Etcd(_) => leases.max(takeover(lease) * SEARCH_TAKEOVERS),
    }
}

/// Bounds of a tick: a clock that is looked at more often costs, and one that is looked at less makes metrics late.
const TICK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// How long a member may say nothing before it is spoken of.
#[must_use]
pub fn quiet(lease: Duration) -> Duration {
    lease * QUIET / RENEWALS
}

/// The timers of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// A member (a worker at a server, a server at the coordinator) that was not heard for so long is gone.
    pub lease: Duration,
    /// A server looks at its clock this often.
    pub tick: Duration,
    /// A quiet QUIC connection says something this often.
    pub keep_alive: Duration,
    /// A member renews its lease this often.
    pub renewal: Duration,
    /// A member that was not heard for so long is spoken of: its lease is in danger.
    pub quiet: Duration,
    /// A QUIC connection that hears nothing for so long is lost.
    pub idle: Duration,
    /// A peer that owes an answer and says nothing for so long is dialled anew.
    pub answer: Duration,
    /// The longest time from the beginning of one attempt of a worker to connect to that of the next, where the first one ends earlier.
    pub retry: Duration,
    /// One attempt of a worker to connect.
    pub attempt: Duration,
    /// The same of a server.
    pub server_retry: Duration,
    /// A process that stood still for longer forgives its members that long a silence.
    pub standstill: Duration,
    /// One attempt of a worker to call another, in an allreduce.
    pub call: Duration,
    /// Workers of an allreduce have met within so long, or the group is dissolved.
    pub meeting: Duration,
    /// A run with `min_workers` begins without the others when nobody came for so long.
    pub gathering: Duration,
    /// A backup is the primary at the latest so long after the last word of the former one; none without backups.
    pub promotion: Option<Duration>,
    /// How long a coordinator's leadership in etcd outlives its last renewal; none with the local store.
    pub store_lease: Option<Duration>,
    /// How long a server is looked for.
    pub connect: Duration,
    /// Time between two reports of one wait.
    pub wait_report: Duration,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// What it is called.
    pub name: &'static str,
    /// How long it is.
    pub value: Duration,
    /// What it is derived from.
    pub from: &'static str,
    /// The timer that it must stay below; for some it may be as long.
    pub below: Option<Below>,
}

/// The timer that another one must stay below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Duration,
    /// Whether the two may be equal.
    pub or_equal: bool,
}

impl Timer {
    /// Whether it stays below what it must stay below.
    #[must_use]
    pub fn nests(&self) -> bool {
        self.below
            .is_none_or(|below| self.value < below.value || (below.or_equal && self.value == below.value))
    }
}

impl Timers {
    /// The timers of a cluster's settings.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        let lease = Duration::from_secs_f64(cluster.lease_s);
        Self {
            lease,
            tick: (lease / TICKS).clamp(TICK.0, TICK.1),
            keep_alive: lease / KEEP_ALIVES,
            renewal: lease / RENEWALS,
            quiet: quiet(lease),
            idle: lease,
            answer: lease,
            retry: (lease / RETRIES).min(RETRY_MAX),
            attempt: (lease / 2).clamp(ATTEMPT[0], ATTEMPT[1]),
            server_retry: (lease / SERVER_RETRIES).min(SERVER_RETRY_MAX),
            standstill: lease / STANDSTILL,
            call: lease / CALLS,
            meeting: lease,
            gathering: lease,
            promotion: (cluster.replicas > 1).then(|| lease * PROMOTION),
            store_lease: matches!(cluster.store, Store::Etcd(_)).then(|| store_lease(lease)),
            connect: Duration::from_secs_f64(cluster.connect_timeout_s),
            wait_report: Duration::from_secs_f64(cluster.wait_report_s),
        }
    }

    /// The table, the shortest first where nothing was set by hand.
    #[must_use]
    pub fn rows(&self) -> Vec<Timer> {
        let timer = |name, value, from, below| Timer { name, value, from, below };
        let under = |name, value| Some(Below { name, value, or_equal: false });
        let within = |name, value| Some(Below { name, value, or_equal: true });
        let search = match self.store_lease {
            Some(_) => "cluster.connect_timeout_s, else 6 leases, at least 2 takeovers",
            None => "cluster.connect_timeout_s, else 6 leases",
        };
        let mut rows = vec![
            timer("tick", self.tick, "lease / 20, 10 ms to 250 ms", under("keep-alive", self.keep_alive)),
            timer("server retry", self.server_retry, "lease / 8, at most 1 s", under("lease", self.lease)),
            timer("retry", self.retry, "lease / 4, at most 2 s", under("lease", self.lease)),
            timer("keep-alive", self.keep_alive, "lease / 4", under("renewal", self.renewal)),
            timer("renewal", self.renewal, "lease / 3", under("lease", self.lease)),
            timer("call", self.call, "lease / 3", under("meeting", self.meeting)),
            timer("attempt", self.attempt, "lease / 2, 0.5 s to 5 s", within("lease", self.lease)),
            timer("standstill", self.standstill, "lease / 2", under("lease", self.lease)),
            timer("wait report", self.wait_report, "cluster.wait_report_s, else lease / 2", None),
            timer("quiet", self.quiet, "2 renewals", under("lease", self.lease)),
            timer("meeting", self.meeting, "lease", within("lease", self.lease)),
            timer("idle connection", self.idle, "lease", within("lease", self.lease)),
            timer("answer", self.answer, "lease", within("lease", self.lease)),
            timer("gathering", self.gathering, "lease", within("lease", self.lease)),
            timer(
                "lease",
                self.lease,
                "cluster.lease_s",
                self.promotion.and_then(|most| under("promotion", most)),
            ),
            timer("search", self.connect, search, None),
        ];
        if let Some(promotion) = self.promotion {
            rows.push(timer("promotion", promotion, "2 leases, at most", under("search", self.connect)));
        }
        if let Some(store_lease) = self.store_lease {
            let from = "lease in whole seconds, at least 5 s; renewed three times within it";
            rows.push(timer("leadership", store_lease, from, under("takeover", takeover(self.lease))));
            let from = "leadership, an election of etcd (3 s) and a lease, at most";
            rows.push(timer("takeover", takeover(self.lease), from, under("search", self.connect)));
        }
        rows
    }

    /// The pairs that do not nest.
    pub fn misfits(&self) -> impl Iterator<Item = Timer> {
        self.rows().into_iter().filter(|timer| !timer.nests())
    }

    /// The table as comment lines of TOML.
    #[must_use]
    pub fn comment(&self) -> String {
        let mut out = String::from("# Timers, each derived from cluster.lease_s:\n");
        for timer in self.rows() {
            let value = format!("{:.3} s", timer.value.as_secs_f64());
            let below = timer.below.map_or_else(String::new, |below| {
                format!(", {} {}", if below.or_equal { "within" } else { "below" }, below.name)
            });
            // Writing to a text cannot fail.
            let _ = writeln!(out, "#   {:<16} {value:>11}   {}{below}", timer.name, timer.from);
        }
        out
    }
}

impl Config {
    /// The timers of the run.
    #[must_use]
    pub fn timers(&self) -> Timers {
        Timers::of(&self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{layer, resolve};
    use super::*;

    fn timers(settings: &[(&str, &str)]) -> Timers {
        resolve(&[layer("b.toml", settings)]).unwrap().config.timers()
    }

    // Case torchtitan#2899: a user needed days to find the order in which four timeouts must nest.
    #[test]
    fn whatever_the_lease_all_timers_nest() {
        for lease in ["0.5", "0.7", "1.0", "2.0", "10.0", "60.0", "3600.0", "14400.0"] {
            let timers = timers(&[("cluster.lease_s", lease)]);
            assert_eq!(timers.misfits().count(), 0, "{lease}: {:?}", timers.misfits().collect::<Vec<_>>());
        }
    }

    #[test]
    fn whatever_is_set_by_hand_a_configuration_that_is_accepted_has_timers_that_nest() {
        let copies = [("cluster.replicas", "2"), ("cluster.durability", "\"replicated\""), ("servers", "2")];
        let etcd = [("cluster.store", "\"etcd://a:1\""), ("cluster.coordinators", "[\"b:1\"]")];
        let mut refused = 0;
        for more in [&[][..], &copies, &etcd] {
            for search in ["1.0", "5.0", "20.0", "20.1", "60.0"] {
                for lease in ["0.5", "1.0", "10.0", "30.0"] {
                    let by_hand = [("cluster.lease_s", lease), ("cluster.connect_timeout_s", search)];
                    match resolve(&[layer("b.toml", &[more, &by_hand].concat())]) {
                        Ok(resolved) => {
                            let timers = resolved.config.timers();
                            assert_eq!(timers.misfits().next(), None, "{more:?} {search} {lease}");
                        }
                        Err(_) => refused += 1,
                    }
                }
            }
        }
        assert!((1..40).contains(&refused), "{refused} of 60");
    }

    #[test]
    fn with_etcd_a_takeover_ends_before_workers_give_up() {
        for (lease, leadership) in [("0.5", 5), ("2.0", 5), ("5.5", 6), ("10.0", 10)] {
            let etcd = [("cluster.store", "\"etcd://a:1\""), ("cluster.coordinators", "[\"b:1\"]")];
            let timers = timers(&[&etcd[..], &[("cluster.lease_s", lease)]].concat());
            assert_eq!(timers.store_lease, Some(Duration::from_secs(leadership)), "{lease}");
            assert_eq!(timers.misfits().count(), 0, "{lease}");
            assert!(timers.connect >= takeover(timers.lease) * 2, "{lease}");
            assert!(timers.comment().contains("leadership"));
        }
        assert!(!timers(&[]).comment().contains("leadership"));
    }

    #[test]
    fn the_times_of_before_are_those_of_the_default_lease() {
        let timers = timers(&[]);
        let seconds = |duration: Duration| duration.as_secs_f64();
        assert_eq!([seconds(timers.connect), seconds(timers.wait_report)], [60.0, 5.0]);
        assert_eq!(seconds(timers.keep_alive), 2.5);
        assert_eq!((timers.tick, timers.promotion), (Duration::from_millis(250), None));
    }

    #[test]
    fn a_timer_set_by_hand_stays_and_the_others_follow_the_lease() {
        let timers = timers(&[("cluster.lease_s", "4.0"), ("cluster.wait_report_s", "3.0")]);
        assert_eq!((timers.wait_report, timers.connect), (Duration::from_secs(3), Duration::from_secs(24)));
    }

    #[test]
    fn the_table_names_every_timer_with_its_value_and_its_origin() {
        let copies = [("cluster.replicas", "2"), ("cluster.durability", "\"replicated\""), ("servers", "2")];
        let text = timers(&[&copies[..], &[("cluster.lease_s", "4.0")]].concat()).comment();
        for line in [
            "#   tick                 0.200 s   lease / 20, 10 ms to 250 ms, below keep-alive\n",
            "#   retry                1.000 s   lease / 4, at most 2 s, below lease\n",
            "#   keep-alive           1.000 s   lease / 4, below renewal\n",
            "#   renewal              1.333 s   lease / 3, below lease\n",
            "#   idle connection      4.000 s   lease, within lease\n",
            "#   lease                4.000 s   cluster.lease_s, below promotion\n",
            "#   promotion            8.000 s   2 leases, at most, below search\n",
            "#   search              24.000 s   cluster.connect_timeout_s, else 6 leases\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.starts_with('#')));
    }
}
