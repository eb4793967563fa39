//! A file on its way here: a form whose fields are read as they come, straight to the disk.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Json;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::extract::{Multipart, State};
use bytes::Bytes;
use http::StatusCode;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Sleep, sleep};

use super::error::ApiError;
use super::files::{BATCH, FileObject, Upload};
use super::service::Service;

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

/// So many bytes of a form must come in each span of that time, but for its end, as of the body of any request: a client that
/// sends a byte now and then would hold a connection and a file for hours.
const LEAST: usize = 256 << 10;
const SLOWEST: Duration = Duration::from_secs(30);

/// `POST /v1/files`.
pub(super) async fn upload(
    State(service): State<Arc<Service>>,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<FileObject>, ApiError> {
    let mut form = form.map_err(|error| {
        ApiError::invalid(None, format!("expected a form of the type multipart/form-data: {}", error.body_text()))
    })?;
    let (mut file, mut purpose) = (None, None);
    let (mut fields, mut span) = (0, Span::default());
    while let Some(field) = span.within(form.next_field()).await? {
        fields += 1;
        if fields > MOST_FIELDS {
            return Err(ApiError::invalid(None, format!("the form has more than {MOST_FIELDS} fields")));
        }
        match field.name() {
            Some("file") if file.is_none() => file = Some(taken(&service, field, &mut span).await?),
            Some("purpose") => purpose = Some(value(field, &mut span).await?),
            // What else the hosted service knows, such as `expires_after`: a file stays until it is deleted.
            _ => drop(value(field, &mut span).await?),
        }
    }
    let purpose = purpose.ok_or_else(|| ApiError::invalid("purpose", "missing: expected batch"))?;
    if purpose != BATCH.as_bytes() {
        return Err(ApiError::invalid("purpose", "the gateway keeps files for batches alone: expected batch"));
    }
    let (upload, name) = file.ok_or_else(|| ApiError::invalid("file", "missing: expected the file to upload"))?;
    Ok(tokio::task::block_in_place(|| service.files.keep(upload, name, BATCH)).map(Json)?)
}

/// The content of a file, on the disk, and its name.
async fn taken(service: &Service, mut field: Field<'_>, span: &mut Span) -> Result<(Upload, String), ApiError> {
    let name: String = field.file_name().unwrap_or("file").chars().take(LONGEST_NAME).collect();
    let upload = service.files.begin()?;
    let mut content = tokio::fs::File::from_std(upload.content.try_clone()?);
    let mut bytes = 0;
    while let Some(piece) = span.next(&mut field).await? {
        bytes += piece.len() as u64;
        if bytes <= LARGEST {
            content.write_all(&piece).await?;
        }
    }
    content.flush().await?;
    if bytes > LARGEST {
        let message = format!("the file has {bytes} bytes: expected at most {LARGEST}");
        return Err(ApiError::invalid("file", message).with_status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    Ok((upload, name))
}

/// The value of a field, which is short.
async fn value(mut field: Field<'_>, span: &mut Span) -> Result<Bytes, ApiError> {
    let mut value = Vec::new();
    while let Some(piece) = span.next(&mut field).await? {
        value.extend_from_slice(&piece);
        if value.len() > LONGEST_VALUE {
            return Err(ApiError::invalid(None, format!("a field of the form has more than {LONGEST_VALUE} bytes")));
        }
    }
    Ok(value.into())
}

/// What comes of a form, span by span. The time in which no more is asked for, such as that of a slow disk, counts not.
#[derive(Default)]
struct Span {
    /// From the first time that bytes are awaited.
    ends: Option<Pin<Box<Sleep>>>,
    came: usize,
}

impl Span {
    /// The next piece of a field.
    async fn next(&mut self, field: &mut Field<'_>) -> Result<Option<Bytes>, ApiError> {
        let piece = self.within(field.chunk()).await?;
        self.came += piece.as_ref().map_or(0, Bytes::len);
        Ok(piece)
    }

    /// What comes, for as long as enough does.
    async fn within<T>(&mut self, coming: impl Future<Output = Result<T, MultipartError>>) -> Result<T, ApiError> {
        if self.ends.as_ref().is_some_and(|ends| ends.is_elapsed()) {
            *self = Self::default();
        }
        let mut coming = pin!(coming);
        poll_fn(|context| {
            if let Poll::Ready(came) = coming.as_mut().poll(context) {
                return Poll::Ready(came.map_err(broken));
            }
            let ends = self.ends.get_or_insert_with(|| Box::pin(sleep(SLOWEST)));
            while ends.as_mut().poll(context).is_ready() {
                if std::mem::take(&mut self.came) < LEAST {
                    let message = format!("the form trickles in: less than {} KiB came in {SLOWEST:?}", LEAST >> 10);
                    return Poll::Ready(Err(ApiError::invalid(None, message).with_status(StatusCode::REQUEST_TIMEOUT)));
                }
                ends.set(sleep(SLOWEST));
            }
            Poll::Pending
        })
        .await
    }
}

fn broken(error: MultipartError) -> ApiError {
    ApiError::invalid(None, error.body_text()).with_status(error.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_form_that_trickles_in_is_given_up_and_a_slow_one_is_not() {
        async fn piece() -> Result<(), MultipartError> {
            sleep(Duration::from_secs(20)).await;
            Ok(())
        }
        let mut span = Span::default();
        for _ in 0..10 {
            assert!(span.within(piece()).await.is_ok());
            span.came += LEAST;
        }
        let mut span = Span::default();
        assert!(span.within(piece()).await.is_ok());
        sleep(2 * SLOWEST).await;
        assert!(span.within(piece()).await.is_ok(), "the disk took that time");
        assert!(span.within(piece()).await.is_err(), "a piece without a byte each 20 s");
    }
}
