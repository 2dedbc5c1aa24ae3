//! Tests of the state of an engine that is restored from records.

use std::time::Duration;

use limiter::serve::engine::{CallError, Engine, Feedback, Options, RestoreFailure};
use limits_sharing::exact::{ExactDecision, Operation, Outcome};

use super::{
    BOOKED, Disk, HOUR, OPTIONS, Records, SECOND, SEVERAL, START, fresh,
    from_call::{OF_CALLS, of_call},
    limits, of, slot,
};

#[test]
fn refused_calls_that_count_are_restored() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '2/10s', algorithm = 'sliding_log', count_refused = true }]";
    let engine = fresh(text);
    let mut disk = Disk::of(&engine);
    for second in 0..5 {
        let now = START + second * SECOND;
        let call = engine.reserve(None, &[of("a", "k")], 1, Duration::ZERO, now);
        assert_eq!(call.is_ok(), second < 2);
    }
    let now = START + 6 * SECOND;
    let next = engine.delay(&[of("a", "k")], 1, true, now).unwrap();
    assert_eq!(next.at, START + 13 * SECOND);
    disk.write(&engine);
    let (other, _) = disk.start(OPTIONS, text, now);
    assert_eq!(other.delay(&[of("a", "k")], 1, true, now), Ok(next));
}

#[test]
fn refused_call_that_counts_under_one_rule_uses_no_quota_of_others() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '9/10s', algorithm = 'sliding_log', count_refused = true }, { id = 's', rate = '1/h' }]";
    let engine = fresh(text);
    let mut disk = Disk::of(&engine);
    let feedback = Feedback {
        status: 429,
        windows: vec![(0, Duration::from_secs(5))],
    };
    assert!(
        engine
            .apply_feedback(&of("a", "k"), &feedback, START)
            .unwrap()
    );
    let refused = engine.reserve(None, &[of("a", "k")], 1, Duration::ZERO, START);
    assert!(matches!(refused, Err(CallError::OverMaxWait(_))));
    disk.write(&engine);
    let (other, _) = disk.start(OPTIONS, text, START);
    for engine in [engine, other] {
        let next = engine.delay(&[of("a", "k")], 1, true, START).unwrap();
        assert_eq!(next.at, START + 5 * SECOND);
    }
}

/// Has the sharing server grant a call, unless feedback pauses it. Returns the pause.
fn grant_by_server(engine: &Engine, counter: &str, now: u64) -> Duration {
    let operation = Operation::Reserve { max_wait: HOUR };
    let pending = engine.begin_decision(None, &[of("a", counter)], 1, operation, true, now);
    let pending = pending.unwrap_or_else(|error| panic!("{error:?}"));
    let pause = pending.pause;
    if !pause.is_zero() {
        engine.abandon_decision(&pending, false);
        return pause;
    }
    let decision = ExactDecision {
        outcome: Outcome::Now,
        at: now / 1_000,
        now: now / 1_000,
        binding: None,
        retry_after: 0,
        remaining: Vec::new(),
    };
    engine
        .finish_decision(&pending, &decision, now)
        .expect("the call is granted");
    pause
}

#[test]
fn calls_granted_by_the_server_count_against_restored_feedback() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1000/s' }]";
    let options = Options {
        counted_by_server: true,
        ..OPTIONS
    };
    let engine = Engine::new(options, &limits(text));
    let mut disk = Disk::of(&engine);
    let feedback = Feedback {
        status: 200,
        windows: vec![(2, HOUR)],
    };
    assert!(
        engine
            .apply_feedback(&of("a", "k"), &feedback, START)
            .unwrap()
    );
    assert_eq!(grant_by_server(&engine, "k", START), Duration::ZERO);
    assert_eq!(grant_by_server(&engine, "k", START), Duration::ZERO);
    disk.write(&engine);
    let (other, _) = disk.start(options, text, START);
    for engine in [engine, other] {
        assert_eq!(grant_by_server(&engine, "k", START), HOUR);
    }
}

/// Tidies at the interval of a running limiter.
fn tidy(engine: &Engine, from: u64, to: u64) {
    (from..=to)
        .step_by(25_000_000)
        .for_each(|now| engine.tidy(now));
}

#[test]
fn counters_that_replaced_idle_ones_are_restored() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '2/h', burst = 2 }]";
    let engine = fresh(text);
    let mut disk = Disk::of(&engine);
    let reserve = |counter: u32, requests, now| {
        let slot = engine.reserve(None, &[of("a", &counter.to_string())], requests, HOUR, now);
        assert_eq!(slot.map(|slot| slot.at), Ok(now));
    };
    let idle = 7_000..7_010;
    for counter in 0..10_000 {
        let requests = if idle.contains(&counter) { 1 } else { 2 };
        reserve(counter, requests, START);
    }
    // Half an hour later, counters with one request are idle.
    let now = START + 1_802 * SECOND;
    tidy(&engine, now - 2 * SECOND, now);
    for counter in 10_000..10_010 {
        reserve(counter, 2, now);
    }
    disk.write(&engine);
    let (other, _) = disk.start(OPTIONS, text, now);
    for counter in (0..10_010).filter(|it| !idle.contains(it)) {
        let next = other.delay(&[of("a", &counter.to_string())], 2, true, now);
        assert!(next.unwrap().at > now, "{counter}");
    }
}

#[test]
fn evictions_are_divided_among_writes() {
    let engine = fresh("[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]");
    for counter in 0..5_000 {
        let slot = engine.reserve(None, &[of("a", &counter.to_string())], 1, HOUR, START);
        assert_eq!(slot.map(|slot| slot.at), Ok(START));
    }
    // Each write also has the clock.
    assert_eq!(engine.take_changes().len(), 5_001);
    let (now, mut evicted) = (START + 2 * SECOND, 0);
    while evicted < 5_000 {
        engine.tidy(now);
        let of_write = engine.take_changes().len() - 1;
        assert!((1..=128).contains(&of_write), "{of_write}");
        evicted += of_write;
    }
}

#[test]
fn restrictions_that_replaced_expired_ones_are_restored() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]";
    let engine = fresh(text);
    let mut disk = Disk::of(&engine);
    let apply = |counter: u32, seconds, now| {
        let feedback = Feedback {
            status: 503,
            windows: vec![(0, Duration::from_secs(seconds))],
        };
        engine
            .apply_feedback(&of("a", &counter.to_string()), &feedback, now)
            .unwrap()
    };
    for counter in 0..50_000 {
        assert!(apply(counter, 1, START));
    }
    let now = START + 15 * SECOND;
    assert!(!apply(60_000, 100, now));
    engine.tidy(now);
    assert!(apply(60_000, 100, now));
    disk.write(&engine);
    let (other, _) = disk.start(OPTIONS, text, now);
    let next = other.delay(&[of("a", "60000")], 1, true, now).unwrap();
    assert_eq!(next.at, now + 100 * SECOND);
}

#[test]
fn rules_of_calls_that_replaced_unused_ones_are_restored() {
    let engine = fresh(OF_CALLS);
    let names = [1, 2].map(|it| (it * 100..it * 100 + 64).map(|it| of_call(it, 1)));
    let [queried, used] = names.map(Iterator::collect::<Vec<_>>);
    for limit in &queried {
        assert!(engine.delay(&[of(limit, "k")], 1, true, START).is_ok());
    }
    let now = START + 601 * SECOND;
    engine.tidy(now);
    let mut disk = Disk::of(&engine);
    for limit in &used {
        engine.increment(&[of(limit, limit)], 1, None, now).unwrap();
    }
    disk.write(&engine);
    let (other, _) = disk.start(OPTIONS, OF_CALLS, now);
    for limit in &used {
        let next = [&engine, &other].map(|it| it.delay(&[of(limit, limit)], 1, true, now));
        assert!(next[0].as_ref().is_ok_and(|slot| slot.at > now));
        assert_eq!(next[0], next[1]);
    }
}

#[test]
fn more_counters_than_the_maximum_are_not_restored() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/h', burst = 2 }]";
    let engine = fresh(text);
    slot(&engine, &[of("a", "k")], START);
    let records = Disk::of(&engine).records();
    let few = Options {
        counters_max: 0,
        ..OPTIONS
    };
    let restored = Engine::new(few, &limits(text)).restore(&records, START);
    assert_eq!(restored, Err(RestoreFailure::CounterLimit));
}

#[test]
fn corrupt_records_and_those_of_another_version_are_rejected() {
    let engine = fresh(SEVERAL);
    slot(&engine, &[of("a", "k")], START);
    let records = Disk::of(&engine).records();
    let restore = |change: fn(&mut Records)| {
        let mut records = records.clone();
        change(&mut records);
        fresh(SEVERAL).restore(&records, START)
    };
    assert_eq!(restore(|_| {}).map(|it| it.counters), Ok(3));
    let corrupt = Err(RestoreFailure::Corrupt);
    assert_eq!(restore(|all| drop(all.remove(0))), corrupt);
    assert_eq!(restore(|all| all[1].1.truncate(3)), corrupt);
    assert_eq!(restore(|all| all[1].0.truncate(2)), corrupt);
    let other = restore(|all| all[0].1[0] += 1);
    assert_eq!(other, Err(RestoreFailure::Version));
}

#[test]
fn records_of_idle_counters_and_removed_limits_are_removed() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n[limits.b]\nrules = [{ id = 'r', rate = '1/h' }]";
    let refused = Feedback {
        status: 429,
        ..Feedback::default()
    };
    let used = |limit: &str| {
        let engine = fresh(text);
        slot(&engine, &[of(limit, "k")], START);
        assert!(
            engine
                .apply_feedback(&of(limit, "k"), &refused, START)
                .unwrap()
        );
        (Disk::of(&engine), engine)
    };
    // Idle counters, while the limiter runs.
    let (mut disk, engine) = used("a");
    assert_eq!(disk.0.len(), 3);
    engine.tidy(START + 100 * SECOND);
    disk.write(&engine);
    assert_eq!(disk.0.len(), 1);
    // Removed limits, even if they return immediately.
    let other = "[limits.c]\nrules = [{ id = 'r', rate = '1/s' }]";
    let (mut disk, engine) = used("b");
    for text in [other, text] {
        engine.change(&limits(text), Vec::new(), START);
    }
    disk.write(&engine);
    let (restarted, _) = disk.start(OPTIONS, text, START);
    assert_eq!(slot(&restarted, &[of("b", "k")], START).at, START);
    // Both at startup.
    for (limit, text) in [("a", text), ("b", other)] {
        let (mut disk, _) = used(limit);
        let (restarted, _) = disk.start(OPTIONS, text, START);
        restarted.tidy(START + 100 * SECOND);
        disk.write(&restarted);
        assert_eq!(disk.0.len(), 1, "{limit}");
    }
}

#[test]
fn usage_is_kept_if_limits_change_while_changes_are_taken() {
    let engine = fresh(SEVERAL);
    for counter in 0..1_000 {
        slot(&engine, &[of("b", &counter.to_string())], START + counter);
    }
    let mut disk = Disk::of(&engine);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..40 {
                let other = SEVERAL.replace("1/10s", &format!("1/{}s", 10 + round % 2));
                engine.change(&limits(&other), Vec::new(), START + SECOND);
            }
        });
        for _ in 0..20 {
            disk.write(&engine);
            let restored = fresh(SEVERAL).restore(&disk.records(), START + SECOND);
            assert!(restored.unwrap().counters >= 1_000, "{restored:?}");
        }
    });
    assert!(engine.version() == 41);
}

#[test]
fn usage_carried_over_to_changed_limits_is_restored() {
    let text =
        |rate: &str| format!("[limits.a]\nrules = [{{ id = 'r', rate = '{rate}', burst = 9 }}]");
    let (fast, slow) = (text("9/10s"), text("9/h"));
    let engine = fresh(&fast);
    engine
        .reserve(None, &[of("a", "k")], 9, Duration::ZERO, START)
        .unwrap();
    let mut disk = Disk::of(&engine);
    // The new rate frees quota slowly.
    engine.change(&limits(&slow), Vec::new(), START);
    disk.write(&engine);
    let mut now = START;
    for _ in 0..3 {
        now += 60 * SECOND;
        engine.tidy(now);
        disk.write(&engine);
        let (other, _) = disk.start(OPTIONS, &slow, now);
        let next = [&engine, &other].map(|it| it.delay(&[of("a", "k")], 1, true, now));
        assert_eq!(next[0], next[1]);
        assert_eq!(next[0].as_ref().map(|it| it.at), Ok(START + 400 * SECOND));
    }
    // The same if the limits change while the limiter is stopped.
    let engine = fresh(&fast);
    engine
        .reserve(None, &[of("a", "k")], 9, Duration::ZERO, START)
        .unwrap();
    let mut disk = Disk::of(&engine);
    for _ in 0..3 {
        let (other, _) = disk.start(OPTIONS, &slow, START);
        other.tidy(START + 60 * SECOND);
        disk.write(&other);
        let next = other.delay(&[of("a", "k")], 1, true, START + 60 * SECOND);
        assert_eq!(next.map(|it| it.at), Ok(START + 400 * SECOND));
    }
}

#[test]
fn calls_granted_under_changed_limits_are_restored_with_their_sources() {
    let engine = fresh(BOOKED);
    engine.save_sources(b"before".to_vec());
    let mut disk = Disk::of(&engine);
    let saved = |disk: &Disk| Engine::saved_sources(&disk.records()).map(<[u8]>::to_vec);
    assert_eq!(saved(&disk).as_deref(), Ok(&b"before"[..]));
    engine.change(&limits(SEVERAL), b"after".to_vec(), START);
    assert_eq!(slot(&engine, &[of("b", "k")], START).at, START);
    disk.write(&engine);
    assert_eq!(saved(&disk).as_deref(), Ok(&b"after"[..]));
    let (other, _) = disk.start(OPTIONS, SEVERAL, START);
    for engine in [engine, other] {
        assert_eq!(
            slot(&engine, &[of("b", "k")], START).at,
            START + 10 * SECOND
        );
    }
}
