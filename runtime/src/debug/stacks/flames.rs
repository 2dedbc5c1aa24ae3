//! A profile as a picture: each function is a bar over the one that called it, as wide as the time spent in it and in what
//! it called. The whole name, and the share, show under the pointer.
//!
//! Drawn here, as the library for such pictures, inferno, has a licence (CDDL) that asks more than a notice.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{Profile, Stack};

const WIDTH: f64 = 1600.0;
const ROW: f64 = 17.0;

/// Narrower bars than this, in pixels, are left out.
const NARROW: f64 = 0.4;

/// Width of a letter, in pixels.
const LETTER: f64 = 6.6;

/// What was found above a function, by name.
#[derive(Default)]
struct Node {
    amount: u64,
    above: BTreeMap<String, Node>,
}

impl Node {
    fn add(&mut self, stack: &Stack) {
        let mut node = self;
        node.amount += stack.values[1];
        let functions = stack.lines.iter().rev().map(|line| &line.function);
        for name in stack.thread.iter().chain(functions) {
            node = node.above.entry(name.clone()).or_default();
            node.amount += stack.values[1];
        }
    }

    fn height(&self) -> u32 {
        1 + self.above.values().map(Self::height).max().unwrap_or(0)
    }
}

/// The picture of all stacks.
pub(super) fn svg(profile: &Profile) -> String {
    let mut root = Node::default();
    profile.stacks.iter().for_each(|stack| root.add(stack));
    let height = f64::from(root.height()) * ROW + 4.0;
    let mut picture = Picture {
        svg: format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" \
             font-size=\"11\">\n"
        ),
        all: root.amount.max(1),
        unit: profile.sample_types[1].1,
    };
    picture.draw("all", &root, 0.0, height - ROW - 2.0);
    picture.svg.push_str("</svg>\n");
    picture.svg
}

struct Picture {
    svg: String,
    all: u64,
    unit: &'static str,
}

impl Picture {
    /// Draws a function and what is above it; the recursion is as deep as the deepest stack, which has a bound.
    fn draw(&mut self, name: &str, node: &Node, mut x: f64, y: f64) {
        let share = self.share(node);
        let width = share * WIDTH;
        if width < NARROW {
            return;
        }
        let mut room = width / LETTER - 1.0;
        let label = name.chars().take_while(|_| {
            room -= 1.0;
            room > 0.0
        });
        let label: String = label.collect();
        let written = writeln!(
            self.svg,
            "<g><title>{} ({}, {:.1} %)</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\" rx=\"1\" fill=\"hsl({},75%,65%)\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            escaped(name),
            self.amount(node),
            100.0 * share,
            (width - 0.5).max(NARROW),
            ROW - 1.0,
            hue(name),
            x + 2.0,
            y + 12.0,
            escaped(&label),
        );
        written.expect("a string takes all that is written");
        for (name, above) in &node.above {
            self.draw(name, above, x, y - ROW);
            x += self.share(above) * WIDTH;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a picture")]
    fn amount(&self, node: &Node) -> String {
        match self.unit {
            "nanoseconds" => format!("{:.2} s", node.amount as f64 / 1e9),
            "bytes" => format!("{:.1} MiB", node.amount as f64 / f64::from(1 << 20)),
            unit => format!("{} {unit}", node.amount),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a picture")]
    fn share(&self, node: &Node) -> f64 {
        node.amount as f64 / self.all as f64
    }
}

/// A warm colour, the same for the same name.
fn hue(name: &str) -> u32 {
    let sum = |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte));
    name.bytes().fold(7, sum) % 55
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debug::stacks::tests::profile;

    #[test]
    fn bar_is_as_wide_as_its_share_and_names_are_escaped() {
        let millions = 1_000_000;
        let svg = svg(&profile(&[
            (&["inner<T>", "outer"], 3 * millions),
            (&["other"], millions),
        ]));
        assert!(svg.contains("inner&lt;T&gt; (3.00 s, 75.0 %)"), "{svg}");
        assert!(svg.contains("other (1.00 s, 25.0 %)"), "{svg}");
        assert!(svg.contains("width=\"1199.5\""), "{svg}");
        assert!(!svg.contains("<T>"));
    }

    #[test]
    fn profile_without_samples_is_a_picture_too() {
        assert!(svg(&profile(&[])).ends_with("</svg>\n"));
    }
}
