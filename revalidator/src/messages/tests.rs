//! Tests of the messages: field names, unknown fields, and invalid statuses.

use serde_json::json;

use super::*;

#[test]
fn job_status_of_the_paper_is_accepted() {
    let text = r#"{"allowDelete":true,"appName":"shop","assetCount":250,"batchCount":3,"forceUpdate":false,"jobId":"a-1",
        "revalidatorsNeeded":2,"revalidatorState":"Waiting","serverState":"Wait-For-Results"}"#;
    let job: JobStatus = serde_json::from_str(text).unwrap();
    assert_eq!(job.allow_delete, AllowDelete::Partial);
    assert_eq!(job.server_state, ServerState::WaitForResults);
    assert!(job.is_open() && !job.push && job.created_at == 0);
    let value = serde_json::to_value(&job).unwrap();
    assert_eq!(value["allowDelete"], "partial");
    assert_eq!(value["revalidatorsNeeded"], 2);
    assert_eq!(value["serverState"], "Wait-For-Results");
}

#[test]
fn unknown_fields_and_states_are_kept() {
    let value = json!({"appName": "shop", "jobId": "a-1", "revalidatorsNeeded": 1, "revalidatorState": "Dreaming",
        "serverState": "Transmitting", "colour": {"of": "sky"}});
    let job: JobStatus = serde_json::from_value(value).unwrap();
    assert!(!job.is_open());
    let again = serde_json::to_value(&job).unwrap();
    assert_eq!(again["revalidatorState"], "Dreaming");
    assert_eq!(again["colour"]["of"], "sky");
}

#[test]
fn unknown_conditions_of_a_filter_and_counts_are_kept() {
    let text = br#"{"jobId": "a", "filter": {"prefix": "x", "colour": 1}, "counts": {"of": 2}}"#;
    let job = JobStatus::parse("a", text).unwrap();
    let again = serde_json::to_value(&job).unwrap();
    assert_eq!(again["filter"]["colour"], 1);
    assert_eq!(again["filter"]["prefix"], "x");
    assert_eq!(again["counts"]["of"], 2);
}

#[test]
fn statuses_with_another_id_or_too_many_bytes_are_invalid() {
    let status =
        |id: &str, reason: usize| json!({"jobId": id, "reason": "x".repeat(reason)}).to_string();
    let is_valid = |id: &str, text: &str| JobStatus::parse(id, text.as_bytes()).is_some();
    assert!(is_valid("a-1_B", &status("a-1_B", 16_000)));
    assert!(!is_valid("a-1", &status("a-2", 0)));
    assert!(!is_valid("a-1", &status("a-1", 17_000)));
    for id in ["", "a.b", "a b", "a*", "é", &"x".repeat(97)] {
        assert!(!is_valid(id, &status(id, 0)), "{id}");
    }
}

#[test]
fn statuses_with_many_fields_of_other_programs_are_invalid() {
    let is_valid =
        |status: serde_json::Value| JobStatus::parse("a", status.to_string().as_bytes()).is_some();
    assert!(is_valid(
        json!({"jobId": "a", "tags": vec![1; 60], "counts": {"x": {"y": 1}}})
    ));
    assert!(!is_valid(json!({"jobId": "a", "tags": vec![1; 64]})));
    assert!(!is_valid(
        json!({"jobId": "a", "filter": {"tags": vec![json!({"x": 1}); 32]}})
    ));
    let fields = (0..65).map(|it| (format!("x{it}"), json!(it)));
    let counts: serde_json::Map<_, _> = fields.collect();
    assert!(!is_valid(json!({"jobId": "a", "counts": counts})));
}

#[test]
fn removal_of_all_objects_needs_a_confirmation() {
    use AllowDelete::{All, None, Partial};
    for (allow, max, confirm, expected) in [
        (All, All, Some("shop"), All),
        (All, All, Option::None, Partial),
        (All, All, Some("other"), Partial),
        (All, Partial, Some("shop"), Partial),
        (Partial, All, Option::None, Partial),
        (All, None, Some("shop"), None),
    ] {
        let job = JobStatus {
            allow_delete: allow,
            app_name: "shop".to_owned(),
            confirm: confirm.map(ToOwned::to_owned),
            ..JobStatus::default()
        };
        assert_eq!(
            job.permitted(max),
            expected,
            "{allow:?} {max:?} {confirm:?}"
        );
    }
}

#[test]
fn allow_delete_accepts_its_names_and_the_boolean() {
    for (text, expected) in [
        ("false", AllowDelete::None),
        ("true", AllowDelete::Partial),
        ("\"none\"", AllowDelete::None),
        ("\"partial\"", AllowDelete::Partial),
        ("\"all\"", AllowDelete::All),
    ] {
        assert_eq!(serde_json::from_str::<AllowDelete>(text).unwrap(), expected);
    }
    for text in ["\"some\"", "1", "null"] {
        assert!(serde_json::from_str::<AllowDelete>(text).is_err(), "{text}");
    }
}

#[test]
fn batch_and_result_have_the_field_names_of_the_paper() {
    let batch = json!({"assets": [{"eTag": "\"x\"", "hash": "0a1b2c3d", "lastModified": "then", "url": "https://x/"}],
        "jobId": "a-1", "batch": 4});
    let batch: JobBatch = serde_json::from_value(batch).unwrap();
    assert_eq!((batch.attempt, batch.id()), (1, "a-1/4/1".to_owned()));
    assert_eq!(batch.assets[0].name(), "https://x/");
    let result = JobResult {
        average_response: 12,
        results: vec![AssetResult {
            asset: batch.assets[0].clone(),
            is_deleted: false,
            server_response: 12,
            server_error: true,
            was_stale: false,
            outcome: Outcome::Failed,
            held_back: false,
        }],
        revalidator_id: "w".to_owned(),
        job_id: "a-1".to_owned(),
        batch: 4,
        attempt: 2,
        restarts: 0,
    };
    let value = serde_json::to_value(&result).unwrap();
    let one = &value["results"][0];
    assert_eq!(value["averageResponse"], 12);
    assert_eq!(
        (&one["serverError"], &one["serverResponse"]),
        (&json!(true), &json!(12))
    );
    assert_eq!(
        (&one["isDeleted"], &one["wasStale"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(one["asset"]["eTag"], "\"x\"");
}
