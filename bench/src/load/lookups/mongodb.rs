//! The database of each DSP, as a consumer writes it and a bidder reads it: raw commands, all of a lookup sent at once.

use anyhow::Result;
use mongodb::bson::{DateTime, Document, RawDocument, RawDocumentBuf, doc};

use super::{
    super::response::{MalformedResponse, Response, SERVER_ERROR, WRONG},
    LookupMix, Lookups, PLACEHOLDER,
};

/// Users per command that stores them.
pub(super) const GROUP: u64 = 1_000;

/// Operation code of commands and replies.
const OP_MSG: i32 = 2013;

/// Bytes before the document of a message: header, flags, and the kind of its section.
const HEAD_BYTES: usize = 21;

/// Appends a command.
fn put(buffer: &mut Vec<u8>, command: &Document) -> Result<()> {
    let command = RawDocumentBuf::try_from(command)?.into_bytes();
    let length = i32::try_from(HEAD_BYTES + command.len())?;
    for number in [length, 0, 0, OP_MSG, 0] {
        buffer.extend_from_slice(&number.to_le_bytes());
    }
    buffer.push(0);
    buffer.extend_from_slice(&command);
    Ok(())
}

/// A `find` per DSP.
pub(super) fn template(mix: &LookupMix) -> Result<Vec<u8>> {
    let filter = match mix.batch.get() {
        1 => doc! { "_id": PLACEHOLDER },
        batch => doc! { "_id": { "$in": vec![PLACEHOLDER; batch] } },
    };
    let (limit, mut finds) = (i64::try_from(mix.batch.get())?, Vec::new());
    for dsp_id in 1..=mix.dsps {
        let command = doc! {
            "find": "cookies", "filter": filter.clone(), "limit": limit, "batchSize": limit,
            "singleBatch": true, "$db": dsp_id.to_string(),
        };
        put(&mut finds, &command)?;
    }
    Ok(finds)
}

impl Lookups {
    /// Appends a command that stores a group of users at one DSP. Stored ones are kept.
    pub(super) fn put_insert(&self, buffer: &mut Vec<u8>, group: u64, dsp_id: u32) {
        let users = (GROUP * group..self.mix.users.get()).take(1_000);
        let documents = users.map(|user| {
            let cookie = self.traffic.lasting(user, dsp_id);
            doc! { "_id": cookie.user_id(), "b": cookie.buyer_uid(), "t": DateTime::now() }
        });
        let command = doc! {
            "insert": "cookies", "documents": documents.collect::<Vec<_>>(), "ordered": false,
            "$db": dsp_id.to_string(),
        };
        put(buffer, &command).expect("a thousand small documents can be encoded");
    }

    /// Checks the reply to an insert, or those to the finds of all DSPs.
    pub(super) fn check_replies(
        &self,
        bytes: &[u8],
    ) -> Result<Option<Response>, MalformedResponse> {
        let (mut rest, mut replies) = (bytes, Vec::new());
        for _ in 0..self.fill.map_or(self.mix.dsps, |_| 1) {
            let Some(length) = rest.first_chunk() else {
                return Ok(None);
            };
            let length = u32::from_le_bytes(*length) as usize;
            let Some((reply, others)) = rest.split_at_checked(length) else {
                return Ok(None);
            };
            replies.push(reply.get(HEAD_BYTES..).ok_or(MalformedResponse)?);
            rest = others;
        }
        let mut checked = (1..).zip(replies).map(|(dsp_id, reply)| {
            let reply = RawDocument::from_bytes(reply).ok()?;
            let is_done = reply.get_f64("ok").ok()? == 1.0;
            if self.fill.is_some() {
                Some(is_done)
            } else {
                self.is_found(dsp_id, reply)
            }
        });
        let status = match checked.find(|correct| *correct != Some(true)) {
            None => 200,
            Some(None) => SERVER_ERROR,
            Some(_) => WRONG,
        };
        let bytes = bytes.len() - rest.len();
        Ok(Some(Response {
            status,
            bytes,
            ..Response::default()
        }))
    }

    /// Whether a reply has the documents of the users of the outstanding request; `None` if the find failed.
    fn is_found(&self, dsp_id: u32, reply: &RawDocument) -> Option<bool> {
        let documents = reply.get_document("cursor").ok()?.get_array("firstBatch");
        let found = documents.ok()?.into_iter().map(|document| {
            let document = document.ok()?.as_document()?;
            Some((document.get_str("_id").ok()?, document.get_str("b").ok()?))
        });
        let mut found = found.collect::<Option<Vec<_>>>()?;
        let known = self.users.iter().filter(|user| self.is_stored(**user));
        let cookies: Vec<_> = known
            .map(|user| self.traffic.lasting(*user, dsp_id))
            .collect();
        let stored = cookies.iter().map(|it| (it.user_id(), it.buyer_uid()));
        let mut stored: Vec<_> = stored.collect();
        stored.sort_unstable();
        stored.dedup();
        found.sort_unstable();
        Some(found == stored)
    }
}
