//! `paceline sim` as pictures.

use crate::sim::CLASSIC;
use crate::support::{Job, finish};

#[test]
fn a_chart_names_what_is_drawn() {
    let job = Job::new(0);
    let (code, log) =
        finish(job.paceline().args("sim run --scenario n10-30 --policy aws-inf --chart chart.svg".split(' ')));
    assert_eq!(code, 0, "{log}");
    let chart = std::fs::read_to_string(job.path("chart.svg")).expect("a picture");
    for expected in ["n10-30 under aws-inf, 1 client", "admitted", "refused", "capacity", "the policy&apos;s own rate"]
    {
        assert!(chart.contains(expected), "{expected}");
    }
    let (code, log) = finish(job.paceline().args("sim run --scenario n10-30 --chart chart.gif".split(' ')));
    assert!(code == 2 && log.contains("expected a name that ends in .svg or .png"), "{log}");
    let (code, log) = finish(job.paceline().args("sim run --scenario n10-30 --chart missing/chart.png".split(' ')));
    assert!(code == 2 && log.contains("cannot write missing/chart.png"), "{log}");
}

/// The name could ring a bell.
#[test]
fn a_scenario_of_ones_own_can_be_drawn_whatever_it_is_called() {
    let job = Job::new(0);
    std::fs::write(job.path("free.toml"), "name = \"free \\u0007<b>\"\nitems = 20\nservice = \"fast\"\n")
        .expect("writable");
    let (code, log) =
        finish(job.paceline().args("sim run --scenario free.toml --policy none --chart chart.png".split(' ')));
    assert_eq!(code, 0, "{log}");
    assert!(std::fs::read(job.path("chart.png")).expect("a picture").starts_with(b"\x89PNG"));
}

#[test]
fn a_chart_of_a_comparison_names_every_policy_and_who_leaves_items_undone() {
    let job = Job::new(0);
    let compare =
        "sim compare --scenario n10-30 --policy auto --policy openai --policy known --clients 1 --chart chart.svg";
    let (code, log) = finish(job.paceline().args(compare.split(' ')));
    assert_eq!(code, 0, "{log}");
    let chart = std::fs::read_to_string(job.path("chart.svg")).expect("a picture");
    for expected in ["auto\n", "known\n", "openai (71 % not done)\n", "leave items undone\n"] {
        assert!(chart.contains(expected), "{expected}");
    }
}

#[test]
fn the_classic_graph_is_drawn_in_both_forms() {
    let job = Job::new(0);
    let args = CLASSIC.split_whitespace().chain("--svg delay.svg --png delay.png".split(' '));
    let (code, log) = finish(job.paceline().arg("sim").args(args));
    assert_eq!(code, 0, "{log}");
    let svg = std::fs::read_to_string(job.path("delay.svg")).expect("a picture");
    for expected in ["The climb ends at 291.9 ms; later delays above 60 ms succeed.", "succeeded", "failed", "required"]
    {
        assert!(svg.contains(expected), "{expected}");
    }
    let png = std::fs::read(job.path("delay.png")).expect("a picture");
    assert!(png.starts_with(b"\x89PNG"));
}

#[test]
fn a_picture_that_cannot_be_is_said_before_the_work() {
    for (args, expected) in [
        (&["compare", "--chart", "nowhere/x.svg"][..], "cannot write nowhere/x.svg: there is no folder nowhere"),
        (&["run", "--scenario", "n10-30", "--trace", "x.svg", "--chart", "x.svg"], "cannot write two things to x.svg"),
        (&["responsive", "--csv", "x", "--svg", "x"], "cannot write two things to x"),
        (&["responsive", "--svg", "x.png"], "that is a name of the other form: use --png"),
    ] {
        let (code, log) = finish(Job::new(0).paceline().arg("sim").args(args));
        assert!(code == 2 && log.contains(expected), "{args:?}: {log}");
    }
}
