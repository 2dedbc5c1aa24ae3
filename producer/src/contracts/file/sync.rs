//! Reads `[plan]` and `[dsp.ID.sync]`.
//!
//! ```toml
//! [plan]                                # needs [privacy] in the mode "observe" or "enforce"
//! base = "https://match.ssp.example"    # public URL of the producers
//! origins = ["https://paper.example", "https://*.mag.example"]
//! limit = 5
//! limit_max = 10
//! others = true                         # whether DSPs that a request does not name are offered, too
//!
//! [dsp.17.sync]
//! image = "https://cm.dsp.example/m?r={RETURN}&gdpr={GDPR}&gdpr_consent={GDPR_CONSENT}"
//! iframe = "https://cm.dsp.example/f?r={RETURN}"
//! uid_macro = "$UID"                    # what the DSP replaces with its id
//! refresh = "7d"
//! group = 1                             # 1 to 9, lower first; without one: after all groups
//! weight = 1
//! sample = 1.0
//! per_day = 2
//! skip_gdpr = false
//! skip_gpp_sid = []
//! countries = []                        # needs country_header in [privacy]
//! ```

use std::{ops::RangeInclusive, time::Duration};

use runtime::settings;
use serde::Deserialize;
use toml::Value;

use super::{
    Reader,
    values::{check, check_uid_macro},
};
use crate::contracts::{
    Contract, Contracts, origin,
    privacy::{Country, RefuseWhen, SectionIds},
    redirect::{SYNC_MACROS, Template, URL_BYTES_MAX, encode},
    sync::{LAST_GROUP, Origins, PlanSettings, Sync},
};

/// Maximum number of origins.
const ORIGINS_MAX: usize = 10_000;

/// Permitted numbers of syncs in a plan.
const LIMITS: RangeInclusive<usize> = 1..=20;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Permitted times before the next sync. Hints tell days apart for up to 200 days.
const REFRESH: RangeInclusive<Duration> = DAY..=Duration::from_secs(30 * 24 * 3600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanTable {
    base: String,
    #[serde(default)]
    origins: Vec<String>,
    #[serde(default = "limit")]
    limit: usize,
    #[serde(default = "limit_max")]
    limit_max: usize,
    #[serde(default = "others")]
    others: bool,
}

fn limit() -> usize {
    5
}

fn limit_max() -> usize {
    10
}

fn others() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SyncTable {
    image: Option<String>,
    iframe: Option<String>,
    uid_macro: String,
    refresh: String,
    group: Option<u8>,
    weight: u16,
    sample: f64,
    per_day: u8,
    skip_gdpr: bool,
    skip_gpp_sid: SectionIds,
    countries: Vec<Country>,
}

impl Default for SyncTable {
    fn default() -> Self {
        Self {
            image: None,
            iframe: None,
            uid_macro: "$UID".to_owned(),
            refresh: "7d".to_owned(),
            group: None,
            weight: 1,
            sample: 1.0,
            per_day: 2,
            skip_gdpr: false,
            skip_gpp_sid: SectionIds::default(),
            countries: Vec::new(),
        }
    }
}

impl Reader {
    /// The settings of plans; `None` if they are invalid.
    pub(super) fn plan(&mut self, value: Value, contracts: &Contracts) -> Option<PlanSettings> {
        if contracts.privacy().is_none() {
            let what = "needs a table [privacy] with mode = \"observe\" or \"enforce\"";
            self.tables.error("plan", what);
        }
        let (table, _): (PlanTable, _) = self.tables.valid_part("plan", value, &[])?;
        let base = table.base.trim_end_matches('/').to_owned();
        if let Err(error) = base_host(&base) {
            self.tables.error("plan.base", error);
        }
        let mut origins = Origins::default();
        if table.origins.len() > ORIGINS_MAX {
            let what = format!("too many: the maximum is {ORIGINS_MAX}");
            self.tables.error("plan.origins", what);
        }
        for text in &table.origins {
            let checked = match text.strip_prefix("https://*.") {
                Some(parent) => origin::check(&format!("https://{parent}"))
                    .map(|()| origins.parents.insert(parent.to_owned())),
                None => origin::check(text).map(|()| origins.exact.insert(text.clone())),
            };
            if let Err(error) = checked {
                self.tables.error("plan.origins", error);
            }
        }
        // The page of this port.
        origins.exact.extend(own_origin(&base));
        let (limit, limit_max) = (table.limit, table.limit_max);
        let (first, last) = (LIMITS.start(), LIMITS.end());
        for (key, limit) in [("limit", limit), ("limit_max", limit_max)] {
            if !LIMITS.contains(&limit) {
                let what = format!("out of range: use {first} to {last}");
                self.tables.error(&format!("plan.{key}"), what);
            }
        }
        if limit > limit_max {
            let what = format!("must not be above limit_max ({limit_max})");
            self.tables.error("plan.limit", what);
        }
        Some(PlanSettings {
            base,
            origins,
            limit,
            limit_max,
            others: table.others,
        })
    }

    /// Adds the settings of a DSP's syncs to its contract. `path` is that of the contract.
    pub(super) fn sync(
        &mut self,
        path: &str,
        value: Value,
        contracts: &Contracts,
        contract: &mut Contract,
    ) {
        let path = format!("{path}.sync");
        let Some(plan) = &contracts.plan else {
            // An invalid table [plan] has its own errors.
            if !self.has_plan {
                self.tables.error(&path, "has no effect without [plan]");
            }
            return;
        };
        let valid: Option<(SyncTable, _)> = self.tables.valid_part(&path, value, &[]);
        let Some((table, _)) = valid else { return };
        let mut checked = |key: &str, result: Result<(), String>| {
            if let Err(error) = result {
                self.tables.error(&format!("{path}.{key}"), error);
            }
        };
        let mut url = |key: &str, text: Option<String>| {
            let template = text.map(|text| {
                let template = Template::parse(&text, SYNC_MACROS)?;
                check(template.has_return(), "must contain {RETURN}")?;
                let is_own = base_host(&plan.base).is_ok_and(|host| host == template.host());
                let what = "leads to the host of plan.base: use a URL of the DSP";
                check(!is_own, what).map(|()| template)
            });
            match template.transpose() {
                Ok(template) => template,
                Err(error) => {
                    checked(key, Err(error));
                    None
                }
            }
        };
        let has_url = table.image.is_some() || table.iframe.is_some();
        let (image, iframe) = (url("image", table.image), url("iframe", table.iframe));
        if !has_url {
            checked("image", Err("is missing: set image, iframe or both".into()));
        }
        if contract.name.is_empty() {
            checked("image", Err("needs a name of the DSP: set `name`".into()));
        }
        checked("uid_macro", check_uid_macro(&table.uid_macro));
        let refresh = settings::time(REFRESH)(&table.refresh).map_err(|it| it.to_string());
        let refresh = refresh.and_then(|refresh| match contract.ttl {
            Some(ttl) if refresh >= ttl => Err(format!(
                "must be below the ttl of the DSP ({})",
                settings::format_time(ttl)
            )),
            _ => Ok(refresh),
        });
        checked("refresh", refresh.clone().map(|_| ()));
        let is_group = table.group.is_none_or(|it| (1..LAST_GROUP).contains(&it));
        checked("group", check(is_group, "out of range: use 1 to 9"));
        let is_weight = (1..=1000).contains(&table.weight);
        checked("weight", check(is_weight, "out of range: use 1 to 1000"));
        let is_share = table.sample > 0.0 && table.sample <= 1.0;
        let what = "out of range: use a number above 0, up to 1.0";
        checked("sample", check(is_share, what));
        let what = "out of range: use 1 to 255";
        checked("per_day", check(table.per_day > 0, what));
        let has_countries = !table.countries.is_empty();
        let knows_country = contracts.privacy.country_header.is_some();
        let what = "needs country_header in [privacy]";
        checked("countries", check(!has_countries || knows_country, what));
        contract.uid_macro = { contract.uid_macro.iter().cloned() }
            .chain([table.uid_macro.clone()])
            .collect();
        contract.sync = Some(Box::new(Sync {
            image,
            iframe,
            json_name: serde_json::Value::from(&*contract.name).to_string(),
            return_url: return_url(&plan.base, &contract.name, &table.uid_macro),
            refresh: refresh.unwrap_or_default(),
            group: table.group.unwrap_or(LAST_GROUP),
            weight: table.weight,
            sample: table.sample,
            per_day: table.per_day,
            skip: RefuseWhen::new(table.skip_gdpr, table.skip_gpp_sid),
            countries: table.countries,
        }));
    }
}

/// The start and the end of the URL to which a DSP returns; see [`Sync::return_url`].
fn return_url(base: &str, name: &str, uid_macro: &str) -> [String; 2] {
    let start = format!("{base}/setuid?bidder={}", encoded(name));
    let end = format!("&p=1&uid={uid_macro}");
    [encoded(&start), encoded(&end)]
}

fn encoded(text: &str) -> String {
    let mut output = Vec::new();
    encode(text, URL_BYTES_MAX, &mut output);
    output.into_iter().map(char::from).collect()
}

/// The host of the public URL.
///
/// # Errors
/// If the URL cannot be that of the producers.
fn base_host(base: &str) -> Result<String, String> {
    let template = Template::parse(base, &[])?;
    let is_plain = !base.contains(['?', '#']) && base.len() <= 512;
    let what = "must be a URL of up to 512 bytes, without a query";
    check(is_plain, what).map(|()| template.host().to_owned())
}

/// The origin of a URL as browsers send it.
fn own_origin(url: &str) -> Option<String> {
    let authority = url.strip_prefix("https://")?.split('/').next()?;
    let authority = authority.to_ascii_lowercase();
    let host = authority.strip_suffix(":443").unwrap_or(&authority);
    Some(format!("https://{host}"))
}
