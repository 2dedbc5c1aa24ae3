//! Settings of the API.

use std::{net::SocketAddr, sync::Arc};

use runtime::{
    connect::credentials::load_files,
    reload::{NamedFile, Reloader},
    settings::{BOOLEAN, CONTENTS, ConfigErrors, address, count, optional},
};

use crate::{api::tokens, contracts::origin, edge::opt_out};

/// The settings as written.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "API")]
pub(super) struct ApiArgs {
    /// Address of the HTTP API for bulk input and deletions; empty for no API
    ///
    /// The API uses --tls-cert and --tls-key. Without --api-tokens, the address must be a loopback address.
    #[arg(long, value_name = "ADDRESS", default_value = "", value_parser = optional(|text| Ok(address(text)?)))]
    api: std::option::Option<SocketAddr>,

    /// File with the API's tokens, one per line: NAME TOKEN DSPS PERMISSIONS. If set, every request must carry a token
    ///
    /// DSPS is a comma-separated list of DSP ids, or `*` for all; PERMISSIONS is a comma-separated list of `write`, `delete` and `nodes`.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    api_tokens: String,

    /// Serve a page at /optout on the sync port, where users can delete their cookies on all nodes and opt out of further syncs
    #[arg(long, value_name = BOOLEAN)]
    opt_out: bool,

    /// Origins of the opt-out page for browsers, such as https://sync.example, if a proxy changes the header Host
    ///
    /// They matter only to browsers that do not send Sec-Fetch-Site.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = optional(|text| Ok(parse_origin(text)?)))]
    public_origin: Vec<std::option::Option<String>>,

    /// Origins of web pages that may show the opt-out page in a frame. In browsers that keep HTTP cookies separately for each website,
    /// an opt-out holds only on websites that do so
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = optional(|text| Ok(parse_origin(text)?)))]
    opt_out_frame_origin: Vec<std::option::Option<String>>,

    #[command(flatten)]
    limits: ApiLimits,
}

/// Limits of the API.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ApiLimits {
    /// Number of nodes that the API waits for, up to two seconds, to confirm that they have stored a deletion
    ///
    /// If fewer nodes confirm, the response contains "at_risk": true, because a crash of the producer may lose the deletion.
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count(0..=1_000))]
    pub deletion_confirmations: usize,

    /// Maximum number of requests per second for each API token
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "100",
        hide_short_help = true,
        value_parser = count(1..=1_000_000)
    )]
    pub api_requests_per_second: usize,
}

/// The validated settings of the API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Address of the port; `None` without API.
    pub address: Option<SocketAddr>,
    /// Accepted tokens; `None` if local programs may use the port without tokens.
    pub tokens: Option<Arc<Reloader<tokens::File>>>,
    /// Settings of the opt-out page of the sync port, if there is one.
    pub opt_out: Option<opt_out::Config>,
    /// Limits of the API.
    pub limits: ApiLimits,
}

impl ApiArgs {
    pub(super) fn check(self, errors: &mut ConfigErrors) -> ApiConfig {
        let tokens = NamedFile::from_flag("--api-tokens", &self.api_tokens);
        match (self.api, &tokens) {
            (Some(address), None) if !address.ip().is_loopback() => {
                errors.add("--api: without --api-tokens, only a loopback address such as 127.0.0.1:8081 is allowed");
            }
            (None, Some(_)) => errors.add("--api-tokens: has no effect without --api"),
            _ => {}
        }
        let opt_out = opt_out::Config {
            public_origins: self.public_origin.into_iter().flatten().collect(),
            frame_origins: self.opt_out_frame_origin.into_iter().flatten().collect(),
        };
        for (flag, origins) in [
            ("--public-origin", &opt_out.public_origins),
            ("--opt-out-frame-origin", &opt_out.frame_origins),
        ] {
            if !origins.is_empty() && !self.opt_out {
                errors.add(format!("{flag}: has no effect without --opt-out"));
            }
        }
        ApiConfig {
            address: self.api,
            tokens: tokens.and_then(|file| load_files(errors, tokens::File::new(file))),
            opt_out: self.opt_out.then_some(opt_out),
            limits: self.limits,
        }
    }
}

fn parse_origin(text: &str) -> Result<String, String> {
    origin::check(text).map(|()| text.to_owned())
}
