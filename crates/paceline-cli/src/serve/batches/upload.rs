//! A file on its way here: a form whose fields are read as they come, straight to the disk.

use std::sync::Arc;

use axum::Json;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::extract::{Multipart, State};
use bytes::Bytes;
use http::StatusCode;
use paceline_gateway::{KeySearch, decoded_often};
use tokio::io::AsyncWriteExt as _;

use super::error::{ApiError, no_body};
use super::files::{BATCH, FileObject, Upload};
use super::service::Service;
use crate::lines::format::SHOWS_A_KEY;

/// The largest file, in bytes: 200 MiB, somewhat more than the hosted service takes.
const LARGEST: u64 = 200 << 20;

/// So much of a form is read, so that a client with too large a file is still there to be told.
pub(super) const MOST_READ: usize = 1 << 30;

/// The most fields of a form.
const MOST_FIELDS: usize = 16;

/// The longest value of a field that is no file.
const LONGEST_VALUE: usize = 1_024;

/// The longest name of a file, in characters.
const LONGEST_NAME: usize = 255;

/// `POST /v1/files`.
pub(super) async fn upload(
    State(service): State<Arc<Service>>,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<FileObject>, ApiError> {
    let mut form = form.map_err(|_| {
        ApiError::invalid(
            None,
            "expected a form (Content-Type: multipart/form-data; boundary=...), as SDKs and curl -F send it",
        )
    })?;
    let (mut file, mut purpose) = (None, None);
    let mut fields = 0;
    while let Some(field) = form.next_field().await.map_err(broken)? {
        fields += 1;
        if fields > MOST_FIELDS {
            return Err(ApiError::invalid(None, format!("the form has more than {MOST_FIELDS} fields")));
        }
        match field.name() {
            Some("file") if file.is_none() => file = Some(taken(&service, field).await?),
            Some("purpose") => purpose = Some(value(field).await?),
            // What else the hosted service knows, such as `expires_after`: a file stays until it is deleted.
            _ => drop(value(field).await?),
        }
    }
    let purpose = purpose.ok_or_else(|| ApiError::invalid("purpose", "missing: expected batch"))?;
    if purpose != BATCH.as_bytes() {
        return Err(ApiError::invalid("purpose", "the gateway keeps files for batches alone: expected batch"));
    }
    let (upload, name) = file.ok_or_else(|| ApiError::invalid("file", "missing: expected the file to upload"))?;
    if service.clients().have_key_in(&decoded_often(&name)) {
        return Err(ApiError::invalid("file", SHOWS_A_KEY));
    }
    Ok(tokio::task::block_in_place(|| service.files.keep(upload, name, BATCH)).map(Json)?)
}

/// The content of a file, on the disk, and its name.
async fn taken(service: &Service, mut field: Field<'_>) -> Result<(Upload, String), ApiError> {
    let name: String = field.file_name().unwrap_or("file").chars().take(LONGEST_NAME).collect();
    let upload = service.files.begin()?;
    let mut content = tokio::fs::File::from_std(upload.content.try_clone()?);
    let mut search = KeySearch::new(service.clients());
    let mut bytes = 0;
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        bytes += piece.len() as u64;
        if bytes <= LARGEST {
            search.read(&piece);
            content.write_all(&piece).await?;
        }
    }
    content.flush().await?;
    if bytes > LARGEST {
        let message = format!("the file has {bytes} bytes: expected at most {LARGEST}");
        return Err(ApiError::invalid("file", message).with_status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    if search.ends() {
        return Err(ApiError::invalid("file", SHOWS_A_KEY));
    }
    Ok((upload, name))
}

/// The value of a field, which is short.
async fn value(mut field: Field<'_>) -> Result<Bytes, ApiError> {
    let mut value = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        value.extend_from_slice(&piece);
        if value.len() > LONGEST_VALUE {
            return Err(ApiError::invalid(None, format!("a field of the form has more than {LONGEST_VALUE} bytes")));
        }
    }
    Ok(value.into())
}

fn broken(error: MultipartError) -> ApiError {
    no_body(&error).unwrap_or_else(|| ApiError::invalid(None, error.body_text()).with_status(error.status()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use paceline_gateway::{Backend, Bounds, Gateway, listen};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::super::Batches;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_trickles_in_is_given_up_with_its_status() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (batches, mut bounds) = (Batches::open(Some(folder.path()), Vec::new()), Bounds::default());
        bounds.slowest_body = Duration::from_millis(100);
        let gateway = Gateway::with_own_routes(Vec::<Backend>::new(), batches.routes(), bounds).expect("it has none");
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let serving = tokio::spawn(async move { gateway.serve(listener, std::future::pending()).await });
        for (path, kind, begins) in [
            (
                "/v1/files",
                "multipart/form-data; boundary=b",
                "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{",
            ),
            ("/v1/files", "multipart/form-data; boundary=b", "--b\r\nContent-Dispo"),
        ] {
            let mut stream = TcpStream::connect(address).await.expect("it is there");
            let host = format!("Host: {address}\r\nContent-Type: {kind}\r\nContent-Length: 1000");
            let request = format!("POST {path} HTTP/1.1\r\n{host}\r\n\r\n{begins}");
            stream.write_all(request.as_bytes()).await.expect("it reads");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8(answer).expect("text");
            let is_told = answer.contains("trickles in: less than 256 KiB came in 100ms");
            assert!(answer.starts_with("HTTP/1.1 408") && is_told, "{path}: {answer}");
        }
        serving.abort();
    }
}
