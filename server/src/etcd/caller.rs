//! Calls to the members of an etcd cluster: whichever answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use slackline_core::config::Etcd;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::EtcdError;
use super::protocol::{self as wire, Lease, LeaseId};

/// Bytes of the longest answer: a page of rows.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// One member of etcd.
#[derive(Clone, Debug)]
struct Member {
    host: String,
    endpoint: Endpoint,
    channel: Channel,
}

/// Speaks with the members of etcd. A clone shares the connections, and chooses its member by itself.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    members: Vec<Member>,
    /// The member that answered last.
    at: usize,
    /// How long one member may take.
    patience: Duration,
    /// What decides over TLS whether the two sides accept each other; none without it.
    keys: Option<Keys>,
}

/// The files of the keys, for people.
#[derive(Clone, Debug)]
struct Keys {
    /// What etcd's certificate is checked against.
    authority: PathBuf,
    /// What etcd is shown.
    certificate: PathBuf,
}

impl Caller {
    /// Must be called within the runtime of the network thread; connections are made when they are needed.
    ///
    /// # Errors
    /// The keys cannot be read.
    pub(crate) fn new(etcd: &Etcd, patience: Duration) -> Result<Self, EtcdError> {
        let (tls, keys) = etcd.keys.as_deref().map(|folder| tls(Path::new(folder))).transpose()?.unzip();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let member = |host: &String| -> Result<Member, EtcdError> {
            let failed = |error: tonic::transport::Error| {
                EtcdError::Setting(format!("cluster.store: {host}: {}", words(&error)))
            };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}")).map_err(failed)?;
            let mut endpoint = endpoint.connect_timeout(patience).tcp_nodelay(true);
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone()).map_err(failed)?;
            }
            Ok(Member { host: host.clone(), channel: endpoint.connect_lazy(), endpoint })
        };
        let members = etcd.endpoints.iter().map(member).collect::<Result<_, EtcdError>>()?;
        Ok(Self { members, at: 0, patience, keys })
    }

    /// The same with another patience for each member.
    pub(super) fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Calls a method. Every member is asked once at most, the one that answered last first. After an error nobody knows whether it was done.
    ///
    /// # Errors
    /// [`EtcdError::Call`] of the last member asked.
    pub(super) async fn call<M, R>(&mut self, method: &'static str, message: &M) -> Result<R, EtcdError>
    where
        M: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let mut failure = None;
        for _ in 0..self.members.len() {
            let (endpoint, mut grpc) = self.member();
            let called = async {
                grpc.ready().await.map_err(|error| Status::unavailable(words(&error)))?;
                let (request, codec) = (Request::new(message.clone()), ProstCodec::<M, R>::default());
                Ok::<_, Status>(
                    grpc.unary(request, PathAndQuery::from_static(method), codec).await?.into_inner(),
                )
            };
            match self.outcome(endpoint, timeout(self.patience, called).await) {
                Ok(answer) => return Ok(answer),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(nobody))
    }

    /// Renews a lease once; its seconds from now on, none left where it is gone.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(super) async fn keep_alive(&mut self, id: i64) -> Result<i64, EtcdError> {
        let mut failure = None;
        for _ in 0..self.members.len() {
            let (endpoint, mut grpc) = self.member();
            let called = async {
                grpc.ready().await.map_err(|error| Status::unavailable(words(&error)))?;
                let codec = ProstCodec::<LeaseId, Lease>::default();
                let once = Request::new(futures_util::stream::iter([LeaseId { id }]));
                let path = PathAndQuery::from_static(wire::LEASE_KEEP_ALIVE);
                let mut answers = grpc.streaming(once, path, codec).await?.into_inner();
                let lease = answers.message().await?;
                Ok::<_, Status>(lease.ok_or_else(|| Status::unavailable("it did not answer a renewal"))?.ttl)
            };
            match self.outcome(endpoint, timeout(self.patience, called).await) {
                Ok(left) => return Ok(left),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(nobody))
    }

    /// The member whose turn it is.
    fn member(&self) -> (String, Grpc<Channel>) {
        let Member { host, channel, .. } = &self.members[self.at];
        (host.clone(), Grpc::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX))
    }

    /// What came of asking it; after a failure it is the next one's turn.
    fn outcome<R>(
        &mut self,
        endpoint: String,
        outcome: Result<Result<R, Status>, Elapsed>,
    ) -> Result<R, EtcdError> {
        let reason = match outcome {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => self.keys.iter().fold(told(&status), |told, keys| keys.explain(told)),
            Err(_) => {
                // The connection may lead to a machine that is gone, and would be asked for ever.
                let member = &mut self.members[self.at];
                member.channel = member.endpoint.connect_lazy();
                format!("no answer in {:.1} s", self.patience.as_secs_f64())
            }
        };
        self.at = (self.at + 1) % self.members.len();
        Err(EtcdError::Call { endpoint, reason })
    }
}

impl Keys {
    /// What the network said of a call that failed, with the file that it is about: TLS names none, and says little of why it refuses.
    fn explain(&self, said: String) -> String {
        let Self { authority, certificate } = self;
        let has = |words: &[&str]| words.iter().any(|words| said.contains(words));
        if has(&["UnknownIssuer", "BadSignature"]) {
            format!("{said}: its certificate is not signed by the authority in {}", authority.display())
        } else if has(&["fatal alert"]) {
            format!("{said}: it does not accept the certificate {}", certificate.display())
        } else if has(&["closed", "reset", "broken pipe", "canceled"]) {
            format!("{said}: it may not accept the certificate {}", certificate.display())
        } else {
            said
        }
    }
}

fn nobody() -> EtcdError {
    EtcdError::Setting("cluster.store names no member of etcd".to_owned())
}

/// What the member said; where it could not be asked, what the network said.
fn told(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => words(source),
        None => status.message().to_owned(),
    }
}

/// An error with all that is behind it, each thing once.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = vec![error.to_string()];
    let mut error = error;
    while let Some(source) = error.source() {
        let text = source.to_string();
        if !said.iter().any(|before| before.contains(&text)) {
            said.push(text);
        }
        error = source;
    }
    said.join(": ")
}

/// The name in the certificates of servers that `slackline keys` makes: they name a role, and no machine.
const ROLE_NAME: &str = "server.slackline";

/// The folder's keys: `cert.pem` and `key.pem` of whatever authority, with which etcd shows a certificate of its host's name; or a folder of
/// `slackline keys`, with which etcd shows the certificate of a server, as the candidate does.
fn tls(folder: &Path) -> Result<(ClientTlsConfig, Keys), EtcdError> {
    let is_made_here = !folder.join("cert.pem").exists() && folder.join("server.pem").exists();
    let [certificate, key] =
        if is_made_here { ["server.pem", "server.key"] } else { ["cert.pem", "key.pem"] };
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|error| {
            EtcdError::Setting(format!(
                "cluster.store_keys: {} cannot be read: {error}; the folder needs ca.pem, cert.pem and key.pem, or is one of \
                 `slackline keys`",
                path.display()
            ))
        })
    };
    let identity = Identity::from_pem(read(certificate)?, read(key)?);
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("ca.pem")?)).identity(identity);
    let keys = Keys { authority: folder.join("ca.pem"), certificate: folder.join(certificate) };
    Ok((if is_made_here { tls.domain_name(ROLE_NAME) } else { tls }, keys))
}
