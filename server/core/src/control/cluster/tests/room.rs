//! A server that has as many places as one order can name.

use std::collections::BTreeSet;

use slackline_core::limits::{PLACES_MAX, SHARDS_PER_SERVER_MAX};
use slackline_core::wire::Lack;

use super::super::map::{Map, Servers};
use super::*;

const SERVERS: u32 = 5;

/// Every backup that there is has what its primary has.
fn in_step(map: &mut Map) {
    for Place { shard, generation, backup, .. } in map.places().into_values() {
        backup.map(|backup| map.in_step(shard, generation, backup.server));
    }
}

// Found by reading: two servers that were left of five were each given 1280 places, and an order takes 1024.
#[test]
fn a_server_is_given_no_more_places_than_an_order_can_name_and_another_takes_the_rest() {
    let count = SERVERS * SHARDS_PER_SERVER_MAX;
    let shards: Vec<_> = (0..count).map(|shard| (ShardId(shard), ServerId(shard % SERVERS))).collect();
    let mut map = Map::new(&shards, SERVERS, 2, None);
    let mut live: BTreeSet<_> = (0..SERVERS).map(ServerId).collect();
    for lost in [ServerId(4), ServerId(3), ServerId(2)] {
        in_step(&mut map);
        live.remove(&lost);
        let servers = Servers {
            live: &live,
            disks: &|_, _| None,
            boots: &|_| Some(1),
            is_on_disk: false,
            newest: None,
            is_trained: true,
            now: Moment(0),
            words: 0,
            patience: LEASE,
        };
        map.lost(lost, &servers, &mut Vec::new());
        map.leave_lost(|_, backup| backup == lost, &mut Vec::new());
        map.choose_backups(&live, &live);
    }
    let places = map.places();
    assert!(places.values().all(|place| live.contains(&place.primary)), "all shards are answered for");
    let of = |places: &BTreeMap<_, _>, server| Map::of(places, ServerId(server)).len();
    assert_eq!([of(&places, 0), of(&places, 1)], [PLACES_MAX; 2]);
    // Those that nobody had room for are given one when there is.
    live.insert(ServerId(2));
    map.choose_backups(&live, &live);
    let places = map.places();
    assert!(places.values().all(|place| place.backup.is_some()));
    assert!((0..3).all(|server| of(&places, server) <= PLACES_MAX));
}

// Found by reading: a shard without a backup for this reason was said to have none since no other server was there.
#[test]
fn a_shard_that_no_server_has_room_for_is_said_to_lack_that() {
    let count = SERVERS * SHARDS_PER_SERVER_MAX;
    let shards: Vec<_> = (0..count).map(|shard| (ShardId(shard), ServerId(shard % SERVERS))).collect();
    let mut cluster = Cluster::new(ClusterSettings { shards, servers: SERVERS, ..settings(2) });
    cluster.kept.servers.values_mut().for_each(|server| server.boot = Some(1));
    cluster.trained();
    in_step(&mut cluster.kept.map);
    for lost in [4, 3, 2] {
        let lost = ServerId(lost);
        cluster.kept.servers.get_mut(&lost).unwrap().is_lost = true;
        cluster.change(Moment(0), |map, servers, notices| {
            map.lost(lost, servers, notices);
            map.leave_lost(|_, backup| backup == lost, notices);
            map.choose_backups(servers.live, servers.live);
            in_step(map);
            Ok(())
        });
    }
    let lacking = |cluster: &Cluster, lack| cluster.lacks().iter().filter(|row| row.lack == lack).count();
    assert!(lacking(&cluster, Lack::Room) > 0);
    assert_eq!(lacking(&cluster, Lack::Backup), 0);
    // Where nobody else is there at all, that is the reason.
    cluster.kept.servers.get_mut(&ServerId(1)).unwrap().is_lost = true;
    assert_eq!(lacking(&cluster, Lack::Room), 0);
    assert!(lacking(&cluster, Lack::Backup) > 0);
}
