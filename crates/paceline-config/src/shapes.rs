//! Values that may be written in two ways.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::schema::ConcurrencySection;
use super::setting::{Layered, Locator, Setting};

/// Limits as texts. Those of a higher layer stand before those of a lower one.
#[derive(Default, Clone)]
pub(crate) struct Settings(pub(crate) Vec<Setting>);

impl Layered for Settings {
    fn over(mut self, lower: Self) -> Self {
        self.0.extend(lower.0);
        self
    }

    fn locate(&mut self, locator: &Locator<'_>) {
        self.0.locate(locator);
    }
}

/// Values of headers by name, in lower case. A name of a higher layer stands in place of a lower one's.
#[derive(Default, Clone)]
pub(crate) struct HeaderSettings(pub(crate) BTreeMap<String, Setting>);

impl HeaderSettings {
    /// From lines such as `Name: value`; a line without a `:` is a value without a name, which no header is.
    pub(crate) fn of_lines<'a>(lines: impl IntoIterator<Item = &'a str>, setting: impl Fn(&str) -> Setting) -> Self {
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap_or(("", line));
            (name.trim().to_ascii_lowercase(), setting(value.trim()))
        };
        Self(lines.into_iter().filter(|line| !line.trim().is_empty()).map(header).collect())
    }
}

impl Layered for HeaderSettings {
    fn over(self, mut lower: Self) -> Self {
        lower.0.extend(self.0);
        lower
    }

    fn locate(&mut self, locator: &Locator<'_>) {
        self.0.values_mut().for_each(|setting| setting.locate(locator));
    }
}

/// A table, or lines: an environment variable has no tables.
impl<'de> Deserialize<'de> for HeaderSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;

        impl<'de> Visitor<'de> for Table {
            type Value = Result<BTreeMap<String, Setting>, String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of headers")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Err(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut settings = BTreeMap::new();
                while let Some((name, setting)) = map.next_entry::<String, Setting>()? {
                    if settings.insert(name.to_ascii_lowercase(), setting).is_some() {
                        return Err(A::Error::custom(format!("the header {name} is there twice")));
                    }
                }
                Ok(Ok(settings))
            }
        }

        struct Written(Result<BTreeMap<String, Setting>, String>);

        impl<'de> Deserialize<'de> for Written {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Table).map(Written)
            }
        }

        let written = Spanned::<Written>::deserialize(deserializer)?;
        let span = written.span();
        Ok(match written.into_inner().0 {
            Ok(settings) => Self(settings),
            Err(text) => Self::of_lines(text.lines(), |value| Setting::at(value.to_owned(), span.clone())),
        })
    }
}

/// A list, or one text with commas: an environment variable has no lists.
impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = (Vec<Setting>, Vec<String>);

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok((Vec::new(), text.split(',').map(|limit| limit.trim().to_owned()).collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut settings = Vec::new();
                while let Some(setting) = list.next_element()? {
                    settings.push(setting);
                }
                Ok((settings, Vec::new()))
            }
        }

        struct Parts((Vec<Setting>, Vec<String>));

        impl<'de> Deserialize<'de> for Parts {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(List).map(Parts)
            }
        }

        let parts = Spanned::<Parts>::deserialize(deserializer)?;
        let span = parts.span();
        let Parts((mut settings, texts)) = parts.into_inner();
        settings.extend(texts.into_iter().map(|text| Setting::at(text, span.clone())));
        Ok(Self(settings))
    }
}

/// `concurrency = 20` is short for `concurrency = { max = 20 }`.
pub(crate) fn number_or_table<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ConcurrencySection>, D::Error> {
    let written = Spanned::<NumberOrTable>::deserialize(from)?;
    let span = written.span();
    Ok(Some(match written.into_inner() {
        NumberOrTable::Number(text) => {
            ConcurrencySection { max: Some(Setting::at(text, span)), ..ConcurrencySection::default() }
        }
        NumberOrTable::Table(section) => *section,
    }))
}

/// The `concurrency` knob before it is known whether it is a number or a table.
enum NumberOrTable {
    Number(String),
    Table(Box<ConcurrencySection>),
}

impl<'de> Deserialize<'de> for NumberOrTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = NumberOrTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a table")
            }

            fn visit_i64<E>(self, number: i64) -> Result<NumberOrTable, E> {
                Ok(NumberOrTable::Number(number.to_string()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<NumberOrTable, E> {
                Ok(NumberOrTable::Number(number.to_string()))
            }

            fn visit_str<E>(self, text: &str) -> Result<NumberOrTable, E> {
                Ok(NumberOrTable::Number(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NumberOrTable, A::Error> {
                let table = ConcurrencySection::deserialize(MapAccessDeserializer::new(map))?;
                Ok(NumberOrTable::Table(Box::new(table)))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// The entry of a table of prices that stands for every model without one.
pub(crate) const EVERY_MODEL: &str = "*";

/// Prices by model. Those of a higher layer replace those of a lower one.
#[derive(Default, Clone)]
pub(crate) struct Priced(pub(crate) BTreeMap<String, Setting>);

impl Layered for Priced {
    fn over(self, _lower: Self) -> Self {
        self
    }

    fn locate(&mut self, locator: &Locator<'_>) {
        self.0.values_mut().for_each(|price| price.locate(locator));
    }
}

/// A table, or one text that is the price of every model.
impl<'de> Deserialize<'de> for Priced {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Spanned::<TextOrTable>::deserialize(deserializer)?;
        let span = written.span();
        Ok(Self(match written.into_inner() {
            TextOrTable::Text(text) => [(EVERY_MODEL.to_owned(), Setting::at(text, span))].into(),
            TextOrTable::Table(table) => table,
        }))
    }
}

enum TextOrTable {
    Text(String),
    Table(BTreeMap<String, Setting>),
}

impl<'de> Deserialize<'de> for TextOrTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = TextOrTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a price such as \"in=2.50,out=10\", or a table of them by model")
            }

            fn visit_str<E>(self, text: &str) -> Result<TextOrTable, E> {
                Ok(TextOrTable::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TextOrTable, A::Error> {
                let prices: BTreeMap<_, PriceSetting> = Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                Ok(TextOrTable::Table(prices.into_iter().map(|(model, PriceSetting(price))| (model, price)).collect()))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// The price of one model. A table of its parts is no price.
struct PriceSetting(Setting);

impl<'de> Deserialize<'de> for PriceSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Spanned::<PriceText>::deserialize(deserializer)?;
        let span = written.span();
        Ok(Self(Setting::at(written.into_inner().0, span)))
    }
}

struct PriceText(String);

impl<'de> Deserialize<'de> for PriceText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = PriceText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text such as \"in=2.50,out=10\"")
            }

            fn visit_str<E>(self, text: &str) -> Result<PriceText, E> {
                Ok(PriceText(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Text)
    }
}
