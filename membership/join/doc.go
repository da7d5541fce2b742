// Package join is the protocol between a machine and a server when the machine joins, and when an
// agent renews its certificates.
//
//	machine                                   server
//	  GET  /barque/join/v1/ca            ──▶   the CA certificate; the token pins its key
//	  POST /barque/join/v1/server|agent  ──▶   token checked and its use counted; answers with the
//	                                           role's data (servers: the cluster's keys; agents:
//	                                           their certificates)
//	  … a server stores that, starts its part of the store, and becomes a member of the
//	  consensus group over the servers' own port, by its peer certificate …
//	  POST /barque/join/v1/renew         ──▶   by an agent's certificate that is about to end, or has
//	                                           ended while the agent was off; answers with new ones
//	                                           and with the trusted CAs
//	  POST /barque/join/v1/shared-key    ──▶   by a server's peer certificate: a key that all servers
//	                                           share, of the CA or of service accounts
//
// The secret of the token is sent only after the CA was proven, and only over TLS. Each step can be
// repeated. A machine that fails between them leaves nothing behind but a use of its token. All its
// retries count as one use.
package join
