//! A session with a server for whoever is no worker: it looks, or says stop.

use std::path::Path;
use std::time::Duration;

use slackline_core::config::Config;
use slackline_core::wire::{Status, Text, ToPeer, ToServer};
use slackline_net::{
    CloseCode, Connection, Connector, ControlReceiver, ControlSender, Identity, Role, Settings,
};

use crate::cli::Clustered;
use crate::failure::Failure;
use crate::resolve_clustered;

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

/// Visits every server of `cluster.addresses` in turn, as `role`. `each` says what to print for a server at an address; a server
/// that cannot be visited is named, and at the end all those are a failure: `not_done` says of what.
pub(crate) fn visit(
    clustered: &Clustered,
    role: Role,
    not_done: &str,
    each: impl AsyncFn(&mut Observer, &str) -> Result<String, String>,
) -> Result<u8, Failure> {
    let resolved = resolve_clustered(clustered)?;
    let addresses = resolved.addresses().map_err(Failure::user)?;
    let identity = Identity::load(Path::new(&resolved.config.cluster.keys), role).map_err(Failure::user)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::world)?;
    let mut failed = 0;
    runtime.block_on(async {
        let connector = connector(&resolved.config, &identity).map_err(Failure::user)?;
        for text in candidates(&resolved.config, &connector, &each).await {
            crate::print(&text.unwrap_or_else(|text| {
                failed += 1;
                text
            }))?;
        }
        for (index, address) in addresses.iter().enumerate() {
            let visited = async { each(&mut Observer::connect(&connector, address).await?, address).await };
            let text = visited.await.unwrap_or_else(|text| {
                failed += 1;
                format!("server {index} at {address}: {text}\n")
            });
            crate::print(&text)?;
        }
        connector.close(CloseCode::Done, "").await;
        Ok::<_, Failure>(())
    })?;
    if failed > 0 {
        let all = addresses.len() + usize::from(!resolved.config.cluster.coordinators.is_empty());
        return Err(Failure::world(format!("{failed} of {all} servers {not_done}")));
    }
    Ok(0)
}

/// The candidates for the coordinator, which count as one server: one of them answers, and those that stand by say so.
async fn candidates(
    config: &Config,
    connector: &Connector,
    each: &impl AsyncFn(&mut Observer, &str) -> Result<String, String>,
) -> Vec<Result<String, String>> {
    let (mut texts, mut leads) = (Vec::new(), false);
    for (index, address) in config.cluster.coordinators.iter().enumerate() {
        match async { each(&mut Observer::connect(connector, address).await?, address).await }.await {
            Ok(text) => {
                leads = true;
                texts.push(Ok(text));
            }
            Err(text) => texts.push(Ok(format!("candidate {index} at {address}: {text}\n"))),
        }
    }
    if !leads && !texts.is_empty() {
        texts.push(Err("no candidate for the coordinator leads\n".to_owned()));
    }
    texts
}

impl Observer {
    pub(crate) async fn connect(connector: &Connector, address: &str) -> Result<Self, String> {
        let connection = connector.connect(address, PATIENCE).await.map_err(|error| error.to_string())?;
        let late = |_| format!("it let us in and did not speak within {} s", PATIENCE.as_secs());
        let control = tokio::time::timeout(PATIENCE, connection.accept_control()).await.map_err(late)?;
        let (sender, receiver) = control.map_err(|error| error.to_string())?;
        Ok(Self { sender, receiver, _connection: connection })
    }

    /// The state of the server now.
    pub(crate) async fn status(&mut self) -> Result<Status, String> {
        let status = |answer| if let ToPeer::Status(status) = answer { Some(*status) } else { None };
        self.ask(ToServer::Status, status).await
    }

    /// Tells the server to end; it has heard that when this returns.
    pub(crate) async fn stop(&mut self, reason: &str) -> Result<(), String> {
        let stop = ToServer::Stop { reason: Text::new(reason) };
        self.ask(stop, |answer| (answer == ToPeer::Goodbye).then_some(())).await
    }

    /// Sends a message and waits for the answer that `wanted` takes.
    async fn ask<T>(&mut self, message: ToServer, wanted: impl Fn(ToPeer) -> Option<T>) -> Result<T, String> {
        let asked = async {
            self.sender.send(&message).await.map_err(|error| error.to_string())?;
            loop {
                match self.receiver.receive::<ToPeer>().await {
                    Ok(Some(ToPeer::Refused(refusal))) => return Err(refusal.text.shown()),
                    Ok(Some(answer)) => {
                        if let Some(answer) = wanted(answer) {
                            return Ok(answer);
                        }
                    }
                    Ok(None) => return Err("the server closed the session".to_owned()),
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        let late = || format!("the server did not answer within {} s", PATIENCE.as_secs());
        tokio::time::timeout(PATIENCE, asked).await.map_err(|_| late())?
    }
}
