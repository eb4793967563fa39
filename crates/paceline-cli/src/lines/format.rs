//! The form of an input, and how its lines are read in it.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::Method;
use http::header::HeaderMap;
use paceline_gateway::{Clients, decoded_often};
use paceline_providers::Provider;
use paceline_store::{CustomId, LineForm};

use crate::exit::Failure;
use crate::lines::address::{self, Addresses};
use crate::lines::convert::INVALID_ROW;
use crate::lines::input::Input;
use crate::lines::line::{self, Fault, Line, LineError};
use crate::lines::members::Members;
use crate::run_args::FormatFlag;

/// A form of lines. A file has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Batch,
    Bare,
    Anthropic,
}

/// Reads the lines of one input for one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    form: Form,
    why: Why,
    /// Where lines without a `url` go; empty in the batch form.
    endpoint: String,
    addresses: Addresses,
    /// The API takes nothing but objects.
    objects: bool,
    /// What a line without a `custom_id` is called; none where that depends on the form.
    unnamed: Option<CustomId>,
    /// The one path that every line must name, and by POST; none where each may name another.
    only: Option<String>,
    /// Whose keys stand in no text of a line that others see.
    clients: Arc<Clients>,
}

/// Why a text is refused that others see.
pub(crate) const SHOWS_A_KEY: &str = "a key of a client stands in it, which others see: leave it out";

/// How the form of the lines was chosen, and how another is: by those who begin the program.
pub(crate) const BY_FORMAT: &str = " by --format";
pub(crate) const FORM_IS_NAMED: &str = ", which --format names";

/// Why an input is read in its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Told,
    Endpoint,
    /// The first line that is not blank has this key.
    FirstLine(&'static str),
    /// Nothing speaks for another form.
    Usual,
}

impl Format {
    /// Decides how `input` is read, for calls to an API of `provider` at these addresses.
    ///
    /// # Errors
    /// An endpoint that is needed and missing, or not wanted, or no path; what the file system says.
    pub(crate) fn choose(
        flag: FormatFlag,
        endpoint: Option<&str>,
        input: &Input,
        provider: Provider,
        addresses: &Addresses,
    ) -> Result<Self, Failure> {
        let unreadable = |error| Failure::refused(format!("cannot read {}: {error}", input.name()));
        let mut lines = input.lines().map_err(unreadable)?;
        let mut first = Vec::new();
        while let Some((_, _, bytes)) = lines.next_line().map_err(unreadable)? {
            // A row of which no request could be made has no form.
            if !line::text(bytes).and_then(line::members).is_ok_and(|members| members.raw(INVALID_ROW).is_some()) {
                bytes.clone_into(&mut first);
                break;
            }
        }
        Self::of(flag, endpoint, &first, provider, addresses).map_err(Failure::refused)
    }

    /// Lines of that form, as another host found it.
    ///
    /// # Errors
    /// For messages: an endpoint that is no path of the upstream.
    pub(crate) fn stated(
        form: FormatFlag,
        endpoint: Option<&str>,
        provider: Provider,
        addresses: &Addresses,
    ) -> Result<Self, String> {
        Self::of(form, endpoint, &[], provider, addresses)
    }

    /// Decides how a single request is read that stands alone, by its keys: one with a url and a body goes where it says, any
    /// other to `endpoint` where there is one. Without a `custom_id` it is called `name`.
    ///
    /// # Errors
    /// For messages: a form whose requests have no usual endpoint at this API.
    pub(crate) fn of_one(
        request: &[u8],
        name: &str,
        endpoint: Option<&str>,
        provider: Provider,
        addresses: &Addresses,
    ) -> Result<Self, String> {
        let whole = line::text(request).and_then(line::members).is_ok_and(|members| is_whole_batch_line(&members));
        let format = Self::of(FormatFlag::Auto, endpoint.filter(|_| !whole), request, provider, addresses)?;
        Ok(Self { unnamed: Some(CustomId::from(name)), ..format })
    }

    /// Lines as a hosted batch takes them: in OpenAI's form, all to that one endpoint.
    ///
    /// # Errors
    /// For messages: an endpoint that is no path of the upstream.
    pub(crate) fn of_hosted_batch(
        endpoint: &str,
        provider: Provider,
        addresses: &Addresses,
        clients: Arc<Clients>,
    ) -> Result<Self, String> {
        if !endpoint.starts_with('/') {
            return Err(format!("{endpoint:?}: expected a path, such as /v1/chat/completions"));
        }
        if clients.have_key_in(&decoded_often(endpoint)) {
            return Err(
                "a key of a client stands in it, which goes to the upstream and into the log: leave it out".into()
            );
        }
        let only = addresses.of_line(Cow::Borrowed(endpoint))?.into_owned();
        let format = Self::of(FormatFlag::Batch, None, &[], provider, addresses)?;
        Ok(Self { only: Some(only), clients, ..format })
    }

    fn of(
        flag: FormatFlag,
        endpoint: Option<&str>,
        first: &[u8],
        provider: Provider,
        addresses: &Addresses,
    ) -> Result<Self, String> {
        let (form, why) = match flag {
            // The form of a table or a list, named or known by the file's name, is that of the requests made of it.
            FormatFlag::Csv | FormatFlag::Text if endpoint.is_some() => (Form::Bare, Why::Told),
            FormatFlag::Auto | FormatFlag::Csv | FormatFlag::Text => guess(first, endpoint.is_some())?,
            FormatFlag::Batch => (Form::Batch, Why::Told),
            FormatFlag::Bare => (Form::Bare, Why::Told),
            FormatFlag::Anthropic => (Form::Anthropic, Why::Told),
        };
        let endpoint = match (form, endpoint) {
            (Form::Batch, None) => Cow::Borrowed(""),
            (Form::Batch, Some(_)) => {
                return Err("--endpoint applies to bare and anthropic lines: each batch line has its own url".into());
            }
            (Form::Anthropic, None)
                if provider == Provider::OpenAi && provider.base_url() == Some(&*addresses.base) =>
            {
                return Err(format!(
                    "the lines are read as those of Anthropic's batches {why}, and would go to {} with OpenAI's key, which has no \
                     {} for them: name their upstream (--upstream anthropic)",
                    addresses.base,
                    usual_endpoint(form, provider).unwrap_or_default()
                ));
            }
            (_, Some(endpoint)) => {
                address::relative(endpoint.into(), &addresses.base).map_err(|error| format!("--endpoint {error}"))?
            }
            (_, None) => usual_endpoint(form, provider).map(Cow::Borrowed).ok_or_else(|| {
                format!(
                    "the lines are read as bare request bodies {why}, and a {provider} API has no default endpoint for \
                     them: set --endpoint PATH, or name the form of the lines with --format"
                )
            })?,
        };
        let objects = provider.is_language_model();
        Ok(Self {
            form,
            why,
            endpoint: endpoint.into_owned(),
            addresses: addresses.clone(),
            objects,
            unnamed: None,
            only: None,
            clients: Arc::default(),
        })
    }

    /// Reads a line and checks every field.
    ///
    /// # Errors
    /// The first field that is wrong. `number` names the line in errors, and in its id where it has none.
    pub(crate) fn read<'a>(&self, bytes: &'a [u8], number: u64) -> Result<Line<'a>, LineError> {
        let read = || {
            let text = line::text(bytes)?;
            let members = line::members(text)?;
            if let Some(message) = members.text(INVALID_ROW) {
                return Err(Fault::new("invalid_row", None, message));
            }
            self.refuse_other_forms(&members)?;
            let line = match self.form {
                Form::Batch => line::batch(self.id(&members)?, text, &members, &self.addresses, self.objects),
                Form::Bare => self.bare(text, &members, number),
                Form::Anthropic => self.params(&members),
            }?;
            self.refuse_other_calls(&line)?;
            self.refuse_keys(&line)?;
            Ok(line)
        };
        read().map_err(|fault| fault.at(number))
    }

    /// The id of a line in a form where each has its own.
    fn id(&self, members: &Members<'_>) -> Result<CustomId, Fault> {
        match &self.unnamed {
            Some(name) => Ok(line::given_id(members)?.unwrap_or_else(|| name.clone())),
            None => line::required_id(members),
        }
    }

    fn refuse_other_calls(&self, line: &Line<'_>) -> Result<(), Fault> {
        let Some(only) = &self.only else { return Ok(()) };
        if line.url != *only {
            let message = format!("{}: expected {only}, the endpoint of the batch", line.url);
            return Err(Fault::new("url_mismatch", Some("url"), message));
        }
        if line.method != Method::POST {
            return Err(Fault::new("invalid_method", Some("method"), format!("{}: expected POST", line.method)));
        }
        Ok(())
    }

    fn refuse_keys(&self, line: &Line<'_>) -> Result<(), Fault> {
        if self.only.is_none() {
            return Ok(());
        }
        let (id, model) = (line.custom_id.to_string(), line.model.as_deref());
        let fault = |what| Err(Fault::new("invalid_body", Some(what), SHOWS_A_KEY.to_owned()));
        let has_key = |text: &str| self.clients.have_key_in(text);
        if has_key(&id) {
            return fault("custom_id");
        }
        if model.is_some_and(has_key) || self.clients.have_key_in_body(line.body.as_bytes(), false) {
            return fault("model");
        }
        Ok(())
    }

    /// The shape of the result lines.
    pub(crate) const fn results(&self) -> LineForm {
        match self.form {
            Form::Batch | Form::Bare => LineForm::OpenAi,
            Form::Anthropic => LineForm::Anthropic,
        }
    }

    /// The name of the form, as `--format` takes it.
    pub(crate) const fn name(&self) -> &'static str {
        self.form.name()
    }

    /// Where lines without a `url` go; empty where each has its own.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A line of another form would be refused for a missing field, or sent as something that it is not.
    fn refuse_other_forms(&self, members: &Members<'_>) -> Result<(), Fault> {
        let Some((form, key)) = evident(members).filter(|(form, _)| *form != self.form) else { return Ok(()) };
        let fits = match self.form {
            Form::Batch => members.raw("url").is_some() || members.raw("body").is_some(),
            // A user who declares lines as bodies may have bodies with any keys.
            Form::Bare => self.why == Why::Told || (form == Form::Batch && !is_whole_batch_line(members)),
            Form::Anthropic => members.raw("params").is_some(),
        };
        if fits {
            return Ok(());
        }
        let (theirs, ours, why) = (form.name(), self.form.name(), self.why);
        let message = format!(
            "`{key}` belongs to the {theirs} form, but the input is read as {ours} {why}: all lines of a file have one form{FORM_IS_NAMED}"
        );
        Err(Fault::new("format_mismatch", None, message))
    }

    fn bare<'a>(&self, text: &'a str, members: &Members<'a>, number: u64) -> Result<Line<'a>, Fault> {
        let metadata = members.get("metadata");
        Ok(Line {
            custom_id: line::given_id(members)?.or(self.unnamed.clone()).unwrap_or_else(|| line::numbered(number)),
            metadata,
            method: Method::POST,
            url: self.endpoint.clone().into(),
            headers: HeaderMap::new(),
            body: members.without(&["custom_id", "metadata"]).map_or(Cow::Borrowed(text), Cow::Owned),
            hashed: text.as_bytes(),
            model: members.text("model").map(Cow::into_owned),
            label: metadata.and_then(line::label),
            stray: None,
        })
    }

    fn params<'a>(&self, members: &Members<'a>) -> Result<Line<'a>, Fault> {
        let custom_id = self.id(members)?;
        let params = members.get("params").map_or("", |params| params.get());
        if !params.starts_with('{') {
            let message = "missing or not an object: expected the request body, as the endpoint takes it";
            return Err(Fault::new("invalid_params", Some("params"), message));
        }
        let metadata = members.get("metadata");
        Ok(Line {
            custom_id,
            metadata,
            method: Method::POST,
            url: self.endpoint.clone().into(),
            headers: HeaderMap::new(),
            body: params.into(),
            hashed: params.as_bytes(),
            model: line::model(params, "params")?,
            label: metadata.and_then(line::label),
            stray: None,
        })
    }
}

impl Form {
    const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Bare => "bare",
            Self::Anthropic => "anthropic",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told => f.write_str(BY_FORMAT.trim_start()),
            Self::Endpoint => f.write_str("because of --endpoint"),
            Self::FirstLine(key) => write!(f, "because its first line has `{key}`"),
            Self::Usual => f.write_str("because nothing in its first line names another form"),
        }
    }
}

/// The form of an input by its first line. What cannot be read is left to the check of all lines.
fn guess(first: &[u8], endpoint: bool) -> Result<(Form, Why), String> {
    let members = line::text(first).and_then(line::members).ok();
    let evident = members.as_ref().and_then(evident);
    match evident {
        Some((Form::Anthropic, key)) => Ok((Form::Anthropic, Why::FirstLine(key))),
        Some((Form::Batch, _)) if endpoint && members.as_ref().is_some_and(is_whole_batch_line) => Err(
            "the first line has a url and a body, so it is not a bare body: leave out --endpoint, or force the form \
             with --format bare"
                .into(),
        ),
        _ if endpoint => Ok((Form::Bare, Why::Endpoint)),
        Some((form, key)) => Ok((form, Why::FirstLine(key))),
        None => Ok((Form::Batch, Why::Usual)),
    }
}

const KEYS: [(&str, Form); 7] = [
    ("url", Form::Batch),
    ("body", Form::Batch),
    ("params", Form::Anthropic),
    ("model", Form::Bare),
    ("messages", Form::Bare),
    ("input", Form::Bare),
    ("prompt", Form::Bare),
];

/// Whether a key says that a line is a body.
pub(super) fn speaks_for_bodies(key: &str) -> bool {
    KEYS.contains(&(key, Form::Bare))
}

/// The form that a line's keys speak for, and the one that does.
fn evident(members: &Members<'_>) -> Option<(Form, &'static str)> {
    KEYS.iter().find(|(key, _)| members.raw(key).is_some()).map(|(key, form)| (*form, *key))
}

fn is_whole_batch_line(members: &Members<'_>) -> bool {
    members.raw("url").is_some() && members.raw("body").is_some()
}

/// Where requests without an address go: the endpoint that each provider is used for most.
fn usual_endpoint(form: Form, provider: Provider) -> Option<&'static str> {
    match form {
        Form::Anthropic => Provider::Anthropic.endpoint(),
        Form::Batch | Form::Bare => provider.endpoint(),
    }
}
