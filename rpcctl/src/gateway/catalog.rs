//! The methods of the server, as far as they were described.
//!
//! Each description is one answer of one server, and a server of other types refuses the call
//! before a handler runs, so nobody reads a value by the wrong types. The method is then looked up
//! again.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rpc_core::reflect::{Description, MethodDescription, MethodInfo};
use rpc_core::service::MethodDescriptor;
use tokio::sync::Mutex;

use crate::dynamic::{Parts, descriptor};
use crate::target::Target;
use crate::text::{cut, width};

/// Most descriptions that are kept in the life of the process, old ones included.
const MAX_LEARNED: usize = 10_000;
/// Shortest time between two searches for methods that are not known.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// A method that can be called.
pub(crate) struct Method {
    description: MethodDescription,
    pub(crate) descriptor: &'static MethodDescriptor,
    pub(crate) parts: &'static Parts,
}

impl Method {
    /// The method without its types.
    pub(crate) fn info(&self) -> &MethodInfo {
        &self.description.info
    }
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
    /// Learns all methods of a server. What cannot be learnt is left out: it can still be searched
    /// for when it is called.
    ///
    /// # Errors
    /// Nothing is described.
    pub(crate) async fn load(&self, target: &Target) -> Result<()> {
        let mut searches = self.searches.lock().await;
        let each = |part| {
            if let Description::Method(method) = part {
                let name = cut(&method.info.name, width());
                if let Err(error) = self.learn(method, &mut searches) {
                    eprintln!("warning: {name} is left out: {error:#}");
                }
            }
            Ok(())
        };
        match target.describe("", each).await {
            Err(error) if !self.all().is_empty() => {
                eprintln!("warning: not all methods are known yet: {error:#}");
                Ok(())
            }
            described => described,
        }
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
        let method = target.method(name).await?;
        self.learn(method, &mut searches)
    }

    /// Looks a method up again that a call was refused of.
    pub(crate) async fn again(&self, target: &Target, old: &Method) {
        let mut searches = self.searches.lock().await;
        // What is not found stays as it was known.
        if let Ok(method) = target.method(&old.info().name).await {
            let _ = self.learn(method, &mut searches);
        }
    }

    fn learn(&self, description: MethodDescription, searches: &mut Searches) -> Result<Arc<Entry>> {
        let name = description.info.name.clone();
        if let Some(known) = self.get(&name)
            && matches!(&*known, Entry::Callable(known) if known.description == description)
        {
            return Ok(known);
        }
        if searches.learned >= MAX_LEARNED {
            bail!("the types of the server have changed {MAX_LEARNED} times: restart the gateway");
        }
        searches.learned += 1;
        let parts = Parts::new(&description).and_then(|parts| {
            parts.check(&description.info)?;
            if description.info.streams_arguments && parts.sent_item.is_none() {
                bail!("the server does not describe the items of {name}");
            }
            Ok(parts)
        });
        let entry = match parts {
            Ok(parts) => {
                let descriptor = descriptor(&description)?;
                let parts = Box::leak(Box::new(parts));
                Entry::Callable(Arc::new(Method { description, descriptor, parts }))
            }
            Err(error) => Entry::Unusable(error.to_string()),
        };
        let entry = Arc::new(entry);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(name, Arc::clone(&entry));
        Ok(entry)
    }
}
