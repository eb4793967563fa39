//! The flags of `paceline run`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use paceline_config::{Money, MoneyError, Price};
use serde_json::{Map, Value};

use crate::args::{Expect, PACE, UpstreamArgs, count, duration, some_time};
use crate::budget::Limits;
use crate::fallback::FallbackArgs;
use crate::job_settings::{BadLines, Bounds, Opening};
use crate::only::Only;

/// Groups of flags in the help.
const INPUT: &str = "Input";
const BOUNDS: &str = "Bounds of this run";
const BUDGET: &str = "Budget of the job, over all its runs";
const JOB: &str = "Job and results";

/// `paceline run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_FILES)]
pub(crate) struct RunArgs {
    /// Requests, one a line: {"custom_id","method","url","body"}, or see --format; - reads standard input, *.gz is unpacked
    #[arg(value_name = "IN", required_unless_present_any = ["job", "store"])]
    pub(crate) input: Option<PathBuf>,
    /// Answers, one a line, in OpenAI's Batch form, or in Anthropic's for anthropic lines
    #[arg(long, short, value_name = "OUT")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    /// Form of the lines
    #[arg(help_heading = INPUT, long, value_name = "FORM", value_enum, default_value_t)]
    pub(crate) format: FormatFlag,
    /// Endpoint of bare request bodies [default: /v1/chat/completions, for anthropic /v1/messages, for others none]
    #[arg(help_heading = INPUT, long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// Model to ask: each prompt of a table or a list becomes a request, with --prompt-template each JSON object too
    #[arg(help_heading = INPUT, long, value_name = "NAME", value_parser = model_name)]
    pub(crate) model: Option<String>,
    /// Template of the prompt: a file, or a text such as 'Translate: {{ text }}'; its names are the columns of a row
    #[arg(help_heading = INPUT, long, value_name = "TEMPLATE", requires = "model")]
    pub(crate) prompt_template: Option<String>,
    /// Longest answer to each prompt, in tokens [default: none, for an endpoint that ends in messages 1024]
    #[arg(help_heading = INPUT, long, value_name = "N", value_parser = count::<u64>)]
    pub(crate) max_output_tokens: Option<u64>,
    /// Members of each request that --model makes, as a JSON object, such as '{"temperature": 0}'
    #[arg(help_heading = INPUT, long, value_name = "JSON", requires = "model", value_parser = members)]
    pub(crate) body: Option<Map<String, Value>>,
    /// System prompt of each request that --model makes
    #[arg(help_heading = INPUT, long, value_name = "TEXT", requires = "model")]
    pub(crate) system_prompt: Option<String>,
    /// Column that names the rows of a table, for the custom_id of results; url for a list of web addresses [default: custom_id,
    /// else id, else the line's number]
    #[arg(help_heading = INPUT, long, value_name = "NAME")]
    pub(crate) id_column: Option<String>,
    /// How long one call may take
    #[arg(help_heading = PACE, long, value_name = "DURATION", default_value = "600s", value_parser = some_time)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
    /// End the run when the next call would have to wait longer than this; the same command continues it
    #[arg(help_heading = PACE, long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) max_wait: Duration,
    /// Start at most N items in this run; the others wait for the next
    #[arg(help_heading = BOUNDS, long, value_name = "N", value_parser = count::<u64>, allow_hyphen_values = true)]
    pub(crate) max_items: Option<u64>,
    /// Use at most N tokens in this run, in and out; a call in flight counts as its estimate. For the length of each answer use
    /// --max-output-tokens
    #[arg(help_heading = BOUNDS, long, value_name = "N", value_parser = count::<u64>, allow_hyphen_values = true)]
    pub(crate) max_tokens: Option<u64>,
    /// Start no call after this long; calls in flight get up to 30s
    #[arg(help_heading = BOUNDS, long, value_name = "DURATION", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) max_duration: Option<Duration>,
    /// Use at most N tokens for the job, in and out; a call counts as its estimate until its answer arrives; none lifts a budget
    #[arg(help_heading = BUDGET, long, value_name = "N", value_parser = BudgetFlag::<u64>::tokens, allow_hyphen_values = true)]
    pub(crate) budget_tokens: Option<BudgetFlag<u64>>,
    /// Spend at most AMOUNT on the job, in the currency of the prices; holds in later runs too; none lifts it. Answers without a
    /// bound (--max-output-tokens, or max_tokens in requests) can exceed it
    #[arg(help_heading = BUDGET, long, value_name = "AMOUNT", value_parser = BudgetFlag::<Money>::cost, allow_hyphen_values = true)]
    pub(crate) budget_cost: Option<BudgetFlag<Money>>,
    /// What a million tokens cost, such as in=2.50,out=10, with cached=1.25 those read from a provider's cache, and with
    /// cached_write=3.125 those written into it [default: price of the upstream in paceline.toml]
    #[arg(help_heading = BUDGET, long, value_name = "PRICE", allow_hyphen_values = true)]
    pub(crate) price: Option<Price>,
    /// Check the input and print what there is to do; sends nothing, leaves no files, needs no key
    #[arg(help_heading = BOUNDS, long)]
    pub(crate) dry_run: bool,
    /// Stop when the first N items that end in this run all failed the same way; 0 never stops
    #[arg(help_heading = PACE, long, value_name = "N", default_value_t = 20)]
    pub(crate) stop_after_same: usize,
    /// Seed of the random delays, to repeat them exactly [default: different at each run]
    #[arg(help_heading = PACE, long, value_name = "K")]
    pub(crate) seed: Option<u64>,
    /// Journal of the job [default: OUT with the ending .journal]
    #[arg(help_heading = JOB, long, value_name = "FILE", conflicts_with = "no_journal")]
    pub(crate) journal: Option<PathBuf>,
    /// Keep no journal: an interrupted job then starts from the beginning
    #[arg(help_heading = JOB, long)]
    pub(crate) no_journal: bool,
    /// Send the other lines although some cannot be sent; these go to the errors file
    #[arg(help_heading = INPUT, long)]
    pub(crate) skip_bad_lines: bool,
    /// Start before the whole input is checked; lines that cannot be sent go to the errors file and are not listed
    #[arg(help_heading = INPUT, long, conflicts_with = "skip_bad_lines")]
    pub(crate) no_check: bool,
    /// Continue with a changed input: items are matched by id and body, and items that ended must be unchanged
    #[arg(help_heading = INPUT, long, conflicts_with_all = ["overwrite", "no_journal"])]
    pub(crate) accept_changed_input: bool,
    /// Start again: delete the existing results, errors, report and journal once the input is checked
    #[arg(help_heading = JOB, long)]
    pub(crate) overwrite: bool,
    /// When the last item has ended, put results and errors in the order of the input; OUT may then end in .gz
    #[arg(help_heading = JOB, long)]
    pub(crate) ordered: bool,
    /// Send items again that failed in earlier runs, or got the result of --fallback, beside those that have not ended; lines of
    /// failed items may be corrected before
    #[arg(help_heading = JOB, long, conflicts_with = "no_journal")]
    pub(crate) retry_failed: bool,
    #[command(flatten, next_help_heading = JOB)]
    pub(crate) only: Only,
    /// Take the answers of these items, found by custom_id alone, from the output of a hosted batch or an earlier job, checked by
    /// --expect; may be repeated
    #[arg(help_heading = INPUT, long, value_name = "FILE")]
    pub(crate) done: Vec<PathBuf>,
    /// Write one value of each answer beside the results, such as /choices/0/message/content, to results.flat.jsonl; later runs
    /// do it too; none ends that
    #[arg(help_heading = JOB, long, value_name = "POINTER", value_parser = pointer)]
    pub(crate) extract: Option<String>,
    /// Require the HTTP body of each answer, not the text that a model wrote in it, to be JSON (json), or to match the JSON
    /// schema in a file; any other 200 answer is retried like a server error, and each retry is billed
    #[arg(help_heading = JOB, long, value_name = "json|FILE")]
    pub(crate) expect: Option<Expect>,
    /// Work on the job together with other hosts: its lines are in this database, postgres://USER@HOST/DATABASE, and each host
    /// takes some of them at a time (docs/many-hosts.md)
    #[arg(help_heading = JOB, long, value_name = "URL", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) store: Option<String>,
    /// Job in the store, which needs no IN where it is there [default: the file name of IN]
    #[arg(help_heading = JOB, long, value_name = "NAME", requires = "store", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) job: Option<String>,
    #[command(flatten, next_help_heading = JOB)]
    pub(crate) fallback: FallbackArgs,
    /// Write the summary to a file, as JSON
    #[arg(help_heading = JOB, long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Print the summary as JSON on standard output
    #[arg(help_heading = JOB, long)]
    pub(crate) json: bool,
}

const RUN_FILES: &str = "\
Files, for -o results.jsonl:
  results.jsonl          one line for each item that succeeded, or got the result of --fallback
  results.errors.jsonl   one line for each item that failed; made when first needed
  results.refused.jsonl  one line for each answer that --expect refused; made when first needed
  results.flat.jsonl     with --extract, one value of each answer
  results.report.jsonl   why items failed, were retried or were put off
  results.journal        the state of the job; the same command continues it after any interruption
  results.input          a copy of standard or compressed input

Exit codes: 0 all succeeded, 1 some failed, 2 nothing was sent, 3 not finished: run the same command again,
unless a budget or a key stopped it.";

impl RunArgs {
    /// The input. A host that has none takes the lines from the store, and is refused what would read them here.
    pub(crate) fn input(&self) -> &Path {
        self.input.as_deref().unwrap_or(Path::new("-"))
    }

    /// What calls may use.
    pub(crate) fn budgets(&self) -> Limits {
        let (tokens, cost) = (self.budget_tokens, self.budget_cost);
        Limits {
            run_tokens: self.max_tokens,
            job_tokens: tokens.and_then(BudgetFlag::amount),
            job_cost: cost.and_then(BudgetFlag::amount),
        }
    }

    /// With the budgets that the job has, where these flags set no others. Returns the flags that would set those, with their
    /// values.
    pub(crate) fn keep_budgets(&mut self, kept: Limits) -> Vec<(&'static str, String)> {
        let tokens = kept.job_tokens.filter(|_| self.budget_tokens.is_none());
        let cost = kept.job_cost.filter(|_| self.budget_cost.is_none());
        self.budget_tokens = self.budget_tokens.or(tokens.map(BudgetFlag::AtMost));
        self.budget_cost = self.budget_cost.or(cost.map(BudgetFlag::AtMost));
        let tokens = tokens.map(|tokens| ("--budget-tokens", tokens.to_string()));
        tokens.into_iter().chain(cost.map(|cost| ("--budget-cost", cost.to_string()))).collect()
    }

    /// Where the value is that is taken out of each answer; none where none is.
    pub(crate) fn pointer(&self) -> Option<&str> {
        self.extract.as_deref().filter(|pointer| *pointer != NO_POINTER)
    }

    /// What bounds the run.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            budgets: self.budgets(),
            max_wait: Some(self.max_wait),
            max_items: self.max_items,
            max_duration: self.max_duration,
            stop_after_same: self.stop_after_same,
        }
    }

    /// How the job is opened.
    pub(crate) fn opening(&self) -> Opening {
        Opening {
            overwrite: self.overwrite,
            accept_changed: self.accept_changed_input,
            retry_failed: self.retry_failed,
            budgets: self.budgets(),
            bad_lines: match (self.skip_bad_lines, self.no_check) {
                (_, true) => BadLines::Later,
                (true, false) => BadLines::List,
                (false, false) => BadLines::Refuse,
            },
            extract: self.extract.clone(),
            needs_all: self.dry_run || !self.done.is_empty() || self.store.is_some() || self.only.names_hosts(),
            most_lines: None,
        }
    }
}

/// A budget, as its flag says it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BudgetFlag<T> {
    /// The job has none any more.
    Lifted,
    AtMost(T),
}

impl<T> BudgetFlag<T> {
    fn amount(self) -> Option<T> {
        match self {
            Self::Lifted => None,
            Self::AtMost(amount) => Some(amount),
        }
    }

    fn of(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Self, String> {
        if text == "none" { Ok(Self::Lifted) } else { read(text).map(Self::AtMost) }
    }
}

impl BudgetFlag<u64> {
    fn tokens(text: &str) -> Result<Self, String> {
        Self::of(text, count)
    }
}

impl BudgetFlag<Money> {
    fn cost(text: &str) -> Result<Self, String> {
        Self::of(text, |text| text.parse().map_err(|error: MoneyError| error.to_string()))
    }
}

/// The forms of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatFlag {
    /// By the keys of the first line
    #[default]
    #[value(alias = "jsonl")]
    Auto,
    /// OpenAI's Batch form: {"custom_id","method","url","body"}
    Batch,
    /// Request bodies as they are, sent to --endpoint
    Bare,
    /// Anthropic's Message Batches: {"custom_id","params"}
    Anthropic,
    /// A table with a header: prompts with --model, requests with a column url, else bodies [also: a name that ends in .csv]
    Csv,
    /// A prompt a line, with --model [also: a name that ends in .txt]
    Text,
}

/// Reads the name of a model.
fn model_name(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("it is empty; expected the name of a model, such as gpt-4o-mini".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn members(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("expected a JSON object, such as {{\"temperature\": 0}}: {error}"))
}

/// In the place of a pointer: values are taken out of answers no more.
const NO_POINTER: &str = "none";

/// Reads a JSON pointer as RFC 6901 has it, or that there is none.
fn pointer(text: &str) -> Result<String, String> {
    match text.is_empty() || text.starts_with('/') || text == NO_POINTER {
        true => Ok(text.to_owned()),
        false => Err("expected a JSON pointer, such as /choices/0/message/content".to_owned()),
    }
}
