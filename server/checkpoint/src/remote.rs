//! Object stores: writing large files in pieces, and a manifest only if none is there.

use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, WriteMultipart};

use crate::error::CheckpointError;

/// Bytes of an upload's piece. S3 wants at least 5 MiB, and at most 10,000 pieces a file.
const UPLOAD: u64 = 8 << 20;
const UPLOADS_MAX: u64 = 9_000;
/// Pieces of an upload under way at once.
const UNDER_WAY: usize = 4;

/// Writes a file of `bytes`, which are `slices`. Whole or not there, by the rule of every object store.
pub(crate) async fn upload<'a>(
    store: &dyn ObjectStore,
    path: &Path,
    bytes: u64,
    slices: impl Iterator<Item = &'a [u8]>,
) -> object_store::Result<()> {
    if bytes <= UPLOAD {
        let mut whole = Vec::with_capacity(bytes as usize);
        for slice in slices {
            whole.extend_from_slice(slice);
        }
        return store.put(path, PutPayload::from(whole)).await.map(|_| ());
    }
    // At most gigabytes, on a machine that holds them.
    let piece = UPLOAD.max(bytes.div_ceil(UPLOADS_MAX)) as usize;
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(path).await?, piece);
    for slice in slices {
        for some in slice.chunks(piece) {
            if let Err(error) = upload.wait_for_capacity(UNDER_WAY).await {
                // What was uploaded is paid for until it is given up. The first error is the one to tell.
                let _ = upload.abort().await;
                return Err(error);
            }
            upload.write(some);
        }
    }
    upload.finish().await.map(|_| ())
}

/// Writes a file where there is none of that name; `false` if there is. Stores that cannot do both at once are asked first.
pub(crate) async fn put_new(
    store: &dyn ObjectStore,
    path: &Path,
    bytes: Vec<u8>,
) -> object_store::Result<bool> {
    use object_store::Error;
    // Asked in any case: some servers take the condition and do not keep it.
    match store.head(path).await {
        Ok(_) => return Ok(false),
        Err(Error::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let payload = PutPayload::from(bytes);
    match store.put_opts(path, payload.clone(), PutMode::Create.into()).await {
        Ok(_) => Ok(true),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
        Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
            store.put(path, payload).await.map(|_| true)
        }
        Err(error) => Err(error),
    }
}

/// The store of an `s3://bucket/prefix` address, and the prefix. Credentials, region and endpoint come from the usual `AWS_...` variables.
#[cfg(feature = "s3")]
pub(crate) fn s3(at: &str) -> Result<(Arc<dyn ObjectStore>, String), CheckpointError> {
    let fault = |why: String| CheckpointError::Address { at: at.to_owned(), why };
    let rest = at.strip_prefix("s3://").unwrap_or(at);
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(fault("it names no bucket; write s3://BUCKET/PREFIX".into()));
    }
    // Fails only where a provider was chosen already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = object_store::aws::AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .build()
        .map_err(|error| fault(format!("{error}; set AWS_REGION or AWS_ENDPOINT, and the keys")))?;
    Ok((Arc::new(store), prefix.to_owned()))
}

/// As above, in a program without this.
#[cfg(not(feature = "s3"))]
pub(crate) fn s3(at: &str) -> Result<(Arc<dyn ObjectStore>, String), CheckpointError> {
    let why =
        "this program was built without the feature s3; use a folder, or build it with --features s3".into();
    Err(CheckpointError::Address { at: at.to_owned(), why })
}
