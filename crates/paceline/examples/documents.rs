//! Documents are classified by an API, and by pattern matching where it stays down. Each result says which of the two it is.

use std::io;
use std::time::Duration;

use paceline::{Limiter, PacerConfig, Quota, RunError, Sourced};

/// What a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It asks for money.
    Invoice,
    /// All else.
    Letter,
}

impl Kind {
    /// By the words that invoices have: good enough until the API is back.
    fn by_patterns(text: &str) -> Self {
        let is_invoice = ["invoice", "amount due", "vat"].iter().any(|word| text.to_lowercase().contains(word));
        if is_invoice { Self::Invoice } else { Self::Letter }
    }
}

/// Three calls for a document, within a minute. A document that the API refuses is an error, also while it is down for others.
pub async fn classify(
    limiter: &Limiter,
    text: &str,
    ask: impl AsyncFn(&str) -> io::Result<Kind>,
) -> Result<Sourced<Kind>, RunError<io::Error>> {
    let by_patterns = |_| async { Kind::by_patterns(text) };
    let may_pass = |error: &io::Error| error.kind() != io::ErrorKind::InvalidInput;
    limiter.run(|| ask(text)).when(may_pass).within(Duration::from_secs(60)).fallback(by_patterns).await
}

fn limiter() -> Result<Limiter, paceline::ConfigError> {
    Limiter::new(PacerConfig::from(Quota::per_minute(500)).with_max_retries(2))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = limiter()?;
    // Stands for a call with your HTTP client, to a server that is down for the second document.
    let ask = async |text: &str| match text.strip_prefix("Dear") {
        Some(_) => Ok(Kind::Letter),
        None => Err(io::ErrorKind::ConnectionReset.into()),
    };
    for text in ["Dear Mr Smith, ...", "Invoice 7, amount due: 12.00"] {
        match classify(&limiter, text, ask).await? {
            Sourced::Answer(kind) => println!("{text}: {kind:?}"),
            // To be asked again: the API's answer replaces it.
            Sourced::Fallback(kind) => println!("{text}: {kind:?}, by its words; the API stayed down"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use paceline::testing::block_on;

    use super::*;

    fn fails(kind: io::ErrorKind, calls: &Cell<u32>) -> Result<Sourced<Kind>, RunError<io::Error>> {
        let limiter = limiter().expect("a configuration that can be");
        let ask = async |_: &str| {
            calls.set(calls.get() + 1);
            Err(kind.into())
        };
        block_on(classify(&limiter, "INVOICE 7", ask))
    }

    #[test]
    fn patterns_decide_after_three_calls_that_failed() {
        let calls = Cell::new(0);
        let classified = fails(io::ErrorKind::ConnectionReset, &calls).expect("a guess");
        assert_eq!((classified, calls.get()), (Sourced::Fallback(Kind::Invoice), 3));
    }

    #[test]
    fn a_document_that_is_refused_is_an_error_and_an_answer_is_an_answer() {
        let calls = Cell::new(0);
        let refused = fails(io::ErrorKind::InvalidInput, &calls).expect_err("no guess hides it");
        assert_eq!((refused.is_fatal(), calls.get()), (true, 1));
        let limiter = limiter().expect("a configuration that can be");
        let answered = block_on(classify(&limiter, "INVOICE 7", async |_| Ok(Kind::Letter)));
        assert_eq!(answered.expect("an answer"), Sourced::Answer(Kind::Letter));
    }
}
