//! Tests with a cluster of three nodes, any of which can be configured.

use std::time::{Duration, Instant};

use limits_sharing::Address;
use tokio::task::spawn_blocking;

use crate::{
    exact::Callers,
    server::{Server, cluster::Cluster},
    world::{GROUP, World},
};

/// The addresses of the nodes, cyclically.
fn each(cluster: &Cluster) -> [Address; 4] {
    std::array::from_fn(|it| cluster.node(it % 3).address())
}

#[tokio::test]
async fn any_cluster_node_redirects_to_the_group() {
    let Some(cluster) = Cluster::start(GROUP).await else {
        return;
    };
    let world = World::start(200_000, each(&cluster));
    let callers = Callers::start(each(&cluster)).await;
    world.until_shared().await;
    for caller in 0..4 {
        assert!(callers.call(caller, 0).await);
    }
    let owner = cluster.owner().await;
    cluster.move_group_to((owner + 1) % 3).await;
    world.until_shared_again().await;
    for key in 0..20 {
        for caller in 0..4 {
            callers.call(caller, key).await;
        }
    }
    callers.until_there().await;
    for caller in 0..4 {
        assert!(callers.call(caller, 0).await);
    }
    // The usage migrated as well.
    callers.check(1);
    assert!(world.end().await > 100);
}

#[tokio::test]
async fn clients_follow_a_migrated_group_immediately() {
    let Some(cluster) = Cluster::start(GROUP).await else {
        return;
    };
    let callers = Callers::start(cluster.primaries().iter().map(Server::address)).await;
    for caller in 0..3 {
        assert!(callers.call(caller, 0).await);
    }
    let owner = cluster.owner().await;
    cluster.move_group_to((owner + 1) % 3).await;
    // From here on, a blocked thread keeps the paused clock from advancing.
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let held = spawn_blocking(move || held.recv());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    for caller in 0..3 {
        assert!(!callers.call(caller, 0).await, "the group has migrated");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while !callers.have_server() {
        assert!(Instant::now() < deadline, "no client followed the group");
        tokio::task::yield_now().await;
    }
    for caller in 0..3 {
        assert!(callers.call(caller, 0).await);
    }
    callers.check(1);
    drop(release);
    drop(held.await);
}

#[tokio::test]
async fn replica_of_the_cluster_takes_over() {
    let Some(mut cluster) = Cluster::start(GROUP).await else {
        return;
    };
    let owner = cluster.owner().await;
    let others = [1, 2, 1, 2].map(|it| cluster.node((owner + it) % 3).address());
    let world = World::start(200_000, others.clone());
    let callers = Callers::start(others).await;
    world.until_shared().await;
    for caller in 0..4 {
        assert!(callers.call(caller, 0).await);
    }
    cluster.fail_over().await;
    world.until_shared_again().await;
    for caller in 0..4 {
        callers.call(caller, 1).await;
    }
    callers.until_there().await;
    for caller in 0..4 {
        assert!(callers.call(caller, 2).await);
    }
    // The replica may miss the last calls.
    callers.check(2);
    assert!(world.end().await > 100);
}
