// Package logins has the ways to log in that a user configures: JWTs of issuers (by
// --authentication-config or --oidc-…), a webhook for tokens, files of static tokens and of
// passwords, and the conditions of anonymous requests. Package authn tries them after the cluster's
// own credentials, so that none of them can be in the way of nodes, administrators and pods.
//
// Users whom another system names get none of the reserved names, see Reserved.
package logins
