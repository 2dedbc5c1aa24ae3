//! A profile in the form of `pprof`: the fields of its `profile.proto` that are used here, by their numbers there.

use std::{borrow::Cow, collections::HashMap, hash::Hash};

use prost::Message;

use super::Profile as Measured;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Numbers what is found, from 0 on, the same thing the same way.
struct Numbers<T>(HashMap<T, usize>);

impl<T: Hash + Eq> Numbers<T> {
    /// The number of `thing`, and whether it is new.
    fn of(&mut self, thing: T) -> (usize, bool) {
        let next = self.0.len();
        let number = *self.0.entry(thing).or_insert(next);
        (number, number == next)
    }
}

struct Strings {
    numbers: Numbers<String>,
    table: Vec<String>,
}

impl Strings {
    fn of(&mut self, text: &str) -> i64 {
        let (number, is_new) = self.numbers.of(text.to_owned());
        if is_new {
            self.table.push(text.to_owned());
        }
        signed(number as u64)
    }

    fn kind(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType {
            kind: self.of(kind),
            unit: self.of(unit),
        }
    }
}

/// The profile's bytes.
pub(super) fn profile(measured: &Measured) -> Vec<u8> {
    let mut strings = Strings {
        numbers: Numbers(HashMap::new()),
        table: Vec::new(),
    };
    // The first of the table is empty, always.
    strings.of("");
    let (mut locations, mut functions) = (Numbers(HashMap::new()), Numbers(HashMap::new()));
    let mut kind = |(kind, unit)| strings.kind(kind, unit);
    let mut profile = Profile {
        sample_type: measured.sample_types.map(&mut kind).to_vec(),
        period_type: Some(kind(measured.period_type)),
        period: signed(measured.period),
        duration_nanos: i64::try_from(measured.duration.as_nanos()).unwrap_or(i64::MAX),
        ..Profile::default()
    };
    for stack in &measured.stacks {
        let mut ids = Vec::with_capacity(stack.lines.len());
        for line in &stack.lines {
            let (location, is_new) = locations.of(line);
            let id = location as u64 + 1;
            ids.push(id);
            if !is_new {
                continue;
            }
            let (function, is_new) = functions.of((&line.function, &line.file));
            let function_id = function as u64 + 1;
            if is_new {
                profile.function.push(Function {
                    id: function_id,
                    name: strings.of(&plain(&line.function)),
                    system_name: strings.of(&line.function),
                    filename: strings.of(&line.file),
                });
            }
            let line = Line {
                function_id,
                line: i64::from(line.number),
            };
            profile.location.push(Location {
                id,
                line: vec![line],
            });
        }
        let mut label = |key, text: &str| Label {
            key: strings.of(key),
            text: strings.of(text),
        };
        profile.sample.push(Sample {
            location_id: ids,
            value: stack.values.map(signed).to_vec(),
            label: stack
                .thread
                .iter()
                .map(|thread| label("thread", thread))
                .collect(),
        });
    }
    profile.string_table = strings.table;
    profile.encode_to_vec()
}

/// `<A as B>::c` as `A::c`: pprof takes what stands in angle brackets for parameters of a type, and leaves it out.
fn plain(name: &str) -> Cow<'_, str> {
    let Some(inner) = name.strip_prefix('<') else {
        return name.into();
    };
    let mut depth = 1;
    let end = inner.find(|letter| {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let Some((kind, rest)) = end.and_then(|end| inner.split_at_checked(end)) else {
        return name.into();
    };
    let kind = kind.split(" as ").next().unwrap_or(kind);
    format!("{kind}{}", &rest[1..]).into()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debug::stacks::tests::profile as measured;

    fn name(profile: &Profile, location: u64) -> &str {
        let at = |number: u64| usize::try_from(number).unwrap();
        let location = &profile.location[at(location) - 1];
        let function = &profile.function[at(location.line[0].function_id) - 1];
        &profile.string_table[usize::try_from(function.name).unwrap()]
    }

    #[test]
    fn every_sample_leads_to_the_names_of_its_functions() {
        let bytes = profile(&measured(&[(&["inner", "outer"], 3), (&["outer"], 1)]));
        let profile = Profile::decode(&bytes[..]).unwrap();
        let names = |sample: &Sample| -> Vec<String> {
            let ids = sample.location_id.iter();
            ids.map(|id| name(&profile, *id).to_owned()).collect()
        };
        assert_eq!(names(&profile.sample[0]), ["inner", "outer"]);
        assert_eq!(names(&profile.sample[1]), ["outer"]);
        assert_eq!(profile.sample[0].value, [3, 3000]);
        assert_eq!(profile.string_table[0], "");
        assert_eq!(profile.function.len(), 2, "each is there once");
        assert_eq!(profile.duration_nanos, 2_000_000_000);
    }

    #[test]
    fn method_of_a_trait_is_named_by_its_type() {
        for (name, said) in [
            (
                "<tokio::net::Stream as core::fmt::Debug>::fmt",
                "tokio::net::Stream::fmt",
            ),
            (
                "<a::B<c::D> as e::F<g>>::h::{{closure}}",
                "a::B<c::D>::h::{{closure}}",
            ),
            ("<a::B>::c", "a::B::c"),
            ("a::b", "a::b"),
            ("<a", "<a"),
            ("<a>", "a"),
        ] {
            assert_eq!(plain(name), said);
        }
    }
}
