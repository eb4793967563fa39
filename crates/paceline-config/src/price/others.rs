//! The prices of other upstreams, which a gateway's fallback may have answer.

use paceline_providers::is_version_of;

use super::super::error::SettingError;
use super::super::setting::Setting;
use super::super::shapes::{EVERY_MODEL, Priced};
use super::{Price, PriceError, Prices};

impl Prices {
    /// The same with the prices of other upstreams, by the names of their models [at](Self::name_at) them; `*` is every model.
    #[must_use]
    pub fn with_others(self, prices: impl IntoIterator<Item = (String, Price)>) -> Self {
        Self { of_others: prices.into_iter().collect(), ..self }
    }

    /// The prices of other upstreams, by the names of their models [at](Self::name_at) them.
    pub fn of_others(&self) -> impl Iterator<Item = (&str, Price)> {
        self.of_others.iter().map(|(name, price)| (&**name, *price))
    }

    /// The name of a model at another upstream, as a fallback of the gateway names it: `NAME:MODEL`.
    pub fn name_at(upstream: &str, model: &str) -> String {
        format!("{upstream}:{model}")
    }

    /// The name by which an answer of that model counts where another upstream has given it; none where no price of that upstream
    /// is known for it.
    pub fn counted_at(&self, upstream: &str, model: &str) -> Option<String> {
        let name = Self::name_at(upstream, model);
        if self.of_others.contains_key(&name) {
            return Some(name);
        }
        let models = self.of_others.keys().filter_map(|name| name.strip_prefix(upstream)?.strip_prefix(':'));
        let version = models.filter(|known| is_version_of(model, known)).max_by_key(|known| known.len());
        let known = version.map(|known| Self::name_at(upstream, known));
        known.or_else(|| self.of_other(&name).map(|_| name))
    }

    /// The same for a job that went to the upstream `was` before it goes to `is`: the prices that the run before had stay
    /// those of what it used, where its upstream has none of its own by now.
    #[must_use]
    pub fn after(mut self, before: &Self, was: &str, is: &str) -> Self {
        let goes_on = was != is && !was.is_empty();
        let own = before.iter().filter(|_| goes_on).map(|(model, price)| (Self::name_at(was, model), price));
        let others = before.of_others().map(|(name, price)| (name.to_owned(), price));
        let is_new = |name: &str| Self::upstream_of(name) != Some(is) && !self.is_at_other(name);
        let new: Vec<_> = own.chain(others).filter(|(name, _)| is_new(name)).collect();
        self.of_others.extend(new);
        self
    }

    /// The name by which counts at the upstream `is` what was named `model` while the job went to `was`.
    pub fn name_after(&self, model: &str, was: &str, is: &str) -> String {
        match Self::upstream_of(model) {
            // What an older version wrote names no upstream.
            _ if was == is || was.is_empty() => model.to_owned(),
            Some(upstream) if upstream == is => model[is.len() + 1..].to_owned(),
            Some(upstream) if upstream != was && self.is_at_other(model) => model.to_owned(),
            _ => Self::name_at(was, model),
        }
    }

    /// Whether a model is named at another upstream of which a price is known.
    pub fn is_at_other(&self, name: &str) -> bool {
        let upstream = Self::upstream_of(name);
        upstream.is_some() && self.of_others.keys().any(|other| Self::upstream_of(other) == upstream)
    }

    fn upstream_of(name: &str) -> Option<&str> {
        name.split_once(':').map(|(upstream, _)| upstream)
    }

    /// The price of what is named at another upstream.
    pub(super) fn of_other(&self, name: &str) -> Option<Price> {
        let (upstream, _) = name.split_once(':').filter(|_| !self.of_others.is_empty())?;
        let found = self.of_others.get(name);
        found.or_else(|| self.of_others.get(&Self::name_at(upstream, EVERY_MODEL))).copied()
    }
}

/// The prices of another upstream, by the names of its models there.
pub(crate) fn of_other(upstream: &str, priced: &Priced) -> Result<Vec<(String, Price)>, SettingError> {
    let price = |(model, setting): (&String, &Setting)| {
        let refused =
            |wrong: PriceError| setting.refuse(&format!("upstream.{upstream}.price.{model}"), wrong.expected());
        Ok((Prices::name_at(upstream, model), setting.text.parse().map_err(refused)?))
    };
    priced.0.iter().map(price).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::{Config, Environment, Overrides, Price};

    #[test]
    fn an_answer_of_another_upstream_counts_with_the_price_that_this_has() {
        let file = "[upstream.a.price]\n'm' = 'in=1,out=1'\n'n' = 'in=9,out=9'\n[upstream.b]\nprice = 'in=2,out=2'\n\
                    [upstream.c.price]\n'm' = 'in=3,out=3'\n[upstream.a]\nbase_url = 'http://h'\n";
        let a = Overrides { upstream: Some("a".to_owned()), ..Overrides::default() };
        let prices = Config::parse("paceline.toml".as_ref(), file, Environment::default(), a)
            .and_then(|config| config.upstream())
            .expect("all well")
            .prices;
        let at = |upstream, model| {
            let name = prices.counted_at(upstream, model)?;
            let price = prices.of(&name).to_string();
            Some((name, price))
        };
        let is = |name: &str, price: &str| Some((name.to_owned(), price.to_owned()));
        assert_eq!(at("b", "m"), is("b:m", "in=2,out=2"));
        assert_eq!(at("c", "m-2024-08-06"), is("c:m", "in=3,out=3"));
        assert_eq!((at("c", "n"), at("d", "m"), at("a", "m")), (None, None, None));
        assert_eq!(prices.of("c:n").to_string(), "in=9,out=9", "unknown, and so as here");
        assert_eq!(["b:x", "c:m", "c:n", "m"].map(|name| prices.has_own(name)), [true, true, false, true]);
        assert_eq!(prices.of("forgotten").to_string(), "in=9,out=9", "the dearest of its own");
        let moved = prices.clone().after(&"in=7,out=7".parse::<Price>().expect("a price").into(), "first", "a");
        let names = [("m", "first"), ("a:m", "first"), ("b:m", "first"), ("m", "a"), ("m", "")];
        let names = names.map(|(model, was)| moved.name_after(model, was, "a"));
        assert_eq!(names, ["first:m", "m", "b:m", "m", "m"]);
        assert_eq!(moved.of("first:m").to_string(), "in=7,out=7", "as the run before had it");
        let before = "in=8,out=8".parse::<Price>().expect("a price").into();
        assert_eq!(prices.clone().after(&before, "b", "a").of("b:m").to_string(), "in=2,out=2", "as configured");
        assert_eq!(prices.clone().after(&before, "a", "a"), prices);
        let wrong = Config::parse(
            "paceline.toml".as_ref(),
            "[upstream.b]\nprice = 'cheap'",
            Environment::default(),
            Overrides { upstream: Some("openai".to_owned()), ..Overrides::default() },
        );
        let wrong = wrong.and_then(|config| config.upstream()).expect_err("no price").to_string();
        assert!(wrong.contains("upstream.b.price.* = \"cheap\""), "{wrong}");
    }
}
