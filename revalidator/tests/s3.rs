//! Test of contents in a bucket of a real server with the API of S3.
//!
//! `.ci/nightly` runs it with the server `s3s-fs`. The environment variables `AWS_…` contain the server's address and credentials, and
//! `S3_DIR` is its directory, which contains the bucket `objects`.

use std::{env, fs, path::Path};

use revalidator::contents::Contents;

#[tokio::test]
#[ignore = "needs a server"]
async fn objects_are_written_replaced_and_removed_in_a_bucket() {
    let dir = env::var("S3_DIR").expect("the directory of the server");
    for location in ["s3://objects/shop/pages", "s3://objects"] {
        let contents = Contents::parse(location).unwrap();
        for key in ["a", "../../a", "https://shop.example/ \u{fc}?q=%2F", ""] {
            let path = Path::new(&dir).join("objects").join(contents.path(key));
            for body in ["one", "two", "two"] {
                contents.write(key, body.into()).await.unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), body);
            }
            assert!(contents.has(key).await);
            contents.remove(key).await.unwrap();
            contents.remove(key).await.unwrap();
            assert!(!path.exists() && !contents.has(key).await, "{key}");
        }
    }
    assert!(Contents::parse("s3://").is_err());
}
