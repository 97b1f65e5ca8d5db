//! What comes in over a connection: messages and values, told to the worker over one channel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use slackline_core::ids::{Sequence, ShardId, Version};
use slackline_core::wire::ToPeer;
use slackline_net::{Arriving, Connection, ControlReceiver, Destination, Gather, transfer};
use tokio::sync::mpsc::UnboundedSender;

/// Something that came in.
pub(super) enum Arrival {
    /// A control message.
    Message(ToPeer),
    /// All values of a shard are in their place.
    Values {
        /// Of which shard.
        shard: ShardId,
        /// Which version of it.
        version: Version,
    },
    /// Nothing more comes over this connection.
    Failed(String),
}

/// Transfers of which not all stripes have come.
type Gathers = Arc<Mutex<BTreeMap<(ShardId, Sequence), Gather>>>;

/// Reads control messages until there are no more. Whoever is told may be gone, with all that matters.
pub(super) async fn read(mut receiver: ControlReceiver, told: UnboundedSender<Arrival>) {
    loop {
        match receiver.receive::<ToPeer>().await {
            Ok(Some(message)) => drop(told.send(Arrival::Message(message))),
            Ok(None) => return drop(told.send(Arrival::Failed("the server has closed".to_owned()))),
            Err(error) => return drop(told.send(Arrival::Failed(error.to_string()))),
        }
    }
}

/// Reads transfers straight to their place in `values`, until the connection ends.
pub(super) async fn take_transfers(
    connection: Connection,
    values: Destination,
    told: UnboundedSender<Arrival>,
) {
    let gathers = Gathers::default();
    while let Ok(opening) = transfer::accept(&connection).await {
        let (gathers, values, told) = (gathers.clone(), values.clone(), told.clone());
        tokio::spawn(async move {
            let taken = match opening.header().await {
                Ok(arriving) => take_stripe(arriving, &gathers, values).await,
                Err(error) => Err(error.to_string()),
            };
            let arrival = match taken {
                Ok(None) => return,
                Ok(Some((shard, version))) => Arrival::Values { shard, version },
                Err(reason) => Arrival::Failed(reason),
            };
            drop(told.send(arrival));
        });
    }
}

/// Reads one stripe; with the last one, what is now complete.
async fn take_stripe(
    arriving: Arriving,
    gathers: &Gathers,
    values: Destination,
) -> Result<Option<(ShardId, Version)>, String> {
    let header = *arriving.header();
    let key = (header.shard, header.sequence);
    let place = values.part(header.keys.as_indices()).ok_or("values for other keys")?;
    let gather = {
        let mut gathers = gathers.lock().unwrap_or_else(PoisonError::into_inner);
        match gathers.get(&key) {
            Some(gather) => gather.clone(),
            None => {
                let gather = Gather::towards(&header, &place).map_err(|error| error.to_string())?;
                gathers.entry(key).or_insert(gather).clone()
            }
        }
    };
    if !gather.receive(arriving).await.map_err(|error| error.to_string())? {
        return Ok(None);
    }
    gathers.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    gather.land(&place).map_err(|error| error.to_string())?;
    Ok(Some((header.shard, header.version)))
}
