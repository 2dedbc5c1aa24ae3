//! Tests of a subscription to a listener that is not a producer.

use runtime::metrics::Registry;
use tokio::net::TcpListener;

use super::*;
use crate::deletions::Deletions;
use crate::metrics::Metrics;

#[tokio::test(start_paused = true)]
async fn connection_without_hello_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
    let (buffer, _reader) = buffer::buffer(1 << 20, &metrics);
    let context = Context {
        name: "c".to_owned(),
        deletions: Deletions::default(),
        producers_min: 1,
        network: Arc::new(runtime::connect::Tcp),
        security: Security::default(),
        producers: Producers::default(),
        ttls: Ttls::new(Duration::from_secs(60), [].into()),
        archive: recovery::Status::default(),
        metrics,
    };
    let producer = ProducerUrl {
        https: false,
        host: "127.0.0.1".to_owned(),
        port: address.port(),
    };
    let (_resolved, is_resolved) = watch::channel(true);
    let mut subscription = Subscription::new(
        Arc::new(context),
        &producer,
        address,
        buffer,
        is_resolved,
        CancellationToken::new(),
    );
    let began = Instant::now();
    let Err(ended) = subscription.stream().await;
    assert!(matches!(ended, StreamEnd::Unreachable(_)), "{ended}");
    assert!(began.elapsed() <= HELLO_TIMEOUT, "{:?}", began.elapsed());
}
