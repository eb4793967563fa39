//! The models that a form names. Servers read forms in several ways, so one that is not plain to all of them is not read.

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use multer::{Field, Multipart, parse_boundary};
use paceline_http::Call;
use paceline_providers::names_models;

use crate::query;

/// The values of all fields that may name a model; none where a server may read the form in another way than it is read here.
pub(crate) fn models_of(call: &Call) -> Option<Vec<String>> {
    let mut kinds = call.headers.get_all(CONTENT_TYPE).iter();
    let (Some(kind), None) = (kinds.next(), kinds.next()) else { return None };
    let kind = kind.to_str().ok()?;
    if !kind.to_ascii_lowercase().contains("multipart") {
        let pairs = query::parameters(&format!("?{}", str::from_utf8(&call.body).ok()?)).collect::<Vec<_>>();
        return Some(pairs.into_iter().filter(|(name, _)| names_models(name)).map(|(_, value)| value).collect());
    }
    // All of it is there, so nothing is waited for.
    of_parts(parse_boundary(kind).ok()?, &call.body).now_or_never()?
}

async fn of_parts(boundary: String, body: &Bytes) -> Option<Vec<String>> {
    let line = format!("--{boundary}");
    let mut form = Multipart::new(stream::iter([Ok::<_, std::io::Error>(body.clone())]), boundary);
    let (mut parts, mut models) = (0, Vec::new());
    while let Some(field) = form.next_field().await.ok()? {
        parts += 1;
        if names_models(plain_name(&field)?) {
            models.push(field.text().await.ok()?);
        }
    }
    // Some servers end lines, and with them parts, elsewhere.
    let lines = body.windows(line.len()).filter(|part| *part == line.as_bytes()).count();
    (body.starts_with(line.as_bytes()) && lines == parts + 1).then_some(models)
}

/// The name of a part, where it has one for every server.
fn plain_name<'a>(field: &'a Field<'_>) -> Option<&'a str> {
    let mut named = field.headers().get_all(CONTENT_DISPOSITION).iter();
    let (Some(named), None) = (named.next(), named.next()) else { return None };
    let named = named.to_str().ok()?.to_ascii_lowercase();
    let names = named.split(';').filter(|part| part.trim_start().starts_with("name")).count();
    let is_plain = names == 1 && !named.contains(['*', '\\']);
    field.name().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(kind: &str, body: &str) -> Option<String> {
        let headers = [(CONTENT_TYPE, kind.parse().expect("a value"))].into_iter().collect();
        let call = Call { headers, body: body.to_owned().into(), ..Call::default() };
        models_of(&call).map(|models| models.join(","))
    }

    #[test]
    fn a_form_names_models_in_its_fields() {
        for (body, expected) in [("model=dear&x=1", "dear"), ("x=model&m%6fdel=a%2Db&base_model=c", "a-b,c"), ("", "")]
        {
            assert_eq!(models("application/x-www-form-urlencoded", body).as_deref(), Some(expected), "{body}");
        }
        let part = |head: &str, text: &str| format!("--b\r\ncontent-disposition: form-data; {head}\r\n\r\n{text}\r\n");
        let file = part("name=\"file\"; filename=\"my; model.wav\"", "model=x");
        for (parts, expected) in [
            (file.clone(), Some("")),
            (file.clone() + &part("name=\"model\"", "dear"), Some("dear")),
            (part("name=model", "a") + &file + &part("name=\"Model[]\"", "b"), Some("a,b")),
            (part("name=\"x\"; name=\"model\"", "dear"), None),
            (part("name*=utf-8''model", "dear"), None),
            (part("name=\"mo\\del\"", "dear"), None),
            (part("filename=\"f\"", "no name"), None),
            (part("name=\"x\"", "a\n--b\ncontent-disposition: form-data; name=model\n\ndear"), None),
            (format!("text\r\n{file}"), None),
        ] {
            let found = models("multipart/form-data; boundary=b", &format!("{parts}--b--\r\n"));
            assert_eq!(found.as_deref(), expected, "{parts}");
            assert_eq!(models("multipart/form-data; boundary=b", &parts), None, "it has no end");
        }
        assert_eq!(models("multipart/form-data", &file), None, "without a boundary");
    }
}
