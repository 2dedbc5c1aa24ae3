//! Starts producers and consumers through another program, in their own network namespace or under a fake clock.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use anyhow::Result;
use tempfile::TempDir;
use testkit::{
    cluster::netns::Namespace,
    programs::{Process, free_address},
};

use crate::harness::{Addresses, Consumer, Producer, Wrapper, programs};

/// Starts a consumer through `wrap`, with its admin port at `ip`, and waits until it is ready.
pub(crate) async fn consumer(
    dir: &TempDir,
    (name, ip): (&str, IpAddr),
    producer: &Producer,
    store: &str,
    flags: &[&str],
    wrap: Wrapper<'_>,
) -> Result<Consumer> {
    let mut admin = free_address()?;
    admin.set_ip(ip);
    let admin = admin.to_string();
    let mut args = owned(&["--admin", &admin, "--name", name, "--store", store]);
    args.extend(owned(&["--producer", &producer.grpc]));
    args.extend(owned(flags));
    let (program, args) = wrap(&programs().await?.consumer, &args);
    let log = dir.path().join(format!("consumer-{name}.log"));
    let process = Process::start("the consumer", &program, &args, &log)?;
    let mut consumer = Consumer::from_process(process, admin);
    consumer.wait_ready().await?;
    Ok(consumer)
}

/// Starts a consumer in a network namespace.
pub(crate) async fn consumer_in(
    network: &Namespace,
    dir: &TempDir,
    name: &str,
    producer: &Producer,
    store: &str,
) -> Result<Consumer> {
    let at = (name, IpAddr::from(network.address()));
    let wrap = |program: &Path, args: &[String]| network.inside(program, args);
    consumer(dir, at, producer, store, &[], &wrap).await
}

/// Starts a producer with its gRPC port at `host`.
pub(crate) async fn producer_at(host: Ipv4Addr, dir: &TempDir) -> Result<Producer> {
    let mut grpc = free_address()?;
    grpc.set_ip(host.into());
    let addresses = Addresses {
        grpc: grpc.to_string(),
        ..Addresses::free()?
    };
    Producer::start_at(dir, &addresses, &[]).await
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(ToString::to_string).collect()
}
