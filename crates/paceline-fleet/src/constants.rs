//! The script as the server gets it: names of constants are numbers there. In Lua each function takes along every name from
//! around it that it uses, each time that the script runs.

use std::collections::BTreeMap;

/// `local A, B = 1, 2` becomes nothing, and each `A` and `B` that is no text a number.
pub(crate) fn with_constants(script: &str) -> String {
    let mut values = BTreeMap::new();
    let mut rest = String::with_capacity(script.len());
    for line in script.lines() {
        match constants(line) {
            Some(constants) => values.extend(constants),
            None => rest.extend([line, "\n"]),
        }
    }
    let mut written = String::with_capacity(rest.len());
    let mut left = rest.as_str();
    while let Some(at) = left.find(|letter: char| letter.is_ascii_uppercase()) {
        let (before, from) = left.split_at(at);
        let end = from.find(|letter: char| !is_of_word(letter)).unwrap_or(from.len());
        let (word, behind) = from.split_at(end);
        let is_text = before.ends_with(|letter: char| is_of_word(letter) || letter == '\'');
        let value = values.get(word).filter(|_| !is_text);
        written.extend([before, value.copied().unwrap_or(word)]);
        left = behind;
    }
    written + left
}

fn constants(line: &str) -> Option<Vec<(&str, &str)>> {
    let (names, values) = line.strip_prefix("local ")?.split_once(" = ")?;
    let (names, values): (Vec<&str>, Vec<&str>) = (names.split(", ").collect(), values.split(", ").collect());
    let is_name = |name: &&str| name.bytes().all(|letter| letter.is_ascii_uppercase() || letter == b'_');
    let is_number = |value: &&str| value.bytes().all(|digit| digit.is_ascii_digit());
    let are_constants = names.len() == values.len() && names.iter().all(is_name) && values.iter().all(is_number);
    are_constants.then(|| names.into_iter().zip(values).collect())
}

const fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_constants_are_numbers_and_other_words_stay() {
        let script =
            "local HAS, LIMIT = 1, 300\nlocal KEY, S = KEYS[1], 'LIMIT'\nlocal A_HAS = HAS + LIMIT\nreturn part[HAS]";
        let expected = "local KEY, S = KEYS[1], 'LIMIT'\nlocal A_HAS = 1 + 300\nreturn part[1]\n";
        assert_eq!(with_constants(script), expected);
    }
}
