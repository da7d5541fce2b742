// Package admission holds Barque's built-in admission steps: Kubernetes' own changes of objects
// between authorization and validation.
//
// Steps read listers and, if a lister may be behind a write that the request depends on, the API.
// They fill in open fields only: a value from the client is checked, not replaced.
package admission
