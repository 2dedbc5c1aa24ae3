//! Marks on a line, which tell it from the others without colour.

use anyhow::Result;
use plotters::{
    backend::DrawingBackend,
    coord::CoordTranslate,
    element::{Circle, Cross, EmptyElement, Polygon, Rectangle, TriangleMarker},
    prelude::{Color, DrawingArea, RGBColor},
};

use super::{drawing, outline::Point};

/// Half a mark's size, in pixels.
const RADIUS: i32 = 4;

/// A line with more points than this many to a hundred pixels has a mark only now and then.
const POINTS_IN_100_PIXELS_MAX: usize = 8;
/// How far apart those are.
const DISTANCE_PIXELS: usize = 110;

/// The shape of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Square,
    Triangle,
    Cross,
    Diamond,
}

const ALL: [Mark; 5] = [
    Mark::Circle,
    Mark::Square,
    Mark::Triangle,
    Mark::Cross,
    Mark::Diamond,
];

impl Mark {
    /// That of a plot's line. There are five marks and seven colours, so 35 lines are told apart.
    pub(super) fn of(index: usize) -> Self {
        ALL[index % ALL.len()]
    }

    /// Draws it.
    pub(super) fn draw<DB: DrawingBackend, C: CoordTranslate>(
        self,
        area: &DrawingArea<DB, C>,
        at: C::From,
        color: RGBColor,
    ) -> Result<()>
    where
        C::From: Clone,
    {
        let (r, style) = (RADIUS, color.filled());
        let place = EmptyElement::at(at);
        match self {
            Self::Circle => area.draw(&(place + Circle::new((0, 0), r, style))),
            Self::Square => area.draw(&(place + Rectangle::new([(-r, -r), (r, r)], style))),
            Self::Triangle => area.draw(&(place + TriangleMarker::new((0, 0), r + 1, style))),
            Self::Cross => area.draw(&(place + Cross::new((0, 0), r, color.stroke_width(2)))),
            Self::Diamond => {
                let corners = [(0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)];
                area.draw(&(place + Polygon::new(corners, style)))
            }
        }
        .map_err(drawing)
    }
}

/// Where marks stand: at each point where there is room, else now and then; and at each point that stands alone, which
/// would not be seen otherwise. Lines of one plot have them at different places.
pub(super) fn places(runs: &[Vec<Point>], width: usize, index: usize) -> Vec<Point> {
    let points: usize = runs.iter().map(Vec::len).sum();
    let every = if points * 100 <= width * POINTS_IN_100_PIXELS_MAX {
        1
    } else {
        (points * DISTANCE_PIXELS / width).max(1)
    };
    let offset = (index * every * 2 / ALL.len()) % every;
    let mut number = 0;
    let mut places = Vec::new();
    for run in runs {
        for place in run {
            if number % every == offset || run.len() == 1 {
                places.push(*place);
            }
            number += 1;
        }
    }
    places
}
