//! What happens to tokens outside of the shards: copies, releases, and their ends.
//!
//! Read first: `share.rs`; `attach/control_server/tokens.rs` for where it comes from.

use std::sync::Arc;

use megapipe_stack::Instant;

use super::SessionShard;
use crate::descriptors::ShareToken;
use crate::remote::TokenChange;

impl SessionShard {
    /// Listeners that tokens own or have owned.
    #[cfg(test)]
    pub(in crate::remote) fn held_listeners(&self) -> usize {
        self.shared.listeners.len()
    }

    /// Something has happened to a token outside of the shards.
    pub(in crate::remote) fn change_token(&mut self, now: Instant, change: TokenChange) {
        match change {
            TokenChange::Copy(request, to) => self.copy_token(now, request.token.number(), &to),
            TokenChange::Release(request, conns) => {
                let number = request.token.number();
                for conn in conns {
                    if self.shared.owners.has_token(number, conn) {
                        let left = self.shared.owners.release_by_token(number, conn);
                        self.share_work(now).after_release(conn, left);
                    }
                }
            }
            TokenChange::ReleaseEndpoints(request, endpoints) => {
                let number = request.token.number();
                for endpoint in endpoints {
                    let owners = &mut self.shared.endpoints.owners;
                    if owners.has_token(number, endpoint) {
                        let left = owners.release_by_token(number, endpoint);
                        self.share_work(now).after_endpoint_release(endpoint, left);
                    }
                }
            }
            TokenChange::End(number) => self.share_work(now).end_token(number),
        }
    }

    /// Without room for what the token owns, the other one owns nothing.
    fn copy_token(&mut self, now: Instant, from: u64, to: &Arc<ShareToken>) {
        let len = self.shared.token_len(from);
        if !self.shared.may_hold(to, len) || self.share_work(now).note_token(to).is_err() {
            return;
        }
        for conn in self.shared.owners.objects_of_token(from) {
            self.shared.owners.hold(to.number(), conn, None);
        }
        let owners = &mut self.shared.endpoints.owners;
        for endpoint in owners.objects_of_token(from) {
            owners.hold(to.number(), endpoint, None);
        }
        for listener in self.shared.listeners.owners.objects_of_token(from) {
            self.shared.listeners.hold(to.number(), listener, None);
        }
    }
}
