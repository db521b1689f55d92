//! Rules in a file.
//!
//! Invariant: a file that cannot be read or understood leaves the rules as they are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rpc_transport::lock::Mutex;
use serde::Deserialize;
use tokio::task::AbortHandle;

use super::allow::{Allow, AllowError, Rules, RulesFile};

/// The file is not read without end.
const SHORTEST_RELOAD: Duration = Duration::from_millis(1);

/// The text of a file of rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    allow: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    who: Vec<String>,
    call: Vec<String>,
}

/// Reloads the rules until it is dropped.
pub(super) struct FileWatch(AbortHandle);

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn parse(text: &str) -> Result<Rules, AllowError> {
    let text: Text = toml::from_str(text).map_err(|error| AllowError(error.to_string()))?;
    let mut rules = Rules::default();
    for (at, Rule { who, call }) in text.allow.iter().enumerate() {
        let in_rule = |error| AllowError(format!("rule {}: {error}", at + 1));
        rules.add(who, call).map_err(in_rule)?;
    }
    Ok(rules)
}

fn read(path: &Path) -> Result<(String, Rules), AllowError> {
    let of_file = |what: String| AllowError(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| of_file(error.to_string()))?;
    let rules = parse(&text).map_err(|error| of_file(error.to_string()))?;
    Ok((text, rules))
}

impl Allow {
    /// The rules of a TOML text.
    ///
    /// # Errors
    /// [`AllowError`]: the text is no TOML, or a rule is not written as [above](Allow).
    pub fn parse(text: &str) -> Result<Self, AllowError> {
        parse(text).map(Self::of)
    }

    /// The rules of a TOML file. One without rules allows nothing. It is read again by
    /// [`reload`](Self::reload), or [now and then](Self::reload_every).
    ///
    /// # Errors
    /// As [`parse`](Self::parse); also if the file cannot be read.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self, AllowError> {
        let path = path.into();
        let (text, rules) = read(&path)?;
        let mut allow = Self::of(rules);
        if let Some(shared) = Arc::get_mut(&mut allow.0) {
            shared.file = Some(RulesFile { path, text: Mutex::new(text), every: None });
        }
        Ok(allow)
    }

    /// Reads the file again after each such time, while a server with these rules is there.
    /// Default: never. At least 1 ms. To be called before the rules are cloned or given to a
    /// server.
    #[must_use]
    pub fn reload_every(mut self, period: Duration) -> Self {
        if let Some(file) = Arc::get_mut(&mut self.0).and_then(|shared| shared.file.as_mut()) {
            file.every = Some(period.max(SHORTEST_RELOAD));
        }
        self
    }

    /// Reads the file again. If it has changed, its rules hold from now on: connections that have
    /// called what they may no longer call are closed, with their calls and streams. Returns
    /// whether it has changed.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file). The rules that were there go on.
    pub fn reload(&self) -> Result<bool, AllowError> {
        let Some(file) = &self.0.file else { return Ok(false) };
        let (text, rules) = read(&file.path)?;
        {
            let mut last = file.text.lock();
            if *last == text {
                return Ok(false);
            }
            *last = text;
        }
        self.replace(&Self::of(rules));
        Ok(true)
    }

    /// Reloads now and then, until the result is dropped.
    pub(super) fn watch_file(&self) -> Option<FileWatch> {
        let every = self.0.file.as_ref()?.every?;
        let rules = self.clone();
        let watch = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let rules = rules.clone();
                match crate::runtime::blocking(move || rules.reload()).await {
                    Ok(Ok(false)) | Err(_) => {}
                    Ok(Ok(true)) => tracing::info!("the rules of callers have been replaced"),
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "the rules of callers stay as they are");
                    }
                }
            }
        });
        Some(FileWatch(watch.abort_handle()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_not_read_without_end() {
        let path = std::env::temp_dir().join(format!("rpc-allow-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let allow = Allow::from_file(&path).unwrap().reload_every(Duration::ZERO);
        std::fs::remove_file(&path).unwrap();
        let file = allow.0.file.as_ref().unwrap();
        assert_eq!(file.every, Some(SHORTEST_RELOAD));
    }
}
