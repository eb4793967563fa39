//! Inputs that are no requests yet: tables, and lists of prompts.

use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish};

/// A job whose input has another name.
fn job_of(name: &str, text: &str) -> Job {
    let job = Job::new(0);
    std::fs::write(job.path(name), text).expect("writable");
    job
}

fn run(job: &Job, server: &Server, input: &str, flags: &[&str]) -> (i32, String) {
    let mut command = job.paceline();
    command.args(["run", input, "-o", "out.jsonl", "--base-url", &server.url(), "--summary", "summary.json"]);
    finish(command.args(flags))
}

/// The bodies that arrived, in order of their prompts.
fn bodies(server: &Server) -> Vec<Value> {
    let mut bodies: Vec<Value> =
        server.arrivals().iter().map(|arrival| serde_json::from_slice(&arrival.body).expect("JSON")).collect();
    bodies.sort_by_key(Value::to_string);
    bodies
}

fn asked(prompt: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": prompt}]})
}

const CHAT: [&str; 4] = ["--endpoint", "/v1/chat/completions", "--model", "m"];

#[test]
fn a_table_is_prompts_by_a_template_and_keeps_its_ids() {
    let server = Server::new(|_| Reply::ok());
    let table = "\u{feff}id,city,note\n7,Bern,\"two\nlines, \"\"quoted\"\"\"\n8,Genf,\n";
    let job = job_of("in.csv", table);
    let flags = [&CHAT[..], &["--prompt-template", "Weather in {{ city | trim }}? {{ note | default('') }}"]].concat();
    let (code, log) = run(&job, &server, "in.csv", &flags);
    assert_eq!(code, 0, "{log}");
    let expected = [asked("Weather in Bern? two\nlines, \"quoted\""), asked("Weather in Genf? ")];
    assert_eq!(bodies(&server), expected);
    let mut ids: Vec<String> = job.lines("out.jsonl").iter().map(|line| line["custom_id"].to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["\"7\"", "\"8\""]);
    let (code, log) = run(&job, &server, "in.csv", &flags);
    assert_eq!((code, server.count()), (0, 2), "the same table goes on: {log}");
    let other = [&CHAT[..], &["--prompt-template", "Snow in {{ city }}?", "--max-output-tokens", "9"]].concat();
    let (code, log) = run(&job, &server, "in.csv", &other);
    let changed = "is the input of this job, but --max-output-tokens was not set, and is 9; --prompt-template was \"Weather in \
                   {{ city | trim }}? {{ note | default('') }}\", and is \"Snow in {{ city }}?\", and so the requests changed: use";
    assert!(code == 2 && log.contains(changed), "another template is another job: {log}");
    for flag in ["--accept-changed-input", "--retry-failed"] {
        let (code, log) = run(&job, &server, "in.csv", &[&other[..], &[flag]].concat());
        let changed = changed.trim_start_matches("is the input of this job, but ");
        assert!(code == 2 && log.contains(changed) && !log.contains("restore"), "{flag}: no line changed: {log}");
        let (code, dry) = run(&job, &server, "in.csv", &[&other[..], &[flag, "--dry-run"]].concat());
        assert!(code == 2 && dry.contains(changed), "{dry}");
    }
    let (code, log) = run(&job, &server, "in.csv", &other);
    // Its answers are to other prompts, and are matched by their ids alone.
    assert!(
        code == 2
            && log.contains("or another output, for which all are asked and paid for anew")
            && !log.contains("--done"),
        "{log}"
    );
}

#[test]
fn a_list_of_prompts_is_one_a_line() {
    let server = Server::new(|_| Reply::ok());
    let job = job_of("prompts.txt", "Why is the sky blue?\n\nIs \"this\" JSON?\r\n");
    let (code, log) = run(&job, &server, "prompts.txt", &CHAT);
    assert_eq!(code, 0, "{log}");
    assert_eq!(bodies(&server), [asked("Is \"this\" JSON?"), asked("Why is the sky blue?")]);
}

/// By the line of the file: editors of Windows write other line ends, records have several lines, and lines are left blank.
#[test]
fn a_row_is_named_by_its_line() {
    let server = Server::new(|_| Reply::ok());
    for (name, text, expected) in [
        ("in.csv", "id,prompt\r\na,one\r\nb,\r\n", "line 3: invalid_row: row 2: its prompt is empty"),
        ("in.csv", "id,prompt\n\n\na,\"one\n\n\"\n\nb,\n", "line 8: invalid_row: row 2: its prompt is empty"),
        (
            "in.csv",
            "id,prompt\r\n\r\na,one,\r\n",
            "line 3: invalid_row: row 1: expected 2 columns, as the header has, and found 3",
        ),
        (
            "in.csv",
            "id,prompt\r\na,\"one\r\n\"\r\na,two\r\n",
            "line 4: duplicate_custom_id: custom_id: the same as in line 2",
        ),
        // As spreadsheets of old Macs write it.
        ("in.csv", "id,prompt\ra,\"one\r\n\"\r\rb,\r", "line 5: invalid_row: row 2: its prompt is empty"),
        ("in.txt", "one\rtwo\r\n", "line 1: invalid_row: a carriage return stands within the line; end each line with"),
        ("in.jsonl", "{\"id\":1,\"prompt\":\"a\"}\n\n{\"id\":1,\"prompt\":\"b\"}\n", "line 3: duplicate_custom_id"),
    ] {
        let (job, flags) = (job_of(name, text), [&CHAT[..], &["--prompt-template", "{{ prompt }}"]].concat());
        let (code, log) = run(&job, &server, name, &flags);
        let log = log.replace("--prompt-template", "");
        assert!(code == 2 && log.contains(expected), "{text:?}: {log}");
    }
    let job = job_of("in.txt", "one\n\n\ntwo\n");
    assert_eq!(run(&job, &server, "in.txt", &CHAT).0, 0);
    let mut ids: Vec<String> = job.lines("out.jsonl").iter().map(|line| line["custom_id"].to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["\"line-1\"", "\"line-4\""]);
}

#[test]
fn every_bad_row_is_named_and_may_be_skipped() {
    let server = Server::new(|_| Reply::ok());
    let table = "id,prompt\na,one,more\nb,two\nc\nd,\ne,five\n";
    let job = job_of("in.csv", table);
    let (code, log) = run(&job, &server, "in.csv", &CHAT);
    assert_eq!((code, server.count()), (2, 0), "{log}");
    let bad = [
        "line 2: invalid_row: row 1: expected 2 columns, as the header has, and found 3",
        "line 4: invalid_row: row 3: expected 2 columns, as the header has, and found 1",
        "line 5: invalid_row: row 4: its prompt is empty",
    ];
    assert!(log.contains("3 lines of in.csv cannot be sent") && bad.iter().all(|bad| log.contains(bad)), "{log}");
    let skip = [&CHAT[..], &["--skip-bad-lines"]].concat();
    let (code, log) = run(&job, &server, "in.csv", &skip);
    assert_eq!((code, server.count()), (1, 2), "{log}");
    assert!(log.contains("3 lines of in.csv cannot be sent") && bad.iter().all(|bad| log.contains(bad)), "{log}");
    let errors = job.lines("out.errors.jsonl");
    let known: Vec<_> = errors.iter().map(|line| (&line["custom_id"], &line["error"]["line"])).collect();
    assert_eq!(known, [(&json!("row-1"), &json!(2)), (&json!("row-3"), &json!(4)), (&json!("d"), &json!(5))]);
    assert_eq!(run(&job, &server, "in.csv", &skip).0, 1, "the same job goes on");
    assert_eq!(server.count(), 2);

    let job = job_of("in.jsonl", "{\nno\n{\"prompt\":\"x\"}\n");
    let skip = [&CHAT[..], &["--prompt-template", "{{ prompt }}", "--skip-bad-lines"]].concat();
    let (code, log) = run(&job, &server, "in.jsonl", &skip);
    assert!(code == 1 && log.contains("2 lines of in.jsonl") && log.contains("line 2: invalid_row"), "{log}");
    assert_eq!(server.count(), 3);
}

/// By its name, by `--format` and through a pipe.
#[test]
fn a_table_with_urls_is_requests() {
    let table = "id,url,method,body,headers\n\
                 a,/x?q=1,GET,,\n\
                 b,/y,,\"{\"\"n\"\":7}\",\n\
                 c,/z,PUT,plain,\"{\"\"x-a\"\":\"\"1\"\"}\"\n";
    for (name, flags) in [("in.csv", &[][..]), ("in.txt", &["--format", "csv"]), ("-", &["--format", "csv"])] {
        let server = Server::new(|_| Reply::ok());
        let job = job_of(if name == "-" { "in.csv" } else { name }, table);
        let mut command = job.paceline();
        command.args(["run", name, "-o", "out.jsonl", "--base-url", &server.url()]).args(flags);
        if name == "-" {
            command.stdin(std::fs::File::open(job.path("in.csv")).expect("there"));
        }
        let (code, log) = finish(&mut command);
        assert_eq!(code, 0, "{log}");
        let mut sent: Vec<_> = server
            .arrivals()
            .iter()
            .map(|it| format!("{} {} {}", it.method, it.path, String::from_utf8_lossy(&it.body)))
            .collect();
        sent.sort();
        assert_eq!(sent, ["GET /x?q=1 ", "POST /y {\"n\":7}", "PUT /z \"plain\""], "{name}");
        assert!(server.arrivals().iter().any(|it| it.headers.get("x-a").is_some_and(|value| value == "1")));
    }

    let server = Server::new(|_| Reply::ok());
    let job = job_of("in.csv", "url\n/a\n/b\n");
    let (code, log) = run(&job, &server, "in.csv", &[]);
    let arrivals = server.arrivals();
    assert!(code == 0 && arrivals.iter().all(|it| it.method == "GET" && it.body.is_empty()), "{log}");
    let mut ids: Vec<_> = job.lines("out.jsonl").iter().map(|line| line["custom_id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    assert_eq!(ids, ["line-2", "line-3"]);
    let (code, log) = run(&job_of("in.csv", "url,body\n/a,\n"), &server, "in.csv", &[]);
    assert!(
        code == 2 && log.contains("a POST request needs JSON, or null for none; for a GET set method to GET"),
        "{log}"
    );
    let (code, log) = run(&job_of("in.csv", "name\nx\n"), &server, "in.csv", &[]);
    assert!(code == 2 && log.contains("its header, line 1, is \"name\": expected a column url"), "{log}");
    // Also of an API that has an endpoint for bodies: none of its keys is a column.
    let (code, log) = run(&job_of("in.csv", "id,text\n1,x\n"), &server, "in.csv", &["--upstream", "openai"]);
    let told = "its header, line 1, is \"id,text\": expected a column url";
    assert!(code == 2 && log.contains(told) && log.contains("for prompts --model, and --prompt-template"), "{log}");
}

#[test]
fn cells_are_texts() {
    let server = Server::new(|_| Reply::ok());
    let job = job_of("in.csv", "id,n,note\na,7,\nb,null,x\n");
    let (code, log) = run(&job, &server, "in.csv", &["--endpoint", "/hook"]);
    let expected = [json!({"id": "a", "n": "7", "note": ""}), json!({"id": "b", "n": "null", "note": "x"})];
    assert_eq!((code, bodies(&server)), (0, expected.to_vec()), "{log}");
    let server = Server::new(|_| Reply::ok());
    let template = "{{ n ~ 1 }}{% if note %} {{ note }}{% endif %}";
    let (code, log) = run(
        &job_of("in.csv", "id,n,note\na,7,\nb,0,x\n"),
        &server,
        "in.csv",
        &[&CHAT[..], &["--prompt-template", template]].concat(),
    );
    assert_eq!((code, bodies(&server)), (0, vec![asked("01 x"), asked("71")]), "{log}");
}

#[test]
fn a_column_whose_name_is_no_word_is_one_of_the_row() {
    let server = Server::new(|_| Reply::ok());
    let job = job_of("in.csv", "id,full name\na,Ada L\n");
    let template = |template: &'static str| [&CHAT[..], &["--prompt-template", template]].concat();
    let (code, log) = run(&job, &server, "in.csv", &template("{{ full name }}"));
    assert!(
        code == 2 && log.contains(
                "write a column whose name is not a plain word (letters a to z, digits and _) as {{ row[\"its name\"] }}"
            ),
        "{log}"
    );
    let (code, log) = run(&job, &server, "in.csv", &template("x {{ id"));
    assert!(code == 2 && log.contains("; }} is missing") && !log.contains("plain word"), "{log}");
    let (code, log) = run(&job, &server, "in.csv", &template("Hi {{ row[\"full name\"] }}"));
    assert_eq!((code, bodies(&server)), (0, vec![asked("Hi Ada L")]), "{log}");
}

#[test]
fn objects_fill_a_template_and_a_table_may_be_bodies() {
    let server = Server::new(|_| Reply::ok());
    let job = job_of("in.jsonl", "{\"custom_id\":\"a\",\"words\":[\"one\",\"two\"]}\n");
    let template = "Translate:{% for word in words %} {{ word }}{% endfor %}";
    std::fs::write(job.path("template.txt"), template).expect("writable");
    let flags = [&CHAT[..], &["--prompt-template", "template.txt"]].concat();
    let (code, log) = run(&job, &server, "in.jsonl", &flags);
    assert_eq!((code, bodies(&server)), (0, vec![asked("Translate: one two")]), "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["custom_id"], "a");

    let server = Server::new(|_| Reply::ok());
    let job = job_of("in.csv", "custom_id,name\nx,Ada\n");
    let (code, log) = run(&job, &server, "in.csv", &["--endpoint", "/hook"]);
    assert_eq!((code, bodies(&server)), (0, vec![json!({"name": "Ada"})]), "{log}");
}

#[test]
fn a_parquet_file_is_refused_with_the_command_that_makes_lines_of_it() {
    let server = Server::new(|_| Reply::ok());
    for (name, flags) in [("in.parquet", &[][..]), ("in.csv", &CHAT)] {
        let job = job_of(name, "PAR1\u{15}\u{4}");
        let (code, log) = run(&job, &server, name, flags);
        let duckdb = format!("duckdb -c \"COPY (FROM '{name}') TO 'in.jsonl' (FORMAT json)\"");
        assert!(code == 2 && log.contains("it is a Parquet file") && log.contains(&duckdb), "{code} {log}");
    }
    let job = job_of("in.csv", "");
    std::fs::write(job.path("in.csv"), b"\xFF\xFEp\0r\0").expect("writable");
    let (code, log) = run(&job, &server, "in.csv", &CHAT);
    assert!(code == 2 && log.contains("it is a text in UTF-16; save it as CSV UTF-8"), "{code} {log}");
    let job = job_of("in.txt", "PAR");
    let (code, log) = run(&job, &server, "in.txt", &CHAT);
    assert_eq!((code, bodies(&server)), (0, vec![asked("PAR")]), "a short prompt is one: {log}");
}

#[test]
fn what_is_no_table_and_a_template_that_fits_no_row_are_refused_as_a_whole() {
    let server = Server::new(|_| Reply::ok());
    let template = [&CHAT[..], &["--prompt-template", "{{ a | nosuch }}"]].concat();
    for (text, flags, expected) in [
        ("a,,\n1,,\n", &CHAT[..], "names the column \"\" twice; delete the empty columns"),
        ("PK\u{3}\u{4}", &CHAT, "it is a workbook (.xlsx) or another zip archive; save it as CSV UTF-8"),
        ("a,b\n1,2\n", &template, "--prompt-template: the template is wrong: unknown filter"),
    ] {
        let job = job_of("in.csv", text);
        let (code, log) = run(&job, &server, "in.csv", flags);
        assert!(code == 2 && log.contains(expected), "{expected}: {code} {log}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn a_line_of_a_list_that_is_no_web_address_says_why() {
    let server = Server::new(|_| Reply::ok());
    for (text, expected) in [
        (
            "hello\nthere\n",
            "lines 1, 2: invalid_row: this is no web address such as https://example.com/x (for prompts",
        ),
        ("  http://h/\n# a\n# b\n", "lines 2, 3: invalid_row: a list of web addresses has no comments"),
        ("www.example.org/x\n", "line 1: invalid_row: a web address begins with http:// or https://"),
        ("/relative\n", "line 1: invalid_row: a path is no whole address: write https:// and the host"),
    ] {
        let (code, log) = run(&job_of("in.txt", text), &server, "in.txt", &[]);
        assert!(code == 2 && log.contains(expected), "{expected}: {code} {log}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn what_makes_no_request_is_refused_by_row_and_name() {
    let server = Server::new(|_| Reply::ok());
    let template = |template: &'static str| [&CHAT[..], &["--prompt-template", template]].concat();
    let rows = "holds no requests; expected a header, and below it a row for each";
    let cases: [(&str, &str, Vec<&str>, &str); 19] = [
        (
            "in.csv",
            "id;prompt\n0;a\n",
            CHAT.to_vec(),
            "in.csv: its header is one column, \"id;prompt\", whose names seem to be separated by ';': expected commas",
        ),
        ("in.csv", "id,prompt\n", CHAT.to_vec(), rows),
        ("in.csv", "", CHAT.to_vec(), rows),
        ("in.txt", "\n", CHAT.to_vec(), "in.txt holds no requests; expected one prompt or web address a line"),
        (
            "in.csv",
            "id,prompt\n0,\"Rome\n1,Bern\n",
            CHAT.to_vec(),
            "in.csv: line 2: a quote opens a field there and is never closed",
        ),
        (
            "in.csv",
            "id,prompt\n\"0\",\"a\n\"1\",\"b\"\n",
            CHAT.to_vec(),
            "in.csv: line 3: text follows a closing quote (opened in line 2)",
        ),
        ("in.csv", "id,prompt\n0,\n", CHAT.to_vec(), "line 2: invalid_row: row 1: its prompt is empty"),
        (
            "in.csv",
            "a,b\n1,2\n1\n",
            CHAT.to_vec(),
            "line 2: invalid_row: row 1: there is no column `prompt`, and no --prompt-template; the columns are a, b",
        ),
        (
            "in.csv",
            "prompt,b\n1,2\n1\n",
            CHAT.to_vec(),
            "line 3: invalid_row: row 2: expected 2 columns, as the header has, and found 1",
        ),
        ("in.csv", "a,a\n1,2\n", CHAT.to_vec(), "in.csv: its header names the column \"a\" twice"),
        (
            "in.csv",
            "a,b\n\"1\n\",2\n3,4\n",
            template("{{ a }}\n{% if d is defined %}{{ d }}{% endif %}\n{{ c }}: {{ a }}"),
            "lines 2, 4: invalid_row: --prompt-template line 3: no value for {{ c }}; the row's columns are a, b",
        ),
        (
            "in.jsonl",
            "{\"a\": {\"b\": 1}}\n{\"a\": {\"c\": 1}}\n",
            template("{{ a.b }}"),
            "line 2: invalid_row: --prompt-template line 1: no value for {{ a.b }}; the row's only column is a",
        ),
        ("in.csv", "a,b\n1,2\n", template("{{ a | int + b }}"), "--prompt-template line 1: "),
        ("in.csv", "a,b\n1,2\n", template("{{ a"), "--prompt-template: syntax error"),
        ("in.jsonl", "{}\n", vec!["--max-output-tokens", "80"], "where lines are requests, put max_tokens"),
        ("in.txt", "hello\n", vec!["--endpoint", "/v1/chat/completions"], "prompts need a model: name it with --model"),
        ("in.csv", "a,b\n1,2\n", vec![], "its header, line 1, is \"a,b\": expected a column url"),
        ("in.txt", "hello\n", vec!["--endpoint", "/hook", "--model", "m"], "expected an --endpoint that ends in chat"),
        ("in.jsonl", "{}\n", CHAT.to_vec(), "--model makes requests from prompts: add --prompt-template"),
    ];
    for (name, text, flags, expected) in cases {
        let job = job_of(name, text);
        let (code, log) = run(&job, &server, name, &flags);
        assert!(code == 2 && log.contains(expected), "{expected}: {code} {log}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn a_column_of_the_row_that_is_not_there_and_a_second_bound_are_named() {
    let server = Server::new(|_| Reply::ok());
    let body = ["--body", "{\"max_tokens\": 5}", "--max-output-tokens", "9"];
    for (flags, expected) in [
        (
            &["--prompt-template", "{{ row.prompt }} {{ row[\"nocol\"] }}"][..],
            "no value for {{ row[\"nocol\"] }}; the row's columns are prompt, b",
        ),
        (&body, "--body has \"max_tokens\", which --max-output-tokens makes: leave it out of one of them"),
    ] {
        let job = job_of("in.csv", "prompt,b\n1,2\n");
        let (code, log) = run(&job, &server, "in.csv", &[&CHAT[..], flags].concat());
        assert!(code == 2 && log.contains(expected), "{expected}: {code} {log}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn a_list_of_addresses_and_a_table_with_a_column_in_capitals_are_requests() {
    let server = Server::new(|_| Reply::ok());
    let at = |path: &str| format!("{}{path}", server.url());
    for (name, text) in [
        ("in.txt", format!("  {}\n\n{}\n", at("/a?x=1"), at("/b"))),
        ("in.csv", format!("ID,URL\n1,{}\n2,{}\n", at("/a?x=1"), at("/b"))),
    ] {
        let before = server.count();
        let (code, log) = run(&job_of(name, &text), &server, name, &[]);
        assert_eq!(code, 0, "{log}");
        let mut sent: Vec<_> =
            server.arrivals()[before..].iter().map(|call| format!("{} {}", call.method, call.path)).collect();
        sent.sort();
        assert_eq!(sent, ["GET /a?x=1", "GET /b"]);
    }
}

#[test]
fn the_result_of_a_list_says_its_address_which_may_name_it() {
    let server = Server::new(|call| if call.path == "/b" { Reply::error(404, "gone") } else { Reply::ok() });
    let address = |path: &str| format!("{}{path}", server.url());
    let list = format!(" {}\n\n{}\n", address("/a?x=1"), address("/b"));
    for (flags, ids) in [
        (&[][..], ["line-1".to_owned(), "line-3".to_owned()]),
        (&["--id-column", "url"], [address("/a?x=1"), address("/b")]),
    ] {
        let job = job_of("in.txt", &list);
        let (code, log) = run(&job, &server, "in.txt", flags);
        assert_eq!(code, 1, "{log}");
        for (file, id, path) in [("out.jsonl", &ids[0], "/a?x=1"), ("out.errors.jsonl", &ids[1], "/b")] {
            let lines = job.lines(file);
            let told: Vec<_> = lines.iter().map(|line| (&line["custom_id"], &line["metadata"]["url"])).collect();
            assert_eq!(told, [(&json!(id), &json!(address(path)))], "{log}");
        }
    }
    for (header, column) in [("url", "url"), ("URL", "URL"), ("URL", "url"), ("Url", "Url")] {
        let job = job_of("in.csv", &format!("{header},n\n{},3\n", address("/a")));
        let (code, log) = run(&job, &server, "in.csv", &["--id-column", column]);
        assert_eq!(code, 0, "{header} as {column}: {log}");
        assert_eq!(job.lines("out.jsonl")[0]["custom_id"], address("/a"));
    }
    let twice = job_of("in.txt", &format!("{0}\n{0}\n", address("/a")));
    let (code, log) = run(&twice, &server, "in.txt", &["--id-column", "url"]);
    assert!(code == 2 && log.contains("the same as in line 1"), "{log}");
    let (code, log) = run(&job_of("in.txt", &list), &server, "in.txt", &["--id-column", "URL"]);
    assert!(code == 2 && log.contains("or is url for a list of web addresses"), "{log}");
}

#[test]
fn an_answer_is_bounded_by_the_key_that_its_api_has() {
    for (flags, key) in [
        (&["--endpoint", "/v1/chat/completions"][..], "max_tokens"),
        (&["--upstream", "openai"], "max_completion_tokens"),
        (&["--upstream", "openai", "--endpoint", "/v1/responses"], "max_output_tokens"),
        (&["--endpoint", "/v1/messages"], "max_tokens"),
    ] {
        let server = Server::new(|_| Reply::ok());
        let job = job_of("in.txt", "Why?\n");
        let flags = [flags, &["--model", "m", "--max-output-tokens", "70", "--stop-after-same", "0"]].concat();
        let (_, log) = run(&job, &server, "in.txt", &flags);
        assert_eq!(bodies(&server).first().map(|body| &body[key]), Some(&json!(70)), "{flags:?}: {log}");
    }
    let (server, job) = (Server::new(|_| Reply::ok()), job_of("in.txt", "Why?\n"));
    for flags in [&["--max-output-tokens", "70"][..], &["--model", "m", "--max-output-tokens", "0"]] {
        let (code, log) = run(&job, &server, "in.txt", &[&["--endpoint", "/v1/messages"], flags].concat());
        assert_eq!((code, server.count()), (2, 0), "{log}");
    }
}

/// Prompts that cannot be meant cost as much as others.
#[test]
fn a_template_without_a_name_is_refused_and_a_gap_is_told() {
    let server = Server::new(|_| Reply::ok());
    let job = job_of("in.jsonl", "{\"text\":\"a\"}\n{\"text\":null}\n{\"text\":\"\",\"note\":null}\n");
    std::fs::write(job.path("prompt.txt"), "Classify {text} as pos or neg").expect("writable");
    let with = |template: &str| run(&job, &server, "in.jsonl", &[&CHAT[..], &["--prompt-template", template]].concat());
    let (code, log) = with("prompt.txt");
    let told = "--prompt-template prompt.txt: it has no {{ name }}, so that all prompts would be the same";
    assert!(code == 2 && server.count() == 0 && log.contains(told), "{log}");
    let (code, log) = with("Q {text}");
    let told = "--prompt-template Q {text}: it is no file, and a text names a column in two braces, as in 'Translate: {{ text }}'";
    assert!(code == 2 && log.contains(told), "{log}");
    let mut dry = job.paceline();
    dry.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--dry-run"]).args(CHAT);
    let (code, log) = finish(dry.args(["--prompt-template", "{% if text %}{{ text }}{% endif %}?"]));
    assert!(code == 0 && !log.contains("prompts need"), "the template decides: {log}");
    for template in ["{{ row[\"text\"] }}?", "{{ row['text'] | trim }}?", "{{ row.text }}?"] {
        let mut dry = job.paceline();
        dry.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--dry-run"]).args(CHAT);
        let (code, log) = finish(dry.args(["--prompt-template", template]));
        assert!(
            code == 0 && log.contains("2 rows have nothing in a column that their prompts need"),
            "{template}: {log}"
        );
    }
    let (code, log) = with("Classify: {{ text | truncate(20) }}");
    let told = "2 rows have nothing in a column that their prompts need (the first, line 2, in text); they are asked all the same";
    assert!(code == 0 && server.count() == 3 && log.contains(told), "{log}");
}

#[test]
fn words_about_other_inputs_say_what_to_do() {
    let server = Server::new(|_| Reply::ok());
    let job = job_of("in.tsv", "a\tb\n1\t2\n");
    std::fs::write(job.path("in.jsonl"), "nonsense\n").expect("writable");
    let template = [&CHAT[..], &["--prompt-template", "{{ a }}"]].concat();
    let (code, log) = run(&job, &server, "in.tsv", &template);
    assert!(code == 2 && log.contains("commas") && !log.contains("JSON object"), "{log}");
    let (code, log) = run(&job, &server, "in.jsonl", &template);
    assert!(code == 2 && log.contains("expected a JSON object: expected ident at column 2"), "{log}");
    let (code, log) = run(&job, &server, "in.tsv", &template[2..]);
    assert!(
        code == 2 && log.contains("is unknown: name the API with --upstream (such as openai or anthropic)"),
        "{log}"
    );
}
