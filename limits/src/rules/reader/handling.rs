//! Reads what is done with calls that are over a limit: `mode`, `shape`, `dead_letter`.

use std::{ops::RangeInclusive, time::Duration};

use toml::{Table, Value};

use super::{
    super::{Handling, Mode, Revive},
    Reader, join,
};
use crate::rate::{Bytes, RateError, Time, parse_bytes, parse_time};

const HORIZON_MAX: Duration = Duration::from_secs(3_600);
/// Of `max_age`, and of the delays of dead letters.
const TIME_MAX: Duration = Duration::from_secs(86_400);
const QUEUE_BYTES: RangeInclusive<u64> = (64 << 10)..=(16 << 30);
const REQUEUES_MAX: u32 = 64;
const SHARE_PERMILLE: RangeInclusive<u16> = 1..=500;

impl Reader {
    /// Takes out of a limit's table how its calls are handled.
    pub(super) fn handling(&mut self, table: &mut Table, path: &str, every_call: bool) -> Handling {
        let given = ["mode", "shape", "dead_letter"].map(|key| (key, table.contains_key(key)));
        let mode = self.mode(table, path);
        for (key, _) in given.into_iter().filter(|(_, given)| *given) {
            if every_call {
                let what = "a limit of every call has no calls of its own";
                self.wrong(&join(path, key), what);
            } else if key != "mode" && mode.is_some_and(|mode| mode != Mode::Shape) {
                self.wrong(&join(path, key), "is for mode = \"shape\" only");
            }
        }
        let mut handling = Handling {
            mode: mode.unwrap_or_default(),
            ..Handling::default()
        };
        if let Some(shape) = table.remove("shape") {
            self.shape(&join(path, "shape"), shape, &mut handling);
        }
        if let Some(revive) = table.remove("dead_letter") {
            self.revive(&join(path, "dead_letter"), revive, &mut handling.revive);
        }
        handling
    }

    /// `None` when it is wrong.
    fn mode(&mut self, table: &mut Table, path: &str) -> Option<Mode> {
        if !table.contains_key("mode") {
            return Some(Mode::default());
        }
        match &*self.text(table, path, "mode")? {
            "observe" => Some(Mode::Observe),
            "police" => Some(Mode::Police),
            "shape" => Some(Mode::Shape),
            other => {
                let what = format!("`{other}` is not observe, police or shape");
                self.wrong(&join(path, "mode"), what);
                None
            }
        }
    }

    fn shape(&mut self, path: &str, value: Value, handling: &mut Handling) {
        let mut table = self.table(path, value);
        let horizon = self.time_up_to(&mut table, path, "horizon", HORIZON_MAX, handling.horizon);
        let max_age = self.time_up_to(&mut table, path, "max_age", TIME_MAX, handling.max_age);
        if let Some((horizon, max_age)) = horizon.zip(max_age) {
            if max_age < horizon {
                let (age, horizon) = (Time::from(max_age), Time::from(horizon));
                let what = format!("max_age is {age}, less than the horizon of {horizon}");
                self.wrong(path, what);
            }
            (handling.horizon, handling.max_age) = (horizon, max_age);
        }
        if let Some(bytes) = self.queue_bytes(&mut table, path) {
            handling.queue_bytes = bytes;
        }
        self.nothing_else(path, &table);
    }

    fn revive(&mut self, path: &str, value: Value, revive: &mut Revive) {
        let mut table = self.table(path, value);
        let base = self.time_up_to(&mut table, path, "base", TIME_MAX, revive.base);
        let cap = self.time_up_to(&mut table, path, "cap", TIME_MAX, revive.cap);
        if let Some((base, cap)) = base.zip(cap) {
            if base > cap {
                let (base, cap) = (Time::from(base), Time::from(cap));
                self.wrong(path, format!("base is {base}, more than the cap of {cap}"));
            }
            (revive.base, revive.cap) = (base, cap);
        }
        let key = "max_requeues";
        if let Some(count) = self.count(&mut table, path, key) {
            match u32::try_from(count) {
                Ok(count) if count <= REQUEUES_MAX => revive.requeues_max = count,
                _ => {
                    let what = format!("`{count}` is not allowed: 0 to {REQUEUES_MAX}");
                    self.wrong(&join(path, key), what);
                }
            }
        }
        if let Some(share) = self.share(&mut table, path) {
            revive.share_permille = share;
        }
        self.nothing_else(path, &table);
    }

    /// A time above zero; `None` when it is wrong.
    fn time_up_to(
        &mut self,
        table: &mut Table,
        path: &str,
        key: &str,
        most: Duration,
        unless_set: Duration,
    ) -> Option<Duration> {
        if !table.contains_key(key) {
            return Some(unless_set);
        }
        let text = self.text(table, path, key)?;
        match parse_time(&text) {
            Ok(time) if time <= most => return Some(time),
            Ok(_) | Err(RateError::Range { .. }) => {
                let most = Time::from(most);
                let what = format!("`{text}` is not allowed: more than 0s, and at most {most}");
                self.wrong(&join(path, key), what);
            }
            Err(error) => self.wrong(&join(path, key), error),
        }
        None
    }

    fn share(&mut self, table: &mut Table, path: &str) -> Option<u16> {
        let share = table.remove("share")?;
        let allowed = permille(&share);
        if allowed.is_none() {
            let what =
                format!("`{share}` is not a share: write 0.001 to 0.5, in thousandths, as in 0.1");
            self.wrong(&join(path, "share"), what);
        }
        allowed
    }

    fn queue_bytes(&mut self, table: &mut Table, path: &str) -> Option<u64> {
        let key = "queue_bytes";
        let bytes = match table.remove(key)? {
            Value::String(text) => parse_bytes(&text),
            Value::Integer(number) => {
                u64::try_from(number).map_err(|_| RateError::Bytes(number.to_string()))
            }
            other => Err(RateError::Bytes(other.to_string())),
        };
        let bytes = self.good(path, key, bytes)?;
        if !QUEUE_BYTES.contains(&bytes) {
            let [bytes, least, most] = [bytes, *QUEUE_BYTES.start(), *QUEUE_BYTES.end()].map(Bytes);
            let what = format!("{bytes} is not allowed: {least} to {most}");
            self.wrong(&join(path, key), what);
        }
        Some(bytes)
    }
}

/// The thousandths of a share; `None` unless they are whole and allowed.
fn permille(share: &Value) -> Option<u16> {
    let share = share.as_float()?;
    // The division rounds as the reader of decimal numbers does: equal numbers are equal floats.
    SHARE_PERMILLE
        .clone()
        .find(|permille| f64::from(*permille) / 1_000.0 == share)
}
