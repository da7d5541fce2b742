// Package admission holds Barque's built-in admission steps: what Kubernetes does to objects
// between authorization and validation without being asked.
//
// Steps read what they need from listers and, where a lister may be behind a write that the request
// depends on, ask the API. They change only what is left open: a value that the client has set is
// checked, not replaced.
package admission
