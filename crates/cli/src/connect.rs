//! Connections to the daemon: its address, the key, the channel and the clients.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use memoird_proto::UnaryCall;
use memoird_proto::prost_reflect::{DynamicMessage, MessageDescriptor};
use memoird_proto::v1::admin_service_client::AdminServiceClient;
use memoird_proto::v1::session_service_client::SessionServiceClient;
use prost::bytes::{Buf, BufMut, Bytes};
use prost::{DecodeError, Message};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::connector::{Connector, TlsArgs};
use crate::exit::CliError;

const DEFAULT_PORT: u16 = 7717;
const DEFAULT_HOST: &str = "127.0.0.1";
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Keepalive ping and timeout, which together detect a paused daemon.
const PING_EVERY: Duration = Duration::from_secs(10);
const PONG_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum size of a response in bytes. gRPC's default is too small for documents and windows.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Environment variable with the address, used without `--addr`.
const ADDR_VARIABLE: &str = "MEMOIRD_ADDR";
/// Environment variable with the key, used without `--key-file`.
const KEY_VARIABLE: &str = "MEMOIRD_KEY";
const KEY_BYTES_MAX: usize = 4 << 10;
/// Metadata with the maximum size of a response in bytes.
const REPLY_BYTES_MAX: &str = "memoird-max-reply-bytes";

/// Heading in the help for the options of commands that call a daemon.
pub(crate) const CLIENT_OPTIONS: &str = "Options of commands that call a daemon";

/// Options of all client commands.
#[derive(Args)]
pub struct ClientArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Print JSON
    #[arg(long, global = true, help_heading = CLIENT_OPTIONS)]
    pub json: bool,
}

#[derive(Args)]
pub struct ConnectArgs {
    /// Address of the daemon: host:port, https://host:port or unix:/path; if omitted, MEMOIRD_ADDR
    /// is used [default: http://127.0.0.1:7717]
    #[arg(long, visible_alias = "url", global = true, help_heading = CLIENT_OPTIONS)]
    pub addr: Option<Address>,

    /// File that contains the key to authenticate with; if omitted, the key in MEMOIRD_KEY is used
    #[arg(long, global = true, value_name = "FILE", help_heading = CLIENT_OPTIONS)]
    key_file: Option<PathBuf>,

    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `http://host:port`, or `https://host:port`.
    Tcp {
        /// A host name or an IP address. IPv6 addresses are in brackets.
        host: String,
        port: u16,
        is_tls: bool,
    },
    /// `unix:/path`.
    Unix(PathBuf),
}

/// Adds the key to every call, and the routing value for load balancers.
#[derive(Clone, Default)]
pub struct Auth {
    key: Option<MetadataValue<Ascii>>,
    place: Option<MetadataValue<Ascii>>,
}

#[derive(Clone)]
pub struct Target {
    addr: Address,
    auth: Auth,
    channel: Channel,
    /// Whether to print JSON.
    pub(crate) json: bool,
}

pub type Sessions = SessionServiceClient<InterceptedService<Channel, Auth>>;

pub type Admin = AdminServiceClient<InterceptedService<Channel, Auth>>;

impl ClientArgs {
    /// Connects on the first call, and again whenever the connection breaks.
    ///
    /// # Errors
    /// If an option or an environment variable is invalid.
    pub fn target(&self) -> Result<Target, CliError> {
        Ok(Target {
            addr: self.connect.address()?,
            auth: self.connect.auth()?,
            channel: self.connect.channel()?,
            json: self.json,
        })
    }
}

impl ConnectArgs {
    /// Returns the key of the file, or else of the environment.
    pub(crate) fn auth(&self) -> Result<Auth, CliError> {
        let text = match &self.key_file {
            Some(path) => Some(std::fs::read_to_string(path).map_err(CliError::no_input(path))?),
            None => variable(KEY_VARIABLE),
        };
        let key = text.as_deref().map(str::trim).filter(|key| !key.is_empty());
        key.map_or(Ok(Auth::default()), Auth::bearer)
    }

    /// Returns the address of `--addr`, or else of the environment.
    pub(crate) fn address(&self) -> Result<Address, CliError> {
        let said = match &self.addr {
            Some(typed) => return Ok(typed.clone()),
            None => set_variable(ADDR_VARIABLE),
        };
        let Some(text) = said else {
            return Ok(Address::Tcp {
                host: DEFAULT_HOST.to_owned(),
                port: DEFAULT_PORT,
                is_tls: false,
            });
        };
        let invalid = |problem: String| CliError::usage(format!("{ADDR_VARIABLE}: {problem}"));
        text.parse().map_err(invalid)
    }

    /// Creates a channel, which connects on first use.
    pub(crate) fn channel(&self) -> Result<Channel, CliError> {
        self.address()?.channel(&self.tls.with_environment())
    }
}

/// Returns an environment variable, or `None` if it is unset or not UTF-8.
#[allow(
    clippy::disallowed_methods,
    reason = "the options of a client are in the environment"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns an environment variable, or `None` if it is unset or blank.
pub(super) fn set_variable(name: &str) -> Option<String> {
    variable(name).filter(|text| !text.trim().is_empty())
}

impl Auth {
    fn bearer(key: &str) -> Result<Self, CliError> {
        let problem =
            || CliError::usage("the key is not one line of at most 4 KiB of ASCII characters");
        if key.len() > KEY_BYTES_MAX {
            return Err(problem());
        }
        let mut value: MetadataValue<Ascii> =
            format!("Bearer {key}").parse().map_err(|_| problem())?;
        value.set_sensitive(true);
        Ok(Self {
            key: Some(value),
            place: None,
        })
    }

    /// A copy with a routing value.
    fn of(&self, place: &str) -> Self {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
        let quoted: String = place
            .bytes()
            .map(|byte| {
                if is_plain(&byte) {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect();
        Self {
            key: self.key.clone(),
            place: quoted.parse().ok().filter(|_| !place.is_empty()),
        }
    }
}

impl Interceptor for Auth {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert(REPLY_BYTES_MAX, MetadataValue::from(ANSWER_BYTES_MAX));
        if let Some(key) = &self.key {
            metadata.insert("authorization", key.clone());
        }
        if let Some(place) = &self.place {
            metadata.insert("memoird-session", place.clone());
        }
        Ok(request)
    }
}

impl Target {
    /// A private daemon on a plain port, without keys.
    pub fn private(addr: Address) -> Result<Self, CliError> {
        Ok(Self {
            channel: addr.channel(&TlsArgs::default())?,
            auth: Auth::default(),
            json: false,
            addr,
        })
    }

    pub fn sessions(&self) -> Sessions {
        SessionServiceClient::with_interceptor(self.channel.clone(), self.auth.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub fn admin(&self) -> Admin {
        AdminServiceClient::with_interceptor(self.channel.clone(), self.auth.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub fn addr(&self) -> &Address {
        &self.addr
    }

    /// Makes a unary call.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn call<R: UnaryCall>(&self, request: &R) -> Result<R::Reply, CliError> {
        let reply = self.try_call(request).await;
        reply.map_err(|status| self.explain(status))
    }

    /// Makes a unary call, for callers that handle some of its errors.
    pub(crate) async fn try_call<R: UnaryCall>(&self, request: &R) -> Result<R::Reply, Status> {
        let encoded = self.call_encoded(R::PATH, request.place(), request.encode_to_vec());
        decoded(R::Reply::decode(encoded.await?))
    }

    /// Makes a unary call with messages that are known by their descriptors only.
    pub(crate) async fn call_dynamic(
        &self,
        path: &str,
        place: &str,
        request: &DynamicMessage,
        reply: MessageDescriptor,
    ) -> Result<DynamicMessage, CliError> {
        let encoded = self
            .call_encoded(path, place, request.encode_to_vec())
            .await;
        let decoded = encoded.and_then(|encoded| decoded(DynamicMessage::decode(reply, encoded)));
        decoded.map_err(|status| self.explain(status))
    }

    async fn call_encoded(
        &self,
        path: &str,
        place: &str,
        request: Vec<u8>,
    ) -> Result<Bytes, Status> {
        let channel = InterceptedService::new(self.channel.clone(), self.auth.of(place));
        let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::from_error(error.into()))?;
        let path = PathAndQuery::try_from(path);
        let path = path.map_err(|error| Status::internal(error.to_string()))?;
        let reply = grpc.unary(Request::new(request), path, EncodedCodec);
        Ok(reply.await?.into_inner())
    }

    pub fn done<T>(&self, reply: Result<Response<T>, Status>) -> Result<T, CliError> {
        match reply {
            Ok(reply) => Ok(reply.into_inner()),
            Err(status) => Err(self.explain(status)),
        }
    }

    #[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
    pub fn explain(&self, status: Status) -> CliError {
        CliError::of_call(&self.addr.to_string(), &status)
    }
}

fn decoded<M>(message: Result<M, DecodeError>) -> Result<M, Status> {
    message.map_err(|error| Status::internal(error.to_string()))
}

/// Sends and receives encoded messages.
struct EncodedCodec;

impl Codec for EncodedCodec {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for EncodedCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&message);
        Ok(())
    }
}

impl Decoder for EncodedCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

impl Address {
    /// Creates a channel, which connects on first use.
    fn channel(&self, tls: &TlsArgs) -> Result<Channel, CliError> {
        if matches!(self, Self::Tcp { is_tls: false, .. }) && tls.is_any() {
            let problem = format!(
                "{self} is unencrypted and would expose the key: with --ca, --cert (or \
                 MEMOIRD_CA, MEMOIRD_CERT) use https://"
            );
            return Err(CliError::usage(problem));
        }
        let uri = match self {
            // Unused: the socket determines the daemon.
            Self::Unix(_) => "http://localhost".to_owned(),
            _ => self.to_string(),
        };
        let endpoint = Endpoint::from_shared(uri)
            .map_err(|error| CliError::usage(format!("{self} is not a valid address: {error}")))?
            .connect_timeout(CONNECT_TIME_MAX)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PONG_TIME_MAX);
        Ok(match self {
            Self::Tcp { is_tls: false, .. } => endpoint.connect_lazy(),
            Self::Tcp { host, port, .. } => {
                endpoint.connect_with_connector_lazy(tls.connector(host, *port)?)
            }
            Self::Unix(path) => {
                endpoint.connect_with_connector_lazy(Connector::Unix(path.as_path().into()))
            }
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, is_tls } => {
                write!(f, "http{}://{host}:{port}", if *is_tls { "s" } else { "" })
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        if let Some(path) = trimmed.strip_prefix("unix:") {
            // The forms gRPC allows: unix:path, unix:/path, unix:///path.
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err("unix: must be followed by the path of a socket".to_owned()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let text = trimmed.trim_end_matches('/');
        let with_tls = text.strip_prefix("https://");
        let host = with_tls.unwrap_or(text.strip_prefix("http://").unwrap_or(text));
        let (name, port_text) = split_port(host);
        if name.is_empty() || name.contains(['/', ' ', '@', '?', '#']) {
            return Err("not of the form host:port, https://host:port or unix:/path".to_owned());
        }
        let port = match port_text {
            None => DEFAULT_PORT,
            Some(port) => port.parse().map_err(|_| format!("{port:?} is no port"))?,
        };
        Ok(Self::Tcp {
            host: name.to_owned(),
            port,
            is_tls: with_tls.is_some(),
        })
    }
}

/// Splits `host:port`. An IPv6 address must be in brackets.
fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> Result<String, String> {
        text.parse::<Address>().map(|address| address.to_string())
    }

    #[test]
    fn addresses_are_normalized() {
        let cases = [
            ("127.0.0.1:7717", "http://127.0.0.1:7717"),
            ("http://127.0.0.1:7717/", "http://127.0.0.1:7717"),
            ("bots.internal", "http://bots.internal:7717"),
            ("http://bots.internal", "http://bots.internal:7717"),
            ("[::1]:80", "http://[::1]:80"),
            ("[::1]", "http://[::1]:7717"),
            ("https://bots.internal", "https://bots.internal:7717"),
            ("https://[::1]:443/", "https://[::1]:443"),
            ("unix:/run/memoird.sock", "unix:/run/memoird.sock"),
            ("unix:///run/memoird.sock", "unix:/run/memoird.sock"),
        ];
        for (text, expected) in cases {
            assert_eq!(normal(text), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for text in [
            "",
            ":7717",
            "host:port",
            "host:70000",
            "https://host:port",
            "unix:",
            "http://a/b",
            "u@h:1",
        ] {
            assert!(normal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn key_is_hidden_in_debug() {
        let auth = Auth::bearer("s3cret").expect("a fine key");
        let shown = format!("{:?}", auth.key);
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(Auth::bearer("two\nlines").is_err());
    }
}
