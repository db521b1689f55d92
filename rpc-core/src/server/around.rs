//! What stands around the services of a server: interceptors and layers.
//!
//! Owns their order: the first that was added is the outermost.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use crate::interceptor::ServerInterceptor;
use crate::interceptor::server::{Chain, Intercepted};
use crate::service::Dispatch;

/// Makes the service that stands around another one.
type Wrap = Arc<dyn Fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch> + Send + Sync>;

#[derive(Clone)]
enum Around {
    /// Several that follow each other are run as one.
    Interceptors(Vec<Arc<dyn ServerInterceptor>>),
    Layer(&'static str, Wrap),
}

/// All of a server, outermost first.
#[derive(Clone, Default)]
pub(super) struct Arounds(Vec<Around>);

impl Arounds {
    pub(super) fn intercept(&mut self, interceptor: Arc<dyn ServerInterceptor>) {
        match self.0.last_mut() {
            Some(Around::Interceptors(chain)) => chain.push(interceptor),
            _ => self.0.push(Around::Interceptors(vec![interceptor])),
        }
    }

    pub(super) fn layer<L>(&mut self, layer: L)
    where
        L: Fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch> + Send + Sync + 'static,
    {
        self.0.push(Around::Layer(type_name::<L>(), Arc::new(layer)));
    }

    /// The interceptors outside of all layers: who runs a call runs them.
    pub(super) fn outermost(&self) -> Option<Chain> {
        self.0.first().and_then(Around::chain)
    }

    /// Puts the others around each service.
    ///
    /// # Errors
    /// A layer has made another service of one.
    pub(super) fn around(
        &self,
        services: Vec<Arc<dyn Dispatch>>,
    ) -> Result<Vec<Arc<dyn Dispatch>>, String> {
        let others = match &self.0[..] {
            [Around::Interceptors(_), others @ ..] => others,
            all => all,
        };
        let chains: Vec<Option<Chain>> = others.iter().map(Around::chain).collect();
        let wrap = |service: Arc<dyn Dispatch>| {
            let mut around = service;
            for (wrap, chain) in others.iter().zip(&chains).rev() {
                around = wrap.around(around, chain.as_ref())?;
            }
            Ok(around)
        };
        services.into_iter().map(wrap).collect()
    }
}

impl Around {
    fn chain(&self) -> Option<Chain> {
        match self {
            Self::Interceptors(chain) => Some(chain.iter().map(Arc::clone).collect()),
            Self::Layer(..) => None,
        }
    }

    fn around(
        &self,
        service: Arc<dyn Dispatch>,
        chain: Option<&Chain>,
    ) -> Result<Arc<dyn Dispatch>, String> {
        let (name, wrap) = match (self, chain) {
            (Self::Layer(name, wrap), _) => (name, wrap),
            (Self::Interceptors(_), Some(chain)) => {
                return Ok(Arc::new(Intercepted::new(service, Arc::clone(chain))));
            }
            (Self::Interceptors(_), None) => return Ok(service),
        };
        let inner = service.descriptor();
        let around = wrap(service);
        if !std::ptr::eq(around.descriptor(), inner) {
            return Err(format!(
                "the layer {name} gives {} where it was given {}: its `descriptor` has to be that \
                 of the service that it stands around",
                around.descriptor().name,
                inner.name
            ));
        }
        Ok(around)
    }
}

impl fmt::Debug for Arounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for around in &self.0 {
            match around {
                Around::Interceptors(chain) => {
                    list.entries(chain.iter().map(|interceptor| interceptor.name()));
                }
                Around::Layer(name, _) => {
                    list.entry(name);
                }
            }
        }
        list.finish()
    }
}
