//! Messages between [makers](crate::maker) and workers: JSON objects with the field names of the original design (docs/revalidator.md),
//! extended by fields of this program.
//!
//! Programs in other languages create jobs with these messages. Unknown fields and states are kept when a status is
//! written back.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

/// Maximum number of assets in a batch.
pub const BATCH_ASSETS_MAX: usize = 100;

/// Maximum bytes of an asset, as JSON.
pub const ASSET_BYTES_MAX: usize = 4 << 10;

/// Maximum bytes of a URL.
pub const URL_BYTES_MAX: usize = 2048;

/// Maximum bytes of an entity tag or a `Last-Modified`; longer ones are ignored.
pub const VALIDATOR_BYTES_MAX: usize = 512;

/// Maximum bytes of a job status, as JSON.
pub const STATUS_BYTES_MAX: usize = 16 << 10;

/// Maximum number of JSON values of other programs in a job status; each may need ten times the memory of its text.
const OTHER_VALUES_MAX: usize = 64;

/// Maximum bytes of a job id.
const ID_BYTES_MAX: usize = 96;

/// Maximum of `revalidatorsNeeded`.
pub const WORKERS_NEEDED_MAX: u32 = 64;

/// Which objects a job may remove.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AllowDelete {
    /// No objects.
    #[default]
    None,
    /// Objects that the origin reports as gone.
    Partial,
    /// All objects of the job, without requests.
    All,
}

impl<'de> Deserialize<'de> for AllowDelete {
    /// Also accepts the boolean of the original design.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match (value.as_bool(), value.as_str()) {
            (Some(false), _) | (_, Some("none")) => Ok(Self::None),
            (Some(true), _) | (_, Some("partial")) => Ok(Self::Partial),
            (_, Some("all")) => Ok(Self::All),
            _ => Err(de::Error::custom("use `none`, `partial` or `all`")),
        }
    }
}

/// Progress of the maker of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerState {
    /// Publishes batches.
    #[default]
    Transmitting,
    /// All batches are published.
    #[serde(rename = "Wait-For-Results")]
    WaitForResults,
    /// All results have arrived, and their metadata are being written.
    #[serde(rename = "Processing-Results")]
    ProcessingResults,
    /// The job has ended.
    Finished,
    /// The job was ended early.
    Cancelled,
    /// A state of another program.
    #[serde(untagged)]
    Other(String),
}

/// Progress of the workers of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevalidatorState {
    /// No worker has started.
    #[default]
    Waiting,
    /// Workers process batches.
    Revalidating,
    /// No worker processes batches until `resumeAt`, or until an operator resumes the job.
    Suspended,
    /// All results have arrived.
    Finished,
    /// The job was ended early.
    Cancelled,
    /// A state of another program.
    #[serde(untagged)]
    Other(String),
}

/// Status of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Which objects may be removed.
    pub allow_delete: AllowDelete,
    /// Name of the application.
    pub app_name: String,
    /// Number of assets transmitted.
    pub asset_count: u64,
    /// Number of batches transmitted; their numbers are `0..batchCount`.
    pub batch_count: u64,
    /// Whether requests are unconditional, and confirmed matches are rewritten.
    pub force_update: bool,
    /// Unique id.
    pub job_id: String,
    /// Maximum number of workers.
    pub revalidators_needed: u32,
    /// Progress of the workers.
    pub revalidator_state: RevalidatorState,
    /// Progress of the maker.
    pub server_state: ServerState,
    /// Time of creation in Unix milliseconds, like all times.
    pub created_at: u64,
    /// Time at which the first worker started.
    pub started_at: Option<u64>,
    /// Time at which the job ended.
    pub ended_at: Option<u64>,
    /// Why the job is suspended or retried, or was cancelled.
    pub reason: Option<String>,
    /// End of the suspension; without it, an operator resumes the job.
    pub resume_at: Option<u64>,
    /// Time until which the origin demands that no job of the application sends requests.
    pub throttled_until: Option<u64>,
    /// Start of the current suspension.
    pub suspended_at: Option<u64>,
    /// Time of the first suspension since the last batch with a result.
    pub failing_since: Option<u64>,
    /// Number of suspensions since the last batch with a result.
    pub suspensions: u32,
    /// Number of batches with failed assets; set when all of them are published.
    pub retry_batch_count: Option<u64>,
    /// How often the job has begun again, because the broker had lost batches or results.
    pub restarts: u32,
    /// Outcomes so far.
    pub counts: Counts,
    /// Position in the source after the transmitted batches; empty at its start.
    pub cursor: String,
    /// Selects the assets of the source.
    pub filter: Filter,
    /// Whether the job is a single check, which does not wait for other jobs.
    pub push: bool,
    /// Whether the assets came with the request; only the process that received them transmits them.
    pub has_body: bool,
    /// Whether another program is the maker.
    pub foreign: bool,
    /// Since when a foreign maker has sent nothing; other jobs of the application do not wait for the job.
    pub quiet_since: Option<u64>,
    /// Whether an operator has acknowledged the cancellation.
    pub acknowledged: bool,
    /// Name of the application, to confirm the removal of all objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<String>,
    /// Fields of other programs.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Whether a job can have this id, which is part of subjects and keys.
pub fn is_job_id(id: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_valid)
}

/// Number of values in a JSON value, including itself.
fn values_in(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(values_in).sum(),
        Value::Object(fields) => fields.values().map(values_in).sum(),
        _ => 0,
    }
}

impl JobStatus {
    /// Parses the value of the key `id`; `None` if it is invalid.
    pub fn parse(id: &str, value: &[u8]) -> Option<Self> {
        let job: Option<Self> = serde_json::from_slice(value).ok();
        let is_valid = is_job_id(id) && value.len() <= STATUS_BYTES_MAX;
        let is_small = |it: &Self| {
            let others = [&it.other, &it.filter.other, &it.counts.other];
            let values = others.into_iter().flat_map(Map::values).map(values_in);
            it.app_name.len() <= ID_BYTES_MAX && values.sum::<usize>() <= OTHER_VALUES_MAX
        };
        job.filter(|job| is_valid && job.job_id == id && is_small(job))
    }

    /// Which objects may be removed if the application permits `max`. Without a confirmation, never `All`.
    pub fn permitted(&self, max: AllowDelete) -> AllowDelete {
        match self.allow_delete.min(max) {
            AllowDelete::All if self.confirm.as_ref() != Some(&self.app_name) => {
                AllowDelete::Partial
            }
            permitted => permitted,
        }
    }

    /// Whether the job has not ended, and its states are known.
    pub fn is_open(&self) -> bool {
        use RevalidatorState as R;
        use ServerState as S;
        matches!(
            self.server_state,
            S::Transmitting | S::WaitForResults | S::ProcessingResults
        ) && matches!(
            self.revalidator_state,
            R::Waiting | R::Revalidating | R::Suspended
        )
    }

    /// Whether the job was ended early.
    pub fn is_cancelled(&self) -> bool {
        self.server_state == ServerState::Cancelled
            || self.revalidator_state == RevalidatorState::Cancelled
    }
}

/// Selection of the assets of a source for a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Filter {
    /// Minimum seconds since the last check of an asset.
    pub older_than: Option<u64>,
    /// Prefix of the key.
    pub prefix: Option<String>,
    /// Fraction of the assets, selected by the hash of their keys.
    pub sample: Option<f64>,
    /// Conditions of other programs.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Outcomes of the assets of a job, each counted once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// Assets with a final result.
    pub checked: u64,
    /// Unchanged assets.
    pub fresh: u64,
    /// Assets whose object was replaced.
    pub changed: u64,
    /// Assets that the origin no longer has.
    pub gone: u64,
    /// Assets whose object was removed.
    pub deleted: u64,
    /// Assets whose object was not removed because of the setting `max_removals`.
    pub held_back: u64,
    /// Assets whose requests failed twice.
    pub failed: u64,
    /// Assets kept because the response was unexpected.
    pub kept: u64,
    /// Counts of other programs.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Up to [`BATCH_ASSETS_MAX`] assets that one worker checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobBatch {
    /// The assets.
    pub assets: Vec<Asset>,
    /// The job.
    pub job_id: String,
    /// Number of the batch among those with the same `attempt`, from 0.
    pub batch: u64,
    /// 2 for assets whose first attempt failed, otherwise 1.
    #[serde(default = "first_attempt")]
    pub attempt: u32,
    /// Restarts of the job. Without them, the broker would discard batches and results that it received before.
    #[serde(default, skip_serializing_if = "is_first")]
    pub restarts: u32,
}

fn is_first(restarts: &u32) -> bool {
    *restarts == 0
}

fn first_attempt() -> u32 {
    1
}

impl JobBatch {
    /// A batch of a job.
    pub fn new(job: &str, batch: u64, attempt: u32, assets: Vec<Asset>) -> Self {
        Self {
            assets,
            job_id: job.to_owned(),
            batch,
            attempt,
            restarts: 0,
        }
    }

    /// Message id of the batch and of its result.
    pub fn id(&self) -> String {
        let Self {
            job_id,
            batch,
            attempt,
            restarts,
            ..
        } = self;
        match restarts {
            0 => format!("{job_id}/{batch}/{attempt}"),
            _ => format!("{job_id}/{batch}/{attempt}/{restarts}"),
        }
    }
}

/// An object that is checked against its origin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asset {
    /// Name of the object; empty if it is the URL.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// URL at the origin.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Entity tag of the stored object, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub e_tag: String,
    /// Digest of the stored object, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// `Last-Modified` of the stored object, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_modified: String,
    /// Whether the object is removed without a check, because clients have not requested it for a long time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unused: bool,
    /// Of a match: the time up to which its node was complete, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<u64>,
    /// Of a match: the time at which it was first missing at the partner, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<u64>,
    /// Of a match to publish: its uid, which is not part of messages.
    #[serde(skip)]
    pub uid: String,
}

impl Asset {
    /// Name of the object.
    pub fn name(&self) -> &str {
        if self.key.is_empty() {
            &self.url
        } else {
            &self.key
        }
    }

    /// Whether the object has a name other than its URL.
    pub fn has_key(&self) -> bool {
        self.name() != self.url
    }

    /// Whether the asset is short enough, even if a maker sets [`unused`](Self::unused).
    pub fn is_short(&self) -> bool {
        serde_json::to_vec(self).is_ok_and(|it| it.len() <= ASSET_BYTES_MAX + 32)
    }
}

/// Results of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResult {
    /// Mean time to the first byte of all responses, in milliseconds.
    pub average_response: u64,
    /// One result for each asset.
    pub results: Vec<AssetResult>,
    /// The worker.
    pub revalidator_id: String,
    /// The job.
    pub job_id: String,
    /// Number of the batch.
    pub batch: u64,
    /// Attempt of the batch.
    #[serde(default = "first_attempt")]
    pub attempt: u32,
    /// Restarts of the job when the batch was sent.
    #[serde(default, skip_serializing_if = "is_first")]
    pub restarts: u32,
}

/// What the response of an origin means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The object is unchanged.
    Fresh,
    /// The object has changed.
    Changed,
    /// The origin no longer has the object.
    Gone,
    /// The origin rejects the credentials.
    Refused,
    /// The origin demands fewer requests.
    Throttled,
    /// No usable response; the asset is retried.
    Failed,
    /// A response that a retry would not change; the object is kept.
    Unexpected,
    /// A response without a valid uid; the match is kept.
    Malformed,
    /// No request: the job removes all objects, or this unused one.
    Removed,
}

impl Outcome {
    /// Name in messages and metrics.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Result of an asset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssetResult {
    /// The asset, with the validators and the digest of the response.
    pub asset: Asset,
    /// Whether the object was removed.
    pub is_deleted: bool,
    /// Time to the first byte, in milliseconds; 0 without a response.
    pub server_response: u64,
    /// Whether the origin failed.
    pub server_error: bool,
    /// Whether the stored object differed from the origin.
    pub was_stale: bool,
    /// What the response means.
    pub outcome: Outcome,
    /// Whether the setting `max_removals` prevented the removal of the object.
    pub held_back: bool,
}

/// State of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubscriptionState {
    /// Has no job.
    Available,
    /// Requests a slot of a job.
    Attempt,
    /// Has a slot of a job.
    Subscribed,
}

/// State of a worker, with its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// The worker.
    pub revalidator_id: String,
    /// Its job.
    pub job_id: Option<String>,
    /// Its state.
    pub state: SubscriptionState,
    /// Parallel requests in its current batch.
    pub concurrency: usize,
    /// Mean response time of its last batch, in milliseconds.
    pub average_response: u64,
}

#[cfg(test)]
mod tests;
