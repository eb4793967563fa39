//! docs/cookbook.md shows lines of the programs as they are.

const PAGE: &str = include_str!("../../../../docs/cookbook.md");

#[test]
fn the_lines_of_the_page_stand_in_the_programs() {
    let programs = [
        ("openai", include_str!("../../src/openai.rs")),
        ("dynamodb", include_str!("../../src/dynamodb.rs")),
        ("scraper", include_str!("../../src/scraper.rs")),
        ("webhooks", include_str!("../../src/webhooks.rs")),
        ("grpc", include_str!("../../src/grpc.rs")),
    ];
    let mut sections = PAGE.split("\n## ").skip(1);
    for (name, program) in programs {
        let section = sections.next().expect("a section for each program");
        assert!(section.contains(&format!("(../examples/cookbook/src/{name}.rs)")), "{section}");
        let mut blocks =
            section.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).peekable();
        assert!(blocks.peek().is_some(), "{name} shows nothing");
        for block in blocks {
            assert!(program.contains(block), "{name}.rs has no\n{block}");
        }
    }
    assert_eq!(sections.next(), None);
}
