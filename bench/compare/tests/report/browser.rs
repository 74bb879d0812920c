//! A real browser without a window, told what to do over its DevTools protocol.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A browser with one page. It ends when its pipe does: when this is dropped, and however this
/// process ends.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    last: u32,
    /// What it told without being asked.
    events: Vec<Value>,
}

/// In which light a page is looked at.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) width: u32,
    pub(crate) scheme: &'static str,
}

/// Runs it in a folder, which is removed when it has ended. It reads its file 3 and writes to 4.
const RUN: &str = r#"
TMPDIR=$0 "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1
rm -rf -- "$0" || { sleep 1 && rm -rf -- "$0"; }
"#;

/// Nothing but the page is loaded, from nowhere.
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
    "about:blank",
];

impl Browser {
    pub(crate) async fn start(program: &Path) -> Self {
        let folder = TempDir::with_prefix("lockkit-browser-").unwrap().keep();
        let mut command = Command::new("sh");
        command.args(["-c", RUN]).arg(&folder).arg(program);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display())).args(FLAGS);
        // What a terminal sends to the tests does not end the shell before it has cleaned up.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let (session, events) = (None, Vec::new());
        let mut browser = Self { child, requests, answers, session, last: 0, events };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" })).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = Some(attached["sessionId"].as_str().unwrap().into());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser
    }

    /// Opens a file in that view, and waits until it is there.
    pub(crate) async fn open(&mut self, file: &Path, view: View) {
        let View { width, scheme } = view;
        let metrics = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).await;
        self.events.clear();
        let url = format!("file://{}", file.display());
        let answer = self.call("Page.navigate", json!({ "url": url })).await;
        assert_eq!(answer["errorText"], Value::Null, "{answer}");
        while self.told("Page.loadEventFired").next().is_none() {
            let event = self.read().await;
            self.events.push(event);
        }
    }

    /// What an expression has for its value there.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Value {
        let how = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", how).await;
        assert_eq!(answer["exceptionDetails"], Value::Null);
        answer["result"]["value"].take()
    }

    /// What it told of that kind since the file was opened.
    pub(crate) fn told(&self, method: &str) -> impl Iterator<Item = &Value> {
        self.events.iter().filter(move |event| event["method"] == method)
    }

    pub(crate) async fn close(mut self) {
        self.session = None;
        self.call("Browser.close", json!({})).await;
        self.child.wait().await.unwrap();
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let text = message.to_string() + "\0";
        self.requests.write_all(text.as_bytes()).await.unwrap();
        loop {
            let mut answer = self.read().await;
            if answer["id"] == self.last {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    async fn read(&mut self) -> Value {
        let mut text = Vec::new();
        self.answers.read_until(0, &mut text).await.unwrap();
        assert_eq!(text.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&text).unwrap()
    }
}
