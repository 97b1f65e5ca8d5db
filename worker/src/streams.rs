//! What a connection carries, whoever is at the other end: messages and transfers out, stripes in.

use std::future::Future;

use slackline_core::wire::TransferHeader;
use slackline_net::{
    Arriving, Connection, ConnectionError, ControlSender, Message, Settings, SharedValues, TransferError,
    transfer,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Outgoing<M> {
    Message(Box<M>),
    /// Values in one piece or several, one after another.
    Transfer(Box<TransferHeader>, Vec<SharedValues>),
    /// Nothing follows.
    Finish,
}

/// Sends what it is given until the queue is closed or something cannot be sent; then says what, unless it was closed. Transfers go
/// beside the messages, which must not wait for them.
pub(crate) async fn write<M: Message>(
    connection: &Connection,
    sender: ControlSender,
    mut waiting: mpsc::Receiver<Outgoing<M>>,
    network: Settings,
) -> Option<TransferError> {
    let mut sender = Some(sender);
    let mut transfers = JoinSet::new();
    loop {
        tokio::select! {
            outgoing = waiting.recv() => match outgoing {
                Some(Outgoing::Message(message)) => {
                    if let Some(sender) = &mut sender
                        && let Err(error) = sender.send(message.as_ref()).await
                    {
                        return Some(error.into());
                    }
                }
                Some(Outgoing::Transfer(header, pieces)) => {
                    let connection = connection.clone();
                    transfers.spawn(async move {
                        transfer::send_pieces(&connection, *header, &pieces, &network).await
                    });
                }
                Some(Outgoing::Finish) => {
                    if let Some(sender) = sender.take() {
                        sender.finish().await;
                    }
                }
                None => return None,
            },
            Some(ended) = transfers.join_next() => {
                // Nobody would send it again while the connection stands.
                if let Ok(Err(error)) = ended {
                    return Some(error);
                }
            }
        }
    }
}

/// Reads stripes, each in a task of its own, until the connection ends or one of them fails; then says why.
pub(crate) async fn take_transfers<F, R, E>(connection: &Connection, take: F) -> E
where
    F: FnMut(Arriving) -> R + Clone + Send + 'static,
    R: Future<Output = Result<(), E>> + Send,
    E: From<TransferError> + From<ConnectionError> + Send + 'static,
{
    let mut stripes = JoinSet::new();
    loop {
        tokio::select! {
            opening = transfer::accept(connection) => {
                let opening = match opening {
                    Ok(opening) => opening,
                    Err(error) => return error.into(),
                };
                let mut take = take.clone();
                stripes.spawn(async move { take(opening.header().await?).await });
            }
            Some(ended) = stripes.join_next() => {
                if let Ok(Err(error)) = ended {
                    return error;
                }
            }
        }
    }
}
