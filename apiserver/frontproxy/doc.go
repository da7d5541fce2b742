// Package frontproxy logs users in by an authenticating proxy in front of the API. The proxy proves
// itself by a client certificate of a CA that the operator has configured for it, and names the
// user of each request in headers. Barque's servers have another CA for requests among each other,
// which is package authn's affair.
package frontproxy
