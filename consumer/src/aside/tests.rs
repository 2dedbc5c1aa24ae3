use runtime::metrics::Registry;
use tempfile::TempDir;

use super::*;
use crate::{
    batch::tests::{aged_chunk, batch, chunk},
    metrics::Metrics,
};

async fn open(folder: &TempDir, metrics: &Metrics) -> Aside {
    let opened = Folder::open(folder.path().join("aside"), 1 << 20).await;
    Aside::new(opened.unwrap(), [7].into(), metrics.aside.clone())
}

#[tokio::test]
async fn cookies_come_back_as_they_were_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let cookies = [("u1", 7, "a"), ("u2", 9, "b"), ("u3", 7, "ü\"c")];
    let later = [(("u4", 7, "d"), 1_500), (("u5", 7, "e"), 0)];
    let later = aged_chunk(4, 2_000, &later);
    let batch = Arc::new(batch(&[chunk(1, 1_000, &cookies), later]));
    let metrics = Metrics::register(&Registry::new()).unwrap();
    {
        let aside = open(&folder, &metrics).await;
        metrics.sink.ledger.received(5);
        let refused = aside
            .put(&batch, vec![(7, vec![3, 0, 4, 2])], |_| true)
            .await;
        assert_eq!(metrics.sink.ledger.figures().waiting, 1);
        assert!(refused.is_empty() && aside.dsps() == [(7, 4)].into());
    }
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let aside = open(&folder, &metrics).await;
    assert_eq!(metrics.sink.ledger.figures().found, 4);
    assert!(aside.oldest(9).await.is_none());
    let tried = aside.oldest(7).await.unwrap();
    assert_eq!((tried.cookies, tried.batch.cursors()), (4, &[][..]));
    let mut found: Vec<_> = tried.batch.cookies().collect();
    found.sort_unstable_by_key(|cookie| cookie.user_id);
    let wanted = [0, 2, 3, 4].map(|index| batch.cookie(index));
    let times = found.iter().map(|cookie| cookie.accepted_unix_micros);
    assert_eq!(times.collect::<Vec<_>>(), [1_000, 1_000, 500, 2_000]);
    assert_eq!(found, wanted);
    aside.done(7, tried.frames).await;
    assert!(aside.dsps().is_empty() && aside.oldest(7).await.is_none());
}

#[tokio::test]
async fn what_has_no_room_comes_back_with_the_reason() {
    let folder = TempDir::new().unwrap();
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let aside = open(&folder, &metrics).await;
    let long = "b".repeat(250);
    let users: Vec<_> = (0..3_000).map(|user| format!("user-{user}")).collect();
    let cookies: Vec<_> = users.iter().map(|user| (&**user, 7, &*long)).collect();
    let batch = Arc::new(batch(&[chunk(1, 1_000, &cookies)]));
    let refused = aside
        .put(&batch, vec![(7, (0..3_000).collect())], |_| true)
        .await;
    assert_eq!(refused.len(), 3_000);
    assert!(
        refused[0].reason.contains("no room"),
        "{}",
        refused[0].reason
    );
    assert!(aside.dsps().is_empty());
}

#[tokio::test]
async fn dsps_that_wait_for_a_place_leave_half_of_the_room() {
    let folder = TempDir::new().unwrap();
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let aside = open(&folder, &metrics).await;
    let long = "b".repeat(250);
    let put = async |dsp_id: u32, count: u32| {
        let users: Vec<_> = (0..count).map(|user| format!("user-{user}")).collect();
        let cookies: Vec<_> = users.iter().map(|user| (&**user, dsp_id, &*long)).collect();
        let batch = Arc::new(batch(&[chunk(1, 1_000, &cookies)]));
        let what = vec![(dsp_id, (0..count).collect())];
        metrics.sink.ledger.received(u64::from(count));
        aside
            .put(&batch, what, |_| false)
            .await
            .is_empty()
    };
    // Each by itself would have room; a twentieth of all is one's.
    let mut taken = 0;
    for dsp_id in 100..140 {
        taken += u32::from(put(dsp_id, 200).await);
    }
    assert!((8..10).contains(&taken), "{taken}");
    assert!(put(7, 900).await, "one that has a slot");
}
