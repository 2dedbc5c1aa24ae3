//! Parsers of setting values. They do no I/O.

use std::{path::PathBuf, time::Duration};

use http::Uri;
use jiff::tz::TimeZone;
use proto::{ids, limits::SUBSCRIBER_NAME_BYTES_MAX, units::DspId};
use runtime::settings::{InvalidValue, TIME_MAX, is_redacted, time};

use super::{ProducerUrl, StoreConfig};
use crate::store;

pub(super) fn parse_producer(text: &str) -> Result<ProducerUrl, String> {
    let invalid =
        || format!("invalid producer URL `{text}`; expected http://host:7676 or https://host:7676");
    parse_url(text, 7676).ok_or_else(invalid)
}

/// Parses the URL of another node's admin port, which has no TLS; `None` for an empty list item.
pub(super) fn parse_node(text: &str) -> Result<Option<ProducerUrl>, String> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let node = parse_url(text, 9091).filter(|node| !node.https);
    node.map(Some)
        .ok_or_else(|| format!("invalid node URL `{text}`; expected http://host:9091"))
}

fn parse_url(text: &str, default_port: u16) -> Option<ProducerUrl> {
    let uri: Uri = text.trim().parse().ok()?;
    let https = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return None,
    };
    if !matches!(uri.path(), "" | "/") {
        return None;
    }
    let host = uri.host().filter(|host| !host.is_empty())?;
    Some(ProducerUrl {
        https,
        host: host.trim_matches(['[', ']']).to_owned(),
        port: uri.port_u16().unwrap_or(default_port),
    })
}

/// Parses a consumer name; the default is the host name.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let host = || gethostname::gethostname().to_string_lossy().into_owned();
    let text = if text.is_empty() {
        host()
    } else {
        text.to_owned()
    };
    let name = ids::check_name(&text).map(|()| text.clone());
    name.map_err(|_| {
        format!("invalid name; expected 1 to {SUBSCRIBER_NAME_BYTES_MAX} bytes of printable characters, without a space at either end")
    })
}

pub(super) fn parse_store(text: &str) -> Result<StoreConfig, String> {
    if let Some(dir) = text.strip_prefix("embedded:") {
        return if dir.is_empty() {
            Err("`embedded:` needs a directory after the colon".to_owned())
        } else {
            Ok(StoreConfig::Embedded(PathBuf::from(dir)))
        };
    }
    if text.starts_with("mongodb://") || text.starts_with("mongodb+srv://") {
        if is_redacted(text) {
            return Err(
                "the credentials were removed from this printed URL; add them, or set CONSUMER_STORE"
                    .to_owned(),
            );
        }
        return store::mongodb::check_uri(text).map(|()| StoreConfig::Mongodb(text.to_owned()));
    }
    // The text is not repeated: it may be a misspelled connection string with a password.
    Err("expected embedded:DIR, mongodb://… or mongodb+srv://…".to_owned())
}

/// Parses a DSP id; `None` for an empty list item.
pub(super) fn parse_dsp(text: &str) -> Result<Option<DspId>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(dsp_id @ DspId(1..)) => Ok(Some(dsp_id)),
        _ => Err(format!(
            "invalid DSP id `{text}`; expected a number from 1 to 4294967295"
        )),
    }
}

/// Minimum time to live.
pub(super) const TTL_MIN: Duration = Duration::from_secs(1);

/// Parses a DSP id and its time to live.
pub(super) fn parse_dsp_ttl(text: &str) -> Result<(DspId, Duration), InvalidValue> {
    let parts = text.split_once('=');
    let parsed = parts.and_then(|(dsp_id, ttl)| Some((parse_dsp(dsp_id).ok()??, ttl.trim())));
    match parsed {
        Some((dsp_id, ttl)) => Ok((dsp_id, time(TTL_MIN..=TIME_MAX)(ttl)?)),
        None => Err(format!("invalid TTL `{text}`; expected DSP=TIME, such as 17=7d").into()),
    }
}

/// MongoDB accepts names of up to 63 bytes. A DSP id has up to ten digits, `cookiesync` has ten letters.
const PREFIX_BYTES_MAX: usize = 53;

pub(super) fn parse_prefix(text: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if text.len() > PREFIX_BYTES_MAX || !text.bytes().all(is_valid) {
        return Err(format!(
            "invalid prefix; expected up to {PREFIX_BYTES_MAX} letters, digits, `_` and `-`"
        ));
    }
    // Prefix `1` and DSP 7 would be the database of DSP 17.
    if text.ends_with(|last: char| last.is_ascii_digit()) {
        return Err("a prefix cannot end with a digit, because the DSP id follows it".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn parse_time_zone(text: &str) -> Result<TimeZone, String> {
    if text == "system" {
        return Ok(TimeZone::system());
    }
    // UTC needs no time zone files, which a minimal image does not have.
    if text.eq_ignore_ascii_case("UTC") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(text).map_err(|_| {
        format!("unknown time zone `{text}`; expected a name such as Europe/Berlin (needs the system's tzdata)")
    })
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZoneDatabase;

    use super::*;

    #[test]
    fn utc_needs_no_time_zone_files() {
        assert_eq!(parse_time_zone("UTC"), Ok(TimeZone::UTC));
        let database = TimeZoneDatabase::none();
        assert!(
            database.get("UTC").is_err(),
            "UTC needs files in this database"
        );
    }
}
