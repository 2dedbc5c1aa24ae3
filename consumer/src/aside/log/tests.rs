use std::collections::VecDeque;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

/// A message as the wire has it: its length in front.
fn message(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[0], &length[..], text.as_bytes()].concat()
}

fn frame(dsp_id: u32, cookies: u32, text: &str) -> Frame {
    Frame {
        dsp_id,
        cookies,
        messages: message(text),
    }
}

/// All that the log has of a DSP, the oldest first.
fn all(log: &Log, dsp_id: u32) -> Vec<String> {
    let read = log.read(dsp_id, u64::MAX).unwrap();
    let messages = read.messages.iter();
    messages
        .map(|message| String::from_utf8(message.to_vec()).unwrap())
        .collect()
}

fn files(folder: &TempDir) -> usize {
    let names = fs::read_dir(folder.path()).unwrap();
    let is_segment = |path: &Path| path.extension().is_some_and(|it| it == EXTENSION);
    names
        .filter(|entry| is_segment(&entry.as_ref().unwrap().path()))
        .count()
}

#[test]
fn what_was_appended_is_found_again_and_what_is_done_is_not() {
    let folder = TempDir::new().unwrap();
    {
        let mut log = Log::open(folder.path(), MIB).unwrap();
        let batch = [frame(7, 2, "a"), frame(9, 1, "b"), frame(7, 3, "c")];
        log.append(&batch).unwrap();
        log.append(&[frame(7, 1, "d")]).unwrap();
        assert_eq!(all(&log, 7), ["a", "c", "d"]);
        assert_eq!(log.dsps().collect::<Vec<_>>(), [(7, 6), (9, 1)]);
        let error = Log::open(folder.path(), MIB).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
    }
    let mut log = Log::open(folder.path(), MIB).unwrap();
    assert_eq!(all(&log, 7), ["a", "c", "d"]);
    assert_eq!(log.read(7, 1).unwrap().frames, 1);
    assert_eq!(log.done(7, 2), 5);
    assert_eq!((all(&log, 7), files(&folder)), (vec!["d".to_owned()], 1));
    assert_eq!(log.done(7, 1), 1);
    assert_eq!(log.done(9, 1), 1);
    assert_eq!((log.charge(), files(&folder)), (0, 0));
    log.append(&[frame(8, 1, "e")]).unwrap();
    assert_eq!(all(&log, 8), ["e"]);
}

#[test]
fn damage_costs_no_frame_behind_it() {
    let folder = TempDir::new().unwrap();
    let mut log = Log::open(folder.path(), MIB).unwrap();
    let frames = [
        frame(7, 1, "first"),
        frame(7, 1, "broken"),
        frame(8, 1, "behind"),
    ];
    log.append(&frames).unwrap();
    let path = log.path(1);
    drop(log);
    let bytes = fs::read(&path).unwrap();
    let second = HEAD_BYTES + message("first").len();
    // In its checksum, its length, its DSP, and what it holds.
    for at in [0, 4, 7, 8, HEAD_BYTES + 6].map(|at| second + at) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        let mut log = Log::open(folder.path(), MIB).unwrap();
        assert_eq!(
            (all(&log, 7), all(&log, 8)),
            (vec!["first".into()], vec!["behind".into()])
        );
        log.append(&[frame(7, 1, "next")]).unwrap();
        assert_eq!(all(&log, 7), ["first", "next"]);
        drop(log);
        fs::write(&path, &bytes).unwrap();
    }
}

#[test]
fn end_that_is_not_whole_is_cut_off_and_overwritten() {
    let folder = TempDir::new().unwrap();
    let mut log = Log::open(folder.path(), MIB).unwrap();
    log.append(&[frame(7, 1, "whole"), frame(7, 1, "torn")])
        .unwrap();
    let path = log.path(1);
    drop(log);
    let bytes = fs::read(&path).unwrap();
    for cut in 1..HEAD_BYTES + 9 {
        fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
        let mut log = Log::open(folder.path(), MIB).unwrap();
        assert_eq!(all(&log, 7), ["whole"], "{cut} bytes cut off");
        log.append(&[frame(7, 1, "next")]).unwrap();
        assert_eq!(all(&log, 7), ["whole", "next"]);
    }
}

#[test]
fn frame_that_changed_on_the_disk_is_not_given_out() {
    let folder = TempDir::new().unwrap();
    let mut log = Log::open(folder.path(), MIB).unwrap();
    log.append(&[frame(7, 1, "good")]).unwrap();
    let path = log.path(1);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = log.read(7, u64::MAX).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn one_dsp_gets_half_of_the_room_and_there_is_some_for_others() {
    let folder = TempDir::new().unwrap();
    let mut log = Log::open(folder.path(), MIB).unwrap();
    let text = "x".repeat(10_000);
    let bytes = text.len() as u64 + 21;
    let fill = |log: &mut Log, dsp_id| {
        while log.has_room(dsp_id, bytes, 0) {
            log.append(&[frame(dsp_id, 1, &text)]).unwrap();
        }
        all(log, dsp_id).len()
    };
    assert_eq!(fill(&mut log, 1), 52, "half of 104 frames");
    assert_eq!(fill(&mut log, 2), 26, "half of the rest");
    assert!(log.has_room(3, bytes, 0) && !log.has_room(1, bytes, 0));
    assert!(log.charge() < MIB);
}

#[test]
fn few_cookies_do_not_keep_the_room_of_many() {
    let folder = TempDir::new().unwrap();
    let mut log = Log::open(folder.path(), MIB).unwrap();
    let text = "x".repeat(10_000);
    log.append(&[frame(1, 1, "little")]).unwrap();
    for _ in 0..20 {
        log.append(&[frame(2, 1, &text)]).unwrap();
    }
    let before = log.charge();
    log.done(2, 15);
    assert_eq!(
        log.charge(),
        before - 7 * 10_021,
        "the second of three segments went"
    );
    log.make_room().unwrap();
    assert!(log.charge() < before / 2, "{} of {before}", log.charge());
    assert_eq!(
        (all(&log, 1), all(&log, 2).len()),
        (vec!["little".to_owned()], 5)
    );
    drop(log);
    let log = Log::open(folder.path(), MIB).unwrap();
    assert_eq!(all(&log, 1), ["little"]);
}

#[derive(Debug, Clone)]
enum Step {
    Append(Vec<(u32, u16)>),
    Done(u32, usize),
    MakeRoom,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec((1..4_u32, 0..9_000_u16), 1..6).prop_map(Step::Append),
        4 => (1..4_u32, 1..8_usize).prop_map(|(dsp_id, frames)| Step::Done(dsp_id, frames)),
        1 => Just(Step::MakeRoom),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nothing that is wanted is ever missing or in another order; after a restart there may be more, never less.
    #[test]
    fn log_has_what_a_queue_of_each_dsp_has(steps in steps()) {
        let folder = TempDir::new().unwrap();
        let mut log = Log::open(folder.path(), MIB).unwrap();
        let mut model: BTreeMap<u32, VecDeque<String>> = BTreeMap::new();
        let mut number = 0;
        for step in steps {
            match step {
                Step::Append(frames) => {
                    let texts = frames.iter().map(|(dsp_id, length)| {
                        number += 1;
                        (*dsp_id, format!("{number}{}", "-".repeat(usize::from(*length))))
                    });
                    let texts: Vec<_> = texts.collect();
                    let frames: Vec<_> = texts.iter().map(|(dsp_id, text)| frame(*dsp_id, 1, text)).collect();
                    log.append(&frames).unwrap();
                    for (dsp_id, text) in texts {
                        model.entry(dsp_id).or_default().push_back(text);
                    }
                }
                Step::Done(dsp_id, frames) => {
                    let kept = model.entry(dsp_id).or_default();
                    let gone = kept.drain(..frames.min(kept.len())).count();
                    prop_assert_eq!(log.done(dsp_id, frames), gone as u64);
                }
                Step::MakeRoom => log.make_room().unwrap(),
                Step::Reopen => {
                    drop(log);
                    log = Log::open(folder.path(), MIB).unwrap();
                    for (dsp_id, kept) in &mut model {
                        let found = all(&log, *dsp_id);
                        let wanted: Vec<_> = kept.iter().collect();
                        prop_assert!(wanted.iter().all(|text| found.contains(text)));
                        *kept = found.into();
                    }
                }
            }
            for (dsp_id, kept) in &model {
                let kept: Vec<_> = kept.iter().cloned().collect();
                prop_assert_eq!(all(&log, *dsp_id), kept);
            }
        }
    }
}
