//! Prints the JSON Schema of `paceline.toml`: `cargo run -p paceline-config --example schema > docs/paceline.schema.json`.

fn main() {
    print!("{}", paceline_config::json_schema());
}
