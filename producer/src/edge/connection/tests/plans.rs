//! Tests of the bodies of requests for plans, and of large answers.

use super::*;

/// An edge with these settings of plans and 20 DSPs.
fn edge_with_plan() -> Edge {
    let mut contracts = "[privacy]\ngdpr_when_absent = 'no'\n[plan]\nbase = 'https://m.example'\n\
        origins = ['https://a.example']\nlimit = 20\nlimit_max = 20\n"
        .to_owned();
    for dsp in 1..=20 {
        contracts += &format!("[dsp.{dsp}]\nname = 'd{dsp}'\n[dsp.{dsp}.sync]\n");
        contracts += "image = 'https://d.example/?r={RETURN}&c={GDPR_CONSENT}'\n";
    }
    let (registry, draining) = (Registry::new(), CancellationToken::new());
    edge_with(
        &registry,
        Some(&contracts),
        false,
        UidMode::Require,
        draining,
    )
}

fn request(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /cookie_sync HTTP/1.1\r\ncookie: uid=u\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn body_of_a_plan_is_waited_for_and_others_are_not() {
    let (mut stream, served) = connect(edge_with_plan());
    let sync = "GET /?d=30&b=b HTTP/1.1\r\ncookie: uid=u\r\n\r\n";
    let body = format!("{{\"limit\": 1, \"x\": \"{}\"}}", "y".repeat(16_000));
    let sent = format!("{sync}{}{sync}", request("", &body));
    for part in sent.as_bytes().chunks(5_000) {
        stream.write_all(part).await.unwrap();
        yield_now().await;
    }
    let mut text = responses(&mut stream, 3).await;
    assert_eq!(text.matches("200 OK").count(), 3, "{text}");
    assert_eq!(text.matches("\"bidder\"").count(), 1);
    assert!(!text.contains("connection: close"));
    // Nothing is learned from the body of a foreign page, so the answer does not wait for it.
    let foreign = request("origin: https://b.example\r\n", &body);
    stream.write_all(&foreign.as_bytes()[..200]).await.unwrap();
    text.clear();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{text}");
    assert!(text.contains("\r\nconnection: close\r\n"));
    drop(stream);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn plans_are_shorter_while_others_have_large_answers() {
    let edge = Arc::new(edge_with_plan());
    let body = format!("{{\"gdpr_consent\": \"{}\"}}", "c".repeat(1_000));
    let ask = |bytes| {
        let (stream, server) = duplex(bytes);
        let edge = Arc::clone(&edge);
        let served = TaskTracker::new().spawn(async move {
            let (activity, stopping) = (Arc::default(), CancellationToken::new());
            let connection = EdgeConnection::default();
            connection.serve(&edge, server, &activity, &stopping).await
        });
        (stream, served)
    };
    let (mut slow, of_slow) = ask(4_096);
    slow.write_all(request("", &body).as_bytes()).await.unwrap();
    while edge.large_answers.available_permits() > 0 {
        yield_now().await;
    }
    let mut bidders = Vec::new();
    for _ in 0..2 {
        let (mut stream, served) = ask(1 << 20);
        stream
            .write_all(request("connection: close\r\n", &body).as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        served.await.unwrap().unwrap();
        bidders.push(text.matches("\"bidder\"").count());
        if bidders.len() == 1 {
            // The slow client reads.
            let mut answer = vec![0; 1 << 20];
            let mut read = 0;
            while !answer[..read].ends_with(b"]}") {
                read += slow.read(&mut answer[read..]).await.unwrap();
            }
            while edge.large_answers.available_permits() == 0 {
                yield_now().await;
            }
        }
    }
    assert!((10..20).contains(&bidders[0]), "{bidders:?}");
    assert_eq!(bidders[1], 20);
    drop(slow);
    of_slow.await.unwrap().unwrap();
}
