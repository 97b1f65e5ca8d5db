//! Rows of other programs: the same tables and sentences, the same budget, and a line for whoever is missing.

use std::fs;
use std::sync::Mutex;

use super::{FILE, Stage, World};
use crate::Mode;
use crate::compare::{Family, Host, Invited, Lines, Work};

/// A line as the driver writes it; the time grows with the distance of the rate from 0.1.
fn line(peer: &str, seed: u64, rate: f64, time: f64) -> String {
    let time = time * (1.0 + (rate - 0.1).abs());
    format!(
        "{{\"kind\":\"train\",\"peer\":\"{peer}\",\"version\":\"2\",\"workers\":2,\"seed\":{seed},\"rate\":{rate},\"stragglers\":\"none\",\
         \"samples_per_s\":5000.0,\"samples\":60000,\"wall_s\":12.0,\"bytes_per_worker\":5000000,\"wait_share\":0.25,\"curve\":\
         [{{\"t\":{time},\"samples\":800,\"accuracy\":0.81,\"loss\":0.5}}],\"reached\":{{\"0.8\":{{\"t\":{time},\"samples\":800}}}}}}\n"
    )
}

const LAST: &str = "{\"kind\":\"allreduce\"}\n{\"kind\":\"pushpull\"}\n{\"kind\":\"skipped\",\"peer\":\"mxnet-dist_sync\",\"reason\":\"MXNet is not installed\"}\n\
                    {\"kind\":\"machine\",\"cpu\":\"a cpu\",\"cores\":2,\"kernel\":\"Linux\"}\n";

/// Two workers, as the rows have it, and accuracy 0.8 as the target.
fn stage(seeds: &str) -> Stage {
    Stage::new(
        &FILE
            .replace(
                "seeds = [1, 2, 3]",
                &format!("seeds = {seeds}\n[set]\nworkers = 2\n[targets]\naccuracies = [0.8]\n"),
            )
            .replace("targets = { accuracies = [0.8] }\n", ""),
    )
}

#[test]
fn rows_of_a_file_stand_beside_the_contestants() {
    let stage = stage("[1, 2]");
    let mut text = String::new();
    for rate in [0.05, 0.1, 0.5] {
        text += &line("ddp-gloo", 101, rate, 15.0);
        text += &line("ddp-gloo", 102, rate, 15.0);
    }
    text +=
        &(line("ddp-gloo", 1, 0.1, 15.0) + &line("ddp-gloo", 2, 0.1, 15.1) + &line("ddp-gloo", 1, 0.5, 1.0));
    fs::write(stage.path("peers.jsonl"), text + LAST).unwrap();
    let lines = Lines::read(&stage.path("peers.jsonl")).unwrap();
    let standing =
        stage.execute("out", &World::usual(), (1, false), &Invited::Rows(lines), Some(Mode::Run)).unwrap();
    let row = &standing.rows[0];
    let peer = &row.entries[3];
    assert_eq!(
        (peer.contestant.as_str(), peer.family, peer.rate.as_str()),
        ("ddp-gloo", Family::Outside, "0.1")
    );
    assert_eq!((peer.tried.len(), peer.at_edge, peer.runs.len()), (3, false, 2));
    assert_eq!(peer.figures["cost"].median, Some(2.0 * 15.05));
    assert_eq!((peer.figures["waiting"].median, peer.figures["bytes_sent"].median), (Some(0.25), Some(5e6)));
    assert!(row.sentence.starts_with("ddp-gloo wins: 80 % accuracy after 15.05 s"), "{}", row.sentence);
    // What the file expects is about its contestants.
    assert_eq!((row.first[0].as_str(), row.first_of_ours[0].as_str()), ("ddp-gloo", "ssp 4"));
    assert!(row.notes.contains(&"mxnet-dist_sync: skipped: MXNet is not installed".to_owned()));
    assert!(row.notes.iter().any(|note| note.starts_with("peers measured on a cpu (2 cores), Linux;")));
    assert!(
        standing.rows[1]
            .notes
            .iter()
            .any(|note| note
                .starts_with("peers: the file has no rows of 2 workers with stragglers permanent:"))
    );
    assert!(stage.text("out/report.html").contains("ddp-gloo"));
    assert_eq!(standing.failures().count(), 0);
}

#[test]
fn a_peer_at_one_rate_is_told_to_be_untuned() {
    let stage = stage("[1]");
    fs::write(stage.path("peers.jsonl"), line("ddp-gloo", 1, 0.3, 15.0) + LAST).unwrap();
    let lines = Lines::read(&stage.path("peers.jsonl")).unwrap();
    let standing =
        stage.execute("out", &World::usual(), (1, false), &Invited::Rows(lines), Some(Mode::Run)).unwrap();
    let row = &standing.rows[0];
    assert_eq!(row.entries[3].rate, "0.3");
    assert!(
        row.notes.contains(&"ddp-gloo: only at the rate 0.3, which was not tuned here".to_owned()),
        "{:?}",
        row.notes
    );
}

#[test]
fn a_line_that_is_no_measurement_is_refused() {
    let stage = stage("[1]");
    for (text, reason) in [
        ("{\"kind\":\"train\"}\n", ":1: no number wall_s"),
        ("\n{\"peer\":1}\n", ":2: no field kind"),
        ("nonsense\n", ":1: expected"),
    ] {
        fs::write(stage.path("peers.jsonl"), text).unwrap();
        let error = Lines::read(&stage.path("peers.jsonl")).unwrap_err().to_string();
        assert!(error.contains(reason) && error.ends_with("bench/peers/run.py writes such files"), "{error}");
    }
}

/// Writes what it is asked for.
#[derive(Default)]
struct Writes(Mutex<Vec<(Vec<u64>, String)>>);

impl Host for Writes {
    fn measure(&self, work: &Work<'_>, rates: &str) -> Result<Lines, String> {
        self.0.lock().unwrap().push((work.seeds.to_vec(), rates.to_owned()));
        let rate: f64 = rates.rsplit(['=', ',']).next().unwrap().parse().unwrap();
        let rows: String = work.seeds.iter().map(|seed| line("ddp-gloo", *seed, rate, 15.0)).collect();
        fs::create_dir_all(&work.folder).unwrap();
        fs::write(work.results(), rows + LAST).unwrap();
        Lines::read(&work.results()).map_err(|error| error.to_string())
    }
}

#[test]
fn peers_that_are_measured_now_get_the_budget_of_the_contestants() {
    let base = "[data]\ndataset = \"fashion-mnist\"\n[model]\nkind = \"mlp\"\nwidths = [512, 256]\n[train]\nepochs = 1\nbatch = 64\n\
                [optimizer]\nkind = \"momentum\"\nrate = 0.1\n[evaluate]\nevery_epochs = 0.02\n";
    let stage = stage("[1, 2]");
    fs::write(stage.path("base.toml"), base).unwrap();
    let host = Writes::default();
    let standing =
        stage.execute("out", &World::usual(), (1, false), &Invited::Host(&host), Some(Mode::Run)).unwrap();
    let asked = host.0.lock().unwrap();
    let of_one: Vec<(Vec<u64>, &str)> = vec![
        (vec![101, 102], "0.05"),
        (vec![101, 102], "0.1"),
        (vec![101, 102], "0.5"),
        (vec![1, 2], "0.05,ddp-gloo=0.1"),
    ];
    let asked: Vec<(Vec<u64>, &str)> =
        asked.iter().map(|(seeds, rates)| (seeds.clone(), rates.as_str())).collect();
    assert_eq!(asked, [of_one.clone(), of_one].concat());
    assert!(standing.rows.iter().all(|row| row.entries[3].rate == "0.1" && row.first == ["ddp-gloo"]));
    // The file of all of them can be given again.
    let again = Lines::read(&stage.path("out/peers/peers.jsonl")).unwrap();
    let second =
        stage.execute("again", &World::usual(), (1, false), &Invited::Rows(again), Some(Mode::Run)).unwrap();
    let entries = |standing: &crate::compare::Standing| {
        standing.rows.iter().map(|row| row.entries[3].clone()).collect::<Vec<_>>()
    };
    assert_eq!(entries(&standing), entries(&second));
}

#[test]
fn peers_say_why_they_cannot_take_part() {
    let stage = stage("[1]");
    let standing = stage
        .execute("out", &World::usual(), (1, false), &Invited::Host(&Writes::default()), Some(Mode::Run))
        .unwrap();
    assert!(
        standing.rows[0]
            .notes
            .iter()
            .any(|note| note.starts_with("peers: they train the MLP 784-512-256-10"))
    );
}
