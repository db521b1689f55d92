//! The interceptors and layers around the services of a server.
//!
//! Owns their order: the first that was added is the outermost.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use crate::interceptor::ServerInterceptor;
use crate::interceptor::server::{Chain, Intercepted};
use crate::service::Dispatch;

/// Wraps a service in another one.
type Wrap = Arc<dyn Fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch> + Send + Sync>;

#[derive(Clone)]
enum Wrapper {
    /// Several that follow each other are run as one.
    Interceptors(Vec<Arc<dyn ServerInterceptor>>),
    Layer(&'static str, Wrap),
}

/// All interceptors and layers of a server, outermost first.
#[derive(Clone, Default)]
pub(super) struct InterceptorStack(Vec<Wrapper>);

impl InterceptorStack {
    pub(super) fn intercept(&mut self, interceptor: Arc<dyn ServerInterceptor>) {
        match self.0.last_mut() {
            Some(Wrapper::Interceptors(chain)) => chain.push(interceptor),
            _ => self.0.push(Wrapper::Interceptors(vec![interceptor])),
        }
    }

    /// Adds an interceptor that is the outermost of all.
    pub(super) fn put_first(&mut self, interceptor: Arc<dyn ServerInterceptor>) {
        match self.0.first_mut() {
            Some(Wrapper::Interceptors(chain)) => chain.insert(0, interceptor),
            _ => self.0.insert(0, Wrapper::Interceptors(vec![interceptor])),
        }
    }

    pub(super) fn layer<L>(&mut self, layer: L)
    where
        L: Fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch> + Send + Sync + 'static,
    {
        self.0.push(Wrapper::Layer(type_name::<L>(), Arc::new(layer)));
    }

    /// The interceptors outside of all layers. The executor runs them.
    pub(super) fn outermost(&self) -> Option<Chain> {
        self.0.first().and_then(Wrapper::chain)
    }

    /// Wraps each service in the others.
    ///
    /// # Errors
    /// A layer has made another service of one.
    pub(super) fn wrap(
        &self,
        services: Vec<Arc<dyn Dispatch>>,
    ) -> Result<Vec<Arc<dyn Dispatch>>, String> {
        let others = match &self.0[..] {
            [Wrapper::Interceptors(_), others @ ..] => others,
            all => all,
        };
        let chains: Vec<Option<Chain>> = others.iter().map(Wrapper::chain).collect();
        let wrap = |service: Arc<dyn Dispatch>| {
            let mut wrapped = service;
            for (wrapper, chain) in others.iter().zip(&chains).rev() {
                wrapped = wrapper.wrap(wrapped, chain.as_ref())?;
            }
            Ok(wrapped)
        };
        services.into_iter().map(wrap).collect()
    }
}

impl Wrapper {
    fn chain(&self) -> Option<Chain> {
        match self {
            Self::Interceptors(chain) => Some(chain.iter().map(Arc::clone).collect()),
            Self::Layer(..) => None,
        }
    }

    fn wrap(
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
        let wrapped = wrap(service);
        if !std::ptr::eq(wrapped.descriptor(), inner) {
            return Err(format!(
                "the layer {name} wraps {1} but has the descriptor of {0}: return the descriptor \
                 of the wrapped service",
                wrapped.descriptor().name,
                inner.name
            ));
        }
        Ok(wrapped)
    }
}

impl fmt::Debug for InterceptorStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for wrapper in &self.0 {
            match wrapper {
                Wrapper::Interceptors(chain) => {
                    list.entries(chain.iter().map(|interceptor| interceptor.name()));
                }
                Wrapper::Layer(name, _) => {
                    list.entry(name);
                }
            }
        }
        list.finish()
    }
}
