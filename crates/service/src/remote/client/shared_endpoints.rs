//! Endpoints for datagrams that other processes own too, by tokens.
//!
//! Read first: `shard/share_endpoints.rs`; `lanes/share.rs`.
//!
//! Datagrams of such an endpoint wait at the server, and each is taken by a call.

use megapipe_shm::record::{ServerAnswer, SessionCall};
use megapipe_stack::{DatagramId, OperationError};

use super::{ProtocolFault, RemoteClient};
use crate::error::MoveRefusal;
use crate::remote::encoding::{
    SharedDatagram, TakenDatagram, decode_datagram, encode_datagram, endpoint_id, id_of_endpoint,
};

impl RemoteClient {
    /// A token owns an endpoint too; without one, all that the session and its own token have.
    /// Datagrams that were on their way still come.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(in crate::remote) fn hold_endpoint(
        &mut self,
        token: u64,
        endpoint: Option<DatagramId>,
    ) -> Result<(), MoveRefusal> {
        let endpoint = endpoint.map(id_of_endpoint);
        self.call_shared(SessionCall::HoldEndpoint { token, endpoint })
    }

    /// Adopts an endpoint that a token owns; 0: the token by which the session was opened.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(in crate::remote) fn adopt_endpoint(
        &mut self,
        token: u64,
        endpoint: Option<DatagramId>,
    ) -> Result<DatagramId, MoveRefusal> {
        let endpoint = endpoint.map(id_of_endpoint);
        let call = SessionCall::AdoptEndpoint { token, endpoint };
        self.call_explained(call, |_, answer| match answer {
            ServerAnswer::Bound { endpoint } => Ok(endpoint_id(endpoint)),
            _ => Err(ProtocolFault),
        })
    }

    /// Takes the first datagram that waits for the owners of an endpoint, or a copy of it. The
    /// inner `None`: none waits, and [`RemoteEvent::DatagramWaits`] reports the next one that
    /// arrives. The outer: the endpoint has no other owners, and its datagrams come by themselves.
    ///
    /// [`RemoteEvent::DatagramWaits`]: super::RemoteEvent::DatagramWaits
    pub(in crate::remote) fn take_datagram(
        &mut self,
        endpoint: DatagramId,
        keeps: bool,
    ) -> Option<Option<TakenDatagram>> {
        let call = SessionCall::TakeDatagram { endpoint: id_of_endpoint(endpoint), keeps };
        let decode = |bytes: &[u8]| match bytes {
            [] => Some(None),
            bytes => decode_datagram(bytes).map(Some),
        };
        // Of a server that is gone none waits.
        self.call_written(call, decode).unwrap_or(Some(None))
    }

    /// Returns 1 more than the bytes of the first datagram that waits for the owners of an
    /// endpoint, or 0. As `take_datagram`, otherwise.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: the endpoint has no other owners, or the server is gone.
    pub(in crate::remote) fn await_datagram(
        &mut self,
        endpoint: DatagramId,
    ) -> Result<u32, OperationError> {
        let call = SessionCall::AwaitDatagram { endpoint: id_of_endpoint(endpoint) };
        let value = self.call_value(call)?;
        Ok(value.try_into().unwrap_or(u32::MAX))
    }

    /// Gives a received datagram back: it is the first that waits.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(in crate::remote) fn give_datagram_back(
        &mut self,
        endpoint: DatagramId,
        datagram: &SharedDatagram,
    ) -> Result<(), MoveRefusal> {
        let SharedDatagram { from, arrival, bytes } = datagram;
        let chunk = self.lend(&encode_datagram((*from, *arrival), 0, bytes));
        let endpoint = id_of_endpoint(endpoint);
        self.call_shared(SessionCall::GiveDatagramBack { endpoint, chunk })
    }
}
