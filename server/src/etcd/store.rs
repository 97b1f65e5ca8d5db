//! The rows of a run, written by whoever leads.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackline_core::ids::Moment;
use slackline_server_core::ControlEvent;
use xxhash_rust::xxh3::xxh3_64;

use super::caller::Caller;
use super::candidate::strangers;
use super::leadership::Leadership;
use super::protocol::{
    Compare, KeyValue, RANGE, RangeRequest, RangeResponse, RequestOp, TXN, TxnRequest, TxnResponse, after,
};
use super::{EtcdError, Rows};
use crate::journal::framing;
use crate::ledger::{Keep, Kept, LedgerError};

/// Bytes of one value: etcd takes a request of 1.5 MiB, where nobody has told it otherwise.
const VALUE_BYTES: usize = 512 << 10;

/// Bytes of events after which a snapshot is due, and events that were written together: whoever takes over reads all of them.
const LONG_BYTES: u64 = 4 << 20;
const LONG_ROWS: u64 = 2000;

/// How often the end of a run is tried to be written, and how long is waited in between.
const ATTEMPTS: u32 = 10;
const AGAIN: Duration = Duration::from_millis(500);

/// Rows of one page.
const PAGE: i64 = 32;

/// What the row `snapshot` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    number: u64,
    pieces: u64,
    /// Checksum of all pieces, one after the other.
    sum: u64,
    /// The first row of events that is not in it.
    events_from: u64,
}

/// One write: what it does, and what is so once it is done.
#[derive(Debug)]
struct Write {
    operations: Vec<RequestOp>,
    pointer: Option<Pointer>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    caller: Caller,
    rows: Rows,
    /// Where the candidates of this cluster are.
    coordinators: Vec<String>,
    leadership: Leadership,
    /// Writes so far, of all leaders.
    head: u64,
    pointer: Option<Pointer>,
    /// The next row of events.
    next: u64,
    /// Bytes of the events after the snapshot.
    length: u64,
    /// What is to be written yet, in this order.
    waiting: VecDeque<Write>,
}

impl Store {
    /// What was kept, for whoever leads now: former leaders can write nothing any more.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub(crate) async fn open(
        caller: Caller,
        rows: Rows,
        coordinators: Vec<String>,
        leadership: Leadership,
    ) -> Result<(Self, Option<Kept>), LedgerError> {
        let mut store = Self {
            caller,
            rows,
            coordinators,
            leadership,
            head: 0,
            pointer: None,
            next: 0,
            length: 0,
            waiting: VecDeque::new(),
        };
        match store.read().await {
            Ok(kept) => Ok((store, kept)),
            Err(error) => {
                store.leadership.resign().await;
                Err(error)
            }
        }
    }

    /// What was kept; what is written from now on comes after it.
    async fn read(&mut self) -> Result<Option<Kept>, LedgerError> {
        self.find_head().await?;
        let Some(row) = self.get(&self.rows.snapshot()).await? else { return Ok(None) };
        self.check_cluster().await?;
        let pointer: Pointer =
            serde_json::from_slice(&row.value).map_err(|_| unreadable(&self.rows.snapshot()))?;
        let pieces = self.rows.pieces(pointer.number);
        let mut snapshot = Vec::new();
        let mut found = 0;
        for row in self.range(&pieces, &pieces).await? {
            snapshot.extend_from_slice(&row.value);
            found += 1;
        }
        if found != pointer.pieces || xxh3_64(&snapshot) != pointer.sum {
            return Err(unreadable(&pieces));
        }
        (self.pointer, self.next) = (Some(pointer), pointer.events_from);
        let mut events = Vec::new();
        for row in self.range(&self.rows.event(pointer.events_from), &self.rows.events()).await? {
            if row.key != self.rows.event(self.next).into_bytes() {
                return Err(unreadable(&self.rows.event(self.next)));
            }
            read_events(&row.value, &mut events).ok_or_else(|| unreadable(&self.rows.event(self.next)))?;
            (self.next, self.length) = (self.next + 1, self.length + row.value.len() as u64);
        }
        Ok(Some(Kept { snapshot: Some(snapshot), events }))
    }

    /// Whether the run that was kept is one of this cluster. While nobody leads nothing else tells it from that of another one with the same
    /// configuration, whose servers this one knows nothing of.
    async fn check_cluster(&mut self) -> Result<(), LedgerError> {
        let Some(row) = self.get(&self.rows.cluster()).await? else { return Ok(()) };
        let theirs = String::from_utf8_lossy(&row.value).into_owned();
        match strangers(&theirs, &self.coordinators) {
            Some(at) => Err(LedgerError::OtherCluster { rows: self.rows.all().to_owned(), at }),
            None => Ok(()),
        }
    }

    /// Keeps it. See [`crate::ledger::Ledger::keep`].
    ///
    /// # Errors
    /// [`LedgerError::Deposed`] for ever, or [`LedgerError::Etcd`] for now.
    pub(crate) async fn keep(&mut self, keep: Keep<'_>) -> Result<(), LedgerError> {
        // After an error the rest of the same is waiting here, and what of it was written is not again.
        if self.waiting.is_empty() {
            match keep {
                Keep::Events(events) => self.queue_events(events)?,
                Keep::Snapshot(snapshot) => self.queue_snapshot(snapshot),
                // It follows from events that are written by now: a leader to come makes it from them.
                Keep::Map(_) => {}
            }
        }
        self.flush().await
    }

    /// Whether a snapshot is due.
    pub(crate) fn is_long(&self) -> bool {
        let rows = self.next - self.pointer.map_or(0, |pointer| pointer.events_from);
        self.length > LONG_BYTES || rows > LONG_ROWS
    }

    /// Says that the run is over, to candidates that stand by, and forgets it where nobody can go on with it. It still leads: the others wait
    /// until it has told the servers.
    ///
    /// # Errors
    /// As [`Self::keep`]; it was tried for as long as a leadership lasts.
    pub(crate) async fn end(&mut self, over: &str, forget: bool) -> Result<(), LedgerError> {
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            outcome = self.say_over(over, forget).await;
            if !matches!(outcome, Err(LedgerError::Etcd(_))) {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
        outcome
    }

    /// Says that all servers have heard that the run is over.
    ///
    /// # Errors
    /// [`LedgerError::Etcd`]; then another candidate tells them once more.
    pub(crate) async fn say_told(&mut self) -> Result<(), LedgerError> {
        self.leadership.say_told(&self.rows).await.map_err(refused)
    }

    /// Lets the leadership go: another candidate may lead.
    pub(crate) async fn close(self: Box<Self>) {
        self.leadership.resign().await;
    }

    /// Renews its leadership no more, as a frozen process does.
    #[cfg(test)]
    pub(super) fn freeze(&self) {
        self.leadership.freeze();
    }

    /// As if the answer to the last write, of these events, had not come.
    #[cfg(test)]
    pub(super) fn forget_answer(&mut self, events: &[(Moment, ControlEvent)]) {
        (self.head, self.next) = (self.head - 1, self.next - 1);
        self.queue_events(events).unwrap();
    }

    async fn say_over(&mut self, text: &str, forget: bool) -> Result<(), LedgerError> {
        if self.waiting.is_empty() {
            let mut operations = vec![RequestOp::put(&self.rows.over(), text, 0)];
            if forget {
                for prefix in
                    [self.rows.snapshot(), self.rows.events(), format!("{}pieces/", self.rows.all())]
                {
                    operations.push(RequestOp::delete(&prefix, after(&prefix)));
                }
            }
            self.waiting.push_back(Write { operations, pointer: None });
        }
        self.flush().await
    }

    fn queue_events(&mut self, events: &[(Moment, ControlEvent)]) -> Result<(), LedgerError> {
        let mut value = Vec::new();
        for (at, event) in events {
            let bytes = slackline_core::wire::encode_state(&(at.0, event))
                .map_err(|error| LedgerError::Etcd(error.to_string()))?;
            if !value.is_empty() && value.len() + bytes.len() > VALUE_BYTES {
                self.queue_row(std::mem::take(&mut value));
            }
            value.extend(framing::frame(&bytes, 0));
        }
        if !value.is_empty() {
            self.queue_row(value);
        }
        Ok(())
    }

    fn queue_row(&mut self, value: Vec<u8>) {
        self.length += value.len() as u64;
        let operations = vec![RequestOp::put(&self.rows.event(self.next), value, 0)];
        self.next += 1;
        self.waiting.push_back(Write { operations, pointer: None });
    }

    /// The pieces first, under a number that nobody reads; then, in one write, the number counts and what was before it goes.
    fn queue_snapshot(&mut self, snapshot: &[u8]) {
        let number = self.pointer.map_or(0, |pointer| pointer.number + 1);
        let mut pieces = 0;
        // A leader that did not come to the end of the same may have left longer ones.
        let left = RequestOp::delete(&self.rows.pieces(number), after(&self.rows.pieces(number)));
        self.waiting.push_back(Write { operations: vec![left], pointer: None });
        for piece in snapshot.chunks(VALUE_BYTES) {
            let operations = vec![RequestOp::put(&self.rows.piece(number, pieces), piece, 0)];
            self.waiting.push_back(Write { operations, pointer: None });
            pieces += 1;
        }
        let pointer = Pointer { number, pieces, sum: xxh3_64(snapshot), events_from: self.next };
        let text = serde_json::to_string(&pointer).unwrap_or_default();
        let former = format!("{}pieces/", self.rows.all());
        let operations = vec![
            RequestOp::put(&self.rows.snapshot(), text, 0),
            RequestOp::put(&self.rows.cluster(), self.coordinators.join("\n"), 0),
            RequestOp::delete(&self.rows.events(), self.rows.event(self.next).into_bytes()),
            RequestOp::delete(&former, self.rows.pieces(number).into_bytes()),
        ];
        self.waiting.push_back(Write { operations, pointer: Some(pointer) });
    }

    async fn flush(&mut self) -> Result<(), LedgerError> {
        while let Some(write) = self.waiting.front() {
            let operations = write.operations.clone();
            self.write(operations).await?;
            if let Some(Write { pointer: Some(pointer), .. }) = self.waiting.pop_front() {
                (self.pointer, self.length) = (Some(pointer), 0);
            }
        }
        Ok(())
    }

    /// One write, fenced: by the leader's row, and by the count of writes, so that it is done once whatever became of its answer.
    async fn write(&mut self, mut operations: Vec<RequestOp>) -> Result<(), LedgerError> {
        let (leader, head) = (self.rows.leader(), self.rows.head());
        let next = (self.head + 1).to_string();
        operations.push(RequestOp::put(&head, next.as_str(), 0));
        let transaction = TxnRequest {
            compare: vec![
                Compare::created(&leader, self.leadership.revision()),
                Compare::value(&head, &self.head.to_string()),
            ],
            success: operations,
            failure: vec![RequestOp::get(&leader), RequestOp::get(&head)],
        };
        let answer: TxnResponse = self.caller.call(TXN, &transaction).await.map_err(refused)?;
        if answer.succeeded {
            self.head += 1;
            return Ok(());
        }
        let mut found = answer.responses.into_iter().map(|response| {
            let range = response.range.unwrap_or_default();
            range.kvs.into_iter().next().unwrap_or_default()
        });
        let (leader_row, head_row) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
        if leader_row.create_revision != self.leadership.revision() {
            return Err(LedgerError::Deposed);
        }
        if head_row.value == next.as_bytes() {
            // Only this leader can have written it, and it writes one thing after the other: this very write, whose answer was lost.
            self.head += 1;
            return Ok(());
        }
        let found = String::from_utf8_lossy(&head_row.value).into_owned();
        Err(LedgerError::Etcd(format!(
            "the row {head} is {found:?} and should be {}: it was changed by hand; start the run anew with --fresh",
            self.head
        )))
    }

    /// The count of writes; begun where there is none.
    async fn find_head(&mut self) -> Result<(), LedgerError> {
        let (leader, head) = (self.rows.leader(), self.rows.head());
        let begin = TxnRequest {
            compare: vec![Compare::created(&leader, self.leadership.revision()), Compare::created(&head, 0)],
            success: vec![RequestOp::put(&head, "0", 0), RequestOp::get(&leader), RequestOp::get(&head)],
            failure: vec![RequestOp::get(&leader), RequestOp::get(&head)],
        };
        let answer: TxnResponse = self.caller.call(TXN, &begin).await.map_err(refused)?;
        let mut rows = answer.responses.into_iter().filter_map(|response| response.range);
        let mut row = || rows.next().and_then(|range| range.kvs.into_iter().next());
        let (leader_row, head_row) = (row(), row());
        if leader_row.is_none_or(|row| row.create_revision != self.leadership.revision()) {
            return Err(LedgerError::Deposed);
        }
        let text = head_row.and_then(|row| String::from_utf8(row.value).ok());
        self.head = text.and_then(|text| text.parse().ok()).ok_or_else(|| unreadable(&head))?;
        Ok(())
    }

    async fn get(&mut self, key: &str) -> Result<Option<KeyValue>, LedgerError> {
        let found: RangeResponse = self.caller.call(RANGE, &RangeRequest::key(key)).await.map_err(refused)?;
        Ok(found.kvs.into_iter().next())
    }

    /// The rows with a prefix from a key on, page by page.
    async fn range(&mut self, from: &str, prefix: &str) -> Result<Vec<KeyValue>, LedgerError> {
        let mut all = Vec::new();
        let mut key = from.as_bytes().to_vec();
        loop {
            let page = RangeRequest { key, range_end: after(prefix), limit: PAGE };
            let found: RangeResponse = self.caller.call(RANGE, &page).await.map_err(refused)?;
            all.extend(found.kvs);
            let Some(last) = all.last().filter(|_| found.more) else { return Ok(all) };
            key = last.key.clone();
            key.push(0);
        }
    }
}

fn refused(error: EtcdError) -> LedgerError {
    LedgerError::Etcd(error.to_string())
}

fn unreadable(row: &str) -> LedgerError {
    LedgerError::Unreadable { row: row.to_owned() }
}

/// The events of one row; none where it is not all of them.
fn read_events(mut bytes: &[u8], events: &mut Vec<(Moment, ControlEvent)>) -> Option<()> {
    while !bytes.is_empty() {
        let (payload, used) = framing::next(bytes)?;
        let (moment, event) = slackline_core::wire::decode_state(payload).ok()?;
        events.push((Moment(moment), event));
        bytes = &bytes[used..];
    }
    Some(())
}
