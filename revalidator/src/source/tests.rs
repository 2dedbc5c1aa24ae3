//! Tests of an assets file: reading, selection, errors, and writing of results.

use std::fs;

use super::*;
use crate::messages::{JobResult, Outcome};

const FILE: &str = concat!(
    "{\"url\":\"https://x.example/1\",\"hash\":\"h1\",\"requestedAt\":900,\"colour\":\"red\"}\n",
    "\n",
    "{\"key\":\"two\",\"url\":\"https://x.example/2\",\"checkedAt\":990}\n",
    "{\"key\":\"three\",\"url\":\"https://x.example/3\",\"requestedAt\":100}",
);

fn result(asset: Asset, outcome: Outcome, is_deleted: bool) -> AssetResult {
    AssetResult {
        asset,
        is_deleted,
        server_response: 1,
        server_error: outcome == Outcome::Failed,
        was_stale: false,
        outcome,
        held_back: false,
    }
}

fn batch(number: u64, attempt: u32, results: Vec<AssetResult>) -> JobResult {
    JobResult {
        average_response: 1,
        results,
        revalidator_id: "w".to_owned(),
        job_id: "a".to_owned(),
        batch: number,
        attempt,
        restarts: 0,
    }
}

fn selection() -> Selection {
    Selection {
        filter: Filter::default(),
        created_at: 1000,
        prune_after: None,
    }
}

fn selected(path: &Path, cursor: u64, selection: &Selection) -> Vec<(String, u64)> {
    let mut lines = Lines::open(path, cursor).unwrap();
    let mut found = Vec::new();
    while let Some(line) = lines.asset().unwrap() {
        let name = line.asset.name().to_owned();
        if let Some(asset) = selection.select(line) {
            let mark = if asset.unused { "-" } else { "" };
            found.push((format!("{mark}{name}"), lines.position));
        }
    }
    found
}

fn names(path: &Path, selection: &Selection) -> Vec<String> {
    let found = selected(path, 0, selection);
    found.into_iter().map(|(name, _)| name).collect()
}

fn file() -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), FILE).unwrap();
    file
}

#[test]
fn reading_continues_at_a_cursor() {
    let file = file();
    let all = selected(file.path(), 0, &selection());
    assert_eq!(all.len(), 3);
    assert_eq!(all[2].1, FILE.len() as u64);
    for (index, (_, position)) in all.iter().enumerate() {
        assert_eq!(
            selected(file.path(), *position, &selection()),
            all[index + 1..]
        );
    }
}

#[test]
fn filters_select_by_age_prefix_sample_and_use() {
    let file = file();
    let with = |change: fn(&mut Selection)| {
        let mut it = selection();
        change(&mut it);
        names(file.path(), &it)
    };
    assert_eq!(with(|_| ()), ["https://x.example/1", "two", "three"]);
    assert_eq!(
        with(|it| it.filter.older_than = Some(11)),
        ["https://x.example/1", "three"]
    );
    assert_eq!(
        with(|it| it.filter.prefix = Some("t".to_owned())),
        ["two", "three"]
    );
    assert_eq!(
        with(|it| it.prune_after = Some(500)),
        ["https://x.example/1", "two", "-three"]
    );
    assert!(with(|it| it.filter.sample = Some(0.0)).is_empty());
    assert_eq!(with(|it| it.filter.sample = Some(1.0)).len(), 3);
}

#[test]
fn sample_takes_about_its_share() {
    let count = (0..10_000)
        .filter(|it| position(&format!("key-{it}")) < 0.1)
        .count();
    assert!((900..1100).contains(&count), "{count}");
}

#[test]
fn invalid_lines_are_named() {
    let file = NamedTempFile::new().unwrap();
    for (line, what) in [
        ("{", "JSON"),
        ("{\"key\":\"a\"}", "url"),
        ("{\"url\":\"ftp://x/\"}", "url"),
        (
            &format!("{{\"url\":\"https://x/{}\"}}", "a".repeat(5000)),
            "longer",
        ),
    ] {
        fs::write(file.path(), format!("{{\"url\":\"https://x/\"}}\n{line}\n")).unwrap();
        let mut lines = Lines::open(file.path(), 0).unwrap();
        assert!(lines.asset().unwrap().is_some());
        let error = format!("{:#}", lines.asset().unwrap_err());
        assert!(error.contains("line 2") && error.contains(what), "{error}");
    }
}

#[test]
fn results_are_written_back_and_other_fields_are_kept() {
    let file = file();
    let results = |found: &[(&str, &str, bool)]| {
        let one = |(key, hash, is_deleted): &(&str, &str, bool)| {
            let asset = Asset {
                key: (*key).to_owned(),
                hash: (*hash).to_owned(),
                e_tag: "\"2\"".to_owned(),
                ..Asset::default()
            };
            result(asset, Outcome::Changed, *is_deleted)
        };
        let mut file = ResultFile::new(Some(Path::new("list")));
        let results = batch(0, 1, found.iter().map(one).collect());
        assert!(file.add(&results).unwrap() && !file.add(&results).unwrap());
        file
    };
    let updates = results(&[
        ("https://x.example/1", "new", false),
        ("two", "", true),
        ("unknown", "", true),
    ]);
    write_back(file.path(), &selection(), 1.0, updates, || true).unwrap();
    let text = fs::read_to_string(file.path()).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["colour"], "red");
    assert_eq!(
        (&lines[0]["hash"], &lines[0]["eTag"], &lines[0]["checkedAt"]),
        (&"new".into(), &"\"2\"".into(), &1000.into())
    );
    assert_eq!(lines[1]["key"], "three");
    let long = results(&[("three", &"h".repeat(4_000), false)]);
    write_back(file.path(), &selection(), 1.0, long, || true).unwrap();
    assert_eq!(names(file.path(), &selection()).len(), 2);
    let removed = || results(&[("three", "", true)]);
    write_back(file.path(), &selection(), 1.0, removed(), || false).unwrap_err();
    assert_eq!(fs::read_to_string(file.path()).unwrap().lines().count(), 2);
    write_back(file.path(), &selection(), 1.0, removed(), || true).unwrap();
    assert_eq!(fs::read_to_string(file.path()).unwrap().lines().count(), 1);
}

#[test]
fn last_result_of_an_asset_is_found_and_failed_ones_are_listed() {
    let mut file = ResultFile::new(Some(Path::new("list")));
    let asset = |number: usize| Asset {
        key: format!("{number}"),
        // Enough for a file on disk.
        url: "x".repeat(1000),
        ..Asset::default()
    };
    for number in 0..1000 {
        let outcome = if number % 4 == 0 {
            Outcome::Failed
        } else {
            Outcome::Fresh
        };
        let results = vec![result(asset(number), outcome, false)];
        file.add(&batch(number as u64, 1, results)).unwrap();
    }
    assert_eq!(file.failed.len(), 250);
    for (number, position) in (0..).zip(file.failed.clone()) {
        let failed = file.read(position).unwrap();
        let results = vec![result(failed.asset, Outcome::Changed, false)];
        file.add(&batch(number, 2, results)).unwrap();
    }
    for number in [999, 0, 4, 5, 999] {
        let found = file.find(&number.to_string()).unwrap().unwrap();
        let expected = if number % 4 == 0 {
            Outcome::Changed
        } else {
            Outcome::Fresh
        };
        assert_eq!((found.outcome, found.asset), (expected, asset(number)));
    }
    assert_eq!(file.find("1000").unwrap(), None);
}

#[test]
fn file_of_a_request_is_checked_after_its_first_line() {
    let file = NamedTempFile::new().unwrap();
    let check_text = |text: &str| {
        fs::write(file.path(), text).unwrap();
        check(file.path())
    };
    let good = "{\"url\":\"https://x/\"}";
    let (first, start, has_keys) = check_text(&format!("{{}}\r\n\n{good}\n{good}")).unwrap();
    assert_eq!((&first[..], start, has_keys), (&b"{}"[..], 4, false));
    assert_eq!(check_text("").unwrap(), (Vec::new(), 0, false));
    let keyed = "{}\n{\"url\":\"https://x/\",\"key\":\"https://x/2\"}";
    assert!(check_text(keyed).unwrap().2);
    let secret = "{}\n{\"url\":\"https://x/\",\"key\":[\"secret\"]}\n";
    let error = format!("{:#}", check_text(secret).unwrap_err());
    assert!(
        error.contains("line 2") && !error.contains("secret"),
        "{error}"
    );
    for (length, is_valid) in [(4096, true), (4097, false), (1 << 20, false)] {
        let line = |key: &str| format!("{{\"url\":\"https://x/\",\"key\":\"{key}\"}}");
        let line = line(&"k".repeat(length - line("").len()));
        let checked = check_text(&format!("{{}}\n{line}\r\n"));
        let is_large = checked.map_err(|error| error.is::<TooLarge>()).err();
        assert_eq!(is_large, (!is_valid).then_some(true), "{length}");
    }
}

#[test]
fn file_has_a_maximum_number_of_lines() {
    let file = file();
    let mut lines = Lines::open(file.path(), 0).unwrap();
    // As if almost all lines were read; empty ones count, too.
    lines.number = ASSETS_MAX - 3;
    for key in ["https://x.example/1", "two"] {
        assert_eq!(lines.asset().unwrap().unwrap().asset.name(), key);
    }
    let error = lines.asset().unwrap_err();
    assert!(error.is::<TooLarge>(), "{error:#}");
    assert!(error.to_string().contains("10000001"), "{error:#}");
}
