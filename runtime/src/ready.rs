//! `/readyz`: the readiness of a process and of each of its components.

use http::StatusCode;
use serde::Serialize;

use crate::reply::{Reply, json};

/// A component of a process, with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Component {
    /// Its stable name.
    #[serde(rename = "component")]
    pub name: &'static str,
    /// Whether the component works.
    pub ready: bool,
    /// Its state in one line; the reason if it is not ready.
    pub state: String,
}

/// Why a process is not ready.
#[derive(Serialize)]
struct Reason {
    /// The name of the failing component.
    component: &'static str,
    /// The cause, in one line.
    reason: String,
}

/// The body of `/readyz`.
#[derive(Serialize)]
pub(crate) struct Readiness {
    /// Whether every component is ready. Determines the status: 200 or 503.
    ready: bool,
    /// The components that are not ready.
    reasons: Vec<Reason>,
    /// All components.
    components: Vec<Component>,
}

impl Component {
    /// A component that works (`Ok`) or fails, with its state. Line breaks become spaces.
    pub fn new(name: &'static str, state: Result<String, String>) -> Self {
        let ready = state.is_ok();
        let (Ok(state) | Err(state)) = state;
        Self {
            name,
            ready,
            state: state.replace(['\n', '\r'], " "),
        }
    }
}

/// The component `drain`, which fails while the process drains.
pub fn drain(is_draining: bool) -> Component {
    let drain = if is_draining {
        Err("draining".to_owned())
    } else {
        Ok("not draining".to_owned())
    };
    Component::new("drain", drain)
}

/// The readiness of a process with these components.
pub(crate) fn readiness(components: Vec<Component>) -> Readiness {
    let failing = components.iter().filter(|component| !component.ready);
    let reasons = failing.map(|component| Reason {
        component: component.name,
        reason: component.state.clone(),
    });
    Readiness {
        ready: components.iter().all(|component| component.ready),
        reasons: reasons.collect(),
        components,
    }
}

/// The response of `/readyz` for a process with these components.
pub(crate) fn reply(components: Vec<Component>) -> Reply {
    let readiness = readiness(components);
    let status = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json(status, &readiness)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn readiness_lists_all_components_and_the_reasons_of_failing_ones() {
        let working = Component::new("producers", Ok("2 of 3 connected".to_owned()));
        let failing = Component::new("store", Err("gone\naway".to_owned()));
        for (components, status, expected) in [
            (
                vec![working.clone(), failing],
                503,
                r#"{"ready":false,"reasons":[{"component":"store","reason":"gone away"}],"components":[{"component":"producers","ready":true,"state":"2 of 3 connected"},{"component":"store","ready":false,"state":"gone away"}]}"#,
            ),
            (
                vec![working],
                200,
                r#"{"ready":true,"reasons":[],"components":[{"component":"producers","ready":true,"state":"2 of 3 connected"}]}"#,
            ),
        ] {
            let reply = reply(components);
            assert_eq!(reply.status(), status);
            assert_eq!(reply.headers()["content-type"], "application/json");
            let body = reply.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, format!("{expected}\n"));
        }
    }
}
