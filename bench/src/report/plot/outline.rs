//! What can be seen of a line: its unbroken runs, with no more points than pixels can show.

/// A point on the plot.
pub(super) type Point = (f64, f64);

/// Cuts a line where it is interrupted, and leaves out of each run what would not change its picture.
///
/// Of all points in one column of pixels the first, the lowest, the highest and the last are kept.
pub(super) fn runs(
    places: impl Iterator<Item = Option<Point>>,
    (low, high): (f64, f64),
    columns: usize,
) -> Vec<Vec<Point>> {
    let mut runs = vec![Vec::new()];
    for place in places {
        match place {
            Some(place) => {
                if let Some(run) = runs.last_mut() {
                    run.push(place);
                }
            }
            None => runs.push(Vec::new()),
        }
    }
    runs.retain(|run| !run.is_empty());
    let all: usize = runs.iter().map(Vec::len).sum();
    if all <= 2 * columns {
        return runs;
    }
    let column = |x: f64| ((x - low) / (high - low) * columns as f64).floor();
    runs.iter()
        .map(|run| {
            let same_column = |a: &Point, b: &Point| column(a.0) == column(b.0);
            run.chunk_by(same_column).flat_map(outline).collect()
        })
        .collect()
}

/// First, lowest, highest and last, in their order, each once.
fn outline(points: &[Point]) -> Vec<Point> {
    let by_height = |a: &usize, b: &usize| points[*a].1.total_cmp(&points[*b].1);
    let indices = || 0..points.len();
    let extremes = [indices().min_by(by_height), indices().max_by(by_height)];
    let ends = [Some(0), points.len().checked_sub(1)];
    let mut kept: Vec<usize> = extremes.into_iter().chain(ends).flatten().collect();
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|index| points[index]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_cut_where_it_is_interrupted() {
        let line = [
            None,
            Some((0.0, 1.0)),
            Some((1.0, 2.0)),
            None,
            None,
            Some((2.0, 3.0)),
        ];
        let expected = vec![vec![(0.0, 1.0), (1.0, 2.0)], vec![(2.0, 3.0)]];
        assert_eq!(runs(line.into_iter(), (0.0, 2.0), 100), expected);
        assert!(runs([None].into_iter(), (0.0, 1.0), 100).is_empty());
    }

    #[test]
    fn long_line_keeps_its_extremes() {
        let spike = |x: u32| if x == 77_777 { 1e6 } else { f64::from(x % 7) };
        let line = (0..100_000).map(|x| Some((f64::from(x), spike(x))));
        let runs = runs(line, (0.0, 99_999.0), 500);
        assert_eq!(runs.len(), 1);
        assert!(runs[0].len() <= 4 * 501, "{}", runs[0].len());
        assert!(runs[0].contains(&(77_777.0, 1e6)));
        assert!(runs[0].is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!(runs[0].last(), Some(&(99_999.0, spike(99_999))));
    }
}
