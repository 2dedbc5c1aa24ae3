//! Runs the fuzz targets on their corpus and on small mutations of it, as ordinary tests.

use std::{fs, path::Path};

/// Number of mutations of each file.
const MUTATIONS: usize = 150;

/// Runs a property on each file of its corpus, and on truncated copies with some bytes changed.
#[track_caller]
fn check(target: &str, files_min: usize, mutations: usize, property: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&dir)
        .expect("the corpus exists")
        .map(|file| file.expect("the entry is readable").path())
        .collect();
    files.sort();
    assert!(files.len() >= files_min, "{} files", files.len());
    let mut random = fastrand::Rng::with_seed(7);
    for file in files {
        println!("{}", file.display());
        let bytes = fs::read(&file).expect("the file is readable");
        property(&bytes);
        for _ in 0..mutations {
            let mut changed = bytes.clone();
            changed.truncate(random.usize(..=bytes.len()));
            for _ in 0..random.usize(..4) {
                if let Some(byte) = random.choice(&mut changed) {
                    *byte = random.u8(..);
                }
            }
            property(&changed);
        }
    }
}

#[test]
fn request_parsing_does_not_depend_on_splits_or_escapes() {
    check("request", 10, MUTATIONS, fuzz::request);
}

#[test]
fn privacy_decisions_do_not_depend_on_the_form_of_a_signal() {
    check("privacy", 10, MUTATIONS, fuzz::privacy);
}

#[test]
fn plans_are_json_and_hints_are_short() {
    check("plan", 10, MUTATIONS, fuzz::plan);
}

#[test]
fn accepted_rows_are_valid_and_unchanged_after_encoding() {
    check("rows", 5, MUTATIONS, fuzz::rows);
}

#[test]
fn chunk_decoding_matches_prost_and_counts_every_cookie() {
    check("chunk", 10, MUTATIONS, fuzz::chunk);
}

#[test]
fn settings_are_loaded_or_rejected_with_a_reason() {
    check("settings", 5, 5, fuzz::settings);
}

#[test]
fn lookup_returns_json_for_every_user_path() {
    check("lookup", 5, MUTATIONS, fuzz::lookup);
}

#[test]
fn limiter_calls_are_within_bounds_or_rejected_with_a_reason() {
    check("call", 5, MUTATIONS, fuzz::call);
}

#[test]
fn limits_files_are_served_or_rejected_with_a_reason() {
    check("limits_file", 2, MUTATIONS, fuzz::limits_file);
}

#[test]
fn records_are_restored_or_rejected() {
    check("record", 1, MUTATIONS, fuzz::record);
    // Records in the current format.
    for bytes in fuzz::used_records()
        .into_iter()
        .flat_map(|(key, value)| [key, value])
    {
        fuzz::record(&bytes);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x81;
            fuzz::record(&changed);
        }
    }
}
