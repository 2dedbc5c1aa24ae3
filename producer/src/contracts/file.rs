//! The contracts file.
//!
//! ```toml
//! unknown_dsps = "accept"               # DSPs without a table: "accept", with the defaults, or "refuse"
//! redirect_hosts = ["sync.example"]     # optional: all hosts that `redirect` may name
//!
//! [privacy]                             # optional: see privacy::Config
//! mode = "observe"
//! host_vendor = 999
//!
//! [defaults]                            # all keys except `name`, `names`, `vendor`, `limit` and `sync`, for all DSPs
//! refuse = ["macro", "sentinel"]
//!
//! [dsp.17]
//! name = "example"
//! names = ["example", "exmpl"]          # further names for `/setuid`
//! vendor = 755                          # id in the vendor list of the IAB
//! refuse_when = { gdpr = true, gpp_sid = [7, 8] }   # where the DSP must not sync
//! state = "allowed"                     # or "observe" or "blocked"
//! uid_bytes_max = 64
//! uid_pattern = "^[A-Za-z0-9_-]{8,64}$"
//! uid_macro = ["MY_ID"]
//! ttl = "14d"
//! answer = "redirect"                   # or "empty", "none", "gif", "png" or "json" with `origins`
//! redirect = "https://sync.example/done?u={UID}&x={DSP_UID}"
//! refused = "answer"                    # or "status"
//! limit = { rules = [ { id = "peak", rate = "300/s", burst = 30 } ], mode = "police" }
//! ```
//!
//! `limit` takes the keys of a limit in a [limits file](limits::rules), except those that select calls. The file may also
//! contain all keys of a limits file, for limits of several DSPs: `unknown`, `[limits.NAME]` and `[sharing]`. The module `sync`
//! describes `[plan]` and `[dsp.ID.sync]`.

mod sync;
mod values;

use std::{
    num::NonZeroU16,
    sync::{Arc, OnceLock},
    time::Duration,
};

use limits::rules::{ConfigErrors, Rules, Sharing, Tables, Unknown};
use limits_sharing::dsp_limits;
use proto::{
    ids::hygiene::Flaw,
    limits::{BUYER_UID_BYTES_MAX, CONTRACTS_MAX},
    units::DspId,
};
use runtime::{
    reload::{NamedFile, Reloader, Source},
    settings::{self, TIME_MAX},
};
use serde::Deserialize;
use toml::{Table, Value};

use self::values::{check, check_name, compiled};
use super::{
    Contract, Contracts, RefusedAnswer, State,
    answer::Answer,
    origin, privacy,
    redirect::{self, REDIRECT_MACROS, Template},
};

/// The newest valid version of the contracts file.
pub type ContractsFile = Arc<Reloader<File>>;

/// Maximum number of names of a DSP.
const NAMES_MAX: usize = 64;

/// Minimum time to live.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A contracts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    file: NamedFile,
    /// `[sharing]` as read at startup.
    sharing: OnceLock<Option<Sharing>>,
}

impl File {
    /// A file that has not been read yet.
    pub fn new(file: NamedFile) -> Self {
        Self {
            file,
            sharing: OnceLock::new(),
        }
    }
}

impl Source for File {
    type Value = Contracts;
    const NAME: &'static str = "contracts";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.file]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Contracts, Vec<String>> {
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| vec![self.file.error("is not valid UTF-8")])?;
        let named =
            |errors: ConfigErrors| Vec::from_iter(errors.0.iter().map(|it| self.file.error(it)));
        let contracts = parse(text).map_err(named)?;
        let sharing = &contracts.limits.sharing;
        if self.sharing.get_or_init(|| sharing.clone()) != sharing {
            let what = "sharing: applied only at startup; restart the producer to change it";
            return Err(vec![self.file.error(what)]);
        }
        Ok(contracts)
    }
}

/// No cookie is limited.
pub(crate) const NO_LIMITS: Rules = Rules {
    limits: Vec::new(),
    unknown: Unknown::Unlimited,
    sharing: None,
};

/// The top-level keys of a limits file.
const LIMIT_KEYS: [&str; 3] = ["unknown", "limits", "sharing"];

/// The top-level keys that are not tables.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Top {
    unknown_dsps: UnknownDsps,
    redirect_hosts: Option<Vec<String>>,
}

#[derive(Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum UnknownDsps {
    #[default]
    Accept,
    Refuse,
}

/// `[defaults]`, or the contract of one DSP.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ContractTable {
    name: Option<String>,
    names: Option<Vec<String>>,
    state: Option<State>,
    vendor: Option<NonZeroU16>,
    refuse_when: Option<privacy::RefuseWhen>,
    uid_bytes_max: Option<usize>,
    uid_pattern: Option<String>,
    uid_macro: Option<Vec<String>>,
    refuse: Option<Vec<Flaw>>,
    ttl: Option<String>,
    answer: Option<Answer>,
    redirect: Option<String>,
    origins: Option<Vec<String>>,
    refused: Option<RefusedAnswer>,
    limit: Option<Table>,
    sync: Option<Table>,
}

/// Parses a contracts file.
///
/// # Errors
/// All errors of the file, with line numbers.
pub fn parse(text: &str) -> Result<Contracts, ConfigErrors> {
    let (mut table, tables) = Tables::parse(text)?;
    // It may be empty while an operator rewrites it; accepting it would end all refusals.
    if table.is_empty() {
        let error = "the file is empty: to accept every DSP, start without --contracts";
        return Err(ConfigErrors(vec![error.to_owned()]));
    }
    let (defaults, dsps) = (table.remove("defaults"), table.remove("dsp"));
    let (privacy, plan) = (table.remove("privacy"), table.remove("plan"));
    let limits = LIMIT_KEYS.map(|key| Some((key.to_owned(), table.remove(key)?)));
    let mut reader = Reader {
        tables,
        redirect_hosts: None,
        has_plan: plan.is_some(),
        limits: limits.into_iter().flatten().collect(),
    };
    let others = [&["defaults", "dsp", "plan", "privacy"], &LIMIT_KEYS[..]].concat();
    let top: Option<(Top, _)> = reader.tables.valid_part("", table.into(), &others);
    let Top {
        unknown_dsps,
        redirect_hosts,
    } = top.unwrap_or_default().0;
    for host in redirect_hosts.iter().flatten() {
        if let Err(error) = redirect::check_host(host) {
            reader.tables.error("redirect_hosts", error);
        }
    }
    reader.redirect_hosts = redirect_hosts;
    let (defaults, are_complete) = reader
        .defaults(defaults.unwrap_or_else(|| Table::new().into()))
        .unwrap_or_default();
    let mut contracts = Contracts {
        unlisted: defaults.clone(),
        ..Contracts::default()
    };
    if let Some(privacy) = privacy {
        contracts.privacy = reader.privacy(privacy);
    }
    contracts.plan = plan.and_then(|plan| reader.plan(plan, &contracts));
    let dsps = dsps.unwrap_or_else(|| Table::new().into());
    let dsps: Table = reader.tables.table("dsp", dsps, &[]).unwrap_or_default();
    let count = dsps.len();
    for (key, value) in dsps {
        if let Some((dsp_id, contract)) =
            reader.dsp(&key, value, &defaults, are_complete, &contracts)
        {
            for name in contract.names.iter() {
                let other = contracts.by_name.insert(name.to_lowercase(), dsp_id);
                if other.is_some_and(|other| other != dsp_id) {
                    let what = format!("another DSP has the name `{name}`");
                    reader.tables.error(&format!("dsp.{key}.name"), what);
                }
            }
            contracts.by_dsp.insert(dsp_id, contract);
        }
    }
    let synced = contracts.listed().filter(|(_, it)| it.sync.is_some());
    contracts.synced = synced.map(|(dsp_id, _)| dsp_id).collect();
    if count > CONTRACTS_MAX {
        let what = format!("too many DSPs: {count}; the maximum is {CONTRACTS_MAX}");
        reader.tables.error("dsp", what);
    }
    if unknown_dsps == UnknownDsps::Refuse {
        contracts.unlisted.state = State::Unknown;
        if count == 0 {
            let what = "\"refuse\" rejects every request: add tables [dsp.ID] for the known DSPs";
            reader.tables.error("unknown_dsps", what);
        }
    }
    contracts.limits = Arc::new(reader.limits()?);
    Ok(contracts)
}

struct Reader {
    tables: Tables,
    /// The tables of a limits file.
    limits: Table,
    /// Hosts to which answers may redirect; `None` for any.
    redirect_hosts: Option<Vec<String>>,
    /// Whether the file has a table `[plan]`.
    has_plan: bool,
}

impl Reader {
    /// The contract of unlisted DSPs, and whether its table is complete; `None` if it cannot be read.
    fn defaults(&mut self, value: Value) -> Option<(Contract, bool)> {
        for key in ["name", "names", "vendor", "limit", "sync"] {
            if value.get(key).is_some() {
                let what = "is for one DSP: set it in [dsp.ID]";
                self.tables.error(&format!("defaults.{key}"), what);
            }
        }
        let (table, is_complete): (ContractTable, _) =
            self.tables.valid_part("defaults", value, &[])?;
        let has_redirect = table.redirect.is_some();
        let contract = self.apply("defaults", table, &Contract::default());
        if is_complete {
            self.check_redirect("defaults", &contract, has_redirect);
        }
        Some((contract, is_complete))
    }

    /// The contract of a DSP; `None` if it cannot be read.
    fn dsp(
        &mut self,
        key: &str,
        value: Value,
        defaults: &Contract,
        are_complete: bool,
        contracts: &Contracts,
    ) -> Option<(DspId, Contract)> {
        let path = format!("dsp.{}", key.escape_debug());
        // Only the canonical form: `017` would be a second table of the same DSP.
        let dsp_id = key
            .parse()
            .ok()
            .filter(|id: &DspId| id.is_valid() && id.to_string() == key);
        if dsp_id.is_none() {
            let what = "invalid DSP id: use a number from 1 to 4294967295, as in [dsp.17]";
            self.tables.error(&path, what);
        }
        let (mut table, is_complete): (ContractTable, _) =
            self.tables.valid_part(&path, value, &[])?;
        let (limit, sync) = (table.limit.take(), table.sync.take());
        let own = |key| format!("{path}.{key}");
        let (has_redirect, has_origins) = (table.redirect.is_some(), table.origins.is_some());
        let has_macros = table.uid_macro.is_some();
        let mut contract = self.apply(&path, table, defaults);
        if let Some(sync) = sync {
            self.sync(&path, sync.into(), contracts, &mut contract);
        }
        if let Some(limit) = limit {
            let name = match &*contract.name {
                "" => key,
                name => name,
            };
            self.add_limit(&own("limit"), key, name, limit);
        }
        if !(is_complete && are_complete) {
            // These checks would report the effects of the errors.
            return Some((dsp_id?, contract));
        }
        self.check_redirect(&path, &contract, has_redirect);
        for (is_useless, key, needed) in [
            (
                has_redirect && contract.answer != Answer::Redirect,
                "redirect",
                "answer = \"redirect\"",
            ),
            (
                has_origins && contract.answer != Answer::Json,
                "origins",
                "answer = \"json\"",
            ),
            (
                has_macros && !contract.refuse.contains(&Flaw::Macro),
                "uid_macro",
                "\"macro\" in refuse",
            ),
        ] {
            if is_useless {
                let what = format!("has no effect without {needed}");
                self.tables.error(&own(key), what);
            }
        }
        Some((dsp_id?, contract))
    }

    /// The privacy settings, the defaults if they are invalid.
    fn privacy(&mut self, value: Value) -> privacy::Config {
        let read: Option<(privacy::Config, _)> = self.tables.valid_part("privacy", value, &[]);
        let config = read.map(|(config, _)| config);
        let header = config.as_ref().and_then(|it| it.country_header.as_ref());
        if let Some(name) = header.filter(|name| http::HeaderName::try_from(*name).is_err()) {
            let what = format!("invalid header name {name:?}");
            self.tables.error("privacy.country_header", what);
        }
        config.unwrap_or_default()
    }

    /// Adds the limit of a DSP to the limits file, under the name of the DSP.
    fn add_limit(&mut self, path: &str, dsp: &str, name: &str, mut limit: Table) {
        for key in ["keys", "global", "from_call"] {
            if limit.contains_key(key) {
                let what = "a limit in a contract applies only to its DSP: use [limits.NAME]";
                self.tables.error(&format!("{path}.{key}"), what);
            }
        }
        limit.insert("keys".to_owned(), vec![dsp].into());
        let name_in_path = name.escape_debug();
        self.tables.moved(path, &format!("limits.{name_in_path}"));
        let limits = self.limits.entry("limits");
        let limits = limits.or_insert_with(|| Table::new().into());
        if let Value::Table(limits) = limits
            && limits.insert(name.to_owned(), limit.into()).is_some()
        {
            let what = format!("[limits.{name_in_path}] has the same name");
            self.tables.error(path, what);
        }
    }

    /// The rate limits.
    ///
    /// # Errors
    /// All errors of the file.
    fn limits(mut self) -> Result<Rules, ConfigErrors> {
        let mut errors = self.tables.take_errors();
        let rules = match self.limits.is_empty() {
            true => Ok(NO_LIMITS),
            false => Rules::read(self.limits, self.tables),
        };
        errors.extend(match &rules {
            Ok(rules) if !rules.limits.is_empty() => dsp_limits::check(rules),
            Ok(_) => Vec::new(),
            Err(ConfigErrors(errors)) => errors.clone(),
        });
        match errors.is_empty() {
            true => rules,
            false => Err(ConfigErrors(errors)),
        }
    }

    /// Checks that a contract has the URL that it needs. `is_set`: its table has a URL, which may be invalid.
    fn check_redirect(&mut self, path: &str, contract: &Contract, is_set: bool) {
        let is_missing = !is_set && contract.redirect.is_none();
        if contract.answer == Answer::Redirect && is_missing {
            let what = "\"redirect\" needs a URL: add redirect = \"https://…\"";
            self.tables.error(&format!("{path}.answer"), what);
        }
    }

    /// A contract with the values of a table, and those of `defaults` for missing keys. Reports invalid values.
    fn apply(&mut self, path: &str, table: ContractTable, defaults: &Contract) -> Contract {
        let mut checked = |key: &str, result: Result<(), String>| {
            if let Err(error) = result {
                self.tables.error(&format!("{path}.{key}"), error);
            }
        };
        let mut contract = defaults.clone();
        contract.state = table.state.unwrap_or(contract.state);
        contract.vendor = table.vendor;
        contract.refuse_when = table.refuse_when.unwrap_or(contract.refuse_when);
        contract.refuse = table.refuse.unwrap_or(contract.refuse);
        contract.answer = table.answer.unwrap_or(contract.answer);
        contract.refused = table.refused.unwrap_or(contract.refused);
        let (name, names) = (table.name, table.names.unwrap_or_default());
        let error = format!("too many names: the maximum is {NAMES_MAX}");
        checked("names", check(names.len() <= NAMES_MAX, error));
        for (key, names) in [("name", name.as_slice()), ("names", &names)] {
            for name in names {
                checked(key, check_name(name));
            }
        }
        let names = names.into_iter().filter(|it| Some(it) != name.as_ref());
        let names: Arc<[String]> = name.iter().cloned().chain(names).collect();
        contract.name = names.first().cloned().unwrap_or_default();
        contract.names = names;
        if let Some(max) = table.uid_bytes_max {
            let is_valid = (1..=BUYER_UID_BYTES_MAX).contains(&max);
            let error = format!("out of range: use 1 to {BUYER_UID_BYTES_MAX}");
            checked("uid_bytes_max", check(is_valid, error));
            contract.uid_bytes_max = max;
        }
        if let Some(pattern) = table.uid_pattern {
            let pattern = compiled(&pattern).map(|pattern| contract.uid_pattern = Some(pattern));
            checked("uid_pattern", pattern);
        }
        if let Some(macros) = table.uid_macro {
            let is_valid = !macros.iter().any(String::is_empty);
            let error = "contains an empty string: remove it (an empty uid is always rejected)";
            checked("uid_macro", check(is_valid, error));
            contract.uid_macro = macros.into();
        }
        if let Some(ttl) = table.ttl {
            let ttl = settings::time(TTL_MIN..=TIME_MAX)(&ttl);
            let ttl = ttl.map(|ttl| contract.ttl = Some(ttl));
            checked("ttl", ttl.map_err(|error| error.to_string()));
        }
        if let Some(url) = table.redirect {
            let template = Template::parse(&url, REDIRECT_MACROS);
            let hosts = self.redirect_hosts.as_deref();
            let listed = template.and_then(|template| match hosts {
                Some(hosts) if !hosts.iter().any(|it| it == template.host()) => Err(format!(
                    "host `{}` is not in redirect_hosts",
                    template.host()
                )),
                _ => Ok(template),
            });
            let redirect = listed.map(|template| contract.redirect = Some(template.into()));
            checked("redirect", redirect);
        }
        if let Some(origins) = table.origins {
            for origin in &origins {
                checked("origins", origin::check(origin));
            }
            contract.origins = origins.into();
        }
        contract
    }
}
