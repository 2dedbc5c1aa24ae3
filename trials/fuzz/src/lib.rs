//! What must hold for whatever bytes an outsider sends. Each function panics when it does not.
//!
//! The fuzz targets call these with what the fuzzer makes up, the tests with what is kept of that in `trials/fuzz/corpus`.

mod chunk;
mod limiter;
mod lookup;
mod request;
mod settings;

pub use self::{
    chunk::chunk,
    limiter::{call, limits_file, record, used_records},
    lookup::lookup,
    request::request,
    settings::settings,
};
