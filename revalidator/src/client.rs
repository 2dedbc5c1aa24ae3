//! The settings of all HTTP clients.

use std::time::Duration;

use reqwest::redirect::Policy;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP client that follows no redirects and uses no proxy.
pub fn builder() -> reqwest::ClientBuilder {
    // A second call fails, which has no effect.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .http1_only()
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .user_agent("cookiesync-revalidator")
}
