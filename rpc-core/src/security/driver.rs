//! The handshake of one connection, by the part of rustls that is made for QUIC.
//!
//! Owns the TLS state and the keys of a handshake. Nothing else of QUIC is used: frames, their
//! numbers and their order belong to the locked link of `rpc-transport`.
//!
//! Invariants:
//! 1. `write_hs` is called after each `read_hs`, also when nothing is to be written: it hands out
//!    the keys, without which the next message would leave in clear.
//! 2. Nothing that the peer says is believed before `is_handshaking` is false.
//! 3. A client's read level never passes that of the handshake: messages after it are refused.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use rpc_transport::device::PeerIdentity;
use rpc_transport::protocol::frame::HEADER_BYTES;
use rpc_transport::protocol::lock::{
    FailureReason, FrameKeys, Handshake, HandshakeFactory, HandshakeFailure, Level, Protection,
    Role, Secured, Start,
};
use rustls::ServerConfig;
use rustls::quic::{
    ClientConnection, Connection, DirectionalKeys, KeyChange, Keys, Secrets, ServerConnection,
    Version,
};

use super::provider::DirectionKey;
use super::proving::{Kept, internal, prove};
use super::refusal::failure;
use super::tls::{ClientSetup, Local, PROTOCOL, Tls};

/// Makes the handshakes of one server, or of one channel.
#[derive(Clone)]
pub(crate) struct Factory {
    tls: Arc<Tls>,
    protection: Protection,
    side: Side,
    kept: Arc<Kept>,
    /// The client, about which the user is asked before it is let in.
    peer: Option<PeerIdentity>,
}

#[derive(Clone)]
enum Side {
    Server(Arc<ServerConfig>),
    /// The name that the server must prove is that of the channel, or else of the address.
    Client(Option<ClientSetup>),
}

impl Factory {
    /// For a server.
    ///
    /// # Errors
    /// [`TlsError`](super::TlsError): an option is wrong.
    pub(crate) fn server(tls: &Tls) -> Result<Self, super::TlsError> {
        Ok(Self::new(tls, Side::Server(tls.server(PROTOCOL)?)))
    }

    /// For a channel.
    ///
    /// # Errors
    /// [`TlsError`](super::TlsError): an option is wrong.
    pub(crate) fn client(tls: &Tls) -> Result<Self, super::TlsError> {
        tls.check()?;
        if tls.is_optional {
            let text = "`Tls::optional` is for servers: a channel would be led to a plain one";
            return Err(super::TlsError(text.to_owned()));
        }
        let named = tls.names_its_peer().then(|| tls.client(None)).transpose()?;
        Ok(Self::new(tls, Side::Client(named)))
    }

    fn new(tls: &Tls, side: Side) -> Self {
        let protection = tls.said_protection().unwrap_or(Protection::Encrypt);
        Self { tls: Arc::new(tls.clone()), protection, side, kept: Arc::default(), peer: None }
    }

    /// For the handshake with this peer.
    pub(super) fn with(&self, peer: &PeerIdentity) -> Self {
        Self { peer: Some(peer.clone()), ..self.clone() }
    }
}

impl HandshakeFactory for Factory {
    fn protection(&self, scheme: &str) -> Protection {
        match (scheme, self.tls.local) {
            ("mem" | "shm", Local::Encrypt) => Protection::Encrypt,
            ("mem" | "shm", _) => Protection::Authenticate,
            _ => self.protection,
        }
    }

    fn start(&self, start: Start<'_>) -> Result<Box<dyn Handshake>, HandshakeFailure> {
        let parameters = start.parameters.to_vec();
        let unusable = |error: rustls::Error| failure(&error, None);
        // Before anything is verified.
        let generation = self.tls.live().generation();
        let connection = match (&self.side, start.role) {
            (Side::Server(config), Role::Server) => {
                ServerConnection::new(Arc::clone(config), Version::V1, parameters)
                    .map(Connection::Server)
                    .map_err(unusable)?
            }
            (Side::Client(named), Role::Client) => {
                let of_host = || {
                    self.tls.client(start.expected_name).map_err(|error| {
                        let text = error.to_string();
                        HandshakeFailure::new(FailureReason::Configuration, text, "")
                    })
                };
                let ClientSetup { config, name } = named.clone().map_or_else(of_host, Ok)?;
                ClientConnection::new(config, Version::V1, name, parameters)
                    .map(Connection::Client)
                    .map_err(unusable)?
            }
            _ => return Err(internal("these certificates are set up for the other role")),
        };
        Ok(Box::new(Driver {
            connection,
            handshake: None,
            application: None,
            write_level: Level::Initial,
            next: None,
            protection: start.protection,
            generation,
            factory: self.clone(),
        }))
    }
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Factory").field("protection", &self.protection).finish_non_exhaustive()
    }
}

/// One handshake.
struct Driver {
    connection: Connection,
    handshake: Option<Keys>,
    application: Option<Keys>,
    /// The secrets of the keys after those.
    next: Option<Secrets>,
    write_level: Level,
    /// Of this connection.
    protection: Protection,
    /// Of the files, when it began.
    generation: u64,
    factory: Factory,
}

impl Driver {
    fn keys(&self, level: Level) -> Result<&Keys, HandshakeFailure> {
        let keys = match level {
            Level::Initial => None,
            Level::Handshake => self.handshake.as_ref(),
            Level::Application => self.application.as_ref(),
        };
        keys.ok_or_else(|| internal("there are no keys of that level yet"))
    }
}

impl Handshake for Driver {
    fn read(&mut self, message: &[u8]) -> Result<(), HandshakeFailure> {
        let read = self.connection.read_hs(message);
        read.map_err(|error| failure(&error, self.connection.alert()))
    }

    fn write(&mut self, into: &mut Vec<u8>) -> Result<Option<Level>, HandshakeFailure> {
        let before = into.len();
        loop {
            let level = self.write_level;
            let has_changed = match self.connection.write_hs(into) {
                None => false,
                Some(KeyChange::Handshake { keys }) => {
                    (self.handshake, self.write_level) = (Some(keys), Level::Handshake);
                    true
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.next = Some(next);
                    (self.application, self.write_level) = (Some(keys), Level::Application);
                    true
                }
            };
            if into.len() > before {
                // No tickets, and no other messages behind the handshake.
                let is_over = level == Level::Application;
                return if is_over {
                    Err(internal("a message after the end"))
                } else {
                    Ok(Some(level))
                };
            }
            if !has_changed {
                return Ok(None);
            }
        }
    }

    fn read_level(&self) -> Level {
        match self.handshake {
            None => Level::Initial,
            Some(_) => Level::Handshake,
        }
    }

    fn is_complete(&self) -> bool {
        !self.connection.is_handshaking() && self.application.is_some()
    }

    fn seal(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure> {
        let DirectionalKeys { packet, .. } = &self.keys(level)?.local;
        let tag = packet.encrypt_in_place(number, header, payload);
        let tag = tag.map_err(|error| failure(&error, None))?;
        payload.extend_from_slice(tag.as_ref());
        Ok(())
    }

    fn open(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure> {
        let DirectionalKeys { packet, .. } = &self.keys(level)?.remote;
        let opened = packet.decrypt_in_place(number, header, payload).map(<[u8]>::len);
        let len = opened.map_err(|_| {
            let text = "a frame failed its check: somebody changed it, or it was lost";
            HandshakeFailure::new(FailureReason::BrokenRule, text, "a frame failed its check")
        })?;
        payload.truncate(len);
        Ok(())
    }

    fn peer_parameters(&self) -> Option<&[u8]> {
        self.connection.quic_transport_parameters()
    }

    fn finish(&mut self) -> Result<Secured, HandshakeFailure> {
        if !self.is_complete() {
            return Err(internal("it is not complete"));
        }
        let Factory { tls, kept, peer, .. } = &self.factory;
        let of = (self.protection, self.generation);
        let proof = prove(tls, kept, of, peer.as_ref(), &self.connection)?;
        Ok(Secured::new(proof))
    }

    fn frame_keys(&mut self) -> Result<FrameKeys, HandshakeFailure> {
        let (Some(Keys { local, remote }), Some(mut peers)) =
            (self.application.take(), self.next.take())
        else {
            return Err(internal("there are no keys for frames"));
        };
        // Each direction goes its own way with the secrets of both.
        let mut own = peers.clone();
        let next_own = move || own.next_packet_keys().local;
        let next_of_peer = move || peers.next_packet_keys().remote;
        Ok(FrameKeys {
            own: Box::new(DirectionKey::new(local.packet, next_own)),
            peer: Box::new(DirectionKey::new(remote.packet, next_of_peer)),
        })
    }
}
