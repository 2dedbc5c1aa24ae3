//! A hub whose source counts its samples.

use http::header;

use super::{super::answer::Body, page::Content, *};

#[derive(Default)]
struct Counted(u64);

impl StatusSource for Counted {
    fn sample(&mut self, _: Instant) {
        self.0 += 1;
    }

    fn json(&self, with_history: bool) -> serde_json::Result<Vec<u8>> {
        let history = if with_history { r#","history":[]"# } else { "" };
        Ok(format!(r#"{{"sample":{}{history}}}"#, self.0).into_bytes())
    }
}

fn hub(stop: &CancellationToken) -> StatusHub {
    let page = Page::new(&Content {
        name: "test",
        style: "",
        body: "",
        script: "",
    });
    let source = Box::<Counted>::default();
    StatusHub::register(&Registry::new(), "test", page, source, stop.clone()).unwrap()
}

fn events(hub: &StatusHub) -> Answer {
    hub.events(&Request::new(()))
}

async fn next(body: &mut Body) -> Option<String> {
    let frame = body.frame().await?.unwrap().into_data().unwrap();
    Some(String::from_utf8(frame.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn viewer_gets_the_history_first_and_then_each_sample_once_until_the_end() {
    let stop = CancellationToken::new();
    let hub = hub(&stop);
    hub.sample();
    let answer = events(&hub);
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/event-stream");
    let mut body = answer.into_body();
    let first = next(&mut body).await.unwrap();
    assert_eq!(
        first,
        "retry: 1000\ndata: {\"sample\":1,\"history\":[]}\n\n"
    );
    hub.sample();
    assert_eq!(next(&mut body).await.unwrap(), "data: {\"sample\":2}\n\n");
    // Who does not read skips what was meanwhile.
    hub.sample();
    hub.sample();
    assert_eq!(next(&mut body).await.unwrap(), "data: {\"sample\":4}\n\n");
    let waits = tokio::time::timeout(Duration::from_secs(9), next(&mut body));
    assert!(waits.await.is_err(), "nothing comes twice");
    stop.cancel();
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test(start_paused = true)]
async fn samples_are_taken_every_second_until_the_end() {
    let stop = CancellationToken::new();
    let hub = hub(&stop);
    let mut body = events(&hub).into_body();
    let watches = async {
        next(&mut body).await;
        let began = Instant::now();
        for sample in 1..=3 {
            let expected = format!("data: {{\"sample\":{sample}}}\n\n");
            assert_eq!(next(&mut body).await, Some(expected));
        }
        assert_eq!(began.elapsed(), 2 * INTERVAL, "the first comes at once");
        stop.cancel();
    };
    tokio::join!(hub.clone().run(), watches);
}

#[tokio::test]
async fn viewers_are_bounded_and_one_that_leaves_makes_room() {
    let hub = hub(&CancellationToken::new());
    let mut viewers: Vec<_> = (0..VIEWERS_MAX).map(|_| events(&hub)).collect();
    assert!(viewers.iter().all(|answer| answer.status() == 200));
    assert_eq!(hub.shared.viewing.get(), 16);
    let refused = events(&hub);
    assert_eq!(refused.status(), 503);
    let word = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(word.starts_with(b"16 viewers are too many"), "{word:?}");
    assert_eq!(hub.shared.refused.get(), 1);
    viewers.pop();
    assert_eq!(events(&hub).status(), 200);
    drop(viewers);
    assert_eq!(hub.shared.viewing.get(), 0);
}

#[tokio::test]
async fn pages_of_other_sites_and_heads_take_no_place() {
    let hub = hub(&CancellationToken::new());
    let of = |site: &str| {
        Request::builder()
            .header("sec-fetch-site", site)
            .body(())
            .unwrap()
    };
    assert_eq!(hub.events(&of("cross-site")).status(), 403);
    assert_eq!(hub.events(&of("same-site")).status(), 403);
    assert_eq!(hub.events(&of("same-origin")).status(), 200);
    let head = Request::head("/status/events").body(()).unwrap();
    let answer = hub.events(&head);
    assert_eq!(answer.status(), 200);
    assert_eq!(hub.shared.viewing.get(), 0, "the bodies are gone or none");
}
