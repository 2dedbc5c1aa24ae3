//! Limits themselves: read by those who may ask for them, PUT and deleted by those who may administer them.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use limits::rules::Terms;
use serde::Serialize;
use tokio::time::timeout;

use super::{
    super::{
        asked::invalid,
        limit_sources::{
            Alone, Change, LimitSources, Names, NotChanged, Origin, Plan, Source, View, What, etag,
        },
        problem::{self, Problem},
        service::{SAVED_TIMEOUT, Service},
        tokens::Holder,
    },
    Answer,
    answer::{json, text},
    ask,
};

/// What a change is that is not on the disk.
const NOT_KEPT: &str = "the limit is changed, and is as before after a crash";

/// Whether a limit that is like this may be changed.
type May<'a> = dyn Fn(Option<&Origin>) -> bool + 'a;

/// A limit, and where it comes from.
#[derive(Debug, Serialize)]
struct LimitBody<'a> {
    name: &'a str,
    source: Source,
    terms: &'a Terms,
    /// What other sources say of it, which is not in force.
    overridden: Vec<OverriddenBody<'a>>,
}

#[derive(Debug, Serialize)]
struct OverriddenBody<'a> {
    source: Source,
    terms: &'a Terms,
}

#[derive(Debug, Serialize)]
struct AllBody<'a> {
    limits: Vec<LimitBody<'a>>,
}

impl<'a> LimitBody<'a> {
    fn of(name: &'a str, origin: &'a Origin) -> Self {
        let overridden = origin.overridden.iter();
        Self {
            name,
            source: origin.source,
            terms: &origin.terms,
            overridden: overridden
                .map(|(source, terms)| OverriddenBody {
                    source: *source,
                    terms,
                })
                .collect(),
        }
    }

    fn etag(&self) -> String {
        etag(&serde_json::to_vec(self).expect("tables of texts and numbers are JSON"))
    }
}

/// The limits of these names.
fn list(plan: &Plan, names: &Names) -> Vec<u8> {
    let all = plan.rules.limits.iter().map(|limit| limit.name.as_str());
    let may_read = |name: &&str| names.as_ref().is_none_or(|names| names.contains(*name));
    let all: Vec<(&str, Origin)> = all
        .filter(may_read)
        .filter_map(|name| Some((name, plan.origin(name)?)))
        .collect();
    let limits = all.iter().map(|(name, it)| LimitBody::of(name, it));
    let body = AllBody {
        limits: limits.collect(),
    };
    serde_json::to_vec(&body).expect("tables of texts and numbers are JSON")
}

impl Service {
    /// The limits that `holder` may ask for.
    pub(super) async fn all_limits(&self, holder: &Holder, headers: &HeaderMap) -> Answer {
        let plan = self.sources.plan();
        answer_of(plan.view(What::List, &holder.limits, list).await, headers)
    }

    /// Reads, makes or deletes one.
    pub(super) async fn limit(
        &self,
        limit: &str,
        holder: &Holder,
        request: Request<Incoming>,
    ) -> Result<Answer, Problem> {
        let headers = request.headers().clone();
        let method = request.method().clone();
        match method {
            Method::GET | Method::HEAD => {
                let plan = self.sources.plan();
                let origin = plan.origin(limit);
                let origin = origin.ok_or_else(|| unknown(limit))?;
                let body = LimitBody::of(limit, &origin);
                let tag = body.etag();
                if is_known(&headers, &tag) {
                    return Ok(unchanged(&tag));
                }
                Ok(tagged(json(&body), &tag))
            }
            Method::PUT => {
                self.may_administer(holder)?;
                if !ask::is_json(&headers) {
                    return Err(Problem::new(problem::MEDIA_TYPE, ""));
                }
                let body = self.body(request.into_body()).await?;
                let terms: Terms = serde_json::from_slice(&body)
                    .map_err(|error| invalid(format!("terms of a limit: {error}")))?;
                if holder.limits.is_some() && terms.of_every_call() {
                    let detail =
                        "every_call: only a token that opens all limits may limit every call";
                    return Err(self.no_right(detail));
                }
                let mut alone = self.alone().await?;
                if holder.limits.is_some() {
                    let origin = self.sources.plan().origin(limit);
                    let mut own = origin.map(|it| it.terms.keys()).unwrap_or_default();
                    own.insert(limit.to_owned());
                    if !terms.keys().is_subset(&own) {
                        let detail =
                            "keys: only a token that opens all limits may add keys to a limit";
                        return Err(self.no_right(detail));
                    }
                }
                let is_new = self.sources.plan().sources(limit).next().is_none();
                let made = self.change(
                    &mut alone,
                    limit,
                    holder,
                    headers,
                    |sources, change, may| sources.put(change, terms, may),
                );
                made.await.map_err(not_changed)??;
                let mut answer = self.stands(&self.sources.plan(), limit);
                if is_new {
                    *answer.status_mut() = StatusCode::CREATED;
                }
                Ok(answer)
            }
            Method::DELETE => {
                self.may_administer(holder)?;
                let mut alone = self.alone().await?;
                let made = self.change(
                    &mut alone,
                    limit,
                    holder,
                    headers,
                    |sources, change, may| sources.delete(change, may),
                );
                made.await.map_err(|not| match not {
                    NotChanged::NotPut(None) => unknown(limit),
                    not => not_changed(not),
                })??;
                Ok(self.stands(&self.sources.plan(), limit))
            }
            _ => Err(Problem::new(problem::METHOD, "use GET, PUT or DELETE")),
        }
    }

    /// Makes a change of a limit, if it is what the headers say, and brings it to the disk.
    async fn change(
        &self,
        alone: &mut Alone<'_>,
        limit: &str,
        holder: &Holder,
        headers: HeaderMap,
        make: impl FnOnce(&LimitSources, Change<'_>, &May<'_>) -> Result<u64, NotChanged>
        + Send
        + 'static,
    ) -> Result<Result<(), Problem>, NotChanged> {
        let (limit, who) = (limit.to_owned(), holder.name.clone());
        let made = alone.change(SAVED_TIMEOUT, move |sources| {
            let change = Change {
                limit: &limit,
                who: &who,
            };
            make(sources, change, &|origin| allows(&headers, &limit, origin))
        });
        Ok(match made.await? {
            true => Ok(()),
            false => Err(Problem::new(problem::NOT_SAVED, NOT_KEPT)),
        })
    }

    /// A limit as it is after a change; an empty answer if it is gone.
    fn stands(&self, plan: &Plan, limit: &str) -> Answer {
        let Some(origin) = plan.origin(limit) else {
            let mut answer = Response::new(Full::new(Bytes::new()));
            *answer.status_mut() = StatusCode::NO_CONTENT;
            return answer;
        };
        let body = LimitBody::of(limit, &origin);
        let tag = body.etag();
        tagged(json(&body), &tag)
    }

    /// Makes changes one after the other, each on the disk before the next.
    async fn alone(&self) -> Result<Alone<'_>, Problem> {
        let alone = timeout(SAVED_TIMEOUT, self.sources.alone()).await;
        alone.map_err(|_| {
            let detail = "nothing is changed: other changes are not on the disk yet";
            Problem::new(problem::NOT_SAVED, detail)
        })
    }

    fn may_administer(&self, holder: &Holder) -> Result<(), Problem> {
        if holder.rights.administer {
            return Ok(());
        }
        let detail = if self.tokens.is_some() {
            "the token has no right to administer"
        } else {
            "no token has the right to administer: name --token-file, or set --open-administration"
        };
        Err(self.no_right(detail))
    }

    pub(super) fn no_right(&self, detail: &str) -> Problem {
        let refusals = &self.metrics.token_refusals;
        refusals.with_label_values(&["right"]).inc();
        Problem::new(problem::FORBIDDEN, detail)
    }
}

fn unknown(limit: &str) -> Problem {
    Problem::new(
        problem::UNKNOWN_LIMIT,
        format!("there is no limit {limit:?}"),
    )
}

fn not_changed(not: NotChanged) -> Problem {
    match not {
        NotChanged::Mistakes(mistakes) => {
            Problem::new(problem::INVALID_LIMIT, mistakes.0.join("; "))
        }
        NotChanged::Condition => Problem::new(problem::CONDITION, ""),
        NotChanged::NotPut(source) => {
            let source = source.map_or("", Source::name);
            Problem::new(problem::NOT_PUT, format!("the limit is the {source}'s"))
        }
    }
}

/// Whether `If-Match` and `If-None-Match` let a limit be changed that is like this.
fn allows(headers: &HeaderMap, limit: &str, origin: Option<&Origin>) -> bool {
    let tag = origin.map(|origin| LimitBody::of(limit, origin).etag());
    let names = |header| names(headers, header, tag.as_deref());
    names(header::IF_MATCH).unwrap_or(true) && !names(header::IF_NONE_MATCH).unwrap_or(false)
}

/// Whether a header with entity tags names what has this tag, or would have; `None` without the header. Those of `If-Match` have to be strong, and
/// ours are.
fn names(headers: &HeaderMap, header: header::HeaderName, tag: Option<&str>) -> Option<bool> {
    let is_weak_too = header == header::IF_NONE_MATCH;
    let mut values = headers.get_all(header).iter().peekable();
    values.peek()?;
    let named = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|named| {
            let weak = named.strip_prefix("W/").filter(|_| is_weak_too);
            tag.is_some_and(|tag| named == "*" || weak.unwrap_or(named) == tag)
        });
    Some(named)
}

/// A document, or that the caller has it already.
fn answer_of(view: View, headers: &HeaderMap) -> Answer {
    if is_known(headers, &view.etag) {
        return unchanged(&view.etag);
    }
    tagged(text(view.body, "application/json"), &view.etag)
}

/// Whether the caller has it already.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    names(headers, header::IF_NONE_MATCH, Some(tag)).unwrap_or(false)
}

pub(super) fn unchanged(tag: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = StatusCode::NOT_MODIFIED;
    tagged(answer, tag)
}

pub(super) fn tagged(mut answer: Answer, tag: &str) -> Answer {
    let tag = HeaderValue::from_str(tag).expect("hexadecimal digits in quotes");
    answer.headers_mut().insert(header::ETAG, tag);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: header::HeaderName, value: &'static str, tag: Option<&str>, expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(&header, HeaderValue::from_static(value));
        assert_eq!(names(&headers, header, tag), Some(expected), "{value}");
    }

    #[test]
    fn conditions_name_what_is_there() {
        let (one, none) = (header::IF_MATCH, header::IF_NONE_MATCH);
        let tag = Some("\"a\"");
        check(one.clone(), "\"a\"", tag, true);
        check(one.clone(), "\"b\", \"a\"", tag, true);
        check(one.clone(), "W/\"a\"", tag, false);
        check(none.clone(), "W/\"a\"", tag, true);
        check(one.clone(), "*", tag, true);
        check(one.clone(), "*", None, false);
        check(none.clone(), "*", None, false);
        check(none, "\"b\"", tag, false);
        assert_eq!(names(&HeaderMap::new(), one, tag), None);
    }
}
