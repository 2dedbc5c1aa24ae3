//! RabbitMQ: a fanout exchange and a transient queue for each subscriber.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use bench::programs::{Process, free_address, installed};
use bytes::Bytes;
use futures_util::future::try_join_all;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ExchangeKind,
    options::{
        BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::FieldTable,
};
use tokio_stream::StreamExt;

use crate::peers::{
    broker::{Broker, accept},
    publisher::Publish,
    reader::Subscribe,
    seen::Seen,
};

const EXCHANGE: &str = "cookies";

/// Debian's way in, which runs the server only as one user and not with what it is told of folders.
const WRAPPER: &str = "rabbitmq-script-wrapper";

/// Starts a server with all its state in `folder`, and the port mapper (`epmd`) it needs, both on ports of their own.
pub(super) async fn start(program: &Path, folder: &Path) -> Result<Broker> {
    let epmd =
        installed("epmd").context("epmd, which rabbitmq-server needs, is not on the PATH")?;
    let (address, names, peers) = (free_address()?, free_address()?, free_address()?);
    let names_port = names.port().to_string();
    let args = ["-address", "127.0.0.1", "-port", &names_port].map(str::to_owned);
    let mut mapper = Process::start("epmd", &epmd, &args, &folder.join("epmd.log"))?;
    accept(&mut mapper, names).await?;

    let env = installed("env").context("env is not on the PATH")?;
    let mut args = settings(folder, address, names, peers)?;
    args.push(behind_wrapper(program).display().to_string());
    let log = folder.join("rabbitmq.log");
    let mut process = Process::start("rabbitmq-server", &env, &args, &log)?;
    accept(&mut process, address).await?;
    Ok(Broker::new(process, format!("amqp://{address}/%2f")).with_companion(mapper))
}

/// Its environment, as `NAME=value`.
fn settings(
    folder: &Path,
    address: SocketAddr,
    names: SocketAddr,
    peers: SocketAddr,
) -> Result<Vec<String>> {
    let config = folder.join("rabbitmq.conf");
    fs::write(&config, format!("listeners.tcp.1 = {address}\n"))?;
    let plugins = folder.join("enabled_plugins");
    fs::write(&plugins, "[].\n")?;
    let place = |name: &str| folder.join(name).display().to_string();
    let variables = [
        // Makes the script become the server instead of staying its parent.
        ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
        // The cookie of the Erlang node is written to the home folder.
        ("HOME", folder.display().to_string()),
        ("ERL_EPMD_ADDRESS", names.ip().to_string()),
        ("ERL_EPMD_PORT", names.port().to_string()),
        (
            "RABBITMQ_NODENAME",
            format!("trials-{}@localhost", address.port()),
        ),
        ("RABBITMQ_DIST_PORT", peers.port().to_string()),
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
        ),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        ("RABBITMQ_CONFIG_FILE", config.display().to_string()),
        (
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            plugins.display().to_string(),
        ),
        ("RABBITMQ_MNESIA_BASE", place("mnesia")),
        ("RABBITMQ_LOG_BASE", place("log")),
    ];
    Ok(variables
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect())
}

/// The script that Debian's wrapper would run.
fn behind_wrapper(program: &Path) -> PathBuf {
    let real = fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
    if real.file_name().is_some_and(|name| name == WRAPPER) {
        real.with_file_name("rabbitmq-server")
    } else {
        program.to_owned()
    }
}

async fn open(server: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(server, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let (options, arguments) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel
        .exchange_declare(EXCHANGE.into(), ExchangeKind::Fanout, options, arguments)
        .await?;
    Ok((connection, channel))
}

/// A connection that publishes without confirms.
pub(super) struct Publisher {
    channel: Channel,
    /// Kept because the channel ends with it.
    connection: Connection,
}

impl Publisher {
    pub(super) async fn connect(server: &str) -> Result<Self> {
        let (connection, channel) = open(server).await?;
        Ok(Self {
            channel,
            connection,
        })
    }
}

impl Publish for Publisher {
    async fn send(&mut self, messages: Vec<Bytes>) -> Result<()> {
        // Each future is done when its frames are written; together they are written together.
        let publishes = messages.iter().map(|message| {
            self.channel.basic_publish(
                EXCHANGE.into(),
                "".into(),
                BasicPublishOptions::default(),
                message,
                BasicProperties::default(),
            )
        });
        try_join_all(publishes).await?;
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        // The server answers after everything that was published before.
        Ok(self.connection.close(200, "done".into()).await?)
    }
}

/// A connection with a queue of its own.
pub(super) struct Reader {
    server: String,
    messages_max: i64,
    consumer: Option<(Connection, Channel, Consumer)>,
}

impl Reader {
    pub(super) fn new(server: String, keep: u64, batch: u32) -> Self {
        let messages = (keep / u64::from(batch)).max(1);
        Self {
            server,
            messages_max: i64::try_from(messages).unwrap_or(i64::MAX),
            consumer: None,
        }
    }
}

impl Subscribe for Reader {
    async fn open(&mut self) -> Result<()> {
        let (connection, channel) = open(&self.server).await?;
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), self.messages_max.into());
        arguments.insert(
            "x-overflow".into(),
            lapin::types::AMQPValue::LongString("drop-head".into()),
        );
        let queue = channel.queue_declare("".into(), options, arguments).await?;
        let queue = queue.name().clone();
        let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
        channel
            .queue_bind(
                queue.clone(),
                EXCHANGE.into(),
                "".into(),
                options,
                arguments,
            )
            .await?;
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let consumer = channel
            .basic_consume(queue, "".into(), options, FieldTable::default())
            .await?;
        self.consumer = Some((connection, channel, consumer));
        Ok(())
    }

    async fn read(&mut self, seen: &Seen) -> Result<()> {
        let (_connection, _channel, mut consumer) = self.consumer.take().context("is open")?;
        while let Some(delivery) = consumer.next().await {
            seen.message(Bytes::from(delivery?.data));
        }
        Ok(())
    }
}
