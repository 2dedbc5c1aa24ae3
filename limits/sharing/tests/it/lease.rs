//! Tests of leased shares with a real server.

use std::time::{Duration, Instant};

use limits_sharing::{Address, member::ShareState, terms::WHOLE};

use crate::{
    server::{
        Server,
        proxy::{Proxy, Weather},
    },
    world::{LIMIT, World},
};

fn to(server: &Server) -> [Address; 4] {
    std::array::from_fn(|_| server.address())
}

#[tokio::test]
async fn shares_never_exceed_the_limit_during_server_failures() {
    let Some(mut server) = Server::start().await else {
        return;
    };
    let world = World::start(200_000, to(&server));
    world.until_shared().await;
    world.reverse();
    world.refreshes(10).await;
    server.pause(Duration::from_secs(4)).await;
    world.until_shared().await;
    server.kill();
    world
        .until("all use their fallback shares", |it| {
            it.state() == ShareState::Fallback
        })
        .await;
    for process in &world.processes {
        let now = process.lease.micros(Instant::now());
        assert_eq!(process.lease.plan().share(LIMIT, now), WHOLE / 4);
    }
    server.restart().await;
    world.until_shared().await;
    server.kill();
    world.refreshes(5).await;
    server.restart().await;
    world.until_shared().await;
    let looked = world.end().await;
    assert!(looked > 100, "{looked}");
}

#[tokio::test]
#[ignore = "measures for three minutes, and prints how much of a limit is used"]
async fn limit_is_used_under_skewed_load() {
    let Some(mut server) = Server::start().await else {
        return;
    };
    let world = World::start(1_000_000, to(&server));
    world.until_shared().await;
    world.refreshes(5).await;
    let before = world.used_in(30).await;
    world.reverse();
    let just_after = world.used_in(5).await;
    let after = world.used_in(25).await;
    let after = (just_after * 5.0 + after * 25.0) / 30.0;
    server.pause(Duration::from_secs(10)).await;
    world.until_shared().await;
    let paused = world.used_in(10).await;
    server.kill();
    let lost = world.used_in(20).await;
    server.restart().await;
    world.until_shared().await;
    let back = world.used_in(10).await;
    let looked = world.end().await;
    println!(
        "400/s in four processes 70/20/7/3 %, limit 300/s, refresh 1 s, shares checked {looked} times: never above the limit"
    );
    println!(
        "used before the reversal {before:.1} %, in the 30 s after it {after:.1} % (the first 5 s {just_after:.1} %)"
    );
    println!(
        "after a pause of 10 s {paused:.1} %; server lost, 20 s: {lost:.1} %; back and empty: {back:.1} %"
    );
    assert!(before >= 90.0 && after >= 85.0);
}

#[tokio::test]
async fn shares_never_exceed_the_limit_over_a_slow_and_lossy_link() {
    let Some(server) = Server::start().await else {
        return;
    };
    let mut links = Vec::new();
    for seed in 0..4 {
        links.push(Proxy::start(server.socket(), seed).await);
    }
    let world = World::start(200_000, std::array::from_fn(|it| links[it].address()));
    world.until_shared().await;
    for (number, weather) in [Weather::Stormy, Weather::Silent, Weather::Stormy]
        .into_iter()
        .enumerate()
    {
        // One process has a good link.
        links[number + 1..].iter().for_each(|it| it.set(weather));
        world.reverse();
        world.refreshes(12).await;
        if matches!(weather, Weather::Silent) {
            let mut processes = world.processes.iter();
            assert!(processes.any(|it| it.lease.error().is_some()));
        }
    }
    links.iter().for_each(|it| it.set(Weather::Fair));
    world.until_shared_again().await;
    let looked = world.end().await;
    assert!(looked > 100, "{looked}");
}
