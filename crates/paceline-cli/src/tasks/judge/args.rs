//! What decides about failures: the rules alone, a command or a language model.

use std::sync::Arc;

use paceline_config::Overrides;
use paceline_judge::{LlmConfig, LlmJudge};
use paceline_store::work::Judge;

use super::{ANSWER_WITHIN, CommandJudge};
use crate::args::Everywhere;
use crate::exit::Failure;
use crate::upstream;

const JUDGE: &str = "Judge";

/// The judge of a run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct JudgeArgs {
    /// Command that decides about failures in place of the rules: one JSON object in, one out
    #[arg(help_heading = JUDGE, long, value_name = "COMMAND", conflicts_with = "judge_model")]
    judge: Option<String>,
    /// Language model that decides about failures; it sees errors, never payloads
    #[arg(help_heading = JUDGE, long, value_name = "MODEL", requires = "judge_upstream")]
    judge_model: Option<String>,
    /// Upstream of that model, which speaks OpenAI's chat completions; its key, limits and address are those configured
    #[arg(help_heading = JUDGE, long, value_name = "NAME", requires = "judge_model")]
    judge_upstream: Option<String>,
}

impl JudgeArgs {
    /// The judge, if there is to be one. Nothing is asked yet.
    ///
    /// # Errors
    /// Refuses a command that cannot be begun, and an upstream that cannot be called.
    pub(crate) fn judge(&self, everywhere: &Everywhere) -> Result<Option<Arc<dyn Judge>>, Failure> {
        if let Some(line) = &self.judge {
            return Ok(Some(Arc::new(CommandJudge::parse(line)?)));
        }
        let Some(model) = &self.judge_model else { return Ok(None) };
        let overrides = Overrides { upstream: self.judge_upstream.clone(), ..Overrides::default() };
        let upstream = upstream::configured(overrides, everywhere)?;
        let headers = upstream::headers(&upstream)?;
        let Some(base_url) = upstream.base_url else {
            let name = upstream.name;
            return Err(Failure::refused(format!(
                "--judge-upstream {name} has no address: expected one with a base_url"
            )));
        };
        let client = paceline_http::client(&base_url, &upstream.access).map_err(Failure::refused)?;
        let config = LlmConfig {
            headers,
            secrets: paceline_http::login_of_proxy(&upstream.access).into_iter().collect(),
            dialect: upstream.dialect,
            pacer: upstream.pacer,
            timeout: ANSWER_WITHIN,
            ..LlmConfig::new(base_url, model)
        };
        Ok(Some(Arc::new(LlmJudge::with_client(config, client).map_err(Failure::refused)?)))
    }
}
