//! Tests of limits that two producers lease from a real server: `redis-server`, or the program that `REDIS_SERVER`
//! names.

use std::{
    fs,
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use proto::{
    units::{DspId, Epoch},
    wire::CookieRef,
};
use runtime::reload::{NamedFile, Reloader};
use tempfile::TempDir;
use testkit::tools::redis_server_or_skip;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    contracts::file::File,
    inlet::{Inlet, sharing::ShareState},
    log::{AppendBatch, Config, Log},
};

/// The server process, killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn server(port: u16) -> Option<Server> {
    let mut command = Command::new(redis_server_or_skip()?);
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--port", &port.to_string()]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Some(Server(child.unwrap()))
}

fn inlet(dir: &TempDir, name: &str) -> (Inlet, Log) {
    let path = dir.path().join("limits.toml").display().to_string();
    let named = NamedFile::from_flag("--contracts", &path).expect("a path");
    let file = Arc::new(Reloader::load(File::new(named)).expect("a valid file"));
    let log = Log::new(Config {
        epoch: Epoch(1),
        bytes_max: 1 << 20,
        chunk_bytes: 64 << 10,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_secs(3600),
    });
    let inlet = Inlet::start(name, Some(file), None, log.clone()).unwrap();
    (inlet, log)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn share(inlet: &Inlet) -> (f64, ShareState) {
    let status = inlet.sharing().expect("limits are shared");
    let (limit, share, sum) = &status.shares[0];
    assert_eq!(limit, "seventeen");
    assert!(*sum <= 1.0, "{status:?}");
    (*share, status.state)
}

#[tokio::test(flavor = "multi_thread")]
async fn share_follows_the_load_and_falls_back_without_the_server() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let Some(first) = server(port) else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let text = format!(
        "unknown = \"unlimited\"\n[sharing]\nmode = \"lease\"\nredis = \"redis://127.0.0.1:{port}\"\ngroup = \"test\"\nrefresh = \"100ms\"\n\
         [limits.seventeen]\nkeys = [17]\nmode = \"shape\"\nrules = [ {{ id = \"peak\", rate = \"300/s\", burst = 30 }} ]\n"
    );
    fs::write(dir.path().join("limits.toml"), text).unwrap();
    let [(busy, log), (idle, _)] = ["busy", "idle"].map(|name| inlet(&dir, name));
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    for inlet in [&busy, &idle] {
        assert_eq!(share(inlet), (0.0, ShareState::Guaranteed));
        tasks.spawn(inlet.clone().run(stop.clone()));
        tasks.spawn(inlet.clone().share(stop.clone()));
    }
    let mut number = 0;
    let mut offer = |inlet: &Inlet| {
        number += 1;
        let mut batch = AppendBatch::default();
        let user = format!("user-{number}");
        batch.push(&CookieRef {
            user_id: &user,
            dsp_id: DspId(17),
            buyer_uid: "b",
            age_micros: 0,
        });
        inlet.append(&mut batch, Instant::now()).unwrap();
    };
    until("the busy producer gets most of the limit", || {
        (0..20).for_each(|_| offer(&busy));
        share(&busy).0 > 0.9 && share(&idle).0 < 0.1
    })
    .await;
    let before = log.stats().appended;
    until("the busy producer uses its share", || {
        log.stats().appended > before + 100
    })
    .await;
    assert!(
        busy.describe().unwrap().contains(": ok, 2 members"),
        "{}",
        busy.describe().unwrap()
    );
    until("the other producer becomes busy", || {
        (0..20).for_each(|_| offer(&idle));
        share(&idle).0 > 0.4
    })
    .await;
    drop(first);
    until("both have their fallback share", || {
        [&busy, &idle]
            .iter()
            .all(|it| share(it) == (0.5, ShareState::Fallback))
    })
    .await;
    assert!(
        busy.describe().unwrap().contains(": fallback"),
        "{}",
        busy.describe().unwrap()
    );
    let _restarted = server(port);
    until("both have a lease again", || {
        [&busy, &idle]
            .iter()
            .all(|it| share(it).1 == ShareState::Ok)
            && share(&busy).0 + share(&idle).0 > 0.9
    })
    .await;
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    assert_eq!(share(&busy), (0.0, ShareState::Refused));
}
