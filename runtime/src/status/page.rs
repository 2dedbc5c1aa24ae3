//! A status page: what all pages share, with what a process shows inside, and the policy that lets a browser run nothing
//! else.
//!
//! The policy names the style and the script by the hash of their bytes. So what an outsider could smuggle into the page
//! would not run, and the page can ask nobody but the port it came from.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::answer::{Answer, content};

/// What all pages share.
const FRAME: &str = include_str!("frame.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// What a process shows on its page.
#[derive(Debug, Clone, Copy)]
pub struct Content {
    /// The process, in the title and until its name is known.
    pub name: &'static str,
    /// What looks otherwise than on all pages.
    pub style: &'static str,
    /// The HTML between header and footer.
    pub body: &'static str,
    /// What brings each sample into it.
    pub script: &'static str,
}

/// A page, ready to be sent.
#[derive(Debug, Clone)]
pub struct Page {
    html: Bytes,
    policy: HeaderValue,
}

impl Page {
    /// The page with this inside.
    ///
    /// # Panics
    /// When the style or the script would end before their ends.
    #[must_use]
    pub fn new(content: &Content) -> Self {
        let html = FRAME
            .replace("{{name}}", content.name)
            .replace("{{style}}", &format!("{STYLE}{}", content.style))
            .replace("{{body}}", content.body)
            .replace("{{script}}", &format!("{SCRIPT}\n{}", content.script));
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
            hash_of(&html, "script"),
            hash_of(&html, "style"),
        );
        Self {
            html: Bytes::from(html),
            policy: HeaderValue::try_from(policy).expect("a policy is ASCII"),
        }
    }

    /// The page as an answer.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let html = self.html.clone();
        let mut answer = content(StatusCode::OK, "text/html; charset=utf-8", html);
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        let no_referrer = HeaderValue::from_static("no-referrer");
        headers.insert(header::REFERRER_POLICY, no_referrer);
        let same_origin = HeaderValue::from_static("same-origin");
        headers.insert("cross-origin-resource-policy", same_origin);
        answer
    }
}

/// The hash of what is inside the only element of that name.
fn hash_of(html: &str, element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let parts = html
        .split_once(&open)
        .and_then(|(_, rest)| rest.split_once(&close));
    let (inside, rest) = parts.expect("a page has each element");
    assert!(!rest.contains(&open), "a page has one {open}");
    format!("sha256-{}", STANDARD.encode(Sha256::digest(inside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_the_script_and_the_style_by_their_hashes() {
        // printf '%s' … | openssl dgst -sha256 -binary | base64
        let html = "<style>b{}</style><script>alert(1)</script>";
        let expected = "sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=";
        assert_eq!(hash_of(html, "script"), expected);
        let answer = Page::new(&Content {
            name: "test",
            style: "b {}",
            body: "<b></b>",
            script: "live();",
        })
        .answer();
        let policy = answer.headers()[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        let script = format!(
            "script-src '{}';",
            hash_of(&format!("<script>{SCRIPT}\nlive();</script>"), "script")
        );
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(policy.contains(&script), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }
}
