//! Test helper: a proxy in front of a server. It can stop forwarding, or delay data and close connections at random
//! times drawn from a seed. Its target can change.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use limits_sharing::Address;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::sleep,
};

/// Condition of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Forwards everything immediately.
    Fair,
    /// Forwards nothing until the condition changes.
    Silent,
    /// Forwards bytes in pieces, with delays, and sometimes closes the connection.
    Stormy,
}

/// A proxy; it stops when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    weather: watch::Sender<Weather>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy to a server.
    pub(crate) async fn start(target: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let target = Arc::new(Mutex::new(target));
        let (weather, receiver) = watch::channel(Weather::Fair);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&target), receiver, seed));
        Self {
            address,
            target,
            weather,
            _tasks: tasks,
        }
    }

    /// Address for clients.
    pub(crate) fn address(&self) -> Address {
        Address::parse(&format!("redis://{}", self.address)).expect("an address")
    }

    /// Sets the condition of the link.
    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Sets the target of new connections.
    pub(crate) fn set_target(&self, target: SocketAddr) {
        *self.target.lock().expect("no panic") = target;
    }
}

async fn accept(
    listener: TcpListener,
    target: Arc<Mutex<SocketAddr>>,
    weather: watch::Receiver<Weather>,
    seed: u64,
) {
    let mut random = Rng::with_seed(seed);
    let mut connections = JoinSet::new();
    loop {
        let Ok((near, _)) = listener.accept().await else {
            continue;
        };
        let target = *target.lock().expect("no panic");
        let Ok(far) = TcpStream::connect(target).await else {
            continue;
        };
        let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
        let there = pump(from_near, to_far, weather.clone(), random.fork());
        let back = pump(from_far, to_near, weather.clone(), random.fork());
        connections.spawn(async {
            tokio::select! {
                () = there => {}
                () = back => {}
            }
        });
    }
}

/// Forwards bytes until the connection ends.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    mut random: Rng,
) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let now = *weather.borrow_and_update();
            let piece = match now {
                Weather::Fair => rest.len(),
                Weather::Silent => match weather.changed().await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                Weather::Stormy => {
                    match random.u32(0..200) {
                        0 => return,
                        1 => sleep(Duration::from_millis(random.u64(0..500))).await,
                        2..20 => sleep(Duration::from_millis(random.u64(0..30))).await,
                        _ => {}
                    }
                    match random.bool() {
                        true => rest.len(),
                        false => random.usize(1..=rest.len()),
                    }
                }
            };
            if to.write_all(&rest[..piece]).await.is_err() {
                return;
            }
            rest = &rest[piece..];
        }
    }
}
