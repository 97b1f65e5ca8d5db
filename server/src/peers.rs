//! The end of a run for the other servers: the coordinator tells them, so that none is left running.

use std::sync::Arc;
use std::time::Duration;

use slackline_core::wire::{Text, ToPeer, ToServer};
use slackline_net::{CloseCode, Connector, Identity, Settings};
use tokio::task::JoinSet;

/// How long one server is looked for. It was there a moment ago, or it is not needed any more.
const PATIENCE: Duration = Duration::from_secs(3);

/// Tells the servers at `addresses` to end, all at once; those that cannot be told are named in the log.
pub(crate) async fn stop(
    addresses: &[String],
    identity: &Identity,
    network: &Settings,
    reason: &'static str,
) {
    let connector = match Connector::new(identity, network) {
        Ok(connector) => Arc::new(connector),
        Err(error) => {
            tracing::warn!("no other server could be told that {reason}: {error}");
            return;
        }
    };
    let mut telling = JoinSet::new();
    for address in addresses {
        let (connector, address) = (connector.clone(), address.clone());
        telling.spawn(async move {
            if let Err(text) = stop_one(&connector, &address, reason).await {
                tracing::warn!(%address, "a server could not be told that {reason}: {text}");
            }
        });
    }
    while telling.join_next().await.is_some() {}
    connector.close(CloseCode::Done, "").await;
}

async fn stop_one(connector: &Connector, address: &str, reason: &str) -> Result<(), String> {
    let connection = connector.connect(address, PATIENCE).await.map_err(|error| error.to_string())?;
    let (mut sender, mut receiver) = connection.accept_control().await.map_err(|error| error.to_string())?;
    let stop = ToServer::Stop { reason: Text::new(reason) };
    sender.send(&stop).await.map_err(|error| error.to_string())?;
    let answered = async {
        while let Ok(Some(message)) = receiver.receive::<ToPeer>().await {
            if message == ToPeer::Goodbye {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.map_err(|_| "it did not answer".to_owned())
}
