//! Prints the JSON Schema of `paceline.toml`: `cargo run -p paceline --example schema > docs/paceline.schema.json`.

fn main() {
    print!("{}", paceline::config::json_schema());
}
