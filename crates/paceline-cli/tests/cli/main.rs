//! `paceline` as a person meets it: the real binary against a server that counts what reaches it.

mod access;
mod answers;
mod attribution;
mod bad_lines;
#[cfg(unix)]
mod batches;
mod batches_again;
mod bounded;
mod bounds;
mod budget;
mod changed_input;
#[cfg(feature = "charts")]
mod charts;
mod checks;
mod configuration;
mod convert;
#[cfg(target_os = "linux")]
mod disk;
mod done;
mod dry_run;
mod ends;
mod estimates;
#[cfg(unix)]
mod expected;
mod explain;
#[cfg(unix)]
mod failure_lines;
#[cfg(unix)]
mod fallback;
mod files;
mod fleet;
mod forms;
mod help;
#[cfg(unix)]
mod hosts;
mod hosts_stopped;
mod input;
mod manual;
mod many_hosts;
mod order;
mod outage;
mod partial;
#[cfg(feature = "charts")]
mod pictures;
mod plan;
mod prices;
mod report;
mod response_headers;
mod resume;
mod rewritten;
mod secrets;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
mod serve_faults;
mod serve_key_use;
#[cfg(unix)]
mod serve_keys;
#[cfg(unix)]
mod serve_killed;
#[cfg(unix)]
mod serve_operation;
mod serve_proxy;
mod serve_rotation;
mod serve_secrets;
#[cfg(unix)]
mod serve_start;
#[cfg(unix)]
mod serve_untaken;
mod sharing;
mod sim;
mod stats;
mod support;
mod surface;
mod tables;
mod tasks;
#[cfg(unix)]
mod tasks_alike;
mod tasks_fallback;
mod tasks_hooks;
mod tasks_judge;
#[cfg(unix)]
mod tasks_left;
#[cfg(unix)]
mod tasks_run;
#[cfg(unix)]
mod tasks_run_http;
#[cfg(unix)]
mod tasks_scopes;
#[cfg(unix)]
mod tasks_store;
#[cfg(unix)]
mod terminal;
mod tls;
#[cfg(unix)]
mod top;
mod unknown;
#[cfg(unix)]
mod unread_log;

#[cfg(unix)]
mod via;
#[cfg(unix)]
mod via_holds;
#[cfg(unix)]
mod via_scheme;
mod waits;
mod words;
