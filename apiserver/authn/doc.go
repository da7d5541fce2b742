// Package authn finds out who makes a request: by client certificate, service-account token,
// bootstrap token, static token, or as anonymous. It also issues the service-account tokens and
// publishes the keys that verify them.
//
// A token that is bound to an object is good for as long as that very object (by UID) exists, and
// no longer than the service account itself. That is looked up in listers first and, when they do
// not know the object, at the API server, so that a token is good at once after its object has been
// written. Results are remembered for a few seconds.
package authn
