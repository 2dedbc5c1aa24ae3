//! The applications file: which objects are checked, at which origin, and how.
//!
//! The file is reloaded when it changes; an invalid version is rejected completely.

mod cookies;
mod destinations;
mod settings;

use std::{collections::BTreeMap, sync::Arc};

use runtime::reload::{NamedFile, Source};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

pub use self::{
    cookies::{Cookies, NullMeans},
    destinations::NoAllowedAddress,
    settings::AppSettings,
};
use crate::concurrency;

/// An application.
#[derive(Debug)]
pub struct App {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: Arc<AppSettings>,
    /// Client of its origin.
    pub client: reqwest::Client,
}

impl App {
    fn build(name: &str, value: Value) -> Result<Self, Vec<String>> {
        let Value::Table(mut table) = value else {
            return Err(vec!["must be a table, such as [apps.NAME]".to_owned()]);
        };
        let mut errors = Vec::new();
        if let Some(Value::Table(table)) = table.get_mut("cookies") {
            remove_invalid::<Cookies>(table, "cookies.", &mut errors);
        }
        if let Some(Value::Table(table)) = table.get_mut("concurrency") {
            remove_invalid::<concurrency::Settings>(table, "concurrency.", &mut errors);
        }
        remove_invalid::<AppSettings>(&mut table, "", &mut errors);
        let settings = table.try_into::<AppSettings>();
        let mut settings = settings.map_err(|error| vec![error.message().to_owned()])?;
        // A removed setting gets its default, which may cause another error.
        let setting = |error: &str| error.split(':').next().map(ToOwned::to_owned);
        let known: Vec<_> = errors.iter().map(|it| setting(it)).collect();
        let is_new = |error: &String| !known.contains(&setting(error));
        errors.extend(settings.errors(name).into_iter().filter(is_new));
        if settings.cookies.is_some() {
            settings.max_body = settings.max_body.min(cookies::BODY_BYTES_MAX);
        }
        let settings = Arc::new(settings);
        let client = destinations::client(&settings);
        errors.extend(client.as_ref().err().cloned());
        match client {
            Ok(client) if errors.is_empty() => Ok(Self {
                name: name.to_owned(),
                settings,
                client,
            }),
            _ => Err(errors),
        }
    }
}

/// Removes settings with invalid values, and adds the errors. Each setting is parsed separately, as parsing stops at the first error.
fn remove_invalid<T: DeserializeOwned>(table: &mut Table, prefix: &str, errors: &mut Vec<String>) {
    table.retain(|name, value| {
        let alone = Table::from_iter([(name.to_owned(), value.clone())]);
        let error = alone.try_into::<T>().err();
        let text = |error: &toml::de::Error| format!("{prefix}{name}: {}", error.message());
        errors.extend(error.as_ref().map(text));
        error.is_none()
    });
}

/// All applications by name.
#[derive(Debug, Default)]
pub struct Apps(BTreeMap<String, Arc<App>>);

impl Apps {
    /// Parses the file.
    ///
    /// # Errors
    /// All errors, each with the name of its application.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        // The error omits the text of the line, which may contain a secret.
        let error = |it: toml::de::Error| {
            let before = &text[..it.span().map_or(0, |span| span.start)];
            let line = before.split('\n').count();
            vec![format!("line {line}: {}", it.message())]
        };
        let mut file: Table = toml::from_str(text).map_err(error)?;
        let (mut apps, mut errors) = (BTreeMap::new(), Vec::new());
        let Some(Value::Table(tables)) = file.remove("apps") else {
            return Err(vec!["missing table `apps`".to_owned()]);
        };
        errors.extend(file.keys().map(|name| format!("{name}: unknown setting")));
        for (name, value) in tables {
            match App::build(&name, value) {
                Ok(app) => drop(apps.insert(name, Arc::new(app))),
                Err(found) => {
                    errors.extend(found.iter().map(|error| format!("apps.{name}: {error}")));
                }
            }
        }
        match errors.is_empty() {
            true => Ok(Self(apps)),
            false => Err(errors),
        }
    }

    /// An application.
    pub fn get(&self, name: &str) -> Option<Arc<App>> {
        self.0.get(name).cloned()
    }

    /// All applications.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<App>> {
        self.0.values()
    }
}

/// The current applications.
pub type CurrentApps = Arc<dyn Fn() -> Arc<Apps> + Send + Sync>;

/// The applications file.
#[derive(Debug)]
pub struct File(pub NamedFile);

impl Source for File {
    type Value = Apps;
    const NAME: &'static str = "apps";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Apps, Vec<String>> {
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| vec!["not UTF-8".to_owned()]);
        let error = |it: &String| self.0.error(it.trim_end());
        let parsed = text.and_then(Apps::parse);
        parsed.map_err(|errors| errors.iter().map(error).collect())
    }
}

#[cfg(test)]
mod tests;
