//! Test of a failover: a replica becomes the primary, and later the host name of the server leads to it.

use redis::Value;

use crate::{
    exact::Callers,
    server::{Server, proxy::Proxy, until},
    world::World,
};

#[tokio::test]
async fn clients_leave_a_demoted_primary() {
    let (Some(first), Some(second)) = (Server::start().await, Server::start().await) else {
        return;
    };
    let name = Proxy::start(first.socket(), 0).await;
    let port = first.socket().port();
    let _: Value = second.ask(&format!("replicaof 127.0.0.1 {port}")).await;
    let world = World::start(200_000, std::array::from_fn(|_| name.address()));
    let callers = Callers::start((0..4).map(|_| name.address())).await;
    world.until_shared().await;
    for caller in 0..4 {
        assert!(callers.call(caller, 0).await);
    }
    until("the replica is in sync", async || {
        let info: String = second.ask("info replication").await;
        info.contains("master_link_status:up")
    })
    .await;
    let _: Value = second.ask("replicaof no one").await;
    let port = second.socket().port();
    let _: Value = first.ask(&format!("replicaof 127.0.0.1 {port}")).await;
    for caller in 0..4 {
        assert!(!callers.call(caller, 0).await);
    }
    assert!(!callers.have_server());
    world
        .until("all report the error", |it| {
            let error = it.lease.error();
            error.is_some_and(|error| error.contains("is a read-only replica"))
        })
        .await;
    name.set_target(second.socket());
    world.until_shared_again().await;
    callers.until_there().await;
    for caller in 0..4 {
        assert!(callers.call(caller, 0).await);
    }
    // The replica may miss the last calls.
    callers.check(2);
    assert!(world.end().await > 100);
}
