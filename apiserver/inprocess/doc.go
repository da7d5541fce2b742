// Package inprocess lets clients in this process call its own API server without a network: no
// TLS, no frames of HTTP/2, no system calls, and no compression.
//
// A [Transport] is an http.RoundTripper. It calls the same handler as the server's port, so a
// request goes through authentication, authorization, admission, limits, audit and metrics as any
// other does. Only the steps before the handler are left out.
//
// # Where a request can be
//
//	waits ──Serve──▶ in the handler ──▶ answered
//	                      │
//	after Refuse: refused │ after Close: ended
//
// A Transport behaves as a connection to the port would. Before the server serves, requests wait;
// when its port is closed, new ones are refused as by a closed port; when the server has ended, so
// do the streams that are left.
//
// # Invariants
//
//   - The handler sees none of the values in the client's context. They may be those of another
//     request, in whose handling this one is made.
//   - The handler's context ends when the client's does, when the client closes the response, and
//     when the handler returns.
//   - A response holds at most [room] bytes that the client has not read. Then the handler waits.
//   - Headers are the client's and the handler's own copies.
//
// It is not for connections that are taken over (exec, attach, port-forward): these need a network.
package inprocess
