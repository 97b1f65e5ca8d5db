//! A session that only looks: for the progress display and `slackline status`.

use std::time::Duration;

use slackline_core::config::Config;
use slackline_core::wire::{Status, ToPeer, ToServer};
use slackline_net::{Connection, Connector, ControlReceiver, ControlSender, Identity, Settings};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A session with one server.
pub(crate) struct Observer {
    sender: ControlSender,
    receiver: ControlReceiver,
    /// Keeps the connection.
    _connection: Connection,
}

/// What dials: keys and settings of an observer.
pub(crate) fn connector(config: &Config, identity: &Identity) -> Result<Connector, String> {
    let network = Settings::new(&config.transport, Duration::from_secs_f64(config.cluster.lease_s));
    Connector::new(identity, &network).map_err(|error| error.to_string())
}

impl Observer {
    pub(crate) async fn connect(connector: &Connector, address: &str) -> Result<Self, String> {
        let connection = connector.connect(address, PATIENCE).await.map_err(|error| error.to_string())?;
        let (sender, receiver) = connection.accept_control().await.map_err(|error| error.to_string())?;
        Ok(Self { sender, receiver, _connection: connection })
    }

    /// The state of the server now.
    pub(crate) async fn status(&mut self) -> Result<Status, String> {
        let asked = async {
            self.sender.send(&ToServer::Status).await.map_err(|error| error.to_string())?;
            loop {
                match self.receiver.receive::<ToPeer>().await {
                    Ok(Some(ToPeer::Status(status))) => return Ok(*status),
                    Ok(Some(ToPeer::Refused(refusal))) => return Err(refusal.text.shown()),
                    Ok(Some(_)) => {}
                    Ok(None) => return Err("the server closed the session".to_owned()),
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        let late = || format!("the server did not answer within {} s", PATIENCE.as_secs());
        tokio::time::timeout(PATIENCE, asked).await.map_err(|_| late())?
    }
}
