//! One version of all limits: what each source says, and what is in force of it.

use std::{collections::BTreeMap, sync::Arc};

use limits::rules::{Document, Mistakes, Rules, Terms};
use serde::{Deserialize, Serialize};

use super::{
    super::{aside::aside, engine},
    views::{Names, View, Views, What},
};

/// Most bytes of all sources together, as JSON.
pub(super) const BYTES_MAX: usize = 2 << 20;

/// Where a limit comes from; of two with its name the later one here is in force, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The file of `--limits`, which also says all that is not of one limit.
    File,
    /// The collection of `--limits-collection`.
    Collection,
    /// A PUT.
    Put,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::File, Self::Collection, Self::Put];

    /// As a label and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Collection => "collection",
            Self::Put => "put",
        }
    }
}

/// The terms of limits by name.
pub type Named = BTreeMap<String, Terms>;

/// What the sources say.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// The file.
    pub file: Document,
    /// The collection.
    #[serde(default)]
    pub collection: Named,
    /// PUTs.
    #[serde(default)]
    pub put: Named,
}

/// A version that is in order.
#[derive(Debug)]
pub struct Plan {
    said: Said,
    /// What it means.
    pub rules: Rules,
    views: Views,
}

impl Said {
    fn has(&self, source: Source, name: &str) -> bool {
        match source {
            Source::File => self.file.has(name),
            Source::Collection => self.collection.contains_key(name),
            Source::Put => self.put.contains_key(name),
        }
    }

    fn terms(&self, source: Source, name: &str) -> Option<Terms> {
        match source {
            Source::File => self.file.terms(name),
            Source::Collection => self.collection.get(name).cloned(),
            Source::Put => self.put.get(name).cloned(),
        }
    }

    /// All limits in force with what else the file says.
    fn document(&self) -> Document {
        let mut document = self.file.clone();
        for (name, terms) in self.collection.iter().chain(&self.put) {
            document.set(name, terms.clone());
        }
        document
    }

    /// To be kept, and [read again](Self::of_bytes).
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("tables of texts and numbers are JSON")
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

impl Plan {
    /// What is in force when the sources say this.
    ///
    /// # Errors
    /// With everything that is wrong with it.
    pub fn of(said: Said) -> Result<Self, Mistakes> {
        let rules = said.document().rules()?;
        let mut mistakes = engine::mistakes(&rules);
        let bytes = said.to_bytes().len();
        if bytes > BYTES_MAX {
            mistakes.push(format!("{bytes} bytes of limits are more than {BYTES_MAX}"));
        }
        if !mistakes.is_empty() {
            return Err(Mistakes(mistakes));
        }
        Ok(Self {
            said,
            rules,
            views: Views::default(),
        })
    }

    /// What the sources say.
    #[must_use]
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// What those read who keep to the limits of these names by themselves: these and that of keys that none names, with what else the file
    /// says.
    pub async fn feed(self: &Arc<Self>, names: &Names) -> View {
        self.view(What::Feed, names, |plan, names| {
            let mut document = plan.said.document();
            if let Some(names) = names {
                document.keep_limits(names);
            }
            serde_json::to_vec(&document).expect("tables of texts and numbers are JSON")
        })
        .await
    }

    /// A document of the limits of these names; unless it is kept, `make` makes it where it holds up no call.
    pub async fn view(
        self: &Arc<Self>,
        what: What,
        names: &Names,
        make: fn(&Self, &Names) -> Vec<u8>,
    ) -> View {
        let key = (what, names.clone());
        if let Some(view) = self.views.get(&key) {
            return view;
        }
        let one_at_a_time = Arc::clone(&self.views.making).lock_owned().await;
        if let Some(view) = self.views.get(&key) {
            return view;
        }
        let plan = Arc::clone(self);
        aside(move || {
            // Also where the caller goes away meanwhile.
            let _one_at_a_time = one_at_a_time;
            let view = View::of(make(&plan, &key.1));
            plan.views.keep(key, view.clone());
            view
        })
        .await
    }

    /// Where the limit of this name comes from, and then what that overrides.
    pub fn sources(&self, name: &str) -> impl Iterator<Item = Source> {
        let all = Source::ALL.into_iter().rev();
        all.filter(move |source| self.said.has(*source, name))
    }

    /// Where the limit of this name comes from, with its terms, and what it overrides.
    #[must_use]
    pub fn origin(&self, name: &str) -> Option<Origin> {
        let mut said = self.sources(name).filter_map(|source| {
            let terms = self.said.terms(source, name)?;
            Some((source, terms))
        });
        let (source, terms) = said.next()?;
        let overridden = said.collect();
        Some(Origin {
            source,
            terms,
            overridden,
        })
    }
}

/// What the sources say of one limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// Whose terms are in force.
    pub source: Source,
    /// These terms.
    pub terms: Terms,
    /// What others say.
    pub overridden: Vec<(Source, Terms)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(rate: &str) -> Terms {
        let json = format!("{{\"rules\": [{{\"id\": \"r\", \"rate\": \"{rate}\"}}]}}");
        serde_json::from_str(&json).unwrap()
    }

    fn said() -> Said {
        let file = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n[limits.b]\nrules = [{ id = 'r', rate = '1/s' }]";
        Said {
            file: Document::parse(file).unwrap(),
            collection: BTreeMap::from([
                ("b".to_owned(), terms("2/s")),
                ("c".to_owned(), terms("2/s")),
            ]),
            put: BTreeMap::from([
                ("c".to_owned(), terms("3/s")),
                ("d".to_owned(), terms("3/s")),
            ]),
        }
    }

    #[tokio::test]
    async fn put_is_over_the_collection_and_that_over_the_file() {
        let plan = Arc::new(Plan::of(said()).unwrap());
        let in_force: Vec<String> = plan
            .rules
            .limits
            .iter()
            .map(|limit| format!("{} {}", limit.name, limit.rules[0].limit.algorithm))
            .collect();
        for (index, rate) in ["1/s", "2/s", "3/s", "3/s"].iter().enumerate() {
            let number = &rate[..1];
            assert!(in_force[index].contains(number), "{in_force:?}");
        }
        let origin = plan.origin("c").unwrap();
        assert_eq!((origin.source, origin.terms), (Source::Put, terms("3/s")));
        assert_eq!(origin.overridden, [(Source::Collection, terms("2/s"))]);
        assert_eq!(plan.origin("b").unwrap().overridden[0].0, Source::File);
        assert_eq!(plan.origin("a").unwrap().source, Source::File);
        assert!(plan.origin("e").is_none());
        let kept = Said::of_bytes(&plan.said().to_bytes()).unwrap();
        assert_eq!(&kept, plan.said());
        let again = Arc::new(Plan::of(kept).unwrap());
        assert_eq!(again.feed(&None).await.etag, plan.feed(&None).await.etag);
    }

    #[tokio::test]
    async fn document_is_made_once_for_each_who_may_read_other_limits() {
        let plan = Arc::new(Plan::of(said()).unwrap());
        let names = |names: [&str; 1]| Some(names.map(ToOwned::to_owned).into());
        let all = plan.feed(&None).await;
        assert_eq!(plan.feed(&None).await.body.as_ptr(), all.body.as_ptr());
        let one = plan.feed(&names(["a"])).await;
        assert_ne!(one.etag, all.etag);
        assert_ne!(plan.feed(&names(["b"])).await.etag, one.etag);
        let one: Document = serde_json::from_slice(&one.body).unwrap();
        assert!(one.has("a") && !one.has("b"));
    }

    #[test]
    fn sources_that_contradict_each_other_or_are_too_large_are_refused() {
        let mut wrong = said();
        let clash = "{\"keys\": [\"a\"], \"rules\": [{\"id\": \"r\", \"rate\": \"1/s\"}]}";
        wrong
            .put
            .insert("e".to_owned(), serde_json::from_str(clash).unwrap());
        let mistakes = Plan::of(wrong).unwrap_err().to_string();
        assert!(mistakes.contains("the key a is another limit's too"));
        let mut wrong = said();
        wrong.put.insert("x/y".to_owned(), terms("1/s"));
        assert!(Plan::of(wrong).unwrap_err().to_string().contains("slash"));
        let mut large = said();
        let keys = vec!["k".repeat(1_000); BYTES_MAX / 1_000];
        let keys: Vec<String> = keys
            .iter()
            .zip(0..)
            .map(|(key, it)| format!("{key}{it}"))
            .collect();
        let json = serde_json::json!({ "keys": keys, "rules": [{ "id": "r", "rate": "1/s" }] });
        let terms = serde_json::from_value(json).unwrap();
        large.put.insert("large".to_owned(), terms);
        assert!(Plan::of(large).unwrap_err().to_string().contains("bytes"));
    }
}
