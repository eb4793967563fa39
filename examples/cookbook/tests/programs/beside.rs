//! The programs of examples/ are about as short as the same with another crate.

fn lines(program: &str) -> usize {
    program.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//")).count()
}

#[test]
fn a_program_is_at_most_half_as_long_again_as_the_same_with_another_crate() {
    for (name, own, peer) in [
        ("keyed", include_str!("../../examples/keyed.rs"), include_str!("../../examples/keyed_governor.rs")),
        ("layer", include_str!("../../examples/layer.rs"), include_str!("../../examples/layer_tower.rs")),
        ("retry", include_str!("../../examples/retry.rs"), include_str!("../../examples/retry_backon.rs")),
        ("table", include_str!("../../examples/table.rs"), include_str!("../../examples/table_aws.rs")),
        ("stream", include_str!("../../examples/stream.rs"), include_str!("../../examples/stream_reqwest.rs")),
        ("threads", include_str!("../../examples/threads.rs"), include_str!("../../examples/threads_governor.rs")),
    ] {
        let (own, peer) = (lines(own), lines(peer));
        println!("measure lines of {name}: {own} beside {peer}");
        assert!(2 * own <= 3 * peer, "{name} has {own} lines, its peer {peer}");
    }
}
