//! The methods of the server, as far as they were described.
//!
//! A server whose types have changed since then refuses the call before a handler runs. The method
//! is then looked up again, so nobody reads a value by the wrong types.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rpc_core::reflect::MethodInfo;
use rpc_core::service::MethodDescriptor;
use tokio::sync::Mutex;

use crate::dynamic::{Parts, descriptor};
use crate::target::Target;

/// Most descriptions that are kept in the life of the process, old ones included.
const MAX_LEARNED: usize = 10_000;
/// Shortest time between two searches for methods that are not known.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// A method that can be called.
pub(crate) struct Method {
    pub(crate) info: MethodInfo,
    pub(crate) descriptor: &'static MethodDescriptor,
    pub(crate) parts: &'static Parts,
    lines: Vec<String>,
}

/// What is known of a method.
pub(crate) enum Entry {
    Callable(Arc<Method>),
    /// Why it cannot be called.
    Unusable(String),
}

/// All methods, by their name `Service.method`.
#[derive(Default)]
pub(crate) struct Catalog {
    entries: RwLock<BTreeMap<String, Arc<Entry>>>,
    searches: Mutex<Searches>,
}

#[derive(Default)]
struct Searches {
    learned: usize,
    last: Option<Instant>,
}

impl Catalog {
    /// Learns all methods of the server.
    pub(crate) async fn load(&self, target: &Target) -> Result<()> {
        let mut searches = self.searches.lock().await;
        for service in target.services().await? {
            for info in target.methods(&service.name).await? {
                self.learn(target, info, &mut searches).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<(String, Arc<Entry>)> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|(name, entry)| (name.clone(), Arc::clone(entry))).collect()
    }

    /// Looks for a method that was not there before.
    pub(crate) async fn search(&self, target: &Target, name: &str) -> Result<Arc<Entry>> {
        let mut searches = self.searches.lock().await;
        if searches.last.is_some_and(|last| last.elapsed() < SEARCH_EVERY) {
            bail!("there is no method {name}");
        }
        searches.last = Some(Instant::now());
        let info = target.method(name).await?;
        self.learn(target, info, &mut searches).await
    }

    /// Looks a method up again that a call was refused of.
    pub(crate) async fn again(&self, target: &Target, old: &Method) {
        let mut searches = self.searches.lock().await;
        // What is not found stays as it was known.
        if let Ok(info) = target.method(&old.info.name).await {
            let _ = self.learn(target, info, &mut searches).await;
        }
    }

    async fn learn(
        &self,
        target: &Target,
        info: MethodInfo,
        searches: &mut Searches,
    ) -> Result<Arc<Entry>> {
        let lines = target.schema(&info.name).await?;
        let name = info.name.clone();
        if let Some(known) = self.get(&name)
            && matches!(&*known, Entry::Callable(known) if known.lines == lines && known.info == info)
        {
            return Ok(known);
        }
        if searches.learned >= MAX_LEARNED {
            bail!("the types of the server have changed {MAX_LEARNED} times: restart the gateway");
        }
        searches.learned += 1;
        let types = target.types(&info).await?;
        let parts = Parts::new(&info, types).and_then(|parts| {
            parts.check(&info)?;
            if info.streams_arguments && parts.sent_item.is_none() {
                bail!("the server does not describe the items of {}", info.name);
            }
            Ok(parts)
        });
        let entry = match parts {
            Ok(parts) => {
                let descriptor = descriptor(&info, lines.clone())?;
                let parts = Box::leak(Box::new(parts));
                Entry::Callable(Arc::new(Method { info, descriptor, parts, lines }))
            }
            Err(error) => Entry::Unusable(error.to_string()),
        };
        let entry = Arc::new(entry);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(name, Arc::clone(&entry));
        Ok(entry)
    }
}
