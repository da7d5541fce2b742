// Package join is the protocol between a machine and a server when the machine joins, and when an
// agent renews its certificates.
//
//	machine                                   server
//	  GET  /barque/join/v1/ca            ──▶   the CA certificate; the token pins its key
//	  POST /barque/join/v1/node          ──▶   a request that the token's key has signed: checked,
//	                                           and the token's use counted; answers with the role's
//	                                           data (servers: the cluster's keys; agents: their
//	                                           certificates), sealed to the machine's own key
//	  … a server stores that, starts its part of the store, and becomes a member of the
//	  consensus group over the servers' own port, by its peer certificate …
//	  POST /barque/join/v1/renew         ──▶   by an agent's certificate that is about to end, or has
//	                                           ended while the agent was off; answers with new ones
//	                                           and with the trusted CAs
//	  POST /barque/join/v1/shared-key    ──▶   by a server's peer certificate: a key that all servers
//	                                           share, of the CA or of service accounts
//
// The secret of the token is never sent. So an attacker between the two gets nothing, even with the
// key of a server's certificate: neither the token, nor the sealed answer, and a request is no good
// with another key, name or role. The same request again gets the same, sealed to the same key.
//
// Machines and servers of earlier versions show the token, to POST …/server and …/agent, and get
// the data unsealed. These count as long as former tokens do (package token). Each step can be
// repeated. A machine that fails between them leaves nothing behind but a use of its token. All its
// retries count as one use.
package join
