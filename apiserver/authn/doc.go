// Package authn identifies the author of a request: by client certificate, service-account token,
// bootstrap token, static token, or as anonymous. It also issues the service-account tokens and
// publishes the keys that verify them.
//
// A token that is bound to an object is valid as long as that very object (by UID) exists, and no
// longer than the service account itself. The package looks these up in listers and, if they do not
// have the object, at the API server. So a token is valid at once after its object has been
// written. Results are cached for a few seconds.
package authn
