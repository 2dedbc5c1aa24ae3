//! Tests in which workers, the broker, and makers (which send the batches of jobs) are killed at any point, with a
//! source, stored objects and lost responses.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    sync::Mutex,
    time::Duration,
};

use revalidator::{
    contents::Contents,
    messages::{AllowDelete, RevalidatorState, ServerState},
};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::harness::{CHANGED, Simulation, seeds};

/// Assets of the job; some have more than a maker transmits between two cursors.
fn assets(seed: u64) -> usize {
    if seed.is_multiple_of(20) { 2_500 } else { 600 }
}

/// Simulated time in which a job ends, whatever fails.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// What the origin has, by the number of an asset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    Gone,
    Changed,
    /// Its first request fails.
    Flaky,
    Fresh,
}

fn truth(number: usize) -> Truth {
    match number % 20 {
        0 | 1 => Truth::Gone,
        2 => Truth::Changed,
        3 => Truth::Flaky,
        _ => Truth::Fresh,
    }
}

fn number(key: &str) -> usize {
    key.rsplit('/').next().unwrap().parse().unwrap()
}

fn write_source(dir: &Path, count: usize) -> String {
    let lines = (0..count).map(|number| {
        let key = format!("a/{number}");
        format!("{{\"url\":\"https://origin.example/{number}\",\"key\":\"{key}\",\"eTag\":\"\\\"1\\\"\"}}\n")
    });
    fs::write(dir.join("assets.ndjson"), lines.collect::<String>()).unwrap();
    let dir = dir.display();
    let contents = Contents::parse(&format!("file:{dir}/contents")).unwrap();
    for number in 0..count {
        let path = contents.path(&format!("a/{number}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "old").unwrap();
    }
    format!(
        "[apps.a]\nkind = \"list\"\nhosts = [\"origin.example\"]\nassets = \"{dir}/assets.ndjson\"\n\
         contents = \"file:{dir}/contents\"\nallow_delete = \"partial\"\nworkers = 2\n"
    )
}

/// Runs a job under faults that `seed` selects; returns the numbers of faults and of repeated requests.
async fn run(seed: u64) -> (usize, usize) {
    // Objects are synced to the disk, which is slow in other directories.
    let memory = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let count = assets(seed);
    let apps = write_source(dir.path(), count);
    let flaky = Mutex::new(HashMap::new());
    let mut simulation = Simulation::new(&apps, move |asset, _| {
        let number = number(&asset.key);
        let status = match truth(number) {
            Truth::Gone => 404,
            Truth::Changed => 200,
            Truth::Flaky if flaky.lock().unwrap().insert(number, ()).is_none() => 503,
            Truth::Flaky | Truth::Fresh => 304,
        };
        (
            status,
            Duration::from_millis(100 + (number as u64 * 7919) % 400),
        )
    });
    let mut random = fastrand::Rng::with_seed(seed);
    simulation.skew_clocks();
    simulation.model.set_latency(random.u64(0..20), seed);
    let mut makers = vec![simulation.maker(), simulation.maker()];
    let mut workers: Vec<_> = (0..2).map(|_| simulation.worker()).collect();
    simulation
        .list_job("a", "job", |new| new.allow_delete = AllowDelete::Partial)
        .await;
    let (faults, mut may_repeat) = (random.usize(1..6), 0);
    for _ in 0..faults {
        sleep(Duration::from_millis(random.u64(0..15_000))).await;
        match random.u32(0..4) {
            0 => {
                let index = random.usize(0..makers.len());
                makers.swap_remove(index).abort();
                makers.push(simulation.maker());
            }
            1 => {
                simulation.model.set_down(true);
                sleep(Duration::from_millis(random.u64(0..45_000))).await;
                simulation.model.set_down(false);
                // Each worker can lose the response to its acknowledgement.
                may_repeat += workers.len();
            }
            _ => {
                let index = random.usize(0..workers.len());
                workers.swap_remove(index).abort();
                workers.push(simulation.worker());
                may_repeat += 1;
            }
        }
    }
    let ended = timeout(TIMEOUT, simulation.wait_ended("job")).await;
    let ended = ended.expect("the job ends");
    sleep(Duration::from_secs(60)).await;
    let later = simulation.status("job").await;
    assert_eq!(
        (&later.server_state, &later.revalidator_state, &later.reason),
        (&ServerState::Finished, &RevalidatorState::Finished, &None),
        "{ended:?}"
    );
    let counts = ended.counts;
    let of = |expected| (0..count).filter(|it| truth(*it) == expected).count() as u64;
    assert_eq!(
        (
            counts.checked,
            counts.changed,
            counts.gone,
            counts.deleted,
            counts.held_back,
            counts.failed
        ),
        (
            count as u64,
            of(Truth::Changed),
            of(Truth::Gone),
            of(Truth::Gone),
            0,
            0
        )
    );
    assert_eq!(simulation.model.unsettled("job"), 0);
    let text = fs::read_to_string(dir.path().join("assets.ndjson")).unwrap();
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        (number(line["key"].as_str().unwrap()), line)
    });
    let lines: BTreeMap<_, _> = lines.collect();
    let mut repeated = 0;
    for it in 0..count {
        let key = format!("a/{it}");
        let requests = simulation.requests_for(&key) as usize;
        assert!(requests > 0, "{key} was not checked");
        repeated += requests - 1;
        match (truth(it), lines.get(&it)) {
            (Truth::Gone, None) => {}
            (Truth::Gone, Some(line)) => panic!("{line} is not removed"),
            (_, None) => panic!("{key} is removed"),
            (Truth::Changed, Some(line)) => assert_eq!(line["eTag"], CHANGED.0, "{key}"),
            (_, Some(line)) => assert_eq!(line["eTag"], "\"1\"", "{key}"),
        }
        // A failed first attempt is retried once.
        repeated -= usize::from(truth(it) == Truth::Flaky && requests > 1);
    }
    assert_eq!(lines.len() as u64, count as u64 - of(Truth::Gone));
    let contents = dir.path().join("contents");
    let files = fs::read_dir(contents)
        .unwrap()
        .flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
    let files: Vec<_> = files
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect();
    assert_eq!(files.len() as u64, count as u64 - of(Truth::Gone));
    let changed = files.iter().filter(|file| *file == CHANGED.1).count();
    assert_eq!(changed as u64, of(Truth::Changed));
    assert!(
        repeated <= 100 * may_repeat,
        "{repeated} requests repeated, {may_repeat} batches may be"
    );
    (faults, repeated)
}

/// `SIM_SEEDS=25..1000` runs other seeds.
#[test]
fn a8_kills_at_any_point_lose_and_remove_nothing() {
    let (mut faults, mut repeated) = (0, 0);
    for seed in seeds("0..25") {
        println!("seed {seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        let of_run = runtime.unwrap().block_on(run(seed));
        faults += of_run.0;
        repeated += of_run.1;
    }
    println!("{faults} faults, {repeated} requests repeated");
}
