//! `paceline` as a person meets it: the real binary against a server that counts what reaches it.

mod answers;
mod attribution;
mod bounds;
mod budget;
mod checks;
mod done;
mod dry_run;
mod ends;
mod explain;
mod forms;
mod help;
mod input;
mod order;
mod partial;
mod pictures;
mod plan;
mod resume;
mod rewritten;
mod sharing;
mod sim;
mod stats;
mod support;
mod surface;
mod tasks;
#[cfg(unix)]
mod tasks_alike;
mod tasks_judge;
#[cfg(unix)]
mod tasks_run;
#[cfg(unix)]
mod tasks_run_http;
#[cfg(unix)]
mod tasks_store;
#[cfg(unix)]
mod terminal;
mod waits;
mod words;
