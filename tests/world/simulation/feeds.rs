//! The ways from primaries to backups: frames in order and acknowledgements back, over streams that break.

use slackline_core::ids::{Generation, Moment, ServerId, ShardId};
use slackline_server_core::replica::{Frame, HostEvent, Index};

use super::agenda::Happening;
use super::network::Peer;
use super::world::World;

/// One stream.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    pub(crate) from: (usize, u64),
    pub(crate) to: usize,
    /// The process that took it at the other end.
    to_boot: u64,
    pub(crate) shard: ShardId,
    generation: Generation,
    /// The sender's end is there, and it knows.
    is_open: bool,
    /// The sender has closed it or lost it.
    is_over: bool,
    down_last: Moment,
    up_last: Moment,
    cut: Moment,
    /// Since when its server tries to open it.
    tried: Moment,
}

/// Something that moves on a feed.
#[derive(Clone, Debug)]
pub(crate) enum Moved {
    /// The backup's server is reached.
    Dialled,
    /// The primary's server knows that it is.
    Opened,
    /// A frame comes to the backup.
    Frame(Frame),
    /// An acknowledgement comes to the primary.
    Held(Generation, Index, Option<u64>),
    /// The primary's server learns that the stream is gone.
    Lost,
    /// It tries again.
    Again,
}

impl World {
    /// A host wants a stream to its backup.
    pub(crate) fn open_feed(
        &mut self,
        server: usize,
        shard: ShardId,
        backup: ServerId,
        generation: Generation,
    ) {
        self.close_feed(server, shard);
        let feed = self.feeds.len();
        self.feeds.push(Feed {
            from: (server, self.servers[server].boot),
            to: backup.0 as usize,
            to_boot: 0,
            shard,
            generation,
            is_open: false,
            is_over: false,
            down_last: self.now,
            up_last: self.now,
            cut: Moment(u64::MAX),
            tried: self.now,
        });
        self.servers[server].feeds.insert(shard, feed);
        self.dial_feed(feed);
    }

    pub(crate) fn close_feed(&mut self, server: usize, shard: ShardId) {
        if let Some(feed) = self.servers[server].feeds.remove(&shard) {
            self.feeds[feed].is_over = true;
            // What is under way may still arrive.
            let when = self.now.after(self.chance.micros(0, 300_000));
            self.feeds[feed].cut = self.feeds[feed].cut.min(when);
        }
    }

    fn dial_feed(&mut self, feed: usize) {
        let when = self.now.after(self.delay(false));
        self.agenda.at(when, Happening::Feed { feed, what: Moved::Dialled });
    }

    /// A frame goes out.
    pub(crate) fn feed(&mut self, server: usize, shard: ShardId, frame: Frame) {
        let Some(feed) = self.servers[server].feeds.get(&shard).copied() else { return };
        let when = self.now.after(self.delay(true));
        let stream = &mut self.feeds[feed];
        if !stream.is_open {
            return;
        }
        stream.down_last = when.max(Moment(stream.down_last.0 + 1));
        self.agenda.at(stream.down_last, Happening::Feed { feed, what: Moved::Frame(frame) });
    }

    /// A backup acknowledges over the last stream that was opened to it.
    pub(crate) fn acknowledge(
        &mut self,
        server: usize,
        shard: ShardId,
        generation: Generation,
        (index, hash): (Index, Option<u64>),
    ) {
        let Some(feed) = self.servers[server].fed_by.get(&shard).copied() else { return };
        let when = self.now.after(self.delay(false));
        let stream = &mut self.feeds[feed];
        stream.up_last = when.max(Moment(stream.up_last.0 + 1));
        self.agenda.at(stream.up_last, Happening::Feed { feed, what: Moved::Held(generation, index, hash) });
    }

    /// The way of a feed breaks.
    pub(crate) fn cut_feed(&mut self, feed: usize) {
        let idle = self.scenario.lease.as_micros() as u64;
        let (last, learns) = (self.chance.micros(0, 300_000), self.chance.micros(0, idle));
        let stream = &mut self.feeds[feed];
        stream.cut = stream.cut.min(self.now.after(last));
        self.agenda.at(self.now.after(learns), Happening::Feed { feed, what: Moved::Lost });
    }

    /// Streams that live and have an end at a server.
    pub(crate) fn feeds_of(&self, server: usize) -> Vec<usize> {
        let of_it =
            |(_, feed): &(usize, &Feed)| !feed.is_over && (feed.from.0 == server || feed.to == server);
        self.feeds.iter().enumerate().filter(of_it).map(|(index, _)| index).collect()
    }

    /// The server where something on a feed arrives.
    pub(crate) fn end_of(&self, feed: usize, what: &Moved) -> usize {
        let stream = &self.feeds[feed];
        if matches!(what, Moved::Dialled | Moved::Frame(_)) { stream.to } else { stream.from.0 }
    }

    pub(crate) fn moved(&mut self, feed: usize, what: Moved) {
        let Feed { from: (from, boot), to, shard, generation, is_over, is_open, cut, to_boot, .. } =
            self.feeds[feed];
        let (sender, receiver) = (&self.servers[from], &self.servers[to]);
        let sender_lives = sender.up && sender.boot == boot && !is_over;
        let backup = ServerId(to as u32);
        match what {
            Moved::Dialled => {
                let parted = self.is_parted(Peer::Server(from, boot), to);
                // A server takes no stream but of the primary that it was told of, in the same generation.
                let told =
                    receiver.places.get(&shard).map(|place| (place.primary.0 as usize, place.generation));
                if !receiver.up || parted || is_over || told != Some((from, generation)) {
                    let when = self.now.after(self.chance.micros(20_000, 500_000));
                    self.agenda.at(when, Happening::Feed { feed, what: Moved::Again });
                    return;
                }
                self.feeds[feed].to_boot = receiver.boot;
                self.servers[to].fed_by.insert(shard, feed);
                let when = self.now.after(self.delay(false));
                self.agenda.at(when, Happening::Feed { feed, what: Moved::Opened });
            }
            Moved::Again if sender_lives => {
                if self.now.since(self.feeds[feed].tried) >= self.scenario.lease {
                    self.feeds[feed].tried = self.now;
                    self.out_of_reach(from, shard, generation, backup);
                }
                self.dial_feed(feed);
            }
            Moved::Opened if sender_lives => {
                self.feeds[feed].is_open = true;
                self.put_host(from, shard, HostEvent::FeedOpen { backup });
            }
            Moved::Frame(frame) if self.now < cut && receiver.up && receiver.boot == to_boot => {
                if receiver.fed_by.get(&shard) != Some(&feed) {
                    // A later stream has taken its place.
                    return;
                }
                self.put_host(to, shard, HostEvent::Frame { generation, frame });
            }
            Moved::Held(generation, index, hash) if self.now < cut && sender_lives => {
                self.put_host(from, shard, HostEvent::Held { backup, generation, index, hash });
            }
            Moved::Lost if sender_lives => {
                // The shell tries again by itself, over another stream.
                (self.feeds[feed].is_over, self.feeds[feed].is_open) = (true, false);
                if is_open {
                    self.put_host(from, shard, HostEvent::FeedLost { backup });
                }
                let next = self.feeds.len();
                let (down_last, up_last, cut) = (self.now, self.now, Moment(u64::MAX));
                let former = self.feeds[feed].clone();
                self.feeds.push(Feed { is_over: false, down_last, up_last, cut, tried: self.now, ..former });
                self.servers[from].feeds.insert(shard, next);
                let when = self.now.after(self.chance.micros(1_000, 300_000));
                self.agenda.at(when, Happening::Feed { feed: next, what: Moved::Again });
            }
            _ => {}
        }
    }
}
