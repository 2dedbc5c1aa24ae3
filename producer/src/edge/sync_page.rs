//! `GET /sync.html`: a page for frames that asks for a plan and runs it, for publishers without a script of their own.
//!
//! It sets no cookie, and is the same for everyone. The hash of its script in the content security policy permits only this
//! script.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::digest;

/// The path.
pub(super) const PATH: &str = "/sync.html";

/// The page.
pub(super) const HTML: &str = include_str!("sync_page/page.html");

/// The first lines of the response.
static HEAD: LazyLock<String> = LazyLock::new(|| {
    let script = HTML
        .split_once("<script>")
        .and_then(|(_, rest)| rest.split_once("</script>"));
    let script = script.map_or("", |(script, _)| script);
    let hash = STANDARD.encode(digest::digest(&digest::SHA256, script.as_bytes()));
    // Hosts cannot be listed: the policy also applies to the redirects of a partner.
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\n\
         cache-control: public, max-age=3600\r\nreferrer-policy: no-referrer\r\n\
         content-security-policy: default-src 'none'; script-src 'sha256-{hash}'; connect-src 'self'; img-src https:; \
         frame-src https:; base-uri 'none'; form-action 'none'; frame-ancestors https:\r\n",
        HTML.len()
    )
});

/// Begins the response.
#[cold]
pub(super) fn begin(output: &mut Vec<u8>) {
    output.reserve_exact(HEAD.len() + HTML.len() + 1024);
    output.extend_from_slice(HEAD.as_bytes());
}
