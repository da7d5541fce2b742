// Package validation holds the checks that the API groups share: object metadata, names, label
// selectors, ports, quantities, references and file paths, each reporting under the field path it
// is given.
//
// It owns no knowledge of a single kind. Its functions are pure, never change their arguments, and
// report all faults at once; callers append the results.
package validation
