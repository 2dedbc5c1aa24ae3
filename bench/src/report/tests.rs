//! Tests that reports with hostile strings and unusual values are rendered and read back.

use std::{error::Error, fs};

use tempfile::TempDir;

use super::{
    unit::{COUNT, RATE},
    *,
};

type TestResult = Result<(), Box<dyn Error>>;

const HOSTILE: &str = "<script>alert('x')</script> & \"quotes\"";

fn series(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        points: points.collect(),
    }
}

fn plot(name: &'static str, series: Vec<Series>) -> Plot {
    Plot::new(name, "latency, ms", series)
}

/// A report that uses all features.
fn full() -> Report {
    let mut report = Report::new("load", "Load of 40 000 requests a second");
    report.seconds = 12.34;
    report.findings = vec!["All requests were accepted.".to_owned(), HOSTILE.to_owned()];
    report.failures = vec![HOSTILE.to_owned()];
    report.environment.command = vec!["bench".to_owned(), "load".to_owned(), HOSTILE.to_owned()];
    let measurements = |name: &str| {
        let rate = RATE.of("rate", f64::NAN);
        Row::new(
            name,
            [
                Measurement::text(HOSTILE, HOSTILE),
                rate,
                COUNT.of("a number with a long heading", 1_000_u64),
            ],
        )
    };
    report.add(
        HOSTILE,
        HOSTILE,
        [measurements(HOSTILE), measurements("second")],
    );
    let wave = |shift: f64| {
        (0..600).map(move |x| (f64::from(x), 9.0 + (f64::from(x) / 60.0 + shift).sin()))
    };
    let many =
        (0..6_u8).map(|n| series(&format!("p{n} from the intended time"), wave(f64::from(n))));
    let broken = wave(0.0).map(|(x, y)| (x, if x % 100.0 < 30.0 { f64::NAN } else { y }));
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(|x| (x, 1e6 / x));
    report.plots = vec![
        plot("many", many.collect()),
        plot("broken", vec![series(HOSTILE, broken)]),
        plot("steps", vec![series("rate", steps.into_iter())]),
    ];
    report
}

#[test]
fn report_survives_a_round_trip() -> TestResult {
    let parent = TempDir::new()?;
    let args = ReportArgs {
        report: Some(parent.path().join("r")),
        ..ReportArgs::default()
    };
    let dir = args.prepare("load").map_err(|error| error.to_string())?;
    let dir = dir.ok_or("no directory")?;
    let report = full();
    let path = report.write(&dir)?;
    let path = path.parent().ok_or("no parent directory")?;
    for name in ["report.json", "plot-1.svg", "report.html"] {
        assert!(fs::metadata(path.join(name))?.len() > 0, "{name}");
    }
    let read: Report = serde_json::from_slice(&fs::read(path.join("report.json"))?)?;
    assert_eq!(read.environment, report.environment);
    assert_eq!(read.tables, report.tables);
    assert_eq!(
        read.value("second: a number with a long heading"),
        Some(1_000.0)
    );
    assert!(args.prepare("load").is_err(), "the directory is not empty");
    Ok(())
}

#[test]
fn page_is_self_contained() -> TestResult {
    let page = page::html(&full())?;
    // The namespace is not fetched.
    let page = page.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
    for word in [
        "http:",
        "https:",
        "src=",
        "url(",
        "@import",
        "<script",
        "<link rel=\"stylesheet",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(
        page.matches("href=").count(),
        page.matches("href=\"data:,\"").count()
    );
    assert_eq!(page.matches("<svg").count(), 3);
    Ok(())
}

#[test]
fn strings_are_escaped_everywhere() -> TestResult {
    let report = full();
    let drawings = report.plots.iter().map(plot::draw);
    let mut drawings: Vec<_> = drawings.collect::<Result<_, _>>()?;
    drawings.push(page::html(&report)?);
    for drawing in &drawings {
        assert!(!drawing.contains("<script"), "{drawing}");
    }
    let escaped = drawings
        .iter()
        .filter(|drawing| drawing.contains("&lt;script&gt;"));
    assert_eq!(
        escaped.count(),
        2,
        "the page, and the plot with the string in its legend"
    );
    Ok(())
}

#[test]
fn plots_of_unusual_data_are_drawn() -> TestResult {
    let values = [
        f64::NAN,
        f64::INFINITY,
        f64::MAX,
        -f64::MAX,
        -1.0,
        0.0,
        1e-300,
        5.0,
    ];
    let mut lines: Vec<Vec<(f64, f64)>> = vec![Vec::new(), values.map(|v| (v, v)).to_vec()];
    lines.extend(values.iter().flat_map(|x| values.map(|y| vec![(*x, y)])));
    lines.extend(
        values
            .iter()
            .map(|y| vec![(1.0, *y), (2.0, *y), (3.0, 7.0)]),
    );
    for points in lines {
        let strange = plot("strange", vec![series("a", points.iter().copied())]);
        let drawn = plot::draw(&strange)?;
        assert!(
            drawn.ends_with("</svg>\n") && !drawn.contains("NaN"),
            "{points:?}"
        );
    }
    plot::draw(&plot("empty", Vec::new()))?;
    Ok(())
}
