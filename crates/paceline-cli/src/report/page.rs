//! The page: the look and the charts of the gateway's, with the job as data in it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paceline_gateway::web::{CHARTS, STYLE, UPLOT, UPLOT_STYLE};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const BODY: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

/// By which a page is known.
pub(super) const TITLE: &str = "<title>Report of a job</title>";

/// The page of a job. Nothing in it is loaded from elsewhere, and no script runs but its own, whatever the job's texts are.
pub(super) fn html(document: &Value) -> String {
    let scripts = [UPLOT, CHARTS, SCRIPT];
    let policy = format!(
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src {}; script-src {}",
        hashes(&[UPLOT_STYLE, STYLE]),
        hashes(&scripts)
    );
    let styles: String = [UPLOT_STYLE, STYLE].map(|style| format!("<style>{style}</style>\n")).concat();
    let scripts: String = scripts.map(|script| format!("<script>{script}</script>\n")).concat();
    let body = BODY.replace("{words}", &words(document));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n{TITLE}\n{styles}</head>\n{body}\
         <script type=\"application/json\" id=\"data\">{}</script>\n{scripts}</body>\n</html>\n",
        data(document)
    )
}

/// What the page says in words, as text for a reader without JavaScript.
fn words(document: &Value) -> String {
    let words = document["words"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lines: Vec<_> = words.iter().filter_map(Value::as_str).collect();
    lines.join("\n").replace('&', "&amp;").replace('<', "&lt;")
}

/// JSON that ends no element: ids and messages are texts of others.
fn data(document: &Value) -> String {
    document.to_string().replace('<', "\\u003c")
}

fn hashes(contents: &[&str]) -> String {
    let hash = |content: &&str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(content.as_bytes())));
    contents.iter().map(hash).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_text_of_a_job_ends_the_data_or_begins_a_script() {
        let document = json!({ "name": "</script><script>alert(1)</script>", "words": ["<!--<script>", "a & b"] });
        let page = html(&document);
        let (_, after) = page.split_once("id=\"data\">").expect("the data");
        let (data, _) = after.split_once("</script>").expect("its end");
        assert_eq!(serde_json::from_str::<Value>(data).expect("JSON"), document);
        assert!(!data.contains('<') && page.matches("<script").count() == 4, "ours alone");
    }

    #[test]
    fn its_own_parts_end_no_element_and_are_allowed() {
        for own in [UPLOT, CHARTS, SCRIPT, STYLE, UPLOT_STYLE] {
            assert!(!own.contains("</script") && !own.contains("</style") && !own.contains("<!--"));
        }
        let page = html(&Value::Null);
        assert!(!page.contains("unsafe") && page.matches("'sha256-").count() == 5);
        assert!(!BODY.contains("http") && !BODY.contains(" style="), "nothing from elsewhere");
    }
}
