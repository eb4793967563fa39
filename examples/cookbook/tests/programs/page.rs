//! docs/cookbook.md shows lines of the programs as they are.

const PAGE: &str = include_str!("../../../../docs/cookbook.md");

#[test]
fn the_lines_of_the_page_stand_in_the_programs() {
    let programs = [
        ("examples/cookbook/src/openai.rs", include_str!("../../src/openai.rs")),
        ("examples/cookbook/src/dynamodb.rs", include_str!("../../src/dynamodb.rs")),
        ("examples/cookbook/src/scraper.rs", include_str!("../../src/scraper.rs")),
        ("examples/cookbook/src/webhooks.rs", include_str!("../../src/webhooks.rs")),
        ("examples/cookbook/src/grpc.rs", include_str!("../../src/grpc.rs")),
        ("examples/cookbook/src/router.rs", include_str!("../../src/router.rs")),
        ("crates/paceline/examples/documents.rs", include_str!("../../../../crates/paceline/examples/documents.rs")),
    ];
    let mut sections = PAGE.split("\n## ").skip(1);
    for (name, program) in programs {
        let section = sections.next().expect("a section for each program");
        assert!(section.contains(&format!("(../{name})")), "{section}");
        let mut blocks =
            section.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).peekable();
        assert!(blocks.peek().is_some(), "{name} shows nothing");
        for block in blocks {
            assert!(program.contains(block), "{name} has no\n{block}");
        }
    }
    assert_eq!(sections.next(), None);
}
